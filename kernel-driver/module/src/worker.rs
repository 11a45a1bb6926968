// SPDX-License-Identifier: GPL-2.0

//! A port's worker: bounced messages and pages that the card missed (thesis 5.6).
//!
//! A page is brought in by HMM, as a fault of the process would; then the bytes are copied through the
//! process' own page table, without faulting: if the page has gone again meanwhile, the copy says so and
//! the page is brought in again. So a process that answers its page faults late, or never
//! (userfaultfd), holds up nobody: HMM does not wait for it.
//!
//! After a piece of work its neighbours are looked at, without faulting: those that are there are
//! mapped too (fault-around).

use crate::event::Thread;
use crate::pages::{page_gone, Chunk, Frame, CHUNK_PAGES};
use crate::port::Port;
use crate::shim;
use core::ffi::{c_int, c_void};
use kernel::sync::Arc;
use netvm_abi::page_table::ROW_SLOTS;
use netvm_abi::{Nanos, Ppn, Status, Vpn};
use netvm_host::paging::WorkStep;
use netvm_host::platform::{Access, CopyEnd, CopyJob, Direction, PageGone, Resident};
use netvm_host::shadow::MapTicket;
use netvm_host::unmap::UnmapKind;
use netvm_host::Host;

use crate::card::Glue;
use crate::tables::Tables;

/// Pages that are looked at around a page that was missed: a power of two.
const AROUND: u64 = 16;
const PAGE_SHIFT: u32 = 12;
/// Frame number, without the flags of `nv_pages_look`.
const PFN: usize = (1 << 52) - 1;

/// What the card is told by where it cannot reach a page.
const NOWHERE: u64 = u64::MAX;

/// The body of a worker's thread.
///
/// # Safety
/// `port` is a [`Port`], which outlives the thread.
pub(crate) unsafe extern "C" fn body(port: *mut c_void) -> c_int {
    // SAFETY: as promised.
    let port = unsafe { &*port.cast::<Port>() };
    let Some(work) = port.card.work.get(port.number().index()) else {
        return 0;
    };
    while !Thread::should_stop() {
        let seen = work.count();
        if port.card.with(|host, _, _| host.has_work(port.number())) {
            serve(port);
        } else {
            work.thread_wait(seen, u64::MAX);
        }
    }
    0
}

/// A page that was brought in, as it was then.
struct Found {
    vpn: Vpn,
    chunk: Arc<Chunk>,
    seq: usize,
    resident: Resident,
}

impl Found {
    fn bus(&self) -> u64 {
        self.resident.ppn.0 << PAGE_SHIFT
    }
}

/// Does all the work that there is, in the process' address space, with the process kept from ending.
fn serve(port: &Port) {
    // SAFETY: the address space's structure lives as long as the port.
    let lives = unsafe { shim::nv_mm_get(port.mm()) };
    if !lives {
        while one(port, false) {}
        return;
    }
    // SAFETY: the process is kept from ending, and this is a kernel thread. To change address spaces costs
    // more than a copy: once for all that waits.
    unsafe { shim::nv_mm_use(port.mm()) };
    while one(port, true) {}
    // SAFETY: in use and taken above. The reference may be the last: then the process' memory ends here, and
    // the notifiers are called, for which no lock is held.
    unsafe {
        shim::nv_mm_unuse(port.mm());
        shim::nv_mm_put(port.mm());
    }
}

