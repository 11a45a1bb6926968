//! What is due when: acknowledgements, probes, greetings. Each kind waits equally long for all
//! peers, so a line does what a heap would ([`crate::queue`]), and nothing loops over all nodes.

use super::greetings::send_bye;
use super::wheel::Wheel;
use super::{Links, State};
use crate::config::Timers;
use crate::env::Env;
use crate::platform::{Payload, Platform};
use crate::queue::{Deadline, DeadlineQueue};
use netvm_abi::event::NicEvent;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, OwnHeader};
use netvm_abi::{BounceId, Incarnation, Nanos, NodeId, Seq, Stamp};

/// The three kinds, as rows of the deadline table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timer {
    /// What has landed is to be acknowledged.
    Ack = 0,
    /// Whether a peer lives is to be looked at.
    Probe = 1,
    /// A greeting is to be repeated.
    Hello = 2,
}

impl Timer {
    /// Its bit among a peer's alarms.
    pub(super) const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A line of deadlines for each kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alarms {
    ack: DeadlineQueue,
    probe: DeadlineQueue,
    hello: DeadlineQueue,
    /// The earliest deadline of all lines and of the wheel: a pass that comes before it compares once. They change in
    /// [`set`](Self::set), [`Links::ring_at`] and [`Links::pop_due`] only; the first ends with [`settle`](Self::settle), and so does
    /// the pass that takes what is due ([`Links::settle_alarms`]).
    earliest: Option<Nanos>,
}

impl Alarms {
    /// No alarm.
    pub(super) const fn new(timers: &Timers) -> Self {
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
        self.line(timer).append(links, index, now.0);
        // A line's new deadline is its last.
        self.earliest = self
            .earliest
            .into_iter()
            .chain(self.line(timer).next(links).map(Nanos))
            .min();
    }

    /// Finds the earliest deadline.
    fn settle(&mut self, links: &[Deadline], wheel: &Wheel) {
        self.earliest = [&self.ack, &self.probe, &self.hello]
            .into_iter()
            .filter_map(|line| line.next(links))
            .map(Nanos)
            .chain(wheel.next())
            .min();
    }

    /// An alarm of the wheel may be the earliest now.
    fn settle_earlier(&mut self, at: Option<Nanos>) {
        self.earliest = self.earliest.into_iter().chain(at).min();
    }

    fn line(&mut self, timer: Timer) -> &mut DeadlineQueue {
        match timer {
            Timer::Ack => &mut self.ack,
            Timer::Probe => &mut self.probe,
            Timer::Hello => &mut self.hello,
        }
    }
}

/// What a look at a peer has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It lives, or may.
    Alive,
    /// The life of its link is over, and it has been told so.
    Dead,
}

/// What others know of a peer that is looked at.
pub(crate) struct Witness<'a> {
    /// Whether an answer of it is awaited.
    pub(crate) asked: bool,
    /// Whether one has not come for too long.
    pub(crate) overdue: bool,
    /// Whether a slot of its window is empty.
    pub(crate) is_missing: &'a dyn Fn(BounceId) -> bool,
}

impl<S: Storage> Links<S> {
    /// Acknowledge later, if nothing else makes it happen.
    #[inline(always)]
    pub(crate) fn arm_ack(&mut self, env: &Env<S>, id: NodeId, now: Nanos) {
        self.arm(env, Timer::Ack, id, now);
    }

    /// Sets an alarm, unless it is set.
    #[inline(always)]
    fn arm(&mut self, env: &Env<S>, timer: Timer, id: NodeId, now: Nanos) {
        if let Some(peer) = self.peers.get_mut(id.index())
            && !peer.is_set(timer)
        {
            peer.alarms |= timer.bit();
            let index = timer as u32 * u32::from(env.config.geometry.nodes) + u32::from(id.0);
            self.alarms.set(&mut self.deadlines, timer, index, now);
        }
    }

    /// Look later whether the peer still lives.
    #[inline(always)]
    pub(crate) fn arm_probe(&mut self, env: &Env<S>, id: NodeId, now: Nanos) {
        if id != env.config.node {
            self.arm(env, Timer::Probe, id, now);
        }
    }

    /// Whether the alarm of a link's copies rings at this time or before.
    #[inline(always)]
    pub(super) fn rings_before(&self, id: NodeId, at: u64) -> bool {
        self.hands
            .get(id.index())
            .is_some_and(|hand| hand.rings_before(at))
    }

    /// Looks at the copies of a link at this time.
    #[inline(never)]
    pub(super) fn ring_at(&mut self, id: NodeId, now: Nanos, at: Nanos) {
        let rings = self.wheel.set(&mut self.hands, u32::from(id.0), now, at);
        self.alarms.settle_earlier(rings);
    }

    /// Takes a link whose copies are to be looked at.
    pub(crate) fn pop_rung(&mut self, now: Nanos) -> Option<NodeId> {
        let link = self.wheel.pop_due(&mut self.hands, now)?;
        Some(NodeId(link as u16))
    }

    /// Greet again later.
    pub(super) fn arm_hello(&mut self, env: &Env<S>, id: NodeId, now: Nanos) {
        if id != env.config.node {
            self.arm(env, Timer::Hello, id, now);
        }
    }

