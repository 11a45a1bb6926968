//! The page lock (thesis 4.4, promise P1): host and NIC over one page, slots that are used again, frames that are
//! mapped twice.
//!
//! A page frame is a loom cell: the NIC's DMA and the host's use of an unmapped frame are plain accesses to it, so
//! loom reports two of them that are not ordered, whatever the words said.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use netvm_abi::page_lock::{
    LockState, Miss, Retracted, Used, lock_page, lock_state, look_at_retracted, publish, restore, retract,
    unlock_page,
};
use netvm_abi::page_table::{HashKey, PageEntry, PageSlot, PageTable, ROW_WORDS};
use netvm_abi::words::SharedWords;
use netvm_abi::{PortId, Ppn, SegmentId, Vpn, WordIndex};
use netvm_loom::{Flaw, Seen, Words, explore, must_fail};

const TABLE: PageTable = PageTable::new(WordIndex(0), 1, HashKey([0; 2]));
const SLOT: PageSlot = PageSlot::new(0, 0);

/// NIC memory with an empty row, and page frames.
struct Card {
    bar: Words,
    frames: [UnsafeCell<u32>; 2],
}

impl Card {
    fn new(flaw: Flaw) -> Self {
        Self {
            bar: Words::new(flaw, ROW_WORDS),
            frames: [UnsafeCell::new(0), UnsafeCell::new(0)],
        }
    }

    /// Uses a frame as its only owner.
    fn own(&self, ppn: Ppn) {
        self.frames[ppn.index()].with_mut(|_| {});
    }

    /// NIC: one DMA into a page, if it can be locked.
    fn dma(&self, vpn: Vpn) -> Result<Ppn, Miss> {
        let page = lock_page(&self.bar, &TABLE, vpn, true)?;
        self.own(page.ppn);
        unlock_page(&self.bar, &TABLE, page.slot, Used::Written);
        Ok(page.ppn)
    }

    fn wait_free(&self, slot: PageSlot) {
        while lock_state(&self.bar, &TABLE, slot) != LockState::Free {
            thread::yield_now();
        }
    }
}

fn vpn(page: u64) -> Vpn {
    Vpn::new(PortId(1), page)
}

fn entry(page: u64, frame: u64) -> PageEntry {
    PageEntry {
        vpn: vpn(page),
        ppn: Ppn(frame),
        segment: SegmentId(frame as u32 + 10),
        writable: true,
    }
}

/// The outcomes of thesis figure 13, and what comes before and after.
#[derive(Clone, Default)]
struct Outcomes {
    host_unmaps: Seen,
    nic_locks: Seen,
    neither: Seen,
    one_after_the_other: Seen,
}

fn figure_13(flaw: Flaw, seen: Outcomes) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        publish(&card.bar, &TABLE, SLOT, &entry(7, 0));
        let nic = {
            let card = card.clone();
            thread::spawn(move || card.dma(vpn(7)).is_ok())
        };
        retract(&card.bar, &TABLE, SLOT);
        card.bar.full_barrier();
        let free = lock_state(&card.bar, &TABLE, SLOT) == LockState::Free;
        if free {
            // The frame goes to another owner.
            card.own(Ppn(0));
        } else {
            restore(&card.bar, &TABLE, SLOT);
        }
        let locked = nic.join().unwrap();
        match (free, locked) {
            (true, false) => seen.host_unmaps.mark(),
            (false, true) => seen.nic_locks.mark(),
            (false, false) => seen.neither.mark(),
            // Loom has checked that the DMA was over when the host used the frame.
            (true, true) => seen.one_after_the_other.mark(),
        }
        if !free {
            // Taken back: the same page can be locked again.
            assert_eq!(card.dma(vpn(7)), Ok(Ppn(0)));
        }
    }
}

#[test]
fn lock_against_unmap_has_the_outcomes_of_figure_13() {
    let seen = Outcomes::default();
    explore("figure 13", None, figure_13(Flaw::None, seen.clone()));
    assert!(seen.host_unmaps.count() > 0, "(i) the host unmaps");
    assert!(seen.nic_locks.count() > 0, "(ii) the NIC locks");
    assert!(seen.neither.count() > 0, "(iii) neither");
    assert!(seen.one_after_the_other.count() > 0, "the DMA, then the unmap");
}

#[test]
fn lock_against_unmap_without_a_barrier_fails() {
    must_fail(
        "figure 13, no barrier",
        None,
        figure_13(Flaw::NoBarrier, Outcomes::default()),
    );
}

