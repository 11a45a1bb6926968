//! Leases: capabilities that a port gives away for a time, and that the card ends (`docs/decisions/0042-leases.md`).
//!
//! A lease is a grant without an import request: its exporter names the holder and hands over the token itself. It is no business of
//! the link's: it outlives a life of it, and ends by itself. The card knows the end. The host knows a time before which the lease is
//! *surely* not over, by its own clock: what was left at the card's last answer counts from the question on.
//!
//! Order of calls: [`Host::lend`](crate::Host::lend). [`Host::lease_left_begin`](crate::Host::lease_left_begin), then
//! [`Host::lease_left_step`](crate::Host::lease_left_step) until it answers. [`Host::recall_begin`](crate::Host::recall_begin), then
//! [`Host::revoke_step`](crate::Host::revoke_step) until done.

use crate::grants::GrantEntry;
use netvm_abi::Nanos;
use netvm_abi::control::Grant;
pub use netvm_abi::lease::{LeaseId, LeaseSpec};

/// Questions of programs that are out at once.
pub(crate) const QUESTIONS: u32 = 64;
/// Events that may wait for the card when one is posted that is not bounded by something else.
pub(crate) const EVENTS_WAITING: u32 = 128;
/// Leases may take all but this part of the capability table.
pub(crate) const FOR_IMPORTS: u32 = 8;
/// Clocks of card and host may differ in speed by one part of so many.
const CLOCKS_DIFFER: u64 = 4096;

/// A lease that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Its name.
    pub lease: LeaseId,
    /// What its holder needs.
    pub grant: Grant,
}

/// A question to the card, driven by [`Host::lease_left_step`](crate::Host::lease_left_step).
#[derive(Debug)]
#[must_use = "a question is asked by steps"]
pub struct LeaseQuestion {
    pub(crate) lease: LeaseId,
    /// Answers that had come before.
    pub(crate) answers: u32,
}

/// What a grant has if it is a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    /// When a program's question left that is out. There is one at a time, so that an answer is not taken for that to a later one.
    pub(crate) asked: Option<Nanos>,
    /// Answers so far, modulo 2^32.
    pub(crate) answers: u32,
    /// The card has said that nothing is left.
    pub(crate) over: bool,
}

impl Lease {
    /// One of which nothing was asked.
    pub(crate) const GIVEN: Self = Self {
        asked: None,
        answers: 0,
        over: false,
    };
}

impl GrantEntry {
    /// The card has answered a question about the lease that left at this time.
    pub(crate) fn lease_left(&mut self, asked: Nanos, left: Nanos) {
        if let Some(lease) = &mut self.lease {
            lease.answers = lease.answers.wrapping_add(1);
            lease.over |= left.0 == 0;
            self.sure_until = if lease.over {
                Nanos(0)
            } else {
                self.sure_until.max(sure(asked, left))
            };
        }
    }
}

/// Until when something lasts at least of which so much was left at that time, or later.
pub(crate) fn sure(from: Nanos, left: Nanos) -> Nanos {
    from.after(Nanos(left.0 - left.0 / CLOCKS_DIFFER))
}
