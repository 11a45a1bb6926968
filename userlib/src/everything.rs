//! All memory of the process at once, for local operands.
//!
//! The segments of a port do not overlap, so a port that has adopted all has no other. What it stages goes through memory of the heap,
//! which is part of that one segment and stays until the port is closed: a transfer that fails may write to it until then.

use crate::backend::{Memory, Refusal, View, Width};
use crate::error::{Error, Result};
use crate::mapped::Mapped;
use crate::port::{Port, PortInner};
use crate::region::Region;
use netvm_abi::{PAGE_SIZE, SegmentId, Status, VirtAddr};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

impl Port {
    /// Makes a region of all memory that the process has now and later: heap, stacks, mappings, statics. An offset in it is an address.
    /// It is for local operands alone, for what writes take their bytes from and reads put theirs: memory of any kind needs no
    /// registration of its own then. [Exports](Self::export) of it are refused.
    ///
    /// It must be the port's first region, and is its only one: [`alloc`](Self::alloc) and [`adopt`](Self::adopt) are refused from
    /// then on, until the port is closed. What a program exports belongs to another port, which may be of the same node. A second call
    /// gives the same region. The software card can; other back ends refuse and say so.
    ///
    /// # Safety
    /// Any range of it that is given to a transfer is reached by nothing but atomics and the region until the transfer has ended: what a
    /// write takes its bytes from is not changed meanwhile, or some mix arrives; of what a read goes to, no reference exists. A read
    /// that has failed may still write there until the port is closed. What is not mapped, or not writable, is [`Error::Failed`] for the
    /// transfer, as it is with [`adopt`](Self::adopt). Pointers to such memory have their provenance
    /// [exposed](https://doc.rust-lang.org/std/primitive.pointer.html#method.expose_provenance).
    ///
    /// # Errors
    /// [`Error::Refused`] where the back end cannot, or the port has another region; [`Error::PortClosed`].
    pub unsafe fn adopt_all(&self) -> Result<Region> {
        let port = &self.inner;
        port.alive()?;
        if let Some(all) = &*port.everything.lock() {
            return Ok(all.clone());
        }
        // SAFETY: the caller's promise is the one that the back end asks for.
        let memory = unsafe { port.backend.adopt_all() }.map_err(|reason| Error::Refused {
            what: "adopt all memory of the process",
            reason: match reason {
                Refusal::Status(Status::OutOfRange) => Refusal::Unsupported(
                    "the port has other memory: it must be the first and only region of a port of its own",
                ),
                other => other,
            },
        })?;
        let all = Everything(memory);
        let len = all.size();
        let block = Block::new(&all.0, port.staging_size())?;
        let staged = block.size();
        let region = Region::of_everything(Arc::new(all), len, Arc::clone(&port.identity));
        port.give_staging(Region::new(Arc::new(block), staged, Arc::clone(&port.identity)));
        *port.everything.lock() = Some(region.clone());
        Ok(region)
    }
}

impl PortInner {
    /// Whether it may have another region.
    pub(crate) fn may_have_more(&self, what: &'static str) -> Result<()> {
        if self.everything.lock().is_none() {
            return Ok(());
        }
        let reason = Refusal::Unsupported(
            "the port has adopted all memory of the process: what is exported belongs to another port",
        );
        Err(Error::Refused { what, reason })
    }
}

/// All memory of the process. Offsets are addresses.
struct Everything(Arc<dyn Memory>);

impl Everything {
    /// The offset in what the back end has adopted.
    fn offset(&self, address: u64) -> std::result::Result<u64, Status> {
        address.checked_sub(self.0.address().0).ok_or(Status::Unmapped)
    }
}

impl Memory for Everything {
    fn segment(&self) -> SegmentId {
        self.0.segment()
    }

    fn address(&self) -> VirtAddr {
        VirtAddr(0)
    }

    fn size(&self) -> u64 {
        self.0.address().0 + self.0.size()
    }

    fn view(&self) -> View {
        View::Indirect
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> std::result::Result<(), Status> {
        self.0.read(self.offset(offset)?, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> std::result::Result<(), Status> {
        self.0.write(self.offset(offset)?, from)
    }

    fn load(&self, offset: u64, width: Width) -> std::result::Result<u64, Status> {
        self.0.load(self.offset(offset)?, width)
    }

    fn store(&self, offset: u64, width: Width, value: u64) -> std::result::Result<(), Status> {
        self.0.store(self.offset(offset)?, width, value)
    }

    fn compare_swap(
        &self,
        offset: u64,
        width: Width,
        expected: u64,
        new: u64,
    ) -> std::result::Result<u64, Status> {
        self.0.compare_swap(self.offset(offset)?, width, expected, new)
    }

    fn free(&self) {
        self.0.free();
    }
}

/// Memory of the heap that the library itself uses, in the segment of all memory.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
    segment: SegmentId,
    /// Keeps the segment.
    _all: Arc<dyn Memory>,
}

// SAFETY: the memory is the value's own, and reached through copies and atomics only.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(all: &Arc<dyn Memory>, bytes: u64) -> Result<Self> {
        let none = Error::Refused {
            what: "allocate memory for staging",
            reason: Refusal::Status(Status::NoMemory),
        };
        let layout = Layout::from_size_align(bytes as usize, PAGE_SIZE as usize).map_err(|_| none)?;
        if layout.size() == 0 {
            return Err(none);
        }
        // SAFETY: its size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(none)?;
        Ok(Self {
            start,
            layout,
            segment: all.segment(),
            _all: Arc::clone(all),
        })
    }

    const fn mapped(&self) -> Mapped {
        // SAFETY: the memory lives as long as this value, and no reference to it is made.
        unsafe { Mapped::new(self.start, self.layout.size() as u64) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout. The port that it was made for is closed, so the card has let go of it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl Memory for Block {
    fn segment(&self) -> SegmentId {
        self.segment
    }

    fn address(&self) -> VirtAddr {
        VirtAddr(self.start.as_ptr().expose_provenance() as u64)
    }

    fn size(&self) -> u64 {
        self.layout.size() as u64
    }

    fn view(&self) -> View {
        View::Indirect
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> std::result::Result<(), Status> {
        self.mapped().read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> std::result::Result<(), Status> {
        self.mapped().write(offset, from)
    }

    fn load(&self, offset: u64, width: Width) -> std::result::Result<u64, Status> {
        self.mapped().load(offset, width)
    }

    fn store(&self, offset: u64, width: Width, value: u64) -> std::result::Result<(), Status> {
        self.mapped().store(offset, width, value)
    }

    fn compare_swap(
        &self,
        offset: u64,
        width: Width,
        expected: u64,
        new: u64,
    ) -> std::result::Result<u64, Status> {
        self.mapped().compare_swap(offset, width, expected, new)
    }

    fn free(&self) {}
}
