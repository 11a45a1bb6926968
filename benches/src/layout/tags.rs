//! Rows of 8 slots whose host words, NIC words and tags fill the first cache line, with the rest behind.
//!
//! | words of a row | owner | hold |
//! |---|---|---|
//! | 0..8 | host | bit 0 valid, 1 writable, 8 dirty toggle, 9 referenced toggle, bits 10..32 the low 22 bits of the page number |
//! | 8..16 | NIC | as shipped: lock count, dirty toggle, referenced toggle |
//! | 16 + 4 i .. 20 + 4 i | host | of slot i: page number bits 22..48, port and upper 16 bits of the [`Ppn`], its lower 32 bits, segment |
//!
//! Three cache lines a row, 24 bytes a slot, and no field is narrowed below what a bus needs (60-bit
//! addresses). A miss reads one line, a hit two, whichever slot it is in. The tag is in the word that says
//! "valid", so one load decides both; the rest of the page number is compared under the lock.

use super::{Layout, Memory};
use netvm_abi::page_lock::{LockedPage, Miss, Used};
use netvm_abi::page_table::{HashKey, PageEntry, PageSlot, host_word, nic_word};
use netvm_abi::words::{SharedWords, split};
use netvm_abi::{Ppn, SegmentId, Vpn, WordIndex};

const SLOTS: u32 = 8;
const NIC: u32 = 8;
const BODY: u32 = 16;
const BODY_WORDS: u32 = 4;
const ROW_WORDS: u32 = BODY + SLOTS * BODY_WORDS;

const WRITABLE: u32 = 2;
const TAG_SHIFT: u32 = 10;
const LOOKED_AT: u32 = !0 << TAG_SHIFT | host_word::VALID;
const UPPER: u32 = (1 << 26) - 1;

/// The layout.
pub struct Tags {
    row_mask: u32,
    key: HashKey,
}

/// The host word (without toggles and permission) and the two upper words that a page's slot must show.
#[inline]
const fn wanted(vpn: Vpn) -> (u32, u32, u32) {
    let page = vpn.page_number();
    (
        (page as u32) << TAG_SHIFT | host_word::VALID,
        (page >> 22) as u32,
        vpn.port().0 as u32,
    )
}

/// Row and index in it of a slot of the whole table.
const fn place(slot: u32) -> (WordIndex, u32) {
    (WordIndex(slot / SLOTS * ROW_WORDS), slot % SLOTS)
}

impl Layout for Tags {
    const NAME: &'static str = "tags";
    const TEXT: &'static str = "row of 8: a line of tags and lock words, 8 x 16 B behind";
    const SLOTS: u32 = SLOTS;
    const CHOICES: usize = 1;

    fn new(rows: u32, _pages: u32, key: HashKey) -> Self {
        Self {
            row_mask: rows - 1,
            key,
        }
    }

    fn memory() -> Memory {
        Memory {
            row_words: ROW_WORDS,
            page_bits: 0,
        }
    }

    fn rows_of(&self, vpn: Vpn) -> [u32; 2] {
        [super::fold(self.key, vpn) as u32 & self.row_mask; 2]
    }

    #[inline]
    fn lock<W: SharedWords + ?Sized>(&self, bar: &W, vpn: Vpn, write: bool) -> Result<LockedPage, Miss> {
        let number = super::fold(self.key, vpn) as u32 & self.row_mask;
        let row = WordIndex(number * ROW_WORDS);
        let (tag, upper, port) = wanted(vpn);
        let mut miss = Miss::NotFound;
        let mut index = 0;
        while index < SLOTS {
            let this = index;
            index += 1;
            let host = row.plus(this);
            if bar.load_acquire(host) & LOOKED_AT != tag {
                continue;
            }
            let nic = host.plus(NIC);
            let unlocked = bar.load_acquire(nic);
            if unlocked & nic_word::LOCKS == nic_word::LOCKS {
                continue;
            }
            bar.store_release(nic, unlocked + 1);
            bar.full_barrier();
            let word = bar.load_acquire(host);
            let mut body = [0; BODY_WORDS as usize];
            bar.load_slice(row.plus(BODY + this * BODY_WORDS), &mut body);
            let [page, place, ppn, segment] = body;
            if word & LOOKED_AT == tag && page & UPPER == upper && place & 0xFFFF == port {
                if !write || word & WRITABLE != 0 {
                    return Ok(LockedPage {
                        slot: PageSlot(number * SLOTS + this),
                        ppn: Ppn(u64::from(ppn) | u64::from(place >> 16) << 32),
                        segment: SegmentId(segment),
                    });
                }
                miss = Miss::NotWritable;
            }
            bar.store_release(nic, unlocked);
        }
        Err(miss)
    }

    #[inline]
    fn unlock<W: SharedWords + ?Sized>(&self, bar: &W, slot: PageSlot, used: Used) {
        let (row, index) = place(slot.0);
        let host = row.plus(index);
        super::unlock_words(bar, host, host.plus(NIC), used);
    }

    fn publish<W: SharedWords + ?Sized>(&self, bar: &W, slot: u32, entry: &PageEntry) {
        let (row, index) = place(slot);
        let (tag, upper, port) = wanted(entry.vpn);
        let [ppn_low, ppn_high] = split(entry.ppn.0);
        bar.store_slice(
            row.plus(BODY + index * BODY_WORDS),
            &[upper, port | ppn_high << 16, ppn_low, entry.segment.0],
        );
        let host = row.plus(index);
        let nic = bar.load_acquire(host.plus(NIC));
        let writable = if entry.writable { WRITABLE } else { 0 };
        bar.store_release(host, tag | writable | super::clean_toggles(nic));
    }

    fn retract<W: SharedWords + ?Sized>(&self, bar: &W, slot: u32, _entry: &PageEntry) {
        let (row, index) = place(slot);
        let host = row.plus(index);
        bar.store_release(host, bar.load_acquire(host) & !host_word::VALID);
    }
}
