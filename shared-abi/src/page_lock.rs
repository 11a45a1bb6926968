//! The page lock: how a NIC and its host agree on who may use a page (thesis 4.4, promise P1).
//!
//! Two words per slot, each with one owner. It is Dekker's pattern, without a queue:
//!
//! | host, unmapping | NIC, locking |
//! |---|---|
//! | store 0 to valid | store count + 1 to lock |
//! | full barrier | full barrier |
//! | load lock: 0 means the page is free | load valid and key: match means the page is ours |
//!
//! With a full barrier between store and load on both sides, at least one side sees the other's
//! store. So the outcomes are those of thesis figure 13: the host gets the page, the NIC gets it,
//! or neither does (the host waits, the NIC bounces); never both.
//!
//! **Reading an entry.** The host rewrites a slot only while it is invalid *and* it has seen the
//! lock at zero after making it invalid. The NIC believes what it reads only if, after setting its
//! lock, it finds the slot valid and the key right. Suppose it does, and the host rewrites a field
//! while the NIC holds the lock: the host made the slot invalid after the NIC's load of valid,
//! hence its later load of the lock sees the NIC's store (the barriers), hence it has not rewritten.
//!
//! **Dirty.** The NIC says "dirty" by copying the host's toggle to its own, in the very store that
//! releases the lock; the host clears by setting its toggle to the complement. The NIC's barrier
//! after the DMA and before its load of the host's toggle makes the data visible first: a host
//! that toggles after that load reads the new data when it cleans the page; one that toggles before
//! it is copied, and the page is dirty again. So a page can look dirty once too often, never once
//! too seldom.

use crate::mutant::{self, Mutant};
use crate::page_table::{
    PageEntry, PageSlot, PageTable, ROW_SLOTS, SLOT_WORDS, flags_word, host_word, nic_word,
};
use crate::units::{Ppn, SegmentId, Vpn, WordIndex};
use crate::words::{SharedWords, join, split};

const HOST: u32 = 0;
const NIC: u32 = 1;
const KEY: u32 = 2;

/// A page that this NIC holds: its slot, and what the entry said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a locked page blocks its unmapping until it is unlocked"]
pub struct LockedPage {
    /// The slot to unlock.
    pub slot: PageSlot,
    /// Where the page is.
    pub ppn: Ppn,
    /// The segment it belongs to.
    pub segment: SegmentId,
}

/// Why a page could not be locked; both are misses that the host answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// No valid entry.
    NotFound,
    /// The entry does not allow writing.
    NotWritable,
}

/// NIC: translates and locks a page (thesis 4.3.3).
///
/// # Errors
/// [`Miss`] when the page must go through the host.
#[inline]
pub fn lock_page<W: SharedWords + ?Sized>(
    bar: &W,
    table: &PageTable,
    vpn: Vpn,
    write: bool,
) -> Result<LockedPage, Miss> {
    let row = table.row_of(vpn);
    let [low, high] = split(vpn.raw());
    let mut miss = Miss::NotFound;
    let mut index = 0;
    while index < ROW_SLOTS {
        let slot = PageSlot::new(row, index);
        let at = table.slot_at(slot);
        index += 1;
        // A hint only: spares the barrier for the slots of other pages.
        if bar.load_acquire(at.plus(KEY)) != low || bar.load_acquire(at.plus(KEY + 1)) != high {
            continue;
        }
        let unlocked = bar.load_acquire(at.plus(NIC));
        if unlocked & nic_word::LOCKS == nic_word::LOCKS {
            continue;
        }
        bar.store_release(at.plus(NIC), unlocked + 1);
        bar.full_barrier();
        let valid = bar.load_acquire(at.plus(HOST)) & host_word::VALID != 0;
        let mut entry = [0; SLOT_WORDS as usize - KEY as usize];
        bar.load_slice(at.plus(KEY), &mut entry);
        let [key_low, key_high, ppn_low, ppn_high, segment, flags] = entry;
        if valid && key_low == low && key_high == high {
            let writable = flags & flags_word::WRITABLE != 0 || mutant::is(Mutant::WriteThroughReadOnly);
            if writable || !write {
                return Ok(LockedPage {
                    slot,
                    ppn: Ppn(join(ppn_low, ppn_high)),
                    segment: SegmentId(segment),
                });
            }
            miss = Miss::NotWritable;
        }
        bar.store_release(at.plus(NIC), unlocked);
    }
    Err(miss)
}

/// What a DMA did to the page that is being unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// Nothing: it was never started.
    Not,
    /// It was read.
    Read,
    /// It was written.
    Written,
}

/// NIC: releases a page after the DMA is done (globally visible), and marks what it did.
#[inline]
pub fn unlock_page<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot, used: Used) {
    let at = table.slot_at(slot);
    let mut word = bar.load_acquire(at.plus(NIC)).wrapping_sub(1);
    if used != Used::Not {
        // The data before the look at the toggles; see the module's text.
        bar.full_barrier();
        let host = bar.load_acquire(at.plus(HOST));
        word = copy_toggle(word, nic_word::REFERENCED, host & host_word::REFERENCED != 0);
        if used == Used::Written && !mutant::is(Mutant::LostDirtyBit) {
            word = copy_toggle(word, nic_word::DIRTY, host & host_word::DIRTY != 0);
        }
    }
    bar.store_release(at.plus(NIC), word);
}

