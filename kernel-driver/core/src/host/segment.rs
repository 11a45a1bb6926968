//! Registered ranges: how they begin and how they end.

use super::Host;
use crate::Progress;
use crate::lists::List;
use crate::platform::{PageGone, Platform};
use crate::segments::{SegmentError, State, Unregister, index_of};
use crate::unmap::{UnmapKind, UnmapStep};
use netvm_abi::storage::Storage;
use netvm_abi::{Nanos, PAGE_SIZE, PortId, SegmentId, VirtAddr, Vpn};

/// Page numbers have 48 bits.
const PAGE_NUMBERS: u64 = 1 << 48;

impl<S: Storage> Host<S> {
    /// Registers a page-granular range of a port. Maps nothing: the cost does not grow with `len`
    /// (bytes).
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn register(&mut self, port: PortId, start: VirtAddr, len: u64) -> Result<SegmentId, SegmentError> {
        if !self.port_is_open(port) {
            return Err(SegmentError::NoSuchPort);
        }
        if len == 0 {
            return Err(SegmentError::Empty);
        }
        let page = u64::from(PAGE_SIZE);
        if !start.0.is_multiple_of(page) || !len.is_multiple_of(page) {
            return Err(SegmentError::Unaligned);
        }
        let first = start.0 / page;
        let pages = len / page;
        if first.checked_add(pages).is_none_or(|end| end > PAGE_NUMBERS) {
            return Err(SegmentError::OutOfRange);
        }
        let id = self.segments.insert(port, first, pages)?;
        self.counters.segments_registered += 1;
        Ok(id)
    }

    /// The segment that holds an address of a port, and the offset in it in bytes. O(log n) of the
    /// number of segments.
    #[must_use]
    pub fn locate(&self, port: PortId, address: VirtAddr) -> Option<(SegmentId, u64)> {
        self.segments.holding(port, address, 1)
    }

    /// First page number and number of pages of a segment.
    #[must_use]
    pub fn segment(&self, id: SegmentId) -> Option<(u64, u64)> {
        let segment = self.segments.table.get(index_of(id) as usize)?;
        let same = u32::from(segment.generation) == id.0 >> 16;
        (same && segment.state != State::Free).then_some((segment.first, segment.pages))
    }

    /// Whether a port has registered any of `pages` pages from `first` on, segments that are ending included.
    /// Where it has not, none of them is mapped.
    #[must_use]
    pub fn is_registered(&self, first: Vpn, pages: u64) -> bool {
        let next = self.segments.first_in(first.port(), first.page_number());
        next.is_some_and(|(_, _, start, _)| start < first.page_number().saturating_add(pages))
    }

    /// Begins to end a segment: its exports end, its pages are unmapped.
    ///
    /// # Errors
    /// [`SegmentError::NoSuchSegment`].
    pub fn unregister_begin(&mut self, port: PortId, segment: SegmentId) -> Result<Unregister, SegmentError> {
        let entry = self
            .segments
            .get(segment)
            .filter(|entry| entry.port == port)
            .ok_or(SegmentError::NoSuchSegment)?;
        entry.state = State::Ending;
        Ok(Unregister { segment })
    }

    /// Goes on ending it; at most `budget` pages in this step. When done, no DMA and no copy reaches
    /// the range, and its id may be used again.
    pub fn unregister_step<P: Platform>(
        &mut self,
        platform: &mut P,
        unregister: &mut Unregister,
        now: Nanos,
        budget: u32,
        gone: &mut impl FnMut(PageGone),
    ) -> Progress {
        self.end_segment(platform, unregister.segment, now, budget, gone)
    }

    /// One step of the end of a segment; several callers may drive it at once.
    pub(crate) fn end_segment<P: Platform>(
        &mut self,
        platform: &mut P,
        id: SegmentId,
        now: Nanos,
        budget: u32,
        gone: &mut impl FnMut(PageGone),
    ) -> Progress {
        let Some(segment) = self.segments.get(id) else {
            return Progress::Done;
        };
        segment.state = State::Ending;
        if !segment.exports.is_empty() {
            return self.end_exports(platform, id, now);
        }
        let first = Vpn::new(segment.port, segment.first);
        let pages = segment.pages;
        let mut unmap = match segment.unmap.take() {
            Some(unmap) => unmap,
            None => self.unmap_begin(first, pages, UnmapKind::Remove),
        };
        let step = self.unmap_step(platform, &mut unmap, now, budget, gone);
        let Some(segment) = self.segments.get(id) else {
            return Progress::Done;
        };
        if step == UnmapStep::Done && segment.in_hand == 0 {
            self.unmap_end(unmap);
            self.segments.remove(id);
            self.counters.segments_ended += 1;
            return Progress::Done;
        }
        segment.unmap = Some(unmap);
        if step == UnmapStep::Again {
            Progress::Again
        } else {
            Progress::Wait
        }
    }

    /// One step of the end of all exports of a segment: their grants share a barrier.
    fn end_exports<P: Platform>(&mut self, platform: &mut P, id: SegmentId, now: Nanos) -> Progress {
        let mut next = self.segments.get(id).and_then(|segment| segment.exports.first());
        let mut progress = Progress::Wait;
        while let Some(export) = next {
            next = List::<0>::after(&self.exports.table, export);
            if self.end_export(platform, export, now) != Progress::Wait {
                progress = Progress::Again;
            }
        }
        progress
    }

    /// A worker begins (or ends) to copy to or from a segment.
    pub(crate) fn segment_in_hand(&mut self, id: SegmentId, begins: bool) {
        if let Some(segment) = self.segments.get(id) {
            segment.in_hand = if begins {
                segment.in_hand + 1
            } else {
                segment.in_hand.saturating_sub(1)
            };
        }
    }
}
