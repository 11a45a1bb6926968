//! Sending: what goes into the rings, and when it counts as done.
//!
//! | completion level | message of one entry | longer one |
//! |---|---|---|
//! | `FI_INJECT_COMPLETE` | its bytes were copied | the receiver has all of it |
//! | `FI_TRANSMIT_COMPLETE`, the default | the other node has received it: one flush for all that were written before, or the other endpoint has said that it took it | the receiver has all of it |
//! | `FI_DELIVERY_COMPLETE`, `FI_MATCH_COMPLETE` | the receiver says that it is in a buffer | the same |

use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm::Port;
use zerocopy::IntoBytes;

use super::conn::Conn;
use super::ring::{Calls, Full, Outbound};
use super::{Counted, Endpoint, State};
use crate::address::Address;
use crate::buffer::Buffer;
use crate::cq::{Completion, Failed};
use crate::fi::*;
use crate::info::QUEUE;
use crate::wire::{ANSWER, HEAD_BYTES, Head, INJECT_BYTES, Kind, PAGE, Part, TAGGED};

/// When a message counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Its bytes are copied.
    Staged,
    /// The other node has it.
    Received,
    /// It is in the receiver's buffer.
    Delivered,
}

impl Level {
    /// The level that flags ask for.
    pub(crate) const fn of(flags: u64) -> Self {
        if flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE) != 0 {
            Self::Delivered
        } else if flags & FI_INJECT_COMPLETE != 0 {
            Self::Staged
        } else {
            Self::Received
        }
    }
}

/// A message of the program's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Send {
    pub(crate) buffer: Buffer,
    pub(crate) context: usize,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    /// [`TAGGED`], [`crate::wire::WITH_DATA`].
    pub(crate) flags: u8,
    pub(crate) level: Level,
    pub(crate) completes: bool,
    /// The program may use its buffer again when the call returns.
    pub(crate) inject: bool,
    /// With `FI_MORE` the card is called for it with what follows.
    pub(crate) calls: Calls,
}

/// A message whose end is to be told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    context: usize,
    flags: u64,
    completes: bool,
}

impl From<&Send> for Ended {
    fn from(send: &Send) -> Self {
        let kind = if send.flags & TAGGED == 0 {
            FI_MSG
        } else {
            FI_TAGGED
        };
        Self {
            context: send.context,
            flags: FI_SEND | kind,
            completes: send.completes,
        }
    }
}

/// A message that was written, and whose completion waits until the other node has received it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Where it ends in the ring.
    pub(super) end: u64,
    ended: Ended,
}

/// A message whose receiver is to say something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    conn: usize,
    buffer: Buffer,
    ended: Ended,
}

/// A message that goes in pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    buffer: Buffer,
    at: usize,
    /// As much as the receiver takes.
    end: usize,
    /// How the receiver calls it.
    name: u64,
}

/// How long an endpoint that closes waits for room for what it has to say.
const FAREWELL: Duration = Duration::from_secs(1);
/// Bytes of a piece: a page with its head.
const PIECE: usize = PAGE as usize - HEAD_BYTES;

impl Endpoint {
    /// Sends a message.
    ///
    /// # Errors
    /// There is no room now, or no such endpoint.
    pub(crate) fn send(self: &Arc<Self>, to: u64, send: Send) -> Answer {
        let mut state = self.active()?;
        let at = state.route(self, to)?;
        state.send(at, send)
    }
}

impl State {
    /// The connection to an address of the vector.
    pub(crate) fn route(&mut self, endpoint: &Arc<Endpoint>, to: u64) -> Answer<usize> {
        self.follow_av();
        let index = usize::try_from(to).map_err(|_| Errno::INVAL)?;
        if let Some(Some(at)) = self.routes.get(index) {
            return Ok(*at);
        }
        let address: Option<Address> = self.av.as_ref().and_then(|av| av.address(to));
        let at = self.conn_to(endpoint, address.ok_or(Errno::INVAL)?)?;
        if self.routes.len() <= index {
            self.routes.resize(index + 1, None);
        }
        if let Some(place) = self.routes.get_mut(index) {
            *place = Some(at);
        }
        Ok(at)
    }

