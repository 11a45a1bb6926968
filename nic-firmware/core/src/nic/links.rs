//! A link comes and goes: what that does to ports, round trips and windows.

use super::Nic;
use crate::inbound::SlotState;
use crate::links::{Greeted, Lost, Offer, Overdue, Peer, Timer, Verdict, Witness};
use crate::platform::Platform;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::port_area::ErrorRecord;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Header, Receipt, Received};
use netvm_abi::{BounceId, Incarnation, Nanos, NodeId, Seq};

/// Peers of each kind that one call serves at most.
const BATCH: usize = 8;
/// Messages that one step sends again at most; the next acknowledgement or alarm goes on.
const BATCH_AGAIN: usize = 16;

impl<S: Storage> Nic<S> {
    /// The host wants a link.
    pub(super) fn connect<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        if self.links.get(id).is_none() {
            return;
        }
        self.links.connect(p, &mut self.env, now, id);
        self.ports.stir();
    }

    /// The link works in both directions.
    #[cold]
    pub(super) fn link_up<P: Platform>(&mut self, p: &mut P, id: NodeId) {
        self.links.comes_up(p, &mut self.env, id);
        self.ports.stir();
    }

    /// A greeting has arrived, or the answer to one, or a farewell.
    pub(super) fn greeting_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, header: &Header) {
        let id = header.source;
        match self.links.greeting_arrives(p, &mut self.env, now, header) {
            Greeted::Done => {}
            Greeted::Up => self.send_ack(p, id),
            Greeted::Replaced(offer) => self.lose_link(p, now, id, Some(offer)),
            Greeted::Ended => self.lose_link(p, now, id, None),
        }
        self.ports.stir();
    }

    /// Acknowledges what has landed.
    pub(super) fn send_ack<P: Platform>(&mut self, p: &mut P, id: NodeId) {
        let inbound = &self.inbound;
        self.links
            .send_ack(p, &mut self.env, id, |at| inbound.presence(at));
    }

    /// An acknowledgement: gives window slots back to their ports, lets go of what has been received, and sends again
    /// what has not, though what left later has.
    pub(super) fn ack_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        id: NodeId,
        seq: Seq,
        receipt: &Receipt,
    ) {
        let honest = self.links.acknowledged(&mut self.env, id, seq);
        self.ports.stir();
        if !honest {
            return;
        }
        // What has ended has been received, whatever the receipt says: its number may come again.
        let mut receipt = *receipt;
        if seq.is_after(receipt.requests.next) {
            receipt.requests = Received::before(seq);
        }
        if self.round_trips.await_receipts() {
            self.node_has_received(p, id, receipt.requests.next);
        }
        if !self.links.get(id).is_some_and(Peer::is_lossy) {
            return;
        }
        self.receipt_arrives(p, now, id, &receipt);
    }

    #[inline(never)]
    fn receipt_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId, receipt: &Receipt) {
        self.links.settle_ended(&self.env.config, id, receipt);
        let (staging, ports) = (&mut self.staging, &mut self.ports);
        let heard = self.links.confirm(&self.env.config, now, id, receipt, |buffer| {
            staging.received(ports, buffer)
        });
        self.env.counters.windows_cut += u64::from(heard.congested);
        self.resume_reads(p, now);
        for _ in 0..heard.again.min(BATCH_AGAIN as u32) {
            let Some(copy) = self.links.next_lost_copy(&self.env, now, id) else {
                return;
            };
            if !self.send_again(p, now, id, copy) {
                return;
            }
        }
    }

    /// Sends a message again. If that has been done too often, its link is lost: false.
    fn send_again<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId, copy: u16) -> bool {
        if self.links.has_left_too_often(&self.env, id, copy) {
            self.links.end_at_peer(p, &self.env, id);
            self.lose_link(p, now, id, None);
            return false;
        }
        if let Some(staging) = self.links.staging_of(copy)
            && !self.staging.leaves_again(staging)
        {
            // It has not left yet for the last time.
            self.links.put_off(&self.env, now, id, copy);
            return true;
        }
        let Some(copy) = self.links.resend(&self.env, now, id, copy) else {
            return true;
        };
        let (header, payload) = copy.frame();
        if mutant::is(Mutant::LossForgotten) {
            return true;
        }
        self.env.counters.retransmitted += 1;
        p.transmit(header, payload);
        true
    }

    /// The alarm of a link rings: what has not been received for too long leaves again.
    fn look_at_copies<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        for _ in 0..BATCH_AGAIN {
            match self.links.overdue(&mut self.env, now, id) {
                Overdue::Resend(copy) => {
                    if !self.send_again(p, now, id, copy) {
                        return;
                    }
                }
                Overdue::Ask => return self.links.probe(p, &mut self.env, now, id),
                Overdue::Nothing => return,
            }
        }
    }

    /// The LSN has moved: acknowledges now if that is due, else when the link has been idle.
    pub(super) fn after_advance<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        if self.links.has_advanced(&self.env, now, id) {
            self.send_ack(p, id);
        }
    }

    /// Serves a batch of each kind, if anything is due. Returns whether more is.
    #[inline]
    pub(super) fn run_timers<P: Platform>(&mut self, p: &mut P, now: Nanos) -> bool {
        self.links.is_anything_due(now) && self.run_due(p, now)
    }

    #[inline(never)]
    fn run_due<P: Platform>(&mut self, p: &mut P, now: Nanos) -> bool {
        for timer in [Timer::Ack, Timer::Probe, Timer::Hello] {
            for _ in 0..BATCH {
                let Some(id) = self.links.pop_due(&self.env, timer, now) else {
                    break;
                };
                match timer {
                    Timer::Ack if self.links.ack_is_useful(id) => self.send_ack(p, id),
                    Timer::Ack => {}
                    Timer::Probe => self.check_peer(p, now, id),
                    Timer::Hello => {
                        self.links.greet_again(p, &mut self.env, now, id);
                        self.ports.stir();
                    }
                }
            }
        }
        for _ in 0..BATCH {
            let Some(id) = self.links.pop_rung(now) else {
                break;
            };
            self.look_at_copies(p, now, id);
        }
        self.links.settle_alarms();
        self.links.is_anything_due(now)
    }

    /// Whether a peer lives, and its sequence has no hole that stays; if not, the link is lost.
    fn check_peer<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        if self.links.call_ends(&self.env, now, id) {
            self.ports.stir();
        }
        let Some(acked) = self.links.acked_of_living(id) else {
            return;
        };
        let inbound = &self.inbound;
        let timers = &self.env.config.timers;
        let window = u32::from(self.env.config.geometry.window);
        // Where the wire may lose an answer, it is sent again for so long.
        let again = if self.links.get(id).is_some_and(Peer::is_lossy) {
            timers.resend_time()
        } else {
            Nanos(0)
        };
        let patience = timers.gap_timeout.after(again);
        let witness = Witness {
            asked: self.round_trips.ask(id),
            overdue: self.round_trips.is_overdue(now, id, acked, window, patience),
            is_missing: &|at| !inbound.has_arrived(at),
        };
        if self.links.check(p, &mut self.env, now, id, &witness) == Verdict::Dead {
            self.lose_link(p, now, id, None);
        }
    }

    /// The life of a link is over. What was outstanding ends with [`Status::LinkLost`].
    fn lose_link<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId, offer: Option<Offer>) {
        let Some(over) = self.links.end_life(p, &mut self.env, id, offer) else {
            return;
        };
        if over.was_up {
            let (staging, ports) = (&mut self.staging, &mut self.ports);
            self.links
                .drop_copies(&self.env.config, id, |buffer| staging.received(ports, buffer));
            self.fail_outgoing(p, id);
            self.fail_round_trips(p, id);
            self.links.fail_controls(p, &mut self.env, id, Status::LinkLost);
            self.clear_window(p, id);
        }
        self.env.tell_host(p, over.event);
        self.try_begin(p, now, id);
    }

    /// Messages that left and were not acknowledged: it is not known whether they landed. Each port hears of the first
    /// one of each epoch, and its notifications wait for a new epoch. A record says nothing of another epoch: a program
    /// that has been told of the first takes for landed what it has posted since.
    fn fail_outgoing<P: Platform>(&mut self, p: &mut P, id: NodeId) {
        let mut told = [0u64; 16];
        for _ in 0..self.env.config.geometry.window {
            let Some(out) = self.links.next_lost(&self.env, id) else {
                return;
            };
            // Of a port that is gone the next owner of the number hears nothing, and nothing of it is held back.
            let Some(port) = self.ports.of_owner(out.port, out.generation) else {
                continue;
            };
            let loss = Lost {
                owner: out.generation,
                epoch: out.epoch,
            };
            let other_epoch = self.links.note_loss(&mut self.env, id, out.port, loss);
            let bit = 1 << (out.port.0 % 64);
            let Some(word) = told.get_mut(out.port.index() / 64) else {
                continue;
            };
            if *word & bit == 0 || other_epoch {
                *word |= bit;
                let record = ErrorRecord {
                    op: out.op,
                    status: Status::LinkLost,
                    node: id,
                    epoch: out.epoch,
                    ..ErrorRecord::default()
                };
                port.record_error(p, &mut self.env, &record);
            }
        }
    }

    /// Empties the receiving window. Bounced messages stay with the host until it releases them;
    /// what a DMA or a queue holds goes when that lets go.
    fn clear_window<P: Platform>(&mut self, p: &mut P, id: NodeId) {
        if self.links.get_mut(id).is_some_and(Peer::lets_go) {
            self.inbound.goes_on();
        }
        let receives = self.links.window_from(id);
        for index in 0..self.env.config.geometry.window {
            let at = self.env.config.slot_id(receives, index);
            self.inbound.leaves_line(&self.env.config, at);
            let Some(slot) = self.inbound.get_mut(at) else {
                return;
            };
            let state = slot.state();
            let left = match state {
                SlotState::Queued
                | SlotState::Moving
                | SlotState::Fetching
                | SlotState::Storing
                | SlotState::Bouncing
                | SlotState::Dead => SlotState::Dead,
                SlotState::Bounced => SlotState::Bounced,
                SlotState::Missing
                | SlotState::Ordered
                | SlotState::Sourcing
                | SlotState::Landed
                | SlotState::Failed
                | SlotState::Passed => SlotState::Missing,
            };
            slot.set(left);
            let drains = left == SlotState::Dead && state != SlotState::Dead;
            let ended = matches!(state, SlotState::Landed | SlotState::Failed | SlotState::Passed);
            let lost = !ended && state != SlotState::Missing;
            if left == SlotState::Missing
                && let Some(receive) = slot.let_go()
            {
                p.release_receive(receive);
            }
            if lost {
                self.env.counters.dropped += 1;
            }
            if drains {
                self.links.drains(id);
            }
            if state == SlotState::Sourcing {
                slot.misses_source(false);
                self.staging.orphan(&mut self.ports, at);
            }
        }
    }

    /// A message of an earlier life is no longer held.
    #[cold]
    pub(super) fn bury<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) {
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        slot.set(SlotState::Missing);
        let id = slot.header().source();
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        self.place_ended(p, at, Status::LinkLost);
        self.inbound.leave_unit(&mut self.env, at);
        self.links.has_drained(id);
        self.try_begin(p, now, id);
    }

    /// A message of an earlier life, which the host has let go of.
    pub(super) fn forget<P: Platform>(&mut self, p: &mut P, at: BounceId) {
        self.inbound.set(at, SlotState::Missing);
        self.place_ended(p, at, Status::LinkLost);
        self.inbound.leave_unit(&mut self.env, at);
    }

    /// Whether the life of the link that a message came over has ended: its answer is not awaited.
    pub(super) fn link_is_over(&self, at: BounceId) -> bool {
        self.inbound
            .get(at)
            .is_none_or(|slot| self.links.is_releasing(slot.header().source()))
    }

    /// The host has released everything of an earlier life.
    pub(super) fn peer_released<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        id: NodeId,
        incarnation: Incarnation,
    ) {
        if !self.links.released(&mut self.env, id, incarnation) {
            return;
        }
        let receives = self.links.window_from(id);
        for index in 0..self.env.config.geometry.window {
            let at = self.env.config.slot_id(receives, index);
            if self.inbound.state(at) == Some(SlotState::Bounced) {
                self.forget(p, at);
            }
        }
        self.try_begin(p, now, id);
    }

    /// Begins the next life of a link, if the last one is gone and it is wanted.
    fn try_begin<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        self.links.try_begin(p, &mut self.env, now, id);
        self.ports.stir();
    }

    /// Says where the windows of all links stand, for observers: what this costs grows with the number of nodes, so it
    /// is for a platform that has a moment.
    pub fn publish_windows<P: Platform>(&self, p: &P) {
        self.links.publish_windows(p);
    }

    /// Ends all links at their other sides: this firmware ends, and nothing is to be asked of it any more. A farewell
    /// that is lost does no harm; the other side then notices by the silence.
    pub fn leave<P: Platform>(&mut self, p: &mut P) {
        self.links.leave(p, &self.env);
    }
}
