//! The page lock: how a NIC and its host agree on the use of a page (thesis 4.4, promise P1).
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
//! or neither does (the host waits, the NIC bounces); never both. A NIC that backs off says so in its
//! word, so that a host can tell the second outcome from the third.
//!
//! A bus that posts stores changes nothing: both words are in NIC memory, so the host's load of the lock
//! is a read across the bus, which pushes the host's store ahead of it. Its answer pushes the stores of
//! the NIC's DMA, so the data has landed when the host finds the page free.
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
//! too seldom. Over a bus "the host toggles" means that the toggle has landed: the host reads across
//! the bus before it cleans the page ([`SharedWords::bus_barrier`]).
//!
//! **Referenced.** The same toggle pair, without data to order. A toggle that is still under way when the next use ends
//! is not copied, and that use would count for neither of two questions. So the host waits for this toggle, too.

use crate::mutant::{self, Mutant};
use crate::page_table::{
    PLACES, PageEntry, PageSlot, PageTable, ROW_SLOTS, ROW_WORDS, SLOT_WORDS, host_word, nic_word,
};
use crate::units::{Ppn, SegmentId, Vpn, WordIndex};
use crate::words::{Part, SharedWords, join, split};

const _: () = assert!(ROW_SLOTS == 2);

const HOST: u32 = 0;
const NIC: u32 = 1;
const KEY: u32 = 2;
const PAGE: u32 = 4;

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

/// NIC: translates and locks a page (thesis 4.3.3). A slot is worth a lock, and its barrier, only if it
/// looks promising; nearly always the page is where one does, and nowhere if none does.
///
/// # Errors
/// [`Miss`] when the page must go through the host.
#[inline(always)]
pub fn lock_page<W: SharedWords + ?Sized>(
    bar: &W,
    table: &PageTable,
    vpn: Vpn,
    write: bool,
) -> Result<LockedPage, Miss> {
    'likely: {
        for row in table.rows_of(vpn) {
            let first = PageSlot::new(row, 0);
            let words = bar.atomics(table.slot_at(first), ROW_WORDS);
            let Some(([one, two], _)) = words.map(|words| words.as_chunks::<{ SLOT_WORDS as usize }>())
            else {
                break 'likely;
            };
            let (words, slot) = if promising(one, vpn) {
                (one, first)
            } else if promising(two, vpn) {
                (two, first.next())
            } else {
                continue;
            };
            if lock_slot(words, vpn, write).is_ok() {
                return Ok(locked(words, slot));
            }
            break 'likely;
        }
        return Err(Miss::NotFound);
    }
    // Taken apart, so that only what is searched for lies in memory, not also what is found at once.
    let LockedPage { slot, ppn, segment } = search(bar, table, vpn, write)?;
    Ok(LockedPage { slot, ppn, segment })
}

/// Whether a slot looks like the page's: a hint, read without a lock, so half of the key is enough.
/// (A page that was unmapped leaves its key behind: the slot must be valid, too.)
#[inline(always)]
fn promising<W: SharedWords + ?Sized>(words: &W, vpn: Vpn) -> bool {
    let [low, _] = split(vpn.raw());
    words.load_acquire(WordIndex(KEY)) == low && words.load_acquire(WordIndex(HOST)) & host_word::VALID != 0
}

/// The same, slot by slot until one is the page's: where every access is an act of its own, and where
/// the slot that looked promising was not to be had.
#[cold]
#[inline(never)]
fn search<W: SharedWords + ?Sized>(
    bar: &W,
    table: &PageTable,
    vpn: Vpn,
    write: bool,
) -> Result<LockedPage, Miss> {
    let mut miss = Miss::NotFound;
    let [first, second] = table.rows_of(vpn);
    // In a small table both rows may be one.
    let places = if first == second { ROW_SLOTS } else { PLACES };
    for slot in table.places(vpn).into_iter().take(places as usize) {
        let words = Part::new(bar, table.slot_at(slot), SLOT_WORDS);
        if !promising(&words, vpn) {
            continue;
        }
        match lock_slot(&words, vpn, write) {
            Ok(()) => return Ok(locked(&words, slot)),
            Err(Miss::NotFound) => {}
            Err(Miss::NotWritable) => miss = Miss::NotWritable,
        }
    }
    Err(miss)
}

/// What a slot that is locked says.
#[inline(always)]
fn locked<W: SharedWords + ?Sized>(words: &W, slot: PageSlot) -> LockedPage {
    let mut entry = [0; 3];
    words.load_slice(WordIndex(PAGE), &mut entry);
    let [low, high, segment] = entry;
    LockedPage {
        slot,
        ppn: Ppn(join(low, high)),
        segment: SegmentId(segment),
    }
}

