//! What the wire has lost is found out, and sent again.
//!
//! Every frame carries the time at which it left. An acknowledgement repeats the stamp of the frame that arrived last,
//! and says for how long it was held: so a round trip is measured without doubt, also of what was sent again. Loss is
//! found by time, as in RFC 8985 (RACK), never by counting what has overtaken a message, because this network reorders
//! on purpose:
//!
//! - A message is lost if one that left a *reordering window* later has arrived. The window is a quarter of the shortest
//!   round trip, and grows towards a whole one when the other card says that what came again had not been lost.
//! - If nothing comes back for a while (the smoothed round trip, four times its variation, and the delay of an
//!   acknowledgement), the message that left last is sent again as a probe of the tail: the acknowledgement that it
//!   asks for tells what else is lost. Without an answer the wait doubles, up to [`Timers::probe_interval`].
//! - Where the delay of an acknowledgement is longer than a round trip, it would be most of that wait. So the other card
//!   is asked first (`Probe`), without the delay: a frame without payload, and nothing leaves twice.
//!
//! A message that has left again too often ends the life of the link; so does a peer that acknowledges nothing
//! ([`super::timers`]). Whether a message is new, the receiver knows by its number: [`super::received`].

use super::copies::{Copies, Copy, Lane, NONE};
use super::{Links, Peer};
use crate::config::{Config, Timers};
use crate::env::Env;
use crate::platform::Payload;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::wire::{ANSWERS, OwnHeader, Receipt, Received};
use netvm_abi::{Nanos, NodeId, Seq, StagingId, Stamp};

/// The wait for an acknowledgement before any round trip has been measured, in nanoseconds.
const FIRST_WAIT: u64 = 3_000_000;
/// The reordering window is never shorter, in ticks of a stamp: 1 us.
const LEAST_REORDERING: u32 = 16;
/// A message leaves again so often as soon as it has been overtaken; then it waits, longer each time.
const AT_ONCE: u8 = 3;
/// The reordering window grows at most by this factor.
const MOST_REORDERING: u8 = 8;

/// Round trips of a link, in ticks of a stamp.
#[derive(Clone, Copy, Debug)]
struct RoundTripTime {
    smoothed: u32,
    variation: u32,
    least: u32,
    measured: bool,
    /// How long an acknowledgement may take that is delayed, in nanoseconds.
    wait: u64,
    /// The same of one that is not.
    at_once: u64,
    /// When what has left is first looked at.
    first: u64,
}

impl RoundTripTime {
    const UNKNOWN: Self = Self {
        smoothed: 0,
        variation: 0,
        least: u32::MAX,
        measured: false,
        wait: FIRST_WAIT,
        at_once: FIRST_WAIT,
        first: FIRST_WAIT,
    };

    /// A round trip has taken this long (RFC 6298).
    fn add(&mut self, took: u32, timers: &Timers) {
        // The shortest one is forgotten little by little: the path may have changed.
        self.least = took.min(self.least.saturating_add(self.least / 4096));
        if self.measured {
            let off = self.smoothed.abs_diff(took);
            self.variation = self.variation - self.variation / 4 + off / 4;
            self.smoothed = self.smoothed - self.smoothed / 8 + took / 8;
        } else {
            (self.smoothed, self.variation, self.measured) = (took, took / 2, true);
        }
        let spread = (4 * u64::from(self.variation)).max(u64::from(LEAST_REORDERING));
        self.at_once = (u64::from(self.smoothed) + spread) * Stamp::TICK;
        self.wait = self.at_once + timers.ack_delay.0;
        self.first = if self.asks_early(timers) {
            self.at_once
        } else {
            self.wait
        };
    }

    /// Whether to wait for the delay of an acknowledgement takes longer than to ask for one.
    fn asks_early(&self, timers: &Timers) -> bool {
        self.measured && u64::from(self.smoothed) * Stamp::TICK < timers.ack_delay.0
    }
}

