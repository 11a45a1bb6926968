//! Unmaps, alone and overlapping; dead cards (promise P1).

use crate::shadow::world;
use netvm_abi::page_lock::{self, Clear, Used};
use netvm_abi::page_table::nic_word;
use netvm_abi::words::SharedWords as _;
use netvm_abi::*;
use netvm_host::host::{CardFailure, CardState};
use netvm_host::platform::Resident;
use netvm_host::shadow::MapError;
use netvm_host::unmap::{UnmapKind, UnmapStep};
use netvm_kit::host::*;

#[test]
pub(crate) fn no_page_is_mapped_while_its_unmap_is_open_and_old_tickets_are_void() {
    let (mut stand, port) = world();
    for pages in [1, 64, 65, 500] {
        let vpn = page_of(port, 3);
        let ticket = stand.host.map_begin(vpn).expect("registered");
        let mut unmap = stand.host.unmap_begin(page_of(port, 3), pages, UnmapKind::Remove);
        assert_eq!(stand.host.map_begin(vpn), Err(MapError::Raced));
        assert_eq!(stand.step(&mut unmap, 10), UnmapStep::Done);
        assert_eq!(stand.host.map_begin(vpn), Err(MapError::Raced), "still open");
        stand.host.unmap_end(unmap);
        let page = Resident {
            ppn: Ppn(1),
            frame: 0,
            writable: true,
        };
        let late = stand.host.map_commit(&mut stand.platform, ticket, page);
        assert_eq!(late, Err(MapError::Raced), "{pages} pages");
        assert_eq!(stand.map(vpn, 1, true), Ok(None));
        let _ = stand.unmap(vpn, 1, UnmapKind::Remove);
    }
}

#[test]
pub(crate) fn a_used_page_is_waited_for_or_restored() {
    let (mut stand, port) = world();
    let (a, b) = (page_of(port, 1), page_of(port, 2));
    stand.map(a, 7, true).expect("maps");
    stand.map(b, 8, true).expect("maps");
    let held = stand.lock(a, true).expect("mapped");
    let mut unmap = stand.host.unmap_begin(a, 2, UnmapKind::Remove);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::InUse);
    assert!(stand.lock(a, true).is_err(), "no new lock from begin on");
    assert_eq!(stand.gone.len(), 1, "b is out");
    stand.host.unmap_restore(&mut stand.platform, unmap);
    assert!(stand.host.mapping(a).is_some() && stand.host.mapping(b).is_none());
    let second = stand.lock(a, true).expect("restored");
    stand.unlock(second, Used::Not);
    stand.unlock(held, Used::Written);
    assert_eq!(stand.unmap(a, 1, UnmapKind::Remove), UnmapStep::Done);
    assert!(stand.gone[1].dirty, "not lost by the restore");
    assert_eq!(stand.count("pages_restored"), 1);
    assert_eq!(stand.count("unmap_waits"), 1);
}