/// Locks this slot, if it is the page's and may be used so.
#[inline(always)]
fn lock_slot<W: SharedWords + ?Sized>(words: &W, vpn: Vpn, write: bool) -> Result<(), Miss> {
    const HOST: WordIndex = WordIndex(self::HOST);
    const NIC: WordIndex = WordIndex(self::NIC);
    const KEY: WordIndex = WordIndex(self::KEY);
    let unlocked = words.load_acquire(NIC);
    if unlocked & nic_word::LOCKS == nic_word::LOCKS {
        return Err(Miss::NotFound);
    }
    words.store_release(NIC, unlocked + 1);
    words.full_barrier();
    let needed = if write && !mutant::is(Mutant::WriteThroughReadOnly) {
        host_word::VALID | host_word::WRITABLE
    } else {
        host_word::VALID
    };
    let host = words.load_acquire(HOST);
    let found = words.load_pair(KEY) == vpn.raw();
    if found && host & needed == needed {
        return Ok(());
    }
    let (turn, miss) = match (found, host & host_word::VALID != 0) {
        // The host has just taken it: neither of the two has it now.
        (true, false) => (nic_word::BACKED_OFF, Miss::NotFound),
        (true, true) => (0, Miss::NotWritable),
        (false, _) => (0, Miss::NotFound),
    };
    // Looked up again, for it is the NIC's alone: what a miss needs is not kept where a page is there.
    let unlocked = words.load_acquire(NIC).wrapping_sub(1);
    words.store_release(NIC, unlocked ^ turn);
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
    match bar.atomics(at, SLOT_WORDS) {
        Some(words) => unlock_slot(words, used),
        None => unlock_slot_by_words(bar, at, used),
    }
}

/// The same where every access is an act of its own.
#[cold]
#[inline(never)]
fn unlock_slot_by_words<W: SharedWords + ?Sized>(bar: &W, at: WordIndex, used: Used) {
    unlock_slot(&Part::new(bar, at, SLOT_WORDS), used);
}

/// The same in the words of the slot.
#[inline]
fn unlock_slot<W: SharedWords + ?Sized>(slot: &W, used: Used) {
    let mut word = slot.load_acquire(WordIndex(NIC)).wrapping_sub(1);
    if used != Used::Not {
        // The data before the look at the toggles; see the module's text.
        slot.full_barrier();
        let host = slot.load_acquire(WordIndex(HOST));
        let marks = if used == Used::Written && !mutant::is(Mutant::LostDirtyBit) {
            nic_word::DIRTY | nic_word::REFERENCED
        } else {
            nic_word::REFERENCED
        };
        // The toggles are the same bits in both words.
        word = word & !marks | host & marks;
    }
    slot.store_release(WordIndex(NIC), word);
}

/// NIC: forgets all locks of an earlier life before it re-attaches. The host must have emptied the
/// table.
pub fn reset_locks<W: SharedWords + ?Sized>(bar: &W, table: &PageTable) {
    for slot in 0..table.rows() * ROW_SLOTS {
        bar.store_release(table.slot_at(PageSlot(slot)).plus(NIC), 0);
    }
}

/// The NIC's marks on a slot that is free and not valid. They stay as they are until the slot is valid
/// again, so a host that remembers them fills the slot without a look across the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks(u32);

impl Marks {
    /// As a host keeps them.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// What [`Self::raw`] said.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}

/// Host: the marks of a free slot, for [`publish_over`].
pub fn marks_of<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot) -> Marks {
    Marks(bar.load_acquire(table.slot_at(slot).plus(NIC)))
}

/// Host: fills an empty slot (never used, or unmapped and seen unlocked) and makes it valid. The
/// page starts clean and unreferenced.
pub fn publish<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot, entry: &PageEntry) {
    publish_over(bar, table, slot, entry, marks_of(bar, table, slot));
}

/// The same for a host that knows the marks of the slot: nothing but stores.
pub fn publish_over<W: SharedWords + ?Sized>(
    bar: &W,
    table: &PageTable,
    slot: PageSlot,
    entry: &PageEntry,
    marks: Marks,
) {
    let at = table.slot_at(slot);
    let key = split(entry.vpn.raw());
    let ppn = split(entry.ppn.0);
    // The last word is the order: single pages in this release.
    bar.store_slice(
        at.plus(KEY),
        &[key[0], key[1], ppn[0], ppn[1], entry.segment.0, 0],
    );
    let writable = if entry.writable { host_word::WRITABLE } else { 0 };
    bar.store_release(at.plus(HOST), host_word::VALID | writable | complement(marks.0));
}

/// The host toggles that mean "clean, not referenced" against this NIC word.
const fn complement(nic: u32) -> u32 {
    !nic & (host_word::DIRTY | host_word::REFERENCED)
}

