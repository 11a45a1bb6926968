//! The frame table: which page lies in which numbered frame, as the card's DMA sees it.
//!
//! A frame number is not an address. It is given out again at once when its page goes (last freed, first used), to a page that
//! lies anywhere else, so a card that keeps using a number after its page was taken away hits another page's memory, as it would
//! on hardware; here it is caught. Each DMA looks its frame up when it starts, and again when it ends: a frame that is free, that
//! the host has not put into the card's table, or that changed hands in between aborts the process with a P1 report.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{PageIndex, PageKey, RegionId};

/// A frame of one node, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u32);

/// The host has published this frame to the card.
const NIC_MAPPED: u32 = 1;
/// The card wrote the page: told by the host core, which may learn it outside an eviction (a displaced table row).
const DIRTY: u32 = 2;
/// The card used the page, told likewise.
const REFERENCED: u32 = 4;

/// Owner word: region in the upper 24 bits, page in the lower 40.
const PAGE_BITS: u32 = 40;

/// None lies on two cache lines.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Cell {
    /// Where the page lies in the alias mapping; 0 for a free frame.
    alias: AtomicUsize,
    owner: AtomicU64,
    generation: AtomicU32,
    flags: AtomicU32,
}

/// The frames of one node.
#[derive(Debug)]
pub struct FrameTable {
    cells: Box<[Cell]>,
}

/// A DMA that was let through: where to copy, and what to compare with at its end.
#[derive(Clone, Copy, Debug)]
pub struct DmaTicket {
    frame: Frame,
    alias: usize,
    generation: u32,
}

impl DmaTicket {
    /// Address of the page in the alias mapping.
    #[must_use]
    pub fn alias(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.alias)
    }
}

/// A DMA reached a frame that it must not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleFrame {
    /// No such frame.
    Unknown(Frame),
    /// The frame is free.
    Free(Frame),
    /// The frame holds a page that the card may not use (any more).
    NotMapped(Frame, PageKey),
    /// The frame was freed, and perhaps given to this page, while the DMA ran.
    Reassigned(Frame, Option<PageKey>),
}

impl std::fmt::Display for StaleFrame {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(frame) => write!(out, "DMA to frame {}, which does not exist", frame.0),
            Self::Free(frame) => write!(out, "DMA to frame {}, which is free", frame.0),
            Self::NotMapped(frame, key) => write!(
                out,
                "DMA to frame {}, which holds page {} of region {} and is not mapped for the card",
                frame.0, key.page.0, key.region.0
            ),
            Self::Reassigned(frame, Some(key)) => write!(
                out,
                "frame {} was given to page {} of region {} while a DMA ran on it",
                frame.0, key.page.0, key.region.0
            ),
            Self::Reassigned(frame, None) => write!(out, "frame {} was freed while a DMA ran on it", frame.0),
        }
    }
}

impl FrameTable {
    /// A table of `count` free frames.
    #[must_use]
    pub fn new(count: u32) -> Self {
        Self {
            cells: (0..count).map(|_| Cell::default()).collect(),
        }
    }

