//! The process' own memory as a port's: what `alloc` maps and what a program hands over (`adopt`).
//!
//! A page of `alloc`'s is given to the card once it was written; from then on the card copies in place. It is anonymous
//! memory, so a copy that finds it swapped out waits for the swap device, and for nothing else.
//!
//! Memory that a program hands over is never given to the card: behind an address may be a file, a file system in user space,
//! or, later, nothing at all. What is there, and no file's, the card reaches by itself for one request ([`Reachable`]). Each
//! other transfer goes through a bounce page, and the port's worker copies. Both do so under the guard of
//! [`netvm_memory::guard`]. What is adopted are addresses: after `munmap` and `mmap` the new mapping is meant.
//!
//! To wake the worker takes longer than the copy. So a thread that has run the card does the worker's work at once where the page is
//! there ([`PageMap`]), and leaves all else to it.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use netvm::backend::Refusal;
use netvm::guarded;
use netvm_abi::atomic::AtomicResult;
use netvm_abi::{PortId, Ppn, Status, VirtAddr, Vpn};
use netvm_host::Host;
use netvm_host::platform::{Access, CopyEnd, CopyJob, Direction, Resident};
use netvm_host::ports::OpenPort;
use netvm_host_platform::paging::{self, Turn as Step, Worker};
use netvm_memory::change::change_guarded;
use netvm_memory::guard::{self, Fault};
use netvm_soft::PAGE_BYTES;
use netvm_soft::direct::Pages;
use netvm_soft::memory::Heap;
use netvm_soft::transfer::changed;
use netvm_soft::turn::Turn;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::card::ProcessCard;
use super::page_map::PageMap;
use crate::driver::HostSide;
use crate::machine::{Area, Memory};
use crate::worker;

/// What `alloc` has mapped, by its first address.
type Owned = Arc<Mutex<BTreeMap<u64, Weak<Mapping>>>>;

/// The memory of a node that is a process.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    owned: Owned,
    /// The workers of open ports.
    serving: Mutex<HashMap<PortId, Arc<Serving>>>,
    pages: Arc<PageMap>,
}

/// What of the process' memory the card may reach by itself: pages of the program's that are there, and are no file's.
#[derive(Debug)]
struct Reachable {
    owned: Owned,
    pages: Arc<PageMap>,
}

impl Pages for Reachable {
    fn is_there(&self, address: u64) -> bool {
        // What `alloc` has mapped the driver gives the card, with what follows.
        mapping_of(&self.owned, address).is_none() && self.pages.has_own(address)
    }
}

/// The mapping of `alloc`'s that an address belongs to.
fn mapping_of(owned: &Owned, address: u64) -> Option<Arc<Mapping>> {
    let owned = owned.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, mapping) = owned.range(..=address).next_back()?;
    let mapping = mapping.upgrade();
    // Dropped without the lock, which its end takes.
    drop(owned);
    mapping.filter(|mapping| address - mapping.start < mapping.len as u64)
}

/// A port's worker: one piece of work at a time, by whichever thread has its turn.
#[derive(Debug)]
struct Serving {
    port: OpenPort,
    hands: Turn<Hands>,
}

/// What a worker has in its hands.
#[derive(Debug, Default)]
struct Hands {
    worker: Worker<Page>,
    ahead: Ahead,
}

impl ProcessMemory {
    pub(crate) fn new() -> Self {
        Self {
            owned: Owned::default(),
            serving: Mutex::default(),
            pages: Arc::new(PageMap::of_this_process()),
        }
    }

    /// What the card may reach by itself.
    pub(crate) fn reachable(&self) -> Arc<dyn Pages> {
        Arc::new(Reachable {
            owned: Arc::clone(&self.owned),
            pages: Arc::clone(&self.pages),
        })
    }

    fn serving(&self) -> MutexGuard<'_, HashMap<PortId, Arc<Serving>>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_port<'a>(
        &'a self,
        host: &'a HostSide<ProcessCard>,
        port: OpenPort,
        ahead: &'a mut Ahead,
    ) -> PortMemory<'a> {
        PortMemory {
            host,
            owned: &self.owned,
            port,
            ahead: Cell::from_mut(ahead),
        }
    }

    /// Does all of a port's work.
    fn work_on(&self, host: &HostSide<ProcessCard>, serving: &Serving) {
        let mut turn = serving.hands.ask();
        while let Some(mut held) = turn {
            let Hands { worker, ahead } = &mut *held;
            let memory = self.of_port(host, serving.port, ahead);
            loop {
                match worker.turn(&memory) {
                    Step::Idle => break,
                    Step::Wait(never) => match never {},
                    Step::PagedIn | Step::Told | Step::Ended(_) => {}
                }
            }
            turn = held.done();
        }
    }
}