const fn copy_toggle(word: u32, bit: u32, set: bool) -> u32 {
    if set { word | bit } else { word & !bit }
}

/// NIC: forgets all locks of an earlier life before it re-attaches. The host must have emptied the
/// table.
pub fn reset_locks<W: SharedWords + ?Sized>(bar: &W, table: &PageTable) {
    for slot in 0..table.rows() * ROW_SLOTS {
        bar.store_release(table.slot_at(PageSlot(slot)).plus(NIC), 0);
    }
}

/// Host: fills an empty slot (never used, or unmapped and seen unlocked) and makes it valid. The
/// page starts clean and unreferenced.
pub fn publish<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot, entry: &PageEntry) {
    let at = table.slot_at(slot);
    let key = split(entry.vpn.raw());
    let ppn = split(entry.ppn.0);
    let flags = if entry.writable { flags_word::WRITABLE } else { 0 };
    bar.store_slice(
        at.plus(KEY),
        &[key[0], key[1], ppn[0], ppn[1], entry.segment.0, flags],
    );
    let nic = bar.load_acquire(at.plus(NIC));
    bar.store_release(at.plus(HOST), host_word::VALID | complement(nic));
}

/// The host toggles that mean "clean, not referenced" against this NIC word.
const fn complement(nic: u32) -> u32 {
    let dirty = if nic & nic_word::DIRTY == 0 {
        host_word::DIRTY
    } else {
        0
    };
    let referenced = if nic & nic_word::REFERENCED == 0 {
        host_word::REFERENCED
    } else {
        0
    };
    dirty | referenced
}

/// Host: begins to unmap: from the return on the NIC takes no new lock. Zap a whole range, then one
/// [`SharedWords::full_barrier`] (which this does not do), then look at [`lock_state`].
pub fn retract<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot) {
    let at = table.slot_at(slot).plus(HOST);
    let word = bar.load_acquire(at);
    bar.store_release(at, word & !host_word::VALID);
}

/// Host: takes back a [`retract`] whose page turned out to be in use. The entry was not rewritten,
/// so whoever still holds the lock holds the same page.
pub fn restore<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot) {
    let at = table.slot_at(slot).plus(HOST);
    let word = bar.load_acquire(at);
    bar.store_release(at, word | host_word::VALID);
}

/// What the NIC's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockState {
    /// Nobody holds the page.
    Free,
    /// A DMA is under way.
    Locked,
    /// All ones: the card is gone (PCI's answer for nobody).
    CardGone,
}

/// Host: looks at the lock, after [`retract`] and a full barrier.
pub fn lock_state<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot) -> LockState {
    let word = bar.load_acquire(table.slot_at(slot).plus(NIC));
    if word == u32::MAX {
        LockState::CardGone
    } else if word & nic_word::LOCKS != 0 && !mutant::is(Mutant::UnmapDoesNotWait) {
        LockState::Locked
    } else {
        LockState::Free
    }
}

/// What the NIC did to a page since the host last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageUse {
    /// It wrote the page.
    pub dirty: bool,
    /// It read or wrote the page.
    pub referenced: bool,
}

/// Which of the marks to reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    /// None: only look.
    Nothing,
    /// The dirty mark.
    Dirty,
    /// The referenced mark.
    Referenced,
    /// Both.
    Both,
}

/// Host: reads and resets the marks. The page is cleaned *after* the return; what the NIC writes
/// later marks it again. All-ones (a dead card) reads as dirty and referenced.
pub fn take_use<W: SharedWords + ?Sized>(
    bar: &W,
    table: &PageTable,
    slot: PageSlot,
    clear: Clear,
) -> PageUse {
    let at = table.slot_at(slot);
    let nic = bar.load_acquire(at.plus(NIC));
    let host = bar.load_acquire(at.plus(HOST));
    let dirty = (nic & nic_word::DIRTY != 0) == (host & host_word::DIRTY != 0);
    let referenced = (nic & nic_word::REFERENCED != 0) == (host & host_word::REFERENCED != 0);
    let mut word = host;
    if dirty && matches!(clear, Clear::Dirty | Clear::Both) {
        word ^= host_word::DIRTY;
    }
    if referenced && matches!(clear, Clear::Referenced | Clear::Both) {
        word ^= host_word::REFERENCED;
    }
    if word != host {
        bar.store_release(at.plus(HOST), word);
        // The new toggle before the page is read for cleaning.
        bar.full_barrier();
    }
    PageUse { dirty, referenced }
}

/// Host: whether a slot is valid, for checks.
pub fn is_valid<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot) -> bool {
    bar.load_acquire(table.slot_at(slot).plus(HOST)) & host_word::VALID != 0
}

/// First word of a slot's lock, for hosts that read many at once.
#[must_use]
pub const fn lock_word_at(table: &PageTable, slot: PageSlot) -> WordIndex {
    table.slot_at(slot).plus(NIC)
}