#[test]
pub(crate) fn waits_are_counted_by_their_length_and_what_the_nic_had_of_them() {
    let (mut stand, port) = world();
    let vpn = page_of(port, 1);
    // How long each lasts, in microseconds, and the counter that it raises.
    let waits = [
        (0, "unmap_waited_1us"),
        (1, "unmap_waited_1us"),
        (2, "unmap_waited_2us"),
        (3, "unmap_waited_2us"),
        (4, "unmap_waited_4us"),
        (8, "unmap_waited_8us"),
        (31, "unmap_waited_16us"),
        (32, "unmap_waited_32us"),
        (64, "unmap_waited_64us"),
        (128, "unmap_waited_128us"),
        (256, "unmap_waited_256us"),
        (512, "unmap_waited_512us"),
        (1024, "unmap_waited_1024us"),
        (2048, "unmap_waited_2048us"),
        (4096, "unmap_waited_4096us"),
        (8192, "unmap_waited_8192us"),
        (16_384, "unmap_waited_16384us"),
        (70_000, "unmap_waited_16384us"),
    ];
    for (frame, (micros, counter)) in (1..).zip(waits) {
        stand.map(vpn, frame, true).expect("maps");
        let held = stand.lock(vpn, true).expect("mapped");
        let mut unmap = stand.host.unmap_begin(vpn, 1, UnmapKind::Remove);
        let before = stand.count(counter);
        assert_eq!(stand.step(&mut unmap, 10), UnmapStep::InUse);
        stand.unlock(held, Used::Written);
        stand.now = Nanos(stand.now.0 + micros * 1000);
        assert_eq!(stand.step(&mut unmap, 10), UnmapStep::Done);
        stand.host.unmap_end(unmap);
        assert_eq!(stand.count(counter), before + 1, "{micros} us");
    }
    assert_eq!(stand.count("unmap_found_locked"), waits.len() as u64);
    assert_eq!(stand.count("unmap_neither"), 0);
    // An unmap that does not wait is none of these.
    stand.map(vpn, 99, true).expect("maps");
    let _ = stand.unmap(vpn, 1, UnmapKind::Remove);
    assert_eq!(stand.count("unmap_waited_1us"), 2);
    // The NIC has set its lock, and will see that the entry is gone.
    stand.map(vpn, 100, true).expect("maps");
    let held = stand.lock(vpn, true).expect("mapped");
    let word = page_lock::lock_word_at(&stand.table, held.slot);
    let locked = stand.platform.bar.load_acquire(word);
    let mut unmap = stand.host.unmap_begin(vpn, 1, UnmapKind::Remove);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::InUse);
    stand
        .platform
        .bar
        .store_release(word, (locked - 1) ^ nic_word::BACKED_OFF);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::Done);
    stand.host.unmap_end(unmap);
    assert_eq!(stand.count("unmap_neither"), 1);
    assert!(!stand.gone.last().expect("the page").dirty);
}

#[test]
pub(crate) fn overlapping_unmaps_both_end_only_when_the_page_is_free() {
    let (mut stand, port) = world();
    let vpn = page_of(port, 1);
    stand.map(vpn, 7, true).expect("maps");
    let held = stand.lock(vpn, true).expect("mapped");
    let mut first = stand.host.unmap_begin(vpn, 1, UnmapKind::Remove);
    let mut second = stand.host.unmap_begin(page_of(port, 0), 1000, UnmapKind::Remove);
    assert_eq!(stand.step(&mut first, 10), UnmapStep::InUse);
    assert_eq!(stand.step(&mut second, 10), UnmapStep::InUse);
    // The first gives up; the second must not believe that the page is out.
    stand.host.unmap_restore(&mut stand.platform, first);
    assert_eq!(stand.step(&mut second, 10), UnmapStep::InUse);
    assert!(stand.lock(vpn, false).is_err());
    stand.unlock(held, Used::Written);
    assert_eq!(stand.step(&mut second, 10), UnmapStep::Done);
    stand.host.unmap_end(second);
    assert_eq!(stand.gone.len(), 1);
}

#[test]
pub(crate) fn write_protection_has_no_part_in_the_removal_of_a_page_for_reading() {
    let (mut stand, port) = world();
    let vpn = page_of(port, 1);
    stand.map(vpn, 7, false).expect("maps");
    let reader = stand.lock(vpn, false).expect("mapped");
    let mut removal = stand.host.unmap_begin(vpn, 1, UnmapKind::Remove);
    assert_eq!(stand.step(&mut removal, 10), UnmapStep::InUse);
    let mut protect = stand
        .host
        .unmap_begin(page_of(port, 0), 1000, UnmapKind::WriteProtect);
    assert_eq!(
        stand.step(&mut protect, 10),
        UnmapStep::Done,
        "the removal's reader is not waited for"
    );
    stand.unlock(reader, Used::Read);
    assert_eq!(stand.step(&mut protect, 10), UnmapStep::Done);
    assert!(
        stand.gone.is_empty() && stand.lock(vpn, false).is_err(),
        "nor is it brought back"
    );
    assert_eq!(stand.step(&mut removal, 10), UnmapStep::Done);
    stand.host.unmap_end(protect);
    stand.host.unmap_end(removal);
    assert_eq!(stand.gone.len(), 1);
}

