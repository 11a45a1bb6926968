//! The shadow page table: rows, quota, displacement, marks; unmaps, alone and overlapping
//! (promises P1, P3).

use crate::rig::*;
use netvm_abi::page_lock::{Clear, Used};
use netvm_abi::*;
use netvm_host::host::{CardFailure, CardState};
use netvm_host::platform::{PageGone, Resident};
use netvm_host::ports::OpenPort;
use netvm_host::shadow::MapError;
use netvm_host::unmap::{Unmap, UnmapKind, UnmapStep};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn world() -> (Rig, OpenPort) {
    let mut rig = Rig::new();
    let port = rig.open();
    rig.register(port, 0, 1000);
    (rig, port)
}

impl Rig {
    fn step(&mut self, unmap: &mut Unmap, budget: u32) -> UnmapStep {
        let gone = &mut self.gone;
        self.host
            .unmap_step(&mut self.platform, unmap, self.now, budget, &mut |page| {
                gone.push(page)
            })
    }
}

#[test]
pub(crate) fn only_registered_pages_of_open_ports_are_mapped() {
    let (mut rig, port) = world();
    assert_eq!(
        rig.map(page_of(port, 1000), 1, true),
        Err(MapError::NotRegistered)
    );
    assert_eq!(
        rig.map(Vpn::new(PortId(5), 1), 1, true),
        Err(MapError::NotRegistered)
    );
    assert_eq!(
        rig.map(Vpn::new(PortId(u16::MAX), 1), 1, true),
        Err(MapError::NotRegistered)
    );
    assert_eq!(rig.map(page_of(port, 999), 1, true), Ok(None));
    let ticket = rig.host.map_begin(page_of(port, 5)).expect("registered");
    rig.close(port);
    let page = Resident {
        ppn: Ppn(1),
        writable: true,
    };
    let late = rig.host.map_commit(&mut rig.platform, ticket, page);
    assert_eq!(late, Err(MapError::NotRegistered));
}

#[test]
pub(crate) fn a_ticket_of_an_earlier_segment_is_void() {
    let (mut rig, port) = world();
    let segment = rig.register(port, 2000, 1);
    let vpn = page_of(port, 2000);
    let ticket = rig.host.map_begin(vpn).expect("registered");
    let mut end = rig.host.unregister_begin(port.port, segment).expect("there");
    assert_eq!(
        rig.map(vpn, 1, true),
        Err(MapError::NotRegistered),
        "it is ending"
    );
    let done = rig
        .host
        .unregister_step(&mut rig.platform, &mut end, rig.now, 8, &mut |_| {});
    assert_eq!(done, netvm_host::Progress::Done);
    let again = rig.register(port, 2000, 1);
    assert_ne!(segment, again, "the id has another generation");
    let page = Resident {
        ppn: Ppn(1),
        writable: true,
    };
    let late = rig.host.map_commit(&mut rig.platform, ticket, page);
    assert_eq!(late, Err(MapError::NotRegistered));
}

#[test]
pub(crate) fn one_frame_under_two_pages_has_two_locks() {
    let (mut rig, port) = world();
    let (a, b) = (page_of(port, 1), page_of(port, 2));
    rig.map(a, 7, true).expect("maps");
    rig.map(b, 7, true).expect("maps");
    let held = rig.lock(a, true).expect("mapped");
    assert_eq!(
        rig.unmap(b, 1, UnmapKind::Remove),
        UnmapStep::Done,
        "only a is held"
    );
    assert_eq!(rig.unmap(a, 1, UnmapKind::Remove), UnmapStep::InUse);
    rig.unlock(held, Used::Written);
    assert_eq!(rig.unmap(a, 1, UnmapKind::Remove), UnmapStep::Done);
    assert_eq!(rig.gone.len(), 2);
    assert!(!rig.gone[0].dirty && rig.gone[1].dirty);
    assert_eq!(rig.host.mapped_pages(), 0);
}

#[test]
pub(crate) fn mapping_again_changes_frame_or_permission_by_a_full_unmap() {
    let (mut rig, port) = world();
    let vpn = page_of(port, 1);
    rig.map(vpn, 7, true).expect("maps");
    assert_eq!(rig.map(vpn, 7, true), Ok(None));
    let held = rig.lock(vpn, true).expect("mapped");
    assert_eq!(
        rig.map(vpn, 7, false),
        Err(MapError::Busy),
        "a locked slot is never rewritten"
    );
    rig.unlock(held, Used::Written);
    let before = rig.map(vpn, 7, false).expect("maps").expect("the earlier entry");
    assert!(before.dirty, "P3: what the NIC wrote before is not lost");
    assert!(rig.lock(vpn, true).is_err());
    let held = rig.lock(vpn, false).expect("still readable");
    rig.unlock(held, Used::Read);
    let before = rig.map(vpn, 8, true).expect("maps").expect("the earlier entry");
    assert!(!before.dirty && before.referenced);
    assert_eq!(rig.lock(vpn, true).map(|page| page.ppn), Ok(Ppn(8)));
    assert_eq!(rig.count("pages_already_mapped"), 1);
    assert_eq!(rig.count("pages_replaced"), 2);
}

