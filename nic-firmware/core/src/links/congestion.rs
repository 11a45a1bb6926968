//! How many messages of a link may be on the wire at once, so that those of many cards do not fill the queue before one.
//!
//! Credits say what the other card can take. They say nothing of the way there: where 32 cards write to one, 32 windows of
//! messages meet in a switch that has room for one or two. What it drops is sent again, and meets the same queue.
//!
//! **Delay tells, loss does not.** A wire that loses one frame in a hundred is not slow, and a switch with a queue is slow long
//! before it loses. So the round trip is looked at, as Swift does (SIGCOMM 2020): what is above the link's shortest one is
//! queues. A single slow round trip is no queue; a card or its processor may have paused. So the shortest of each *round*
//! counts, which is a round trip or longer: a queue that stands delays all of its messages.
//!
//! - If it is within the target, and the window was used up, the window grows: doubles at the beginning, later by one message.
//! - If it is not, and half of the window was used at least, the window is cut by as much as the delay is too long, by half at
//!   most. A link that uses little has no part in the queue.
//! - If something has been lost in that round, the target is nearer: a small queue is full before it takes long.
//!
//! The target is the shortest round trip, and half as much again for queues, or [`Timers::queueing`] where that is more. All that share a
//! queue see its delay, so all are cut; those with large windows are cut by more, and all grow alike: the shares become equal.
//!
//! One message is always allowed. So more links than the way has room for messages find a queue that none of them can shorten. The
//! same is seen where the way has become longer, for example by another route: after [`PATIENCE`] the link believes that.

use super::round_trip_time::RoundTripTime;
use crate::config::Timers;
use bitflags::bitflags;
use netvm_abi::{Nanos, Stamp};

/// Parts of a message in which the window is counted.
const MESSAGE: u16 = 16;
/// Messages of the first window, and of the first one after a silence.
const FIRST: u16 = 16;
/// After so long without a round trip, what the last ones said is old: in ticks, 1 s.
const SILENCE: u32 = (1_000_000_000 / Stamp::TICK) as u32;
/// So long a link with the smallest window finds its way slow before it takes that for the way's length: in ticks, 4 s.
const PATIENCE: u32 = 4 * SILENCE;

/// The congestion window of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Congestion {
    /// In parts of a message.
    window: u16,
    /// For so long the smallest window has been too large, in ticks.
    crowded: u32,
    /// The shortest round trip of this round, in ticks.
    shortest: u32,
    /// When this round began.
    began: Stamp,
    marks: Marks,
}

bitflags! {
    /// What a window keeps in mind. Bits, because an entry of a peer is full.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Marks: u8 {
        /// It doubles, until it is cut for the first time.
        const DOUBLES = 1;
        /// In this round, a message had to wait for it.
        const USED_UP = 2;
        /// In this round, half of it was used at least.
        const HALF_USED = 4;
        /// In this round, a message has been lost.
        const LOST = 8;
    }
}

impl Congestion {
    /// Of a link whose other card takes so many messages, in a network with such queues.
    pub(super) fn of(most: u32, timers: &Timers) -> Self {
        let all = timers.queueing == Nanos::MAX;
        Self {
            window: if all { parts(most) } else { FIRST * MESSAGE },
            ..Self::new()
        }
    }

    /// Of a link that has not been used.
    pub(super) const fn new() -> Self {
        Self {
            window: FIRST * MESSAGE,
            crowded: 0,
            shortest: u32::MAX,
            began: Stamp(0),
            marks: Marks::DOUBLES,
        }
    }

    /// Messages that may be on the wire.
    #[inline(always)]
    pub(super) const fn window(&self) -> u32 {
        (self.window / MESSAGE) as u32
    }

    /// A message could leave, and so many others are on the wire. Whether there is room for it.
    pub(super) fn has_room(&mut self, out: u32) -> bool {
        if out < self.half() {
            return true;
        }
        let room = out < self.window();
        self.marks |= if room {
            Marks::HALF_USED
        } else {
            Marks::HALF_USED.union(Marks::USED_UP)
        };
        room
    }

    /// Messages that are less than half of the window: for them there is room, and they are not taken note of.
    pub(super) const fn half(&self) -> u32 {
        self.window().div_ceil(2)
    }

    /// A message is lost.
    pub(super) fn loses(&mut self) {
        self.marks |= Marks::LOST;
    }

