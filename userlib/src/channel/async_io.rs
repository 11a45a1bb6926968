//! Channels as streams and sinks of messages, and as streams of bytes, for asynchronous programs: the feature `tokio`.
//!
//! The traits are those of `futures-core`, `futures-sink` and `tokio::io`. Nothing here needs a runtime: each poll looks as a
//! [future](super::MessageReady) of the channel does, and the port's dispatcher wakes its task. No poll waits for the other
//! end. A send may wait for room in the port's command queue, as every post does: for the card, that is.

use super::ready::poll;
use super::{ChannelReader, Receiver, Sender, SharedReceiver};
use crate::error::{Error, Result};
use crate::notify::Watch;
use crate::pending::Pending;
use crate::room::Room;
use crate::timeout::Timeout;
use futures_core::Stream;
use futures_sink::Sink;
use netvm_abi::{NodeId, PortId};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Messages as they come, each a copy. From [`Receiver::into_stream`].
///
/// It ends when the sender has left, or after the first error that ends the channel.
#[must_use = "streams do nothing unless they are polled"]
pub struct MessageStream {
    receiver: Receiver,
    watch: Watch,
    over: bool,
}

impl MessageStream {
    pub(super) const fn new(receiver: Receiver) -> Self {
        Self {
            receiver,
            watch: Watch::new(),
            over: false,
        }
    }

    /// The channel.
    pub fn into_inner(self) -> Receiver {
        self.receiver
    }
}

impl Stream for MessageStream {
    type Item = Result<Vec<u8>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self {
            receiver,
            watch,
            over,
        } = &mut *self;
        if *over {
            return Poll::Ready(None);
        }
        loop {
            let came = receiver.try_recv().and_then(|message| match message {
                Some(message) => message.to_vec().map(Some),
                None => Ok(None),
            });
            match came {
                Ok(Some(bytes)) => return Poll::Ready(Some(Ok(bytes))),
                Ok(None) => {}
                Err(Error::ChannelClosed) => {
                    *over = true;
                    return Poll::Ready(None);
                }
                Err(error) => {
                    *over = receiver.has_ended();
                    return Poll::Ready(Some(Err(error)));
                }
            }
            if let Err(error) = ready!(poll(receiver, watch, context)) {
                *over = receiver.has_ended();
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

impl fmt::Debug for MessageStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageStream({:?})", self.receiver)
    }
}

/// Messages of a shared queue as they come, each a copy, with the node and port that have sent it. From
/// [`SharedReceiver::into_stream`].
///
/// It ends after the first error: the port has been closed, or the driver has ended it. Dropping it ends the queue.
#[must_use = "streams do nothing unless they are polled"]
pub struct SharedStream {
    receiver: SharedReceiver,
    watch: Watch,
    over: bool,
}

impl SharedStream {
    pub(crate) const fn new(receiver: SharedReceiver) -> Self {
        Self {
            receiver,
            watch: Watch::new(),
            over: false,
        }
    }

    /// The queue.
    pub fn into_inner(self) -> SharedReceiver {
        self.receiver
    }
}

impl Stream for SharedStream {
    type Item = Result<((NodeId, PortId), Vec<u8>)>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self {
            receiver,
            watch,
            over,
        } = &mut *self;
        if *over {
            return Poll::Ready(None);
        }
        loop {
            let came = receiver.try_recv().and_then(|message| match message {
                Some(message) => Ok(Some((message.sender(), message.to_vec()?))),
                None => Ok(None),
            });
            match came {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Ok(None) => {}
                Err(error) => {
                    *over = true;
                    return Poll::Ready(Some(Err(error)));
                }
            }
            if let Err(error) = ready!(poll(receiver, watch, context)) {
                *over = true;
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

impl fmt::Debug for SharedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedStream({:?})", self.receiver)
    }
}

/// The receiving end as an [`AsyncRead`]: ends when the sender has left. From [`Receiver::into_async_reader`].
///
/// Messages become bytes and lose their borders, as in a [`ChannelReader`].
pub struct AsyncChannelReader {
    reader: ChannelReader,
    watch: Watch,
}

impl AsyncChannelReader {
    pub(super) const fn new(receiver: Receiver) -> Self {
        Self {
            reader: ChannelReader::new(receiver, Timeout::Now),
            watch: Watch::new(),
        }
    }

    /// The channel. What is left of a message that was read in part is lost.
    pub fn into_inner(self) -> Receiver {
        self.reader.into_inner()
    }
}

impl AsyncRead for AsyncChannelReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { reader, watch } = &mut *self;
        loop {
            match reader.read_some(into.initialize_unfilled()) {
                Ok(count) => {
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(Error::TimedOut) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
            ready!(poll(reader.receiver_mut(), watch, context))?;
        }
    }
}

impl fmt::Debug for AsyncChannelReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncChannelReader({:?})", self.reader)
    }
}

