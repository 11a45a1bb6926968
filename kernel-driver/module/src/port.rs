// SPDX-License-Identifier: GPL-2.0

//! An open port: a process that has registered, and what serves it.
//!
//! The port belongs to the address space of the process that registered it: no other process can use a file that was
//! inherited (fork) or kept (exec), and the port ends with the address space.
//!
//! **The end**, by the last close of the file or the end of the address space, whichever comes first: from one moment
//! under the card's lock on (`ending`), the worker takes nothing from the core. Then the core ends the port step by step. A
//! page that the worker waits for is taken back, since it may never come; a copy that is under way is waited for. The
//! worker is told to end and not waited for: it owns a reference to the port, and whatever it comes back with it keeps
//! for itself. The number may be used again as soon as the core has nothing of the port: a notifier that is still called
//! finds it closed and touches nothing.

use crate::errno::{self, Errno, Failure};
use crate::host_card::Glue;
use crate::host_card::{now, HostCard};
use crate::pages::{page_gone, withdraw, Chunk, CHUNKS, CHUNK_PAGES};
use crate::shim;
use crate::tables::Tables;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use kernel::new_mutex;
use kernel::prelude::*;
use kernel::rbtree::RBTree;
use kernel::sync::{Arc, Mutex};
use netvm_abi::{Generation, Nanos, PortId, Status, Vpn};
use netvm_host::host::{CardFailure, CardState};
use netvm_host::ports::{OpenPort, PortError};
use netvm_host::{Host, Progress};
use netvm_host_platform::page_wait::PageWait;

/// Opens a port's number. A card that was reset while no port was open is noticed only now; it is attached again first.
fn open_number(card: &HostCard, wanted: Option<PortId>) -> Result<OpenPort, PortError> {
    let until = now().after(Nanos::from_millis(shim::nv_heartbeat_ms().into()));
    loop {
        let seen = card.steps.count();
        let (opened, state) = card.with(|host, glue, _| (host.port_open(glue, wanted), host.card()));
        let restarted = matches!(
            state,
            CardState::Dead(CardFailure::Restarted)
                | CardState::Stopped {
                    cause: CardFailure::Restarted,
                    ..
                }
        );
        if opened != Err(PortError::CardGone) {
            return opened;
        }
        // The core may have found it dead just now. The card's thread takes it out of service, and would sleep on: nothing
        // else wakes it while no port is open.
        card.interrupt.signal();
        if !restarted || now() >= until {
            return opened;
        }
        card.steps.wait(seen, RETRY, false);
    }
}

/// Whether a user may have one more port, or that one.
fn allow(card: &Arc<HostCard>, user: u32, wanted: Option<PortId>) -> Result<Seat, Failure> {
    let reserved = shim::nv_reserved_ports();
    if wanted.is_some_and(|port| u32::from(port.0) <= reserved) && !shim::nv_may_take_any_port() {
        return Err(Failure {
            errno: errno::ACCES,
            status: Status::NotAllowed,
        });
    }
    let free = shim::nv_may_take_all_ports();
    let mut core = card.lock();
    let numbers = core.listeners.len().saturating_sub(1);
    let most = match shim::nv_ports_per_user() {
        0 => numbers.div_ceil(2),
        most => most as usize,
    };
    let has = core.users.iter().filter(|&&other| other == Some(user)).count();
    let place = core.users.iter().position(|place| place.is_none());
    let Some(place) = place.filter(|_| free || has < most) else {
        return Err(Failure {
            errno: errno::DQUOT,
            status: Status::TableFull,
        });
    };
    if let Some(entry) = core.users.get_mut(place) {
        *entry = Some(user);
    }
    drop(core);
    Ok(Seat {
        card: card.clone(),
        place,
    })
}

/// That a user has one more port, or a worker of one that still waits for a page: told by what the port leaves last.
struct Seat {
    card: Arc<HostCard>,
    place: usize,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut core = self.card.lock();
        if let Some(entry) = core.users.get_mut(self.place) {
            *entry = None;
        }
    }
}

/// How long a card that is to be attached again is left alone, in nanoseconds.
const RETRY: u64 = 1_000_000;
const PAGE_SHIFT: u32 = 12;
/// Pages that one step deals with under the lock.
pub(crate) const STEP_PAGES: u32 = 256;

/// An address space, which is not kept from ending.
pub(crate) struct Space(*mut shim::Mm);

// SAFETY: C's functions over it may be called from any thread.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