#[test]
pub(crate) fn a_page_is_mapped_without_a_look_into_nic_memory() {
    let (mut rig, port) = world();
    let vpn = page_of(port, 1);
    for round in 0..4u64 {
        // Used in different ways in between, so that the NIC's marks differ.
        let before = rig.platform.bar.loads.get();
        assert_eq!(rig.map(vpn, round, true), Ok(None));
        assert_eq!(rig.platform.bar.loads.get(), before);
        let used = rig
            .host
            .take_use(&mut rig.platform, vpn, Clear::Nothing)
            .expect("mapped");
        assert!(!used.dirty && !used.referenced, "a page starts clean");
        let held = rig.lock(vpn, true).expect("mapped");
        rig.unlock(held, if round % 2 == 0 { Used::Written } else { Used::Read });
        let used = rig
            .host
            .take_use(&mut rig.platform, vpn, Clear::Both)
            .expect("mapped");
        assert_eq!((used.dirty, used.referenced), (round % 2 == 0, true));
        assert_eq!(rig.unmap(vpn, 1, UnmapKind::Remove), UnmapStep::Done);
    }
}

/// A rig whose page table has only so many rows of two slots.
fn small(page_rows: u32) -> (Rig, OpenPort) {
    let small = Geometry {
        page_rows,
        ..geometry()
    };
    let config = netvm_host::attach::HostConfig {
        geometry: Some(small),
        ..config()
    };
    let mut rig = Rig::with(&config, &small);
    let port = rig.open();
    rig.register(port, 0, 200_000);
    (rig, port)
}

#[test]
pub(crate) fn full_rows_displace_a_page_and_tell_its_marks() {
    let (mut rig, port) = small(4);
    let mut told: Vec<PageGone> = Vec::new();
    for page in 0..64 {
        let vpn = page_of(port, page);
        told.extend(rig.map(vpn, page, true).expect("maps"));
        let held = rig.lock(vpn, true).expect("mapped");
        assert_eq!(held.ppn, Ppn(page));
        rig.unlock(held, Used::Written);
    }
    assert!(told.iter().all(|page| page.ppn == Ppn(page.vpn.page_number())));
    for page in 0..64 {
        let vpn = page_of(port, page);
        let dirty = told.iter().filter(|page| page.vpn == vpn && page.dirty).count();
        let left = rig.host.take_use(&mut rig.platform, vpn, Clear::Dirty);
        let total = dirty + usize::from(left.is_some_and(|used| used.dirty));
        assert_eq!(total, 1, "P3: page {page} was written once and told dirty once");
    }
    let out = told.iter().filter(|page| !page.still_readable).count();
    assert_eq!(rig.count("pages_displaced") as usize, out);
    assert_eq!(rig.count("pages_moved") as usize, told.len() - out);
    assert!(rig.count("pages_moved") > 0 && out > 40);
    assert_eq!(rig.host.mapped_pages() as usize, 64 - out);
}

#[test]
pub(crate) fn a_page_that_the_nic_holds_makes_no_room() {
    let (mut rig, port) = small(1);
    let vpns: Vec<_> = (0..3).map(|page| page_of(port, page)).collect();
    for &vpn in &vpns[..2] {
        assert_eq!(rig.map(vpn, 1, true), Ok(None));
    }
    let a = rig.lock(vpns[0], true).expect("mapped");
    let b = rig.lock(vpns[1], false).expect("mapped");
    assert_eq!(rig.map(vpns[2], 1, true), Err(MapError::Busy));
    rig.unlock(b, Used::Read);
    let out = rig.map(vpns[2], 1, true).expect("maps").expect("displaces");
    assert_eq!(out.vpn, vpns[1]);
    rig.unlock(a, Used::Not);
    assert_eq!(rig.count("map_rows_busy"), 1);
}

#[test]
pub(crate) fn nobody_crowds_another_port_out_of_its_rows() {
    let (mut rig, port) = small(16);
    let other = rig.open();
    rig.register(other, 0, 200_000);
    let mine = Vpn::new(other.port, 0);
    let rows = rig.table.rows_of(mine);
    rig.map(mine, 1, true).expect("maps");
    let theirs = (0..200_000)
        .map(|page| Vpn::new(port.port, page))
        .filter(|&vpn| rig.table.rows_of(vpn).iter().all(|row| rows.contains(row)))
        .take(60)
        .collect::<Vec<_>>();
    assert!(theirs.len() > 20);
    for vpn in theirs {
        let _ = rig.map(vpn, 2, true);
    }
    assert!(rig.host.mapping(mine).is_some(), "a port's first page stays");
}

