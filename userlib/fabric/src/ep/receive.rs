//! Receiving: entries of the rings, and receives of the program.

use std::sync::Arc;

use zerocopy::FromBytes;

use super::conn::Conn;
use super::matching::{ANY, Body, Envelope, Message, Receive};
use super::pull::{Pulled, pull};
use super::ring::{Broken, Entry};
use super::{Counted, Endpoint, State};
use crate::buffer::Buffer;
use crate::cq::{Completion, Failed};
use crate::fi::*;
use crate::info::IOV;
use crate::wire::{ANSWER, Head, Kind, Part, TAGGED, WITH_DATA};

/// A message that comes in pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arriving {
    receive: Receive,
    envelope: Envelope,
    /// Where its bytes go.
    room: Buffer,
    got: usize,
}

/// What is asked of a receive that is not simply posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// Says what is there.
    pub(crate) peek: bool,
    /// Keeps the message that was found, or takes the one that was kept.
    pub(crate) claim: bool,
    /// Throws it away.
    pub(crate) discard: bool,
}

/// Entries that are taken from one ring before the others have their turn.
const TURN: usize = 64;

impl Endpoint {
    /// Posts a receive.
    pub(crate) fn receive(self: &Arc<Self>, tagged: bool, mut receive: Receive, asked: Asked) -> Answer {
        let mut state = self.active()?;
        state.follow_av();
        receive.from = if self.caps & FI_DIRECTED_RECV == 0 {
            ANY
        } else {
            state.sender(receive.from)
        };
        if asked.peek || asked.claim || asked.discard {
            // What has come by now counts.
            self.port.progress();
            state.progress(self);
            return state.ask(tagged, receive, asked);
        }
        if state.queue(tagged).receives() >= MOST_RECEIVES {
            return Err(Errno::AGAIN);
        }
        state.post(tagged, receive);
        Ok(())
    }

    /// Takes a receive back.
    pub(crate) fn cancel(self: &Arc<Self>, context: usize) -> Answer {
        let mut state = self.active()?;
        for tagged in [true, false] {
            if let Some(receive) = state.queue(tagged).cancel(context) {
                let completion = Completion::new(context, FI_RECV | kind(tagged));
                state.fail_receive(&receive, completion, Errno::CANCELED, 0);
                return Ok(());
            }
        }
        Err(Errno::NOENT)
    }
}

/// Receives that may wait.
const MOST_RECEIVES: usize = 1 << 20;

const fn kind(tagged: bool) -> u64 {
    if tagged { FI_TAGGED } else { FI_MSG }
}

impl State {
    fn queue(&mut self, tagged: bool) -> &mut super::Queue {
        if tagged {
            &mut self.tagged
        } else {
            &mut self.untagged
        }
    }

    /// What messages of an address say that they are from. It may have been inserted twice: they are from the first.
    fn sender(&mut self, from: fi_addr_t) -> u64 {
        let Some(index) = usize::try_from(from).ok().filter(|_| from != ANY) else {
            return from;
        };
        if let Some(Some(first)) = self.senders.get(index) {
            return *first;
        }
        let first = self.av.as_ref().and_then(|av| av.index(&av.address(from)?));
        let Some(first) = first else { return from };
        if self.senders.len() <= index {
            self.senders.resize(index + 1, None);
        }
        if let Some(place) = self.senders.get_mut(index) {
            *place = Some(first);
        }
        first
    }

    fn post(&mut self, tagged: bool, receive: Receive) {
        let mut receive = receive;
        if receive.multi {
            receive.several = self.cookie();
        }
        // A receive of several messages takes what waits, as long as it has room.
        loop {
            let Some(message) = self.queue(tagged).message_for(&receive) else {
                self.queue(tagged).push_receive(receive);
                return;
            };
            if !receive.multi {
                self.give(&receive, message);
                return;
            }
            let one = Receive {
                multi: false,
                ..receive
            };
            let len = usize::try_from(message.envelope.total).unwrap_or(usize::MAX);
            receive.used = receive.used.saturating_add(len);
            let ends = receive.buffer.len().saturating_sub(receive.used) < self.least.max(1);
            self.give(&Receive { multi: ends, ..one }, message);
            if ends {
                return;
            }
        }
    }

