//! A port's paging worker: pages in what the card missed, and empties bounce pages with one copy (thesis 5.6).

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

use netvm_abi::{PortId, Status, Vpn};
use netvm_host::Host;
use netvm_host::platform::{Access, CopyEnd, CopyJob, Direction, PageGone, Resident};
use netvm_host_platform::{System, paging};

use crate::copy;
use crate::driver::{HostSide, ppn_of};
use crate::memory::Heap;
use crate::vm::{FaultError, Intent, PAGE_SIZE, Pager, PinnedPage};

/// Serves a port until it is closed.
pub(crate) fn run(host: &HostSide, pager: &Pager, port: PortId, closed: &AtomicBool) {
    let Some(work) = host.work.get(port.index()) else {
        return;
    };
    let memory = Memory { host, pager, port };
    while !closed.load(Ordering::Acquire) && !host.stop.load(Ordering::Acquire) {
        let token = work.token();
        if paging::serve_one(&memory).is_none() {
            work.wait(token, None);
        }
    }
    // No work is in hand. What comes now finds the port closed in the core.
    while paging::serve_one(&memory).is_some() {}
}

/// A page in its frame, where it is held from page-in to the end of the copy: so it is neither evicted while it is copied to nor
/// before it is mapped.
struct Held {
    vpn: Vpn,
    page: PinnedPage,
}

/// A port's memory, as its worker reaches it.
struct Memory<'a> {
    host: &'a HostSide,
    pager: &'a Pager,
    port: PortId,
}

impl paging::Pager for Memory<'_> {
    type System = HostSide;
    type Page = Held;
    type Wait = Infallible;

    fn system(&self) -> &HostSide {
        self.host
    }

    fn port(&self) -> PortId {
        self.port
    }

    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Held, Status>, Infallible> {
        let Some(key) = self.host.places.page(vpn) else {
            return Ok(Err(Status::Unmapped));
        };
        let intent = match access {
            Access::Read => Intent::Read,
            Access::Write => Intent::Write,
        };
        let held = self.pager.fault_in(key, intent).map(|page| Held { vpn, page });
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
        // SAFETY: the page is held in its frame, so its alias is readable and writable for a page, as is the bounce page; the
        // bytes lie inside of both (just checked), and no references to either exist.
        unsafe {
            let inside = page.alias().add(offset);
            match job.direction {
                Direction::IntoPage => copy::copy_shared(bounce, inside, len),
                Direction::OutOfPage => copy::copy_shared(inside, bounce, len),
            }
        }
        if job.direction == Direction::IntoPage {
            page.mark_dirty();
        }
        Ok(CopyEnd::Done)
    }

    fn offer(&self, held: &mut Held) -> Option<Resident> {
        Some(Resident {
            ppn: ppn_of(held.page.frame()),
            frame: 0,
            writable: held.page.writable(),
        })
    }

    fn prepare(&self, held: &mut Held, _: &mut Host<Heap>) {
        self.host.before_publishing(held.page.frame());
    }

    fn settle(&self, held: &mut Held, host: &Host<Heap>, _: bool) {
        self.host.after_publishing(host, held.vpn, held.page.frame());
    }

    fn page_gone(&self, gone: PageGone, held: Option<&Held>) {
        match held {
            Some(held) => self.host.gone_for(held.page.frame(), gone),
            None => self.host.page_gone(gone),
        }
    }
}
