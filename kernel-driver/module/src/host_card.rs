// SPDX-License-Identifier: GPL-2.0

//! The host's side of a card: the host core behind one spinlock, and the thread that serves it.
//!
//! The thread waits until the firmware is up, attaches, makes `/dev/netvmN`, and then hears what the
//! card says until the card or the module goes. A card that dies is stopped; when its firmware is up
//! again and its ports are closed, it is attached again.

use crate::errno::{self, Errno};
use crate::event::{Event, Thread};
use crate::shim;
use crate::tables::{Table, Tables};
use crate::withdraw::rest_without;
use crate::words::{Bar, CardRef, DmaMemory};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use kernel::new_spinlock;
use kernel::prelude::*;
use kernel::sync::lock::spinlock::SpinLockBackend;
use kernel::sync::lock::Guard;
use kernel::sync::{Arc, SpinLock};
use netvm_abi::attach::{AttachError as HeaderError, CardHeader, DriverPlace};
use netvm_abi::bar::{header, BarMap};
use netvm_abi::control::Grant;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::words::SharedWords;
use netvm_abi::{BounceId, Nanos, NodeId, PortId, Status, Token, PAGE_SIZE};
use netvm_host::attach::{AttachError, HostConfig};
use netvm_host::host::CardState;
use netvm_host::{Host, Platform, Progress};
use netvm_host_platform::notice;

/// How often a card that is not up is looked at, in nanoseconds.
const LOOK: u64 = 20_000_000;
/// Ports and workers without a port that there may be, for each port number.
const USERS: usize = 4;
/// Entries of a card's tables that are emptied under the lock at once: some hundred microseconds of reads.
const ENTRIES: u32 = 256;
/// How long a step waits before it looks again unasked, in nanoseconds.
const STEP: u64 = 100_000;

/// What the host core can reach.
pub(crate) struct Glue {
    pub(crate) bar: Bar,
    pub(crate) shared: DmaMemory,
    pub(crate) bounce: DmaMemory,
}

impl Platform for Glue {
    type Bar = Bar;
    type Shared = DmaMemory;

    fn bar(&self) -> &Bar {
        &self.bar
    }

    fn shared(&self) -> &DmaMemory {
        &self.shared
    }

    fn secret(&mut self) -> u64 {
        shim::nv_random()
    }

    fn load_bounce(&mut self, bounce: BounceId, into: &mut [u32]) {
        self.bounce.load(bounce, into);
    }

    fn store_bounce(&mut self, bounce: BounceId, from: &[u32]) {
        self.bounce.store(bounce, from);
    }

    fn wake_nic(&mut self) {
        self.bar.ring();
    }
}

/// An import that a process waits for, or has. One for each that the core may have, found by the low
/// half of its token.
#[derive(Clone, Copy)]
pub(crate) struct Import {
    pub(crate) token: Option<Token>,
    pub(crate) port: PortId,
    pub(crate) node: NodeId,
    /// `None` until it has ended.
    pub(crate) result: Option<Result<Grant, Status>>,
}

/// What a port's process is told by.
pub(crate) struct Listener {
    pub(crate) open: bool,
    /// What `PORT_EVENTS` says.
    pub(crate) events: u32,
    /// To be signalled as well, or null.
    pub(crate) eventfd: *mut shim::Eventfd,
}

// SAFETY: an eventfd may be signalled by any thread.
unsafe impl Send for Listener {}

/// Everything under the lock.
pub(crate) struct Core {
    pub(crate) host: KBox<Host<Tables>>,
    pub(crate) glue: Glue,
    pub(crate) imports: Table<Import>,
    pub(crate) listeners: Table<Listener>,
    /// The users of ports, those included of which only a worker is left that waits for a page.
    pub(crate) users: Table<Option<u32>>,
    /// Links that are up, by node.
    pub(crate) links: Table<bool>,
    pub(crate) open_ports: u32,
}

/// A card that has been attached.
#[pin_data]
pub(crate) struct HostCard {
    pub(crate) shim: CardRef,
    #[pin]
    core: SpinLock<Core>,
    /// The card has interrupted, or the thread has something to do.
    pub(crate) interrupt: Event,
    /// Something that a step or an import waits for has happened.
    pub(crate) steps: Event,
    /// Work for each port's worker.
    pub(crate) work: Table<Event>,
    /// News for each port's process.
    pub(crate) news: Table<Event>,
    /// It goes, and no longer touches this host's memory: it has said so, or its bus proves it.
    pub(crate) quiet: AtomicBool,
}

