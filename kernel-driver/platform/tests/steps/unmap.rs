//! Unmapping: it pauses without the lock, and ends whatever the card does.

use crate::desk::{Did, world};
use netvm_abi::Nanos;
use netvm_abi::page_lock::Used;
use netvm_host::Progress;
use netvm_host::host::{CardFailure, CardState};
use netvm_host::unmap::UnmapKind;
use netvm_host_platform::{notice, unmap};
use netvm_kit::host::page_of;
use std::cell::Cell;

#[test]
fn an_unmap_pauses_until_the_card_lets_go_and_tells_what_it_wrote() {
    let (desk, port, _) = world();
    let vpn = page_of(port, 17);
    let begun = desk.with(|stand| {
        stand.map(vpn, 900, true).expect("maps");
        stand.host.unmap_begin(vpn, 1, UnmapKind::Remove)
    });
    let held = Cell::new(Some(desk.with(|stand| stand.lock(vpn, true).expect("mapped"))));
    let mut pauses = 0;
    unmap::finish(&desk, begun, || {
        assert!(!desk.locked.get() && desk.did.borrow().is_empty());
        desk.with(|stand| assert!(stand.host.map_begin(vpn).is_err(), "not while it is unmapped"));
        pauses += 1;
        if pauses == 3 {
            let page = held.take().expect("locked");
            desk.with(|stand| stand.unlock(page, Used::Written));
        }
    });
    assert_eq!(pauses, 3);
    let gone = desk.gone();
    assert!(
        matches!(gone[..], [page] if page.vpn == vpn && page.dirty && page.referenced && !page.leaked),
        "{gone:?}"
    );
    desk.with(|stand| {
        assert!(stand.lock(vpn, false).is_err(), "nothing is left of it");
        assert!(stand.host.map_begin(vpn).is_ok(), "the unmap has ended");
    });
}

#[test]
fn a_card_that_keeps_a_page_is_stopped_once_and_the_unmap_ends() {
    let (desk, port, _) = world();
    let vpn = page_of(port, 17);
    let begun = desk.with(|stand| {
        stand.map(vpn, 900, true).expect("maps");
        let _held = stand.lock(vpn, true).expect("mapped");
        stand.host.unmap_begin(vpn, 1, UnmapKind::Remove)
    });
    let mut pauses = 0;
    unmap::finish(&desk, begun, || {
        pauses += 1;
        assert!(pauses < 1000, "it waits for ever");
        desk.with(|stand| {
            stand.now = stand.now.after(Nanos::from_micros(500));
            stand.beat();
        });
    });
    let did = desk.did();
    assert!(
        matches!(did[..], [Did::Stopped, Did::Gone(page)] if page.vpn == vpn && page.dirty && !page.leaked),
        "{did:?}"
    );
    desk.with(|stand| {
        assert!(matches!(
            stand.host.card(),
            CardState::Stopped {
                cause: CardFailure::UnmapDeadline,
                proven: true
            }
        ));
    });
}

#[test]
fn without_a_core_nothing_is_mapped() {
    let (desk, port, _) = world();
    let mut begun = desk.with(|stand| stand.host.unmap_begin(page_of(port, 17), 4, UnmapKind::Remove));
    *desk.stand.borrow_mut() = None;
    assert_eq!(unmap::step(&desk, &mut begun), Progress::Done);
    unmap::finish(&desk, begun, || unreachable!("there is no card"));
    notice::hear(&desk);
    assert_eq!(desk.did(), []);
}