/// The sending side of a link that may lose messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resend {
    time: RoundTripTime,
    /// The latest stamp that has come back: what left a reordering window before it, and has not arrived, is lost.
    newest: Stamp,
    /// The echo of the last round trip that was measured.
    measured: Stamp,
    /// Every request before it has been received.
    pub(super) requests: Seq,
    /// The next answer's number, and the lowest that has not been received.
    next_answer: Seq,
    answers: Seq,
    /// Of what has not been received, how many have left more than once: without any, what left first has the lowest
    /// number.
    again: u16,
    /// Times that something has left again, in this life of the link.
    pub(super) resent: u32,
    /// Waits in a row without an answer.
    waits: u8,
    /// Since something last left, the other card has been asked for an acknowledgement.
    asked: bool,
    /// Times in a row that credits were asked for in vain: all has been received, and not all has landed.
    asks: u8,
    /// By how much the reordering window has grown.
    reordering: u8,
    /// Repeats that the other card has counted.
    repeats: u32,
    /// Since when the present wait counts.
    since: Nanos,
}

impl Resend {
    /// Of a link that has not begun.
    pub(super) const fn new() -> Self {
        Self::begin(Seq(0))
    }

    /// Of a life whose first number is `first`.
    pub(super) const fn begin(first: Seq) -> Self {
        Self {
            time: RoundTripTime::UNKNOWN,
            newest: Stamp(0),
            measured: Stamp(0),
            requests: first,
            next_answer: first,
            answers: first,
            again: 0,
            resent: 0,
            waits: 0,
            asked: false,
            asks: 0,
            reordering: 1,
            repeats: 0,
            since: Nanos(0),
        }
    }

    /// Whether a message that has left has not been received, as far as this side knows. `next` is the number of the
    /// next request.
    const fn awaits(&self, next: Seq) -> bool {
        self.requests.0 != next.0 || self.answers.0 != self.next_answer.0
    }

    /// Answers that have left and are not known to have been received, up to the last.
    #[inline]
    pub(super) const fn answers_out(&self) -> u32 {
        self.next_answer.since(self.answers)
    }

    /// The numbers of a lane that have left and are not known to have been received up to them: from the first to before
    /// the second.
    const fn out(&self, lane: Lane, next: Seq) -> (Seq, Seq) {
        match lane {
            Lane::Requests => (self.requests, next),
            Lane::Answers => (self.answers, self.next_answer),
        }
    }

    /// The smoothed round trip in ticks, if one has been measured.
    pub(super) fn round_trip(&self) -> Option<u32> {
        self.time.measured.then_some(self.time.smoothed)
    }

    /// The reordering window in ticks.
    fn window(&self) -> u32 {
        if !self.time.measured {
            return (FIRST_WAIT / Stamp::TICK) as u32;
        }
        let grown = (self.time.least / 4).saturating_mul(u32::from(self.reordering));
        grown.min(self.time.smoothed).max(LEAST_REORDERING)
    }

    /// How long after it has left a message counts as lost that has been overtaken, in ticks: a round trip and the
    /// reordering window. One that has left again and again waits longer each time.
    fn hold(&self, times: u8, timers: &Timers) -> u32 {
        let once = u64::from(self.time.smoothed) + u64::from(self.window());
        let grown = once << u32::from(times.saturating_sub(AT_ONCE - 1)).min(16);
        grown.min(timers.probe_interval.0 / Stamp::TICK) as u32
    }

    /// An acknowledgement has come: what it says of time.
    fn hears(&mut self, now: Nanos, receipt: &Receipt, timers: &Timers) {
        // The wait counts from when something last left: what is heard of others says nothing of that.
        self.waits = 0;
        if receipt.repeats != self.repeats {
            self.repeats = receipt.repeats;
            self.reordering = (self.reordering + 1).min(MOST_REORDERING);
        }
        if receipt.held == Receipt::NO_ECHO {
            return;
        }
        let took = Stamp::of(now).since(receipt.echo).wrapping_sub(receipt.held);
        // A stamp of the future, or a time that cannot be: of a card that does not keep to the protocol.
        if took as i32 <= 0 {
            return;
        }
        if receipt.echo != self.measured {
            self.measured = receipt.echo;
            self.time.add(took, timers);
        }
        if receipt.echo.is_after(self.newest) {
            self.newest = receipt.echo;
        }
    }
}

