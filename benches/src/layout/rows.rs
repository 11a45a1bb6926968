//! Rows of whole slots: [`Shipped`] is the code that runs on the NIC, [`Row4`] has the same slots in longer rows.

use super::{Layout, Memory};
use netvm_abi::page_lock::{self, LockedPage, Miss, Used};
use netvm_abi::page_table::{
    HashKey, PageEntry, PageSlot, PageTable, ROW_SLOTS, ROW_WORDS, SLOT_WORDS, host_word, nic_word,
};
use netvm_abi::words::{SharedWords, join, split};
use netvm_abi::{Ppn, SegmentId, Vpn, WordIndex};

/// The page table and page lock as they are shipped.
pub struct Shipped(PageTable);

impl Layout for Shipped {
    const NAME: &'static str = "two rows";
    const TEXT: &'static str = "shipped: 2 slots x 32 B, and a second such row for what has no room";
    const SLOTS: u32 = ROW_SLOTS;
    const CHOICES: usize = 2;

    fn new(rows: u32, _pages: u32, key: HashKey) -> Self {
        Self(PageTable::new(WordIndex(0), rows, key))
    }

    fn memory() -> Memory {
        Memory {
            row_words: ROW_WORDS,
            page_bits: 0,
        }
    }

    fn rows_of(&self, vpn: Vpn) -> [u32; 2] {
        self.0.rows_of(vpn)
    }

    #[inline]
    fn lock<W: SharedWords + ?Sized>(&self, bar: &W, vpn: Vpn, write: bool) -> Result<LockedPage, Miss> {
        page_lock::lock_page(bar, &self.0, vpn, write)
    }

    #[inline]
    fn unlock<W: SharedWords + ?Sized>(&self, bar: &W, slot: PageSlot, used: Used) {
        page_lock::unlock_page(bar, &self.0, slot, used);
    }

    fn publish<W: SharedWords + ?Sized>(&self, bar: &W, slot: u32, entry: &PageEntry) {
        page_lock::publish(bar, &self.0, PageSlot(slot), entry);
    }

    fn retract<W: SharedWords + ?Sized>(&self, bar: &W, slot: u32, _entry: &PageEntry) {
        page_lock::retract(bar, &self.0, PageSlot(slot));
    }
}

const HOST: u32 = 0;
const NIC: u32 = 1;
const KEY: u32 = 2;

/// The shipped slot format in rows of four, a page living in one row.
pub struct Row4 {
    row_mask: u32,
    key: HashKey,
}

impl Layout for Row4 {
    const NAME: &'static str = "row of 4";
    const TEXT: &'static str = "4 slots x 32 B, two cache lines";
    const SLOTS: u32 = 4;
    const CHOICES: usize = 1;

    fn new(rows: u32, _pages: u32, key: HashKey) -> Self {
        Self {
            row_mask: rows - 1,
            key,
        }
    }

    fn memory() -> Memory {
        Memory {
            row_words: Self::SLOTS * SLOT_WORDS,
            page_bits: 0,
        }
    }

    #[inline]
    fn rows_of(&self, vpn: Vpn) -> [u32; 2] {
        [super::fold(self.key, vpn) as u32 & self.row_mask; 2]
    }

    #[inline]
    fn lock<W: SharedWords + ?Sized>(&self, bar: &W, vpn: Vpn, write: bool) -> Result<LockedPage, Miss> {
        let first = self.rows_of(vpn)[0] * Self::SLOTS;
        let [low, high] = split(vpn.raw());
        let mut miss = Miss::NotFound;
        let mut place = 0;
        while place < Self::SLOTS {
            let handle = first + place;
            let at = WordIndex(handle * SLOT_WORDS);
            place += 1;
            if bar.load_acquire(at.plus(KEY)) != low {
                continue;
            }
            let unlocked = bar.load_acquire(at.plus(NIC));
            if unlocked & nic_word::LOCKS == nic_word::LOCKS {
                continue;
            }
            bar.store_release(at.plus(NIC), unlocked + 1);
            bar.full_barrier();
            let host = bar.load_acquire(at.plus(HOST));
            let mut entry = [0; 5];
            bar.load_slice(at.plus(KEY), &mut entry);
            let [key_low, key_high, ppn_low, ppn_high, segment] = entry;
            if host & host_word::VALID != 0 && key_low == low && key_high == high {
                if !write || host & host_word::WRITABLE != 0 {
                    return Ok(LockedPage {
                        slot: PageSlot(handle),
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

    #[inline]
    fn unlock<W: SharedWords + ?Sized>(&self, bar: &W, slot: PageSlot, used: Used) {
        let at = WordIndex(slot.0 * SLOT_WORDS);
        super::unlock_words(bar, at.plus(HOST), at.plus(NIC), used);
    }

    fn publish<W: SharedWords + ?Sized>(&self, bar: &W, slot: u32, entry: &PageEntry) {
        let at = WordIndex(slot * SLOT_WORDS);
        let [low, high] = split(entry.vpn.raw());
        let [ppn_low, ppn_high] = split(entry.ppn.0);
        bar.store_slice(at.plus(KEY), &[low, high, ppn_low, ppn_high, entry.segment.0]);
        let nic = bar.load_acquire(at.plus(NIC));
        let writable = if entry.writable { host_word::WRITABLE } else { 0 };
        bar.store_release(
            at.plus(HOST),
            host_word::VALID | writable | super::clean_toggles(nic),
        );
    }

    fn retract<W: SharedWords + ?Sized>(&self, bar: &W, slot: u32, _entry: &PageEntry) {
        let at = WordIndex(slot * SLOT_WORDS + HOST);
        bar.store_release(at, bar.load_acquire(at) & !host_word::VALID);
    }
}