/// Does one piece of work to its end. False if there is none.
fn one(port: &Port, lives: bool) -> bool {
    let card = &*port.card;
    let first = card.with(|host, glue, now| host.work_next(glue, port.number(), now));
    let Some(mut step) = first else {
        return false;
    };
    let mut found: Option<Found> = None;
    loop {
        step = match step {
            WorkStep::PageIn { id, vpn, access } => {
                forget(port, found.take());
                match page_in(port, lives, vpn, access) {
                    Ok(page) => {
                        let resident = page.resident;
                        let (next, left) = publish(port, page, |host, glue, now, gone| {
                            host.work_paged(glue, id, Ok(Some(resident)), now, &mut |page: PageGone| {
                                gone(page)
                            })
                        });
                        found = left;
                        next
                    }
                    Err(status) => card.with(|host, glue, now| {
                        host.work_paged(glue, id, Err(status), now, &mut |page| page_gone(card, page))
                    }),
                }
            }
            WorkStep::Copy { id, job } => {
                let end = copy(port, lives, &job);
                match found.take() {
                    Some(page) => {
                        let (next, left) = publish(port, page, |host, glue, now, gone| {
                            host.work_copied(glue, id, end, now, &mut |page: PageGone| gone(page))
                        });
                        found = left;
                        next
                    }
                    None => card.with(|host, glue, now| {
                        host.work_copied(glue, id, end, now, &mut |page| page_gone(card, page))
                    }),
                }
            }
            WorkStep::Ended { status } => {
                let vpn = found.as_ref().map(|page| page.vpn);
                forget(port, found);
                if status == Status::Ok {
                    if let Some(vpn) = vpn {
                        around(port, vpn);
                    }
                }
                return true;
            }
        };
    }
}

/// Calls the core in a way that may publish a page. The page comes back if it may be published later
/// still, or only to be told apart; its bus address is the table's where the entry has it.
fn publish<R>(
    port: &Port,
    mut page: Found,
    call: impl FnOnce(&mut Host<Tables>, &mut Glue, Nanos, &mut dyn FnMut(PageGone)) -> R,
) -> (R, Option<Found>) {
    let card = &*port.card;
    let result = card.with(|host, glue, now| {
        if page.chunk.has_moved(page.seq) {
            // The core hears of a lost race as of a page event at this moment: its ticket is void.
            let event = host.unmap_begin(page.vpn, 1, UnmapKind::Remove);
            host.unmap_end(event);
        }
        // One that the entry has from before is another mapping of the same frame.
        let before = host.mapping(page.vpn) == Some(page.resident);
        let result = call(host, glue, now, &mut |gone| page_gone(card, gone));
        let ours = !before && host.mapping(page.vpn) == Some(page.resident);
        if ours {
            page.resident.ppn = Ppn(NOWHERE);
        }
        result
    });
    (result, Some(page))
}

/// Gives the bus address of a page back that was not published.
fn forget(port: &Port, page: Option<Found>) {
    if let Some(page) = page.filter(|page| page.resident.ppn.0 != NOWHERE) {
        // SAFETY: mapped in `page_in`, and not the table's.
        let writable = Frame::of(page.resident.frame).is_writable();
        unsafe { shim::nv_page_unmap(port.card.shim.as_ptr(), page.bus(), writable) }
    }
}

fn page_in(port: &Port, lives: bool, vpn: Vpn, access: Access) -> Result<Found, Status> {
    if !lives {
        return Err(Status::NoSuchPort);
    }
    let write = access == Access::Write;
    let address = vpn.address().0 as usize;
    // SAFETY: the process is kept from ending by the caller; so below.
    let chunk = unsafe { port.watched(vpn.page_number()) }?;
    let (mut seq, mut pfn) = (0, 0);
    // SAFETY: the page lies in the interval's chunk; one entry is asked for.
    let code = unsafe { shim::nv_pages_look(chunk.interval(), address, 1, true, write, &mut seq, &mut pfn) };
    if code != 0 || pfn & shim::PFN_VALID == 0 {
        // SAFETY: as above.
        let reason = unsafe { shim::nv_fault_reason(port.mm(), address, write) };
        return Err(match -reason {
            1 => Status::ReadOnly,
            5 => Status::BusError,
            12 => Status::NoMemory,
            _ => Status::Unmapped,
        });
    }
    let resident = resident(port, pfn).ok_or(Status::BusError)?;
    Ok(Found {
        vpn,
        chunk,
        seq,
        resident,
    })
}