/// What a look at the copies of a link has found.
enum Found {
    /// This message is lost.
    Lost(u16),
    /// One may be, at this time.
    Later(Nanos),
    /// None is.
    None,
}

/// What an alarm has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Nothing, or not yet.
    Nothing,
    /// This message is to be sent again.
    Resend(u16),
    /// No message is left to send again, and credits are missing: the other card is to be asked for them.
    Ask,
}

impl<S: Storage> Links<S> {
    /// Keeps a copy of a message that leaves, if its link may lose it: a request, which has its number.
    #[inline(always)]
    pub(crate) fn keep_request(
        &mut self,
        config: &Config,
        now: Nanos,
        id: NodeId,
        header: &OwnHeader,
        payload: Payload<'_>,
    ) -> bool {
        let Some(peer) = self.peers.get_mut(id.index()).filter(|peer| peer.lossy) else {
            return false;
        };
        let (seq, stamp) = (header.seq(), Stamp::of(now));
        let resend = &mut peer.resend;
        resend.leaves(now, seq);
        let (copies, at) = (&mut self.copies, kept_index(config, id, (Lane::Requests, seq)));
        if let Some(kept) = self.kept.get_mut(at) {
            *kept = copies.keep(stamp, header, payload);
        }
        let at = now.0 + resend.time.first;
        if !self.rings_before(id, at) {
            self.ring_at(id, now, Nanos(at));
        }
        true
    }