/// The sending end, polled.
struct Outgoing {
    sender: Sender,
    watch: Watch,
    /// A flush under way: of everything that was sent before.
    landing: Option<Landing>,
    /// The receiver has everything, with the farewell.
    closed: bool,
}

enum Landing {
    /// There was no room for it.
    Room(Room),
    Flush(Pending),
}

impl Outgoing {
    const fn new(sender: Sender) -> Self {
        Self {
            sender,
            watch: Watch::new(),
            landing: None,
            closed: false,
        }
    }

    fn poll_room(&mut self, context: &Context<'_>) -> Poll<Result<()>> {
        if self.sender.is_closing() {
            return Poll::Ready(Err(Error::ChannelClosed));
        }
        poll(&mut self.sender, &mut self.watch, context)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        if self.sender.is_closing() {
            return Err(Error::ChannelClosed);
        }
        // A flush that was begun before says nothing of this message.
        self.landing = None;
        self.sender.send(bytes, Timeout::Now)
    }

    /// Until everything that was sent has landed.
    fn poll_landed(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            match &mut self.landing {
                None => {
                    self.landing = Some(match self.sender.begin_flush() {
                        Ok(flush) => Landing::Flush(flush),
                        Err(Error::NoRoom { lacks }) => Landing::Room(Room::new(self.sender.port(), lacks)),
                        Err(error) => return Poll::Ready(Err(error)),
                    });
                }
                Some(Landing::Room(room)) => {
                    let found = ready!(Pin::new(room).poll(context));
                    self.landing = None;
                    found?;
                }
                Some(Landing::Flush(flush)) => {
                    let ended = ready!(Pin::new(flush).poll(context));
                    self.landing = None;
                    return Poll::Ready(self.sender.flushed(ended));
                }
            }
        }
    }

    /// Says farewell, and waits until that has landed.
    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.closed {
            return Poll::Ready(Ok(()));
        }
        if !self.sender.is_closing() {
            self.landing = None;
            self.sender.say_farewell();
        }
        let landed = ready!(self.poll_landed(context));
        if landed.is_ok() {
            self.closed = true;
            self.sender.has_landed();
        }
        Poll::Ready(landed)
    }
}

/// Takes messages, each anything that has bytes. From [`Sender::into_sink`].
///
/// A flush ends when everything that was sent has landed; to close it says farewell and does the same. It must be closed to
/// learn whether all arrived: dropped, it says farewell and waits for a round trip, as [`Sender`] does.
#[must_use = "sinks do nothing unless they are polled"]
pub struct MessageSink {
    out: Outgoing,
}

impl MessageSink {
    pub(super) const fn new(sender: Sender) -> Self {
        Self {
            out: Outgoing::new(sender),
        }
    }

    /// The channel.
    pub fn into_inner(self) -> Sender {
        self.out.sender
    }
}

impl<M: AsRef<[u8]>> Sink<M> for MessageSink {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.out.poll_room(context)
    }

    fn start_send(mut self: Pin<&mut Self>, message: M) -> Result<()> {
        self.out.send(message.as_ref())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.out.poll_landed(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.out.poll_closed(context)
    }
}

impl fmt::Debug for MessageSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageSink({:?})", self.out.sender)
    }
}

/// The sending end as an [`AsyncWrite`]: each write is a message. From [`Sender::into_async_writer`].
///
/// A flush ends when everything has landed. A shutdown says farewell and does the same, and nothing can be written after it.
pub struct AsyncChannelWriter {
    out: Outgoing,
}

impl AsyncChannelWriter {
    pub(super) const fn new(sender: Sender) -> Self {
        Self {
            out: Outgoing::new(sender),
        }
    }

    /// The channel.
    pub fn into_inner(self) -> Sender {
        self.out.sender
    }
}

impl AsyncWrite for AsyncChannelWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let most = usize::try_from(self.out.sender.message_bytes()).unwrap_or(usize::MAX);
        let now = bytes.get(..bytes.len().min(most)).unwrap_or_default();
        if now.is_empty() {
            // A channel for empty messages carries no bytes: `write_all` says so.
            return Poll::Ready(Ok(0));
        }
        loop {
            ready!(self.out.poll_room(context))?;
            match self.out.send(now) {
                Ok(()) => return Poll::Ready(Ok(now.len())),
                Err(Error::TimedOut) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.out.poll_landed(context).map_err(io::Error::from)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.out.poll_closed(context).map_err(io::Error::from)
    }
}

impl fmt::Debug for AsyncChannelWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncChannelWriter({:?})", self.out.sender)
    }
}
