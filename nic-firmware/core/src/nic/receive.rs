//! A frame arrives: from its bytes to its place in the sequence window, and to what it asks for, now or when its turn has
//! come (thesis 5.4, 6.2). Out of the window it goes in [`super::ends`].
//!
//! ```text
//! handle_frame -> message_arrives -> a write begins | read_arrives | atomic_arrives | act: anything else
//!                                           \-> land | end -> advance (LSN) -> pass: notification, acknowledgement
//! ```

use super::writes::Parts;
use super::{Frame, Nic};
use crate::behind::is_held_back;
use crate::config::Config;
use crate::inbound::SlotState;
use crate::links::Numbered;
use crate::platform::Platform;
use crate::window::Place;
use netvm_abi::control::Modes;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{
    Body, HEADER_BYTES, HEADER_WORDS, Kind, MessageFlags, OwnHeader, RawHeader, claims_slot,
};
use netvm_abi::{BounceId, Incarnation, Nanos, NodeId, OpId, ReceiveId, Seq};

/// How far a message got at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something will come back for it.
    Pending,
    /// It is over.
    Ended(Status),
    /// It is over and has done nothing. Its sender has an answer that says so, or needs none: for its stream it
    /// has not failed.
    Refused,
}

/// The header of a frame, if it has a whole one and as much payload as that says.
#[inline]
fn header_of(frame: &Frame) -> Option<Arrived<'_>> {
    let header = RawHeader::of(&frame.head).ok()?;
    if HEADER_BYTES + usize::from(header.payload_len()) > frame.len {
        return None;
    }
    Some(header)
}

/// A header in the frame that it came in.
type Arrived<'a> = RawHeader<&'a [u32; HEADER_WORDS]>;

/// Whether a message asks for data or for an atomic, and has nothing to wait for.
#[inline(always)]
fn is_request_in_order(config: &Config, header: &OwnHeader, early: bool) -> bool {
    let ordered = MessageFlags::ORDERED | MessageFlags::APPEND;
    let request = matches!(header.kind(), Kind::ReadRequest | Kind::AtomicRequest);
    let known = header.source_port().0 < config.geometry.ports;
    request && !early && known && !header.flags().intersects(ordered)
}