    /// Numbers an answer, and keeps a copy of it, if its link may lose it and there is room.
    pub(crate) fn keep_answer(
        &mut self,
        env: &mut Env<S>,
        header: &mut OwnHeader,
        payload: Payload<'_>,
    ) -> bool {
        let (id, now) = (header.destination(), env.now);
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return false;
        };
        if !peer.lossy || !peer.is_alive() {
            return false;
        }
        let next = peer.credits.next();
        let resend = &mut peer.resend;
        let number = resend.next_answer;
        if resend.answers_out() >= ANSWERS || !self.copies.reserve() {
            env.counters.answers_unkept += 1;
            return false;
        }
        resend.leaves(now, next);
        resend.next_answer = number.plus(1);
        header.number_answer(number);
        let stamp = Stamp::of(now);
        header.set_stamp(stamp);
        let (copies, at) = (
            &mut self.copies,
            kept_index(&env.config, id, (Lane::Answers, number)),
        );
        if let Some(kept) = self.kept.get_mut(at) {
            *kept = copies.keep(stamp, header, payload);
        }
        let at = now.0 + resend.time.first;
        if !self.rings_before(id, at) {
            self.ring_at(id, now, Nanos(at));
        }
        true
    }

    /// Looks later whether an acknowledgement has come.
    fn arm_resend(&mut self, config: &Config, id: NodeId, now: Nanos) {
        if let Some(peer) = self.peers.get(id.index()) {
            let at = self.patience(config, id, peer);
            if !self.rings_before(id, at.0) {
                self.ring_at(id, now, at);
            }
        }
    }

    /// Takes in what the other card has received. `freed` gets each staging buffer that is not needed any more.
    pub(crate) fn confirm(
        &mut self,
        config: &Config,
        now: Nanos,
        id: NodeId,
        receipt: &Receipt,
        mut freed: impl FnMut(StagingId),
    ) {
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        let next = peer.credits.next();
        let resend = &mut peer.resend;
        let mut lane = Confirmed {
            copies: &mut self.copies,
            kept: &mut self.kept,
            again: &mut resend.again,
            freed: &mut freed,
        };
        let of = |lane| move |number| kept_index(config, id, (lane, number));
        lane.confirm(&mut resend.requests, next, &receipt.requests, of(Lane::Requests));
        lane.confirm(
            &mut resend.answers,
            resend.next_answer,
            &receipt.answers,
            of(Lane::Answers),
        );
        resend.hears(now, receipt, &config.timers);
        if resend.awaits(next) || peer.credits.in_flight() != 0 {
            self.arm_resend(config, id, now);
        }
    }

    /// The next message of a link that is lost, as what has come back shows. Where one may only have been overtaken, the
    /// link's alarm is set for when that is known.
    pub(crate) fn next_lost_copy(&mut self, env: &Env<S>, now: Nanos, id: NodeId) -> Option<u16> {
        match self.find_lost(&env.config, id, now) {
            Found::Lost(copy) => Some(copy),
            Found::Later(at) => {
                self.ring_at(id, now, at);
                None
            }
            Found::None => None,
        }
    }

    /// Looks for a message of a link that left before the latest one that has come back, and has not come itself. Where
    /// none has left again, one look at the lowest number of each lane tells.
    fn find_lost(&self, config: &Config, id: NodeId, now: Nanos) -> Found {
        let Some(peer) = self.get(id) else {
            return Found::None;
        };
        let resend = &peer.resend;
        let (stamp, window) = (Stamp::of(now), resend.window());
        let mut soonest: Option<u32> = None;
        for lane in [Lane::Requests, Lane::Answers] {
            let (first, end) = resend.out(lane, peer.credits.next());
            for ahead in 0..end.since(first) {
                let Some((index, copy)) = self.copy_of(config, id, (lane, first.plus(ahead))) else {
                    continue;
                };
                if !resend.newest.is_after(copy.sent()) {
                    if resend.again == 0 {
                        break;
                    }
                    continue;
                }
                let age = stamp.since(copy.sent());
                let hold = resend.hold(copy.times(), &config.timers);
                let overtaken = resend.newest.since(copy.sent()) >= window && copy.times() < AT_ONCE;
                if overtaken || age >= hold {
                    return Found::Lost(index);
                }
                let left = hold - age;
                soonest = Some(soonest.map_or(left, |soonest| soonest.min(left)));
            }
        }
        soonest.map_or(Found::None, |ticks| {
            Found::Later(now.after(Nanos(u64::from(ticks) * Stamp::TICK)))
        })
    }

    /// The copy of a message that has not been received.
    fn copy_of(&self, config: &Config, id: NodeId, place: (Lane, Seq)) -> Option<(u16, &Copy)> {
        let index = *self.kept.get(kept_index(config, id, place))?;
        Some((index, self.copies.get(index)?))
    }

    /// The message of a link that left first, or last, of those that have not been received: by their numbers.
    fn end_of(&self, config: &Config, id: NodeId, last: bool) -> Option<u16> {
        let peer = self.get(id)?;
        let lane = |lane| {
            let (first, end) = peer.resend.out(lane, peer.credits.next());
            let out = end.since(first);
            let place = move |ahead| (lane, first.plus(if last { out - 1 - ahead } else { ahead }));
            (0..out).find_map(|ahead| self.copy_of(config, id, place(ahead)))
        };
        match (lane(Lane::Requests), lane(Lane::Answers)) {
            (Some((request, of_request)), Some((answer, of_answer))) => {
                let later = of_answer.sent().is_after(of_request.sent());
                Some(if later == last { answer } else { request })
            }
            (Some((copy, _)), None) | (None, Some((copy, _))) => Some(copy),
            (None, None) => None,
        }
    }

    /// The alarm of a link rings. What it finds to be sent again, if anything; else it is set again as long as
    /// something is awaited.
    pub(crate) fn overdue(&mut self, env: &mut Env<S>, now: Nanos, id: NodeId) -> Overdue {
        let Some(peer) = self.get(id).filter(|peer| peer.lossy && peer.is_alive()) else {
            return Overdue::Nothing;
        };
        let awaits = peer.resend.awaits(peer.credits.next());
        if !awaits && peer.credits.in_flight() == 0 {
            return Overdue::Nothing;
        }
        if now < self.patience(&env.config, id, peer) {
            if let Some(copy) = self.next_lost_copy(env, now, id) {
                return Overdue::Resend(copy);
            }
            self.arm_resend(&env.config, id, now);
            return Overdue::Nothing;
        }
        if !awaits {
            if let Some(peer) = self.get_mut(id) {
                let resend = &mut peer.resend;
                (resend.asks, resend.since) = (resend.asks.saturating_add(1), now);
            }
            env.counters.probes_sent += 1;
            self.arm_resend(&env.config, id, now);
            return Overdue::Ask;
        }
        // The tail may be lost, or the acknowledgement is delayed.
        if self.asks_early(&env.config, id, peer) {
            if let Some(peer) = self.get_mut(id) {
                (peer.resend.asked, peer.resend.since) = (true, now);
            }
            env.counters.tail_probes += 1;
            self.arm_resend(&env.config, id, now);
            return Overdue::Ask;
        }
        // No answer. Each second time what left first goes again instead of what left last.
        let Some(again) = self.end_of(&env.config, id, peer.resend.waits.is_multiple_of(2)) else {
            return Overdue::Nothing;
        };
        if let Some(peer) = self.get_mut(id) {
            let resend = &mut peer.resend;
            (resend.waits, resend.since) = (resend.waits.saturating_add(1), now);
        }
        env.counters.tail_probes += 1;
        Overdue::Resend(again)
    }

    /// Until when an acknowledgement is waited for. What left last is the measure: other acknowledgements say nothing of it.
    /// If it has left again, it asks to be acknowledged at once. The wait doubles with each that was in vain after the
    /// first ones: where much is lost, two in a row are an everyday event, and a peer that is gone is asked seldom soon.
    /// Where all has been received, the credits are waited for: word of them may be lost, or a page takes its time.
    fn patience(&self, config: &Config, id: NodeId, peer: &Peer) -> Nanos {
        let resend = &peer.resend;
        if !resend.awaits(peer.credits.next()) {
            let wait = resend.time.wait << u32::from(resend.asks).min(16);
            return resend
                .since
                .after(Nanos(wait.min(config.timers.probe_interval.0)));
        }
        let (times, asks) = self.last_again(config, id, peer);
        let once = if asks || resend.asked || resend.time.asks_early(&config.timers) {
            resend.time.at_once
        } else {
            resend.time.wait
        };
        let vain = resend.waits.max(times).saturating_sub(AT_ONCE - 1);
        let wait = once << u32::from(vain).min(16);
        resend
            .since
            .after(Nanos(wait.min(config.timers.probe_interval.0)))
    }

    /// Whether the other card is to be asked before anything leaves again: not of what asks by itself.
    fn asks_early(&self, config: &Config, id: NodeId, peer: &Peer) -> bool {
        let resend = &peer.resend;
        let first = resend.time.asks_early(&config.timers) && !resend.asked && resend.waits == 0;
        first && !self.last_again(config, id, peer).1
    }

    /// Of the message that left last, if it has left again: how often, and whether it asks for an acknowledgement.
    fn last_again(&self, config: &Config, id: NodeId, peer: &Peer) -> (u8, bool) {
        if peer.resend.again == 0 {
            return (0, false);
        }
        let last = self
            .end_of(config, id, true)
            .and_then(|last| self.copies.get(last));
        last.map_or((0, false), |last| (last.times(), last.asks()))
    }

    /// A message leaves again: nothing, if it has done so too often, and its link is lost.
    pub(crate) fn resend(
        &mut self,
        env: &mut Env<S>,
        now: Nanos,
        id: NodeId,
        copy: u16,
    ) -> Option<&mut Copy> {
        let limit = env.config.timers.resend_limit();
        let times = self.copies.get(copy)?.times();
        if times >= limit {
            return None;
        }
        let peer = self.peers.get_mut(id.index())?;
        peer.resend.again += u16::from(times == 0);
        peer.resend.resent = peer.resend.resent.wrapping_add(1);
        (peer.resend.since, peer.resend.asked) = (now, false);
        self.arm_resend(&env.config, id, now);
        self.copies.get_mut(copy)
    }

    /// The life of a link is over: lets go of all copies that it has. `freed` gets the staging buffers that they had.
    pub(crate) fn drop_copies(&mut self, config: &Config, id: NodeId, mut freed: impl FnMut(StagingId)) {
        let Some(peer) = self.peers.get_mut(id.index()).filter(|peer| peer.lossy) else {
            return;
        };
        let next = peer.credits.next();
        let resend = &mut peer.resend;
        for lane in [Lane::Requests, Lane::Answers] {
            let (first, end) = resend.out(lane, next);
            let mut all = Confirmed {
                copies: &mut self.copies,
                kept: &mut self.kept,
                again: &mut resend.again,
                freed: &mut freed,
            };
            for ahead in 0..end.since(first) {
                all.let_go(kept_index(config, id, (lane, first.plus(ahead))));
            }
        }
        (resend.requests, resend.answers) = (next, resend.next_answer);
    }
}

