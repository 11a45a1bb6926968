//! The algorithms of synchronization as step machines.
//!
//! A [machine](Machine) says what it [wants](Machine::want) next; its driver does that and gives the answer. So the
//! machines hold no port, clock or memory, and a model checker can run them, all interleavings and message orders
//! included, as they are shipped.
//!
//! Here are those of locks, wait queues and semaphores (thesis tables 17, 20, 23). They want an atomic operation on the
//! *centre* (the few words that all share), a message to another's *seat* (the few words that each participant has in
//! its own memory), or something of their own seat. The asymmetric lock wants other things: [`super::alock::machine`].

mod mcs;
mod queue;
mod seat;
mod semaphore;
mod survey;

pub use mcs::{Acquire, Acquired, Release, TryAcquire};
pub use queue::{Await, Insert, Inserted, Remove, Removed};
pub use seat::{Place, SeatId, View};
pub use semaphore::{Signal, TryWait, Wait};
pub use survey::Survey;

use netvm_abi::atomic::{Atomic, AtomicResult};
use netvm_abi::descriptor::Opcode;

/// Which word of the centre an atomic operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Centre {
    /// A lock's tail, or the block of a queue: at offset 0.
    Main,
    /// A lock's recovery word: the participant that recovers it.
    Recovery,
    /// How often a lock has been recovered.
    Recoveries,
}

/// What a machine wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want<R> {
    /// Own seat: there is no successor, and this is where the participant stands from now on. Both are one store each,
    /// in this order. Answer: [`Answer::Done`].
    Begin(Place),
    /// Own seat: where the participant stands from now on. Answer: [`Answer::Done`].
    Stand(Place),
    /// An atomic operation, of one round trip, which acts after everything that the port has posted to
    /// that node before. Answer: [`Answer::Atomic`].
    Atomic(Centre, Atomic),
    /// One way: writes the own identifier, [as that one expects it](SeatId::linked_to), into another's `next`. Answer:
    /// [`Answer::Done`].
    Link(SeatId),
    /// One way: writes a word into one of another's grants and signals it. Answer: [`Answer::Done`].
    Grant {
        /// The receiver.
        to: SeatId,
        /// Which of its grants, below [`GRANTS`].
        slot: u8,
        /// What it says.
        word: u64,
    },
    /// Own seat: the successor [in this turn](SeatId::follower), now. Answer: [`Answer::Next`].
    LookNext,
    /// Own seat: the successor, once there is one. Answer: [`Answer::Next`].
    AwaitNext,
    /// A signal of the own seat's notification, which is acknowledged; then what the grant says.
    /// Answer: [`Answer::Granted`].
    AwaitGrant {
        /// Which grant, below [`GRANTS`].
        slot: u8,
    },
    /// Another's seat, now. Answer: [`Answer::View`].
    View(SeatId),
    /// The participant at this place among a lock's members. Answer: [`Answer::Next`], which is [`SeatId::NOBODY`]
    /// behind the last.
    Member(u16),
    /// To wait a little, and then to be told to go on.
    Pause,
    /// Nothing: it has ended.
    Ended(R),
}

/// Grants of a seat. A queue uses the one that its epoch chooses, a lock the one of the turn, so that
/// a grant that comes late, after a death, does not overwrite the one that counts.
pub const GRANTS: u8 = 4;

/// What a machine is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It is done; a one-way message has been posted, not more.
    Done,
    /// What the operation answered.
    Atomic(AtomicResult),
    /// The successor or member asked for, or [`SeatId::NOBODY`].
    Next(SeatId),
    /// What the grant says.
    Granted(u64),
    /// What the seat says; nothing if the process is dead, or out of reach.
    View(Option<View>),
}

impl Answer {
    const fn atomic(self) -> AtomicResult {
        match self {
            Self::Atomic(result) => result,
            _ => AtomicResult { value: 0, second: 0 },
        }
    }

    const fn next(self) -> SeatId {
        match self {
            Self::Next(id) => id,
            _ => SeatId::NOBODY,
        }
    }

    const fn view(self) -> Option<View> {
        match self {
            Self::View(view) => view,
            _ => None,
        }
    }

    const fn word(self) -> u64 {
        match self {
            Self::Granted(word) => word,
            _ => 0,
        }
    }
}

/// A step machine: what it wants next follows from the answers before, and from nothing else.
pub trait Machine {
    /// What it may want, its end included.
    type Want;
    /// What it is told.
    type Answer;

    /// What it wants next. Asking changes nothing.
    fn want(&self) -> Self::Want;

    /// What came of it. An answer of another kind than was asked for is a driver's mistake; the machine
    /// takes it for one that says nothing.
    fn answer(&mut self, answer: Self::Answer);
}

/// An operation on a 64-bit word.
const fn word(opcode: Opcode, operand: u64, compare: u64) -> Atomic {
    Atomic {
        opcode,
        wide: true,
        operand,
        compare,
    }
}

/// An operation on a queue block.
const fn block(opcode: Opcode, operand: u64, compare: u64) -> Atomic {
    Atomic {
        opcode,
        wide: false,
        operand,
        compare,
    }
}
