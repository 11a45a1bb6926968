//! The thesis' layout (4.3.1, 4.3.2): a table of page numbers, and arrays indexed by the physical page.
//!
//! Taken over as it stands, but for what NetVM cannot do without: virtual page numbers of 64 bits, a lock
//! *count* (DMAs overlap, so one bit is not enough: a byte), a write permission and a referenced bit. It
//! keeps the thesis' limits: one mapping per physical page, and page numbers dense enough to index arrays,
//! which bus addresses behind an IOMMU are not.

use super::{Layout, Memory};
use netvm_abi::page_lock::{LockedPage, Miss, Used};
use netvm_abi::page_table::{HashKey, PageEntry, PageSlot};
use netvm_abi::words::{SharedWords, split};
use netvm_abi::{Ppn, SegmentId, Vpn, WordIndex};

const SLOTS: u32 = 4;
const VALID: u32 = 1 << 31;
const WRITABLE: u32 = 1 << 30;

/// The layout.
pub struct SplitArrays {
    row_mask: u32,
    key: HashKey,
    /// Two words a page.
    vpn: WordIndex,
    /// One word a page: segment, valid, writable.
    segment: WordIndex,
    /// One byte a page.
    lock: WordIndex,
    /// One bit a page each.
    dirty: Toggles,
    referenced: Toggles,
}

/// The two bit arrays of thesis figure 11.
struct Toggles {
    host: WordIndex,
    nic: WordIndex,
}

impl Toggles {
    /// NIC: marks a page by copying the host's bit.
    #[inline]
    fn mark<W: SharedWords + ?Sized>(&self, bar: &W, page: u32) {
        let bit = 1 << (page % 32);
        let host = bar.load_acquire(self.host.plus(page / 32)) & bit;
        let at = self.nic.plus(page / 32);
        bar.store_release(at, bar.load_acquire(at) & !bit | host);
    }

    /// Host: resets the mark by storing the complement of the NIC's bit.
    fn reset<W: SharedWords + ?Sized>(&self, bar: &W, page: u32) {
        let bit = 1 << (page % 32);
        let nic = bar.load_acquire(self.nic.plus(page / 32)) & bit;
        let at = self.host.plus(page / 32);
        bar.store_release(at, bar.load_acquire(at) & !bit | (nic ^ bit));
    }
}

/// The word of the lock array that holds a page's count, and where in it.
const fn lock_place(page: u32) -> (u32, u32) {
    (page / 4, page % 4 * 8)
}

impl Layout for SplitArrays {
    const NAME: &'static str = "thesis";
    const TEXT: &'static str = "row of 4 page numbers; arrays by physical page";
    const SLOTS: u32 = SLOTS;
    const CHOICES: usize = 1;

    fn new(rows: u32, pages: u32, key: HashKey) -> Self {
        let after = |start: WordIndex, words: u32| start.plus(words.next_multiple_of(16));
        let vpn = after(WordIndex(0), rows * SLOTS);
        let segment = after(vpn, 2 * pages);
        let lock = after(segment, pages);
        let bits = |start, index| after(start, index * pages.div_ceil(32).next_multiple_of(16));
        let first = after(lock, pages.div_ceil(4));
        Self {
            row_mask: rows - 1,
            key,
            vpn,
            segment,
            lock,
            dirty: Toggles {
                host: first,
                nic: bits(first, 1),
            },
            referenced: Toggles {
                host: bits(first, 2),
                nic: bits(first, 3),
            },
        }
    }

    fn memory() -> Memory {
        Memory {
            row_words: SLOTS,
            page_bits: 64 + 32 + 8 + 4,
        }
    }

    fn rows_of(&self, vpn: Vpn) -> [u32; 2] {
        [super::fold(self.key, vpn) as u32 & self.row_mask; 2]
    }

    #[inline]
    fn lock<W: SharedWords + ?Sized>(&self, bar: &W, vpn: Vpn, write: bool) -> Result<LockedPage, Miss> {
        let row = super::fold(self.key, vpn) as u32 & self.row_mask;
        let [low, high] = split(vpn.raw());
        let mut miss = Miss::NotFound;
        for slot in row * SLOTS..(row + 1) * SLOTS {
            // The word holds the page number plus one; zero ends the row.
            let Some(page) = bar.load_acquire(WordIndex(slot)).checked_sub(1) else {
                break;
            };
            let key = self.vpn.plus(2 * page);
            if bar.load_acquire(key) != low || bar.load_acquire(key.plus(1)) != high {
                continue;
            }
            let (word, shift) = lock_place(page);
            let lock = self.lock.plus(word);
            let unlocked = bar.load_acquire(lock);
            if unlocked >> shift & 0xFF == 0xFF {
                continue;
            }
            bar.store_release(lock, unlocked + (1 << shift));
            bar.full_barrier();
            let segment = bar.load_acquire(self.segment.plus(page));
            let found = bar.load_acquire(key) == low && bar.load_acquire(key.plus(1)) == high;
            if segment & VALID != 0 && found {
                if !write || segment & WRITABLE != 0 {
                    return Ok(LockedPage {
                        slot: PageSlot(page),
                        ppn: Ppn(u64::from(page)),
                        segment: SegmentId(segment & !(VALID | WRITABLE)),
                    });
                }
                miss = Miss::NotWritable;
            }
            bar.store_release(lock, unlocked);
        }
        Err(miss)
    }

    #[inline]
    fn unlock<W: SharedWords + ?Sized>(&self, bar: &W, slot: PageSlot, used: Used) {
        if used != Used::Not {
            bar.full_barrier();
            self.referenced.mark(bar, slot.0);
            if used == Used::Written {
                self.dirty.mark(bar, slot.0);
            }
        }
        let (word, shift) = lock_place(slot.0);
        let lock = self.lock.plus(word);
        bar.store_release(lock, bar.load_acquire(lock).wrapping_sub(1 << shift));
    }

    fn publish<W: SharedWords + ?Sized>(&self, bar: &W, slot: u32, entry: &PageEntry) {
        let page = entry.ppn.0 as u32;
        let [low, high] = split(entry.vpn.raw());
        self.dirty.reset(bar, page);
        self.referenced.reset(bar, page);
        bar.store_slice(self.vpn.plus(2 * page), &[low, high]);
        let writable = if entry.writable { WRITABLE } else { 0 };
        bar.store_release(self.segment.plus(page), entry.segment.0 | writable | VALID);
        bar.store_release(WordIndex(slot), page + 1);
    }

    fn retract<W: SharedWords + ?Sized>(&self, bar: &W, _slot: u32, entry: &PageEntry) {
        let at = self.segment.plus(entry.ppn.0 as u32);
        bar.store_release(at, bar.load_acquire(at) & !VALID);
    }
}