#[test]
fn lock_against_unmap_without_order_fails() {
    must_fail(
        "figure 13, no order",
        None,
        figure_13(Flaw::NoOrder, Outcomes::default()),
    );
}

/// A host that found the lock set waits, and then knows whether the NIC had the page.
fn told_apart(seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(Flaw::None));
        publish(&card.bar, &TABLE, SLOT, &entry(7, 0));
        let nic = {
            let card = card.clone();
            thread::spawn(move || card.dma(vpn(7)).is_ok())
        };
        retract(&card.bar, &TABLE, SLOT);
        card.bar.full_barrier();
        let mut met = None;
        let neither = loop {
            match look_at_retracted(&card.bar, &TABLE, SLOT) {
                Retracted::Locked { turn } => met = met.or(Some(turn)),
                Retracted::Free { turn, .. } => break met.map(|before| before != turn),
                Retracted::CardGone => unreachable!("no word is all ones"),
            }
            thread::yield_now();
        };
        card.own(Ppn(0));
        let locked = nic.join().unwrap();
        if let Some(neither) = neither {
            assert_eq!(neither, !locked);
            seen[usize::from(neither)].mark();
        }
    }
}

#[test]
fn the_second_outcome_is_told_from_the_third() {
    let seen = [Seen::new(), Seen::new()];
    explore("second or third outcome", None, told_apart(seen.clone()));
    assert!(seen[0].count() > 0, "(ii) the NIC locks");
    assert!(seen[1].count() > 0, "(iii) neither");
}

/// The host unmaps page 7 (waiting for the lock), and gives its slot to page 8 in another frame; the NIC asks for
/// both. A locked slot is never rewritten: what the NIC is told fits what it asked for.
fn slot_of_another_page(flaw: Flaw, seen: [Seen; 3]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        publish(&card.bar, &TABLE, SLOT, &entry(7, 0));
        let nic = {
            let (card, seen) = (card.clone(), seen.clone());
            thread::spawn(move || {
                for page in [7_u64, 8] {
                    let Ok(locked) = lock_page(&card.bar, &TABLE, vpn(page), true) else {
                        seen[2].mark();
                        continue;
                    };
                    let frame = page - 7;
                    assert_eq!(locked.ppn, Ppn(frame), "the frame of another page");
                    assert_eq!(locked.segment, SegmentId(frame as u32 + 10));
                    card.own(locked.ppn);
                    seen[frame as usize].mark();
                    unlock_page(&card.bar, &TABLE, locked.slot, Used::Written);
                }
            })
        };
        retract(&card.bar, &TABLE, SLOT);
        card.bar.full_barrier();
        card.wait_free(SLOT);
        card.own(Ppn(0));
        publish(&card.bar, &TABLE, SLOT, &entry(8, 1));
        nic.join().unwrap();
    }
}

#[test]
fn a_slot_is_given_to_another_page() {
    let seen = [Seen::new(), Seen::new(), Seen::new()];
    explore(
        "slot of another page",
        Some(5),
        slot_of_another_page(Flaw::None, seen.clone()),
    );
    for (seen, what) in seen.iter().zip(["the old page", "the new page", "a miss"]) {
        assert!(seen.count() > 0, "{what} was never seen");
    }
}

#[test]
fn a_slot_is_given_to_another_page_without_a_barrier_fails() {
    let seen = [Seen::new(), Seen::new(), Seen::new()];
    must_fail(
        "slot of another page, no barrier",
        Some(5),
        slot_of_another_page(Flaw::NoBarrier, seen),
    );
}

/// The same page comes back to the same slot in another frame (paged out and in again).
fn other_frame(flaw: Flaw, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        publish(&card.bar, &TABLE, SLOT, &entry(7, 0));
        let nic = {
            let (card, seen) = (card.clone(), seen.clone());
            thread::spawn(move || {
                if let Ok(ppn) = card.dma(vpn(7)) {
                    seen[ppn.index()].mark();
                }
            })
        };
        retract(&card.bar, &TABLE, SLOT);
        card.bar.full_barrier();
        card.wait_free(SLOT);
        card.own(Ppn(0));
        publish(&card.bar, &TABLE, SLOT, &entry(7, 1));
        nic.join().unwrap();
    }
}