impl Peer {
    /// Credits have come back.
    #[inline]
    pub(super) const fn has_credits_back(&mut self) {
        self.resend.asks = 0;
    }
}

impl Resend {
    /// A message leaves: if nothing was awaited before, the wait begins, and what came back before says nothing of it.
    /// `next` is the number of the next request, or of this one.
    #[inline(always)]
    fn leaves(&mut self, now: Nanos, next: Seq) {
        if !self.awaits(next) {
            (self.newest, self.waits) = (Stamp::of(now), 0);
        }
        (self.since, self.asked) = (now, false);
    }
}

/// Where the number of a message's copy is found.
#[inline(always)]
fn kept_index(config: &Config, id: NodeId, (lane, number): (Lane, Seq)) -> usize {
    let window = usize::from(config.geometry.window);
    let own = id.index() * (window + ANSWERS as usize);
    match lane {
        Lane::Requests => own + (number.index() & (window - 1)),
        Lane::Answers => own + window + number.index() % ANSWERS as usize,
    }
}

/// Lets go of copies.
struct Confirmed<'a, S: Storage, F> {
    copies: &'a mut Copies<S>,
    kept: &'a mut [u16],
    again: &'a mut u16,
    freed: &'a mut F,
}

impl<S: Storage, F: FnMut(StagingId)> Confirmed<'_, S, F> {
    /// Lets go of what has been received of one lane, whose numbers from `from` on have not been confirmed, and whose
    /// next message has the number `next`; `index` is where the copy of each stands. A receipt that names what has not
    /// been sent is ignored.
    #[inline(always)]
    fn confirm(&mut self, from: &mut Seq, next: Seq, received: &Received, index: impl Fn(Seq) -> usize) {
        let out = next.since(*from);
        let done = received.next.since(*from);
        // An acknowledgement that a later one has overtaken, or nonsense.
        if done > out {
            return;
        }
        for ahead in 0..done {
            self.let_go(index(from.plus(ahead)));
        }
        *from = received.next;
        let mut beyond = received.beyond;
        while beyond != 0 {
            let ahead = 1 + beyond.trailing_zeros();
            beyond &= beyond - 1;
            if done + ahead < out {
                self.let_go(index(received.next.plus(ahead)));
            }
        }
    }

    #[inline(always)]
    fn let_go(&mut self, index: usize) {
        let Some(kept) = self.kept.get_mut(index) else {
            return;
        };
        if mutant::is(Mutant::CopyKept) && *kept == 3 {
            *kept = NONE;
        }
        let Some(copy) = self.copies.release(core::mem::replace(kept, NONE)) else {
            return;
        };
        if copy.again {
            *self.again = self.again.saturating_sub(1);
        }
        if let Some(staging) = copy.staging {
            (self.freed)(staging);
        }
    }
}