    /// The number of frames.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.cells.len() as u32
    }

    /// True for a table without frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn cell(&self, frame: Frame) -> Option<&Cell> {
        self.cells.get(frame.0 as usize)
    }

    /// Called by the pager when it gives a frame to a page. `alias` is the page's address in the alias mapping.
    pub(crate) fn assign(&self, frame: Frame, key: PageKey, alias: usize) {
        if let Some(cell) = self.cell(frame) {
            cell.owner.store(
                u64::from(key.region.0) << PAGE_BITS | key.page.0,
                Ordering::Relaxed,
            );
            cell.flags.store(0, Ordering::Relaxed);
            cell.generation.fetch_add(1, Ordering::Relaxed);
            cell.alias.store(alias, Ordering::Release);
        }
    }

    /// Called by the pager before it takes a page's memory away.
    pub(crate) fn release(&self, frame: Frame) {
        if let Some(cell) = self.cell(frame) {
            cell.alias.store(0, Ordering::Relaxed);
            cell.flags.store(0, Ordering::Relaxed);
            cell.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// The page in a frame; `None` for a free or unknown frame.
    #[must_use]
    pub fn owner(&self, frame: Frame) -> Option<PageKey> {
        let cell = self.cell(frame)?;
        if cell.alias.load(Ordering::Acquire) == 0 {
            return None;
        }
        let owner = cell.owner.load(Ordering::Relaxed);
        Some(PageKey {
            region: RegionId((owner >> PAGE_BITS) as u32),
            page: PageIndex(owner & ((1 << PAGE_BITS) - 1)),
        })
    }

    /// The host is about to publish this frame to the card.
    pub fn set_mapped(&self, frame: Frame) {
        self.raise(frame, NIC_MAPPED);
    }

    /// The host has taken the frame from the card: no DMA to it runs, and none will start.
    pub fn clear_mapped(&self, frame: Frame) {
        if let Some(cell) = self.cell(frame) {
            cell.flags.fetch_and(!NIC_MAPPED, Ordering::AcqRel);
        }
    }

    /// True while the frame is published to the card.
    #[must_use]
    pub fn is_mapped(&self, frame: Frame) -> bool {
        self.cell(frame)
            .is_some_and(|cell| cell.flags.load(Ordering::Acquire) & NIC_MAPPED != 0)
    }

    /// The card has written the page.
    pub fn mark_dirty(&self, frame: Frame) {
        self.raise(frame, DIRTY);
    }

    /// The card has used the page.
    pub fn mark_referenced(&self, frame: Frame) {
        self.raise(frame, REFERENCED);
    }

    pub(super) fn take_dirty(&self, frame: Frame) -> bool {
        self.take(frame, DIRTY)
    }

    pub(super) fn take_referenced(&self, frame: Frame) -> bool {
        self.take(frame, REFERENCED)
    }

    fn raise(&self, frame: Frame, flag: u32) {
        if let Some(cell) = self.cell(frame) {
            cell.flags.fetch_or(flag, Ordering::AcqRel);
        }
    }

    fn take(&self, frame: Frame, flag: u32) -> bool {
        let Some(cell) = self.cell(frame) else {
            return false;
        };
        cell.flags.load(Ordering::Acquire) & flag != 0
            && cell.flags.fetch_and(!flag, Ordering::AcqRel) & flag != 0
    }

    /// A DMA to this frame may start soon: asks for what [`Self::begin_dma`] looks at.
    #[inline]
    pub(crate) fn expect_dma(&self, frame: Frame) {
        if let Some(cell) = self.cell(frame) {
            netvm_memory::copy::expect_read(cell);
        }
    }

    /// A DMA starts: where does the frame's page lie?
    ///
    /// # Errors
    /// The promise that is broken when the frame may not be reached.
    #[inline]
    pub fn begin_dma(&self, frame: Frame) -> Result<DmaTicket, StaleFrame> {
        let cell = self.cell(frame).ok_or(StaleFrame::Unknown(frame))?;
        let generation = cell.generation.load(Ordering::Acquire);
        let alias = cell.alias.load(Ordering::Acquire);
        match self.owner(frame) {
            None => Err(StaleFrame::Free(frame)),
            Some(key) if cell.flags.load(Ordering::Acquire) & NIC_MAPPED == 0 => {
                Err(StaleFrame::NotMapped(frame, key))
            }
            Some(_) => Ok(DmaTicket {
                frame,
                alias,
                generation,
            }),
        }
    }

    /// A DMA has copied its bytes: was the frame its page's all the time?
    ///
    /// # Errors
    /// The promise that is broken when it was not.
    #[inline]
    pub fn end_dma(&self, ticket: &DmaTicket) -> Result<(), StaleFrame> {
        let cell = self.cell(ticket.frame).ok_or(StaleFrame::Unknown(ticket.frame))?;
        let same = cell.alias.load(Ordering::Acquire) == ticket.alias
            && cell.generation.load(Ordering::Acquire) == ticket.generation
            && cell.flags.load(Ordering::Acquire) & NIC_MAPPED != 0;
        if same {
            Ok(())
        } else {
            Err(StaleFrame::Reassigned(ticket.frame, self.owner(ticket.frame)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(region: u32, page: u64) -> PageKey {
        PageKey {
            region: RegionId(region),
            page: PageIndex(page),
        }
    }

    #[test]
    fn a_frame_serves_dma_only_while_it_is_mapped() {
        let table = FrameTable::new(2);
        let frame = Frame(1);
        assert_eq!(table.begin_dma(frame).unwrap_err(), StaleFrame::Free(frame));
        assert_eq!(
            table.begin_dma(Frame(2)).unwrap_err(),
            StaleFrame::Unknown(Frame(2))
        );
        table.assign(frame, key(3, 9), 0x7000);
        assert_eq!(
            table.begin_dma(frame).unwrap_err(),
            StaleFrame::NotMapped(frame, key(3, 9))
        );
        table.set_mapped(frame);
        let ticket = table.begin_dma(frame).unwrap();
        assert_eq!(ticket.alias().addr(), 0x7000);
        assert_eq!(table.end_dma(&ticket), Ok(()));
    }

    #[test]
    fn a_dma_that_outlives_its_mapping_is_seen_even_when_the_frame_returns_to_the_same_page() {
        let table = FrameTable::new(1);
        let frame = Frame(0);
        table.assign(frame, key(0, 5), 0x1000);
        table.set_mapped(frame);
        let ticket = table.begin_dma(frame).unwrap();
        table.clear_mapped(frame);
        assert_eq!(
            table.end_dma(&ticket),
            Err(StaleFrame::Reassigned(frame, Some(key(0, 5))))
        );
        table.release(frame);
        assert_eq!(table.end_dma(&ticket), Err(StaleFrame::Reassigned(frame, None)));
        table.assign(frame, key(0, 5), 0x1000);
        table.set_mapped(frame);
        assert_eq!(
            table.end_dma(&ticket),
            Err(StaleFrame::Reassigned(frame, Some(key(0, 5))))
        );
    }

    #[test]
    fn dirt_and_references_are_taken_once_and_do_not_survive_the_page() {
        let table = FrameTable::new(1);
        let frame = Frame(0);
        table.assign(frame, key(0, 0), 0x1000);
        table.mark_dirty(frame);
        table.mark_referenced(frame);
        assert!(table.take_dirty(frame) && !table.take_dirty(frame));
        assert!(table.take_referenced(frame) && !table.take_referenced(frame));
        table.mark_dirty(frame);
        table.release(frame);
        table.assign(frame, key(0, 1), 0x2000);
        assert!(!table.take_dirty(frame));
    }
}
