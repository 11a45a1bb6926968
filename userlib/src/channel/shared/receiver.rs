//! The receiving end of a shared queue.

use super::SharedConfig;
use crate::backend::Refusal;
use crate::channel::ChannelStats;
use crate::channel::body::Body;
use crate::channel::ready::SharedReady;
use crate::error::{Error, Result};
use crate::export::Export;
use crate::notify::{Notification, OwnNotification, Want, Wish};
use crate::port::{Port, PortInner};
use crate::region::Region;
use crate::timeout::Timeout;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::shared_queue::{QueueShape, Record};
use netvm_abi::{NodeId, PAGE_SIZE, PortId, Status};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The receiving end of a shared queue: see the [module](crate::channel::shared)'s text.
///
/// Dropping it ends the queue: later appends are refused, and messages not received yet are lost.
#[must_use = "dropping the receiver ends the queue"]
pub struct SharedReceiver {
    port: Arc<PortInner>,
    // The export goes before the memory and the number.
    export: Export,
    memory: Region,
    arrived: OwnNotification,
    /// Signals before the first of this queue.
    signals_before: u32,
    entry: u64,
    entries: u32,
    /// The place to look at next; all before it have been looked at.
    next: u32,
    /// Places that were skipped.
    skipped: u64,
    stats: ChannelStats,
}

impl SharedReceiver {
    /// Makes a queue in this port's memory and exports it under this name, for senders to
    /// [join](super::SharedSender::join). A port has one in its life; for several queues open several ports.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`] for messages of more than a page; [`Error::Refused`] for a capacity of none or of more
    /// than 1,024, and for a second queue; as [`Port::alloc`] and [`Port::export`]; [`Error::NotificationNumber`], or
    /// [`Error::Refused`] when the number is taken.
    pub fn open(port: &Port, name: &str, config: SharedConfig) -> Result<Self> {
        let refused = |why| Error::Refused {
            what: "open a shared queue",
            reason: Refusal::Unsupported(why),
        };
        let port = &port.inner;
        let entry = config.entry().ok_or(Error::MessageTooLong {
            len: config.message_bytes,
            limit: PAGE_SIZE.into(),
        })?;
        let entries = config
            .entries()
            .ok_or_else(|| refused("it can have 1 to 1,024 places"))?;
        port.alive()?;
        if port.has_queue.swap(true, Ordering::AcqRel) {
            return Err(refused("the port has, or had, one: open another port"));
        }
        let opened = Self::make(port, name, &config, entry, entries);
        if opened.is_err() {
            // Nothing was exported, so the card has given out no place.
            port.has_queue.store(false, Ordering::Release);
        }
        opened
    }

    fn make(
        port: &Arc<PortInner>,
        name: &str,
        config: &SharedConfig,
        entry: u8,
        entries: u32,
    ) -> Result<Self> {
        let arrived = OwnNotification::take(port, config.notification)?;
        let memory = port.alloc(u64::from(entries) << entry)?;
        let shape = QueueShape {
            entry,
            // An event count has at most ten bits.
            number: arrived.id().0 as u16,
        };
        let access = config.access();
        // Nothing can signal before the export.
        let signals_before = arrived.signals();
        let export = crate::export::export_queue(port, name, &memory, &(..memory.len()), &access, shape)?;
        Ok(Self {
            port: Arc::clone(port),
            export,
            memory,
            arrived,
            signals_before,
            entry: 1 << entry,
            entries,
            next: 0,
            skipped: 0,
            stats: ChannelStats::default(),
        })
    }

    /// The name under which it can be joined.
    #[must_use]
    pub fn name(&self) -> &str {
        self.export.name()
    }

    /// Size of the largest message in bytes.
    #[must_use]
    pub const fn message_bytes(&self) -> u64 {
        self.entry
    }

