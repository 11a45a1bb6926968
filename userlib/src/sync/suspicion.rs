//! A participant that has waited long in a queue checks whether the queue still holds together.
//!
//! A queue is a chain through the memory of its waiters, and a wake-up passes from one to the next. If one of them is
//! gone, the queue is reset: its epoch rises, which all waiters in it find when they look, and all stand in it anew.
//! That is safe at any time, because a grant names its epoch; so a suspicion may be wrong.

use super::peers::look_by;
use super::protocol::{Inserted, SeatId};
use super::seats::Seat;
use crate::error::{Error, Result};
use crate::import::RemoteSegment;
use netvm_abi::Nanos;
use netvm_abi::atomic::{Atomic, EMPTY, OPERAND_BYTES, Operand, QueueBlock};
use netvm_abi::descriptor::Opcode;

/// How often in a row a queue must look as if a wake-up had been lost: no waiter is first, and none comes to name the
/// first; or none is counted as waiting; or the one that looks was first, and is not any more. Looks are up to half a second
/// apart.
const OFTEN: u32 = 6;

/// What a waiter has seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Suspicion {
    odd: u32,
    /// It stood first, in this epoch.
    first: Option<u32>,
}

impl Suspicion {
    /// Looks. True: the queue is another one now, and the caller no longer stands in it. A node out of reach is waited for
    /// until the deadline at most; the next look goes on where this one has ended.
    pub(super) fn look(
        &mut self,
        seat: &Seat,
        centre: &RemoteSegment,
        stands: Inserted,
        deadline: Nanos,
    ) -> Result<bool> {
        let mut bytes = [0; OPERAND_BYTES];
        match look_by(centre, 0, &mut bytes, deadline) {
            Err(Error::TimedOut) => return Ok(false),
            end => end?,
        }
        let mut words = Operand::default();
        for (word, eight) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*eight);
        }
        let block = QueueBlock::decode(&words);
        if block.epoch != stands.epoch {
            return Ok(true);
        }
        self.weigh(&block, stands, seat.me);
        if self.odd < OFTEN {
            match before(seat, stands, deadline)? {
                Before::There => return Ok(false),
                Before::InAnotherTurn => {
                    self.first = Some(stands.epoch);
                    return Ok(false);
                }
                Before::Gone => {}
            }
        }
        let reset = reset_by(centre, stands.epoch, deadline)?;
        if reset {
            self.odd = 0;
        }
        Ok(reset)
    }
}

impl Suspicion {
    /// Whether the queue looks as if a wake-up had been lost. A waiter whose own is lost does not see that by the queue alone:
    /// others may stand in it since, and be woken.
    fn weigh(&mut self, block: &QueueBlock, stands: Inserted, me: SeatId) {
        if stands.behind.is_nobody() || block.head == me.0 {
            self.first = Some(stands.epoch);
        }
        let woken = self.first == Some(stands.epoch) && block.head != me.0;
        let odd = woken || block.head == EMPTY || block.count == block.pending;
        self.odd = if odd { self.odd + 1 } else { 0 };
    }

    /// The successor's name has not come. True: the queue is another one now, and there is no successor to bring in.
    pub(super) fn linger(&mut self, centre: &RemoteSegment, epoch: u32, deadline: Nanos) -> Result<bool> {
        self.odd += 1;
        if self.odd < OFTEN {
            return Ok(false);
        }
        reset_by(centre, epoch, deadline)
    }
}

/// The participant before a waiter.
enum Before {
    /// It may still stand in the queue, as far as that is known by the deadline.
    There,
    /// Its turn in the queue is over: it has named the one behind it as the first, or passed a wake-up on.
    InAnotherTurn,
    /// It is not there any more. It may have gone after its turn in the queue: no matter.
    Gone,
}

fn before(seat: &Seat, stands: Inserted, deadline: Nanos) -> Result<Before> {
    if stands.behind.is_nobody() {
        return Ok(Before::There);
    }
    match seat.view_by(stands.behind, deadline) {
        Ok(None) => Ok(Before::Gone),
        Ok(Some(view)) if view.turn != stands.behind.turn() => Ok(Before::InAnotherTurn),
        Ok(Some(_)) | Err(Error::TimedOut) => Ok(Before::There),
        Err(error) => Err(error),
    }
}

/// Makes all waiters in the queue stand in it anew. Acts once for each epoch, however many participants ask.
pub(super) fn reset(centre: &RemoteSegment, epoch: u32) -> Result<()> {
    reset_by(centre, epoch, Nanos::MAX).map(drop)
}

/// The same until a deadline: whether it is known to have acted by then. If not it may act later, as late as any other
/// participant's.
fn reset_by(centre: &RemoteSegment, epoch: u32, deadline: Nanos) -> Result<bool> {
    let atomic = Atomic {
        opcode: Opcode::ResetQueue,
        wide: false,
        operand: epoch.into(),
        compare: 0,
    };
    let mut pending = centre.atomic(0, atomic).post()?;
    let acted = pending.wait_by(deadline)?.is_some();
    if !acted {
        pending.disregard();
    }
    Ok(acted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::{NodeId, PortId};

    const fn seat(number: u16) -> SeatId {
        SeatId::new(NodeId(1), PortId(5), number, 9)
    }

    /// How odd the queue is to the waiter in seat 1 after these looks.
    fn after(behind: SeatId, heads: &[SeatId]) -> u32 {
        let mut suspicion = Suspicion::default();
        for head in heads {
            let block = QueueBlock {
                head: head.0,
                tail: seat(3).0,
                count: 2,
                ..QueueBlock::default()
            };
            suspicion.weigh(&block, Inserted { behind, epoch: 4 }, seat(1));
        }
        suspicion.odd
    }

    #[test]
    fn a_waiter_that_was_first_and_is_not_any_more_has_been_woken() {
        let (nobody, me, other) = (SeatId::NOBODY, seat(1), seat(2));
        assert_eq!(after(nobody, &[me; 9]), 0);
        assert_eq!(after(nobody, &[other; 9]), 9, "since it came");
        assert_eq!(after(nobody, &[me, other, other]), 2);
        assert_eq!(after(other, &[other; 9]), 0, "its turn has not come");
        assert_eq!(after(other, &[other, me, me, seat(3), seat(3)]), 2);
    }

    #[test]
    fn what_it_was_in_an_earlier_epoch_says_nothing() {
        let mut suspicion = Suspicion::default();
        let mut weigh = |epoch, behind, head: SeatId| {
            let block = QueueBlock {
                head: head.0,
                count: 2,
                epoch,
                ..QueueBlock::default()
            };
            suspicion.weigh(&block, Inserted { behind, epoch }, seat(1));
            suspicion.odd
        };
        assert_eq!(weigh(4, SeatId::NOBODY, seat(2)), 1);
        assert_eq!(weigh(5, seat(2), seat(2)), 0);
    }
}