#[test]
fn a_page_comes_back_in_another_frame() {
    let seen = [Seen::new(), Seen::new()];
    explore("other frame", Some(5), other_frame(Flaw::None, seen.clone()));
    assert!(seen.iter().all(|seen| seen.count() > 0), "both frames were used");
    must_fail(
        "other frame, no barrier",
        Some(5),
        other_frame(Flaw::NoBarrier, [Seen::new(), Seen::new()]),
    );
}

/// One frame under two pages: locks belong to slots, so the host has the frame only when both slots are free.
fn frame_under_two_slots(flaw: Flaw, seen: Seen) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        let slots = [PageSlot::new(0, 0), PageSlot::new(0, 1)];
        publish(&card.bar, &TABLE, slots[0], &entry(7, 0));
        publish(&card.bar, &TABLE, slots[1], &entry(8, 0));
        let nic = {
            let (card, seen) = (card.clone(), seen.clone());
            thread::spawn(move || {
                let first = lock_page(&card.bar, &TABLE, vpn(7), true);
                let second = lock_page(&card.bar, &TABLE, vpn(8), true);
                let hits = [first, second].into_iter().flatten();
                if hits.clone().count() == 2 {
                    seen.mark();
                }
                for page in hits {
                    assert_eq!(page.ppn, Ppn(0));
                    card.own(page.ppn);
                    unlock_page(&card.bar, &TABLE, page.slot, Used::Written);
                }
            })
        };
        for slot in slots {
            retract(&card.bar, &TABLE, slot);
        }
        // One barrier for the whole range.
        card.bar.full_barrier();
        for slot in slots {
            card.wait_free(slot);
        }
        card.own(Ppn(0));
        nic.join().unwrap();
    }
}

#[test]
fn a_frame_is_mapped_under_two_slots() {
    let seen = Seen::new();
    explore(
        "frame under two slots",
        Some(5),
        frame_under_two_slots(Flaw::None, seen.clone()),
    );
    assert!(seen.count() > 0, "both slots were locked at once");
    must_fail(
        "frame under two slots, no barrier",
        Some(5),
        frame_under_two_slots(Flaw::NoBarrier, Seen::new()),
    );
}

/// Two DMAs hold one page: it is free when both are done.
fn two_dmas(flaw: Flaw) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        publish(&card.bar, &TABLE, SLOT, &entry(7, 0));
        let nic = {
            let card = card.clone();
            thread::spawn(move || {
                let first = lock_page(&card.bar, &TABLE, vpn(7), false);
                let second = lock_page(&card.bar, &TABLE, vpn(7), false);
                for page in [first, second].into_iter().flatten() {
                    card.own(page.ppn);
                    unlock_page(&card.bar, &TABLE, page.slot, Used::Read);
                }
            })
        };
        retract(&card.bar, &TABLE, SLOT);
        card.bar.full_barrier();
        card.wait_free(SLOT);
        card.own(Ppn(0));
        nic.join().unwrap();
    }
}

#[test]
fn two_dmas_hold_one_page() {
    explore("two DMAs", Some(5), two_dmas(Flaw::None));
    must_fail("two DMAs, no barrier", Some(5), two_dmas(Flaw::NoBarrier));
}

/// A page that is write-protected and later made writable again (thesis 4.3.2.1 has no permissions; promise P3 has):
/// the host unmaps, then publishes with the other permission. Between the two no write goes through.
fn write_protected(flaw: Flaw, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        publish(&card.bar, &TABLE, SLOT, &entry(7, 0));
        let nic = {
            let (card, seen) = (card.clone(), seen.clone());
            thread::spawn(move || match card.dma(vpn(7)) {
                Ok(_) => seen[0].mark(),
                Err(Miss::NotWritable) => seen[1].mark(),
                Err(Miss::NotFound) => {}
            })
        };
        retract(&card.bar, &TABLE, SLOT);
        card.bar.full_barrier();
        card.wait_free(SLOT);
        let protected = PageEntry {
            writable: false,
            ..entry(7, 0)
        };
        publish(&card.bar, &TABLE, SLOT, &protected);
        // A copy is taken of the page, which may no longer be written.
        card.own(Ppn(0));
        nic.join().unwrap();
    }
}

#[test]
fn a_page_is_write_protected() {
    let seen = [Seen::new(), Seen::new()];
    explore(
        "write-protected",
        Some(5),
        write_protected(Flaw::None, seen.clone()),
    );
    assert!(seen.iter().all(|seen| seen.count() > 0));
    must_fail(
        "write-protected, no barrier",
        Some(5),
        write_protected(Flaw::NoBarrier, [Seen::new(), Seen::new()]),
    );
}
