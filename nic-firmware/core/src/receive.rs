//! A frame arrives: from its bytes to its place in the sequence window, and from there, when its
//! turn has come, out of it again (thesis 5.4, 6.2).
//!
//! ```text
//! handle_frame -> accept -> act -> write_arrives | read_arrives | flush_arrives | control_arrives
//!                             \-> end -> advance (LSN) -> pass: notification, acknowledgement
//! ```

use crate::nic::{Frame, Nic};
use crate::peer::Link;
use crate::platform::Platform;
use crate::slot::{Poison, SlotState};
use crate::window::Place;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{HEADER_BYTES, HEADER_WORDS, Header, Kind, MessageFlags};
use netvm_abi::{BounceId, Nanos, NodeId, ReceiveId};

/// How far a message got at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something will come back for it.
    Pending,
    /// It is over.
    Ended(Status),
}

/// The header of a frame, if it has a whole one and as much payload as that says.
#[inline]
fn decode(frame: &Frame) -> Option<Header> {
    let mut words = [0; HEADER_WORDS];
    for (word, chunk) in words.iter_mut().zip(frame.head.chunks_exact(4)) {
        if let Ok(chunk) = chunk.try_into() {
            *word = u32::from_le_bytes(chunk);
        }
    }
    let header = Header::decode_words(&words).ok()?;
    (HEADER_BYTES + usize::from(header.len) <= frame.len).then_some(header)
}