#[test]
pub(crate) fn marks_are_taken_once_and_a_held_page_is_young() {
    let (mut rig, port) = world();
    let vpn = page_of(port, 1);
    assert_eq!(rig.host.take_use(&mut rig.platform, vpn, Clear::Both), None);
    rig.map(vpn, 7, true).expect("maps");
    let take = |rig: &mut Rig, clear| {
        let used = rig.host.take_use(&mut rig.platform, vpn, clear).expect("mapped");
        (used.dirty, used.referenced)
    };
    assert_eq!(take(&mut rig, Clear::Both), (false, false));
    let held = rig.lock(vpn, true).expect("mapped");
    assert_eq!(take(&mut rig, Clear::Both), (false, true), "held");
    rig.unlock(held, Used::Written);
    assert_eq!(take(&mut rig, Clear::Dirty), (true, true));
    assert_eq!(take(&mut rig, Clear::Referenced), (false, true));
    assert_eq!(take(&mut rig, Clear::Nothing), (false, false));
}

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
    rig.now = Nanos::from_millis(9);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::InUse);
    rig.now = Nanos::from_millis(10);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::CardDead);
    assert_eq!(rig.host.card(), CardState::Dead(CardFailure::UnmapDeadline));
    assert_eq!(
        rig.step(&mut unmap, 10),
        UnmapStep::CardDead,
        "until it is stopped"
    );
    assert_eq!(rig.map(page_of(port, 5), 1, true), Err(MapError::CardGone));
    rig.host.card_stopped(&mut rig.platform, false);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::Done);
    rig.host.unmap_end(unmap);
    assert!(
        rig.gone[0].dirty && rig.gone[0].leaked,
        "nobody could prove that it is free"
    );
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
    rig.host.card_stopped(&mut rig.platform, true);
    assert_eq!(rig.step(&mut unmap, 10), UnmapStep::Done);
    rig.host.unmap_end(unmap);
    assert!(rig.gone[0].dirty && !rig.gone[0].leaked);
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

