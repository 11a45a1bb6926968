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
    let (mut rig, port) = world();
    for pages in [1, 64, 65, 500] {
        let vpn = page_of(port, 3);
        let ticket = rig.host.map_begin(vpn).expect("registered");
        let mut unmap = rig.host.unmap_begin(page_of(port, 3), pages, UnmapKind::Remove);
        assert_eq!(rig.host.map_begin(vpn), Err(MapError::Raced));
        assert_eq!(rig.step(&mut unmap, 10), UnmapStep::Done);
        assert_eq!(rig.host.map_begin(vpn), Err(MapError::Raced), "still open");
        rig.host.unmap_end(unmap);
        let page = Resident {
            ppn: Ppn(1),
            frame: 0,
            writable: true,
        };
        let late = rig.host.map_commit(&mut rig.platform, ticket, page);
        assert_eq!(late, Err(MapError::Raced), "{pages} pages");
        assert_eq!(rig.map(vpn, 1, true), Ok(None));
        let _ = rig.unmap(vpn, 1, UnmapKind::Remove);
    }
}

#[test]
pub(crate) fn a_used_page_is_waited_for_or_restored() {
    let (mut rig, port) = world();
    let (a, b) = (page_of(port, 1), page_of(port, 2));
    rig.map(a, 7, true).expect("maps");
    rig.map(b, 8, true).expect("maps");
    let held = rig.lock(a, true).expect("mapped");
    let mut unmap = rig.host.unmap_begin(a, 2, UnmapKind::Remove);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::InUse);
    assert!(rig.lock(a, true).is_err(), "no new lock from begin on");
    assert_eq!(rig.gone.len(), 1, "b is out");
    rig.host.unmap_restore(&mut rig.platform, unmap);
    assert!(rig.host.mapping(a).is_some() && rig.host.mapping(b).is_none());
    let second = rig.lock(a, true).expect("restored");
    rig.unlock(second, Used::Not);
    rig.unlock(held, Used::Written);
    assert_eq!(rig.unmap(a, 1, UnmapKind::Remove), UnmapStep::Done);
    assert!(rig.gone[1].dirty, "not lost by the restore");
    assert_eq!(rig.count("pages_restored"), 1);
    assert_eq!(rig.count("unmap_waits"), 1);
}

#[test]
pub(crate) fn waits_are_counted_by_their_length_and_what_the_nic_had_of_them() {
    let (mut rig, port) = world();
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
        rig.map(vpn, frame, true).expect("maps");
        let held = rig.lock(vpn, true).expect("mapped");
        let mut unmap = rig.host.unmap_begin(vpn, 1, UnmapKind::Remove);
        let before = rig.count(counter);
        assert_eq!(rig.step(&mut unmap, 10), UnmapStep::InUse);
        rig.unlock(held, Used::Written);
        rig.now = Nanos(rig.now.0 + micros * 1000);
        assert_eq!(rig.step(&mut unmap, 10), UnmapStep::Done);
        rig.host.unmap_end(unmap);
        assert_eq!(rig.count(counter), before + 1, "{micros} us");
    }
    assert_eq!(rig.count("unmap_found_locked"), waits.len() as u64);
    assert_eq!(rig.count("unmap_neither"), 0);
    // An unmap that does not wait is none of these.
    rig.map(vpn, 99, true).expect("maps");
    let _ = rig.unmap(vpn, 1, UnmapKind::Remove);
    assert_eq!(rig.count("unmap_waited_1us"), 2);
    // The NIC has set its lock, and will see that the entry is gone.
    rig.map(vpn, 100, true).expect("maps");
    let held = rig.lock(vpn, true).expect("mapped");
    let word = page_lock::lock_word_at(&rig.table, held.slot);
    let locked = rig.platform.bar.load_acquire(word);
    let mut unmap = rig.host.unmap_begin(vpn, 1, UnmapKind::Remove);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::InUse);
    rig.platform
        .bar
        .store_release(word, (locked - 1) ^ nic_word::BACKED_OFF);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::Done);
    rig.host.unmap_end(unmap);
    assert_eq!(rig.count("unmap_neither"), 1);
    assert!(!rig.gone.last().expect("the page").dirty);
}

