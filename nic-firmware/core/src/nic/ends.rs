//! A message has ended: its buffer goes back, its failure to its sender, and the LSN moves on, past it and over what has
//! ended behind it. Now its notification is due, and perhaps an acknowledgement (thesis 6.2).

use super::Nic;
use super::receive::Step;
use crate::inbound::SlotState;
use crate::links::Peer;
use crate::platform::Platform;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Kind, MessageFlags};
use netvm_abi::{BounceId, Nanos, NodeId};

impl<S: Storage> Nic<S> {
    /// Ends a message if this step was its last.
    #[inline(always)]
    pub(super) fn end_step<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, step: Step) {
        match step {
            Step::Pending => {}
            Step::Ended(Status::Ok) => self.land(p, now, at),
            _ => self.end_somehow(p, now, at, step),
        }
    }

    #[inline(never)]
    fn end_somehow<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, step: Step) {
        if self.mark_step(p, at, step)
            && let Some(peer) = self.inbound.get(at).map(|slot| slot.header().source())
        {
            self.advance(p, now, peer, at);
        }
    }

    /// A message is over, and has done what it asked for: what [`end`](Self::end) does, with its slot in hand.
    #[inline(always)]
    pub(super) fn land<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) {
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        if slot.has_place() || mutant::is(Mutant::NotificationEarly) {
            return self.end(p, now, at, Status::Ok);
        }
        slot.end(Status::Ok);
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        let source = slot.header().source();
        self.env.counters.messages_landed += 1;
        self.advance(p, now, source, at);
    }

    /// Says in its slot how a message has ended, if it has.
    pub(super) fn mark_step<P: Platform>(&mut self, p: &mut P, at: BounceId, step: Step) -> bool {
        match step {
            Step::Pending => return false,
            Step::Ended(status) => self.mark_ended(p, at, status),
            Step::Refused => {
                self.env.counters.messages_failed += 1;
                self.inbound.set(at, SlotState::Landed);
            }
        }
        true
    }

    /// A message is over: its buffer goes back, its failure to the sender, and the LSN moves on.
    #[inline(never)]
    pub(super) fn end<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId, status: Status) {
        self.mark_ended(p, at, status);
        if let Some(peer) = self.inbound.get(at).map(|slot| slot.header().source()) {
            self.advance(p, now, peer, at);
        }
    }

    fn mark_ended<P: Platform>(&mut self, p: &mut P, at: BounceId, status: Status) {
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        slot.end(status);
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        let has_place = slot.has_place();
        if status == Status::Ok && !has_place {
            self.env.counters.messages_landed += 1;
            if mutant::is(Mutant::NotificationEarly) {
                self.deliver(p, at, false);
            }
            return;
        }
        self.mark_failed_or_placed(p, at, status);
    }

    /// The same for a message that has failed, or an append that has its place.
    #[inline(never)]
    fn mark_failed_or_placed<P: Platform>(&mut self, p: &mut P, at: BounceId, status: Status) {
        let Some(slot) = self.inbound.get(at) else {
            return;
        };
        let header = (status != Status::Ok).then(|| *slot.header());
        if slot.has_place() {
            self.place_ended(p, at, status);
        }
        if let Some(header) = header {
            self.env.counters.messages_failed += 1;
            // Round trips have been answered, and drivers ask again.
            if header.kind() == Kind::Write {
                self.send_error(p, &header, status);
            }
        } else {
            self.env.counters.messages_landed += 1;
            if mutant::is(Mutant::NotificationEarly) {
                self.deliver(p, at, false);
            }
        }
    }

    /// A message has ended: moves the LSN over what has, and acts on ordered messages that it reaches.
    #[inline(always)]
    pub(super) fn advance<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId, ended: BounceId) {
        let Some(peer) = self.links.get_mut(id) else {
            return;
        };
        let at = self.env.config.slot_id(peer.window_from(), peer.lsn_slot());
        let wary = self.inbound.wary();
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        // Nearly every message is at the LSN when it has landed, and tells nothing to anyone.
        let quiet = slot.state() == SlotState::Landed && !slot.header().notification().is_some() && !wary;
        if !quiet {
            return self.advance_slowly(p, now, id, ended);
        }
        slot.set(SlotState::Missing);
        if peer.advance() {
            let next = self.env.config.slot_id(peer.window_from(), peer.lsn_slot());
            if self.inbound.could_pass(next) {
                return self.advance_on(p, now, id, true);
            }
        }
        if peer.advanced(now) {
            self.send_ack(p, id);
        } else {
            self.links.arm_ack(&self.env, id, now);
        }
    }

    /// The same where there may be more to do.
    #[inline(never)]
    fn advance_slowly<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId, ended: BounceId) {
        if self.links.get(id).is_some_and(Peer::is_held_up) {
            self.goes_on(p, now, id, ended);
        } else {
            self.advance_on(p, now, id, false);
        }
    }

    /// The same where there is more to do; `moved`: the LSN has moved already. At most one more round of the window.
    #[inline(never)]
    fn advance_on<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId, mut moved: bool) {
        for _ in 0..self.env.config.geometry.window {
            let Some(peer) = self.links.get(id) else {
                return;
            };
            let at = self.env.config.slot_id(peer.window_from(), peer.lsn_slot());
            let has_ended = match self.inbound.state(at) {
                Some(SlotState::Landed | SlotState::Failed) => true,
                Some(SlotState::Ordered) => {
                    // If it ends, it goes in this very round: a round that ended without moving on would leave an
                    // ordered message at the LSN that no event takes up again.
                    let step = self.act(p, now, at);
                    self.mark_step(p, at, step)
                }
                _ => false,
            };
            if !has_ended {
                break;
            }
            moved = true;
            if !self.pass(p, id, at) {
                break;
            }
        }
        if moved {
            self.after_advance(p, now, id);
        }
        self.held_up(p, now, id);
    }

    /// The LSN passes a message: now its notification is due. Returns whether something past it has arrived.
    #[inline(always)]
    fn pass<P: Platform>(&mut self, p: &mut P, id: NodeId, at: BounceId) -> bool {
        let Some(slot) = self.inbound.get(at) else {
            return false;
        };
        let (status, number) = (slot.status(), slot.header().notification());
        let poisoned = self.is_poisoned(at, status);
        // The header stays in the slot until the next message comes into it.
        self.inbound.set(at, SlotState::Missing);
        let more = self.links.get_mut(id).is_some_and(Peer::advance);
        if number.is_some() && !mutant::is(Mutant::NotificationEarly) {
            self.deliver(p, at, poisoned);
        }
        more
    }

    /// Whether a message has failed, or an earlier one of its stream. It is the turn of this one.
    #[inline(always)]
    pub(super) fn is_poisoned(&mut self, at: BounceId, status: Status) -> bool {
        if status == Status::Ok {
            return self.inbound.follows_failure(&self.env.config, at);
        }
        self.inbound.stream_fails(&mut self.env, at, status);
        true
    }

    /// Delivers the notification of a message, if it has one and its port is well, and its stream.
    #[inline(never)]
    pub(super) fn deliver<P: Platform>(&mut self, p: &mut P, at: BounceId, poisoned: bool) {
        let Some(slot) = self.inbound.get(at) else {
            return;
        };
        let header = slot.header();
        let (port, number) = (header.destination_port(), header.notification());
        if header.kind() != Kind::Write || !number.is_some() {
            return;
        }
        let held_back =
            poisoned && (slot.status() != Status::Ok || !header.flags().contains(MessageFlags::REGARDLESS));
        let open = self.ports.with_queues(port, slot.let_through_to());
        let Some((port, copies)) = open.filter(|_| !held_back) else {
            self.env.counters.notifications_suppressed += 1;
            return;
        };
        if !number.is_one_shot() {
            port.notify_event(p, &mut self.env, copies, number);
        } else if let Err(status) = port.notify_one_shot(p, &mut self.env, copies, number) {
            self.undelivered(p, at, status);
        }
    }

    /// A one-shot notification cannot be delivered: the sender hears of it, and its stream stops there.
    #[inline(never)]
    fn undelivered<P: Platform>(&mut self, p: &mut P, at: BounceId, status: Status) {
        self.inbound.poison(&mut self.env, at, status);
        if let Some(header) = self.inbound.get(at).map(|slot| *slot.header()) {
            self.send_error(p, &header, status);
        }
    }
}