#[test]
pub(crate) fn write_protection_is_a_full_unmap_and_leaves_readers() {
    let (mut stand, port) = world();
    let (a, b) = (page_of(port, 1), page_of(port, 2));
    stand.map(a, 7, true).expect("maps");
    stand.map(b, 8, false).expect("maps");
    let held = stand.lock(a, true).expect("mapped");
    let reader = stand.lock(b, false).expect("mapped");
    let mut protect = stand.host.unmap_begin(a, 2, UnmapKind::WriteProtect);
    assert_eq!(
        stand.step(&mut protect, 10),
        UnmapStep::InUse,
        "the writer is waited for"
    );
    stand.unlock(held, Used::Written);
    assert_eq!(
        stand.step(&mut protect, 10),
        UnmapStep::Done,
        "the reader of b is not"
    );
    stand.host.unmap_end(protect);
    assert_eq!(stand.gone.len(), 1);
    assert!(stand.gone[0].dirty && stand.gone[0].still_readable);
    assert!(stand.lock(a, true).is_err());
    let again = stand.lock(a, false).expect("readable");
    stand.unlock(again, Used::Read);
    stand.unlock(reader, Used::Read);
    assert_eq!(stand.count("pages_protected"), 1);
    // A removal that overlaps a protection still removes.
    stand.map(page_of(port, 3), 9, true).expect("maps");
    let held = stand.lock(page_of(port, 3), true).expect("mapped");
    let mut remove = stand.host.unmap_begin(page_of(port, 3), 1, UnmapKind::Remove);
    let mut protect = stand
        .host
        .unmap_begin(page_of(port, 3), 1, UnmapKind::WriteProtect);
    assert_eq!(stand.step(&mut remove, 10), UnmapStep::InUse);
    stand.unlock(held, Used::Not);
    assert_eq!(stand.step(&mut protect, 10), UnmapStep::Done);
    assert_eq!(stand.step(&mut remove, 10), UnmapStep::Done);
    assert!(stand.host.mapping(page_of(port, 3)).is_none());
    stand.host.unmap_end(remove);
    stand.host.unmap_end(protect);
}

#[test]
pub(crate) fn a_lock_that_is_not_released_in_time_means_a_dead_card() {
    let (mut stand, port) = world();
    let vpn = page_of(port, 1);
    stand.map(vpn, 7, true).expect("maps");
    stand.map(page_of(port, 2), 8, true).expect("maps");
    let _held = stand.lock(vpn, true).expect("mapped");
    let mut unmap = stand.host.unmap_begin(vpn, 1, UnmapKind::Remove);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::InUse);
    assert_eq!(stand.unmap_while_it_runs(&mut unmap, 10, 9), UnmapStep::InUse);
    assert_eq!(stand.unmap_while_it_runs(&mut unmap, 10, 2), UnmapStep::CardDead);
    assert_eq!(stand.host.card(), CardState::Dead(CardFailure::UnmapDeadline));
    assert_eq!(
        stand.step(&mut unmap, 10),
        UnmapStep::CardDead,
        "until it is stopped"
    );
    assert_eq!(stand.map(page_of(port, 5), 1, true), Err(MapError::CardGone));
    stand.host.card_stopped(&mut stand.platform, false, stand.now);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::Done);
    stand.host.unmap_end(unmap);
    assert!(
        stand.gone[0].dirty && stand.gone[0].leaked,
        "it was not proven free"
    );
    assert_eq!(stand.count("pages_leaked"), 1);
    // Pages elsewhere in the segment are untouched by that.
    assert!(stand.host.mapping(page_of(port, 2)).is_some());
}