/// Steps of a worker that a thread takes which has something else to do.
const STEPS_AT_ONCE: u32 = 64;

/// A mapping of `alloc`'s.
#[derive(Debug)]
struct Mapping {
    /// The port that it was made for: its segment ends before the mapping does. Another port may have adopted the same addresses.
    port: OpenPort,
    start: u64,
    len: usize,
    owned: Owned,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.owned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.start);
        let start = core::ptr::with_exposed_provenance_mut(self.start as usize);
        // SAFETY: the mapping is this value's own; the card has let go of it, and no user is left.
        let _ = unsafe { rustix::mm::munmap(start, self.len) };
    }
}

fn refusal(what: &'static str, errno: Errno) -> Refusal {
    Refusal::System {
        what,
        errno: errno.raw_os_error(),
    }
}

impl Memory<ProcessCard> for ProcessMemory {
    fn alloc(&self, _: &HostSide<ProcessCard>, port: OpenPort, len: u64) -> Result<Area, Refusal> {
        // A worker may have work for a page in its hands while the region ends, and look at the page after that. This has to end in an
        // error for the work, not in a signal. Other processors have no handler: there it is as before.
        let _ = guard::install();
        let bytes = usize::try_from(len).map_err(|_| Refusal::Status(Status::NoMemory))?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, prot, flags) };
        let start = start.map_err(|errno| refusal("memory (`ulimit -v` limits it)", errno))?;
        let at = start.expose_provenance() as u64;
        let owner = Arc::new(Mapping {
            port,
            start: at,
            len: bytes,
            owned: Arc::clone(&self.owned),
        });
        self.owned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(at, Arc::downgrade(&owner));
        let start = NonNull::new(start.cast()).ok_or(Refusal::Status(Status::NoMemory))?;
        Ok(Area {
            start,
            owner,
            may_vanish: false,
        })
    }

    unsafe fn adopt(
        &self,
        _: &HostSide<ProcessCard>,
        _: PortId,
        start: NonNull<u8>,
        len: u64,
    ) -> Result<Area, Refusal> {
        let end = (start.as_ptr().addr() as u64).checked_add(len);
        if len == 0 || end.is_none_or(|end| end > END) {
            return Err(Refusal::Status(Status::OutOfRange));
        }
        vanishing(start)
    }

    unsafe fn adopt_all(&self) -> Result<(Area, u64), Refusal> {
        // But for the first page, which a null pointer names.
        let start = core::ptr::with_exposed_provenance_mut(PAGE_BYTES);
        let start = NonNull::new(start).ok_or(Refusal::Status(Status::OutOfRange))?;
        Ok((vanishing(start)?, END - PAGE_BYTES as u64))
    }

    fn serve(&self, host: &HostSide<ProcessCard>, port: OpenPort, closed: &AtomicBool) {
        let serving = Arc::new(Serving {
            port,
            hands: Turn::new(Hands::default()),
        });
        self.serving().insert(port.port, Arc::clone(&serving));
        worker::run(host, port.port, closed, || self.work_on(host, &serving));
        // The number may have a new owner already.
        let mut all = self.serving();
        if all
            .get(&port.port)
            .is_some_and(|known| Arc::ptr_eq(known, &serving))
        {
            all.remove(&port.port);
        }
    }

    fn serve_at_once(&self, host: &HostSide<ProcessCard>, port: PortId) -> bool {
        let Some(serving) = self.serving().get(&port).cloned() else {
            return false;
        };
        let mut steps = 0;
        let mut turn = serving.hands.ask();
        // Without a turn another thread has it, and does this, too.
        while let Some(mut held) = turn {
            let Hands { worker, ahead } = &mut *held;
            let there = Present {
                memory: self.of_port(host, serving.port, ahead),
                pages: &self.pages,
            };
            loop {
                match worker.turn(&there) {
                    Step::Idle => break,
                    // The piece of work stays in the worker's hands, for the thread that may wait.
                    Step::Wait(Absent) => return false,
                    Step::PagedIn | Step::Told | Step::Ended(_) => {}
                }
                steps += 1;
                if steps == STEPS_AT_ONCE {
                    return false;
                }
            }
            turn = held.done();
        }
        true
    }
}

