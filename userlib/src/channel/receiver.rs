//! The receiving end.

use super::ChannelStats;
#[cfg(feature = "tokio")]
use super::async_io::{AsyncChannelReader, MessageStream};
use super::body::Body;
use super::config::ChannelConfig;
use super::layout::{self, Farewell, HEAD_BYTES, Layout, Owner, credits, queue};
use super::look::{Look, Meeting, tell_freed};
use super::patience::Patience;
use super::ready::MessageReady;
use super::stream::ChannelReader;
use crate::backend::Refusal;
use crate::error::{Error, Result};
use crate::export::Export;
use crate::import::RemoteSegment;
use crate::notify::{Notification, OwnNotification, Want, Wish};
use crate::port::{Port, PortInner};
use crate::region::{Region, Word64};
use crate::timeout::Timeout;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::{Nanos, NodeId, PAGE_SIZE, PortId, Status};
use std::fmt;
use std::sync::Arc;

/// What the receiver knows of the sender.
enum Sending {
    /// No sender has joined, or this end has not met it yet.
    Unmet,
    /// This end binds to its export.
    Meets(Arc<Meeting>, Owner),
    /// Its export, and the number that tells it of a replenishment.
    By(RemoteSegment, Owner),
    /// It had joined, and has gone.
    Gone(Status),
}

/// The receiving end of a channel: see the [module](crate::channel)'s text.
///
/// Dropping it ends the channel: the sender is told, and what was not received is lost. That takes a round
/// trip. It must be dropped before its [`Port`], or the sender is not told and finds the channel broken.
#[must_use = "dropping the receiver ends the channel"]
pub struct Receiver {
    port: Arc<PortInner>,
    layout: Layout,
    refill: u64,
    // The export goes before the memory and the number.
    export: Export,
    memory: Region,
    owner: Word64,
    farewell: Word64,
    arrived: OwnNotification,
    /// Signals before the first of this channel.
    signals_before: u32,
    sending: Sending,
    /// Messages taken.
    received: u64,
    /// Entries that are the sender's again.
    freed: u64,
    /// As far as the sender was told.
    told: u64,
    patience: Patience,
    /// Under way.
    look: Option<Look>,
    looks_after_farewell: u32,
    /// What the program is to hear next: from a call that could not say it.
    unsaid: Option<Error>,
    end: Option<Error>,
    stats: ChannelStats,
}