#[test]
pub(crate) fn overlapping_unmaps_both_end_only_when_the_page_is_free() {
    let (mut rig, port) = world();
    let vpn = page_of(port, 1);
    rig.map(vpn, 7, true).expect("maps");
    let held = rig.lock(vpn, true).expect("mapped");
    let mut first = rig.host.unmap_begin(vpn, 1, UnmapKind::Remove);
    let mut second = rig.host.unmap_begin(page_of(port, 0), 1000, UnmapKind::Remove);
    assert_eq!(rig.step(&mut first, 10), UnmapStep::InUse);
    assert_eq!(rig.step(&mut second, 10), UnmapStep::InUse);
    // The first gives up; the second must not believe that the page is out.
    rig.host.unmap_restore(&mut rig.platform, first);
    assert_eq!(rig.step(&mut second, 10), UnmapStep::InUse);
    assert!(rig.lock(vpn, false).is_err());
    rig.unlock(held, Used::Written);
    assert_eq!(rig.step(&mut second, 10), UnmapStep::Done);
    rig.host.unmap_end(second);
    assert_eq!(rig.gone.len(), 1);
}

#[test]
pub(crate) fn write_protection_has_no_part_in_the_removal_of_a_page_for_reading() {
    let (mut rig, port) = world();
    let vpn = page_of(port, 1);
    rig.map(vpn, 7, false).expect("maps");
    let reader = rig.lock(vpn, false).expect("mapped");
    let mut removal = rig.host.unmap_begin(vpn, 1, UnmapKind::Remove);
    assert_eq!(rig.step(&mut removal, 10), UnmapStep::InUse);
    let mut protect = rig
        .host
        .unmap_begin(page_of(port, 0), 1000, UnmapKind::WriteProtect);
    assert_eq!(
        rig.step(&mut protect, 10),
        UnmapStep::Done,
        "the removal's reader is not waited for"
    );
    rig.unlock(reader, Used::Read);
    assert_eq!(rig.step(&mut protect, 10), UnmapStep::Done);
    assert!(
        rig.gone.is_empty() && rig.lock(vpn, false).is_err(),
        "nor is it brought back"
    );
    assert_eq!(rig.step(&mut removal, 10), UnmapStep::Done);
    rig.host.unmap_end(protect);
    rig.host.unmap_end(removal);
    assert_eq!(rig.gone.len(), 1);
}

#[test]
pub(crate) fn write_protection_is_a_full_unmap_and_leaves_readers() {
    let (mut rig, port) = world();
    let (a, b) = (page_of(port, 1), page_of(port, 2));
    rig.map(a, 7, true).expect("maps");
    rig.map(b, 8, false).expect("maps");
    let held = rig.lock(a, true).expect("mapped");
    let reader = rig.lock(b, false).expect("mapped");
    let mut protect = rig.host.unmap_begin(a, 2, UnmapKind::WriteProtect);
    assert_eq!(
        rig.step(&mut protect, 10),
        UnmapStep::InUse,
        "the writer is waited for"
    );
    rig.unlock(held, Used::Written);
    assert_eq!(
        rig.step(&mut protect, 10),
        UnmapStep::Done,
        "the reader of b is not"
    );
    rig.host.unmap_end(protect);
    assert_eq!(rig.gone.len(), 1);
    assert!(rig.gone[0].dirty && rig.gone[0].still_readable);
    assert!(rig.lock(a, true).is_err());
    let again = rig.lock(a, false).expect("readable");
    rig.unlock(again, Used::Read);
    rig.unlock(reader, Used::Read);
    assert_eq!(rig.count("pages_protected"), 1);
    // A removal that overlaps a protection still removes.
    rig.map(page_of(port, 3), 9, true).expect("maps");
    let held = rig.lock(page_of(port, 3), true).expect("mapped");
    let mut remove = rig.host.unmap_begin(page_of(port, 3), 1, UnmapKind::Remove);
    let mut protect = rig.host.unmap_begin(page_of(port, 3), 1, UnmapKind::WriteProtect);
    assert_eq!(rig.step(&mut remove, 10), UnmapStep::InUse);
    rig.unlock(held, Used::Not);
    assert_eq!(rig.step(&mut protect, 10), UnmapStep::Done);
    assert_eq!(rig.step(&mut remove, 10), UnmapStep::Done);
    assert!(rig.host.mapping(page_of(port, 3)).is_none());
    rig.host.unmap_end(remove);
    rig.host.unmap_end(protect);
}

#[test]
pub(crate) fn a_lock_that_is_not_released_in_time_means_a_dead_card() {
    let (mut rig, port) = world();
    let vpn = page_of(port, 1);
    rig.map(vpn, 7, true).expect("maps");
    rig.map(page_of(port, 2), 8, true).expect("maps");
    let _held = rig.lock(vpn, true).expect("mapped");
    let mut unmap = rig.host.unmap_begin(vpn, 1, UnmapKind::Remove);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::InUse);
    assert_eq!(rig.unmap_while_it_runs(&mut unmap, 10, 9), UnmapStep::InUse);
    assert_eq!(rig.unmap_while_it_runs(&mut unmap, 10, 2), UnmapStep::CardDead);
    assert_eq!(rig.host.card(), CardState::Dead(CardFailure::UnmapDeadline));
    assert_eq!(
        rig.step(&mut unmap, 10),
        UnmapStep::CardDead,
        "until it is stopped"
    );
    assert_eq!(rig.map(page_of(port, 5), 1, true), Err(MapError::CardGone));
    rig.host.card_stopped(&mut rig.platform, false, rig.now);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::Done);
    rig.host.unmap_end(unmap);
    assert!(rig.gone[0].dirty && rig.gone[0].leaked, "it was not proven free");
    assert_eq!(rig.count("pages_leaked"), 1);
    // Pages elsewhere in the segment are untouched by that.
    assert!(rig.host.mapping(page_of(port, 2)).is_some());
}

