//! A port: a program's endpoint on a node.

use crate::backend::{Backend, OpenRequest, PortBackend, Refusal, Words};
use crate::error::{Error, Result};
use crate::export::{Access, Export};
use crate::fence::{Fences, Until};
use crate::import::RemoteSegment;
use crate::lease::{LeaseToken, Leased};
use crate::node::Node;
use crate::notify::{Inbox, Notification, NotificationQueue, Sleep};
use crate::pending::Pending;
use crate::poster::Poster;
use crate::ranges::RangeMap;
use crate::region::Region;
use crate::room::{Lack, Room};
use crate::staging::Staging;
use crate::stats::{Counters, PortStats};
use crate::timeout::Timeout;
use netvm_abi::bar::port::DOORBELL;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::INLINE_BYTES;
use netvm_abi::port_area::PORT_STATE;
use netvm_abi::words::SharedWords;
use netvm_abi::{Geometry, Nanos, NodeId, NotificationId, OpId, PAGE_SIZE, PortId, Status, VirtAddr};
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// How to open a port.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PortConfig {
    /// The port's number; others name it to import from it. Any free one if not given.
    pub port: Option<PortId>,
    /// Size of the region through which bytes pass that the card cannot reach where they are, in
    /// bytes; made at first use. At least four pages.
    pub staging_bytes: u64,
    /// How often [`Notification::wait`] looks before it blocks.
    pub spins: u32,
    /// How many one-shot notifications the library takes out of the card's queue ahead of
    /// [`NotificationQueue::pop`]. The card holds 1,024 more; then it refuses them to their senders.
    pub one_shot_backlog: usize,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            port: None,
            staging_bytes: 256 << 10,
            spins: 200,
            one_shot_backlog: 1024,
        }
    }
}

impl PortConfig {
    /// The defaults with this port number.
    #[must_use]
    pub fn number(port: u16) -> Self {
        Self {
            port: Some(PortId(port)),
            ..Self::default()
        }
    }

    /// Sets the bytes of staging.
    #[must_use]
    pub const fn staging_bytes(mut self, bytes: u64) -> Self {
        self.staging_bytes = bytes;
        self
    }

    /// Sets the number of looks before a wait blocks.
    #[must_use]
    pub const fn spins(mut self, spins: u32) -> Self {
        self.spins = spins;
        self
    }

    /// Sets the number of one-shot notifications taken ahead.
    #[must_use]
    pub const fn one_shot_backlog(mut self, count: usize) -> Self {
        self.one_shot_backlog = count;
        self
    }
}

/// A program's endpoint on a node: it owns regions, exports and imports, posts operations and
/// receives notifications.
///
/// Every method may be called from several threads at once. Operations of one port to one node make
/// one stream: in it notifications come after all earlier data (thesis 6.2) and failures are reported.
/// Dropping the port closes it, at any time and in any order with what was made from it: exports
/// end, remote operations are refused, calls on what is left give [`Error::PortClosed`]. What is
/// dropped after its port can say no farewell: the other end of a channel hears that it is broken, not
/// that it is closed. A structure's fields are dropped in the order of their declaration, so declare
/// the port after its channels, locks and queues.
///
/// # A shared port couples its users
///
/// Threads, and parts of a program that know nothing of each other, may share a port. They then share its streams, one for
/// each node, and with them:
///
/// - **Failures.** A failed operation is reported once, to whichever user asks that node first. The others get `Ok`, also
///   from [`flush_remote`](Self::flush_remote), though it may have been theirs.
/// - **Notifications.** Until it is reported, the failure of one user's operation suppresses the notifications of *all* users
///   to that node.
/// - **The dispatcher.** A handler that blocks holds up all handlers and futures of the port.
///
/// Users that must not be coupled open a port each: a port is cheap. A thread that shares one and whose data depends on
/// its own writes compares [`stats`](Self::stats)`().failures` from before its first write and after its
/// [`flush_remote`](Self::flush_remote); if it has risen, its own writes may be among those that failed.
///
/// # Example
///
/// ```no_run
/// use netvm::{Access, Node, Port, PortConfig, Timeout};
/// use std::time::Duration;
///
/// fn sender(node: &Node) -> netvm::Result<()> {
///     let port = Port::open(node, PortConfig::default())?;
///     let inbox = port.import(1.into(), 7.into(), "inbox", Timeout::After(Duration::from_secs(5)))?;
///     inbox.write(0, b"hello").notify(1).post()?;
///     port.flush_remote(1.into())
/// }
///
/// fn receiver(node: &Node) -> netvm::Result<()> {
///     let port = Port::open(node, PortConfig::number(7))?;
///     let memory = port.alloc(4096)?;
///     let _inbox = port.export("inbox", &memory, .., Access::everyone().notify(1..=1))?;
///     let arrived = port.notification(1)?;
///     arrived.wait(Timeout::Never)?;
///     arrived.ack()?;
///     let mut greeting = [0; 5];
///     memory.read_into(0, &mut greeting)
/// }
/// ```
#[must_use = "dropping a port closes it"]
pub struct Port {
    pub(crate) inner: Arc<PortInner>,
}

