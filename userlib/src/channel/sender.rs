//! The sending end.

use super::ChannelStats;
#[cfg(feature = "tokio")]
use super::async_io::{AsyncChannelWriter, MessageSink};
use super::layout::{self, DESCRIPTION_BYTES, Farewell, HEAD_BYTES, Layout, Owner, Serial, credits, queue};
use super::look::Look;
use super::patience::{Patience, concerns};
use super::ready::RoomReady;
use super::stream::ChannelWriter;
use crate::error::{Error, Failure, Result};
use crate::export::{Access, Export};
#[cfg(feature = "tokio")]
use crate::fence::Until;
use crate::import::RemoteSegment;
use crate::notify::{OwnNotification, Want, Wish};
#[cfg(feature = "tokio")]
use crate::pending::Pending;
use crate::port::{Port, PortInner};
use crate::region::{Region, RegionSlice, Word64};
use crate::timeout::Timeout;
use crate::write::Source;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::INLINE_BYTES;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::{Epoch, Nanos, NodeId, OpId, PAGE_SIZE, PortId, Status};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The sending end of a channel: see the [module](crate::channel)'s text.
///
/// Dropping it says farewell: the receiver gets what was sent and then hears that this was all. That takes
/// a round trip. [`close`](Self::close) also says whether something was lost. It must be dropped before its [`Port`], or
/// the receiver is not told and finds the channel broken.
#[must_use = "dropping the sender ends the channel"]
pub struct Sender {
    port: Arc<PortInner>,
    layout: Layout,
    queue: RemoteSegment,
    // The export goes before the memory and the number.
    _export: Export,
    freed: Word64,
    left: Word64,
    replenished: OwnNotification,
    /// Where messages that do not fit a command are put together: an entry for each of the queue's. An entry
    /// that the receiver has given back was read here long before.
    outbox: Option<Region>,
    /// Messages sent.
    sent: u64,
    /// Entries given back, as far as is known here.
    returned: u64,
    /// The operations of messages that the receiver is not known to have taken.
    in_flight: VecDeque<OpId>,
    /// The stream's epoch when they were posted. Each report of a failure raises it, because the failure may have
    /// suppressed signals.
    epoch: Epoch,
    patience: Patience,
    /// Under way.
    look: Option<Look>,
    /// Where looks put what they read.
    looks: RegionSlice,
    said_farewell: bool,
    /// Everything has, with the farewell.
    landed: bool,
    end: Option<Error>,
    stats: ChannelStats,
}

impl Sender {
    /// Joins the channel of this name at that port, as its only sender. [`Timeout::Now`] asks once; otherwise
    /// the call waits until the channel is there.
    ///
    /// # Errors
    /// As [`Port::import`]; [`Error::NotAChannel`] when something else has that name;
    /// [`Error::ChannelTaken`]; as [`Port::alloc`] and [`Port::export`]; [`Error::Failed`].
    pub fn join(
        port: &Port,
        node: NodeId,
        at: PortId,
        name: &str,
        timeout: impl Into<Timeout>,
    ) -> Result<Self> {
        let queue = port.import(node, at, name, timeout)?;
        let mut description = [0; DESCRIPTION_BYTES];
        if queue.len() < PAGE_SIZE.into() {
            return Err(Error::NotAChannel {
                why: "it is too small to be a channel",
            });
        }
        queue.read(queue::DESCRIPTION, &mut description).aside().call()?;
        let layout = Layout::decode(&description, queue.len()).map_err(|why| Error::NotAChannel { why })?;

        let port = &port.inner;
        let replenished = OwnNotification::take(port, None)?;
        let id = replenished.id();
        let credits = port.alloc(PAGE_SIZE.into())?;
        let (freed, left) = (
            credits.word64(credits::FREED)?,
            credits.word64(credits::FAREWELL)?,
        );
        let owner = Owner {
            node: port.node_id(),
            port: port.port(),
            serial: Serial::new(
                port.backend.generation(),
                port.channels.fetch_add(1, Ordering::Relaxed),
            ),
            notification: id,
        };
        let access = Access::nobody()
            .and_port(node, at, Modes::READ | Modes::WRITE)
            .notify_own(id.0..=id.0);
        let export = crate::export::export(port, &owner.export_name(), &credits, &(..credits::LEN), &access)?;
        claim(&queue, owner)?;
        let epoch = queue.inner().stream.tag().epoch();
        Ok(Self {
            port: Arc::clone(port),
            layout,
            queue,
            _export: export,
            freed,
            left,
            replenished,
            outbox: None,
            sent: 0,
            returned: 0,
            in_flight: VecDeque::new(),
            epoch,
            patience: Patience::default(),
            look: None,
            looks: credits.slice(credits::LOOKS..credits::LOOKS + 8)?,
            said_farewell: false,
            landed: false,
            end: None,
            stats: ChannelStats::default(),
        })
    }

