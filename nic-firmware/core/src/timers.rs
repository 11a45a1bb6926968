//! What is due when: acknowledgements, probes, greetings. Each kind waits equally long for all
//! peers, so a line does what a heap would ([`crate::queue`]), and nothing loops over all nodes.

use crate::config::Timers;
use crate::nic::Nic;
use crate::peer::Link;
use crate::platform::{Payload, Platform};
use crate::queue::{Deadline, DeadlineQueue};
use crate::slot::SlotState;
use netvm_abi::event::NicEvent;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, OwnHeader};
use netvm_abi::{Incarnation, Nanos, NodeId, Seq};

/// Peers of each kind that one call serves at most.
const BATCH: usize = 8;

/// The three kinds, as rows of the deadline table.
#[derive(Clone, Copy)]
enum Timer {
    Ack = 0,
    Probe = 1,
    Hello = 2,
}

/// A line of deadlines for each kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alarms {
    ack: DeadlineQueue,
    probe: DeadlineQueue,
    hello: DeadlineQueue,
    /// The earliest deadline of all lines: a pass that comes before it compares once. A line changes in
    /// [`set`](Self::set) and in [`run_due`](Nic::run_due) only, and each of them ends with
    /// [`settle`](Self::settle).
    earliest: Option<Nanos>,
}

impl Alarms {
    /// No alarm.
    pub(crate) const fn new(timers: &Timers) -> Self {
        Self {
            ack: DeadlineQueue::new(timers.ack_delay.0),
            probe: DeadlineQueue::new(timers.probe_interval.0),
            hello: DeadlineQueue::new(timers.hello_interval.0),
            earliest: None,
        }
    }

    /// Whether an alarm is due.
    #[inline]
    fn is_due(&self, now: Nanos) -> bool {
        self.earliest.is_some_and(|earliest| earliest <= now)
    }

    /// Sets an alarm that is not set.
    #[inline(never)]
    fn set(&mut self, links: &mut [Deadline], timer: Timer, index: u32, now: Nanos) {
        let line = match timer {
            Timer::Ack => &mut self.ack,
            Timer::Probe => &mut self.probe,
            Timer::Hello => &mut self.hello,
        };
        line.append(links, index, now.0);
        self.settle(links);
    }

    /// Finds the earliest deadline.
    fn settle(&mut self, links: &[Deadline]) {
        self.earliest = [&self.ack, &self.probe, &self.hello]
            .into_iter()
            .filter_map(|line| line.next(links))
            .min()
            .map(Nanos);
    }
}

impl<S: Storage> Nic<S> {
    const fn timer_index(&self, timer: Timer, id: NodeId) -> u32 {
        timer as u32 * self.env.config.geometry.nodes as u32 + id.0 as u32
    }

    fn timer_peer(&self, index: u32) -> NodeId {
        NodeId((index % u32::from(self.env.config.geometry.nodes)) as u16)
    }

    /// Acknowledge later, if nothing else makes it happen.
    pub(crate) fn arm_ack(&mut self, id: NodeId, now: Nanos) {
        self.arm(Timer::Ack, id, now);
    }

    /// Sets an alarm, unless it is set.
    #[inline]
    fn arm(&mut self, timer: Timer, id: NodeId, now: Nanos) {
        let index = self.timer_index(timer, id);
        if self.deadlines.get(index as usize).is_some_and(Deadline::is_free) {
            self.alarms.set(&mut self.deadlines, timer, index, now);
        }
    }

    /// Look later whether the peer still lives.
    #[inline]
    pub(crate) fn arm_probe(&mut self, id: NodeId, now: Nanos) {
        if id != self.env.config.node {
            self.arm(Timer::Probe, id, now);
        }
    }

    /// Greet again later.
    pub(crate) fn arm_hello(&mut self, id: NodeId, now: Nanos) {
        if id != self.env.config.node {
            self.arm(Timer::Hello, id, now);
        }
    }

    /// Serves a batch of each kind, if anything is due. Returns whether more is.
    #[inline]
    pub(crate) fn run_timers<P: Platform>(&mut self, p: &mut P, now: Nanos) -> bool {
        self.alarms.is_due(now) && self.run_due(p, now)
    }

    #[inline(never)]
    fn run_due<P: Platform>(&mut self, p: &mut P, now: Nanos) -> bool {
        for _ in 0..BATCH {
            let Some(index) = self.alarms.ack.pop_due(&mut self.deadlines, now.0) else {
                break;
            };
            let id = self.timer_peer(index);
            let useful = self.peers.get(id.index()).is_some_and(|peer| {
                matches!(peer.link, Link::Up | Link::Accepted) && peer.sequence.ack_useful()
            });
            if useful {
                self.send_ack(p, id);
            }
        }
        for _ in 0..BATCH {
            let Some(index) = self.alarms.probe.pop_due(&mut self.deadlines, now.0) else {
                break;
            };
            let id = self.timer_peer(index);
            self.check_peer(p, now, id);
        }
        for _ in 0..BATCH {
            let Some(index) = self.alarms.hello.pop_due(&mut self.deadlines, now.0) else {
                break;
            };
            let id = self.timer_peer(index);
            self.greet_again(p, now, id);
        }
        self.alarms.settle(&self.deadlines);
        self.alarms.is_due(now)
    }