/// What a port and everything made from it share.
pub(crate) struct PortInner {
    pub(crate) backend: Arc<dyn PortBackend>,
    node: Node,
    pub(crate) geometry: Geometry,
    pub(crate) inline_limit: u64,
    pub(crate) config: PortConfig,
    pub(crate) block: Words,
    pub(crate) area: Words,
    pub(crate) status: Words,
    /// Shared by the port's regions, to tell them from others'.
    pub(crate) identity: Arc<()>,
    pub(crate) closed: AtomicBool,
    pub(crate) poster: Mutex<Poster>,
    /// A write has been posted for which the card was not called ([`crate::Write::more`]). Each thread reads what it has stored itself.
    pub(crate) owes_call: AtomicBool,
    pub(crate) fences: Mutex<Fences>,
    pub(crate) staging: Mutex<Staging>,
    /// The region of all memory, if the port has adopted that.
    pub(crate) everything: Mutex<Option<Region>>,
    pub(crate) inbox: Inbox,
    pub(crate) exports: Mutex<RangeMap<(), Weak<crate::export::ExportInner>>>,
    pub(crate) imports: Mutex<RangeMap<(NodeId, PortId), Weak<crate::import::RemoteInner>>>,
    pub(crate) counters: Counters,
    /// Where the port takes part in locks and queues, once it does.
    pub(crate) seats: Mutex<Option<Arc<crate::sync::Seats>>>,
    /// Whether it has, or had, a shared queue: the card counts its places from the port's beginning.
    pub(crate) has_queue: AtomicBool,
    /// Channels that it has joined as a sender.
    pub(crate) channels: AtomicU32,
}

impl PortInner {
    #[inline]
    pub(crate) fn poster(&self) -> MutexGuard<'_, Poster> {
        self.poster.lock()
    }

    /// Whether the port still works.
    #[inline]
    pub(crate) fn alive(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::PortClosed);
        }
        match self.area.load_acquire(PORT_STATE) {
            0 => Ok(()),
            code => Err(Error::PortEnded {
                status: Status::from_code(code as u8),
            }),
        }
    }

    pub(crate) fn check_node(&self, node: NodeId) -> Result<()> {
        if node.0 < self.geometry.nodes {
            return Ok(());
        }
        Err(Error::NoSuchNode {
            node,
            last: self.geometry.nodes.saturating_sub(1),
        })
    }

    pub(crate) fn port(&self) -> PortId {
        self.backend.port()
    }

    pub(crate) fn node_id(&self) -> NodeId {
        self.node.id()
    }

    pub(crate) fn alloc(&self, len: u64) -> Result<Region> {
        self.alive()?;
        if len == 0 {
            return Err(Error::Empty { what: "a region" });
        }
        self.may_have_more("allocate a region")?;
        let whole = len
            .checked_next_multiple_of(u64::from(PAGE_SIZE))
            .ok_or(Error::Refused {
                what: "allocate a region",
                reason: Refusal::Status(Status::NoMemory),
            })?;
        let memory = self.backend.alloc(whole).map_err(|reason| Error::Refused {
            what: "allocate a region",
            reason,
        })?;
        Ok(Region::new(memory, len, Arc::clone(&self.identity)))
    }
}