    /// Size of the largest message in bytes.
    #[must_use]
    pub const fn message_bytes(&self) -> u64 {
        self.layout.message_bytes
    }

    /// What it has done.
    #[must_use]
    pub const fn stats(&self) -> ChannelStats {
        self.stats
    }

    /// Messages that the receiver is not known to have taken.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.sent - self.returned
    }

    /// Sends a message, once there is room for it: spins a little, then blocks. Bytes are copied before the call returns.
    /// A slice of a region is transferred from where it is, with one command more, and must not change before the
    /// port's writes are [flushed](Port::flush_writes).
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::MessageTooLong`]; [`Error::ChannelClosed`] when the receiver has left;
    /// [`Error::ChannelBroken`] when it has died, or an earlier message was or may be lost; [`Error::Failed`] for an
    /// earlier operation of this port to that node that has nothing to do with the channel; [`Error::PortClosed`], [`Error::PortEnded`],
    /// [`Error::Memory`]. Unless the channel has ended, the message was not sent, and can be.
    pub fn send<'a>(&mut self, message: impl Into<Source<'a>>, timeout: impl Into<Timeout>) -> Result<()> {
        self.send_source(&message.into(), timeout.into())
    }

    /// A future that ends when a [`send`](Self::send) with [`Timeout::Now`] would not fail for want of room: there is some, or
    /// the channel has ended. It runs under any executor, and looks after the receiver as a send that waits does.
    pub const fn ready(&mut self) -> RoomReady<'_> {
        RoomReady::of(self)
    }

    /// Whether a send would not wait. If it would, what changes before it does not any more, and when to look again.
    pub(super) fn await_place(&mut self) -> Result<std::result::Result<(), Wish>> {
        if self.end.is_some() || self.has_room() {
            return Ok(Ok(()));
        }
        // Signals that came before the count is read say nothing more.
        self.replenished.clear();
        let seen = self.replenished.signals();
        self.note_returned()?;
        if self.left.load()? != 0 {
            self.end_with(Error::ChannelClosed);
        }
        if self.end.is_none() && !self.has_room() {
            // An end that it finds is told by the send.
            let looked = self.look_when_due();
            if self.end.is_none() {
                looked?;
            }
        }
        if self.end.is_some() || self.has_room() {
            return Ok(Ok(()));
        }
        let until = self.look_due(self.port.backend.now());
        Ok(Err(Want::Change(self.replenished.id(), seen).until(until)))
    }

    pub(super) const fn port(&self) -> &Arc<PortInner> {
        &self.port
    }

    fn send_source(&mut self, message: &Source<'_>, timeout: Timeout) -> Result<()> {
        let len = match message {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Slice(slice) => slice.len(),
            Source::Part(slice) => slice.len(),
        };
        if len > self.layout.message_bytes {
            return Err(Error::MessageTooLong {
                len,
                limit: self.layout.message_bytes,
            });
        }
        self.await_room(timeout)?;
        self.check_epoch()?;
        if mutant::is(Mutant::MessageLost) && self.sent % 16 == 15 {
            return Ok(());
        }
        self.put(message, len)?;
        if mutant::is(Mutant::MessageTwice) && self.has_room() {
            self.put(message, len)?;
        }
        Ok(())
    }

    /// Sends a message for which there is room.
    fn put(&mut self, message: &Source<'_>, len: u64) -> Result<()> {
        let posted = match self.post(message, len) {
            Err(error) => return Err(self.judge(error)),
            Ok(op) => op,
        };
        self.in_flight.push_back(posted);
        self.sent += 1;
        self.stats.messages += 1;
        Ok(())
    }

    /// Writes a message into its entry. If that fails it can be repeated.
    fn post(&mut self, message: &Source<'_>, len: u64) -> Result<OpId> {
        let head = layout::head(self.sent, len);
        let id = self.layout.notification;
        let at = self.layout.remote_entry(self.sent);
        let whole = HEAD_BYTES + len;
        let slice = match message {
            Source::Bytes(bytes) => {
                if whole <= self.port.inline_limit {
                    let mut all = [0; INLINE_BYTES];
                    let (first, rest) = all.split_at_mut(HEAD_BYTES as usize);
                    first.copy_from_slice(&head);
                    if let Some(room) = rest.get_mut(..bytes.len()) {
                        room.copy_from_slice(bytes);
                    }
                    let all = all.get(..whole as usize).unwrap_or_default();
                    return self.queue.write(at, all).notify(id).post();
                }
                let outbox = self.outbox()?;
                let here = self.layout.entry(self.sent);
                outbox.write_from(here, &head)?;
                outbox.write_from(here + HEAD_BYTES, bytes)?;
                let slice = outbox.slice(here..here + whole)?;
                return self.queue.write(at, slice).notify(id).post();
            }
            Source::Slice(slice) => slice,
            Source::Part(slice) => slice,
        };
        if mutant::is(Mutant::HeadSignals) {
            self.queue.write(at, &head).notify(id).post()?;
            return self.queue.write(at + HEAD_BYTES, slice).post();
        }
        self.queue.write(at, &head).post()?;
        self.queue.write(at + HEAD_BYTES, slice).notify(id).post()
    }

    fn outbox(&mut self) -> Result<Region> {
        if let Some(outbox) = &self.outbox {
            return Ok(outbox.clone());
        }
        let len = self.layout.entries_len().unwrap_or_default();
        let outbox = self.port.alloc(len)?;
        self.outbox = Some(outbox.clone());
        Ok(outbox)
    }

    /// Waits for a free entry.
    fn await_room(&mut self, timeout: Timeout) -> Result<()> {
        let mut deadline = None;
        loop {
            if let Some(end) = self.end {
                return Err(end);
            }
            if self.has_room() {
                return Ok(());
            }
            // Signals that came before the count is read say nothing more.
            self.replenished.clear();
            self.note_returned()?;
            if self.left.load()? != 0 {
                return Err(self.end_with(Error::ChannelClosed));
            }
            if self.has_room() {
                return Ok(());
            }
            let now = self.port.backend.now();
            let deadline = *deadline.get_or_insert_with(|| {
                self.stats.waits += 1;
                timeout.deadline(now)
            });
            let until = deadline.min(self.look_due(now));
            match self.replenished.wait_until(until) {
                Ok(_) => continue,
                Err(Error::TimedOut) => {}
                Err(error) => return Err(error),
            }
            self.look_when_due()?;
            if self.port.backend.now() >= deadline {
                self.note_returned()?;
                return match self.end {
                    Some(end) => Err(end),
                    None if self.has_room() => Ok(()),
                    None => Err(Error::TimedOut),
                };
            }
        }
    }

    fn has_room(&self) -> bool {
        self.outstanding() < u64::from(self.layout.capacity) + u64::from(mutant::is(Mutant::OneTooMany))
    }

    /// Looks how many entries have been given back.
    fn note_returned(&mut self) -> Result<()> {
        let new = self.freed.load()?.wrapping_sub(self.returned);
        // More than are out is not a count of an honest receiver.
        if new == 0 || new > self.outstanding() {
            return Ok(());
        }
        self.returned += new;
        self.in_flight.drain(..(new as usize).min(self.in_flight.len()));
        self.stats.replenishments += 1;
        self.patience.renew();
        Ok(())
    }

    /// When the next look at the receiver is due, or at what came of the last.
    fn look_due(&mut self, now: Nanos) -> Nanos {
        let due = self.patience.due(now);
        self.look.as_ref().map_or(due, |look| due.min(look.due(now)))
    }

    /// Sees what came of a look that is under way, and looks whether the receiver still is there and the messages have
    /// arrived, if it is time for that. Does not wait for the receiver's node.
    fn look_when_due(&mut self) -> Result<()> {
        if let Some(ended) = self.look.as_mut().and_then(Look::seen) {
            self.look = None;
            match ended {
                Ok(()) => {}
                Err(Error::Failed(failure)) => return Err(self.broken(failure.status)),
                Err(error) => return Err(self.judge(error)),
            }
        }
        if !self.patience.is_over(self.port.backend.now()) {
            return Ok(());
        }
        if let Err(error) = self.port.hear(self.queue.node()) {
            return Err(self.judge(error));
        }
        self.check_epoch()?;
        if self.look.is_none() {
            self.stats.looks += 1;
            self.look = Some(Look::begin(&self.port, &self.queue, queue::OWNER, &self.looks)?);
        }
        Ok(())
    }

    /// What the failure of a call means for the channel.
    fn judge(&mut self, error: Error) -> Error {
        match error {
            Error::Failed(failure) if self.concerns(&failure) => self.broken(failure.status),
            // Not the channel's; but it has suppressed the signals of what was under way, if anything was.
            Error::Failed(_) | Error::FailuresLost { .. } | Error::StreamFailed { .. } => {
                self.check_epoch().err().unwrap_or(error)
            }
            _ => error,
        }
    }

    /// Ends the channel if a failure was reported, here or to another thread, while messages were under way.
    fn check_epoch(&mut self) -> Result<()> {
        let epoch = self.queue.inner().stream.tag().epoch();
        if epoch == self.epoch {
            return Ok(());
        }
        self.note_returned()?;
        if self.outstanding() > 0 {
            return Err(self.end_with(Error::MessagesLost));
        }
        self.epoch = epoch;
        Ok(())
    }

    fn concerns(&self, failure: &Failure) -> bool {
        concerns(&self.queue, failure) || self.in_flight.contains(&failure.op)
    }

    fn broken(&mut self, status: Status) -> Error {
        if matches!(self.left.load(), Ok(left) if left != 0) {
            return self.end_with(Error::ChannelClosed);
        }
        self.end_with(Error::ChannelBroken { status })
    }

    /// The channel has ended, for the first reason that is found. The receiver is told, if that can be.
    fn end_with(&mut self, why: Error) -> Error {
        let end = *self.end.get_or_insert(why);
        self.say_farewell();
        end
    }

    /// Tells the receiver that nothing more comes. What operations of the port have failed with is looked at, and left for
    /// the program.
    pub(super) fn say_farewell(&mut self) {
        if std::mem::replace(&mut self.said_farewell, true) {
            return;
        }
        loop {
            let farewell = Farewell {
                sent: self.sent,
                broken: self.end.is_some() || self.may_have_lost(),
            };
            let posted = self
                .queue
                .write(queue::FAREWELL, &farewell.encode().to_le_bytes())
                .ordered()
                .notify(self.layout.notification)
                .regardless()
                .aside()
                .post();
            match posted {
                // Another thread was told of a failure just now, and nothing was posted.
                Err(Error::StreamFailed { .. }) => {}
                _ => return,
            }
        }
    }

    /// Whether a message may be lost, by what is known of failures: one of the channel's own, or another, which has
    /// suppressed the signals of what was under way.
    fn may_have_lost(&mut self) -> bool {
        let (failures, more) = self.port.untold(self.queue.node());
        if failures.iter().any(|failure| self.concerns(failure)) {
            return true;
        }
        let told = self.queue.inner().stream.tag().epoch() != self.epoch;
        (told || more || !failures.is_empty()) && (self.note_returned().is_err() || self.outstanding() > 0)
    }

    /// Ends the channel and waits until everything that was sent has landed, with the word that it was all.
    ///
    /// # Errors
    /// [`Error::ChannelBroken`] when a message was or may be lost; [`Error::ChannelClosed`] when the receiver had left;
    /// as [`Port::flush_remote`].
    pub fn close(mut self) -> Result<()> {
        if self.end.is_none() {
            self.say_farewell();
            let landed = self.flush();
            self.landed = landed.is_ok();
            if mutant::is(Mutant::LossUntold) {
                return Ok(());
            }
            landed?;
        }
        self.end.map_or(Ok(()), Err)
    }

    /// Waits until everything that was sent has landed. It may not have been taken yet.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub fn flush(&mut self) -> Result<()> {
        if let Some(end) = self.end {
            return Err(end);
        }
        let ended = self.port.flush_remote(self.queue.node());
        self.flushed(ended)
    }

    /// What the end of a flush of its node means for the channel.
    pub(super) fn flushed(&mut self, ended: Result<()>) -> Result<()> {
        match ended {
            Ok(()) => self.check_epoch(),
            Err(error) => Err(self.judge(error)),
        }
    }

    /// The channel as a stream of bytes: [`Write`](std::io::Write). Each write waits so long at most.
    pub fn into_writer(self, timeout: impl Into<Timeout>) -> ChannelWriter {
        ChannelWriter::new(self, timeout.into())
    }
}

/// For asynchronous programs.
#[cfg(feature = "tokio")]
impl Sender {
    /// The channel as a [`Sink`](futures_sink::Sink) of messages.
    pub const fn into_sink(self) -> MessageSink {
        MessageSink::new(self)
    }

    /// The channel as a stream of bytes: [`AsyncWrite`](tokio::io::AsyncWrite).
    #[must_use = "dropping the sender ends the channel"]
    pub const fn into_async_writer(self) -> AsyncChannelWriter {
        AsyncChannelWriter::new(self)
    }

    /// Begins to [flush](Self::flush). [`Error::NoRoom`] where the port has none for it now.
    pub(super) fn begin_flush(&mut self) -> Result<Pending> {
        if let Some(end) = self.end {
            return Err(end);
        }
        Pending::flush(&self.port, self.queue.node(), Until::Landed).map_err(|error| self.judge(error))
    }

    /// Whether it has said farewell, and nothing has gone wrong.
    pub(super) const fn is_closing(&self) -> bool {
        self.said_farewell && self.end.is_none()
    }

    /// Everything has, with the farewell.
    pub(super) const fn has_landed(&mut self) {
        self.landed = true;
    }
}

/// Puts the sender's name into the queue, where no other is.
fn claim(queue: &RemoteSegment, owner: Owner) -> Result<()> {
    match queue.word64(queue::OWNER)?.compare_swap(0, owner.encode())? {
        0 => Ok(()),
        _ => Err(Error::ChannelTaken),
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Unwinding must not wait for room in the command queue; the receiver finds out by itself.
        if !std::thread::panicking() && !self.landed && self.port.alive().is_ok() {
            self.say_farewell();
            // The import ends with this; what is under way would be refused.
            let _ = self.port.settle(self.queue.node());
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("to", &self.queue)
            .field("sent", &self.sent)
            .field("outstanding", &self.outstanding())
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