/// Where the addresses that a process can have end.
const END: u64 = 1 << 47;

/// Memory of the program's from `start` on.
fn vanishing(start: NonNull<u8>) -> Result<Area, Refusal> {
    guard::install().map_err(|error| match error.raw_os_error() {
        Some(errno) => Refusal::System {
            what: "a handler for SIGSEGV and SIGBUS",
            errno,
        },
        None => Refusal::Unsupported("memory of the program's own is adopted on x86-64 Linux only"),
    })?;
    Ok(Area {
        start,
        owner: Arc::new(()),
        may_vanish: true,
    })
}

/// A page that is there, or was a moment ago.
#[derive(Debug)]
struct Page {
    vpn: Vpn,
    /// The card may have it. Keeps it mapped meanwhile.
    owned: Option<Arc<Mapping>>,
}

/// A port's memory, as its worker reaches it.
struct PortMemory<'a> {
    host: &'a HostSide<ProcessCard>,
    owned: &'a Owned,
    port: OpenPort,
    ahead: &'a Cell<Ahead>,
}

/// A stream into memory that was never touched misses each page once. So a worker that sees misses one behind the other gives
/// the card the pages that follow, too: twice as many each time.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    /// The last page that was missed.
    missed: u64,
    /// The end of the pages that were given with it.
    end: u64,
    pages: u64,
}

/// The most pages that are given at once: 1 MiB.
const MOST_AHEAD: u64 = 256;
/// How far behind the last pages a miss may lie and still belong to the stream: messages of a window that had missed already.
const STREAM: u64 = 128;

impl PortMemory<'_> {
    /// After a page of the program's was touched: the pages that follow, if it was part of a stream.
    fn give_ahead(&self, mapping: &Mapping, vpn: Vpn) {
        let page = vpn.address().0 / PAGE_BYTES as u64;
        let before = self.ahead.get();
        let follows = page > before.missed && page <= before.end.max(before.missed) + STREAM;
        let pages = if follows {
            (before.pages * 2).clamp(1, MOST_AHEAD)
        } else {
            0
        };
        let last = (mapping.start + mapping.len as u64) / PAGE_BYTES as u64;
        let first = (page + 1).max(if follows { before.end } else { 0 });
        let end = (first + pages).min(last);
        self.ahead.set(Ahead {
            missed: page,
            end: end.max(page + 1),
            pages,
        });
        for page in first..end {
            let vpn = Vpn::of(self.port.port, VirtAddr(page * PAGE_BYTES as u64));
            // SAFETY: the page lies in the mapping, which the caller holds.
            if unsafe { guard::touch_to_write(place(vpn)) }.is_err() {
                return;
            }
            self.host.with(|host, glue, _| {
                // A page that is mapped already, or whose row is full, is left as it is.
                if let Ok(ticket) = host.map_begin(vpn) {
                    let _ = host.map_commit(glue, ticket, resident(vpn));
                }
            });
        }
    }

    /// The mapping that an address belongs to, if `alloc` made one there for this port.
    fn owned(&self, address: u64) -> Option<Arc<Mapping>> {
        mapping_of(self.owned, address).filter(|mapping| mapping.port == self.port)
    }
}

/// Where a page lies in this process.
fn place(vpn: Vpn) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(vpn.address().0 as usize)
}

/// A page that the card may have.
fn resident(vpn: Vpn) -> Resident {
    Resident {
        ppn: Ppn(vpn.address().0 / PAGE_BYTES as u64),
        frame: 0,
        writable: true,
    }
}

/// What a fault says of a page that was to be written, or read.
fn status(fault: Fault, at: *mut u8, access: Access) -> Status {
    match access {
        Access::Read => guarded::status_of_read(fault),
        // SAFETY: the handler is in place: a fault has just been caught.
        Access::Write => unsafe { guarded::status_of_write(fault, at) },
    }
}