#[test]
pub(crate) fn all_ones_mean_a_dead_card() {
    let (mut rig, port) = world();
    rig.map(page_of(port, 1), 7, true).expect("maps");
    rig.kill_card();
    let mut unmap = rig.host.unmap_begin(page_of(port, 0), 4, UnmapKind::Remove);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::CardDead);
    assert_eq!(rig.host.card(), CardState::Dead(CardFailure::AllOnes));
    let mut elsewhere = rig.host.unmap_begin(page_of(port, 9), 4, UnmapKind::Remove);
    assert_eq!(
        rig.step(&mut elsewhere, 10),
        UnmapStep::Done,
        "nothing of it was mapped"
    );
    rig.host.unmap_end(elsewhere);
    rig.host.card_stopped(&mut rig.platform, true, rig.now);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::Done);
    rig.host.unmap_end(unmap);
    assert!(rig.gone[0].dirty && !rig.gone[0].leaked);
}

/// A file's page that is mapped for reading may not be dirtied: its file system has not been asked, and may have no way to.
#[test]
pub(crate) fn a_dead_card_leaves_a_page_dirty_only_where_it_could_write() {
    let (mut rig, port) = world();
    let (written, read, protected) = (page_of(port, 1), page_of(port, 2), page_of(port, 3));
    rig.map(written, 7, true).expect("maps");
    rig.map(read, 8, false).expect("maps");
    rig.map(protected, 9, true).expect("maps");
    assert_eq!(rig.unmap(protected, 1, UnmapKind::WriteProtect), UnmapStep::Done);
    rig.gone.clear();
    rig.kill_card();
    let mut unmap = rig.host.unmap_begin(page_of(port, 0), 8, UnmapKind::Remove);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::CardDead);
    let used = |rig: &mut Rig, vpn| rig.host.take_use(&mut rig.platform, vpn, Clear::Nothing);
    for (vpn, dirty) in [(written, true), (read, false), (protected, false)] {
        let used = used(&mut rig, vpn).expect("still mapped");
        assert_eq!((used.dirty, used.referenced), (dirty, true), "{vpn:?}");
    }
    rig.host.card_stopped(&mut rig.platform, false, rig.now);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::Done);
    rig.host.unmap_end(unmap);
    assert_eq!(rig.gone.len(), 3);
    for page in &rig.gone {
        assert_eq!(page.dirty, page.vpn == written, "{page:?}");
        assert!(page.referenced && page.leaked, "{page:?}");
    }
    assert_eq!(rig.count("pages_dirty"), 1);
}

#[test]
pub(crate) fn a_whole_segment_is_unmapped_in_slices() {
    let (mut rig, port) = world();
    for page in 0..60 {
        rig.map(page_of(port, page * 3), page, true).expect("maps");
    }
    let mapped = rig.host.mapped_pages();
    let mut unmap = rig.host.unmap_begin(page_of(port, 0), 1000, UnmapKind::Remove);
    let mut steps = 0;
    while rig.step(&mut unmap, 7) != UnmapStep::Done {
        steps += 1;
        assert!(steps < 1000);
    }
    rig.host.unmap_end(unmap);
    assert!(steps >= mapped / 7);
    assert_eq!(rig.host.mapped_pages(), 0);
    assert_eq!(rig.count("pages_unmapped"), u64::from(mapped));
}

#[test]
pub(crate) fn a_small_budget_does_not_hide_a_hung_card() {
    let (mut rig, port) = world();
    for page in 0..4 {
        rig.map(page_of(port, page), page, true).expect("maps");
    }
    let _held = rig.lock(page_of(port, 0), true).expect("mapped");
    let mut unmap = rig.host.unmap_begin(page_of(port, 0), 1000, UnmapKind::Remove);
    let mut steps = 0;
    while rig.step(&mut unmap, 1) != UnmapStep::InUse {
        steps += 1;
        assert!(steps < 20);
    }
    assert_eq!(rig.gone.len(), 3, "the others are out");
    assert_eq!(rig.unmap_while_it_runs(&mut unmap, 1, 11), UnmapStep::CardDead);
}
