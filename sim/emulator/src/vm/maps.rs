//! Which addresses belong to which region: the application's windows, and the alias mappings.
//!
//! Behind a lock of its own that is held for a look-up only, because the alias' watcher must be able to ask while a thread that
//! holds the pager's lock waits for the card, which may itself be waiting for the watcher.

use std::collections::BTreeMap;

use super::{PAGE_SIZE, PageIndex, PageKey, RegionId};

/// A run of a region's pages at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: usize,
    pub(super) region: RegionId,
    pub(super) first: u64,
    pub(super) pages: u64,
}

impl Window {
    fn end(&self) -> usize {
        self.start + self.pages as usize * PAGE_SIZE
    }

    /// The part of this window inside the byte range, if any.
    fn part(&self, start: usize, end: usize) -> Option<Self> {
        let from = self.start.max(start);
        let to = self.end().min(end);
        (from < to).then(|| Self {
            start: from,
            region: self.region,
            first: self.first + ((from - self.start) / PAGE_SIZE) as u64,
            pages: ((to - from) / PAGE_SIZE) as u64,
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Maps {
    /// By start address; windows do not overlap.
    app: BTreeMap<usize, Window>,
    alias: BTreeMap<usize, Window>,
    /// What `madvise` has removed, or is about to: the alias may fault there without a broken promise.
    removed: Vec<Window>,
}

fn find(windows: &BTreeMap<usize, Window>, addr: usize) -> Option<PageKey> {
    let (_, window) = windows.range(..=addr).next_back()?;
    let at = window.part(addr, addr + PAGE_SIZE)?;
    Some(PageKey {
        region: at.region,
        page: PageIndex(at.first),
    })
}

impl Maps {
    pub(super) fn add_region(&mut self, region: RegionId, app: usize, alias: usize, pages: u64) {
        self.app.insert(
            app,
            Window {
                start: app,
                region,
                first: 0,
                pages,
            },
        );
        self.alias.insert(
            alias,
            Window {
                start: alias,
                region,
                first: 0,
                pages,
            },
        );
    }

    /// Forgets the windows that the application still has on a region, and returns them.
    pub(super) fn remove_windows(&mut self, region: RegionId) -> Vec<Window> {
        let gone: Vec<Window> = self
            .app
            .values()
            .filter(|window| window.region == region)
            .copied()
            .collect();
        self.app.retain(|_, window| window.region != region);
        gone
    }

    /// Forgets a region's alias. Its number may be given to a new region only after this.
    pub(super) fn remove_alias(&mut self, region: RegionId) {
        self.alias.retain(|_, window| window.region != region);
        self.removed.retain(|window| window.region != region);
    }

    pub(super) fn app_page(&self, addr: usize) -> Option<PageKey> {
        find(&self.app, addr)
    }

    pub(super) fn alias_page(&self, addr: usize) -> Option<PageKey> {
        find(&self.alias, addr)
    }

    /// Where the application sees a page.
    pub(super) fn app_address(&self, key: PageKey) -> Option<usize> {
        let holds = |window: &&Window| {
            window.region == key.region && (window.first..window.first + window.pages).contains(&key.page.0)
        };
        let window = self.app.values().find(holds)?;
        Some(window.start + (key.page.0 - window.first) as usize * PAGE_SIZE)
    }

    /// The parts of windows inside a byte range.
    pub(super) fn app_parts(&self, start: usize, end: usize) -> Vec<Window> {
        self.app
            .values()
            .filter_map(|window| window.part(start, end))
            .collect()
    }

    /// The application has unmapped a byte range: returns what of it were ours.
    pub(super) fn cut(&mut self, start: usize, end: usize) -> Vec<Window> {
        let parts = self.app_parts(start, end);
        for part in &parts {
            let Some((&at, &whole)) = self.app.range(..=part.start).next_back() else {
                continue;
            };
            self.app.remove(&at);
            for rest in [
                whole.part(whole.start, part.start),
                whole.part(part.end(), whole.end()),
            ]
            .into_iter()
            .flatten()
            {
                self.app.insert(rest.start, rest);
            }
        }
        parts
    }

    /// The application has moved a byte range: the pages are at their new address now. Returns them as they were.
    pub(super) fn moved(&mut self, from: usize, to: usize, len: usize) -> Vec<Window> {
        let parts = self.cut(from, from + len);
        for part in &parts {
            let start = to + (part.start - from);
            self.app.insert(start, Window { start, ..*part });
        }
        parts
    }

    /// Remembers that the pages at these application addresses are being removed.
    pub(super) fn note_removed(&mut self, start: usize, end: usize) {
        for part in self.app_parts(start, end) {
            let last = part.first + part.pages;
            let known = |window: &Window| {
                window.region == part.region
                    && window.first <= part.first
                    && last <= window.first + window.pages
            };
            if !self.removed.iter().any(known) {
                self.removed.push(part);
            }
        }
    }

    pub(super) fn is_removed(&self, key: PageKey) -> bool {
        self.removed.iter().any(|window| {
            window.region == key.region && (window.first..window.first + window.pages).contains(&key.page.0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: usize = 0x10_0000;

    fn key(page: u64) -> Option<PageKey> {
        Some(PageKey {
            region: RegionId(1),
            page: PageIndex(page),
        })
    }

    fn maps() -> Maps {
        let mut maps = Maps::default();
        maps.add_region(RegionId(1), BASE, 0x90_0000, 10);
        maps
    }

    #[test]
    fn cutting_the_middle_leaves_both_ends_at_their_pages() {
        let mut maps = maps();
        let gone = maps.cut(BASE + 3 * PAGE_SIZE, BASE + 5 * PAGE_SIZE);
        assert_eq!(
            gone.iter()
                .map(|part| (part.first, part.pages))
                .collect::<Vec<_>>(),
            [(3, 2)]
        );
        assert_eq!(maps.app_page(BASE + 2 * PAGE_SIZE), key(2));
        assert_eq!(maps.app_page(BASE + 3 * PAGE_SIZE), None);
        assert_eq!(maps.app_page(BASE + 5 * PAGE_SIZE), key(5));
        assert_eq!(maps.app_address(key(4).unwrap()), None);
        assert_eq!(maps.app_page(BASE + 10 * PAGE_SIZE), None);
        assert_eq!(maps.alias_page(0x90_0000 + 3 * PAGE_SIZE), key(3));
    }

    #[test]
    fn a_moved_range_is_found_at_its_new_address() {
        let mut maps = maps();
        maps.moved(BASE + 2 * PAGE_SIZE, 0x500_0000, 4 * PAGE_SIZE);
        assert_eq!(maps.app_page(0x500_0000 + PAGE_SIZE), key(3));
        assert_eq!(maps.app_address(key(3).unwrap()), Some(0x500_0000 + PAGE_SIZE));
        assert_eq!(maps.app_page(BASE + 3 * PAGE_SIZE), None);
        assert_eq!(maps.app_page(BASE + 6 * PAGE_SIZE), key(6));
        assert_eq!(maps.remove_windows(RegionId(1)).len(), 3);
        assert_eq!(maps.app_page(0x500_0000), None);
    }

    #[test]
    fn removed_pages_are_remembered_by_page_not_by_address() {
        let mut maps = maps();
        maps.note_removed(BASE + PAGE_SIZE, BASE + 2 * PAGE_SIZE);
        maps.moved(BASE, 0x500_0000, 10 * PAGE_SIZE);
        assert!(maps.is_removed(key(1).unwrap()));
        assert!(!maps.is_removed(key(2).unwrap()));
    }
}