impl<S: Storage> Nic<S> {
    #[inline]
    pub(crate) fn frame_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, frame: &Frame) {
        self.counters.frames += 1;
        let receive = frame.receive;
        let geometry = &self.config.geometry;
        let header = match decode(frame) {
            Some(header)
                if header.destination == self.config.node
                    && header.source.0 < geometry.nodes
                    // Answers come from whatever port was asked, also from one that cannot be.
                    && (header.source_port.0 < geometry.ports || !header.kind.is_windowed())
                    && u32::from(header.len) <= geometry.payload =>
            {
                header
            }
            _ => {
                self.counters.malformed += 1;
                p.release_receive(receive);
                return;
            }
        };
        if !header.kind.is_windowed() {
            self.answer_arrives(p, now, receive, &header);
        } else if self.in_session(p, now, &header) {
            self.accept(p, now, receive, &header);
        } else {
            p.release_receive(receive);
        }
    }

    /// A message that takes no slot of the window: a greeting, an answer, an acknowledgement.
    #[inline(never)]
    fn answer_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, receive: ReceiveId, header: &Header) {
        match header.kind {
            Kind::Hello | Kind::HelloAck | Kind::Bye => self.greeting_arrives(p, now, header),
            _ if !self.in_session(p, now, header) => {}
            Kind::ReadReply => return self.reply_arrives(p, receive, header),
            Kind::FlushReply => self.flush_reply_arrives(p, header),
            Kind::Ack => self.ack_arrives(p, header),
            Kind::Error => self.error_arrives(p, header),
            Kind::Probe => {
                self.counters.probes_received += 1;
                self.note_announced(now, header.source, header.seq);
                self.send_ack(p, header.source);
            }
            _ => self.counters.malformed += 1,
        }
        p.release_receive(receive);
    }

    /// Whether a message belongs to the present life of its link.
    #[inline(always)]
    fn in_session<P: Platform>(&mut self, p: &mut P, now: Nanos, header: &Header) -> bool {
        let Some(peer) = self.peers.get_mut(header.source.index()) else {
            return false;
        };
        let same = header.source_incarnation == peer.remote && header.destination_incarnation == peer.local;
        if same && matches!(peer.link, Link::Up | Link::Accepted) {
            peer.heard(now);
            if peer.link == Link::Accepted {
                self.link_up(p, header.source);
            }
            return true;
        }
        self.refuse_stale(p, header);
        false
    }

    /// A windowed message gets its slot, once.
    #[inline(always)]
    fn accept<P: Platform>(&mut self, p: &mut P, now: Nanos, receive: ReceiveId, header: &Header) {
        let id = header.source;
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        let at = match peer.sequence.place(header.seq) {
            Place::Slot(index) => self.config.slot_id(id, index),
            place => return self.out_of_place(p, receive, place),
        };
        let (Some(slot), Some(peer)) = (self.slots.get_mut(at.index()), self.peers.get_mut(id.index()))
        else {
            return;
        };
        if slot.state != SlotState::Missing {
            return self.out_of_place(p, receive, Place::Before);
        }
        let at_lsn = header.seq == peer.sequence.lsn();
        if !at_lsn && !peer.sequence.anything_past_lsn() {
            peer.gap_since = now;
        }
        peer.sequence
            .arrived(header.seq, header.flags.contains(MessageFlags::ACK_REQUEST));
        self.counters.messages_received += 1;
        self.counters.bytes_received += u64::from(header.len);
        slot.header = *header;
        slot.receive = receive;
        slot.holds_receive = true;
        slot.generation.0 = slot.generation.0.wrapping_add(1);
        slot.status = Status::Ok;
        if !at_lsn {
            let ordered = header.flags.contains(MessageFlags::ORDERED) || header.kind == Kind::Flush;
            if ordered {
                self.counters.ordered_parked += 1;
                slot.state = SlotState::Ordered;
            }
            self.arm_probe(id, now);
            if ordered {
                return;
            }
        }
        if let Step::Ended(status) = self.act(p, now, at) {
            self.end(p, now, at, status);
        }
    }

    /// A message that has been here before, or that its sender had no credit for.
    #[cold]
    fn out_of_place<P: Platform>(&mut self, p: &mut P, receive: ReceiveId, place: Place) {
        if place == Place::Beyond {
            self.counters.out_of_window += 1;
        } else {
            self.counters.duplicates += 1;
        }
        p.release_receive(receive);
    }

    /// Does what the message in a slot asks for.
    #[inline]
    fn act<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) -> Step {
        let Some(slot) = self.slot(at) else {
            return Step::Ended(Status::Malformed);
        };
        match slot.header.kind {
            Kind::Write => self.write_arrives(p, now, at),
            Kind::ReadRequest => self.read_arrives(p, now, at),
            Kind::Flush => self.flush_arrives(p, at),
            Kind::Control => self.control_arrives(p, at),
            _ => {
                // Atomics have their place in the dispatch, and no handler yet.
                self.counters.unsupported += 1;
                Step::Ended(Status::Unsupported)
            }
        }
    }

    /// Takes up a message that has waited for a DMA slot or a staging buffer.
    pub(crate) fn resume<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) {
        match self.slot(at).map(|slot| slot.state) {
            Some(SlotState::Queued) => {
                if let Step::Ended(status) = self.act(p, now, at) {
                    self.end(p, now, at, status);
                }
            }
            Some(SlotState::Dead) => self.bury(p, now, at),
            _ => {}
        }
    }

    /// A message is over: its buffer goes back, its failure to the sender, and the LSN moves on.
    pub(crate) fn end<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, status: Status) {
        self.mark_ended(p, at, status);
        if let Some(peer) = self.slot(at).map(|slot| slot.header.source) {
            self.advance(p, now, peer);
        }
    }

    fn mark_ended<P: Platform>(&mut self, p: &mut P, at: BounceId, status: Status) {
        let Some(slot) = self.slots.get_mut(at.index()) else {
            return;
        };
        slot.status = status;
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        if status == Status::Ok {
            self.counters.messages_landed += 1;
            slot.state = SlotState::Landed;
            if mutant::is(Mutant::NotificationEarly) {
                self.deliver(p, at);
            }
        } else {
            self.counters.messages_failed += 1;
            slot.state = SlotState::Failed;
            let header = slot.header;
            if header.kind != Kind::Control {
                self.send_error(p, &header, status);
            }
        }
    }

    /// Moves the LSN over what has ended, and acts on ordered messages that it reaches. At most
    /// one round of the window.
    fn advance<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        let mut moved = false;
        for _ in 0..self.config.geometry.window {
            let Some(peer) = self.peers.get(id.index()) else {
                return;
            };
            let at = self.config.slot_id(id, peer.sequence.lsn_slot());
            match self.slot(at).map(|slot| slot.state) {
                Some(SlotState::Landed | SlotState::Failed) => {
                    self.pass(p, at);
                    moved = true;
                }
                Some(SlotState::Ordered) => match self.act(p, now, at) {
                    Step::Ended(status) => {
                        // It goes in this very round: who used it up without moving on would leave
                        // an ordered message at the LSN that nobody takes up again.
                        self.mark_ended(p, at, status);
                        self.pass(p, at);
                        moved = true;
                    }
                    Step::Pending => break,
                },
                _ => break,
            }
        }
        if moved {
            self.after_advance(p, now, id);
        }
    }

    /// The LSN passes a message: now its notification is due.
    #[inline]
    fn pass<P: Platform>(&mut self, p: &mut P, at: BounceId) {
        let Some(slot) = self.slots.get(at.index()) else {
            return;
        };
        let (status, header) = (slot.status, &slot.header);
        let id = header.source;
        let notifies = header.notification.is_some();
        let stream = self.config.stream_index(id, header.source_port);
        if let Some(stream) = self.streams.get_mut(stream)
            && let Some(poison) = stream.poison
        {
            // A new epoch: the sender's library has surfaced the error. Another owner of its port
            // did nothing wrong.
            let says_owner = matches!(header.kind, Kind::Write | Kind::Flush);
            if poison.epoch != header.epoch.0 || (says_owner && poison.owner != header.compare) {
                stream.poison = None;
            }
        }
        if status != Status::Ok {
            self.poison(at, status);
        }
        if notifies && !mutant::is(Mutant::NotificationEarly) {
            self.deliver(p, at);
        }
        self.set_slot(at, SlotState::Missing);
        if let Some(peer) = self.peers.get_mut(id.index()) {
            peer.sequence.advance();
        }
    }

    /// Delivers the notification of a message, if it has one and its stream and port are well.
    fn deliver<P: Platform>(&mut self, p: &mut P, at: BounceId) {
        let Some(slot) = self.slot(at) else {
            return;
        };
        let header = slot.header;
        if header.kind != Kind::Write || !header.notification.is_some() {
            return;
        }
        let port = header.destination_port;
        let stream = self.config.stream_index(header.source, header.source_port);
        let poisoned = self
            .streams
            .get(stream)
            .is_some_and(|stream| stream.poison.is_some());
        let open = self
            .ports
            .get(port.index())
            .is_some_and(|port| port.is(slot.port_generation));
        if poisoned || !open {
            self.counters.notifications_suppressed += 1;
            return;
        }
        if let Err(status) = self.notify(p, port, header.notification) {
            self.poison(at, status);
            self.send_error(p, &header, status);
        }
    }

    /// Suppresses the notifications of a message's stream until its epoch changes. Reads do not
    /// poison: they leave nothing undone at this side.
    #[cold]
    fn poison(&mut self, at: BounceId, status: Status) {
        let Some(header) = self.slot(at).map(|slot| slot.header) else {
            return;
        };
        let stream = self.config.stream_index(header.source, header.source_port);
        if let Some(stream) = self.streams.get_mut(stream)
            && stream.poison.is_none()
        {
            stream.poison = Some(Poison {
                epoch: header.epoch.0,
                owner: header.compare,
                status,
                op: header.op.0,
            });
            self.counters.streams_poisoned += 1;
        }
    }
}
