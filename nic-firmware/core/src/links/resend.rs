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

use super::congestion::Congestion;
use super::copies::{Copies, Copy, Lane, Line};
use super::round_trip_time::{FIRST_WAIT, LEAST_REORDERING, RoundTripTime};
use super::{HeldWindows, Links, Peer};
use crate::config::{Config, Timers};
use crate::env::Env;
use crate::platform::Payload;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{ANSWERS_PER_SLOT, OwnHeader, Receipt, answers};
use netvm_abi::{Nanos, NodeId, Seq, StagingId, Stamp};

/// A message leaves again so often as soon as it has been overtaken; then it waits, longer each time.
const AT_ONCE: u8 = 8;
/// What was refused comes again so often in a probe interval.
const REFUSED_AGAIN: u64 = 16;
/// Messages leave again so often before no refusal means that there is none: each one that is refused is answered.
const REFUSAL_HOLDS: u8 = 128;
/// So many of those that wait longer are looked at, at most.
const LOOKS: usize = 64;
/// The reordering window grows at most by this factor.
const MOST_REORDERING: u8 = 8;

/// The sending side of a link that may lose messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resend {
    time: RoundTripTime,
    pub(super) congestion: Congestion,
    /// The latest stamp that has come back: what left a reordering window before it, and has not arrived, is lost.
    newest: Stamp,
    /// The echo of the last round trip that was measured.
    measured: Stamp,
    /// Every request before it has been received.
    pub(super) requests: Seq,
    /// Requests past it that have been received, too.
    pub(super) beyond: u16,
    /// The lower half of a number: for all before it the wire has room, whatever comes back.
    room_to: u16,
    /// The next answer's number, and the lowest that has not been received.
    pub(super) next_answer: Seq,
    pub(super) answers: Seq,
    /// Of each lane, the number that left first of those that have left once and have not been received; the next number,
    /// if there is none.
    pub(super) fresh_requests: Seq,
    pub(super) fresh_answers: Seq,
    /// What has left more than once and has not been received.
    pub(super) line: Line,
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
            congestion: Congestion::new(),
            newest: Stamp(0),
            measured: Stamp(0),
            requests: first,
            beyond: 0,
            room_to: first.0 as u16,
            next_answer: first,
            answers: first,
            fresh_requests: first,
            fresh_answers: first,
            line: Line::EMPTY,
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
    pub(super) const fn awaits(&self, next: Seq) -> bool {
        self.requests.0 != next.0 || self.answers.0 != self.next_answer.0
    }

    /// Requests that have left and are not known to have been received. `next` is the number of the next one.
    #[inline]
    pub(super) const fn requests_out(&self, next: Seq) -> u32 {
        next.since(self.requests).saturating_sub(self.beyond as u32)
    }

    /// Whether the wire has room for the request of this number, as one subtraction tells.
    #[inline(always)]
    pub(super) const fn surely_has_room(&self, next: Seq) -> bool {
        self.room_to.wrapping_sub(next.0 as u16) as i16 > 0
    }

    /// Whether it has, as the congestion window tells.
    #[cold]
    #[inline(never)]
    pub(super) fn has_room(&mut self, next: Seq) -> bool {
        let out = self.requests_out(next);
        self.congestion.has_room(out)
    }

    /// The congestion window has changed, or what has been received.
    pub(super) fn makes_room(&mut self) {
        let surely = u32::from(self.beyond) + self.congestion.half();
        self.room_to = self.requests.plus(surely).0 as u16;
    }

    /// Answers that have left and are not known to have been received, up to the last.
    #[inline]
    pub(super) const fn answers_out(&self) -> u32 {
        self.next_answer.since(self.answers)
    }

    /// The numbers of a lane that have left and are not known to have been received up to them: from the first to before
    /// the second.
    pub(super) const fn out(&self, lane: Lane, next: Seq) -> (Seq, Seq) {
        match lane {
            Lane::Requests => (self.requests, next),
            Lane::Answers => (self.answers, self.next_answer),
        }
    }

    /// The number of a lane that left first of those that have left once and have not been received; the next one, if
    /// there is none.
    const fn fresh(&self, lane: Lane) -> Seq {
        match lane {
            Lane::Requests => self.fresh_requests,
            Lane::Answers => self.fresh_answers,
        }
    }

    /// The smoothed round trip in ticks, if one has been measured.
    pub(super) fn round_trip(&self) -> Option<u32> {
        self.time.is_known().then_some(self.time.smoothed)
    }

    /// The reordering window in ticks.
    fn window(&self) -> u32 {
        if !self.time.is_known() {
            return FIRST_WAIT;
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

    /// What is known of a message that has not been received: those that left before the latest one that came are late.
    fn judge(&self, copy: &Copy, now: Stamp, timers: &Timers) -> Judged {
        if !self.newest.is_after(copy.sent()) {
            return Judged::Later;
        }
        let (age, hold) = (now.since(copy.sent()), self.hold(copy.times(), timers));
        let overtaken = self.newest.since(copy.sent()) >= self.window() && copy.times() < AT_ONCE;
        if overtaken || age >= hold {
            return Judged::Lost;
        }
        Judged::In(hold - age)
    }

    /// An acknowledgement has come: what it says of time. `most` is the window of the credits. Whether the way is found to be
    /// congested.
    pub(super) fn hears(&mut self, now: Nanos, receipt: &Receipt, most: u32, timers: &Timers) -> bool {
        // The wait counts from when something last left: what is heard of others says nothing of that.
        self.waits = 0;
        if receipt.repeats != self.repeats {
            self.repeats = receipt.repeats;
            self.reordering = (self.reordering + 1).min(MOST_REORDERING);
        }
        if receipt.held == Receipt::NO_ECHO {
            return false;
        }
        let took = Stamp::of(now).since(receipt.echo).wrapping_sub(receipt.held);
        // A stamp of the future, or a time that cannot be: of a card that does not keep to the protocol.
        if took as i32 <= 0 {
            return false;
        }
        let mut congested = false;
        if receipt.echo != self.measured {
            self.measured = receipt.echo;
            self.time.add(took, timers);
            let (now, time) = (Stamp::of(now), &mut self.time);
            congested = self.congestion.hears(now, took, time, most, timers);
        }
        if receipt.echo.is_after(self.newest) {
            self.newest = receipt.echo;
        }
        congested
    }
}

/// What is known of a message that has not been received.
enum Judged {
    /// It is lost.
    Lost,
    /// It is, if it does not come in so many ticks.
    In(u32),
    /// Nothing: nothing that left later has come.
    Later,
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
        let place = (Lane::Requests, seq);
        let (copies, at) = (&mut self.copies, kept_index(config, peer.windows, place));
        if let Some(kept) = self.kept.get_mut(at) {
            *kept = copies.keep(stamp, header, payload);
        }
        let at = now.0 + u64::from(resend.time.first) * Stamp::TICK;
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
        if resend.answers_out() >= ANSWERS_PER_SLOT * peer.credits.size() || !self.copies.reserve() {
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
            kept_index(&env.config, peer.windows, (Lane::Answers, number)),
        );
        if let Some(kept) = self.kept.get_mut(at) {
            *kept = copies.keep(stamp, header, payload);
        }
        let at = now.0 + u64::from(resend.time.first) * Stamp::TICK;
        if !self.rings_before(id, at) {
            self.ring_at(id, now, Nanos(at));
        }
        true
    }

    /// Looks later whether an acknowledgement has come.
    pub(super) fn arm_resend(&mut self, config: &Config, id: NodeId, now: Nanos) {
        if let Some(peer) = self.peers.get(id.index()) {
            let at = self.patience(config, peer);
            if !self.rings_before(id, at.0) {
                self.ring_at(id, now, at);
            }
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

    /// Looks for a message of a link that left before the latest one that has come back, and has not come itself. Of what
    /// has left once a look at the first one of each lane tells, of the others a look along the line.
    fn find_lost(&self, config: &Config, id: NodeId, now: Nanos) -> Found {
        let Some(peer) = self.get(id) else {
            return Found::None;
        };
        let resend = &peer.resend;
        let mut soonest: Option<u32> = None;
        let mut index = resend.line.first();
        for _ in 0..LOOKS {
            let Some(copy) = self.copies.get(index) else {
                break;
            };
            match resend.judge(copy, Stamp::of(now), &config.timers) {
                Judged::Lost => return Found::Lost(index),
                Judged::In(ticks) => soonest = Some(soonest.map_or(ticks, |soonest| soonest.min(ticks))),
                Judged::Later => break,
            }
            if copy.times() < AT_ONCE {
                // Those behind it left later, and wait as long or longer.
                break;
            }
            index = copy.after();
        }
        for lane in [Lane::Requests, Lane::Answers] {
            let Some((index, copy)) = self.fresh_of(config, peer, lane) else {
                continue;
            };
            match resend.judge(copy, Stamp::of(now), &config.timers) {
                Judged::Lost => return Found::Lost(index),
                Judged::In(ticks) => soonest = Some(soonest.map_or(ticks, |soonest| soonest.min(ticks))),
                Judged::Later => {}
            }
        }
        soonest.map_or(Found::None, |ticks| {
            Found::Later(now.after(Nanos(u64::from(ticks) * Stamp::TICK)))
        })
    }

    /// What left first of a lane, of what has left once and has not been received.
    fn fresh_of(&self, config: &Config, peer: &Peer, lane: Lane) -> Option<(u16, &Copy)> {
        self.copy_of(config, peer.windows, (lane, peer.resend.fresh(lane)))
    }

    /// The copy of a message that has not been received.
    fn copy_of(&self, config: &Config, held: HeldWindows, place: (Lane, Seq)) -> Option<(u16, &Copy)> {
        let index = *self.kept.get(kept_index(config, held, place))?;
        Some((index, self.copies.get(index)?))
    }

    /// The message of a link that left first of those that have not been received.
    fn first_out(&self, config: &Config, peer: &Peer) -> Option<u16> {
        let lined = self.lined(peer.resend.line.first());
        [Lane::Requests, Lane::Answers]
            .into_iter()
            .filter_map(|lane| self.fresh_of(config, peer, lane))
            .chain(lined)
            .reduce(|one, other| {
                if one.1.sent().is_after(other.1.sent()) {
                    other
                } else {
                    one
                }
            })
            .map(|(index, _)| index)
    }

    /// The message of a link that left last, if it has not been received; else one that has not.
    fn last_out(&self, config: &Config, peer: &Peer) -> Option<u16> {
        let resend = &peer.resend;
        let lined = self.lined(resend.line.last());
        [Lane::Requests, Lane::Answers]
            .into_iter()
            .filter_map(|lane| {
                let (first, end) = resend.out(lane, peer.credits.next());
                let last = (first != end).then(|| end.plus(u32::MAX))?;
                self.copy_of(config, peer.windows, (lane, last))
            })
            .chain(lined)
            .reduce(|one, other| {
                if other.1.sent().is_after(one.1.sent()) {
                    other
                } else {
                    one
                }
            })
            .map(|(index, _)| index)
            .or_else(|| self.first_out(config, peer))
    }

    /// A copy at an end of the line.
    fn lined(&self, index: u16) -> Option<(u16, &Copy)> {
        Some((index, self.copies.get(index)?))
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
        if now < self.patience(&env.config, peer) {
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
            self.arm_resend(&env.config, id, now);
            return Overdue::Ask;
        }
        // The tail may be lost, or the acknowledgement is delayed.
        if self.asks_early(&env.config, peer) {
            if let Some(peer) = self.get_mut(id) {
                (peer.resend.asked, peer.resend.since) = (true, now);
            }
            env.counters.tail_probes += 1;
            self.arm_resend(&env.config, id, now);
            return Overdue::Ask;
        }
        // No answer. Each second time what left first goes again instead of what left last.
        let again = if peer.resend.waits.is_multiple_of(2) {
            self.last_out(&env.config, peer)
        } else {
            self.first_out(&env.config, peer)
        };
        let Some(again) = again else {
            return Overdue::Nothing;
        };
        if let Some(peer) = self.get_mut(id) {
            let resend = &mut peer.resend;
            (resend.waits, resend.since) = (resend.waits.saturating_add(1), now);
            if resend.waits == AT_ONCE {
                resend.congestion.hears_nothing(&env.config.timers);
                resend.makes_room();
            }
        }
        env.counters.tail_probes += 1;
        Overdue::Resend(again)
    }

    /// Until when an acknowledgement is waited for. What left last is the measure: other acknowledgements say nothing of it.
    /// If it has left again, it asks to be acknowledged at once. The wait doubles with each that was in vain after the
    /// first ones: where much is lost, two in a row are an everyday event, and a peer that is gone is asked seldom soon.
    /// Where all has been received, the credits are waited for: word of them may be lost, or a page takes its time.
    fn patience(&self, config: &Config, peer: &Peer) -> Nanos {
        let resend = &peer.resend;
        if !resend.awaits(peer.credits.next()) {
            return resend.since.after(grown(config, resend.time.wait, resend.asks));
        }
        let (times, asks) = self.last_again(config, peer);
        let once = if asks || resend.asked || resend.time.asks_early(&config.timers) {
            resend.time.at_once
        } else {
            resend.time.wait
        };
        let vain = resend.waits.max(times).saturating_sub(AT_ONCE - 1);
        let wait = grown(config, once, vain);
        let least = Nanos(config.timers.probe_interval.0 / REFUSED_AGAIN);
        resend
            .since
            .after(if peer.refused > 0 { wait.max(least) } else { wait })
    }

    /// Whether the other card is to be asked before anything leaves again: not of what asks by itself.
    fn asks_early(&self, config: &Config, peer: &Peer) -> bool {
        let resend = &peer.resend;
        let first = resend.time.asks_early(&config.timers) && !resend.asked && resend.waits == 0;
        first && !self.last_again(config, peer).1
    }

    /// Of the message that left last, if it has left again: how often, and whether it asks for an acknowledgement.
    fn last_again(&self, config: &Config, peer: &Peer) -> (u8, bool) {
        let resend = &peer.resend;
        let Some((_, last)) = self.lined(resend.line.last()) else {
            return (0, false);
        };
        let fresh = [Lane::Requests, Lane::Answers]
            .into_iter()
            .any(|lane| self.fresh_of(config, peer, lane).is_some());
        if fresh && Stamp::of(resend.since).is_after(last.sent()) {
            return (0, false);
        }
        (last.times(), last.asks())
    }

    /// Whether a message has left again so often that its link is lost.
    pub(crate) fn has_left_too_often(&self, env: &Env<S>, id: NodeId, copy: u16) -> bool {
        let limit = env.config.timers.resend_limit();
        let refused = self.get(id).is_some_and(|peer| peer.refused > 0);
        !refused && self.copies.get(copy).is_some_and(|copy| copy.times() >= limit)
    }

    /// A request was refused for lack of a window. Until one is received, or no more refusals come, they come again after a part of
    /// the probe interval, and the link is not lost for it.
    #[cold]
    pub(crate) fn hears_of_refusal(&mut self, id: NodeId) {
        if let Some(peer) = self.get_mut(id) {
            peer.refused = REFUSAL_HOLDS;
            peer.resend.waits = 0;
        }
    }

    /// A message leaves again, and is given.
    pub(crate) fn resend(&mut self, env: &Env<S>, now: Nanos, id: NodeId, copy: u16) -> Option<&Copy> {
        let peer = self.peers.get_mut(id.index())?;
        let resend = &mut peer.resend;
        resend.resent = resend.resent.wrapping_add(1);
        resend.congestion.loses();
        if peer.refused > 0 {
            peer.refused -= 1;
            self.copies.counts_at_most(copy, AT_ONCE);
        }
        self.copies.leave_again(copy, &mut resend.line, Stamp::of(now));
        self.has_lined_up(env, now, id);
        self.copies.get(copy)
    }

    /// A message is lost and cannot leave yet, because it has not left for the last time: its turn comes again.
    #[cold]
    pub(crate) fn put_off(&mut self, env: &Env<S>, now: Nanos, id: NodeId, copy: u16) {
        if let Some(peer) = self.peers.get_mut(id.index()) {
            self.copies.line_up(copy, &mut peer.resend.line, Stamp::of(now));
            self.has_lined_up(env, now, id);
        }
    }

    /// The staging buffer that has the payload of a copy.
    pub(crate) fn staging_of(&self, copy: u16) -> Option<StagingId> {
        self.copies.get(copy)?.staging()
    }

    /// A message stands at the end of its link's line: the wait for it begins.
    fn has_lined_up(&mut self, env: &Env<S>, now: Nanos, id: NodeId) {
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        let (next, held) = (peer.credits.next(), peer.windows);
        let resend = &mut peer.resend;
        (resend.since, resend.asked) = (now, false);
        pass(resend, next, &self.copies, |place| {
            self.kept.get(kept_index(&env.config, held, place)).copied()
        });
        self.arm_resend(&env.config, id, now);
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

/// A wait of so many ticks that doubles with each time that it was in vain, up to the probe interval.
fn grown(config: &Config, wait: u32, vain: u8) -> Nanos {
    let wait = (u64::from(wait) * Stamp::TICK) << u32::from(vain).min(16);
    Nanos(wait.min(config.timers.probe_interval.0))
}

/// Moves past what has been received, and past what stands in the line. Each number is passed once; `kept` tells its copy.
#[inline(always)]
pub(super) fn pass<S: Storage>(
    resend: &mut Resend,
    next: Seq,
    copies: &Copies<S>,
    kept: impl Fn((Lane, Seq)) -> Option<u16>,
) {
    for lane in [Lane::Requests, Lane::Answers] {
        let (first, end) = resend.out(lane, next);
        let mut fresh = resend.fresh(lane);
        if first.is_after(fresh) {
            fresh = first;
        }
        let is_fresh = |number| {
            kept((lane, number))
                .and_then(|copy| copies.get(copy))
                .is_some_and(|copy| !copy.is_lined())
        };
        while fresh != end && !is_fresh(fresh) {
            fresh = fresh.plus(1);
        }
        match lane {
            Lane::Requests => resend.fresh_requests = fresh,
            Lane::Answers => resend.fresh_answers = fresh,
        }
    }
}

/// Where the number of a message's copy is found. Requests of a sending window and answers of the receiving one with the same
/// index stand together, though they may be of two links.
#[inline(always)]
pub(super) fn kept_index(config: &Config, held: HeldWindows, (lane, number): (Lane, Seq)) -> usize {
    let window = usize::from(config.geometry.window);
    let answers = answers(config.geometry.window) as usize;
    let row = window + answers;
    match lane {
        Lane::Requests => held.to.index() * row + (number.index() & (window - 1)),
        Lane::Answers => held.from.index() * row + window + (number.index() & (answers - 1)),
    }
}
