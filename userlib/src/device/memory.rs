//! Registered memory of the process.

use super::map::Mapping;
use super::port::Port;
use crate::backend::{Memory, View, Width};
use crate::copy;
use netvm_abi::ioctl::Disown;
use netvm_abi::{SegmentId, Status, VirtAddr};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A segment of a port.
pub(super) struct Segment {
    pub(super) port: Weak<Port>,
    pub(super) segment: SegmentId,
    pub(super) start: NonNull<u8>,
    pub(super) len: u64,
    /// Its memory, if the library made it; what was adopted is the caller's.
    pub(super) owner: Option<Arc<Mapping>>,
}

// SAFETY: the pointer is only used for copies and atomics inside of memory that stays: `owner` keeps it, or the caller of
// `adopt` has promised it.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Where `len` bytes at `offset` are.
    fn at(&self, offset: u64, len: u64) -> Result<*mut u8, Status> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Status::OutOfRange);
        }
        // SAFETY: inside of the memory, as just checked.
        Ok(unsafe { self.start.as_ptr().add(offset as usize) })
    }

    fn word(&self, offset: u64, width: Width) -> Result<*mut u8, Status> {
        let at = self.at(offset, width.bytes())?;
        if (at.addr() as u64).is_multiple_of(width.bytes()) {
            Ok(at)
        } else {
            Err(Status::OutOfRange)
        }
    }
}

impl Memory for Segment {
    fn segment(&self) -> SegmentId {
        self.segment
    }

    fn address(&self) -> VirtAddr {
        VirtAddr(self.start.as_ptr().expose_provenance() as u64)
    }

    fn size(&self) -> u64 {
        self.len
    }

    fn view(&self) -> View {
        let owner: Arc<dyn Any + Send + Sync> = match &self.owner {
            Some(mapping) => mapping.clone(),
            None => Arc::new(()),
        };
        View::Mapped {
            start: self.start,
            owner,
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        let at = self.at(offset, into.len() as u64)?;
        // SAFETY: so many bytes are there.
        unsafe { copy::copy_out(at, into) };
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Status> {
        let at = self.at(offset, from.len() as u64)?;
        // SAFETY: as above.
        unsafe { copy::copy_in(from, at) };
        Ok(())
    }

    fn load(&self, offset: u64, width: Width) -> Result<u64, Status> {
        let at = self.word(offset, width)?;
        // SAFETY: aligned, inside, and reached through atomics and copies only.
        Ok(unsafe {
            match width {
                Width::Word32 => u64::from(AtomicU32::from_ptr(at.cast()).load(Ordering::Acquire)),
                Width::Word64 => AtomicU64::from_ptr(at.cast()).load(Ordering::Acquire),
            }
        })
    }

    fn store(&self, offset: u64, width: Width, value: u64) -> Result<(), Status> {
        let at = self.word(offset, width)?;
        // SAFETY: as above.
        unsafe {
            match width {
                Width::Word32 => AtomicU32::from_ptr(at.cast()).store(value as u32, Ordering::Release),
                Width::Word64 => AtomicU64::from_ptr(at.cast()).store(value, Ordering::Release),
            }
        }
        Ok(())
    }

    fn compare_swap(&self, offset: u64, width: Width, expected: u64, new: u64) -> Result<u64, Status> {
        let at = self.word(offset, width)?;
        let (yes, no) = (Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: as above.
        Ok(unsafe {
            match width {
                Width::Word32 => {
                    let word = AtomicU32::from_ptr(at.cast());
                    let old = word.compare_exchange(expected as u32, new as u32, yes, no);
                    u64::from(old.unwrap_or_else(|other| other))
                }
                Width::Word64 => {
                    let old = AtomicU64::from_ptr(at.cast()).compare_exchange(expected, new, yes, no);
                    old.unwrap_or_else(|other| other)
                }
            }
        })
    }

    fn free(&self) {
        // A port that is closed has no segments left.
        let Some(calls) = self.port.upgrade().and_then(|port| port.calls().ok()) else {
            return;
        };
        let mut disown = Disown {
            segment: self.segment.0,
            ..Disown::default()
        };
        let _ = calls.disown(&mut disown);
    }
}