/// Why a card cannot be attached.
enum Trouble {
    /// It is not up (yet).
    NotUp,
    /// It will not do; said once.
    Never(AttachError),
    /// It still uses the memory of a driver that was here before, and is asked not to.
    Used,
    /// Its BAR is smaller than its tables.
    Small(u32),
    /// No memory, now.
    NoMemory(usize),
}

impl From<AttachError> for Trouble {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Card(HeaderError::NotUp { .. } | HeaderError::CardGone) => Self::NotUp,
            error => Self::Never(error),
        }
    }
}

pub(crate) fn now() -> Nanos {
    Nanos(shim::nv_now())
}

fn config() -> HostConfig {
    HostConfig {
        nic_deadline: Nanos::from_millis(shim::nv_deadline_ms().into()),
        heartbeat_deadline: Nanos::from_millis(shim::nv_heartbeat_ms().into()),
        page_deadline: Nanos::from_millis(shim::nv_page_ms().into()),
        reserved_ports: u16::try_from(shim::nv_reserved_ports()).unwrap_or(u16::MAX),
        ..HostConfig::default()
    }
}

fn events(count: usize) -> Result<Table<Event>, Errno> {
    let mut failed = false;
    let events = Table::new(count, |_| {
        let event = Event::new();
        failed |= event.is_err();
        event.ok()
    });
    let events = events.map_err(|_| errno::NOMEM)?;
    if failed {
        return Err(errno::NOMEM);
    }
    events.complete().ok_or(errno::NOMEM)
}

impl HostCard {
    /// Attaches to a card whose firmware is up.
    fn attach(shim: &CardRef) -> Result<Arc<Self>, Trouble> {
        let bar = Bar::new(shim.clone());
        let card = CardHeader::load(&bar).map_err(AttachError::Card)?;
        let geometry = card.geometry;
        if BarMap::new(&geometry).words > bar.words() {
            return Err(Trouble::Small(bar.words()));
        }
        if DriverPlace::is_in_use(&bar) {
            DriverPlace::withdraw(&bar);
            bar.ring();
            return Err(Trouble::Used);
        }
        let shared_bytes = SharedMap::new(&geometry).words as usize * 4;
        let bounce_bytes = geometry.bounce_slots() as usize * PAGE_SIZE as usize;
        let memory = |bytes| DmaMemory::new(shim, bytes).map_err(|_| Trouble::NoMemory(bytes));
        let mut glue = Glue {
            bar,
            shared: memory(shared_bytes)?,
            bounce: memory(bounce_bytes)?,
        };
        let config = config();
        let no_memory = |_| Trouble::NoMemory(config.table_bytes(&geometry));
        let mut tables = Tables::default();
        let host = Host::attach(&mut glue, &mut tables, &config, now())?;
        if tables.failed() {
            return Err(Trouble::NoMemory(config.table_bytes(&geometry)));
        }
        let host = KBox::new(host, GFP_KERNEL).map_err(|_| Trouble::NoMemory(size_of::<Host<Tables>>()))?;
        let ports = usize::from(geometry.ports);
        let imports = Table::new(config.imports as usize, |_| Import {
            token: None,
            port: PortId(0),
            node: NodeId(0),
            result: None,
        });
        let listeners = Table::new(ports, |_| Listener {
            open: false,
            events: 0,
            eventfd: core::ptr::null_mut(),
        });
        let core = Core {
            host,
            glue,
            imports: imports.map_err(|_| Trouble::NoMemory(0))?,
            listeners: listeners.map_err(|_| Trouble::NoMemory(0))?,
            users: Table::new(ports * USERS, |_| None).map_err(|_| Trouble::NoMemory(0))?,
            links: Table::new(usize::from(geometry.nodes), |_| false).map_err(|_| Trouble::NoMemory(0))?,
            open_ports: 0,
        };
        let (work, news) = (
            events(ports).map_err(no_memory)?,
            events(ports).map_err(no_memory)?,
        );
        let steps = Event::new().map_err(no_memory)?;
        let attached = Arc::pin_init(
            pin_init!(Self {
                shim: shim.clone(),
                core <- new_spinlock!(core, "netvm_card"),
                // SAFETY: the reference in `shim` keeps the card.
                interrupt: unsafe { Event::of_interrupt(shim.as_ptr()) },
                steps,
                work,
                news,
                quiet: AtomicBool::new(false),
            }),
            GFP_KERNEL,
        );
        let attached = attached.map_err(|_| Trouble::NoMemory(size_of::<Self>()))?;
        // Where NIC memory outlives the firmware, what was read may be of an earlier start of it, and the tables be made
        // for that one. A firmware that starts now clears either the header before it is looked at here, or what was
        // told.
        let same = attached.with(|_, glue, _| {
            tell_place(glue);
            glue.bar.full_barrier();
            CardHeader::load(&glue.bar) == Ok(card)
        });
        if !same {
            attached.get_memory_back();
            // SAFETY: the card lives.
            unsafe { shim::nv_card_start(shim.as_ptr()) };
            return Err(Trouble::NotUp);
        }
        Ok(attached)
    }

