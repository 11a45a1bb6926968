//! Judging whether the card still works, by time in which both sides ran.
//!
//! A deadline that runs on the wall clock judges the wrong one: a host whose driver thread gets no
//! turn finds every answer late, and a card that shares a processor with others (an emulated one)
//! does too. So time counts only as far as the host looked and the card moved:
//!
//! - One look counts for at most an eighth of a deadline (`LOOKS`), however long ago the last look
//!   was. A host that stood still gives the card the benefit of the doubt.
//! - The host takes everything out of the event ring before it looks. An answer that lies there is
//!   in time.
//! - A page lock and an answer are waited for in the card's own time: it counts while the heartbeat
//!   moves. A card whose heartbeat stands still is judged by that, with the heartbeat's deadline.
//!
//! So a card is dead if it works and yet keeps a page or an answer for [`nic_deadline`], or if its
//! heartbeat stands still for [`heartbeat_deadline`] under the eyes of the host.
//!
//! [`nic_deadline`]: crate::attach::HostConfig::nic_deadline
//! [`heartbeat_deadline`]: crate::attach::HostConfig::heartbeat_deadline

use crate::host::{CardFailure, Host};
use crate::platform::Platform;
use netvm_abi::Nanos;
use netvm_abi::bar::header;
use netvm_abi::shared_map::status_page;
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;

/// Fewest looks that a deadline takes.
const LOOKS: u64 = 8;

/// What the host has seen of the card's heartbeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    beat: u32,
    /// The last look.
    looked_at: Nanos,
    /// The last look that found another beat than the one before it.
    moved_at: Nanos,
    /// How long the beat has stood still.
    still: Nanos,
    /// How long the card has run; only grows.
    ran: Nanos,
    /// How long the card has run without having said anything; only grows.
    silent: Nanos,
    /// The card slept and was called; it has not moved since.
    called: bool,
    /// When the firmware and the heartbeat are looked at without a reason.
    next_look: Nanos,
}

/// What one look finds.
#[derive(Clone, Copy)]
struct Found {
    beat: u32,
    asleep: bool,
    /// No event lies in the ring.
    silent: bool,
}

/// A wait for the card, in the card's own time.
#[derive(Clone, Copy, Debug)]
pub struct CardWait {
    since: Nanos,
}

impl Watch {
    /// Of a card that nothing is known of yet.
    pub(crate) const fn new(now: Nanos) -> Self {
        Self {
            beat: 0,
            looked_at: now,
            moved_at: now,
            still: Nanos(0),
            ran: Nanos(0),
            silent: Nanos(0),
            called: false,
            next_look: now,
        }
    }

    /// From now on, in time that the card runs.
    pub(crate) const fn wait(&self) -> CardWait {
        CardWait { since: self.ran }
    }

    /// From now on, in time that the card runs and says nothing.
    pub(crate) const fn wait_for_answer(&self) -> CardWait {
        CardWait { since: self.silent }
    }

    /// The host looks: what it finds, and its deadlines for an answer and for a heartbeat.
    fn look(&mut self, now: Nanos, found: Found, answer: Nanos, heartbeat: Nanos) {
        let since = |then: Nanos, limit: Nanos| (now.0.saturating_sub(then.0)).min(limit.0 / LOOKS);
        if found.beat == self.beat {
            let more = since(self.looked_at, heartbeat);
            self.still = Nanos(self.still.0.saturating_add(more));
            if found.asleep && !self.called {
                self.still = Nanos(0);
            }
        } else {
            let more = since(self.moved_at, answer);
            self.ran = Nanos(self.ran.0.saturating_add(more));
            if found.silent {
                self.silent = Nanos(self.silent.0.saturating_add(more));
            }
            self.beat = found.beat;
            self.moved_at = now;
            self.still = Nanos(0);
            self.called = false;
        }
        self.looked_at = now;
    }
}

impl<S: Storage> Host<S> {
    /// Whether the firmware is still the one that this driver has attached to; if not, the card counts as dead: one
    /// that was reset knows nothing of this driver, and hashes pages with another key.
    pub(crate) fn is_same_firmware<P: Platform>(&mut self, platform: &P) -> bool {
        let bar = platform.bar();
        let magic = bar.load_acquire(header::MAGIC);
        if magic == u32::MAX {
            self.fail(CardFailure::AllOnes);
        } else if magic != header::MAGIC_VALUE || bar.load_acquire(header::INCARNATION) != self.incarnation.0
        {
            self.fail(CardFailure::Restarted);
        }
        self.is_alive()
    }

