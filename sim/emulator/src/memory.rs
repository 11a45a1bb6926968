//! Memory of the pager as a port's memory: regions, and the port's paging worker (thesis 5.6).

use std::convert::Infallible;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use netvm::backend::Refusal;
use netvm_abi::{PortId, Status, VirtAddr, Vpn};
use netvm_host::Host;
use netvm_host::platform::{Access, CopyEnd, CopyJob, Direction, PageGone, Resident};
use netvm_host::ports::OpenPort;
use netvm_host_platform::{System, paging};
use netvm_process::{Area, HostSide, worker};
use netvm_soft::memory::Heap;
use netvm_soft::transfer::apply;

use crate::copy;
use crate::error::EmulatorError;
use crate::places::{EmulatedCard, Places, ppn_of};
use crate::vm::{FaultError, Intent, PAGE_SIZE, Pager, PinnedPage, RegionId};

/// The memory of one emulated node.
pub(crate) struct EmulatedMemory {
    pub(crate) pager: Arc<Pager>,
    pub(crate) places: Arc<Places>,
}

impl netvm_process::Memory<EmulatedCard> for EmulatedMemory {
    fn alloc(&self, _: &HostSide<EmulatedCard>, port: OpenPort, len: u64) -> Result<Area, Refusal> {
        let pages = len / PAGE_SIZE as u64;
        let (region, start) = self.pager.add_region(pages).map_err(|error| refusal(&error))?;
        let address = VirtAddr(start.expose_provenance() as u64);
        self.places.add(region, port.port, address, pages);
        let owner = Arc::new(RegionOwner {
            pager: Arc::clone(&self.pager),
            region,
        });
        let start = NonNull::new(start).ok_or(Refusal::Status(Status::NoMemory))?;
        Ok(Area {
            start,
            owner,
            may_vanish: false,
        })
    }

    unsafe fn adopt(
        &self,
        _: &HostSide<EmulatedCard>,
        _: PortId,
        _: NonNull<u8>,
        _: u64,
    ) -> Result<Area, Refusal> {
        let text =
            "the emulator exports only memory from `alloc`: it cannot watch page events of other memory";
        Err(Refusal::Unsupported(text))
    }

    fn serve(&self, host: &HostSide<EmulatedCard>, port: OpenPort, closed: &AtomicBool) {
        let port = port.port;
        let memory = PortMemory {
            host,
            memory: self,
            port,
        };
        worker::run(
            host,
            port,
            closed,
            || while paging::serve_one(&memory).is_some() {},
        );
    }
}

/// Keeps a region's memory mapped; gives it back when the last user has gone.
struct RegionOwner {
    pager: Arc<Pager>,
    region: RegionId,
}

impl Drop for RegionOwner {
    fn drop(&mut self) {
        self.pager.remove_region(self.region);
    }
}

/// What the pager can fail with while it serves a program.
fn refusal(error: &EmulatorError) -> Refusal {
    match error {
        EmulatorError::Os { what, errno } => Refusal::System {
            what,
            errno: errno.raw_os_error(),
        },
        EmulatorError::Io { what, source } => netvm_process::refusal::io(what, source),
        EmulatorError::UserfaultfdRefused(errno) => Refusal::System {
            what: "userfaultfd",
            errno: errno.raw_os_error(),
        },
        EmulatorError::UserfaultfdTooOld { .. } => {
            Refusal::Unsupported("this kernel's userfaultfd is too old")
        }
        EmulatorError::PageSize(_) => Refusal::Unsupported("this machine's pages are not of 4096 bytes"),
        EmulatorError::Config(_) => Refusal::Unsupported("the emulator's configuration makes no sense"),
    }
}

/// A page in its frame, where it is held from page-in to the end of the copy: so it is neither evicted while it is copied to nor
/// before it is mapped.
struct Held {
    vpn: Vpn,
    page: PinnedPage,
}

/// A port's memory, as its worker reaches it.
struct PortMemory<'a> {
    host: &'a HostSide<EmulatedCard>,
    memory: &'a EmulatedMemory,
    port: PortId,
}

impl paging::Pager for PortMemory<'_> {
    type System = HostSide<EmulatedCard>;
    type Page = Held;
    type Wait = Infallible;

    fn system(&self) -> &HostSide<EmulatedCard> {
        self.host
    }

    fn port(&self) -> PortId {
        self.port
    }

    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Held, Status>, Infallible> {
        let Some(key) = self.memory.places.page(vpn) else {
            return Ok(Err(Status::Unmapped));
        };
        let intent = match access {
            Access::Read => Intent::Read,
            Access::Write => Intent::Write,
        };
        let held = self
            .memory
            .pager
            .fault_in(key, intent)
            .map(|page| Held { vpn, page });
        Ok(held.map_err(|error| match error {
            FaultError::Gone => Status::Unmapped,
            FaultError::NoFrame => Status::NoMemory,
            FaultError::Swap(_) | FaultError::Kernel(_) => Status::BusError,
        }))
    }

    fn copy(&self, held: Option<&Held>, job: &CopyJob) -> Result<CopyEnd, Infallible> {
        let Some(Held { page, .. }) = held.filter(|held| held.vpn == job.vpn) else {
            return Ok(CopyEnd::Evicted);
        };
        let (offset, len) = (job.offset.index(), job.len.index());
        let bounce = self.host.with(|_, glue, _| glue.bounce.page(job.bounce.0));
        let Some(bounce) = bounce.filter(|_| offset + len <= PAGE_SIZE) else {
            return Ok(CopyEnd::Failed(Status::Malformed));
        };
        let mut end = CopyEnd::Done;
        // SAFETY: the page is held in its frame, so its alias is readable and writable for a page, as is the bounce page; the
        // bytes lie inside of both (just checked), and no references to either exist.
        unsafe {
            let inside = page.alias().add(offset);
            match job.direction {
                Direction::IntoPage => copy::copy_shared(bounce, inside, len),
                Direction::OutOfPage => copy::copy_shared(inside, bounce, len),
                Direction::Apply(atomic) => match apply(inside, &atomic) {
                    Some(result) => end = CopyEnd::Applied(result),
                    None => return Ok(CopyEnd::Failed(Status::Malformed)),
                },
            }
        }
        if job.direction != Direction::OutOfPage {
            page.mark_dirty();
        }
        Ok(end)
    }

    fn offer(&self, held: &mut Held) -> Option<Resident> {
        Some(Resident {
            ppn: ppn_of(held.page.frame()),
            frame: 0,
            writable: held.page.writable(),
        })
    }

    fn prepare(&self, held: &mut Held, _: &mut Host<Heap>) {
        self.host.machine.before_publishing(held.page.frame());
    }

    fn settle(&self, held: &mut Held, host: &Host<Heap>, _: bool) {
        self.host
            .machine
            .after_publishing(host, held.vpn, held.page.frame());
    }

    fn page_gone(&self, gone: PageGone, held: Option<&Held>) {
        match held {
            Some(held) => self.host.machine.gone_for(held.page.frame(), gone),
            None => self.host.page_gone(gone),
        }
    }
}