    /// The lock.
    pub(crate) fn lock(&self) -> Guard<'_, Core, SpinLockBackend> {
        self.core.lock()
    }

    /// Calls the core.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Host<Tables>, &mut Glue, Nanos) -> R) -> R {
        let mut guard = self.core.lock();
        let core = &mut *guard;
        call(&mut core.host, &mut core.glue, now())
    }

    /// Steps something to its end. Sleeps; no signal ends it: each step has a deadline of the core.
    pub(crate) fn drive(&self, mut step: impl FnMut(&mut Host<Tables>, &mut Glue, Nanos) -> Progress) {
        loop {
            let seen = self.steps.count();
            match self.with(&mut step) {
                Progress::Done => return,
                Progress::Again => {}
                Progress::Wait => {
                    self.look_again();
                    self.steps.wait(seen, STEP, false);
                }
            }
        }
    }

    /// Has the card's thread look at the core: it may have found the card dead, or have a new deadline.
    pub(crate) fn look_again(&self) {
        if self.with(|host, _, now| host.next_deadline() <= now) {
            self.interrupt.signal();
        }
    }

    /// Stops a dead card's DMA and tells the core. Does not sleep. Of several callers the first does it.
    pub(crate) fn stop(&self) {
        let (dead, gone) =
            self.with(|host, glue, _| (matches!(host.card(), CardState::Dead(_)), glue.bar.is_gone()));
        if !dead {
            return;
        }
        // SAFETY: the card lives; its configuration space is reachable until it is taken away. To stop it
        // twice does no harm.
        let stopped = !gone && unsafe { shim::nv_card_stop(self.shim.as_ptr()) };
        let proven = stopped || self.quiet.load(Ordering::Acquire);
        let first = self.with(|host, glue, now| {
            let dead = matches!(host.card(), CardState::Dead(_));
            host.card_stopped(glue, proven, now);
            dead
        });
        if !first {
            return;
        }
        // A card that is quiet was asked to be.
        if !self.quiet.load(Ordering::Acquire) {
            let cause = self.with(|host, _, _| host.card());
            pr_err!(
                "netvm{}: the card is dead ({:?}); its DMA is {}\n",
                self.number(),
                cause,
                if proven {
                    "stopped"
                } else {
                    "not proven to have stopped: pages that it may still use are kept for ever"
                }
            );
        }
        self.tell_all();
        self.steps.signal();
        self.interrupt.signal();
    }

    /// N of `/dev/netvmN`.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the card lives.
        unsafe { shim::nv_device_number(self.shim.as_ptr()) }
    }

    /// Serves it until the thread is to end.
    fn serve(&self) {
        let mut heard = self.interrupt.count();
        while !Thread::should_stop() {
            let seen = self.interrupt.count();
            if seen != heard {
                self.tell_all();
                heard = seen;
            }
            if Thread::should_rest() {
                self.rest();
                continue;
            }
            notice::hear(self);
            // Events taken may be what a step waits for, even without a notice.
            self.steps.signal();
            let (card, due) = self.with(|host, _, _| (host.card(), host.next_deadline()));
            let limit = match card {
                CardState::Stopped { .. } => {
                    while self.attach_again() && !Thread::should_stop() && !Thread::should_rest() {
                        // SAFETY: this thread holds no lock.
                        unsafe { shim::nv_yield() }
                    }
                    LOOK
                }
                _ if due == Nanos::MAX => u64::MAX,
                _ => due.0.saturating_sub(now().0),
            };
            self.interrupt.thread_wait(seen, limit);
        }
    }

    /// Attaches again when the card has begun anew, its firmware is up, and nothing is left of the last life. A card that
    /// was only late has not begun anew, and is asked to, as by a driver that goes: its answer proves that it uses no
    /// memory of this host any more. Does a part of it; true: there is more to do at once.
    fn attach_again(&self) -> bool {
        let result = {
            let mut core = self.lock();
            let core = &mut *core;
            if DriverPlace::load(&core.glue.bar).is_some() {
                DriverPlace::withdraw(&core.glue.bar);
                core.glue.bar.ring();
            }
            let up = core.glue.bar.load_acquire(header::MAGIC) == header::MAGIC_VALUE
                && !DriverPlace::is_in_use(&core.glue.bar);
            if !up || core.open_ports > 0 || core.host.mapped_pages() > 0 {
                return false;
            }
            let result = core.host.reattach(&mut core.glue, now(), ENTRIES);
            if result == Ok(Progress::Done) {
                // SAFETY: the card lives.
                unsafe { shim::nv_card_start(self.shim.as_ptr()) };
                core.glue.shared.clear();
                self.quiet.store(false, Ordering::Release);
                tell_place(&core.glue);
            }
            result
        };
        match result {
            Ok(Progress::Again | Progress::Wait) => return true,
            Ok(Progress::Done) => pr_info!(
                "netvm{}: the card has begun anew and is attached again\n",
                self.number()
            ),
            Err(error) if shim::nv_may_log() => {
                pr_warn!("netvm{}: the card has begun anew, but {}\n", self.number(), error);
            }
            Err(_) => {}
        }
        false
    }
}

