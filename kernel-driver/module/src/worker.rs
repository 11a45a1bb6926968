// SPDX-License-Identifier: GPL-2.0

//! A port's worker: bounced messages and pages that the card missed (thesis 5.6).
//!
//! A page is brought in by a fault as the process would take it; then HMM says where it is, and the bytes are copied
//! through the process' own page table, without faulting: if the page has gone again meanwhile, the copy says so and
//! the page is brought in again. A process that answers its page faults itself (userfaultfd) is not waited for. A file's
//! server may be silent for ever: its page is waited for here and by nothing else. The port's end takes the work back
//! and ends the wait if it can; a worker that comes back late finds [`Port::as_worker`] closed.
//!
//! After a piece of work its neighbours are looked at, without faulting: those that are there are
//! mapped too (fault-around).

use crate::errno::{self, Errno};
use crate::host_card::{Glue, HostCard};
use crate::pages::{page_gone, Chunk, Frame, CHUNK_PAGES};
use crate::port::Port;
use crate::shim;
use crate::tables::Tables;
use core::convert::Infallible;
use kernel::sync::Arc;
use netvm_abi::page_table::ROW_SLOTS;
use netvm_abi::{Nanos, PortId, Ppn, Status, Vpn};
use netvm_host::platform::{Access, CopyEnd, CopyJob, Direction, Resident};
use netvm_host::shadow::MapTicket;
use netvm_host::unmap::UnmapKind;
use netvm_host::Host;
use netvm_host_platform::paging;

/// Pages that are looked at around a page that was missed: a power of two.
const AROUND: u64 = 16;
const PAGE_SHIFT: u32 = 12;
/// Frame number, without the flags of `nv_pages_look`.
const PFN: usize = (1 << 52) - 1;

/// Pieces of work that are done before the process is let go for a moment.
const BATCH: u32 = 64;
/// Times that a page is brought in and looked for before it counts as one that does not stay.
const LOOKS: u32 = 8;

/// What a port's thread does until the port ends.
pub(crate) fn body(port: &Port) {
    let Some(work) = port.card.work.get(port.number().index()) else {
        return;
    };
    loop {
        let seen = work.count();
        match port.as_worker(|host, _, _| host.has_work(port.number())) {
            None => return,
            Some(true) => serve(port),
            // The signal that ends it ends this wait, too.
            Some(false) => {
                let _ = work.wait(seen, u64::MAX, true);
            }
        }
    }
}

/// A page that was brought in, as it was then.
struct Found {
    vpn: Vpn,
    chunk: Arc<Chunk>,
    seq: usize,
    /// As `nv_pages_look` tells it.
    pfn: usize,
    /// Where the card finds it, while that mapping is not the table's.
    resident: Option<Resident>,
    /// The table has the same from before, which is another mapping of the frame.
    before: bool,
}

impl Found {
    /// Gives the page an address of the card; nothing if the card cannot reach it. Under the card's lock, while the port
    /// is open: so the card is there.
    fn map(&mut self, card: &HostCard) -> Option<Resident> {
        let frame = Frame::new(self.pfn & PFN, self.pfn & shim::PFN_WRITE != 0);
        // SAFETY: the card lives, and HMM says that there is such a frame. Whether it still is the page's is
        // asked before it is published.
        let bus = unsafe { shim::nv_page_map(card.shim.as_ptr(), frame.pfn(), frame.is_writable()) };
        self.resident = (bus != u64::MAX).then_some(Resident {
            ppn: Ppn(bus >> PAGE_SHIFT),
            frame: frame.raw(),
            writable: frame.is_writable(),
        });
        self.resident
    }

    /// Before a call of the core that may publish it, under the lock.
    fn prepare(&mut self, host: &mut Host<Tables>) {
        self.race(host);
        self.before = self.resident.is_some() && host.mapping(self.vpn) == self.resident;
    }

    /// After that call, still under the lock: the mapping is the table's now, or goes, or is kept for a copy's end.
    fn settle(&mut self, card: &HostCard, host: &Host<Tables>, keep: bool) {
        let Some(resident) = self.resident else {
            return;
        };
        if !self.before && host.mapping(self.vpn) == Some(resident) {
            self.resident = None;
        } else if !keep {
            self.resident = None;
            // SAFETY: mapped in `map`, and not the table's.
            unsafe {
                shim::nv_page_unmap(
                    card.shim.as_ptr(),
                    resident.ppn.0 << PAGE_SHIFT,
                    resident.writable,
                );
            }
        }
    }

    /// The core hears of a lost race as of a page event at this moment: its ticket is void. Under the lock.
    fn race(&self, host: &mut Host<Tables>) {
        if self.chunk.has_moved(self.seq) {
            let event = host.unmap_begin(self.vpn, 1, UnmapKind::Remove);
            host.unmap_end(event);
        }
    }
}

/// What a page-in brings.
enum Paged {
    Found(Found),
    /// It is there, and goes whenever it is looked for: its bytes can be copied, perhaps.
    Elusive,
}