    /// The next deadline of any kind.
    pub(crate) const fn deadline(&self) -> Option<Nanos> {
        self.alarms.earliest
    }

    /// Whether a peer lives, and its sequence has no hole that stays.
    ///
    /// **Progress is the measure, not sound.** Frames of other ports of the peer say nothing about the frame that the
    /// wire has lost. So two things put a peer in doubt at a look: it has been *silent*, or the link is *stalled*
    /// ([`crate::peer::Peer::stalls`]): the oldest number without an acknowledgement is the one of the look before. A peer in
    /// doubt is probed. Only an `Ack` answers a probe; [`Timers::probe_limit`](crate::config::Timers::probe_limit)
    /// probes without one end the life of the link. A look that finds the peer beyond doubt starts the count again.
    ///
    /// **No false death.** A peer whose host pages for a long time acknowledges nothing new, but its card answers
    /// each probe, and each answer starts the count again.
    ///
    /// **No hang.** An `Ack` that moves the window is progress. An `Ack` that does not move it answers a probe (the
    /// peer sends no other), and a probe says how far this side has sent: so the peer knows of every number, and a
    /// number that it lacks when its LSN gets there is a hole that ends the life after `gap_timeout`, here by the
    /// peer's `Bye` or by the probes that it then leaves without an `Ack`. The sum is
    /// [`Timers::loss_bound`](crate::config::Timers::loss_bound).
    fn check_peer<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        let timers = self.env.config.timers;
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        if !matches!(peer.link, Link::Up | Link::Accepted) {
            return;
        }
        let owes = timers.keepalive || peer.owes() || peer.link == Link::Accepted;
        let (index, gap) = (peer.sequence.lsn_slot(), peer.sequence.anything_past_lsn());
        let silent = peer.heard_at.after(timers.probe_interval) <= now;
        let in_doubt = (peer.stalls() && !mutant::is(Mutant::AnyFrameVouches)) || silent;
        if !in_doubt {
            peer.unanswered = 0;
        }
        let (since, unanswered, acked) = (peer.gap_since, peer.unanswered, peer.credits.acked());
        let (ours, theirs) = (peer.local, peer.remote);
        let owes = owes || self.round_trips.ask(id);
        let at = self.env.config.slot_id(id, index);
        let hole = gap
            && since.after(timers.gap_timeout) <= now
            && self.slot(at).is_some_and(|slot| slot.state == SlotState::Missing);
        let hole = hole || self.round_trips.is_overdue(&self.env, now, id, acked);
        if hole || (in_doubt && unanswered >= timers.probe_limit && owes) {
            self.send_bye(p, id, ours, theirs);
            self.lose_link(p, now, id, None);
            return;
        }
        if !owes {
            return;
        }
        if in_doubt {
            if let Some(peer) = self.peers.get_mut(id.index()) {
                peer.unanswered = peer.unanswered.saturating_add(1);
            }
            self.env.counters.probes_sent += 1;
            let mut probe = self.session_header(Body::Probe, id);
            if let Some(peer) = self.peers.get(id.index()) {
                // So that a last message that is lost leaves a gap too.
                probe.seq = peer.credits.next();
            }
            p.transmit(&OwnHeader::new(&probe), Payload::Empty);
        }
        self.arm_probe(id, now);
    }

    /// A peer says how far it has sent: what of it is not here is a gap from now on.
    pub(crate) fn note_announced(&mut self, now: Nanos, id: NodeId, next: Seq) {
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        let gap = peer.sequence.anything_past_lsn();
        peer.sequence.announced(next);
        if !peer.sequence.anything_past_lsn() {
            return;
        }
        if !gap {
            peer.gap_since = now;
        }
        // Also where something was past the LSN before: the message at the LSN itself, which the host may be paging
        // for, has armed nothing, and the lost one may be the one behind it.
        self.arm_probe(id, now);
    }

    /// Greets again, or gives up what waits for the link.
    fn greet_again<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        let limit = self.env.config.timers.hello_limit;
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        if peer.link != Link::Connecting {
            return;
        }
        peer.unanswered = peer.unanswered.saturating_add(1);
        if peer.unanswered >= limit {
            peer.link = Link::Down;
            peer.wanted = false;
            peer.greeted = false;
            self.fail_controls(p, id, Status::LinkLost);
            self.env.tell_host(
                p,
                NicEvent::PeerLost {
                    peer: id,
                    incarnation: Incarnation(0),
                },
            );
            self.ports.stir();
            return;
        }
        self.send_hello(p, id);
        self.arm_hello(id, now);
    }
}
