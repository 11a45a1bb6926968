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

use netvm_abi::Nanos;

/// Fewest looks that a deadline takes.
pub(crate) const LOOKS: u64 = 8;

/// What the host has seen of the card's heartbeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    beat: u32,
    /// The last look.
    pub(crate) looked_at: Nanos,
    /// The last look that found another beat than the one before it.
    pub(crate) moved_at: Nanos,
    /// How long the beat has stood still.
    pub(crate) still: Nanos,
    /// How long the card has run; only grows.
    pub(crate) ran: Nanos,
    /// How long the card has run without having said anything; only grows.
    pub(crate) silent: Nanos,
    /// The card slept and was called; it has not moved since.
    pub(crate) called: bool,
    /// When the firmware and the heartbeat are looked at without a reason.
    pub(crate) next_look: Nanos,
}

/// What one look finds.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) beat: u32,
    pub(crate) asleep: bool,
    /// No event lies in the ring.
    pub(crate) silent: bool,
}

/// A wait for the card, in the card's own time.
#[derive(Clone, Copy, Debug)]
pub struct CardWait {
    pub(crate) since: Nanos,
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
    pub(crate) fn look(&mut self, now: Nanos, found: Found, answer: Nanos, heartbeat: Nanos) {
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
