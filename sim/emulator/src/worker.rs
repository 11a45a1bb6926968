//! A port's paging worker: pages in what the card missed, and empties bounce pages with one copy (thesis 5.6).

use std::sync::atomic::{AtomicBool, Ordering};

use netvm_abi::{PortId, Status, Vpn};
use netvm_host::paging::WorkStep;
use netvm_host::platform::{Access, CopyEnd, CopyJob, Direction, PageGone, Resident};

use crate::copy;
use crate::driver::{HostSide, ppn_of};
use crate::vm::{FaultError, Intent, PAGE_SIZE, Pager, PinnedPage};

/// Serves a port until it is closed.
pub(crate) fn run(host: &HostSide, pager: &Pager, port: PortId, closed: &AtomicBool) {
    let Some(work) = host.work.get(port.index()) else {
        return;
    };
    while !closed.load(Ordering::Acquire) && !host.stop.load(Ordering::Acquire) {
        let token = work.token();
        if !serve(host, pager, port) {
            work.wait(token, None);
        }
    }
    // What is in hand was finished by `serve`; what comes now finds the port closed in the core.
    while serve(host, pager, port) {}
}

/// Does one piece of work to its end. False if there is none.
fn serve(host: &HostSide, pager: &Pager, port: PortId) -> bool {
    let Some(mut step) = host.with(|core, glue, now| core.work_next(glue, port, now)) else {
        return false;
    };
    // Held from page-in to the end of the copy, so that it is neither evicted while it is copied to nor before it is mapped.
    let mut held: Option<(Vpn, PinnedPage)> = None;
    loop {
        step = match step {
            WorkStep::PageIn { id, vpn, access } => {
                drop(held.take());
                let result = page_in(host, pager, vpn, access);
                match result {
                    Ok(page) => {
                        let resident = Resident {
                            ppn: ppn_of(page.frame()),
                            frame: 0,
                            writable: page.writable(),
                        };
                        let next = host.publishing(vpn, page.frame(), |core, glue, now, gone| {
                            core.work_paged(glue, id, Ok(Some(resident)), now, &mut |page: PageGone| {
                                gone(page)
                            })
                        });
                        held = Some((vpn, page));
                        next
                    }
                    Err(status) => host.with(|core, glue, now| {
                        core.work_paged(glue, id, Err(status), now, &mut |page| host.page_gone(page))
                    }),
                }
            }
            WorkStep::Copy { id, job } => {
                let end = copy_bounce(host, held.as_ref(), &job);
                match held.as_ref().filter(|(vpn, _)| *vpn == job.vpn) {
                    Some((vpn, page)) => host.publishing(*vpn, page.frame(), |core, glue, now, gone| {
                        core.work_copied(glue, id, end, now, &mut |page: PageGone| gone(page))
                    }),
                    None => host.with(|core, glue, now| {
                        core.work_copied(glue, id, end, now, &mut |page| host.page_gone(page))
                    }),
                }
            }
            WorkStep::Ended { .. } => return true,
        };
    }
}

fn page_in(host: &HostSide, pager: &Pager, vpn: Vpn, access: Access) -> Result<PinnedPage, Status> {
    let key = host.places.page(vpn).ok_or(Status::Unmapped)?;
    let intent = match access {
        Access::Read => Intent::Read,
        Access::Write => Intent::Write,
    };
    pager.fault_in(key, intent).map_err(|error| match error {
        FaultError::Gone => Status::Unmapped,
        FaultError::NoFrame => Status::NoMemory,
        FaultError::Swap(_) | FaultError::Kernel(_) => Status::BusError,
    })
}

fn copy_bounce(host: &HostSide, held: Option<&(Vpn, PinnedPage)>, job: &CopyJob) -> CopyEnd {
    let Some((_, page)) = held.filter(|(vpn, _)| *vpn == job.vpn) else {
        return CopyEnd::Evicted;
    };
    let (offset, len) = (job.offset.index(), job.len.index());
    let bounce = host.with(|_, glue, _| glue.bounce.page(job.bounce.0));
    let Some(bounce) = bounce.filter(|_| offset + len <= PAGE_SIZE) else {
        return CopyEnd::Failed(Status::Malformed);
    };
    // SAFETY: the page is held in its frame, so its alias is readable and writable for a page, as is the bounce page; the bytes
    // lie inside of both (just checked), and no references to either exist.
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
    CopyEnd::Done
}