impl Space {
    fn current() -> Option<Self> {
        // SAFETY: no conditions.
        let mm = unsafe { shim::nv_mm_grab_current() };
        (!mm.is_null()).then_some(Self(mm))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: the reference of `current`.
        unsafe { shim::nv_mm_drop(self.0) }
    }
}

/// The thread of a port. It is told to end where this is dropped.
struct Worker(NonNull<shim::Task>);

impl Worker {
    fn start(port: Arc<Port>) -> Option<Self> {
        let number = u32::from(port.number().0);
        let given = Arc::into_raw(port);
        // SAFETY: the reference is the thread's from here on.
        let thread = NonNull::new(unsafe { shim::nv_servant_start(given.cast_mut().cast(), number) });
        if thread.is_none() {
            // SAFETY: from `into_raw` above, and there is no thread that has it.
            drop(unsafe { Arc::from_raw(given) });
        }
        thread.map(Self)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: started by `start`, and ended once.
        unsafe { shim::nv_servant_end(self.0.as_ptr()) }
    }
}

/// What ends when the port does.
struct Servants {
    worker: Option<Worker>,
    watch: *mut shim::NvWatch,
}

/// Watched pieces of the address space.
struct Chunks {
    by_number: RBTree<u64, Arc<Chunk>>,
    count: usize,
    /// Where the next one to be given up is looked for.
    next: u64,
}

impl Chunks {
    fn new() -> Self {
        Self {
            by_number: RBTree::new(),
            count: 0,
            next: 0,
        }
    }

    fn remove(&mut self, key: u64) -> Option<Arc<Chunk>> {
        let chunk = self.by_number.remove(&key)?;
        self.count -= 1;
        Some(chunk)
    }

    /// Takes one out, each in its turn.
    fn give_up(&mut self) -> Option<(u64, Arc<Chunk>)> {
        let next = self.next;
        let found = |chunks: &mut Self, from: u64| {
            let cursor = chunks.by_number.cursor_lower_bound(&from);
            cursor.map(|cursor| *cursor.current().0)
        };
        let key = found(self, next).or_else(|| found(self, 0))?;
        self.next = key + 1;
        Some((key, self.remove(key)?))
    }
}

// SAFETY: they are reached under the mutex only.
unsafe impl Send for Servants {}

/// An open port.
#[pin_data]
pub(crate) struct Port {
    pub(crate) card: Arc<HostCard>,
    open: OpenPort,
    space: Space,
    _seat: Seat,
    /// It is being closed: its worker takes nothing from the core any more. Set under the card's lock.
    ending: AtomicBool,
    /// Its worker's waits for pages.
    page_wait: PageWait,
    /// Nothing of it is left in the core; its number may be another's.
    closed: AtomicBool,
    #[pin]
    chunks: Mutex<Chunks>,
    #[pin]
    servants: Mutex<Servants>,
    /// Held from the beginning of the end to its end.
    #[pin]
    turn: Mutex<()>,
}

