//! Looking at the card, and judging it.

use super::Host;
use crate::card::CardFailure;
use crate::platform::Platform;
use crate::watch::{CardWait, Found, LOOKS};
use netvm_abi::Nanos;
use netvm_abi::bar::header;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::shared_map::status_page;
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;

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

    fn is_over(&self, clock: Nanos, wait: CardWait) -> bool {
        let early = mutant::is(Mutant::HealthyCardDead);
        let deadline = self.config.nic_deadline.0 / if early { 1_000 } else { 1 };
        clock.0.saturating_sub(wait.since.0) >= deadline
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
        // The clock of these waits only grows: the first port waits for the longest.
        let first = self.closing.first();
        let port = first.and_then(|port| self.ports.get(port as usize)?.waiting_since);
        let waits = port.into_iter().chain(self.barriers.waits());
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
        let mut watched = !self.numbers.all_free();
        if mutant::is(Mutant::DeadlineLooksAtAllPorts) {
            let is_taken = |at: usize| self.ports.get(at).is_some_and(|port| !port.is_free());
            watched = (0..self.ports.len()).filter(|at| is_taken(*at)).count() != 0;
        }
        if watched && self.config.heartbeat_deadline != Nanos::MAX {
            answer.min(self.watch.next_look)
        } else {
            answer
        }
    }
}
