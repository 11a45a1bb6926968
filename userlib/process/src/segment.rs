//! A registered region of a port ([`netvm::backend::Memory`]).

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use netvm::backend::{Memory, View, Width};
use netvm::mapped::Mapped;
use netvm_abi::{SegmentId, Status, VirtAddr};
use netvm_host::ports::OpenPort;
use netvm_host_platform::System;

use crate::machine::{self, Area, Machine, Whole};
use crate::node::NodeParts;

/// Pages that one step of a control call deals with while it holds the driver's lock.
const STEP_PAGES: u32 = 256;

/// What keeps a region's memory: the memory goes before what the node belongs to.
struct Kept {
    _area: Arc<dyn Any + Send + Sync>,
    _node: Arc<dyn Any + Send + Sync>,
    _whole: Arc<dyn Whole>,
}

/// A registered region.
pub(crate) struct Segment<M: Machine, R> {
    /// Keeps the memory mapped.
    owner: Arc<dyn Any + Send + Sync>,
    parts: Arc<NodeParts<M, R>>,
    open: OpenPort,
    segment: SegmentId,
    /// Kept by `owner`.
    memory: Mapped,
    address: VirtAddr,
}

impl<M: Machine, R: machine::Memory<M>> Segment<M, R> {
    pub(crate) fn new(
        (parts, whole): (&Arc<NodeParts<M, R>>, &Arc<dyn Whole>),
        (open, segment): (OpenPort, SegmentId),
        area: Area,
        len: u64,
    ) -> Self {
        Self {
            // SAFETY: `owner` keeps it, mapped for both, or the guard is in place; no references to it exist.
            memory: unsafe {
                if area.may_vanish {
                    Mapped::vanishing(area.start, len)
                } else {
                    Mapped::new(area.start, len)
                }
            },
            address: address_of(area.start),
            owner: Arc::new(Kept {
                _area: area.owner,
                _node: Arc::clone(parts) as Arc<dyn Any + Send + Sync>,
                _whole: Arc::clone(whole),
            }),
            parts: Arc::clone(parts),
            open,
            segment,
        }
    }
}

/// A pointer as the card's tables know it.
pub(crate) fn address_of(start: NonNull<u8>) -> VirtAddr {
    VirtAddr(start.as_ptr().expose_provenance() as u64)
}

impl<M: Machine, R: machine::Memory<M>> Memory for Segment<M, R> {
    fn segment(&self) -> SegmentId {
        self.segment
    }

    fn address(&self) -> VirtAddr {
        self.address
    }

    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn view(&self) -> View {
        if self.memory.may_vanish() {
            return View::Indirect;
        }
        View::Mapped {
            start: self.memory.start(),
            owner: Arc::clone(&self.owner),
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
        // A closed port has no segments left, and a later owner of its number must not lose one.
        let host = &self.parts.host;
        if !host.machine.is_ours() || !self.parts.is_open(self.open) {
            return;
        }
        let begun = host.with(|core, _, _| core.unregister_begin(self.open.port, self.segment));
        let Ok(mut unregister) = begun else { return };
        host.drive(|core, glue, now| {
            core.unregister_step(glue, &mut unregister, now, STEP_PAGES, &mut |gone| {
                host.page_gone(gone)
            })
        });
    }
}