    /// Nothing has come back for long: it is begun anew, with one message.
    pub(super) fn hears_nothing(&mut self, timers: &Timers) {
        if timers.queueing == Nanos::MAX {
            return;
        }
        *self = Self {
            window: MESSAGE,
            ..Self::new()
        };
    }

    /// A round trip has taken so long, in ticks, and `time` knows of it. `most` is the window of the credits. Whether the window has
    /// been cut.
    pub(super) fn hears(
        &mut self,
        now: Stamp,
        took: u32,
        time: &mut RoundTripTime,
        most: u32,
        timers: &Timers,
    ) -> bool {
        if timers.queueing == Nanos::MAX {
            return false;
        }
        let age = now.since(self.began);
        if age > SILENCE {
            self.window = self.window.min(FIRST * MESSAGE);
            (self.began, self.shortest) = (now, took);
            return false;
        }
        self.shortest = self.shortest.min(took);
        if age < time.smoothed {
            return false;
        }
        let target = self.target(time, timers);
        let slow = self.shortest > target;
        let cut = slow && self.marks.contains(Marks::HALF_USED);
        if cut {
            self.cut(target, age, time);
        } else if !slow {
            self.crowded = 0;
            if self.marks.contains(Marks::USED_UP) {
                self.grow(most);
            }
        }
        self.marks &= Marks::DOUBLES;
        (self.began, self.shortest) = (now, u32::MAX);
        cut
    }

    /// What a round trip may take, in ticks.
    fn target(&self, time: &RoundTripTime, timers: &Timers) -> u32 {
        let allowed = u32::try_from(timers.queueing.0 / Stamp::TICK).unwrap_or(u32::MAX);
        let queue = allowed.max(time.least / 2);
        time.least.saturating_add(if self.marks.contains(Marks::LOST) {
            queue / 2
        } else {
            queue
        })
    }

    fn grow(&mut self, most: u32) {
        let larger = if self.marks.contains(Marks::DOUBLES) {
            self.window.saturating_mul(2)
        } else {
            self.window.saturating_add(MESSAGE)
        };
        self.window = larger.min(parts(most)).max(MESSAGE);
    }

    /// The window is too large by as much as the delay is, by half at most.
    fn cut(&mut self, target: u32, round: u32, time: &mut RoundTripTime) {
        self.marks -= Marks::DOUBLES;
        let fits = u64::from(self.window) * u64::from(target) / u64::from(self.shortest);
        self.window = (fits as u16).max(self.window / 2).max(MESSAGE);
        if self.window > MESSAGE {
            self.crowded = 0;
            return;
        }
        self.crowded = self.crowded.saturating_add(round);
        if self.crowded > PATIENCE {
            (time.least, self.crowded) = (self.shortest, 0);
            self.marks |= Marks::DOUBLES;
        }
    }
}

