//! Dirty and referenced marks (thesis 4.3.2.1, promise P3): the host never takes a page for clean that the NIC wrote.
//!
//! A page's content is a relaxed atomic: the NIC's DMA stores to it, the host's cleaning (a copy to the backing
//! store) loads from it.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use netvm_abi::page_lock::{
    Clear, LockState, PageUse, Used, lock_page, lock_state, publish, retract, take_use, unlock_page,
};
use netvm_abi::page_table::{HashKey, PageEntry, PageSlot, PageTable, ROW_WORDS};
use netvm_abi::words::SharedWords;
use netvm_abi::{PortId, Ppn, SegmentId, Vpn, WordIndex};
use netvm_loom::{Flaw, Seen, Words, explore, must_fail};

const TABLE: PageTable = PageTable::new(WordIndex(0), 1, HashKey([0; 2]));
const SLOT: PageSlot = PageSlot::new(0, 0);
const PAGE: Vpn = Vpn::new(PortId(1), 7);
const OLD: u32 = 0;

struct Card {
    bar: Words,
    page: AtomicU32,
}

impl Card {
    /// With the page mapped, clean and unreferenced.
    fn new(flaw: Flaw) -> Self {
        let card = Self {
            bar: Words::new(flaw, ROW_WORDS),
            page: AtomicU32::new(OLD),
        };
        let entry = PageEntry {
            vpn: PAGE,
            ppn: Ppn(0),
            segment: SegmentId(1),
            writable: true,
        };
        publish(&card.bar, &TABLE, SLOT, &entry);
        card
    }

    /// NIC: writes `value` by DMA; whether the page was there.
    fn write(&self, value: u32) -> bool {
        let Ok(page) = lock_page(&self.bar, &TABLE, PAGE, true) else {
            return false;
        };
        self.page.store(value, Ordering::Relaxed);
        unlock_page(&self.bar, &TABLE, page.slot, Used::Written);
        true
    }

    /// NIC: reads the page by DMA.
    fn read(&self) -> bool {
        let Ok(page) = lock_page(&self.bar, &TABLE, PAGE, false) else {
            return false;
        };
        unlock_page(&self.bar, &TABLE, page.slot, Used::Read);
        true
    }

    fn take(&self, clear: Clear) -> PageUse {
        take_use(&self.bar, &TABLE, SLOT, clear)
    }
}

/// The host cleans a mapped page while the NIC writes it again. In the end the page is dirty, or the copy has all of it.
fn cleaning(flaw: Flaw, dirty_again: Seen, copied: Seen) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        // Dirty before the race begins: the host has something to clear.
        assert!(card.write(1));
        let nic = {
            let card = card.clone();
            thread::spawn(move || assert!(card.write(2)))
        };
        let mut copy = OLD;
        assert!(card.take(Clear::Dirty).dirty, "it was written before");
        copy = copy.max(card.page.load(Ordering::Relaxed));
        nic.join().unwrap();
        let last = card.take(Clear::Nothing);
        if last.dirty {
            dirty_again.mark();
        } else {
            assert_eq!(
                copy, 2,
                "the page looks clean, and the copy has not the last write"
            );
            copied.mark();
        }
        assert!(last.referenced);
    }
}

#[test]
fn a_write_is_never_lost_while_the_page_is_cleaned() {
    let (dirty_again, copied) = (Seen::new(), Seen::new());
    explore(
        "cleaning",
        None,
        cleaning(Flaw::None, dirty_again.clone(), copied.clone()),
    );
    assert!(
        dirty_again.count() > 0 && copied.count() > 0,
        "both ends are reached"
    );
    must_fail(
        "cleaning, no barrier",
        None,
        cleaning(Flaw::NoBarrier, Seen::new(), Seen::new()),
    );
}

/// Two rounds of cleaning against two writes.
fn cleaning_twice(flaw: Flaw) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        let nic = {
            let card = card.clone();
            thread::spawn(move || {
                assert!(card.write(1));
                assert!(card.write(2));
            })
        };
        let mut copy = OLD;
        for _ in 0..2 {
            if card.take(Clear::Dirty).dirty {
                copy = card.page.load(Ordering::Relaxed);
            }
        }
        nic.join().unwrap();
        if card.take(Clear::Dirty).dirty {
            copy = card.page.load(Ordering::Relaxed);
        }
        assert_eq!(copy, 2, "a write was lost");
        assert!(
            !card.take(Clear::Nothing).dirty,
            "once too often, but not for ever"
        );
    }
}

#[test]
fn no_write_is_lost_in_two_rounds() {
    explore("cleaning twice", Some(5), cleaning_twice(Flaw::None));
    must_fail(
        "cleaning twice, no barrier",
        Some(5),
        cleaning_twice(Flaw::NoBarrier),
    );
}