/// Where the card finds a page frame; nothing if it cannot reach it.
fn resident(port: &Port, pfn: usize) -> Option<Resident> {
    // SAFETY: the card lives, and HMM says that there is such a frame. Whether it still is the page's is
    // asked before it is published.
    let frame = Frame::new(pfn & PFN, pfn & shim::PFN_WRITE != 0);
    // SAFETY: as above.
    let bus = unsafe { shim::nv_page_map(port.card.shim.as_ptr(), frame.pfn(), frame.is_writable()) };
    (bus != u64::MAX).then_some(Resident {
        ppn: Ppn(bus >> PAGE_SHIFT),
        frame: frame.raw(),
        writable: frame.is_writable(),
    })
}

fn copy(port: &Port, lives: bool, job: &CopyJob) -> CopyEnd {
    if !lives {
        return CopyEnd::Failed(Status::NoSuchPort);
    }
    let len = job.len.index();
    let address = job.vpn.address().0 as usize + job.offset.index();
    let bounce = port.card.with(|_, glue, _| glue.bounce.page(job.bounce));
    let Some(bounce) = bounce.filter(|_| job.offset.index() + len <= 1 << PAGE_SHIFT) else {
        return CopyEnd::Failed(Status::Malformed);
    };
    if len == 0 {
        return CopyEnd::Done;
    }
    // SAFETY: the caller has the process' address space in use. The bounce page is a page of memory that
    // lives as long as the card; only the card and this thread reach it, and the card does not until it has
    // the answer.
    let code = unsafe {
        match job.direction {
            Direction::IntoPage => shim::nv_copy_in(address, bounce, len),
            Direction::OutOfPage => shim::nv_copy_out(bounce, address, len),
        }
    };
    if code == 0 {
        CopyEnd::Done
    } else {
        CopyEnd::Evicted
    }
}

/// Maps the neighbours of a page that are there (thesis 4.3): no fault is taken.
fn around(port: &Port, vpn: Vpn) {
    let card = &*port.card;
    let first = vpn.page_number() / AROUND * AROUND;
    debug_assert!(CHUNK_PAGES % AROUND == 0);
    let mut tickets: [Option<MapTicket>; AROUND as usize] = [None; AROUND as usize];
    let wanted = card.with(|host, _, _| {
        // A table that is rather full is for pages that are asked for.
        let room = u64::from(host.geometry().page_rows) * u64::from(ROW_SLOTS) / 4 * 3;
        if u64::from(host.mapped_pages()) > room {
            return false;
        }
        let mut wanted = false;
        for (page, ticket) in (first..).zip(tickets.iter_mut()) {
            let vpn = Vpn::new(port.number(), page);
            if host.mapping(vpn).is_none() {
                *ticket = host.map_begin(vpn).ok();
                wanted |= ticket.is_some();
            }
        }
        wanted
    });
    if !wanted {
        return;
    }
    // SAFETY: called while the process is kept from ending.
    let Ok(chunk) = (unsafe { port.watched(first) }) else {
        return;
    };
    let mut seq = 0;
    let mut pfns = [0; AROUND as usize];
    let start = (first as usize) << PAGE_SHIFT;
    // SAFETY: the pages lie in the interval's chunk, and as many entries are there.
    let code = unsafe {
        shim::nv_pages_look(
            chunk.interval(),
            start,
            AROUND as usize,
            false,
            false,
            &mut seq,
            pfns.as_mut_ptr(),
        )
    };
    if code != 0 {
        return;
    }
    for (ticket, pfn) in tickets.into_iter().zip(pfns) {
        let Some(ticket) = ticket.filter(|_| pfn & shim::PFN_VALID != 0) else {
            continue;
        };
        let Some(resident) = resident(port, pfn) else {
            continue;
        };
        let page = Found {
            vpn: ticket.vpn,
            chunk: chunk.clone(),
            seq,
            resident,
        };
        let ((), left) = publish(port, page, |host, glue, _, gone| {
            if let Ok(mapped) = host.map_commit(glue, ticket, resident) {
                mapped.displaced.into_iter().for_each(gone);
            }
        });
        forget(port, left);
    }
}