impl paging::Pager for PortMemory<'_> {
    type System = HostSide<ProcessCard>;
    type Page = Page;
    type Wait = Infallible;

    fn system(&self) -> &HostSide<ProcessCard> {
        self.host
    }

    fn port(&self) -> PortId {
        self.port.port
    }

    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Page, Status>, Infallible> {
        let at = place(vpn);
        let owned = self.owned(vpn.address().0);
        // SAFETY: the page belongs to a segment of this port: `alloc` mapped it, or a program handed it over, and then the
        // guard is in place. The program promised that no reference to it exists.
        let touched = unsafe {
            match access {
                Access::Write => guard::touch_to_write(at),
                // A page that the card may have must be the process' own, not the zero page.
                Access::Read if owned.is_some() => guard::touch_to_write(at),
                Access::Read => guard::touch_to_read(at),
            }
        };
        if let (Ok(()), Some(mapping)) = (touched, &owned) {
            self.give_ahead(mapping, vpn);
        }
        Ok(match touched {
            Ok(()) => Ok(Page { vpn, owned }),
            Err(fault) => Err(status(fault, at, access)),
        })
    }

    fn copy(&self, page: Option<&Page>, job: &CopyJob) -> Result<CopyEnd, Infallible> {
        let Some(page) = page.filter(|page| page.vpn == job.vpn) else {
            return Ok(CopyEnd::Evicted);
        };
        let (offset, len) = (job.offset.index(), job.len.index());
        let bounce = self.host.with(|_, glue, _| glue.bounce.page(job.bounce.0));
        let Some(bounce) = bounce.filter(|_| offset + len <= PAGE_BYTES) else {
            return Ok(CopyEnd::Failed(Status::Malformed));
        };
        let at = place(page.vpn).wrapping_add(offset);
        let access = match job.direction {
            Direction::IntoPage | Direction::Apply(_) => Access::Write,
            Direction::OutOfPage => Access::Read,
        };
        let mut result = AtomicResult::default();
        // SAFETY: the bounce page is a page long and the driver's; of the application's page the promises are as above.
        let end = unsafe {
            match job.direction {
                Direction::IntoPage => guard::copy(bounce, at, len).map(|()| CopyEnd::Done),
                Direction::OutOfPage => guard::copy(at, bounce, len).map(|()| CopyEnd::Done),
                Direction::Apply(atomic) => change_guarded(at, len, |old| changed(&atomic, old, &mut result))
                    .map(|changed| match changed {
                        Some(_) => CopyEnd::Applied(result),
                        None => CopyEnd::Failed(Status::Malformed),
                    }),
            }
        };
        Ok(end.unwrap_or_else(|fault| CopyEnd::Failed(status(fault, at, access))))
    }

    fn offer(&self, page: &mut Page) -> Option<Resident> {
        page.owned.is_some().then(|| resident(page.vpn))
    }

    fn prepare(&self, _: &mut Page, _: &mut Host<Heap>) {
        // No page event comes for the process' own memory: it is unmapped only after the driver let go of it.
    }

    fn settle(&self, _: &mut Page, _: &Host<Heap>, _: bool) {}
}

/// A port's memory, as far as it is there.
struct Present<'a> {
    memory: PortMemory<'a>,
    pages: &'a PageMap,
}

/// A page that is not there, or may not be.
struct Absent;

impl paging::Pager for Present<'_> {
    type System = HostSide<ProcessCard>;
    type Page = Page;
    type Wait = Absent;

    fn system(&self) -> &HostSide<ProcessCard> {
        self.memory.system()
    }

    fn port(&self) -> PortId {
        self.memory.port()
    }

    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Page, Status>, Absent> {
        let at = vpn.address().0;
        // What `alloc` has mapped is missed once, and often brings more pages with it.
        if self.memory.owned(at).is_some() || !self.pages.has(at, access) {
            return Err(Absent);
        }
        // Nothing is touched: the copy finds out whether it may. The page may be of this thread's own stack, and begin below what is used.
        Ok(Ok(Page { vpn, owned: None }))
    }

    fn copy(&self, page: Option<&Page>, job: &CopyJob) -> Result<CopyEnd, Absent> {
        // The page was there a moment ago. Should it have gone, this thread waits for it, and holds no turn but the worker's.
        self.memory.copy(page, job).map_err(|never| match never {})
    }

    fn offer(&self, page: &mut Page) -> Option<Resident> {
        self.memory.offer(page)
    }

    fn prepare(&self, page: &mut Page, host: &mut Host<Heap>) {
        self.memory.prepare(page, host);
    }

    fn settle(&self, page: &mut Page, host: &Host<Heap>, keep: bool) {
        self.memory.settle(page, host, keep);
    }
}
