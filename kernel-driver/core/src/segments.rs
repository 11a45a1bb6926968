//! Registered ranges: the unit of mapping (thesis 4.1).
//!
//! `register` writes one table entry, whatever the size of the range: pages are mapped when they
//! are missed. The segments of a port do not overlap, so a page has one segment.
//!
//! **The end of a segment** (`unregister_begin`, then `unregister_step` until done): its exports
//! end, which revokes their grants; then all its pages are unmapped; then no worker may be copying
//! to it; then its id may be used again, with another generation in its upper half.

use crate::Progress;
use crate::host::Host;
use crate::lists::{Links, List, Sorted, linked};
use crate::platform::{PageGone, Platform};
use crate::shares::Shares;
use crate::tally::WorkTally;
use crate::unmap::{Unmap, UnmapKind, UnmapStep};
use core::cmp::Ordering;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::{Nanos, PAGE_SIZE, PortId, SegmentId, VirtAddr, Vpn};

/// Page numbers have 48 bits.
const PAGE_NUMBERS: u64 = 1 << 48;

/// Why a range cannot be registered or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// The port is not open.
    NoSuchPort,
    /// It has no page.
    Empty,
    /// Start or length are not multiples of the page size.
    Unaligned,
    /// It leaves the 48-bit page number space.
    OutOfRange,
    /// It overlaps this segment of the port.
    Overlap(SegmentId),
    /// The table is full, except for the shares of other ports.
    TableFull,
    /// The port has no such segment.
    NoSuchSegment,
}

/// The end of a segment, driven by [`Host::unregister_step`].
#[derive(Debug)]
#[must_use = "a segment ends by steps"]
pub struct Unregister {
    segment: SegmentId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Live,
    Ending,
}

#[derive(Debug)]
pub(crate) struct Segment {
    state: State,
    generation: u16,
    pub(crate) port: PortId,
    pub(crate) first: u64,
    pub(crate) pages: u64,
    /// Its exports, those that are ending included.
    pub(crate) exports: List<0>,
    /// Workers that are copying to or from it.
    pub(crate) in_hand: u32,
    pub(crate) tally: WorkTally,
    unmap: Option<Unmap>,
    free: Links,
}

linked!(Segment: 1 => free);

pub(crate) struct Segments<S: Storage> {
    pub(crate) table: S::Table<Segment>,
    order: Sorted<S::Table<u32>>,
    free: List<1>,
    shares: Shares<S>,
}

/// Position in the order, id, first page number, pages.
pub(crate) type Found = (usize, SegmentId, u64, u64);

pub(crate) const fn index_of(id: SegmentId) -> u32 {
    id.0 & 0xFFFF
}

impl<S: MakeTable> Segments<S> {
    pub(crate) fn new(tables: &mut S, entries: u32, ports: u16) -> Self {
        let mut table = tables.table(entries as usize, |_| Segment {
            state: State::Free,
            generation: 1,
            port: PortId(0),
            first: 0,
            pages: 0,
            exports: List::EMPTY,
            in_hand: 0,
            tally: WorkTally::default(),
            unmap: None,
            free: Links::NONE,
        });
        let free = List::of_all(&mut table);
        Self {
            table,
            order: Sorted::new(tables.table(entries as usize, |_| 0)),
            free,
            shares: Shares::new(tables, entries, ports),
        }
    }
}

impl<S: Storage> Segments<S> {
    fn id(&self, index: u32) -> Option<SegmentId> {
        let segment = self.table.get(index as usize)?;
        Some(SegmentId(index | (u32::from(segment.generation) << 16)))
    }

    /// The entry of a segment that has not ended, of this generation.
    pub(crate) fn get(&mut self, id: SegmentId) -> Option<&mut Segment> {
        let segment = self.table.get_mut(index_of(id) as usize)?;
        let same = u32::from(segment.generation) == id.0 >> 16;
        (same && segment.state != State::Free).then_some(segment)
    }

    /// The segment at this place of the table, if there is one.
    pub(crate) fn used(&self, place: u32) -> Option<SegmentId> {
        let segment = self.table.get(place as usize)?;
        if segment.state == State::Free {
            None
        } else {
            self.id(place)
        }
    }

    fn found(&self, at: usize) -> Option<Found> {
        let index = self.order.get(at)?;
        let segment = self.table.get(index as usize)?;
        Some((at, self.id(index)?, segment.first, segment.pages))
    }

    /// Where the first segment of `port` that ends after `page` is, or would be.
    fn position(&self, port: PortId, page: u64) -> usize {
        let searched = self.order.search(|index| {
            self.table.get(index as usize).map_or(Ordering::Less, |segment| {
                if (segment.port, segment.first + segment.pages - 1) < (port, page) {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            })
        });
        match searched {
            Ok(at) | Err(at) => at,
        }
    }

    fn of_port(&self, port: PortId, found: Found) -> Option<Found> {
        let segment = self.table.get(index_of(found.1) as usize)?;
        (segment.port == port).then_some(found)
    }

    /// The first segment of `port` that ends after page `page`, ending ones included.
    pub(crate) fn first_in(&self, port: PortId, page: u64) -> Option<Found> {
        self.of_port(port, self.found(self.position(port, page))?)
    }

    /// The next one of `port`.
    pub(crate) fn next_in(&self, port: PortId, at: usize) -> Option<Found> {
        self.of_port(port, self.found(at + 1)?)
    }

    fn insert(&mut self, port: PortId, first: u64, pages: u64) -> Result<SegmentId, SegmentError> {
        let at = self.position(port, first);
        if let Some((_, id, start, _)) = self.found(at).and_then(|found| self.of_port(port, found))
            && start < first + pages
        {
            return Err(SegmentError::Overlap(id));
        }
        if !self.shares.take(port) {
            return Err(SegmentError::TableFull);
        }
        let index = self
            .free
            .pop_front(&mut self.table)
            .ok_or(SegmentError::TableFull)?;
        if let Some(segment) = self.table.get_mut(index as usize) {
            segment.state = State::Live;
            segment.port = port;
            segment.first = first;
            segment.pages = pages;
            segment.tally = WorkTally::default();
        }
        self.order.insert(at, index);
        self.id(index).ok_or(SegmentError::TableFull)
    }

    fn remove(&mut self, id: SegmentId) {
        let index = index_of(id);
        let Some((port, first)) = self.get(id).map(|segment| (segment.port, segment.first)) else {
            return;
        };
        let at = self.position(port, first);
        if self.order.get(at) == Some(index) {
            self.order.remove(at);
        }
        if let Some(segment) = self.table.get_mut(index as usize) {
            segment.state = State::Free;
            segment.generation = segment.generation.wrapping_add(1);
        }
        self.free.push_back(&mut self.table, index);
        self.shares.give(port);
    }

    /// The live segment of `port` that holds all of a byte range.
    pub(crate) fn holding(&self, port: PortId, start: VirtAddr, len: u64) -> Option<(SegmentId, u64)> {
        let last = start.checked_add(len.checked_sub(1)?)?;
        let (_, id, first, pages) = self.first_in(port, start.page_number())?;
        let segment = self.table.get(index_of(id) as usize)?;
        let inside = first <= start.page_number()
            && start.0 >> 60 == 0
            && last.0 >> 12 < first + pages
            && segment.state == State::Live;
        inside.then(|| (id, start.0 - first * u64::from(PAGE_SIZE)))
    }
}

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