impl Receiver {
    /// Makes a queue in this port's memory and exports it under this name, for one sender to
    /// [join](crate::Sender::join).
    ///
    /// # Errors
    /// [`Error::Refused`] for a capacity of 0; [`Error::MessageTooLong`] for messages of 4 GiB and more; as [`Port::alloc`] and
    /// [`Port::export`]; [`Error::NotificationNumber`], or [`Error::Refused`] when the number is taken.
    pub fn open(port: &Port, name: &str, config: ChannelConfig) -> Result<Self> {
        let port = &port.inner;
        let arrived = OwnNotification::take(port, config.notification)?;
        let layout = Layout {
            message_bytes: config.message_bytes,
            capacity: config.capacity,
            notification: arrived.id(),
        };
        if config.capacity == 0 {
            return Err(Error::Refused {
                what: "open a channel",
                reason: Refusal::Unsupported("its queue needs room for at least one message"),
            });
        }
        let len = layout.export_len().ok_or(Error::MessageTooLong {
            len: config.message_bytes,
            limit: u32::MAX.into(),
        })?;
        let memory = port.alloc(len)?;
        memory.write_from(queue::DESCRIPTION, &layout.encode())?;
        let (owner, farewell) = (memory.word64(queue::OWNER)?, memory.word64(queue::FAREWELL)?);
        // Nothing can signal before the export.
        let signals_before = arrived.signals();
        let export = crate::export::export(port, name, &memory, &(..), &config.access(arrived.id()))?;
        Ok(Self {
            port: Arc::clone(port),
            layout,
            refill: config.refill_or_default().into(),
            export,
            memory,
            owner,
            farewell,
            arrived,
            signals_before,
            sending: Sending::Unmet,
            received: 0,
            freed: 0,
            told: 0,
            patience: Patience::default(),
            look: None,
            looks_after_farewell: 0,
            unsaid: None,
            end: None,
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
        self.layout.message_bytes
    }

    /// Node and port of the sender, if one has joined.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn sender(&self) -> Result<Option<(NodeId, PortId)>> {
        let owner = Owner::decode(self.owner.load()?);
        Ok(owner.map(|owner| (owner.node, owner.port)))
    }

    /// The notification that is signalled for each message, and when the sender leaves, for programs
    /// that wait for several things: through [`Port::notifications`], with a
    /// [handler](Notification::arm), or as a [future](Notification::ready).
    ///
    /// Receiving acknowledges it. No acknowledgement hides a message: what can be received depends on
    /// what has arrived alone. A handler may receive everything, one message, or none and wake another
    /// thread; it is called once for each message that has not been received before.
    #[must_use]
    pub fn notification(&self) -> &Notification {
        &self.arrived
    }

    pub(super) const fn port(&self) -> &Arc<PortInner> {
        &self.port
    }

    /// What it has done.
    #[must_use]
    pub const fn stats(&self) -> ChannelStats {
        self.stats
    }

    /// Waits for the next message and borrows it where it lies: spins a little, then blocks. Its entry
    /// goes back to the sender when the borrow ends.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::ChannelClosed`] when the sender has left and everything was
    /// received; [`Error::ChannelBroken`] when it has died or a message was lost; [`Error::PortClosed`],
    /// [`Error::PortEnded`], [`Error::Memory`]: the call can be repeated if the port lives.
    pub fn recv(&mut self, timeout: impl Into<Timeout>) -> Result<Message<'_>> {
        let len = self.take(timeout.into())?;
        Ok(Message { receiver: self, len })
    }

