//! Page-table layouts side by side: the shipped one and those it was chosen against.
//!
//! Each is a small complete implementation over [`SharedWords`], with the same lock protocol
//! ([`netvm_abi::page_lock`]): what differs is where the words are. `docs/decisions/0001` tells what was chosen.

pub mod cost;
pub mod eviction;
pub mod measure;
pub mod plot;
pub mod report;
pub mod rows;
pub mod split_arrays;
pub mod table;
pub mod tags;

use netvm_abi::page_lock::{LockedPage, Miss, Used};
use netvm_abi::page_table::{HashKey, PageEntry, PageSlot, host_word, nic_word};
use netvm_abi::words::SharedWords;
use netvm_abi::{Vpn, WordIndex};

pub use rows::{Row4, Shipped};
pub use split_arrays::SplitArrays;
pub use tags::Tags;

/// Bytes of a cache line.
pub const LINE: u32 = 64;

/// What a layout takes of NIC memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Words a row.
    pub row_words: u32,
    /// Bits for each page of the host, whatever the number of rows.
    pub page_bits: u32,
}

impl Memory {
    /// Bytes for each page of the host, at `rows` rows a page.
    #[must_use]
    pub fn bytes_per_page(self, rows: f64) -> f64 {
        f64::from(self.row_words) * 4.0 * rows + f64::from(self.page_bits) / 8.0
    }
}

/// A way to lay out page entries in NIC memory.
pub trait Layout: Sized {
    /// Short name.
    const NAME: &'static str;
    /// What it is, in a line.
    const TEXT: &'static str;
    /// Slots of a row.
    const SLOTS: u32;
    /// Rows in which a page may be, 1 or 2.
    const CHOICES: usize;

    /// A table of `rows` rows (a power of two) for a host of `pages` pages.
    fn new(rows: u32, pages: u32, key: HashKey) -> Self;

    /// What it takes of NIC memory.
    fn memory() -> Memory;

    /// The rows in which a page may be; twice the same where there is one.
    fn rows_of(&self, vpn: Vpn) -> [u32; 2];

    /// NIC: translates and locks a page. The slot is whatever unlock takes.
    ///
    /// # Errors
    /// The page must go through the host.
    fn lock<W: SharedWords + ?Sized>(&self, bar: &W, vpn: Vpn, write: bool) -> Result<LockedPage, Miss>;

    /// NIC: unlocks a page and marks what was done to it.
    fn unlock<W: SharedWords + ?Sized>(&self, bar: &W, slot: PageSlot, used: Used);

    /// Host: fills the empty slot `slot` (row times [`SLOTS`](Self::SLOTS) plus index).
    fn publish<W: SharedWords + ?Sized>(&self, bar: &W, slot: u32, entry: &PageEntry);

    /// Host: makes the slot of `entry` invalid.
    fn retract<W: SharedWords + ?Sized>(&self, bar: &W, slot: u32, entry: &PageEntry);
}

/// The shipped hash before it is cut to a row number ([`netvm_abi::page_table::PageTable::row_of`]).
#[inline]
const fn fold(key: HashKey, vpn: Vpn) -> u64 {
    let [first, second] = key.0;
    let product = ((vpn.raw() ^ first) as u128) * ((second | 1) as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Unlocks where host word and NIC word are as shipped.
#[inline]
fn unlock_words<W: SharedWords + ?Sized>(bar: &W, host: WordIndex, nic: WordIndex, used: Used) {
    let mut word = bar.load_acquire(nic).wrapping_sub(1);
    if used != Used::Not {
        bar.full_barrier();
        let host = bar.load_acquire(host);
        let marks = match used {
            Used::Written => nic_word::DIRTY | nic_word::REFERENCED,
            _ => nic_word::REFERENCED,
        };
        word = word & !marks | host & marks;
    }
    bar.store_release(nic, word);
}

/// The host toggles that mean "clean, not referenced" against a NIC word.
const fn clean_toggles(nic: u32) -> u32 {
    !nic & (host_word::DIRTY | host_word::REFERENCED)
}