/// Host: begins to unmap: from the return on the NIC takes no new lock. Zap a whole range, then one
/// [`SharedWords::full_barrier`] (which this does not do), then look at [`lock_state`].
pub fn retract<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot) {
    let at = table.slot_at(slot).plus(HOST);
    let word = bar.load_acquire(at);
    bar.store_release(at, word & !host_word::VALID);
}

/// Host: takes back a [`retract`] whose page turned out to be in use. The entry was not rewritten,
/// so a DMA that still holds the lock holds the same page.
pub fn restore<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot) {
    let at = table.slot_at(slot).plus(HOST);
    let word = bar.load_acquire(at);
    bar.store_release(at, word | host_word::VALID);
}

/// What the NIC's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockState {
    /// No DMA holds the page.
    Free,
    /// A DMA is under way.
    Locked,
    /// All ones: the card is gone (PCI's answer for an absent device).
    CardGone,
}

/// Host: looks at the lock, after [`retract`] and a full barrier.
pub fn lock_state<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot) -> LockState {
    state_of(bar.load_acquire(table.slot_at(slot).plus(NIC)))
}

fn state_of(word: u32) -> LockState {
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
    /// It held the page at that moment: marks of that use come with the unlock.
    pub held: bool,
}

/// What a retracted slot is found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retracted {
    /// A DMA is under way, or the NIC is about to see that the entry is gone.
    Locked {
        /// How often the NIC has backed off, for comparison.
        turn: Turn,
    },
    /// The card is gone.
    CardGone,
    /// The page is free: the slot may be filled again.
    Free {
        /// What the NIC did to the page.
        used: PageUse,
        /// What [`publish_over`] needs.
        marks: Marks,
        /// Another one than when the lock was found set: the NIC did not get the page either (thesis
        /// figure 13, third outcome).
        turn: Turn,
    },
}

/// Changes whenever the NIC backs off from a slot ([`nic_word::BACKED_OFF`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(bool);

/// Host: [`lock_state`] and, if the slot is free, [`take_use`] and [`marks_of`], in one look at the
/// NIC's word.
pub fn look_at_retracted<W: SharedWords + ?Sized>(bar: &W, table: &PageTable, slot: PageSlot) -> Retracted {
    let at = table.slot_at(slot);
    let nic = bar.load_acquire(at.plus(NIC));
    let turn = Turn(nic & nic_word::BACKED_OFF != 0);
    match state_of(nic) {
        LockState::Locked => Retracted::Locked { turn },
        LockState::CardGone => Retracted::CardGone,
        LockState::Free => Retracted::Free {
            used: use_of(nic, bar.load_acquire(at.plus(HOST))),
            marks: Marks(nic),
            turn,
        },
    }
}

const fn use_of(nic: u32, host: u32) -> PageUse {
    // A card that is gone says nothing, whatever the host's word was.
    let same = if nic == u32::MAX { nic } else { !(nic ^ host) };
    PageUse {
        dirty: same & host_word::DIRTY != 0,
        referenced: same & host_word::REFERENCED != 0,
        held: nic & nic_word::LOCKS != 0,
    }
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
///
/// Lock and marks come from one load, because the NIC stores them together: a use that began before
/// that load is either marked or held. Two loads would miss one that ends between them.
pub fn take_use<W: SharedWords + ?Sized>(
    bar: &W,
    table: &PageTable,
    slot: PageSlot,
    clear: Clear,
) -> PageUse {
    let (used, posted) = post_take_use(bar, table, slot, clear);
    if posted {
        // The new toggles are not only on their way, but at the card, before the page is read for cleaning and before
        // the caller acts on the answer. A use whose unlock still copies an old toggle ends before this returns, so
        // this answer may speak for it. The data of such a DMA was posted before the bus' answer, which pushes it into
        // the page.
        bar.bus_barrier();
    }
    used
}

/// Host: [`take_use`] without its last step. True: a [`SharedWords::bus_barrier`] must come before the answer is used and
/// before the page is cleaned. One such barrier serves all slots that were asked before it.
#[must_use = "the answer may need a barrier"]
pub fn post_take_use<W: SharedWords + ?Sized>(
    bar: &W,
    table: &PageTable,
    slot: PageSlot,
    clear: Clear,
) -> (PageUse, bool) {
    let at = table.slot_at(slot);
    let nic = bar.load_acquire(at.plus(NIC));
    let host = bar.load_acquire(at.plus(HOST));
    let used = use_of(nic, host);
    let mut word = host;
    if used.dirty && matches!(clear, Clear::Dirty | Clear::Both) {
        word ^= host_word::DIRTY;
    }
    if used.referenced && matches!(clear, Clear::Referenced | Clear::Both) {
        word ^= host_word::REFERENCED;
    }
    let toggled = word ^ host;
    if toggled != 0 {
        bar.store_release(at.plus(HOST), word);
    }
    (used, toggled != 0)
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