    /// A future that ends when [`try_recv`](Self::try_recv) has something to say: a message, or that the channel has ended. It
    /// runs under any executor, and looks after the sender as a receive that waits does.
    ///
    /// ```no_run
    /// /// Prints each message, until the sender leaves.
    /// async fn print(receiver: &mut netvm::Receiver) -> netvm::Result<()> {
    ///     loop {
    ///         receiver.ready().await?;
    ///         match receiver.try_recv() {
    ///             Ok(Some(message)) => println!("{:?}", message.to_vec()?),
    ///             Ok(None) => {}
    ///             Err(netvm::Error::ChannelClosed) => return Ok(()),
    ///             Err(error) => return Err(error),
    ///         }
    ///     }
    /// }
    /// ```
    pub const fn ready(&mut self) -> MessageReady<'_> {
        MessageReady::of(self)
    }

    /// As [`recv`](Self::recv), if there is a message.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Option<Message<'_>>> {
        match self.recv(Timeout::Now) {
            Ok(message) => Ok(Some(message)),
            Err(Error::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for the next message, copies it and gives its entry back. Tells its length.
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`Error::MessageTooLong`] if it does not fit: the message is lost then.
    pub fn recv_into(&mut self, into: &mut [u8], timeout: impl Into<Timeout>) -> Result<usize> {
        self.recv(timeout)?.copy_to(into)
    }

    /// The channel as a stream of bytes: [`Read`](std::io::Read). Each read waits so long at most.
    pub fn into_reader(self, timeout: impl Into<Timeout>) -> ChannelReader {
        ChannelReader::new(self, timeout.into())
    }

    /// The messages as a [`Stream`](futures_core::Stream), each a copy.
    #[cfg(feature = "tokio")]
    pub const fn into_stream(self) -> MessageStream {
        MessageStream::new(self)
    }

    /// The channel as a stream of bytes for asynchronous programs: [`AsyncRead`](tokio::io::AsyncRead).
    #[cfg(feature = "tokio")]
    #[must_use = "dropping the receiver ends the channel"]
    pub const fn into_async_reader(self) -> AsyncChannelReader {
        AsyncChannelReader::new(self)
    }

    /// Whether no receive will ever give a message again.
    #[cfg(feature = "tokio")]
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some() || self.port.alive().is_err()
    }

    /// Waits for a message and takes it; tells its length. It is borrowed until [`free`](Self::free).
    pub(super) fn take(&mut self, timeout: Timeout) -> Result<u64> {
        self.free()?;
        if self.owes_entries()? {
            self.meet()?;
            self.free()?;
        }
        if let Some(unsaid) = self.unsaid.take() {
            return Err(unsaid);
        }
        if !self.await_arrival(timeout)? {
            return Err(self.ended(Error::ChannelClosed));
        }
        let mut head = [0; HEAD_BYTES as usize];
        self.memory.read_into(self.place(0), &mut head)?;
        let (number, len) = layout::split_head(head);
        if number != layout::number(self.received) {
            return Err(self.broken(Status::Malformed));
        }
        if len > self.layout.message_bytes {
            return Err(self.broken(Status::Malformed));
        }
        self.received += 1;
        let taken = self.signals_before.wrapping_add(self.received as u32);
        // The message is taken. Where it is not known whether another one has come, the next receive looks.
        self.arrived.took(taken, self.is_ready().unwrap_or(true));
        self.stats.messages += 1;
        self.patience.renew();
        if mutant::is(Mutant::BorrowedIsFree) {
            self.free()?;
        }
        Ok(len)
    }

    /// Where the entry of the next message lies, or, while one is borrowed, of the one that many before it.
    fn place(&self, before: u64) -> u64 {
        self.layout.remote_entry(self.received.wrapping_sub(before))
    }

    /// The message that is borrowed, which is so long.
    pub(super) fn borrowed(&self, len: u64) -> Body<'_> {
        Body {
            memory: &self.memory,
            at: self.place(1) + HEAD_BYTES,
            len,
        }
    }

    /// Waits until there is a message, or none will come any more: whether there is one. That is said once. A second look
    /// could find a farewell that has landed since, and not its signal: it would take the message's signal for that.
    fn await_arrival(&mut self, timeout: Timeout) -> Result<bool> {
        let mut deadline = None;
        loop {
            // Before the look: a message that this does not find changes the count.
            let seen = self.arrived.signals();
            if self.has_message()? {
                return Ok(true);
            }
            if self.has_all()? {
                return Ok(false);
            }
            if let Some(end) = self.end {
                return Err(end);
            }
            let now = self.port.backend.now();
            let deadline = *deadline.get_or_insert_with(|| {
                self.stats.waits += 1;
                timeout.deadline(now)
            });
            let until = deadline.min(self.look_due(now));
            match self.arrived.wait_signal(seen, until) {
                Ok(()) => continue,
                Err(Error::TimedOut) => {}
                Err(error) => return Err(error),
            }
            self.look_when_due()?;
            if self.port.backend.now() >= deadline && !self.is_ready()? {
                return Err(self.end.unwrap_or(Error::TimedOut));
            }
        }
    }

    /// Whether a receive would not wait. If it would, what changes before it does not any more, and when to look again.
    pub(super) fn await_news(&mut self) -> Result<std::result::Result<(), Wish>> {
        // Before the look, as where a receive waits.
        let seen = self.arrived.signals();
        self.free()?;
        if self.has_news()? {
            return Ok(Ok(()));
        }
        self.look_when_due()?;
        if self.has_news()? {
            return Ok(Ok(()));
        }
        let until = self.look_due(self.port.backend.now());
        Ok(Err(Want::Change(self.arrived.id(), seen).until(until)))
    }

    /// Signals of this channel for which nothing was received: of messages, and of a farewell.
    fn signals_left(&self) -> u32 {
        let signals = self.arrived.signals().wrapping_sub(self.signals_before);
        signals.wrapping_sub(self.received as u32)
    }

    /// Whether a message has come. Whether its signal is acknowledged does not matter.
    fn has_message(&self) -> Result<bool> {
        // In this order: a farewell has landed before it is signalled, so none is counted that is not seen. It
        // is signalled whatever was lost, and no proof that what it speaks of has landed: only a message's own
        // signal is that.
        let left = self.signals_left();
        if left == 0 || left <= u32::from(self.farewell.load()? != 0) {
            return Ok(false);
        }
        // After the load: the count was this port's, not its successor's.
        self.port.alive()?;
        Ok(true)
    }

    /// Whether a message has come, or the sender has left and everything was received.
    fn is_ready(&self) -> Result<bool> {
        Ok(self.has_message()? || self.has_all()?)
    }

    /// Whether the sender has left, and everything was received.
    fn has_all(&self) -> Result<bool> {
        let farewell = Farewell::decode(self.farewell.load()?);
        Ok(farewell.is_some_and(|farewell| !farewell.broken && farewell.sent == self.received))
    }

    /// Whether a receive would not wait, whatever it returns.
    pub(super) fn has_news(&self) -> Result<bool> {
        Ok(self.end.is_some() || self.unsaid.is_some() || self.is_ready()?)
    }

    /// The next receive returns this error.
    pub(super) const fn say_later(&mut self, error: Error) {
        self.unsaid = Some(error);
    }

    /// When the next look at the sender is due, or at what came of the last.
    pub(super) fn look_due(&mut self, now: Nanos) -> Nanos {
        let due = self.patience.due(now);
        let due = self.look.as_ref().map_or(due, |look| due.min(look.due(now)));
        match &self.sending {
            Sending::Meets(meeting, _) => due.min(meeting.due(now)),
            _ => due,
        }
    }

    /// Sees what came of what is under way, and looks whether the sender still is there, if it is time for that. If it is
    /// not, the channel has ended once everything that had come is received. Does not wait for the sender's node.
    pub(super) fn look_when_due(&mut self) -> Result<()> {
        if let Sending::Meets(..) = self.sending {
            self.meet()?;
            self.free()?;
        }
        if let Some(ended) = self.look.as_mut().and_then(Look::seen) {
            self.look = None;
            match ended {
                Ok(()) => {}
                Err(Error::Failed(failure)) => {
                    self.sending = Sending::Gone(failure.status);
                    self.judge_by_farewell()?;
                }
                Err(error) => return Err(error),
            }
        }
        if !self.patience.is_over(self.port.backend.now()) {
            return Ok(());
        }
        if self.farewell.load()? != 0 {
            // What the farewell speaks of had landed before it, or failed. Signals of what has landed follow
            // at once; by the second look they have had 15 ms.
            self.looks_after_farewell += 1;
            if self.looks_after_farewell >= 2 && !self.is_ready()? {
                self.ended(Error::MessagesLost);
            }
            return Ok(());
        }
        self.meet()?;
        // Also what an earlier attempt could not tell the sender.
        self.free()?;
        if let Sending::By(sender, _) = &self.sending
            && self.look.is_none()
        {
            self.stats.looks += 1;
            let into = self.memory.slice(queue::LOOKS..queue::LOOKS + 8)?;
            self.look = Some(Look::begin(&self.port, sender, credits::FREED, &into)?);
        }
        self.judge_by_farewell()
    }

    /// A sender that has gone has broken the channel, unless it has said farewell: then it is judged by that.
    fn judge_by_farewell(&mut self) -> Result<()> {
        if let Sending::Gone(status) = self.sending
            && self.farewell.load()? == 0
        {
            self.broken(status);
        }
        Ok(())
    }

    /// Binds to the export of the sender that has joined: begins to, or sees what came of it.
    fn meet(&mut self) -> Result<()> {
        if let Sending::Unmet = self.sending
            && let Some(owner) = Owner::decode(self.owner.load()?)
        {
            self.sending = Sending::Meets(Meeting::begin(&self.port, owner, self.freed)?, owner);
        }
        match &self.sending {
            Sending::Meets(meeting, owner) => match meeting.seen() {
                Some((bound, told)) => self.met(bound, *owner, told),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn met(&mut self, bound: Result<RemoteSegment>, owner: Owner, told: u64) -> Result<()> {
        self.stats.replenishments += u64::from(told > self.told);
        self.told = self.told.max(told);
        self.sending = match bound {
            Ok(sender) if sender.len() >= credits::LEN => Sending::By(sender, owner),
            Ok(_) => Sending::Gone(Status::Malformed),
            // The link may come back, and the look after this tells.
            Err(error) if error.status() == Some(Status::TimedOut) => Sending::Unmet,
            Err(error) => {
                self.port.alive()?;
                Sending::Gone(error.status().unwrap_or(Status::Malformed))
            }
        };
        Ok(())
    }

    /// Whether the sender is to be told of entries that are its again.
    fn owes_entries(&self) -> Result<bool> {
        // One that has said farewell needs no more room, and may not be there any more.
        Ok(self.freed - self.told >= self.refill
            && self.farewell.load()? == 0
            && !mutant::is(Mutant::CreditsKept))
    }

    /// Whatever was borrowed is the sender's again. Tells it, if that is enough to speak of and it was met, or is about to
    /// be: this waits for room in the command queue, and for no answer.
    pub(super) fn free(&mut self) -> Result<()> {
        self.freed = self.received;
        if let Sending::Meets(meeting, _) = &self.sending {
            meeting.free(self.freed);
            // It may have been over just now.
            self.meet()?;
        }
        if !self.owes_entries()? {
            return Ok(());
        }
        let Sending::By(sender, owner) = &self.sending else {
            return Ok(());
        };
        match tell_freed(sender, *owner, self.freed) {
            Ok(()) => {
                self.told = self.freed;
                self.stats.replenishments += 1;
                Ok(())
            }
            Err(error @ (Error::PortClosed | Error::PortEnded { .. })) => Err(error),
            // What the sender offers does not fit what it says.
            Err(_) => {
                self.sending = Sending::Gone(Status::Malformed);
                Ok(())
            }
        }
    }

    fn broken(&mut self, status: Status) -> Error {
        self.ended(Error::ChannelBroken { status })
    }

    /// The channel has ended, for the first reason that is found.
    fn ended(&mut self, why: Error) -> Error {
        *self.end.get_or_insert(why)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if std::thread::panicking() || self.port.alive().is_err() {
            return;
        }
        if let Sending::Meets(meeting, owner) = &self.sending {
            let ((bound, told), owner) = (meeting.wait(), *owner);
            // A sender that cannot be met finds the queue gone.
            let _ = self.met(bound, owner, told);
        }
        let Sending::By(sender, owner) = &self.sending else {
            return;
        };
        if self.end.is_none() {
            // A courtesy: a sender that has not heard of it finds the queue gone. What the program's operations have failed
            // with is left for it.
            let _ = sender
                .write(credits::FAREWELL, &1u64.to_le_bytes())
                .ordered()
                .notify(owner.notification)
                .regardless()
                .aside()
                .post();
        }
        // The import ends with this; what is under way would be refused.
        let _ = self.port.settle(sender.node());
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("name", &self.name())
            .field("received", &self.received)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// A message, borrowed where it arrived. Its sender does not write there before this is dropped (or, if it is
/// forgotten, before the next receive).
///
/// There is never a `&[u8]` of it, because a sender that is broken or malicious may write all the same: its
/// bytes are copied out, all or in parts. Read each part once.
pub struct Message<'a> {
    receiver: &'a mut Receiver,
    len: u64,
}

impl Message<'_> {
    fn body(&self) -> Body<'_> {
        self.receiver.borrowed(self.len)
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
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

impl Drop for Message<'_> {
    fn drop(&mut self) {
        // Unwinding must not wait for room in the command queue; the next receive gives the entry back.
        if !std::thread::panicking()
            && let Err(error) = self.receiver.free()
        {
            self.receiver.say_later(error);
        }
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.len)
    }
}

// The head lies in the first page with the words, so that entries begin at the second.
const _: () = assert!(queue::FAREWELL + 8 <= PAGE_SIZE as u64);