#[test]
pub(crate) fn all_ones_mean_a_dead_card() {
    let (mut stand, port) = world();
    stand.map(page_of(port, 1), 7, true).expect("maps");
    stand.kill_card();
    let mut unmap = stand.host.unmap_begin(page_of(port, 0), 4, UnmapKind::Remove);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::CardDead);
    assert_eq!(stand.host.card(), CardState::Dead(CardFailure::AllOnes));
    let mut elsewhere = stand.host.unmap_begin(page_of(port, 9), 4, UnmapKind::Remove);
    assert_eq!(
        stand.step(&mut elsewhere, 10),
        UnmapStep::Done,
        "nothing of it was mapped"
    );
    stand.host.unmap_end(elsewhere);
    stand.host.card_stopped(&mut stand.platform, true, stand.now);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::Done);
    stand.host.unmap_end(unmap);
    assert!(stand.gone[0].dirty && !stand.gone[0].leaked);
}

/// A file's page that is mapped for reading may not be dirtied: its file system has not been asked, and may have no way to.
#[test]
pub(crate) fn a_dead_card_leaves_a_page_dirty_only_where_it_could_write() {
    let (mut stand, port) = world();
    let (written, read, protected) = (page_of(port, 1), page_of(port, 2), page_of(port, 3));
    stand.map(written, 7, true).expect("maps");
    stand.map(read, 8, false).expect("maps");
    stand.map(protected, 9, true).expect("maps");
    assert_eq!(
        stand.unmap(protected, 1, UnmapKind::WriteProtect),
        UnmapStep::Done
    );
    stand.gone.clear();
    stand.kill_card();
    let mut unmap = stand.host.unmap_begin(page_of(port, 0), 8, UnmapKind::Remove);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::CardDead);
    let used = |stand: &mut Stand, vpn| stand.host.take_use(&mut stand.platform, vpn, Clear::Nothing);
    for (vpn, dirty) in [(written, true), (read, false), (protected, false)] {
        let used = used(&mut stand, vpn).expect("still mapped");
        assert_eq!((used.dirty, used.referenced), (dirty, true), "{vpn:?}");
    }
    stand.host.card_stopped(&mut stand.platform, false, stand.now);
    assert_eq!(stand.step(&mut unmap, 10), UnmapStep::Done);
    stand.host.unmap_end(unmap);
    assert_eq!(stand.gone.len(), 3);
    for page in &stand.gone {
        assert_eq!(page.dirty, page.vpn == written, "{page:?}");
        assert!(page.referenced && page.leaked, "{page:?}");
    }
    assert_eq!(stand.count("pages_dirty"), 1);
}

#[test]
pub(crate) fn a_whole_segment_is_unmapped_in_slices() {
    let (mut stand, port) = world();
    for page in 0..60 {
        stand.map(page_of(port, page * 3), page, true).expect("maps");
    }
    let mapped = stand.host.mapped_pages();
    let mut unmap = stand.host.unmap_begin(page_of(port, 0), 1000, UnmapKind::Remove);
    let mut steps = 0;
    while stand.step(&mut unmap, 7) != UnmapStep::Done {
        steps += 1;
        assert!(steps < 1000);
    }
    stand.host.unmap_end(unmap);
    assert!(steps >= mapped / 7);
    assert_eq!(stand.host.mapped_pages(), 0);
    assert_eq!(stand.count("pages_unmapped"), u64::from(mapped));
}

#[test]
pub(crate) fn a_small_budget_does_not_hide_a_hung_card() {
    let (mut stand, port) = world();
    for page in 0..4 {
        stand.map(page_of(port, page), page, true).expect("maps");
    }
    let _held = stand.lock(page_of(port, 0), true).expect("mapped");
    let mut unmap = stand.host.unmap_begin(page_of(port, 0), 1000, UnmapKind::Remove);
    let mut steps = 0;
    while stand.step(&mut unmap, 1) != UnmapStep::InUse {
        steps += 1;
        assert!(steps < 20);
    }
    assert_eq!(stand.gone.len(), 3, "the others are out");
    assert_eq!(stand.unmap_while_it_runs(&mut unmap, 1, 11), UnmapStep::CardDead);
}
