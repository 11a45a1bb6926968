//! Registered ranges: the unit of mapping (thesis 4.1).
//!
//! `register` writes one table entry, whatever the size of the range: pages are mapped when they
//! are missed. The segments of a port do not overlap, so a page has one segment.
//!
//! **The end of a segment** (`unregister_begin`, then `unregister_step` until done): its exports
//! end, which revokes their grants; then all its pages are unmapped; then no worker may be copying
//! to it; then its id may be used again, with another generation in its upper half.

use crate::lists::{Links, List, Sorted, linked};
use crate::shares::Shares;
use crate::tally::WorkTally;
use crate::unmap::Unmap;
use core::cmp::Ordering;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::{PAGE_SIZE, PortId, SegmentId, VirtAddr};

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

/// The end of a segment, driven by [`Host::unregister_step`](crate::Host::unregister_step).
#[derive(Debug)]
#[must_use = "a segment ends by steps"]
pub struct Unregister {
    pub(crate) segment: SegmentId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Live,
    Ending,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) state: State,
    pub(crate) generation: u16,
    pub(crate) port: PortId,
    pub(crate) first: u64,
    pub(crate) pages: u64,
    /// Its exports, those that are ending included.
    pub(crate) exports: List<0>,
    /// Workers that are copying to or from it.
    pub(crate) in_hand: u32,
    pub(crate) tally: WorkTally,
    pub(crate) unmap: Option<Unmap>,
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
    /// Entries that ports have of it, by the books of their shares.
    pub(crate) fn shares_held(&self) -> u32 {
        self.shares.held()
    }

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

    pub(crate) fn insert(&mut self, port: PortId, first: u64, pages: u64) -> Result<SegmentId, SegmentError> {
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

    pub(crate) fn remove(&mut self, id: SegmentId) {
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

    /// The live segment of `port` that holds a byte, where `near` is likely to be it: one look if it is, a search if not.
    /// Segments do not overlap, so it is the same one.
    pub(crate) fn holding_near(
        &self,
        near: Option<SegmentId>,
        port: PortId,
        address: VirtAddr,
    ) -> Option<SegmentId> {
        let page = address.page_number();
        let is_it = |id: &SegmentId| {
            let segment = self.table.get(index_of(*id) as usize);
            segment.is_some_and(|segment| {
                u32::from(segment.generation) == id.0 >> 16
                    && segment.state == State::Live
                    && segment.port == port
                    && page.wrapping_sub(segment.first) < segment.pages
                    && address.0 >> 60 == 0
            })
        };
        near.filter(is_it)
            .or_else(|| Some(self.holding(port, address, 1)?.0))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    struct Heap;

    impl Storage for Heap {
        type Table<T: 'static> = Box<[T]>;
    }

    impl MakeTable for Heap {
        fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
            (0..len).map(make).collect()
        }
    }

    proptest::proptest! {
        /// Segments come and go; whatever is said to be near, the answer is that of the search.
        #[test]
        fn what_is_near_changes_no_answer(ops in proptest::collection::vec((0u8..4, 1u16..3, 0u64..12, 1u64..4), 1..60)) {
            let mut segments = Segments::new(&mut Heap, 8, 4);
            let mut ids: Vec<SegmentId> = Vec::new();
            for (what, port, page, pages) in ops {
                let port = PortId(port);
                if what == 0 && let Some(id) = ids.get(page as usize % ids.len().max(1)) {
                    segments.remove(*id);
                } else if what == 1 && let Some(id) = ids.get(page as usize % ids.len().max(1)) {
                    if let Some(segment) = segments.get(*id) {
                        segment.state = State::Ending;
                    }
                } else {
                    ids.extend(segments.insert(port, page, pages));
                }
                for near in ids.iter().copied().map(Some).chain([None]) {
                    for page in 0..16 {
                        let address = VirtAddr(page * u64::from(PAGE_SIZE) + 5);
                        let searched = segments.holding(port, address, 1).map(|(id, _)| id);
                        proptest::prop_assert_eq!(segments.holding_near(near, port, address), searched);
                    }
                }
            }
        }
    }
}
