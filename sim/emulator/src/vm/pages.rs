//! What the pager knows of each page of a region, in chunks that exist only where a page was ever touched.

use super::PageIndex;
use super::frames::Frame;
use super::swap::Slot;

/// Pages in one chunk.
const CHUNK: usize = 512;

/// One page's state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    /// The frame that holds it, if it is resident.
    pub(super) frame: Option<Frame>,
    /// Where the swap file has a copy (perhaps an outdated one: then the page is resident and dirty).
    pub(super) slot: Option<Slot>,
    /// How many workers hold it in its frame.
    pub(super) pins: u16,
    /// The application may write it without a fault.
    pub(super) app_writable: bool,
    /// The frame's contents differ from the swap file's (or from zero, without a slot).
    pub(super) dirty: bool,
    /// A write was asked for since it was zero. Until then it is as good as the shared zero page, which a card must not
    /// write (promise P3).
    pub(super) written: bool,
    /// The application wrote it since the LRU last asked.
    pub(super) referenced: bool,
}

#[derive(Debug)]
pub(super) struct PageTable {
    chunks: Vec<Option<Box<[Page; CHUNK]>>>,
}

impl PageTable {
    pub(super) fn new(pages: u64) -> Self {
        let mut chunks = Vec::new();
        chunks.resize_with((pages as usize).div_ceil(CHUNK), || None);
        Self { chunks }
    }

    /// The page's state; a page never touched has the default.
    pub(super) fn get(&self, page: PageIndex) -> Page {
        let index = page.0 as usize;
        match self.chunks.get(index / CHUNK) {
            Some(Some(chunk)) => chunk[index % CHUNK],
            _ => Page::default(),
        }
    }

    /// Changes the page's state.
    pub(super) fn change<R>(&mut self, page: PageIndex, change: impl FnOnce(&mut Page) -> R) -> R {
        let index = page.0 as usize;
        match self.chunks.get_mut(index / CHUNK) {
            Some(chunk) => {
                let chunk = chunk.get_or_insert_with(|| Box::new([Page::default(); CHUNK]));
                change(&mut chunk[index % CHUNK])
            }
            // Callers take page numbers from the mapping's own size; a stray one changes nothing.
            None => change(&mut Page::default()),
        }
    }

    /// The first page at or after `from` and before `to` that is resident or swapped out. Skips what was never touched, so that
    /// work is proportional to touched pages.
    pub(super) fn next_used(&self, from: u64, to: u64) -> Option<PageIndex> {
        let mut index = from as usize;
        while index < to as usize {
            match self.chunks.get(index / CHUNK)? {
                None => index = (index / CHUNK + 1) * CHUNK,
                Some(chunk) => {
                    let page = &chunk[index % CHUNK];
                    if page.frame.is_some() || page.slot.is_some() || page.pins > 0 {
                        return Some(PageIndex(index as u64));
                    }
                    index += 1;
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untouched_pages_take_no_memory_and_are_skipped() {
        let mut table = PageTable::new(1 << 24);
        assert_eq!(table.next_used(0, 1 << 24), None);
        table.change(PageIndex(9_999_999), |page| page.slot = Some(Slot(4)));
        assert_eq!(table.next_used(0, 1 << 24), Some(PageIndex(9_999_999)));
        assert_eq!(table.next_used(0, 9_999_999), None);
        assert_eq!(table.chunks.iter().flatten().count(), 1);
        assert_eq!(table.get(PageIndex(9_999_999)).slot, Some(Slot(4)));
    }
}