/// Tells the card where the driver's memory is: from now on it uses it.
fn tell_place(glue: &Glue) {
    let place = DriverPlace {
        memory: glue.shared.ppn(),
        bounce: glue.bounce.ppn(),
    };
    place.publish(&glue.bar);
    glue.bar.ring();
}

/// The body of a card's thread.
///
/// # Safety
/// The card lives as long as the thread.
pub(crate) unsafe fn body(card: NonNull<shim::NvCard>) {
    // SAFETY: as promised.
    let shim = unsafe { CardRef::new(card) };
    // SAFETY: a thread may sleep. Secrets of capabilities come from the generator.
    unsafe { shim::nv_random_wait() };
    // SAFETY: `shim` keeps the card.
    let interrupt = unsafe { Event::of_interrupt(shim.as_ptr()) };
    let mut told = false;
    let card = loop {
        if Thread::should_stop() {
            return;
        }
        if Thread::should_rest() {
            rest_without(&shim);
        }
        let seen = interrupt.count();
        match HostCard::attach(&shim) {
            Ok(card) => break card,
            Err(trouble) => told = tell(&trouble, told),
        }
        interrupt.thread_wait(seen, LOOK);
    };
    let raw = Arc::into_raw(card.clone());
    // SAFETY: the card lives; the reference is given back below, when no file can be opened any more.
    let code = unsafe { shim::nv_device_add(shim.as_ptr(), raw.cast_mut().cast::<c_void>()) };
    if code == 0 {
        let geometry = card.with(|host, _, _| *host.geometry());
        pr_info!(
            "netvm{}: node {} of {}; {} ports, {} KiB of driver memory\n",
            card.number(),
            card.with(|host, _, _| host.node()),
            geometry.nodes,
            geometry.ports,
            card.with(|_, glue, _| glue.shared.bytes() + glue.bounce.bytes()) >> 10
        );
        card.serve();
        card.leave();
    } else {
        pr_err!("the device cannot be made (errno {})\n", -code);
        // It was told of the driver's memory already.
        card.get_memory_back();
        card.detach();
        while !Thread::should_stop() {
            if Thread::should_rest() {
                rest_without(&shim);
            }
            interrupt.thread_wait(interrupt.count(), u64::MAX);
        }
    }
    // SAFETY: from `into_raw` above; C does not use it any more.
    drop(unsafe { Arc::from_raw(raw) });
}

/// Says why a card is not attached, once.
fn tell(trouble: &Trouble, told: bool) -> bool {
    if told || matches!(trouble, Trouble::NotUp) {
        return told;
    }
    match trouble {
        Trouble::NotUp => {}
        Trouble::Never(error) => pr_err!("the card cannot be used: {}\n", error),
        Trouble::Used => pr_warn!(
            "the card still uses the memory of an earlier driver: it is asked to begin anew (reset it if it does not)\n"
        ),
        Trouble::Small(words) => pr_err!("the card's tables do not fit into its {} words\n", words),
        Trouble::NoMemory(bytes) => pr_err!("no memory for the card ({} bytes); trying again\n", bytes),
    }
    true
}
