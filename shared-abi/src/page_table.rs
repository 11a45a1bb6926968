//! The shadow page table: where a page entry lies and what it says (thesis 4.3).
//!
//! A fixed hash table. A row is one cache line: two slots of eight words, in which the keys, the
//! translation and the two words of the page lock stand side by side. A page may be in either of
//! two rows; the host takes the first while it has room, so that most look-ups touch one line and
//! none more than two. Why this layout: `docs/decisions/0001-page-table-layout.md`.
//!
//! | word | owner | holds |
//! |---|---|---|
//! | 0 | host | bit 0 valid, bit 1 writable, bit 8 dirty toggle, bit 9 referenced toggle |
//! | 1 | NIC | bits 0..8 lock count, bit 8 dirty toggle, bit 9 referenced toggle |
//! | 2, 3 | host | the [`Vpn`], low word first |
//! | 4, 5 | host | the [`Ppn`], low word first |
//! | 6 | host | the [`SegmentId`] |
//! | 7 | host | order: log2 of pages, 0 in this release |
//!
//! Words 2..8 may be read by the NIC as a hint at any time, and believed only between lock and
//! unlock ([`crate::page_lock`]).

use crate::units::{Ppn, SegmentId, Vpn, WordIndex};
use static_assertions::const_assert_eq;

/// Slots of a row.
pub const ROW_SLOTS: u32 = 2;
/// Slots in which a page may be: two rows.
pub const PLACES: u32 = 2 * ROW_SLOTS;
/// Words of a slot.
pub const SLOT_WORDS: u32 = 8;
/// Words of a row.
pub const ROW_WORDS: u32 = ROW_SLOTS * SLOT_WORDS;

const_assert_eq!(ROW_WORDS * 4, 64);

/// Bits of the host's word.
pub mod host_word {
    /// The entry may be locked and used.
    pub const VALID: u32 = 1;
    /// The NIC may write the page. Beside "valid", so that one load decides both; it changes only
    /// while the entry is neither valid nor locked.
    pub const WRITABLE: u32 = 2;
    /// The page is dirty while this equals the NIC's toggle (thesis 4.3.2.1).
    pub const DIRTY: u32 = super::nic_word::DIRTY;
    /// The page was referenced while this equals the NIC's toggle.
    pub const REFERENCED: u32 = super::nic_word::REFERENCED;
}

/// Bits of the NIC's word.
pub mod nic_word {
    /// Number of DMAs that hold the page.
    pub const LOCKS: u32 = 0xFF;
    /// Dirty toggle.
    pub const DIRTY: u32 = 1 << 8;
    /// Referenced toggle.
    pub const REFERENCED: u32 = 1 << 9;
    /// Changes each time the NIC has set its lock and then found that the host had just made the entry
    /// invalid: it backs off. A host that found the lock set, and this changed when it is free, knows
    /// that neither of the two had the page (thesis figure 13, third outcome).
    pub const BACKED_OFF: u32 = 1 << 10;
}

/// Index of a slot in the whole table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSlot(pub u32);

impl PageSlot {
    /// Slot `index` of row `row`.
    #[must_use]
    pub const fn new(row: u32, index: u32) -> Self {
        Self(row * ROW_SLOTS + index)
    }

    /// The slot behind it.
    #[must_use]
    #[inline]
    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Its row.
    #[must_use]
    pub const fn row(self) -> u32 {
        self.0 / ROW_SLOTS
    }
}

/// What the host says about a mapped page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEntry {
    /// Port and virtual page number of the page.
    pub vpn: Vpn,
    /// The physical page.
    pub ppn: Ppn,
    /// The segment it belongs to.
    pub segment: SegmentId,
    /// Whether the kernel's own PTE is writable: without it a write is a miss (promise P3).
    pub writable: bool,
}

/// Key of the page hash, chosen anew at each boot so that no application can aim at a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashKey(pub [u64; 2]);

/// Place and size of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageTable {
    base: WordIndex,
    row_mask: u32,
    /// The second is odd.
    key: [u64; 2],
}

impl PageTable {
    /// The table at `base` with `rows` rows (a power of two).
    #[must_use]
    pub const fn new(base: WordIndex, rows: u32, key: HashKey) -> Self {
        Self {
            base,
            row_mask: rows - 1,
            key: [key.0[0], key.0[1] | 1],
        }
    }

    /// The table of a NIC.
    #[must_use]
    pub const fn of(geometry: &crate::Geometry, key: HashKey) -> Self {
        Self::new(
            crate::bar::BarMap::new(geometry).page_table,
            geometry.page_rows,
            key,
        )
    }

    /// The row of a page that is filled first: one multiplication, folded, keyed.
    #[must_use]
    #[inline]
    pub const fn row_of(&self, vpn: Vpn) -> u32 {
        self.fold(vpn) as u32 & self.row_mask
    }

    /// Both rows of a page, the first one first. In a small table they may be the same.
    #[must_use]
    #[inline]
    pub const fn rows_of(&self, vpn: Vpn) -> [u32; 2] {
        let folded = self.fold(vpn);
        [
            folded as u32 & self.row_mask,
            (folded >> 32) as u32 & self.row_mask,
        ]
    }

    /// The slots in which a page may be, in the order in which they are filled and looked at.
    #[must_use]
    pub const fn places(&self, vpn: Vpn) -> [PageSlot; PLACES as usize] {
        let [first, second] = self.rows_of(vpn);
        [
            PageSlot::new(first, 0),
            PageSlot::new(first, 1),
            PageSlot::new(second, 0),
            PageSlot::new(second, 1),
        ]
    }

    #[inline]
    const fn fold(&self, vpn: Vpn) -> u64 {
        let [first, second] = self.key;
        let product = ((vpn.raw() ^ first) as u128) * (second as u128);
        (product as u64) ^ ((product >> 64) as u64)
    }

    /// First word of a slot.
    #[must_use]
    #[inline]
    pub const fn slot_at(&self, slot: PageSlot) -> WordIndex {
        self.base.plus(slot.0 * SLOT_WORDS)
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> u32 {
        self.row_mask + 1
    }
}