    /// Addresses may have been inserted and removed.
    pub(super) fn follow_av(&mut self) {
        let Some(av) = &self.av else { return };
        let version = av.version();
        if version == self.av_seen {
            return;
        }
        self.av_seen = version;
        self.routes.clear();
        self.senders.clear();
        for conn in &mut self.conns {
            conn.from = av.index(&conn.address).unwrap_or(FI_ADDR_NOTAVAIL);
        }
        let conns = &self.conns;
        let name = |at: usize| conns.get(at).map_or(FI_ADDR_NOTAVAIL, |conn| conn.from);
        self.tagged.rename(name);
        self.untagged.rename(name);
    }

    fn send(&mut self, at: usize, send: Send) -> Answer {
        let conn = self.conns.get_mut(at).ok_or(Errno::INVAL)?;
        if let Some(errno) = conn.failed {
            return Err(errno);
        }
        if conn.waiting.is_empty() && conn.outbound.is_some() {
            match self.try_send(at, &send, send.calls) {
                Ok(()) => return Ok(()),
                Err(Full::Now) => {}
                Err(Full::Gone(_)) => {
                    self.conn_failed(at, Errno::CONNRESET);
                    return Err(Errno::CONNRESET);
                }
            }
        }
        let conn = self.conns.get_mut(at).ok_or(Errno::INVAL)?;
        if send.inject || conn.waiting.len() >= QUEUE {
            return Err(Errno::AGAIN);
        }
        conn.waiting.push_back(send);
        Ok(())
    }

    fn try_send(&mut self, at: usize, send: &Send, calls: Calls) -> Result<(), Full> {
        let len = send.buffer.len();
        let conn = self.conns.get_mut(at).ok_or(Full::Now)?;
        let mut head = Head {
            flags: send.flags,
            tag: send.tag,
            data: send.data,
            total: len as u64,
            cookie: self.next_cookie,
            ..Head::new(Kind::Eager)
        };
        let ended = Ended::from(send);
        if len > INJECT_BYTES {
            head.kind = Kind::Offer as u8;
            let parts = offer(&send.buffer);
            let bytes = parts.as_bytes();
            conn.put(&mut head, bytes.len(), calls, |room| room.copy_from_slice(bytes))?;
        } else {
            if send.level == Level::Delivered {
                head.flags |= ANSWER;
            }
            conn.put(&mut head, len, calls, |room| send.buffer.gather(0, room))?;
            match send.level {
                Level::Delivered => {}
                Level::Received if send.completes || self.ends.counts(Counted::Send) => {
                    let end = conn.outbound.as_ref().map_or(0, Outbound::end);
                    conn.written.push(Written { end, ended });
                    return Ok(());
                }
                Level::Staged | Level::Received => {
                    self.end_send(ended, Errno(0));
                    return Ok(());
                }
            }
        }
        let cookie = self.cookie();
        self.sent.insert(
            cookie,
            Sent {
                conn: at,
                buffer: send.buffer,
                ended,
            },
        );
        Ok(())
    }

    /// Ends the messages that the other side has taken, as it has just said.
    pub(super) fn end_taken(&mut self, at: usize) {
        let taken = self.conns.get_mut(at).map(Conn::taken);
        for message in taken.unwrap_or_default() {
            self.end_send(message.ended, Errno(0));
        }
    }

    /// A message has ended; with 0, well.
    fn end_send(&self, ended: Ended, errno: Errno) {
        let completion = Completion::new(ended.context, ended.flags);
        if errno.0 == 0 {
            self.ends.good(Counted::Send, ended.completes, completion);
        } else {
            self.ends.bad(
                Counted::Send,
                Failed {
                    completion,
                    errno,
                    status: 0,
                    over: 0,
                },
            );
        }
    }

