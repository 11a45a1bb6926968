//! A whole table with its host side: which page goes to which slot, and which page makes room (thesis 4.3.1).
//!
//! Occupancy is kept in host memory, as the driver keeps it: an insert never reads NIC memory.

use super::Layout;
use netvm_abi::page_lock::Used;
use netvm_abi::page_table::{HashKey, PageEntry};
use netvm_abi::words::SharedWords;
use netvm_abi::{PortId, Vpn};
use rand::Rng;
use std::sync::atomic::AtomicU32;

/// Zeroed shared words.
#[must_use]
pub fn words(count: u32) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

/// A layout, its memory, and the host's book of what is where.
pub struct Table<L> {
    /// The layout.
    pub layout: L,
    /// NIC memory.
    pub bar: Box<[AtomicU32]>,
    slots: Vec<Option<PageEntry>>,
    /// Whether a full row loses a page of the port that holds most of it; else any page (thesis 4.3.1).
    pub quota: bool,
}

impl<L: Layout> Table<L> {
    /// An empty table of `rows` rows (a power of two) for a host of `pages` pages.
    #[must_use]
    pub fn new(rows: u32, pages: u32, key: HashKey) -> Self {
        let memory = L::memory();
        // Arrays by page start on lines of their own.
        let by_page = (u64::from(pages) * u64::from(memory.page_bits)).div_ceil(32) as u32;
        let slack = if by_page == 0 { 0 } else { 8 * 16 };
        Self {
            layout: L::new(rows, pages, key),
            bar: words(rows * memory.row_words + by_page + slack),
            slots: vec![None; (rows * L::SLOTS) as usize],
            quota: true,
        }
    }

    /// The slots in which a page may be, in the order in which they are looked at.
    fn places(&self, rows: [u32; 2]) -> impl Iterator<Item = u32> + use<L> {
        let [first, second] = rows;
        let second = if L::CHOICES == 1 {
            0..0
        } else {
            second * L::SLOTS..(second + 1) * L::SLOTS
        };
        (first * L::SLOTS..(first + 1) * L::SLOTS).chain(second)
    }

    fn entry(&self, slot: u32) -> Option<&PageEntry> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Maps a page: the first free slot of its first row, or of its second, or one whose page can move to its
    /// other row, or that of a victim.
    pub fn insert(&mut self, entry: PageEntry, random: &mut impl Rng) {
        let rows = self.layout.rows_of(entry.vpn);
        let slot = match self.free(rows).or_else(|| self.make_room(rows)) {
            Some(slot) => slot,
            None => {
                let victim = self.victim(rows, entry.vpn.port(), random);
                self.take_out(victim);
                victim
            }
        };
        self.put(slot, entry);
    }

    fn free(&self, rows: [u32; 2]) -> Option<u32> {
        self.places(rows).find(|&slot| self.entry(slot).is_none())
    }

    /// Moves a page out of full rows to its other row, if one of them has room there.
    fn make_room(&mut self, rows: [u32; 2]) -> Option<u32> {
        if L::CHOICES == 1 {
            return None;
        }
        let (slot, to) = self.places(rows).find_map(|slot| {
            let vpn = self.entry(slot)?.vpn;
            Some((slot, self.free(self.layout.rows_of(vpn))?))
        })?;
        let moved = self.take_out(slot)?;
        self.put(to, moved);
        Some(slot)
    }

    /// A full unmap of a slot.
    fn take_out(&mut self, slot: u32) -> Option<PageEntry> {
        let old = self.slots.get_mut(slot as usize).and_then(Option::take)?;
        self.layout.retract(&*self.bar, slot, &old);
        self.bar.full_barrier();
        Some(old)
    }

    fn put(&mut self, slot: u32, entry: PageEntry) {
        self.layout.publish(&*self.bar, slot, &entry);
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(entry);
        }
    }

    /// The page that makes room in full rows: a random page of the newcomer's own port where that holds half of the
    /// places or more, else of the port that holds most.
    fn victim(&self, rows: [u32; 2], newcomer: PortId, random: &mut impl Rng) -> u32 {
        let slots: Vec<u32> = self.places(rows).collect();
        let port = |slot: &u32| self.entry(*slot).map_or(newcomer, |entry| entry.vpn.port());
        let held = |of: PortId| slots.iter().filter(|slot| port(slot) == of).count();
        if !self.quota {
            let any = random.random_range(0..slots.len().max(1));
            return slots.get(any).copied().unwrap_or(0);
        }
        let loser = if held(newcomer) * 2 >= slots.len() {
            newcomer
        } else {
            slots
                .iter()
                .map(port)
                .max_by_key(|&port| held(port))
                .unwrap_or(newcomer)
        };
        let own: Vec<u32> = slots.iter().copied().filter(|slot| port(slot) == loser).collect();
        own.get(random.random_range(0..own.len().max(1)))
            .or_else(|| slots.first())
            .copied()
            .unwrap_or(0)
    }

    /// Looks a page up as the NIC does: lock and unlock.
    #[must_use]
    pub fn finds(&self, vpn: Vpn) -> bool {
        match self.layout.lock(&*self.bar, vpn, true) {
            Ok(held) => {
                self.layout.unlock(&*self.bar, held.slot, Used::Written);
                true
            }
            Err(_) => false,
        }
    }
}