/// So many messages.
fn parts(messages: u32) -> u16 {
    u16::try_from(messages).map_or(u16::MAX, |messages| messages.saturating_mul(MESSAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks in a microsecond, about.
    const MICRO: u32 = (1_000 / Stamp::TICK) as u32;

    /// A way that is this long, and carries so many messages in a microsecond; those beyond queue.
    struct Way {
        now: u32,
        least: u32,
        per_micro: u32,
        time: RoundTripTime,
        timers: Timers,
    }

    impl Way {
        fn new(least: u32, per_micro: u32) -> Self {
            Self {
                now: 77,
                least,
                per_micro,
                time: RoundTripTime::UNKNOWN,
                timers: Timers {
                    queueing: Nanos::from_micros(10),
                    ..Timers::default()
                },
            }
        }

        /// A round trip of links that each use their windows up.
        fn round(&mut self, links: &mut [Congestion]) -> u32 {
            let out: u32 = links.iter().map(Congestion::window).sum();
            let took = self.least.max(out * MICRO / self.per_micro);
            self.now = self.now.wrapping_add(took + 1);
            self.time.add(took, &self.timers);
            for link in links {
                assert!(!link.has_room(link.window()));
                let _ = link.hears(Stamp(self.now), took, &mut self.time, 64, &self.timers);
            }
            took
        }
    }

    #[test]
    fn an_empty_way_gets_the_whole_window_soon() {
        let (mut way, mut links) = (Way::new(10 * MICRO, 1_000), [Congestion::new()]);
        for _ in 0..5 {
            way.round(&mut links);
        }
        assert_eq!(links[0].window(), 64);
    }

    #[test]
    fn where_queues_do_not_count_the_whole_window_is_used_from_the_first() {
        let mut way = Way::new(10 * MICRO, 1);
        way.timers.queueing = Nanos::MAX;
        let mut links = [Congestion::of(64, &way.timers)];
        for _ in 0..5 {
            way.round(&mut links);
            links[0].hears_nothing(&way.timers);
            assert_eq!(links[0].window(), 64);
        }
        way.timers = Timers::default();
        assert_eq!(Congestion::of(64, &way.timers), Congestion::new());
    }

    #[test]
    fn a_window_that_is_not_used_up_does_not_grow() {
        let mut way = Way::new(10 * MICRO, 1_000);
        let mut link = Congestion::new();
        for _ in 0..10 {
            way.now += way.least + 1;
            way.time.add(way.least, &way.timers);
            let cut = link.hears(Stamp(way.now), way.least, &mut way.time, 64, &way.timers);
            assert!(!cut);
        }
        assert_eq!(link.window(), u32::from(FIRST));
    }

    #[test]
    fn a_link_that_uses_little_is_not_cut() {
        let mut way = Way::new(10 * MICRO, 1_000);
        for (out, messages) in [(7, 16), (8, 8)] {
            let mut link = Congestion::new();
            way.time = RoundTripTime::UNKNOWN;
            for took in [10, 10, 100] {
                way.now += took * MICRO;
                way.time.add(took * MICRO, &way.timers);
                assert!(link.has_room(out));
                let _ = link.hears(Stamp(way.now), took * MICRO, &mut way.time, 64, &way.timers);
            }
            assert_eq!(link.window(), messages, "{out} on the wire");
        }
    }

    #[test]
    fn a_full_way_is_kept_full_and_no_fuller_than_the_target() {
        // Ten messages are on the way without a queue.
        let (mut way, mut links) = (Way::new(10 * MICRO, 1), [Congestion::new()]);
        way.time.add(way.least, &way.timers);
        for round in 0..200 {
            let took = way.round(&mut links);
            if round > 10 {
                assert!(
                    (10 * MICRO..=22 * MICRO).contains(&took),
                    "{took} in round {round}"
                );
            }
        }
    }

    #[test]
    fn links_with_unequal_windows_become_equal() {
        let mut way = Way::new(10 * MICRO, 4);
        let mut links = [Congestion::new(); 4];
        links[0].window = 64 * MESSAGE;
        links[1].window = MESSAGE;
        way.time.add(way.least, &way.timers);
        for _ in 0..300 {
            way.round(&mut links);
        }
        let windows = links.map(|link| link.window());
        let (low, high) = (windows.iter().min().unwrap(), windows.iter().max().unwrap());
        assert!(high - low <= 2, "{windows:?}");
    }

    #[test]
    fn a_loss_without_delay_cuts_nothing_and_one_with_a_short_queue_does() {
        let timers = Timers {
            queueing: Nanos::from_micros(40),
            ..Timers::default()
        };
        for (took, cut) in [(10 * MICRO, false), (29 * MICRO, false), (31 * MICRO, true)] {
            let mut time = RoundTripTime::UNKNOWN;
            time.add(10 * MICRO, &timers);
            let mut link = Congestion::new();
            link.began = Stamp(5);
            link.loses();
            assert!(link.has_room(8));
            let now = Stamp(5 + 40 * MICRO);
            assert_eq!(link.hears(now, took, &mut time, 64, &timers), cut, "{took}");
        }
    }

    #[test]
    fn a_way_that_has_become_longer_is_believed() {
        let (mut way, mut links) = (Way::new(10 * MICRO, 1_000), [Congestion::new()]);
        for _ in 0..5 {
            way.round(&mut links);
        }
        way.least = 1_000 * MICRO;
        for _ in 0..3_900 {
            way.round(&mut links);
        }
        assert_eq!(links[0].window(), 1, "rounds of 1 ms");
        for _ in 0..300 {
            way.round(&mut links);
        }
        assert_eq!(links[0].window(), 64);
    }

    #[test]
    fn a_silence_ends_what_was_known() {
        let (mut way, mut links) = (Way::new(10 * MICRO, 1_000), [Congestion::new()]);
        for _ in 0..5 {
            way.round(&mut links);
        }
        way.now += SILENCE;
        way.round(&mut links);
        assert_eq!(links[0].window(), u32::from(FIRST));
        links[0].hears_nothing(&way.timers);
        assert_eq!(links[0].window(), 1);
    }
}