impl Port {
    /// Opens a port on `node` (thesis: register).
    ///
    /// # Errors
    /// [`Error::Refused`] when the number is taken, no port is free, or the driver says no.
    pub fn open(node: &Node, config: PortConfig) -> Result<Self> {
        let backend: &Arc<dyn Backend> = node.backend();
        let request = OpenRequest { port: config.port };
        let port = backend.open(&request).map_err(|reason| Error::Refused {
            what: "open a port",
            reason,
        })?;
        let geometry = backend.geometry();
        let limit = backend.inline_limit().clamp(8, INLINE_BYTES);
        let (block, area, status) = (port.block_words(), port.area_words(), port.status_words());
        // As the driver left it: the port's commands are counted from there.
        let counts_from = block.load_acquire(DOORBELL);
        let inner = PortInner {
            node: node.clone(),
            geometry,
            inline_limit: limit as u64,
            config,
            block,
            area,
            status,
            identity: Arc::new(()),
            closed: AtomicBool::new(false),
            poster: Mutex::new(Poster::new(geometry.nodes, port.generation(), counts_from)),
            owes_call: AtomicBool::new(false),
            fences: Mutex::new(Fences::starting_at(counts_from)),
            staging: Mutex::new(Staging::new(config.staging_bytes)),
            everything: Mutex::default(),
            inbox: Inbox::new(geometry.notification_queue),
            exports: Mutex::default(),
            imports: Mutex::default(),
            counters: Counters::default(),
            seats: Mutex::default(),
            has_queue: AtomicBool::new(false),
            channels: AtomicU32::new(0),
            backend: port,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> PortId {
        self.inner.port()
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.inner.node
    }

    /// The back end's clock: what time-outs are measured with.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.inner.backend.now()
    }

    /// The number that the next operation gets. What was posted before has an earlier one, modulo 2^32.
    #[doc(hidden)]
    #[must_use]
    pub fn next_op(&self) -> OpId {
        self.inner.poster().next_op()
    }

    /// What the port has done so far.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        let mut stats = {
            let poster = self.inner.poster();
            PortStats {
                failures: poster.failures.count,
                writes: poster.write_messages() - poster.continued,
                write_messages: poster.write_messages(),
                ..poster.stats
            }
        };
        let counters = &self.inner.counters;
        stats.acknowledged = self.inner.inbox.acknowledged();
        stats.handler_calls = counters.handler_calls.load(Ordering::Relaxed);
        stats.handler_panics = counters.handler_panics.load(Ordering::Relaxed);
        stats.blocked = counters.blocked.load(Ordering::Relaxed);
        stats
    }

    /// Lets the card work on what waits for it, and does not wait: a program that polls memory, or counts of
    /// [signals](Notification::pending), calls this between its looks. Waits of the library do so by themselves, and a card
    /// with processors of its own needs no call.
    #[inline]
    pub fn progress(&self) {
        self.inner.ring();
    }

    /// Makes a region of `len` zeroed bytes. No page of it is pinned or need be resident.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::Refused`] (no memory, table full), [`Error::PortClosed`].
    pub fn alloc(&self, len: u64) -> Result<Region> {
        self.inner.alloc(len)
    }

    /// Makes a region of memory that the process already has: heap, stack or a file mapping. The
    /// kernel's device and the software card can; other back ends refuse and say so.
    ///
    /// # Safety
    /// `start..start + len` is mapped for reading, and for writing too if this process writes through
    /// the region; it stays so until the last handle of the region has gone, and is reached by nothing
    /// but atomics and the region meanwhile: remote nodes write to it at any time (where the process
    /// itself may only read, they are refused). Should it be gone nevertheless, on x86-64 an access through the region ends in
    /// [`Error::Memory`], and an operation in [`Error::Failed`]; other processors end the process by a signal.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); [`Error::Refused`] where the back end cannot.
    pub unsafe fn adopt(&self, start: NonNull<u8>, len: u64) -> Result<Region> {
        self.inner.alive()?;
        if len == 0 {
            return Err(Error::Empty { what: "a region" });
        }
        self.inner.may_have_more("register this memory")?;
        // SAFETY: the caller's promise is the one that the back end asks for.
        let memory = unsafe { self.inner.backend.adopt(start, len) }.map_err(|reason| Error::Refused {
            what: "register this memory",
            reason,
        })?;
        Ok(Region::new(memory, len, Arc::clone(&self.inner.identity)))
    }

    /// Gives a name to a range of a region, so that others can import it. Costs the same for every
    /// size. A range may have several names, with different rights.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Empty`], [`Error::OutOfRange`], [`Error::ForeignRegion`];
    /// [`Error::Export`] when the name is taken or a table is full; [`Error::NotificationTaken`];
    /// [`Error::PortClosed`].
    pub fn export(
        &self,
        name: &str,
        region: &Region,
        range: impl RangeBounds<u64>,
        access: Access,
    ) -> Result<Export> {
        crate::export::export(&self.inner, name, region, &range, &access)
    }

    /// Binds to a name that another port exports, with all the rights that the exporter grants.
    /// [`Timeout::Now`] asks once; otherwise the call waits until the name is there.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::NoSuchNode`]; [`Error::Import`] with the reason of the last attempt;
    /// [`Error::PortClosed`].
    pub fn import(
        &self,
        node: NodeId,
        port: PortId,
        name: &str,
        timeout: impl Into<Timeout>,
    ) -> Result<RemoteSegment> {
        self.import_with(node, port, name, Modes::all(), timeout)
    }

    /// As [`import`](Self::import), with at most these rights.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn import_with(
        &self,
        node: NodeId,
        port: PortId,
        name: &str,
        modes: Modes,
        timeout: impl Into<Timeout>,
    ) -> Result<RemoteSegment> {
        crate::import::import(&self.inner, node, port, name, modes, timeout.into())
    }

    /// Uses memory that another port has lent to this one. Asks no driver, and no other node: whether the lease still lasts, the first access
    /// tells.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`], [`Error::PortClosed`].
    pub fn use_lease(&self, token: &LeaseToken) -> Result<Leased> {
        crate::lease::use_lease(&self.inner, token)
    }

    /// The export that holds this local address, and the offset in it (thesis: `export_lookup`). With
    /// several, any of them.
    #[must_use]
    pub fn locate(&self, address: VirtAddr) -> Option<(Export, u64)> {
        let exports = self.inner.exports.lock();
        let (start, segment) = exports.find((), address)?;
        Some((Export::from_inner(segment), address.0.wrapping_sub(start.0)))
    }

    /// The import that holds this address of another port, and the offset in it (thesis:
    /// `import_lookup`). With several, any of them.
    #[must_use]
    pub fn locate_remote(
        &self,
        node: NodeId,
        port: PortId,
        address: VirtAddr,
    ) -> Option<(RemoteSegment, u64)> {
        let imports = self.inner.imports.lock();
        let (start, remote) = imports.find((node, port), address)?;
        Some((RemoteSegment::from_inner(remote), address.0.wrapping_sub(start.0)))
    }

    /// Returns when every earlier read has ended: what they wrote is there.
    ///
    /// # Errors
    /// [`Error::Failed`] for an operation, to any node, that failed and was not yet reported;
    /// [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn flush_reads(&self) -> Result<()> {
        self.inner.flush(true, false)
    }

    /// Returns when every earlier write has left this node: what they were made from may change. That
    /// they have arrived is another thing: see [`flush_remote`](Self::flush_remote).
    ///
    /// # Errors
    /// As [`flush_reads`](Self::flush_reads).
    pub fn flush_writes(&self) -> Result<()> {
        self.inner.flush(false, true)
    }

    /// Both of the above.
    ///
    /// # Errors
    /// As [`flush_reads`](Self::flush_reads).
    pub fn flush(&self) -> Result<()> {
        self.inner.flush(true, true)
    }

    /// Returns when the card of `node` has received every earlier operation to it. From then on none needs anything of
    /// this process, or of this node's copy of it. It takes a round trip, however many they were, and more only where
    /// frames are lost; it waits for no page. That they have landed is another thing: see [`flush_remote`](Self::flush_remote). If this node dies, or its
    /// link does, what waits there for a page or for an earlier operation is dropped.
    ///
    /// # Errors
    /// [`Error::Failed`] for an operation to `node` that failed and was not yet reported, or if the link to it is lost
    /// meanwhile. An operation that has been received may still fail: [`flush_remote`](Self::flush_remote) tells.
    /// [`Error::NoSuchNode`], [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn flush_received(&self, node: NodeId) -> Result<()> {
        self.inner.flush_received(node)
    }

    /// Returns when every earlier write to `node` has landed there, at the cost of one round trip
    /// however many they were.
    ///
    /// # Errors
    /// [`Error::Failed`], naming the operation, if one of them failed; [`Error::NoSuchNode`],
    /// [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn flush_remote(&self, node: NodeId) -> Result<()> {
        self.inner.flush_remote(node)
    }

    /// As [`flush_remote`](Self::flush_remote), but gives up after a while.
    ///
    /// # Errors
    /// As [`flush_remote`](Self::flush_remote), and [`Error::TimedOut`]: what was written may land later.
    pub fn flush_remote_for(&self, node: NodeId, timeout: impl Into<Timeout>) -> Result<()> {
        self.inner.flush_for(node, Until::Landed, timeout.into())
    }

    /// As [`flush_received`](Self::flush_received), but gives up after a while.
    ///
    /// # Errors
    /// As [`flush_received`](Self::flush_received), and [`Error::TimedOut`].
    pub fn flush_received_for(&self, node: NodeId, timeout: impl Into<Timeout>) -> Result<()> {
        self.inner.flush_for(node, Until::Received, timeout.into())
    }

    /// Begins what [`flush_remote`](Self::flush_remote) does, and does not wait for it. It is for what was posted before.
    ///
    /// # Errors
    /// [`Error::NoRoom`], [`Error::NoSuchNode`], [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn begin_flush_remote(&self, node: NodeId) -> Result<Pending> {
        Pending::flush(&self.inner, node, Until::Landed)
    }

    /// Begins what [`flush_received`](Self::flush_received) does, and does not wait for it. It is for what was posted before.
    ///
    /// # Errors
    /// [`Error::NoRoom`], [`Error::NoSuchNode`], [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn begin_flush_received(&self, node: NodeId) -> Result<Pending> {
        Pending::flush(&self.inner, node, Until::Received)
    }

    /// A future that ends when there is room for a call that found none ([`Error::NoRoom`]). It runs under any executor.
    pub fn room(&self, lacks: Lack) -> Room {
        Room::new(&self.inner, lacks)
    }

    /// A future that ends when so much time of the back end's clock has passed. It runs under any executor, and in virtual time
    /// where the back end has that.
    pub fn sleep(&self, span: std::time::Duration) -> Sleep {
        let now = self.inner.backend.now();
        Sleep::new(&self.inner, Timeout::After(span).deadline(now))
    }

    /// An event-count notification of this port, 1 to 1023. Numbers up to 895 are the program's; those above, but 1023, the
    /// library takes for locks, queues, semaphores and channels of the port as it needs them
    /// ([`Access::notify`] has more).
    ///
    /// # Errors
    /// [`Error::NotificationNumber`]; [`Error::NotificationTaken`] for one that the library has taken.
    pub fn notification(&self, id: impl Into<NotificationId>) -> Result<Notification> {
        Notification::of_program(&self.inner, id.into())
    }

    /// The port's notification queue: one-shot notifications, and event-count ones as they come.
    #[must_use]
    pub fn notifications(&self) -> NotificationQueue {
        NotificationQueue::new(&self.inner)
    }

    /// Drives a future to its end, blocking the caller in the back end's way. The futures of this
    /// library run under any executor; this one is enough for a program that has none.
    ///
    /// A future that waits for another node's signal waits for ever if that node dies: no event tells that the signal
    /// will never come. Where that may happen use [`block_on_for`](Self::block_on_for).
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        crate::notify::block_on(&self.inner.backend, future)
    }

    /// As [`block_on`](Self::block_on), but gives up after a while: the future is dropped then.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn block_on_for<F: Future>(&self, future: F, timeout: impl Into<Timeout>) -> Result<F::Output> {
        let backend = &self.inner.backend;
        let deadline = timeout.into().deadline(backend.now());
        crate::notify::block_on_until(backend, future, deadline)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let inner = &self.inner;
        let _last = LetGo(inner);
        inner.closed.store(true, Ordering::Release);
        // The words are the next owner's of the number from here on. Each lock under which they are changed is taken once:
        // a thread that has it before sees the port end after its changes, one that has it later sees that it has ended.
        inner.poster().failures.close();
        inner.leave_fences();
        inner.leave_inbox();
        // Threads that wait at the port return before it closes: that takes as long as its transfers and page faults.
        inner.backend.wake();
        inner.backend.close();
    }
}

/// Lets go of what the library holds for a port that is closed, also where its closing is unwound.
struct LetGo<'a>(&'a PortInner);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        // What the library itself held for transfers that now have ended one way or another. Regions
        // may park when they are dropped, so outside of every lock.
        let held = self.0.poster().clear();
        let staged = self.0.staging.lock().take();
        let everything = self.0.everything.lock().take();
        // They hold the port, and the port holds them.
        let seats = self.0.seats.lock().take();
        self.0.close_inbox();
        drop((held, staged, everything, seats));
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({} on {:?})", self.id(), self.inner.node)
    }
}