/// The host unmaps, then asks: a page that was written before the unmap finished is dirty, and its content is there.
fn unmapping(flaw: Flaw, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        let nic = {
            let card = card.clone();
            thread::spawn(move || card.write(1))
        };
        retract(&card.bar, &TABLE, SLOT);
        card.bar.full_barrier();
        while lock_state(&card.bar, &TABLE, SLOT) != LockState::Free {
            thread::yield_now();
        }
        let used = card.take(Clear::Both);
        let content = card.page.load(Ordering::Relaxed);
        let written = nic.join().unwrap();
        assert_eq!(used.dirty, written, "the marks are exact after an unmap");
        assert_eq!(used.referenced, written);
        assert_eq!(content, u32::from(written), "and so is the content");
        seen[usize::from(written)].mark();
    }
}

#[test]
fn the_marks_are_exact_after_an_unmap() {
    let seen = [Seen::new(), Seen::new()];
    explore("unmapping", None, unmapping(Flaw::None, seen.clone()));
    assert!(seen.iter().all(|seen| seen.count() > 0));
    let unseen = || [Seen::new(), Seen::new()];
    must_fail(
        "unmapping, no barrier",
        None,
        unmapping(Flaw::NoBarrier, unseen()),
    );
}

/// Aging: the host takes the referenced mark while the NIC reads and writes. No use goes unseen, and aging does not
/// touch the dirty mark.
fn aging(flaw: Flaw, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        let nic = {
            let card = card.clone();
            thread::spawn(move || {
                assert!(card.write(1));
                assert!(card.read());
            })
        };
        let first = card.take(Clear::Referenced);
        nic.join().unwrap();
        let second = card.take(Clear::Referenced);
        assert!(first.referenced || second.referenced, "a use was not seen");
        seen[usize::from(first.referenced)].mark();
        assert!(second.dirty, "aging took the dirty mark");
        assert!(!card.take(Clear::Nothing).referenced);
    }
}

#[test]
fn a_use_is_never_unseen() {
    let seen = [Seen::new(), Seen::new()];
    explore("aging", Some(5), aging(Flaw::None, seen.clone()));
    assert!(seen.iter().all(|seen| seen.count() > 0));
}

/// A use that the host knows to have begun is marked or held when it asks.
fn asking(truly: fn(&Card) -> bool, seen: [Seen; 2]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(Flaw::None));
        let begun = Arc::new(AtomicU32::new(0));
        let nic = {
            let (card, begun) = (card.clone(), begun.clone());
            thread::spawn(move || {
                let page = lock_page(&card.bar, &TABLE, PAGE, true).expect("mapped");
                begun.store(1, Ordering::Release);
                unlock_page(&card.bar, &TABLE, page.slot, Used::Written);
            })
        };
        let known = begun.load(Ordering::Acquire) == 1;
        let used = truly(&card);
        assert!(used || !known, "a page in use looked old");
        seen[usize::from(known)].mark();
        nic.join().unwrap();
    }
}

#[test]
fn a_use_that_ends_while_the_host_asks_is_seen() {
    fn one_look(card: &Card) -> bool {
        let used = card.take(Clear::Referenced);
        used.referenced || used.held
    }
    fn two_looks(card: &Card) -> bool {
        let marked = card.take(Clear::Referenced).referenced;
        marked || lock_state(&card.bar, &TABLE, SLOT) != LockState::Free
    }
    let seen = [Seen::new(), Seen::new()];
    explore("asking", None, asking(one_look, seen.clone()));
    assert!(seen.iter().all(|seen| seen.count() > 0));
    let unseen = || [Seen::new(), Seen::new()];
    must_fail("asking, two looks", None, asking(two_looks, unseen()));
}

/// A slot that is used again starts clean, whatever the toggles of its last page were.
fn fresh(flaw: Flaw) -> impl Fn() + Send + Sync + 'static {
    move || {
        let card = Arc::new(Card::new(flaw));
        let nic = {
            let card = card.clone();
            thread::spawn(move || card.write(1))
        };
        retract(&card.bar, &TABLE, SLOT);
        card.bar.full_barrier();
        while lock_state(&card.bar, &TABLE, SLOT) != LockState::Free {
            thread::yield_now();
        }
        let other = PageEntry {
            vpn: Vpn::new(PortId(1), 8),
            ppn: Ppn(1),
            segment: SegmentId(2),
            writable: true,
        };
        publish(&card.bar, &TABLE, SLOT, &other);
        // The NIC may hold the slot for a moment, until it finds another key.
        let used = PageUse {
            held: false,
            ..card.take(Clear::Nothing)
        };
        assert_eq!(used, PageUse::default(), "marks of another page");
        nic.join().unwrap();
        assert_eq!(
            card.take(Clear::Nothing),
            PageUse::default(),
            "marks of another page, late"
        );
    }
}

#[test]
fn a_reused_slot_starts_clean() {
    explore("fresh", Some(5), fresh(Flaw::None));
    must_fail("fresh, no barrier", Some(5), fresh(Flaw::NoBarrier));
}
