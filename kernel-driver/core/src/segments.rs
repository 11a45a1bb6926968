//! Registered ranges: the unit of mapping (thesis 4.1).
use crate::Progress;
use crate::attach::Host;
use crate::platform::{PageGone, Platform};
use netvm_abi::storage::Storage;
use netvm_abi::{Nanos, PortId, SegmentId, VirtAddr};

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
    /// The table is full.
    TableFull,
    /// The port has no such segment.
    NoSuchSegment,
}

/// The end of a segment, driven by [`Host::unregister_step`].
#[derive(Debug)]
#[must_use = "a segment ends by steps"]
pub struct Unregister {
    /// The segment.
    pub segment: SegmentId,
}

impl<S: Storage> Host<S> {
    /// Registers a page-granular range of a port. Maps nothing: the cost does not grow with `len`
    /// (bytes).
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn register(&mut self, port: PortId, start: VirtAddr, len: u64) -> Result<SegmentId, SegmentError> {
        let _ = (port, start, len);
        Err(SegmentError::NoSuchPort)
    }

    /// The segment that holds an address of a port, and the offset in it in bytes.
    #[must_use]
    pub fn locate(&self, port: PortId, address: VirtAddr) -> Option<(SegmentId, u64)> {
        let _ = (port, address);
        None
    }

    /// Begins to end a segment: its exports end, its pages are unmapped.
    ///
    /// # Errors
    /// [`SegmentError::NoSuchSegment`].
    pub fn unregister_begin<P: Platform>(
        &mut self,
        platform: &mut P,
        port: PortId,
        segment: SegmentId,
        now: Nanos,
    ) -> Result<Unregister, SegmentError> {
        let _ = (platform.bar(), port, now);
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
        let _ = (platform.bar(), unregister, now, budget, gone);
        Progress::Done
    }
}