    /// Gives a message that has waited to a receive.
    fn give(&mut self, receive: &Receive, message: Message) {
        let envelope = message.envelope;
        match message.body {
            Body::Here(bytes) => {
                let room = room_of(receive, &envelope);
                let _ = room.scatter(0, room.len(), |at, piece| {
                    let end = at + piece.len();
                    piece.copy_from_slice(bytes.get(at..end).ok_or(())?);
                    Ok::<(), ()>(())
                });
                self.received(receive, &envelope);
            }
            Body::There(parts) => self.fetch(receive, &envelope, &parts),
            Body::Gone(errno) => self.fail_message(receive, &envelope, errno),
        }
    }

    fn ask(&mut self, tagged: bool, receive: Receive, asked: Asked) -> Answer {
        if !asked.peek {
            let message = self.queue(tagged).claimed(receive.context).ok_or(Errno::INVAL)?;
            if asked.discard {
                self.discard(tagged, &receive, &message);
            } else {
                self.give(&receive, message);
            }
            return Ok(());
        }
        let found = self.queue(tagged).peek(&receive).map(|message| message.envelope);
        let Some(envelope) = found else {
            let completion = Completion::new(receive.context, FI_RECV | kind(tagged));
            self.fail_receive(&receive, completion, Errno::NOMSG, 0);
            return Ok(());
        };
        if asked.claim {
            self.queue(tagged).claim(&receive);
        } else if asked.discard {
            if let Some(message) = self.queue(tagged).message_for(&receive) {
                self.discard(tagged, &receive, &message);
            }
            return Ok(());
        }
        let len = usize::try_from(envelope.total).unwrap_or(usize::MAX);
        let completion = Completion {
            len,
            ..completion_of(&receive, &envelope)
        };
        self.ends.good(Counted::Receive, receive.completes, completion);
        Ok(())
    }

    /// Throws a message away: its sender hears that it was received.
    fn discard(&mut self, tagged: bool, receive: &Receive, message: &Message) {
        let envelope = message.envelope;
        if envelope.flags & ANSWER != 0 || matches!(message.body, Body::There(_)) {
            self.answer(&envelope, Errno(0));
        }
        let completion = Completion {
            flags: FI_RECV | kind(tagged),
            len: 0,
            ..completion_of(receive, &envelope)
        };
        self.ends.good(Counted::Receive, receive.completes, completion);
    }

    /// Tells the sender of a message that it is done with.
    fn answer(&mut self, envelope: &Envelope, errno: Errno) {
        if let Some(conn) = self
            .conns
            .get_mut(envelope.conn)
            .filter(|conn| conn.failed.is_none())
        {
            conn.note(Head {
                cookie: envelope.cookie,
                data: u64::from(errno.0.unsigned_abs()),
                ..Head::new(Kind::Done)
            });
        }
    }

    /// Whether a message of a receive gives its buffer back: not while others are still coming to it, whichever was the last one to
    /// begin.
    fn ending(&mut self, receive: &Receive) -> Receive {
        if receive.several == 0 {
            return *receive;
        }
        if receive.multi {
            self.full.push(receive.several);
        }
        let mut arriving = self.arriving.values();
        let comes_more = arriving.any(|arriving| arriving.receive.several == receive.several);
        let full = self.full.iter().position(|&full| full == receive.several);
        let ends = full.filter(|_| !comes_more);
        if let Some(at) = ends {
            self.full.swap_remove(at);
        }
        Receive {
            multi: ends.is_some(),
            ..*receive
        }
    }

    /// A message has not come to its buffer.
    fn fail_message(&mut self, receive: &Receive, envelope: &Envelope, errno: Errno) {
        let receive = self.ending(receive);
        self.fail_receive(&receive, completion_of(&receive, envelope), errno, 0);
    }

    /// A message is in its buffer.
    fn received(&mut self, receive: &Receive, envelope: &Envelope) {
        let receive = &self.ending(receive);
        let completion = completion_of(receive, envelope);
        let over = usize::try_from(envelope.total).unwrap_or(usize::MAX) - completion.len;
        if over > 0 {
            self.fail_receive(receive, completion, Errno::TRUNC, over);
        } else {
            self.ends.good(Counted::Receive, receive.completes, completion);
        }
        if envelope.flags & ANSWER != 0 {
            self.answer(envelope, Errno(0));
        }
    }

    fn fail_receive(&self, receive: &Receive, completion: Completion, errno: Errno, over: usize) {
        let completion = Completion {
            context: receive.context,
            ..completion
        };
        self.ends.bad(
            Counted::Receive,
            Failed {
                completion,
                errno,
                status: 0,
                over,
            },
        );
    }