/// Does some of the work that there is, in the process' address space, with the process kept from ending: a process
/// that has died must not stay because work goes on coming.
fn serve(port: &Port) {
    // SAFETY: the address space's structure lives as long as the port.
    let lives = unsafe { shim::nv_mm_get(port.mm()) };
    if lives {
        // SAFETY: the process is kept from ending, and this is a kernel thread. To change address spaces costs
        // more than a copy: once for all of a batch.
        unsafe { shim::nv_mm_use(port.mm()) };
    }
    let memory = Memory { port, lives };
    for _ in 0..BATCH {
        let Some(ended) = paging::serve_one(&memory) else {
            break;
        };
        if let Some(vpn) = ended.vpn.filter(|_| ended.status == Status::Ok) {
            around(port, vpn);
        }
        // SAFETY: a thread of the module without a lock.
        unsafe { shim::nv_yield() };
    }
    if lives {
        // SAFETY: in use and taken above. The reference may be the last: then the process' memory ends here, and
        // the notifiers are called, for which no lock is held.
        unsafe {
            shim::nv_mm_unuse(port.mm());
            shim::nv_mm_put(port.mm());
        }
    }
}

/// A process' memory, as its port's worker reaches it.
struct Memory<'a> {
    port: &'a Port,
    /// The process is kept from ending, and its address space is in use by this thread.
    lives: bool,
}

impl paging::Pager for Memory<'_> {
    type System = HostCard;
    type Page = Paged;
    type Wait = Infallible;

    fn system(&self) -> &HostCard {
        &self.port.card
    }

    fn port(&self) -> PortId {
        self.port.number()
    }

    fn while_open<R>(&self, call: impl FnOnce(&mut Host<Tables>, &mut Glue, Nanos) -> R) -> Option<R> {
        self.port.as_worker(call)
    }

    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Paged, Status>, Infallible> {
        Ok(self.bring_in(vpn, access))
    }

    /// Through the process' page table: `page` is not what is copied, but what may be published.
    fn copy(&self, _: Option<&Paged>, job: &CopyJob) -> Result<CopyEnd, Infallible> {
        Ok(self.copy_once(job))
    }

    fn offer(&self, page: &mut Paged) -> Option<Resident> {
        match page {
            Paged::Found(page) => page.map(&self.port.card),
            Paged::Elusive => None,
        }
    }

    fn prepare(&self, page: &mut Paged, host: &mut Host<Tables>) {
        if let Paged::Found(page) = page {
            page.prepare(host);
        }
    }

    fn settle(&self, page: &mut Paged, host: &Host<Tables>, keep: bool) {
        if let Paged::Found(page) = page {
            page.settle(&self.port.card, host, keep);
        }
    }
}

impl Memory<'_> {
    fn bring_in(&self, vpn: Vpn, access: Access) -> Result<Paged, Status> {
        let port = self.port;
        if !self.lives {
            return Err(Status::NoSuchPort);
        }
        let write = access == Access::Write;
        let address = vpn.address().0 as usize;
        // SAFETY: the process is kept from ending by the caller; so below.
        let chunk = unsafe { port.watched(vpn.page_number()) }?;
        for _ in 0..LOOKS {
            // SAFETY: as above, and no lock is held.
            let fault = || unsafe { shim::nv_page_fault(port.mm(), address, write) };
            match Errno(-port.while_paging(fault)) {
                Errno(0) => {}
                errno::AGAIN => continue,
                errno::INTR => return Err(Status::NoSuchPort),
                errno::FAULT => return Err(Status::Unmapped),
                errno::PERM => return Err(Status::ReadOnly),
                errno::NOMEM => return Err(Status::NoMemory),
                errno::OPNOTSUPP => return Err(Status::Unsupported),
                _ => return Err(Status::BusError),
            }
            let (mut seq, mut pfn) = (0, 0);
            // SAFETY: the page lies in the interval's chunk; one entry is asked for.
            let code = unsafe { shim::nv_pages_look(chunk.interval(), address, 1, &mut seq, &mut pfn) };
            let wanted = shim::PFN_VALID | if write { shim::PFN_WRITE } else { 0 };
            if code == 0 && pfn & wanted == wanted {
                return Ok(Paged::Found(Found {
                    vpn,
                    chunk,
                    seq,
                    pfn,
                    resident: None,
                    before: false,
                }));
            }
        }
        Ok(Paged::Elusive)
    }

    fn copy_once(&self, job: &CopyJob) -> CopyEnd {
        if !self.lives {
            return CopyEnd::Failed(Status::NoSuchPort);
        }
        let len = job.len.index();
        let address = job.vpn.address().0 as usize + job.offset.index();
        let bounce = self.port.card.with(|_, glue, _| glue.bounce.page(job.bounce));
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
                // The core does not ask a platform that has not said that it can.
                Direction::Apply(_) => return CopyEnd::Failed(Status::Unsupported),
            }
        };
        if code == 0 {
            CopyEnd::Done
        } else {
            CopyEnd::Evicted
        }
    }
}

/// Maps the neighbours of a page that are there (thesis 4.3): no fault is taken.
fn around(port: &Port, vpn: Vpn) {
    let card = &*port.card;
    let first = vpn.page_number() / AROUND * AROUND;
    debug_assert!(CHUNK_PAGES % AROUND == 0);
    let mut tickets: [Option<MapTicket>; AROUND as usize] = [None; AROUND as usize];
    let wanted = port.as_worker(|host, _, _| {
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
    if wanted != Some(true) {
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
        let mut page = Found {
            vpn: ticket.vpn,
            chunk: chunk.clone(),
            seq,
            pfn,
            resident: None,
            before: false,
        };
        let open = port.as_worker(|host, glue, _| {
            let Some(resident) = page.map(card) else {
                return;
            };
            page.prepare(host);
            if let Ok(mapped) = host.map_commit(glue, ticket, resident) {
                mapped
                    .displaced
                    .into_iter()
                    .for_each(|gone| page_gone(card, gone));
            }
            page.settle(card, host, false);
        });
        if open.is_none() {
            return;
        }
    }
}