impl<S: Storage> Nic<S> {
    #[inline]
    pub(super) fn frame_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, frame: &Frame) {
        self.env.counters.frames += 1;
        if claims_slot(&frame.head) {
            self.message_arrives(p, now, frame);
        } else {
            self.answer_arrives(p, now, frame);
        }
    }

    /// Whether a message is for this node, and of a length that can be.
    #[inline]
    fn is_sound(&self, header: &Arrived<'_>) -> bool {
        if u32::from(header.payload_len()) > self.env.config.geometry.payload {
            return false;
        }
        header.destination() == self.env.config.node
    }

    /// What came is no message, or none for this node.
    #[cold]
    fn malformed<P: Platform>(&mut self, p: &mut P, receive: ReceiveId) {
        self.env.counters.malformed += 1;
        p.release_receive(receive);
    }

    /// A message that takes no slot of the window: a greeting, an answer, an acknowledgement.
    #[inline(never)]
    fn answer_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, frame: &Frame) {
        let receive = frame.receive;
        let nodes = self.env.config.geometry.nodes;
        // Answers come from whatever port was asked, also from one that cannot be.
        let sound = |header: &Arrived<'_>| self.is_sound(header) && header.source().0 < nodes;
        let Some(header) = header_of(frame).filter(sound) else {
            return self.malformed(p, receive);
        };
        let node = header.source();
        if matches!(header.kind(), Kind::Hello | Kind::HelloAck | Kind::Bye) {
            self.greeting_arrives(p, now, &header.decode());
        } else if self.in_session(p, now, &header) && self.is_new(p, now, &header) {
            match header.body() {
                Body::ReadReply { ticket, status } => {
                    let len = header.payload_len();
                    return self.reply_arrives(p, receive, node, len, ticket, status);
                }
                Body::FlushReply {
                    ticket,
                    status,
                    failed,
                    refused,
                } => self.flush_reply_arrives(p, node, ticket, status, [failed, refused]),
                Body::AtomicReply {
                    ticket,
                    status,
                    result,
                } => self.atomic_reply_arrives(p, node, ticket, status, result),
                Body::Ack => {
                    if header.flags().contains(MessageFlags::REFUSED) {
                        self.links.hears_of_refusal(node);
                    }
                    self.ack_arrives(p, now, node, header.seq(), &header.receipt());
                }
                Body::Error { status, owner } => self.error_arrives(p, &header.decode(), status, owner),
                Body::Probe => {
                    self.env.counters.probes_received += 1;
                    self.links.announced(&self.env, now, node, header.seq());
                    if let Some(peer) = self.links.get_mut(node) {
                        peer.stamped(now, header.stamp());
                    }
                    self.send_ack(p, node);
                }
                _ => self.env.counters.malformed += 1,
            }
        }
        p.release_receive(receive);
    }

    /// Whether a message belongs to the present life of its link.
    fn in_session<P: Platform>(&mut self, p: &mut P, now: Nanos, header: &Arrived<'_>) -> bool {
        let Some(peer) = self.links.get_mut(header.source()) else {
            return false;
        };
        let (theirs, ours) = (header.source_incarnation(), header.destination_incarnation());
        if !peer.is_life_of(theirs, ours) {
            self.links
                .refuse_stale(p, &mut self.env, header.source(), theirs, ours);
            return false;
        }
        peer.heard(now);
        if peer.is_accepted() {
            self.link_up(p, header.source());
        }
        true
    }

    /// Whether a message that takes no slot has not been here before. One that is numbered is acknowledged, now or later.
    fn is_new<P: Platform>(&mut self, p: &mut P, now: Nanos, header: &Arrived<'_>) -> bool {
        let Some(number) = header.answer_number() else {
            return true;
        };
        let id = header.source();
        match self
            .links
            .answer_numbered(&self.env, now, (id, number), header.stamp())
        {
            Numbered::New { acknowledge: false } => self.links.arm_ack(&self.env, id, now),
            Numbered::New { acknowledge: true } => self.send_ack(p, id),
            Numbered::Again => {
                self.env.counters.duplicates += 1;
                self.send_ack(p, id);
                return mutant::is(Mutant::AnswerActsAgain);
            }
            Numbered::Nonsense => {
                self.env.counters.out_of_window += 1;
                return false;
            }
        }
        true
    }

    /// A message whose link is not up, or not in its life: whether the message brings the link up.
    #[cold]
    fn comes_up<P: Platform>(
        &mut self,
        p: &mut P,
        id: NodeId,
        theirs: Incarnation,
        ours: Incarnation,
    ) -> bool {
        let accepts = self
            .links
            .get(id)
            .is_some_and(|peer| peer.is_life_of(theirs, ours));
        if accepts {
            self.link_up(p, id);
        } else {
            self.links.refuse_stale(p, &mut self.env, id, theirs, ours);
        }
        accepts
    }

    /// A windowed message gets its slot, once, if it belongs to the present life of its link.
    #[inline(always)]
    fn message_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, frame: &Frame) {
        let receive = frame.receive;
        let Some(header) = header_of(frame) else {
            return self.malformed(p, receive);
        };
        if !self.is_sound(&header) {
            return self.malformed(p, receive);
        }
        let (id, seq) = (header.source(), header.seq());
        let (theirs, ours) = (header.source_incarnation(), header.destination_incarnation());
        let Some(mut peer) = self.links.get_mut(id) else {
            return self.malformed(p, receive);
        };
        if !peer.is_up_with(theirs, ours) {
            if !self.comes_up(p, id, theirs, ours) {
                return p.release_receive(receive);
            }
            let Some(up) = self.links.get_mut(id) else {
                return;
            };
            peer = up;
        }
        peer.heard(now);
        let at = match peer.place(seq) {
            Place::Slot(index) => {
                if peer.is_closed_to_new() {
                    if !self.lets_in(now, id, seq) {
                        let inbound = &self.inbound;
                        self.links
                            .send_refusal(p, &mut self.env, id, |at| inbound.presence(at));
                        return p.release_receive(receive);
                    }
                    let Some(open) = self.links.get_mut(id) else {
                        return;
                    };
                    peer = open;
                }
                self.env.config.slot_id(peer.window_from(), index)
            }
            place => return self.out_of_place(p, now, frame, place),
        };
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        if slot.state() != SlotState::Missing {
            return self.out_of_place(p, now, frame, Place::Before);
        }
        if !peer.has_room_for_answer(seq) {
            self.env.counters.put_off += 1;
            return p.release_receive(receive);
        }
        let early = peer.arrived(now, seq, header.flags().contains(MessageFlags::ACK_REQUEST));
        let (misses, lossy) = (peer.misses_some(), peer.is_lossy());
        if lossy {
            peer.stamped(now, header.stamp());
        }
        self.env.counters.messages_received += 1;
        self.env.counters.bytes_received += u64::from(header.payload_len());
        slot.fill(header.to_owned(), receive);
        if lossy {
            self.links.arm_ack(&self.env, id, now);
        }
        if misses {
            self.out_of_order(p, id, seq);
        }
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        let ordered = MessageFlags::ORDERED | MessageFlags::APPEND;
        let plain = header.kind() == Kind::Write && !header.flags().intersects(ordered);
        let mut slot = slot;
        if !plain || early || header.source_port().0 >= self.env.config.geometry.ports {
            if is_request_in_order(&self.env.config, slot.header(), early) {
                let kind = slot.header().kind();
                return self.request_arrives(p, now, at, kind);
            }
            if !self.is_plain_write(p, now, at, early) {
                return self.admit(p, now, id);
            }
            let Some(again) = self.inbound.get_mut(at) else {
                return;
            };
            slot = again;
        }
        // Nearly every message.
        let parts = Parts {
            env: &mut self.env,
            ports: &mut self.ports,
            dmas: &mut self.dmas,
        };
        let begun = parts.begin(p, now, (at, slot), Modes::WRITE);
        if let Step::Ended(status) = self.write_begun(p, at, begun) {
            self.end(p, now, at, status);
        }
        if early {
            self.admit(p, now, id);
        }
    }

    /// A request that asks for no order arrives in order.
    #[inline(always)]
    fn request_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, kind: Kind) {
        let step = match kind {
            Kind::ReadRequest => self.read_arrives(p, now, at),
            _ => self.atomic_arrives(p, now, at),
        };
        if step != Step::Pending {
            self.step_ended(p, now, at, step);
        }
    }

    /// A message that is something else than a plain write, or that others are missing before: whether it is a plain
    /// write all the same, which asks for nothing that is missing. Any other one is carried out, or waits.
    #[inline(never)]
    fn is_plain_write<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, early: bool) -> bool {
        let Some(slot) = self.inbound.get(at) else {
            return false;
        };
        let header = slot.header();
        let (kind, source) = (header.kind(), header.source());
        let ordered = header
            .flags()
            .intersects(MessageFlags::ORDERED | MessageFlags::APPEND);
        if ordered || kind == Kind::Flush || header.source_port().0 >= self.env.config.geometry.ports {
            if !early || !self.waits_for_earlier(now, at) {
                self.carry_out(p, now, at);
            } else {
                self.held_up(p, now, source);
            }
            return false;
        }
        if early {
            self.links.arm_probe(&self.env, source, now);
        }
        match kind {
            Kind::Write => return true,
            Kind::ReadRequest | Kind::AtomicRequest => self.request_arrives(p, now, at, kind),
            _ => self.carry_out(p, now, at),
        }
        false
    }

    /// A message has ended at once.
    #[inline(never)]
    fn step_ended<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, step: Step) {
        self.end_step(p, now, at, step);
    }

    /// A message that others are missing before: whether it asked to wait for them.
    #[inline(never)]
    fn waits_for_earlier(&mut self, now: Nanos, at: BounceId) -> bool {
        let Some(slot) = self.inbound.get_mut(at) else {
            return false;
        };
        let header = slot.header();
        let id = header.source();
        let ordered = MessageFlags::ORDERED | MessageFlags::APPEND;
        let flush = header.kind() == Kind::Flush;
        let broken = match header.kind() {
            Kind::Flush => mutant::is(Mutant::FlushDoesNotWait),
            Kind::ReadRequest => mutant::is(Mutant::ReadOvertakes),
            _ => false,
        };
        let waits = (header.flags().intersects(ordered) || flush) && !broken;
        if waits {
            self.env.counters.ordered_parked += 1;
            slot.set(SlotState::Ordered);
        }
        self.links.arm_probe(&self.env, id, now);
        waits
    }

    /// A message has come whose link has no window, or is to leave it: whether it may come in. If not, it is as if the wire had lost
    /// it.
    #[cold]
    #[inline(never)]
    fn lets_in(&mut self, now: Nanos, id: NodeId, seq: Seq) -> bool {
        let config = self.env.config;
        let inbound = core::cell::RefCell::new(&mut self.inbound);
        let keeps = |window| inbound.borrow().has_room_aside(&config, window);
        let moves =
            |config: &Config, window, from| inbound.borrow_mut().window_moves(config, window, from, id);
        let lets_in = self.links.lets_in(&mut self.env, now, (id, seq), keeps, moves);
        self.env.counters.windows_refused += u64::from(!lets_in);
        lets_in
    }

    /// A message that has been here before, or that its sender had no credit for.
    #[cold]
    fn out_of_place<P: Platform>(&mut self, p: &mut P, now: Nanos, frame: &Frame, place: Place) {
        p.release_receive(frame.receive);
        if place == Place::Beyond {
            self.env.counters.out_of_window += 1;
            return;
        }
        self.env.counters.duplicates += 1;
        let Some(header) = header_of(frame) else {
            return;
        };
        // Its sender has not heard that it is here.
        let id = header.source();
        if let Some(peer) = self.links.get_mut(id).filter(|peer| peer.is_lossy()) {
            peer.stamped(now, header.stamp());
            peer.request_repeated(header.seq());
            self.send_ack(p, id);
        }
    }

    /// A message has arrived, and another one that left before it is missing, or was.
    #[cold]
    #[inline(never)]
    fn out_of_order<P: Platform>(&mut self, p: &mut P, id: NodeId, seq: Seq) {
        let inbound = &self.inbound;
        let tell = self
            .links
            .out_of_order(&self.env, id, seq, |at| inbound.has_arrived(at));
        if tell {
            self.send_ack(p, id);
        }
    }

    /// Does what the message in a slot asks for.
    #[inline(never)]
    pub(super) fn act<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) -> Step {
        let Some(slot) = self.inbound.get(at) else {
            return Step::Ended(Status::Malformed);
        };
        if slot.header().source_port().0 >= self.env.config.geometry.ports {
            return self.refuse_sender(p, at);
        }
        // What asks for order acts at its turn, so everything before it has ended.
        if is_held_back(slot.header().kind(), slot.header().flags())
            && self.inbound.follows_failure(&self.env.config, at)
        {
            return self.hold_message_back(p, at);
        }
        let Some(slot) = self.inbound.get(at) else {
            return Step::Ended(Status::Malformed);
        };
        match slot.header().kind() {
            Kind::Write => {
                let mut mode = Modes::WRITE;
                if slot.header().flags().contains(MessageFlags::APPEND) {
                    if let Err(step) = self.take_place(p, now, at) {
                        return step;
                    }
                    mode = Modes::APPEND;
                }
                self.write_arrives(p, now, at, mode)
            }
            Kind::ReadRequest => self.read_arrives(p, now, at),
            Kind::Flush => self.flush_arrives(p, at),
            Kind::Control => self.control_arrives(p, at),
            Kind::AtomicRequest => self.atomic_arrives(p, now, at),
            _ => {
                self.env.counters.refused_malformed += 1;
                Step::Ended(Status::Malformed)
            }
        }
    }

    /// A message of a port whose number is past this node's last stream: the sender's node has more ports. It has its
    /// slot, or it would leave a gap that ends the link for all ports. It always ends with a failure, so the stream of
    /// its number, which would be another's, is never looked at ([`Self::pass`]).
    #[cold]
    fn refuse_sender<P: Platform>(&mut self, p: &mut P, at: BounceId) -> Step {
        let status = Status::NoSuchPort;
        if let Some(request) = self.inbound.get(at).map(|slot| *slot.header()) {
            match request.kind() {
                Kind::ReadRequest => self.reply(p, &request, Err(status)),
                Kind::AtomicRequest => self.answer_atomic(p, at, Err(status)),
                Kind::Flush => self.answer_flush(p, &request, status, [OpId(0); 2]),
                _ => {}
            }
        }
        self.write_refused(status)
    }

    /// Ends a message without effect. Of a write the sender hears nothing more: it has been told what failed.
    #[cold]
    #[inline(never)]
    pub(super) fn hold_message_back<P: Platform>(&mut self, p: &mut P, at: BounceId) -> Step {
        let Some(slot) = self.inbound.get_mut(at) else {
            return Step::Ended(Status::Malformed);
        };
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        let header = *slot.header();
        self.env.counters.count_held(header.flags());
        if header.kind() == Kind::AtomicRequest {
            return self.atomic_over(p, at, Err(Status::HeldBack));
        }
        Step::Refused
    }

    /// Does what the message in a slot asks for, and ends the message if that was all.
    #[inline(never)]
    fn carry_out<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) {
        let step = self.act(p, now, at);
        self.end_step(p, now, at, step);
    }

    /// Takes up a message that has waited for a DMA slot or a staging buffer.
    pub(super) fn resume<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) {
        match self.inbound.get(at).map(|slot| slot.state()) {
            Some(SlotState::Queued) => self.carry_out(p, now, at),
            Some(SlotState::Dead) => self.bury(p, now, at),
            _ => {}
        }
    }
}
