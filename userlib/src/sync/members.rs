//! A lock's table of members, at its home.
//!
//! A participant takes a place by a compare-and-swap, and gives it back by another. Both are *ordered*: they act after
//! everything that the port has sent to the home before.
//!
//! # A join that ends at its deadline
//! It leaves its compare-and-swap under way, which may still take the place. So it posts the opposite behind that, and
//! does not wait either: that acts afterwards, or not at all if the link is lost. Meanwhile another participant may
//! have the same seat, and so the same name. Its own compare-and-swap is ordered behind both, so what gives the place
//! back cannot take the new one's. If the link was lost in between, the name may stay in the table: the next participant
//! of that name takes the place over, one that leaves clears each place with its name, and when the port ends the place
//! counts as a dead member's. A survey of the lock sees a member there that wants nothing, or one that is in another
//! turn each time.

use super::home::{MEMBERS, PLACES, RECOVERIES};
use super::peers::look_by;
use super::protocol::SeatId;
use super::seats::Seat;
use crate::atomic::{PendingAtomic, RemoteWord64};
use crate::backend::Refusal;
use crate::error::{Error, Result};
use crate::import::RemoteSegment;
use netvm_abi::{Nanos, Status};
use parking_lot::Mutex;

/// Operations that give places back and for which no call waits.
#[derive(Default)]
pub(super) struct Returns(Mutex<Vec<(PendingAtomic, RemoteSegment)>>);

impl Returns {
    /// The import stays until the operation has ended: it is refused without the capability.
    fn keep(&self, operation: PendingAtomic, centre: &RemoteSegment) {
        self.0.lock().push((operation, centre.clone()));
    }

    /// Lets go of those that have ended.
    pub(super) fn sweep(&self) {
        let ended: Vec<_> = self
            .0
            .lock()
            .extract_if(.., |(operation, _)| operation.has_ended())
            .collect();
        // After the lock, because the end of an import may park.
        for (operation, _centre) in ended {
            operation.disregard();
        }
    }
}

/// A place of the table.
fn place(centre: &RemoteSegment, at: usize) -> Result<RemoteWord64> {
    centre.word64(MEMBERS + 8 * at as u64)
}

/// Changes a place, once everything has acted that the port has sent there before.
fn exchange(word: &RemoteWord64, from: SeatId, to: SeatId) -> Result<PendingAtomic> {
    word.exchange_if(from.0, to.0).ordered().regardless().post()
}

impl Seat {
    /// The table.
    fn places(&self, centre: &RemoteSegment, deadline: Nanos) -> Result<Vec<SeatId>> {
        let mut bytes = [0; PLACES * 8];
        look_by(centre, MEMBERS, &mut bytes, deadline)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words
            .iter()
            .map(|word| SeatId(u64::from_le_bytes(*word)))
            .collect())
    }

    /// The participant in this place among a lock's members. The first place is asked for first: then they are read.
    pub(super) fn member(
        &self,
        members: &mut Vec<SeatId>,
        centre: &RemoteSegment,
        at: u16,
    ) -> Result<SeatId> {
        if at == 0 {
            *members = self.places(centre, Nanos::MAX)?;
            members.retain(|id| !id.is_nobody());
        }
        Ok(members.get(usize::from(at)).copied().unwrap_or(SeatId::NOBODY))
    }

    /// Becomes a member of a lock, and tells how often that has been recovered. The place of a dead member will do.
    /// [`Error::TimedOut`]: it did not come to that before the deadline, and is no member, or not for long.
    pub(super) fn enter(&self, centre: &RemoteSegment, deadline: Nanos) -> Result<u64> {
        let me = self.me.in_turn(0);
        // Before it is a member: from then on it holds a place, and has to end well.
        let mut recoveries = [0; 8];
        look_by(centre, RECOVERIES, &mut recoveries, deadline)?;
        for of_the_dead in [false, true] {
            for (at, &id) in self.places(centre, deadline)?.iter().enumerate() {
                let free = if of_the_dead {
                    !id.is_nobody() && self.view_by(id, deadline)?.is_none()
                } else {
                    id.is_nobody() || id == me
                };
                if free && self.claim(centre, at, id, deadline)? {
                    return Ok(u64::from_le_bytes(recoveries));
                }
            }
        }
        Err(Error::Refused {
            what: "take part in this lock: it has no place left",
            reason: Refusal::Status(Status::TableFull),
        })
    }

    /// Takes a place that `before` had. Not, if another was faster.
    fn claim(&self, centre: &RemoteSegment, at: usize, before: SeatId, deadline: Nanos) -> Result<bool> {
        let me = self.me.in_turn(0);
        let word = place(centre, at)?;
        let mut claim = exchange(&word, before, me)?;
        if let Some(found) = claim.wait_by(deadline)? {
            return Ok(found.value == before.0);
        }
        claim.disregard();
        let back = exchange(&word, me, SeatId::NOBODY)?;
        self.returns().keep(back, centre);
        Err(Error::TimedOut)
    }

    /// Leaves a lock: it is no longer a member.
    pub(super) fn leave(&self, centre: &RemoteSegment) {
        let me = self.me.in_turn(0);
        // Where the home has gone, so has the table.
        let Ok(places) = self.places(centre, Nanos::MAX) else {
            return;
        };
        let mine = places.iter().enumerate().filter(|&(_, &id)| id == me);
        for (at, _) in mine {
            let _ = place(centre, at)
                .and_then(|word| exchange(&word, me, SeatId::NOBODY))
                .and_then(PendingAtomic::wait);
        }
    }
}
