//! One address space: regions, page table entries, and which pages a change has claimed.

use netvm_abi::Ppn;
use std::collections::BTreeMap;

/// A page table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pte {
    /// Never touched: reads as zero.
    Empty,
    /// In a frame.
    Present {
        /// The frame.
        ppn: Ppn,
        /// Whether a write needs no fault.
        writable: bool,
        /// Written since its copy in swap (if any) was made.
        dirty: bool,
        /// Used since reclaim last looked.
        referenced: bool,
        /// The copy in swap, still right while the page is clean.
        slot: Option<u64>,
    },
    /// Being read from swap into a frame.
    Loading {
        /// The frame.
        ppn: Ppn,
        /// Where it comes from.
        slot: u64,
        /// When it is there.
        until: netvm_abi::Nanos,
    },
    /// In swap only.
    Swapped {
        /// Where.
        slot: u64,
    },
}

/// An address space.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// First page to number of pages.
    regions: BTreeMap<u64, u64>,
    entries: BTreeMap<u64, Pte>,
    /// Ranges claimed by changes under way: first page, number of pages.
    claims: Vec<(u64, u64)>,
}

impl Space {
    /// Bytes of its page table.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * size_of::<(u64, Pte)>()
    }

    /// Adds a region; refuses an empty or overlapping one.
    pub(super) fn add_region(&mut self, first: u64, pages: u64) -> bool {
        let Some(end) = first.checked_add(pages) else {
            return false;
        };
        let overlaps = self
            .regions
            .range(..end)
            .any(|(&start, &len)| start + len > first);
        if pages == 0 || overlaps {
            return false;
        }
        self.regions.insert(first, pages);
        true
    }

    /// Whether the page belongs to a region.
    pub(crate) fn contains(&self, page: u64) -> bool {
        self.regions
            .range(..=page)
            .next_back()
            .is_some_and(|(&start, &len)| page < start + len)
    }

    /// The entry of a page.
    pub(crate) fn pte(&self, page: u64) -> Pte {
        self.entries.get(&page).copied().unwrap_or(Pte::Empty)
    }

    pub(super) fn pte_mut(&mut self, page: u64) -> Option<&mut Pte> {
        self.entries.get_mut(&page)
    }

    pub(super) fn set(&mut self, page: u64, pte: Pte) {
        self.entries.insert(page, pte);
    }

    pub(super) fn remove_region_entries(&mut self, first: u64, pages: u64) -> Vec<Pte> {
        let keys: Vec<u64> = self
            .entries
            .range(first..first + pages)
            .map(|(&page, _)| page)
            .collect();
        keys.into_iter()
            .filter_map(|page| self.entries.remove(&page))
            .collect()
    }

    /// The pages with an entry in a range.
    pub(super) fn entries_in(&self, first: u64, pages: u64) -> Vec<(u64, Pte)> {
        self.entries
            .range(first..first + pages)
            .map(|(&page, &pte)| (page, pte))
            .collect()
    }

    /// The pages that are present.
    pub(crate) fn present_pages(&self) -> impl Iterator<Item = u64> {
        self.entries
            .iter()
            .filter(|(_, pte)| matches!(pte, Pte::Present { .. }))
            .map(|(&page, _)| page)
    }

    /// Claims a range for a change; refuses when part of it is claimed.
    pub(super) fn claim(&mut self, first: u64, pages: u64) -> bool {
        if self
            .claims
            .iter()
            .any(|&(start, len)| start < first + pages && first < start + len)
        {
            return false;
        }
        self.claims.push((first, pages));
        true
    }

    pub(super) fn release(&mut self, first: u64, pages: u64) {
        self.claims.retain(|&claim| claim != (first, pages));
    }

    /// Whether a change has claimed the page.
    pub(crate) fn claimed(&self, page: u64) -> bool {
        self.claims
            .iter()
            .any(|&(first, pages)| page >= first && page < first + pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap_and_claims_exclude() {
        let mut space = Space::default();
        assert!(space.add_region(10, 5));
        assert!(!space.add_region(14, 2) && !space.add_region(5, 6) && !space.add_region(20, 0));
        assert!(space.add_region(15, 1));
        assert!(space.contains(10) && space.contains(15) && !space.contains(16) && !space.contains(9));
        assert!(space.claim(10, 2));
        assert!(!space.claim(11, 3));
        assert!(space.claimed(11) && !space.claimed(12));
        space.release(10, 2);
        assert!(space.claim(11, 3));
    }
}