    /// Gets a message whose bytes are in the sender's memory.
    fn fetch(&mut self, receive: &Receive, envelope: &Envelope, parts: &[Part]) {
        let room = room_of(receive, envelope);
        let Some(conn) = self.conns.get_mut(envelope.conn) else {
            return;
        };
        if room.len() == 0 {
            self.fetched(receive, envelope);
            return;
        }
        if let Some(errno) = conn.failed {
            self.fail_message(receive, envelope, errno);
            return;
        }
        if let Some(peer) = conn.peer.filter(|_| conn.pulls != Some(false)) {
            match pull(&conn.address, &peer, parts, &room) {
                Pulled::All => {
                    conn.pulls = Some(true);
                    self.fetched(receive, envelope);
                    return;
                }
                Pulled::Refused => {
                    crate::log::trace(|| {
                        "memory of the sender cannot be read: large messages go in pieces".into()
                    });
                    conn.pulls = Some(false);
                }
                Pulled::Failed(errno) => {
                    self.fail_message(receive, envelope, errno);
                    self.answer(envelope, errno);
                    return;
                }
            }
        }
        let name = self.cookie();
        if let Some(conn) = self.conns.get_mut(envelope.conn) {
            conn.note(Head {
                tag: name,
                cookie: envelope.cookie,
                total: room.len() as u64,
                ..Head::new(Kind::Push)
            });
        }
        self.arriving.insert(
            name,
            Arriving {
                receive: *receive,
                envelope: *envelope,
                room,
                got: 0,
            },
        );
    }

    /// All of a message that the sender has offered is here.
    fn fetched(&mut self, receive: &Receive, envelope: &Envelope) {
        let answered = Envelope {
            flags: envelope.flags | ANSWER,
            ..*envelope
        };
        self.received(receive, &answered);
    }

    /// Takes what has come by a connection.
    #[inline]
    pub(super) fn receive(&mut self, endpoint: &Arc<Endpoint>, at: usize) {
        for _ in 0..TURN {
            let Some(conn) = self.conns.get_mut(at).filter(|conn| !conn.deaf) else {
                return;
            };
            let done = match conn.inbound.next() {
                Ok(None) => return,
                Ok(Some(entry)) => self.take(at, &entry),
                Err(broken) => Err(broken),
            };
            if done.is_err() {
                crate::log::warn(&format!(
                    "endpoint {}: a ring makes no sense",
                    endpoint.address.text()
                ));
                self.hears_no_more(at, Errno::IO);
                return;
            }
        }
    }

    fn take(&mut self, at: usize, entry: &Entry) -> Result<(), Broken> {
        let head = entry.head;
        let conn = self.conns.get_mut(at).ok_or(Broken)?;
        if let Some(outbound) = &mut conn.outbound {
            outbound.heard(head.consumed);
        }
        // What it has taken has ended well, also where it closes with this.
        self.end_taken(at);
        match Kind::of(head.kind).ok_or(Broken)? {
            Kind::Eager => self.take_eager(at, entry)?,
            Kind::Offer => self.take_offer(at, entry)?,
            Kind::Push => self.push(at, head.cookie, head.tag, head.total),
            Kind::Piece => self.take_piece(at, entry)?,
            Kind::Done => self.sent_is_done(at, head.cookie, head.data),
            Kind::Written => self.was_written(&head),
            Kind::Bye => self.hears_no_more(at, Errno::CONNRESET),
            Kind::Skip => return Err(Broken),
        }
        if let Some(conn) = self.conns.get_mut(at) {
            conn.inbound.done(entry);
        }
        Ok(())
    }

    /// The other side has said its last word.
    fn hears_no_more(&mut self, at: usize, errno: Errno) {
        if let Some(conn) = self.conns.get_mut(at) {
            conn.deaf = true;
        }
        self.conn_failed(at, errno);
    }

    fn envelope(conn: &Conn, at: usize, head: &Head) -> Envelope {
        Envelope {
            conn: at,
            from: conn.from,
            tag: if head.flags & TAGGED == 0 { 0 } else { head.tag },
            data: head.data,
            flags: head.flags,
            total: head.total,
            cookie: head.cookie,
        }
    }

    fn take_eager(&mut self, at: usize, entry: &Entry) -> Result<(), Broken> {
        let head = entry.head;
        self.follow_av();
        let conn = self.conns.get(at).ok_or(Broken)?;
        if head.total != u64::from(head.size) {
            return Err(Broken);
        }
        let envelope = Self::envelope(conn, at, &head);
        let (tagged, least) = (head.flags & TAGGED != 0, self.least);
        let receive = self.queue(tagged).receive_for(&envelope, least);
        let conn = self.conns.get(at).ok_or(Broken)?;
        if let Some(receive) = receive {
            let room = room_of(&receive, &envelope);
            room.scatter(0, room.len(), |from, piece| {
                conn.inbound.copy(entry, from as u64, piece)
            })?;
            self.received(&receive, &envelope);
        } else {
            let mut bytes = vec![0; head.size.into()].into_boxed_slice();
            conn.inbound.copy(entry, 0, &mut bytes)?;
            self.queue(tagged).push_message(Message {
                envelope,
                body: Body::Here(bytes),
            });
        }
        Ok(())
    }