    /// The receiver is done with a message.
    pub(super) fn sent_is_done(&mut self, at: usize, cookie: u64, errno: u64) {
        let known = self.sent.get(&cookie).is_some_and(|sent| sent.conn == at);
        if known && let Some(sent) = self.sent.remove(&cookie) {
            self.end_send(sent.ended, Errno(i32::try_from(errno).unwrap_or(libc::EIO)));
        }
    }

    /// The receiver asks for a message in pieces.
    pub(super) fn push(&mut self, at: usize, cookie: u64, name: u64, wanted: u64) {
        let Some(sent) = self.sent.get(&cookie).filter(|sent| sent.conn == at) else {
            return;
        };
        let len = sent.buffer.len();
        let pieces = Pieces {
            buffer: sent.buffer,
            at: 0,
            end: usize::try_from(wanted).map_or(len, |wanted| wanted.min(len)),
            name,
        };
        if let Some(conn) = self.conns.get_mut(at) {
            conn.pieces.push_back(pieces);
        }
    }

    /// Writes what waits for room, and ends what has been received.
    #[inline]
    pub(super) fn transmit(&mut self, endpoint: &Endpoint, at: usize) {
        let Some(conn) = self.conns.get(at) else { return };
        let rests = conn.notes.is_empty()
            && conn.waiting.is_empty()
            && conn.pieces.is_empty()
            && conn.written.is_empty()
            && conn.flushing.is_none()
            && conn.inbound.to_report().is_none();
        if rests || conn.failed.is_some() || conn.outbound.is_none() {
            return;
        }
        let written = self.write_waiting(at);
        let outbound = self.conns.get_mut(at).and_then(|conn| conn.outbound.as_mut());
        if outbound.is_some_and(Outbound::rings) {
            endpoint.port.progress();
        }
        if let Err(Full::Gone(error)) = written {
            crate::log::trace(|| format!("a ring is gone: {error}"));
            self.conn_failed(at, Errno::CONNRESET);
            return;
        }
        self.flush(endpoint, at);
    }

    fn write_waiting(&mut self, at: usize) -> Result<(), Full> {
        let Some(conn) = self.conns.get_mut(at) else {
            return Ok(());
        };
        // First, since it needs no room: without room on either side both wait for it.
        if let Some(come) = conn.inbound.to_report()
            && let Some(outbound) = &conn.outbound
        {
            outbound.tell(come)?;
            conn.inbound.reported();
        }
        while let Some(mut head) = conn.notes.front().copied() {
            conn.put(&mut head, 0, Calls::Later, |_| {})?;
            conn.notes.pop_front();
        }
        while let Some(send) = self.conns.get(at).and_then(|conn| conn.waiting.front().copied()) {
            self.try_send(at, &send, Calls::Later)?;
            if let Some(conn) = self.conns.get_mut(at) {
                conn.waiting.pop_front();
            }
        }
        let Some(conn) = self.conns.get_mut(at) else {
            return Ok(());
        };
        while let Some(mut pieces) = conn.pieces.front().copied() {
            while pieces.at < pieces.end {
                let len = PIECE.min(pieces.end - pieces.at);
                let mut head = Head {
                    tag: pieces.name,
                    data: pieces.at as u64,
                    ..Head::new(Kind::Piece)
                };
                let (buffer, from) = (pieces.buffer, pieces.at);
                conn.put(&mut head, len, Calls::Later, |room| buffer.gather(from, room))?;
                pieces.at += len;
                if let Some(first) = conn.pieces.front_mut() {
                    first.at = pieces.at;
                }
            }
            conn.pieces.pop_front();
        }
        Ok(())
    }