    /// How many messages it has room for.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.entries
    }

    /// The notification that is raised for each message, for programs that wait for several things: through
    /// [`Port::notifications`], with a [handler](Notification::arm), or as a [future](Notification::ready).
    ///
    /// Receiving acknowledges it. No acknowledgement hides a message: what can be received depends on what has arrived
    /// alone. A handler may receive everything, one message, or none and wake another thread; it is called for each
    /// message that has not been received before. A call may find nothing, because an earlier place is still being
    /// filled; another call follows then.
    #[must_use]
    pub fn notification(&self) -> &Notification {
        &self.arrived
    }

    /// Its memory, which nothing else in this process can reach: for tests and for observers of its pages.
    #[must_use]
    pub const fn memory(&self) -> &Region {
        &self.memory
    }

    /// What it has done.
    #[must_use]
    pub const fn stats(&self) -> ChannelStats {
        self.stats
    }

    /// Places whose messages could not be put there; their senders have been told.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Waits for the next message and borrows it where it lies: spins a little, then blocks. Its place is given back
    /// when the borrow ends.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn recv(&mut self, timeout: impl Into<Timeout>) -> Result<SharedMessage<'_>> {
        let record = self.take(timeout.into())?;
        Ok(SharedMessage {
            receiver: self,
            record,
        })
    }

    /// As [`recv`](Self::recv), if there is a message.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Option<SharedMessage<'_>>> {
        match self.recv(Timeout::Now) {
            Ok(message) => Ok(Some(message)),
            Err(Error::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A future that ends when a place has come: [`try_recv`](Self::try_recv) gives its message, if there is one in it. It runs
    /// under any executor.
    pub const fn ready(&mut self) -> SharedReady<'_> {
        SharedReady::of(self)
    }

    /// As a stream of messages, each copied: see [`SharedStream`](crate::SharedStream).
    #[cfg(feature = "tokio")]
    pub const fn into_stream(self) -> crate::SharedStream {
        crate::SharedStream::new(self)
    }

    /// Whether a place has come. If not, what changes when one does.
    pub(in crate::channel) fn await_news(&self) -> Result<std::result::Result<(), Wish>> {
        // In this order, as where a receive waits.
        let seen = self.arrived.signals();
        let here = Record::load(&self.port.area, self.next).is_some();
        self.port.alive()?;
        if here {
            return Ok(Ok(()));
        }
        self.arrived.acknowledge_to(seen);
        Ok(Err(Want::Change(self.arrived.id(), seen).into()))
    }

    pub(in crate::channel) const fn port(&self) -> &Arc<PortInner> {
        &self.port
    }

    fn take(&mut self, timeout: Timeout) -> Result<Record> {
        // What was borrowed and forgotten goes back, too.
        self.port.free_places(self.next);
        let mut deadline = None;
        loop {
            // Before the look: the record comes before its signal, so a record that the look does not find changes
            // the count.
            let seen = self.arrived.signals();
            let record = Record::load(&self.port.area, self.next);
            // After the load: it was this port's record, not its successor's. Also, a card that is gone answers all ones,
            // which is no record.
            self.port.alive()?;
            if let Some(record) = record {
                self.next = self.next.wrapping_add(1);
                let more = Record::load(&self.port.area, self.next).is_some();
                // Each place raises the count once.
                let taken = self.signals_before.wrapping_add(self.next);
                self.arrived.took(taken, more);
                let skipped = mutant::is(Mutant::PlaceSkipped) && self.next.is_multiple_of(8);
                if record.status == Status::Ok && u64::from(record.len) <= self.entry && !skipped {
                    self.stats.messages += 1;
                    if mutant::is(Mutant::BorrowedPlaceIsFree) {
                        self.port.free_places(self.next);
                    }
                    return Ok(record);
                }
                self.skipped += 1;
                self.port.free_places(self.next);
                continue;
            }
            let now = self.port.backend.now();
            let deadline = *deadline.get_or_insert_with(|| {
                self.stats.waits += 1;
                timeout.deadline(now)
            });
            // What was signalled lies in places after this one, whose own signal brings all of them.
            self.arrived.acknowledge_to(seen);
            if timeout == Timeout::Now {
                // Without a wait no interrupt is asked for.
                return Err(Error::TimedOut);
            }
            self.arrived.wait_signal(seen, deadline)?;
        }
    }
}

impl fmt::Debug for SharedReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiver")
            .field("name", &self.name())
            .field("messages", &self.stats.messages)
            .field("skipped", &self.skipped)
            .finish_non_exhaustive()
    }
}

/// A message, borrowed where it arrived. Its place is not given to another message before this is dropped (or, if it is
/// forgotten, before the next receive).
///
/// There is never a `&[u8]` of it, because the memory may be a model, or paged out: its bytes are copied out, all or
/// in parts.
pub struct SharedMessage<'a> {
    receiver: &'a mut SharedReceiver,
    record: Record,
}

impl SharedMessage<'_> {
    fn body(&self) -> Body<'_> {
        let receiver = &self.receiver;
        Body {
            memory: &receiver.memory,
            at: u64::from(receiver.next.wrapping_sub(1) % receiver.entries) * receiver.entry,
            len: self.record.len.into(),
        }
    }

    /// Node and port of its sender, as the card says.
    #[must_use]
    pub const fn sender(&self) -> (NodeId, PortId) {
        (self.record.node, self.record.port)
    }

    /// Its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a message of no bytes cannot be sent")]
    pub const fn len(&self) -> usize {
        self.record.len as usize
    }

    /// Copies bytes from `offset` on out of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Memory`].
    pub fn read_into(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.body().read_into(offset, into)
    }

    /// `N` bytes from `offset` on: for numbers, with `from_le_bytes`.
    ///
    /// # Errors
    /// As [`read_into`](Self::read_into).
    pub fn array<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        self.body().array(offset)
    }

    /// Copies all of it to the beginning of `into`. Tells how much that was.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`], [`Error::Memory`].
    pub fn copy_to(&self, into: &mut [u8]) -> Result<usize> {
        self.body().copy_to(into)
    }

    /// A copy of all of it.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        self.body().to_vec()
    }
}

impl Drop for SharedMessage<'_> {
    fn drop(&mut self) {
        // One store, which the card sees when it needs to know: no doorbell.
        self.receiver.port.free_places(self.receiver.next);
    }
}

impl fmt::Debug for SharedMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, port) = self.sender();
        write!(
            f,
            "SharedMessage({} bytes from port {port} of node {node})",
            self.len()
        )
    }
}