impl Port {
    /// Makes the calling process' address space a port.
    pub(crate) fn open(
        card: &Arc<HostCard>,
        wanted: Option<PortId>,
        eventfd: Option<i32>,
    ) -> Result<Arc<Self>, Failure> {
        let space = Space::current().ok_or(Failure::plain(errno::INVAL))?;
        let eventfd = match eventfd {
            Some(fd) => {
                // SAFETY: any number may be asked for.
                let eventfd = unsafe { shim::nv_eventfd_get(fd) };
                if eventfd.is_null() {
                    return Err(Failure::plain(errno::INVAL));
                }
                eventfd
            }
            None => core::ptr::null_mut(),
        };
        let opened =
            allow(card, shim::nv_user(), wanted).and_then(|seat| Ok((seat, open_number(card, wanted)?)));
        let (seat, open) = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                put_eventfd(eventfd);
                return Err(failure);
            }
        };
        let made = Arc::pin_init(
            pin_init!(Self {
                card: card.clone(),
                open,
                space,
                _seat: seat,
                ending: AtomicBool::new(false),
                page_wait: PageWait::default(),
                closed: AtomicBool::new(false),
                chunks <- new_mutex!(Chunks::new(), "netvm_chunks"),
                servants <- new_mutex!(
                    Servants { worker: None, watch: core::ptr::null_mut() },
                    "netvm_servants"
                ),
                turn <- new_mutex!((), "netvm_ending"),
            }),
            GFP_KERNEL_ACCOUNT,
        );
        let Ok(port) = made else {
            close_number(card, open, || {});
            put_eventfd(eventfd);
            return Err(errno::NOMEM.into());
        };
        {
            let mut core = card.lock();
            core.open_ports += 1;
            if let Some(listener) = core.listeners.get_mut(open.port.index()) {
                listener.open = true;
                listener.events = 0;
                listener.eventfd = eventfd;
            }
        }
        if let Err(failure) = port.clone().hire() {
            port.close();
            return Err(failure);
        }
        // The core watches its card only while a port is open.
        card.interrupt.signal();
        Ok(port)
    }

    /// Its worker, and the notifier of its address space.
    fn hire(self: Arc<Self>) -> Result<(), Failure> {
        let with: *const Self = &*self;
        let with = with.cast_mut().cast::<c_void>();
        let mut code = 0;
        // SAFETY: the port outlives it: `close` ends it. The process is the calling one.
        let watch = unsafe { shim::nv_watch_new(self.mm(), with, &mut code) };
        let worker = Worker::start(self.clone());
        let hired = match code {
            0 if worker.is_none() => Err(errno::NOMEM.into()),
            0 => Ok(()),
            // The kernel stops all of the address space's users for a moment, and a signal stops that: once more, perhaps.
            code => Err(Errno(-code).into()),
        };
        let mut servants = self.servants.lock();
        servants.watch = watch;
        servants.worker = worker;
        hired
    }

    /// Its number.
    pub(crate) const fn number(&self) -> PortId {
        self.open.port
    }

    /// Which life of the number it is.
    pub(crate) const fn generation(&self) -> Generation {
        self.open.generation
    }

    /// Whether the core has nothing of it any more. Said under the card's lock.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether its worker must end. The answer holds while the card's lock is held.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Its worker waits for a page while `wait` runs. The process may end meanwhile, and its port with it.
    pub(crate) fn while_paging<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.page_wait.during(|| {
            let servants = self.servants.lock();
            if !servants.watch.is_null() {
                // SAFETY: `close` takes it out under this mutex before it is freed.
                unsafe { shim::nv_watch_look(servants.watch) }
            }
            drop(servants);
            wait()
        })
    }

    /// Whether its worker waits for a page, for a port that is not ending.
    pub(crate) fn is_paging(&self) -> bool {
        self.page_wait.is_waiting() && !self.is_ending()
    }

    /// Whether its process has ended and only the worker, which waits for a page, keeps the address space.
    pub(crate) fn is_orphan(&self) -> bool {
        // SAFETY: the address space's structure lives.
        let references = || unsafe { shim::nv_mm_users(self.mm()) };
        !self.is_ending() && self.page_wait.is_last(references)
    }

    /// Calls the core as its worker; nothing once the port is ending, whose number may be another's by then.
    pub(crate) fn as_worker<R>(
        &self,
        call: impl FnOnce(&mut Host<Tables>, &mut Glue, Nanos) -> R,
    ) -> Option<R> {
        let mut guard = self.card.lock();
        if self.is_ending() {
            return None;
        }
        let core = &mut *guard;
        Some(call(&mut core.host, &mut core.glue, now()))
    }

    /// Its address space.
    pub(crate) const fn mm(&self) -> *mut shim::Mm {
        self.space.0
    }

    /// Whether the caller is the process that registered it.
    pub(crate) fn is_ours(&self) -> bool {
        // SAFETY: the address space's structure lives.
        unsafe { shim::nv_mm_is_current(self.mm()) }
    }

    /// The chunk with a page.
    ///
    /// # Safety
    /// The process lives (`nv_mm_get`).
    pub(crate) unsafe fn watched(&self, page: u64) -> Result<Arc<Chunk>, Status> {
        let key = page / CHUNK_PAGES;
        loop {
            let mut chunks = self.chunks.lock();
            // `end` sets it before it takes the chunks.
            if self.is_ending() {
                return Err(Status::NoSuchPort);
            }
            if let Some(chunk) = chunks.by_number.get(&key) {
                return Ok(chunk.clone());
            }
            // SAFETY: as promised.
            match unsafe { shim::nv_mapped(self.mm(), (page as usize) << PAGE_SHIFT) } {
                0 => {}
                code if Errno(-code) == errno::INTR => return Err(Status::NoSuchPort),
                _ => return Err(Status::Unmapped),
            }
            if chunks.count < CHUNKS {
                // SAFETY: as promised; the port ends its chunks before it ends.
                let chunk = unsafe { Chunk::new(self, key * CHUNK_PAGES) }.map_err(|_| Status::NoMemory)?;
                chunks
                    .by_number
                    .try_create_and_insert(key, chunk.clone(), GFP_KERNEL_ACCOUNT)
                    .map_err(|_| Status::NoMemory)?;
                chunks.count += 1;
                return Ok(chunk);
            }
            let given_up = chunks.give_up();
            drop(chunks);
            // Without the mutex: its end waits for notifiers that are being called.
            if let Some((key, chunk)) = given_up {
                withdraw(self, &chunk, key * CHUNK_PAGES);
            }
        }
    }

    /// A segment has ended: chunks in which nothing is registered any more are not watched any more.
    pub(crate) fn unwatch(&self, first: u64, pages: u64) {
        let end = first.saturating_add(pages).div_ceil(CHUNK_PAGES);
        let mut from = first / CHUNK_PAGES;
        loop {
            let mut chunks = self.chunks.lock();
            let next = chunks.by_number.cursor_lower_bound(&from);
            let Some(key) = next.map(|cursor| *cursor.current().0).filter(|&key| key < end) else {
                return;
            };
            from = key + 1;
            let unused = {
                let core = self.card.lock();
                let chunk = Vpn::new(self.number(), key * CHUNK_PAGES);
                let unused = !core.host.is_registered(chunk, CHUNK_PAGES);
                if let Some(chunk) = chunks.by_number.get(&key).filter(|_| unused) {
                    // Under the lock: a thread that still has the chunk publishes nothing with it.
                    chunk.retire();
                }
                unused
            };
            if unused {
                let chunk = chunks.remove(key);
                drop(chunks);
                // Without the mutex: it waits for notifiers that are being called.
                drop(chunk);
            }
        }
    }

    /// The file has no user any more.
    pub(crate) fn close(&self) {
        let watch = core::mem::replace(&mut self.servants.lock().watch, core::ptr::null_mut());
        if !watch.is_null() {
            // SAFETY: made in `hire`, and taken out here. If it is ending the port, it does so to the end.
            unsafe { shim::nv_watch_free(watch) }
        }
        self.end();
    }

    /// Ends it, once: for its file, its address space or its card. Sleeps for as long as the card's deadlines and one copy
    /// allow; it waits for no page. When it returns, nothing of the port is mapped for the card.
    pub(crate) fn end(&self) {
        let _turn = self.turn.lock();
        if self.is_closed() {
            return;
        }
        let card = &self.card;
        let eventfd = {
            let mut core = card.lock();
            self.ending.store(true, Ordering::Release);
            for import in core.imports.iter_mut() {
                if import.port == self.number() {
                    import.token = None;
                }
            }
            match core.listeners.get_mut(self.number().index()) {
                Some(listener) => {
                    listener.open = false;
                    core::mem::replace(&mut listener.eventfd, core::ptr::null_mut())
                }
                None => core::ptr::null_mut(),
            }
        };
        // Its wait for a page ends here, where that wait can be ended.
        let worker = self.servants.lock().worker.take();
        drop(worker);
        // The number is free, and perhaps another's, as soon as the lock is let go after the last step.
        close_number(card, self.open, || self.closed.store(true, Ordering::Relaxed));
        {
            let mut core = card.lock();
            core.open_ports -= 1;
        }
        // Threads of its process that wait hear of it.
        if let Some(news) = card.news.get(self.number().index()) {
            news.signal();
        }
        put_eventfd(eventfd);
        let chunks = core::mem::replace(&mut *self.chunks.lock(), Chunks::new());
        // Without the mutex: it waits for notifiers that are being called.
        drop(chunks);
    }
}

/// Ends a port in the core: its work refused, its exports revoked, its pages unmapped. `done` is called
/// under the lock when nothing is left.
fn close_number(card: &HostCard, open: OpenPort, done: impl Fn()) {
    let begun = card.with(|host, glue, _| host.port_close_begin(glue, open));
    let Ok(mut close) = begun else {
        return done();
    };
    if let Some(work) = card.work.get(open.port.index()) {
        work.signal();
    }
    card.drive(|host, glue, now| {
        host.work_abandon(glue, open.port, now);
        let progress = host.port_close_step(glue, &mut close, now, STEP_PAGES, &mut |gone| {
            page_gone(card, gone)
        });
        if progress == Progress::Done {
            done();
        }
        progress
    });
}

fn put_eventfd(eventfd: *mut shim::Eventfd) {
    if !eventfd.is_null() {
        // SAFETY: a reference of `nv_eventfd_get`, which is not used any more.
        unsafe { shim::nv_eventfd_put(eventfd) }
    }
}
