//! Maps, locks and unmaps in any order, against the promises P1 and P3.

use netvm_abi::page_lock::{Clear, Used};
use netvm_abi::*;
use netvm_host::shadow::MapError;
use netvm_host::unmap::{Unmap, UnmapKind, UnmapStep};
use netvm_kit::host::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

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

    /// Whatever the order of maps, locks and unmaps: after an unmap is done, the NIC neither holds nor gets a page of
    /// its range (P1), every write is told (P3), and a mapped page has the frame it was mapped with.
    #[test]
    fn page_events_keep_the_promises(ops in proptest::collection::vec(op(), 1..120)) {
        // A tiny table, so that rows are full all the time.
        let tiny = Geometry { page_rows: 4, ..geometry() };
        let config = netvm_host::attach::HostConfig { geometry: Some(tiny), ..config() };
        let mut stand = Stand::with(&config, &tiny);
        let port = stand.open();
        stand.register(port, 0, 16);
        stand.register(port, 16, 40);
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
                    match stand.map(page_of(port, page), frame, writable) {
                        Ok(displaced) => {
                            prop_assert!(!blocked);
                            frames.insert(page, (frame, writable));
                            stand.gone.extend(displaced);
                        }
                        Err(error) => prop_assert!(matches!(error, MapError::Raced | MapError::Busy)),
                    }
                }
                Op::Lock(page, write) => {
                    if let Ok(held) = stand.lock(page_of(port, page), write) {
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
                    stand.unlock(held, used);
                }
                Op::Begin(first, pages, remove) => {
                    let kind = if remove { UnmapKind::Remove } else { UnmapKind::WriteProtect };
                    let unmap = stand.host.unmap_begin(page_of(port, first), pages, kind);
                    opened.push(Open { unmap, first, pages, remove, done: false });
                }
                Op::Step(which, budget) if !opened.is_empty() => {
                    let which = which % opened.len();
                    let open = &mut opened[which];
                    let step = stand.step(&mut open.unmap, budget);
                    open.done = step == UnmapStep::Done;
                    if open.done {
                        for (_, page, write) in &locks {
                            let inside = *page >= open.first && page - open.first < open.pages;
                            prop_assert!(!inside || !(open.remove || *write), "P1: done while held");
                        }
                        for page in open.first..(open.first + open.pages).min(60) {
                            let left = stand.host.mapping(page_of(port, page));
                            prop_assert!(left.is_none_or(|page| !open.remove && !page.writable));
                        }
                    } else {
                        prop_assert!(matches!(step, UnmapStep::Again | UnmapStep::InUse));
                    }
                }
                Op::End(which) if !opened.is_empty() => {
                    let which = which % opened.len();
                    if opened[which].done {
                        stand.host.unmap_end(opened.swap_remove(which).unmap);
                    }
                }
                Op::Restore(which) if !opened.is_empty() => {
                    let open = opened.swap_remove(which % opened.len());
                    stand.host.unmap_restore(&mut stand.platform, open.unmap);
                    for open in &mut opened {
                        // What another has brought back must be looked for again.
                        prop_assert!(!open.done || stand.step(&mut open.unmap, u32::MAX) == UnmapStep::Done);
                    }
                }
                Op::Take(page) => {
                    if let Some(used) = stand.host.take_use(&mut stand.platform, page_of(port, page), Clear::Dirty) {
                        prop_assert_eq!(used.dirty, unsaved.remove(&page).is_some(), "P3");
                    } else {
                        prop_assert!(!unsaved.contains_key(&page), "P3: gone and never told");
                    }
                }
                Op::Unlock(..) | Op::Step(..) | Op::End(..) | Op::Restore(..) => {}
            }
            for page in stand.gone.iter().skip(told) {
                let number = page.vpn.page_number();
                prop_assert_eq!(page.dirty, unsaved.remove(&number).is_some(), "P3: page {}", number);
                if page.still_readable && frames[&number].1 {
                    let now = stand.host.mapping(page.vpn).expect("still mapped");
                    frames.insert(number, (now.ppn.0, now.writable));
                }
            }
            told = stand.gone.len();
        }
        // In the end everything can be taken out.
        for (held, page, write) in locks.drain(..) {
            if write {
                unsaved.insert(page, true);
            }
            stand.unlock(held, if write { Used::Written } else { Used::Read });
        }
        for open in opened.drain(..) {
            stand.host.unmap_restore(&mut stand.platform, open.unmap);
        }
        prop_assert_eq!(stand.unmap(page_of(port, 0), 1000, UnmapKind::Remove), UnmapStep::Done);
        for page in stand.gone.iter().skip(told) {
            let number = page.vpn.page_number();
            prop_assert_eq!(page.dirty, unsaved.remove(&number).is_some(), "P3: page {}", number);
        }
        prop_assert!(unsaved.is_empty());
        prop_assert_eq!(stand.host.mapped_pages(), 0);
    }
}
