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
use netvm_abi::{Nanos, NodeId, ReceiveId};

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
        if matches!(header.kind, Kind::Hello | Kind::HelloAck | Kind::Bye) {
            self.greeting_arrives(p, now, &header);
            p.release_receive(receive);
            return;
        }
        if !self.in_session(p, now, &header) {
            p.release_receive(receive);
            return;
        }
        if header.kind.is_windowed() {
            self.accept(p, now, receive, &header);
            return;
        }
        match header.kind {
            Kind::ReadReply => {
                self.reply_arrives(p, receive, &header);
                return;
            }
            Kind::FlushReply => self.flush_reply_arrives(p, &header),
            Kind::Ack => self.ack_arrives(p, &header),
            Kind::Error => self.error_arrives(p, &header),
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
    #[inline]
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
        self.counters.stale_incarnation += 1;
        self.refuse_stale(p, header);
        false
    }

    /// A windowed message gets its slot, once.
    #[inline]
    fn accept<P: Platform>(&mut self, p: &mut P, now: Nanos, receive: ReceiveId, header: &Header) {
        let id = header.source;
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        let place = peer.sequence.place(header.seq);
        let index = match place {
            Place::Slot(slot) => slot,
            Place::Before | Place::Beyond => {
                if place == Place::Before {
                    self.counters.duplicates += 1;
                } else {
                    self.counters.out_of_window += 1;
                }
                p.release_receive(receive);
                return;
            }
        };
        let at = usize::from(self.config.geometry.window) * id.index() + usize::from(index);
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        if slot.state != SlotState::Missing {
            self.counters.duplicates += 1;
            p.release_receive(receive);
            return;
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
            self.arm_probe(id, now);
        }
        let ordered = header.flags.contains(MessageFlags::ORDERED) || header.kind == Kind::Flush;
        if ordered && !at_lsn {
            self.counters.ordered_parked += 1;
            self.set_slot(id, index, SlotState::Ordered);
            return;
        }
        if let Step::Ended(status) = self.act(p, now, id, index) {
            self.end(p, now, id, index, status);
        }
    }

    /// Does what the message in a slot asks for.
    #[inline]
    fn act<P: Platform>(&mut self, p: &mut P, now: Nanos, peer: NodeId, index: u16) -> Step {
        let Some(slot) = self.slot(peer, index) else {
            return Step::Ended(Status::Malformed);
        };
        match slot.header.kind {
            Kind::Write => self.write_arrives(p, now, peer, index),
            Kind::ReadRequest => self.read_arrives(p, now, peer, index),
            Kind::Flush => self.flush_arrives(p, peer, index),
            Kind::Control => self.control_arrives(p, peer, index),
            _ => {
                // Atomics have their place in the dispatch, and no handler yet.
                self.counters.unsupported += 1;
                Step::Ended(Status::Unsupported)
            }
        }
    }

    /// Takes up a message that has waited for a DMA slot or a staging buffer.
    pub(crate) fn resume<P: Platform>(&mut self, p: &mut P, now: Nanos, peer: NodeId, index: u16) {
        match self.slot(peer, index).map(|slot| slot.state) {
            Some(SlotState::Queued) => {
                if let Step::Ended(status) = self.act(p, now, peer, index) {
                    self.end(p, now, peer, index, status);
                }
            }
            Some(SlotState::Dead) => self.bury(p, now, peer, index),
            _ => {}
        }
    }

    /// A message is over: its buffer goes back, its failure to the sender, and the LSN moves on.
    pub(crate) fn end<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        peer: NodeId,
        index: u16,
        status: Status,
    ) {
        self.mark_ended(p, peer, index, status);
        self.advance(p, now, peer);
    }

    fn mark_ended<P: Platform>(&mut self, p: &mut P, peer: NodeId, index: u16, status: Status) {
        let at = self.slot_index(peer, index);
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        slot.status = status;
        slot.state = if status == Status::Ok {
            self.counters.messages_landed += 1;
            SlotState::Landed
        } else {
            self.counters.messages_failed += 1;
            SlotState::Failed
        };
        let (held, receive, header) = (slot.holds_receive, slot.receive, slot.header);
        slot.holds_receive = false;
        if held {
            p.release_receive(receive);
        }
        if status != Status::Ok && header.kind != Kind::Control {
            self.send_error(p, peer, &header, status);
        }
        if mutant::is(Mutant::NotificationEarly) && status == Status::Ok {
            self.deliver(p, peer, index);
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
            let index = peer.sequence.lsn_slot();
            match self.slot(id, index).map(|slot| slot.state) {
                Some(SlotState::Landed | SlotState::Failed) => {
                    self.pass(p, id, index);
                    moved = true;
                }
                Some(SlotState::Ordered) => match self.act(p, now, id, index) {
                    Step::Ended(status) => {
                        // It goes in this very round: who used it up without moving on would leave
                        // an ordered message at the LSN that nobody takes up again.
                        self.mark_ended(p, id, index, status);
                        self.pass(p, id, index);
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
    fn pass<P: Platform>(&mut self, p: &mut P, id: NodeId, index: u16) {
        let Some(slot) = self.slot(id, index) else {
            return;
        };
        let (status, header) = (slot.status, slot.header);
        let at = self.stream_index(id, header.source_port);
        if let Some(stream) = self.streams.get_mut(at) {
            // A new epoch: the sender's library has surfaced the error. Another owner of its port
            // did nothing wrong.
            let says_owner = matches!(header.kind, Kind::Write | Kind::Flush);
            let over = stream.poison.is_some_and(|poison| {
                poison.epoch != header.epoch.0 || (says_owner && poison.owner != header.compare)
            });
            if over {
                stream.poison = None;
            }
        }
        if status != Status::Ok {
            self.poison(id, &header, status);
        }
        if !mutant::is(Mutant::NotificationEarly) {
            self.deliver(p, id, index);
        }
        self.set_slot(id, index, SlotState::Missing);
        if let Some(peer) = self.peers.get_mut(id.index()) {
            peer.sequence.advance();
        }
    }

    fn deliver<P: Platform>(&mut self, p: &mut P, id: NodeId, index: u16) {
        let Some(slot) = self.slot(id, index) else {
            return;
        };
        let (header, generation) = (slot.header, slot.port_generation);
        if header.kind != Kind::Write || !header.notification.is_some() {
            return;
        }
        let port = header.destination_port;
        let at = self.stream_index(id, header.source_port);
        let poisoned = self.streams.get(at).is_some_and(|stream| stream.poison.is_some());
        let open = self
            .ports
            .get(port.index())
            .is_some_and(|port| port.is(generation));
        if poisoned || !open {
            self.counters.notifications_suppressed += 1;
            return;
        }
        if let Err(status) = self.notify(p, port, header.notification) {
            self.poison(id, &header, status);
            self.send_error(p, id, &header, status);
        }
    }

    /// Suppresses the notifications of a stream until its epoch changes. Reads do not poison: they
    /// leave nothing undone at this side.
    fn poison(&mut self, id: NodeId, header: &Header, status: Status) {
        let at = self.stream_index(id, header.source_port);
        if let Some(stream) = self.streams.get_mut(at)
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