    /// Whether an alarm is due.
    #[inline]
    pub(crate) fn is_anything_due(&self, now: Nanos) -> bool {
        self.alarms.is_due(now)
    }

    /// Takes a peer whose alarm of this kind is due.
    pub(crate) fn pop_due(&mut self, env: &Env<S>, timer: Timer, now: Nanos) -> Option<NodeId> {
        let index = self.alarms.line(timer).pop_due(&mut self.deadlines, now.0)?;
        let id = NodeId((index % u32::from(env.config.geometry.nodes)) as u16);
        if let Some(peer) = self.get_mut(id) {
            peer.alarms &= !timer.bit();
        }
        Some(id)
    }

    /// What was due has been taken.
    pub(crate) fn settle_alarms(&mut self) {
        self.alarms.settle(&self.deadlines, &self.wheel);
    }

    /// The next deadline of any kind.
    pub(crate) const fn deadline(&self) -> Option<Nanos> {
        self.alarms.earliest
    }

    /// Whether there is anything new to acknowledge to a peer.
    pub(crate) fn ack_is_useful(&self, id: NodeId) -> bool {
        self.get(id)
            .is_some_and(|peer| peer.is_alive() && (peer.sequence.ack_useful() || peer.arrivals.has_news()))
    }

    /// What a peer is known to have received, all before the first number, and the number that leaves next.
    pub(crate) fn sent_to(&self, id: NodeId) -> Option<(Seq, Seq)> {
        let peer = self.get(id)?;
        let received = if peer.lossy {
            peer.resend.requests
        } else {
            peer.credits.acked()
        };
        Some((received, peer.credits.next()))
    }

    /// What a peer whose link is alive has acknowledged.
    pub(crate) fn acked_of_living(&self, id: NodeId) -> Option<Seq> {
        let peer = self.get(id).filter(|peer| peer.is_alive())?;
        Some(peer.credits.acked())
    }

    /// Whether a peer lives, and its sequence has no hole that stays.
    ///
    /// **Progress is the measure, not sound.** Frames of other ports of the peer say nothing about the frame that the
    /// wire has lost. So two things put a peer in doubt at a look: it has been *silent*, or the link is *stalled*
    /// ([`Peer::stalls`](super::Peer::stalls)): the oldest number without an acknowledgement is the one of the look before. A peer in
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
    pub(crate) fn check<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        now: Nanos,
        id: NodeId,
        witness: &Witness<'_>,
    ) -> Verdict {
        let timers = env.config.timers;
        let Some(peer) = self.get_mut(id).filter(|peer| peer.is_alive()) else {
            return Verdict::Alive;
        };
        let owes = timers.keepalive || peer.owes() || peer.is_accepted() || witness.asked;
        let silent = peer.heard_at.after(timers.probe_interval) <= now;
        let in_doubt = (peer.stalls() && !mutant::is(Mutant::AnyFrameVouches)) || silent;
        if !in_doubt {
            peer.unanswered = 0;
        }
        // Where the wire may lose frames, the sender fills the gap, or finds that it cannot.
        let gap_stays = !peer.lossy
            && peer.sequence.anything_past_lsn()
            && peer.gap_since.after(timers.gap_timeout) <= now;
        let lsn = env.config.slot_id(peer.windows.from, peer.lsn_slot());
        let hole = witness.overdue || (gap_stays && (witness.is_missing)(lsn));
        if hole || (in_doubt && peer.unanswered >= timers.probe_limit && owes) {
            send_bye(p, env, id, peer.local, peer.remote);
            return Verdict::Dead;
        }
        if !owes {
            return Verdict::Alive;
        }
        if in_doubt {
            peer.unanswered = peer.unanswered.saturating_add(1);
            self.probe(p, env, now, id);
        }
        self.arm_probe(env, id, now);
        Verdict::Alive
    }

    /// Asks a peer for an acknowledgement, and says how far this side has sent: so a last message that is lost leaves a gap,
    /// too.
    pub(crate) fn probe<P: Platform>(&self, p: &mut P, env: &mut Env<S>, now: Nanos, id: NodeId) {
        let Some(peer) = self.get(id) else {
            return;
        };
        env.counters.probes_sent += 1;
        let next = peer.credits.next();
        let mut probe = self.session_header(env, Body::Probe, id);
        (probe.seq, probe.stamp) = (next, Stamp::of(now));
        p.transmit(&OwnHeader::new(&probe), Payload::Empty);
    }

    /// Greets again, or gives up what waits for the link.
    pub(crate) fn greet_again<P: Platform>(&mut self, p: &mut P, env: &mut Env<S>, now: Nanos, id: NodeId) {
        let limit = env.config.timers.hello_limit;
        let Some(peer) = self.get_mut(id) else {
            return;
        };
        if peer.state != State::Connecting {
            return;
        }
        peer.unanswered = peer.unanswered.saturating_add(1);
        if peer.unanswered < limit {
            self.send_hello(p, env, id);
            self.arm_hello(env, id, now);
            return;
        }
        peer.state = State::Down;
        peer.wanted = false;
        peer.greeted = false;
        self.fail_controls(p, env, id, Status::LinkLost);
        let (peer, incarnation) = (id, Incarnation(0));
        env.tell_host(p, NicEvent::PeerLost { peer, incarnation });
    }
}