#[derive(Clone, Debug)]
enum Op {
    Map(u64, u64, bool),
    Lock(u64, bool),
    Unlock(usize, u8),
    Begin(u64, u64, bool),
    Step(usize, u32),
    End(usize),
    Restore(usize),
    Take(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let page = 0u64..40;
    prop_oneof![
        4 => (page.clone(), 0u64..20, any::<bool>()).prop_map(|(p, f, w)| Op::Map(p, f, w)),
        3 => (page.clone(), any::<bool>()).prop_map(|(p, w)| Op::Lock(p, w)),
        3 => (any::<usize>(), 0u8..3).prop_map(|(i, u)| Op::Unlock(i, u)),
        2 => (page.clone(), prop_oneof![Just(1u64), 2u64..30, Just(1000)], any::<bool>())
            .prop_map(|(p, n, r)| Op::Begin(p, n, r)),
        4 => (any::<usize>(), prop_oneof![Just(1u32), Just(3), Just(u32::MAX)]).prop_map(|(i, b)| Op::Step(i, b)),
        2 => any::<usize>().prop_map(Op::End),
        1 => any::<usize>().prop_map(Op::Restore),
        1 => page.prop_map(Op::Take),
    ]
}

struct Open {
    unmap: Unmap,
    first: u64,
    pages: u64,
    remove: bool,
    done: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever the order of maps, locks and unmaps: after an unmap is done nobody holds or gets a page of
    /// its range (P1), every write is told (P3), and a mapped page has the frame it was mapped with.
    #[test]
    fn page_events_keep_the_promises(ops in proptest::collection::vec(op(), 1..120)) {
        // A tiny table, so that rows are full all the time.
        let tiny = Geometry { page_rows: 4, ..geometry() };
        let config = netvm_host::attach::HostConfig { geometry: Some(tiny), ..config() };
        let mut rig = Rig::with(&config, &tiny);
        let port = rig.open();
        rig.register(port, 0, 16);
        rig.register(port, 16, 40);
        let mut locks: Vec<(page_lock::LockedPage, u64, bool)> = Vec::new();
        let mut opened: Vec<Open> = Vec::new();
        // Frame of each page as last mapped, and pages written since they were last told dirty.
        let mut frames: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        let mut unsaved: BTreeMap<u64, bool> = BTreeMap::new();
        let mut told = 0;
        for op in ops {
            match op {
                Op::Map(page, frame, writable) => {
                    let inside = |open: &Open| page >= open.first && page - open.first < open.pages;
                    let blocked = opened.iter().any(inside);
                    match rig.map(page_of(port, page), frame, writable) {
                        Ok(displaced) => {
                            prop_assert!(!blocked);
                            frames.insert(page, (frame, writable));
                            rig.gone.extend(displaced);
                        }
                        Err(error) => prop_assert!(matches!(error, MapError::Raced | MapError::Busy)),
                    }
                }
                Op::Lock(page, write) => {
                    if let Ok(held) = rig.lock(page_of(port, page), write) {
                        let done = opened.iter().any(|open| open.done
                            && page >= open.first && page - open.first < open.pages
                            && (open.remove || write));
                        prop_assert!(!done, "P1: locked after the unmap was done");
                        let (frame, writable) = frames[&page];
                        prop_assert_eq!(held.ppn, Ppn(frame));
                        prop_assert!(writable || !write, "P3");
                        locks.push((held, page, write));
                    }
                }
                Op::Unlock(which, used) if !locks.is_empty() => {
                    let (held, page, write) = locks.swap_remove(which % locks.len());
                    let used = match used {
                        0 => Used::Not,
                        1 if write => Used::Written,
                        _ => Used::Read,
                    };
                    if used == Used::Written {
                        unsaved.insert(page, true);
                    }
                    rig.unlock(held, used);
                }
                Op::Begin(first, pages, remove) => {
                    let kind = if remove { UnmapKind::Remove } else { UnmapKind::WriteProtect };
                    let unmap = rig.host.unmap_begin(page_of(port, first), pages, kind);
                    opened.push(Open { unmap, first, pages, remove, done: false });
                }
                Op::Step(which, budget) if !opened.is_empty() => {
                    let which = which % opened.len();
                    let open = &mut opened[which];
                    let step = rig.step(&mut open.unmap, budget);
                    open.done = step == UnmapStep::Done;
                    if open.done {
                        for (_, page, write) in &locks {
                            let inside = *page >= open.first && page - open.first < open.pages;
                            prop_assert!(!inside || !(open.remove || *write), "P1: done while held");
                        }
                        for page in open.first..(open.first + open.pages).min(60) {
                            let left = rig.host.mapping(page_of(port, page));
                            prop_assert!(left.is_none_or(|page| !open.remove && !page.writable));
                        }
                    } else {
                        prop_assert!(matches!(step, UnmapStep::Again | UnmapStep::InUse));
                    }
                }
                Op::End(which) if !opened.is_empty() => {
                    let which = which % opened.len();
                    if opened[which].done {
                        rig.host.unmap_end(opened.swap_remove(which).unmap);
                    }
                }
                Op::Restore(which) if !opened.is_empty() => {
                    let open = opened.swap_remove(which % opened.len());
                    rig.host.unmap_restore(&mut rig.platform, open.unmap);
                    for open in &mut opened {
                        // What another has brought back must be looked for again.
                        prop_assert!(!open.done || rig.step(&mut open.unmap, u32::MAX) == UnmapStep::Done);
                    }
                }
                Op::Take(page) => {
                    if let Some(used) = rig.host.take_use(&mut rig.platform, page_of(port, page), Clear::Dirty) {
                        prop_assert_eq!(used.dirty, unsaved.remove(&page).is_some(), "P3");
                    } else {
                        prop_assert!(!unsaved.contains_key(&page), "P3: gone and never told");
                    }
                }
                Op::Unlock(..) | Op::Step(..) | Op::End(..) | Op::Restore(..) => {}
            }
            for page in rig.gone.iter().skip(told) {
                let number = page.vpn.page_number();
                prop_assert_eq!(page.dirty, unsaved.remove(&number).is_some(), "P3: page {}", number);
                if page.still_readable && frames[&number].1 {
                    let now = rig.host.mapping(page.vpn).expect("still mapped");
                    frames.insert(number, (now.ppn.0, now.writable));
                }
            }
            told = rig.gone.len();
        }
        // In the end everything can be taken out.
        for (held, page, write) in locks.drain(..) {
            if write {
                unsaved.insert(page, true);
            }
            rig.unlock(held, if write { Used::Written } else { Used::Read });
        }
        for open in opened.drain(..) {
            rig.host.unmap_restore(&mut rig.platform, open.unmap);
        }
        prop_assert_eq!(rig.unmap(page_of(port, 0), 1000, UnmapKind::Remove), UnmapStep::Done);
        for page in rig.gone.iter().skip(told) {
            let number = page.vpn.page_number();
            prop_assert_eq!(page.dirty, unsaved.remove(&number).is_some(), "P3: page {}", number);
        }
        prop_assert!(unsaved.is_empty());
        prop_assert_eq!(rig.host.mapped_pages(), 0);
    }
}