    /// One flush for all messages that were written before.
    fn flush(&mut self, endpoint: &Endpoint, at: usize) {
        let Some(conn) = self.conns.get_mut(at) else {
            return;
        };
        if let Some((flush, _)) = &mut conn.flushing {
            let Some(end) = flush.end() else { return };
            let ended = conn.flushing.take().map(|(_, ended)| ended).unwrap_or_default();
            let errno = end.map_or_else(|error| crate::rma::errno_of(&error), |()| Errno(0));
            for message in ended {
                self.end_send(message.ended, errno);
            }
        }
        let Some(conn) = self.conns.get_mut(at) else {
            return;
        };
        if conn.written.is_empty() {
            return;
        }
        let Some(node) = conn.node() else { return };
        match endpoint.port.begin_flush_received(node) {
            Ok(flush) => conn.flushing = Some((flush, std::mem::take(&mut conn.written))),
            Err(netvm::Error::NoRoom { .. }) => {}
            Err(_) => self.conn_failed(at, Errno::CONNRESET),
        }
    }

    /// A connection is gone: everything that waits for it fails.
    pub(super) fn conn_failed(&mut self, at: usize, errno: Errno) {
        let Some(conn) = self.conns.get_mut(at).filter(|conn| conn.failed.is_none()) else {
            return;
        };
        conn.failed = Some(errno);
        conn.notes.clear();
        conn.pieces.clear();
        let flushing = conn.flushing.take().map(|(_, written)| written);
        let written = flushing
            .into_iter()
            .flatten()
            .chain(std::mem::take(&mut conn.written));
        let mut ended: Vec<Ended> = written.map(|message| message.ended).collect();
        ended.extend(std::mem::take(&mut conn.waiting).iter().map(Ended::from));
        let address = conn.address;
        self.sent.retain(|_, sent| {
            if sent.conn == at {
                ended.push(sent.ended);
            }
            sent.conn != at
        });
        crate::log::trace(|| {
            let (to, failed) = (address.text(), ended.len());
            format!("the connection to {to} ends ({errno:?}), and {failed} messages with it")
        });
        for ended in ended {
            self.end_send(ended, errno);
        }
        self.arrivals_failed(at, errno);
        self.tagged.forget_offers(at, errno);
        self.untagged.forget_offers(at, errno);
        // Another try makes another connection, unless the endpoint has said that it is gone.
        if errno == Errno::HOSTUNREACH {
            self.by_address.remove(&address);
            self.routes.clear();
        }
    }

    /// Looks whether nodes have gone.
    pub(super) fn check_links(&mut self, endpoint: &Endpoint) {
        let (domain, me) = (endpoint.domain(), endpoint.address.node());
        for at in 0..self.conns.len() {
            let node = self
                .conns
                .get(at)
                .filter(|conn| conn.failed.is_none())
                .and_then(|conn| conn.node());
            if node.is_some_and(|node| node != me && !domain.node.is_up(node)) {
                self.conn_failed(at, Errno::CONNRESET);
            }
        }
    }

    /// Tells the other sides that the endpoint closes, after what they are to be told of messages.
    pub(super) fn say_goodbye(&mut self, port: &Port) {
        let end = Instant::now() + FAREWELL;
        let has_more =
            |conn: &Conn| conn.failed.is_none() && conn.outbound.is_some() && !conn.notes.is_empty();
        while self.conns.iter().any(has_more) && Instant::now() < end {
            port.progress();
            for at in 0..self.conns.len() {
                // Without room, or without a ring, the next round finds out.
                let _ = self.write_waiting(at);
            }
        }
        for conn in self.conns.iter_mut().filter(|conn| conn.failed.is_none()) {
            // Without room the other side finds out when it writes.
            let _ = conn.put(&mut Head::new(Kind::Bye), 0, Calls::Now, |_| {});
        }
    }
}

/// The memory that an offer names.
fn offer(buffer: &Buffer) -> Vec<Part> {
    let part = |(start, len): (usize, usize)| Part {
        start: start as u64,
        len: len as u64,
    };
    buffer.parts().filter(|(_, len)| *len > 0).map(part).collect()
}