    fn take_offer(&mut self, at: usize, entry: &Entry) -> Result<(), Broken> {
        let head = entry.head;
        self.follow_av();
        let conn = self.conns.get(at).ok_or(Broken)?;
        let mut bytes = [0; IOV * size_of::<Part>()];
        let bytes = bytes.get_mut(..head.size.into()).ok_or(Broken)?;
        conn.inbound.copy(entry, 0, bytes)?;
        let parts = <[Part]>::ref_from_bytes(bytes).map_err(|_| Broken)?.to_vec();
        let total = parts
            .iter()
            .try_fold(0_u64, |sum, part| sum.checked_add(part.len));
        if total != Some(head.total) {
            return Err(Broken);
        }
        let envelope = Self::envelope(conn, at, &head);
        let (tagged, least) = (head.flags & TAGGED != 0, self.least);
        let gone = conn.failed;
        if let Some(receive) = self.queue(tagged).receive_for(&envelope, least) {
            self.fetch(&receive, &envelope, &parts);
        } else {
            let body = gone.map_or(Body::There(parts), Body::Gone);
            self.queue(tagged).push_message(Message { envelope, body });
        }
        Ok(())
    }

    fn take_piece(&mut self, at: usize, entry: &Entry) -> Result<(), Broken> {
        let head = entry.head;
        let conn = self.conns.get(at).ok_or(Broken)?;
        if conn.failed.is_some() {
            // Its message has failed with the connection.
            return Ok(());
        }
        let arriving = self.arriving.get_mut(&head.tag).ok_or(Broken)?;
        let (from, len) = (
            usize::try_from(head.data).map_err(|_| Broken)?,
            usize::from(head.size),
        );
        // Pieces come in order.
        if arriving.envelope.conn != at || from != arriving.got || from + len > arriving.room.len() {
            return Err(Broken);
        }
        arriving.room.scatter(from, len, |inside, piece| {
            conn.inbound.copy(entry, inside as u64, piece)
        })?;
        arriving.got += len;
        if arriving.got == arriving.room.len()
            && let Some(arrived) = self.arriving.remove(&head.tag)
        {
            self.fetched(&arrived.receive, &arrived.envelope);
        }
        Ok(())
    }

    /// Another endpoint wrote memory of this process, and has data for the completion queue.
    fn was_written(&self, head: &Head) {
        let completion = Completion {
            len: usize::try_from(head.total).unwrap_or(usize::MAX),
            data: head.data,
            ..Completion::new(0, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA)
        };
        self.ends.good(Counted::Receive, true, completion);
    }

    /// Messages that were coming in pieces end with their connection.
    pub(super) fn arrivals_failed(&mut self, at: usize, errno: Errno) {
        let names: Vec<u64> = self
            .arriving
            .iter()
            .filter(|(_, arriving)| arriving.envelope.conn == at)
            .map(|(&name, _)| name)
            .collect();
        for name in names {
            if let Some(arriving) = self.arriving.remove(&name) {
                self.fail_message(&arriving.receive, &arriving.envelope, errno);
            }
        }
    }
}

/// Where the bytes of a message go.
fn room_of(receive: &Receive, envelope: &Envelope) -> Buffer {
    let total = usize::try_from(envelope.total).unwrap_or(usize::MAX);
    receive.buffer.part(receive.used, total)
}

/// How a receive of a message ends.
fn completion_of(receive: &Receive, envelope: &Envelope) -> Completion {
    let mut flags = FI_RECV | kind(envelope.flags & TAGGED != 0);
    if envelope.flags & WITH_DATA != 0 {
        flags |= FI_REMOTE_CQ_DATA;
    }
    if receive.multi {
        flags |= FI_MULTI_RECV;
    }
    Completion {
        context: receive.context,
        flags,
        len: room_of(receive, envelope).len(),
        buffer: receive.buffer.start() + receive.used,
        data: if envelope.flags & WITH_DATA == 0 {
            0
        } else {
            envelope.data
        },
        tag: envelope.tag,
        from: envelope.from,
    }
}
