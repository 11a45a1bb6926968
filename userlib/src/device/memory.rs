//! Registered memory of the process.

use super::map::Mapping;
use super::port::Port;
use crate::backend::{Memory, View, Width};
use crate::mapped::Mapped;
use netvm_abi::ioctl::Disown;
use netvm_abi::{SegmentId, Status, VirtAddr};
use std::any::Any;
use std::sync::{Arc, Weak};

/// A segment of a port.
pub(super) struct Segment {
    pub(super) port: Weak<Port>,
    pub(super) segment: SegmentId,
    /// Kept by `owner`, or by the caller of `adopt`, as that has promised.
    pub(super) memory: Mapped,
    /// Its memory, if the library made it; what was adopted is the caller's.
    pub(super) owner: Option<Arc<Mapping>>,
}

impl Memory for Segment {
    fn segment(&self) -> SegmentId {
        self.segment
    }

    fn address(&self) -> VirtAddr {
        VirtAddr(self.memory.start().as_ptr().expose_provenance() as u64)
    }

    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn view(&self) -> View {
        if self.memory.may_vanish() {
            return View::Indirect;
        }
        let owner: Arc<dyn Any + Send + Sync> = match &self.owner {
            Some(mapping) => mapping.clone(),
            None => Arc::new(()),
        };
        View::Mapped {
            start: self.memory.start(),
            owner,
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        self.memory.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Status> {
        self.memory.write(offset, from)
    }

    fn load(&self, offset: u64, width: Width) -> Result<u64, Status> {
        self.memory.load(offset, width)
    }

    fn store(&self, offset: u64, width: Width, value: u64) -> Result<(), Status> {
        self.memory.store(offset, width, value)
    }

    fn compare_swap(&self, offset: u64, width: Width, expected: u64, new: u64) -> Result<u64, Status> {
        self.memory.compare_swap(offset, width, expected, new)
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