    /// How long a heartbeat may stand still that something waits for.
    fn still_deadline(&self) -> Nanos {
        match self.config.heartbeat_deadline {
            Nanos::MAX => self.config.nic_deadline,
            deadline => deadline,
        }
    }

    /// Looks at the heartbeat; `silent`: the event ring is empty.
    pub(crate) fn look<P: Platform>(&mut self, platform: &mut P, now: Nanos, silent: bool) {
        let shared = platform.shared();
        let found = Found {
            beat: shared.load_acquire(status_page::HEARTBEAT),
            asleep: shared.load_acquire(status_page::SLEEPING) != 0,
            silent,
        };
        let (answer, still) = (self.config.nic_deadline, self.still_deadline());
        self.watch.look(now, found, answer, still);
    }

    /// The card sleeps, and was not called since it moved: calls it. It must answer with a beat, for it
    /// may have hung in its sleep.
    fn call_sleeper<P: Platform>(&mut self, platform: &mut P) {
        if !self.watch.called && platform.shared().load_acquire(status_page::SLEEPING) != 0 {
            self.watch.called = true;
            self.watch.still = Nanos(0);
            self.counters.nic_wakes += 1;
            platform.wake_nic();
        }
    }

    /// Judges the card, once everything that it has said is heard: the answers that are due, and now
    /// and then its firmware and its heartbeat.
    pub(crate) fn judge<P: Platform>(&mut self, platform: &mut P, now: Nanos) {
        if !self.is_alive() {
            return;
        }
        self.look(platform, now, true);
        let waits = self.waits_for_answer();
        if waits.is_some_and(|wait| self.is_over(self.watch.silent, wait)) {
            self.fail(CardFailure::AnswerDeadline);
            return;
        }
        let regular = self.config.heartbeat_deadline != Nanos::MAX;
        if regular && now >= self.watch.next_look {
            if !self.is_same_firmware(platform) {
                return;
            }
            let moves = self.watch.moved_at == now;
            if !moves {
                self.call_sleeper(platform);
            }
            let step = self.config.heartbeat_deadline.0 / if moves { 2 } else { LOOKS };
            self.watch.next_look = now.after(Nanos(step));
        }
        if waits.is_some() {
            self.call_sleeper(platform);
        }
        if (regular || waits.is_some()) && self.watch.still >= self.still_deadline() {
            self.fail(CardFailure::Heartbeat);
        }
    }

    const fn is_over(&self, clock: Nanos, wait: CardWait) -> bool {
        clock.0.saturating_sub(wait.since.0) >= self.config.nic_deadline.0
    }

    /// Begins to wait for something that the card does by itself. [`Self::is_overdue`] judges it.
    #[must_use]
    pub const fn wait_for_card(&self) -> CardWait {
        self.watch.wait()
    }

    /// Looks at the card. To be called again and again during a wait: says why the wait is over, if it is
    /// (`overdue`, or the heartbeat). Does not declare the card dead.
    pub fn is_overdue<P: Platform>(
        &mut self,
        platform: &mut P,
        wait: CardWait,
        overdue: CardFailure,
        now: Nanos,
    ) -> Option<CardFailure> {
        let silent = self.from_nic.is_empty(platform.shared());
        self.look(platform, now, silent);
        self.call_sleeper(platform);
        if self.is_over(self.watch.ran, wait) {
            return Some(overdue);
        }
        (self.watch.still >= self.still_deadline()).then_some(CardFailure::Heartbeat)
    }

    /// The earliest wait for an answer of the card.
    fn waits_for_answer(&self) -> Option<CardWait> {
        let ports = self.ports.iter().filter_map(|port| port.waits_for_nic());
        let waits = ports.chain(self.barriers.waits());
        waits.min_by_key(|wait| wait.since)
    }

    /// When the card must be looked at next.
    pub(crate) fn watch_due(&self) -> Nanos {
        let answer = match self.waits_for_answer() {
            Some(_) => self
                .watch
                .looked_at
                .after(Nanos(self.config.nic_deadline.0 / LOOKS)),
            None => Nanos::MAX,
        };
        let watched = self.ports.iter().any(|port| !port.is_free());
        if watched && self.config.heartbeat_deadline != Nanos::MAX {
            answer.min(self.watch.next_look)
        } else {
            answer
        }
    }
}
