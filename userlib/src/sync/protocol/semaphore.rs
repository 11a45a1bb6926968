//! The semaphore: a wait queue with a count in its block (thesis 8.4, tables 22 and 23).

use super::queue::{Await, Inserted, wake};
use super::seat::{Place, SeatId};
use super::{Answer, Centre, Machine, Want, block};
use netvm_abi::atomic::{EMPTY, NOBODY};
use netvm_abi::descriptor::Opcode;
use netvm_abi::words::split;

/// Takes a token, however long it takes (`Swait`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    me: SeatId,
    at: WaitAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WaitAt {
    Begin,
    SemP,
    Link(Inserted),
    Await(Inserted, Await),
    /// A grant of an epoch that is over has come: a token too many.
    GiveBack(Inserted, Signal),
    Ended(u32),
}

impl Wait {
    /// For this participant, that stands in no queue.
    #[must_use]
    pub const fn new(me: SeatId) -> Self {
        Self {
            me,
            at: WaitAt::Begin,
        }
    }

    /// Where it stands in the queue, until it is woken.
    #[must_use]
    pub const fn stands(&self) -> Option<Inserted> {
        match &self.at {
            WaitAt::Await(inserted, waiting) if waiting.waits() => Some(*inserted),
            _ => None,
        }
    }

    /// Whether it has its token, and only waits for its successor's name.
    #[must_use]
    pub const fn lingers(&self) -> bool {
        matches!(&self.at, WaitAt::Await(_, waiting) if waiting.lingers())
    }

    /// The queue was reset while it [lingered](Self::lingers): there is no successor to bring in.
    pub const fn give_up(&mut self) {
        if self.lingers() {
            self.at = WaitAt::Ended(0);
        }
    }

    /// The epoch of the queue that it is in, if any.
    #[must_use]
    pub const fn epoch(&self) -> Option<u32> {
        match &self.at {
            WaitAt::Await(inserted, _) => Some(inserted.epoch),
            _ => None,
        }
    }

    /// The queue that it stood in was reset: stands in it anew. Only while it [stands](Self::stands).
    pub const fn again(&mut self) {
        if self.stands().is_some() {
            self.at = WaitAt::Begin;
        }
    }
}

impl Machine for Wait {
    /// Ends with the value that was found; 0 if the caller had to wait.
    type Want = Want<u32>;
    type Answer = Answer;

    fn want(&self) -> Want<u32> {
        match &self.at {
            WaitAt::Begin => Want::Begin(Place::Asking),
            WaitAt::SemP => Want::Atomic(Centre::Main, block(Opcode::SemP, self.me.0, 0)),
            WaitAt::Link(inserted) => Want::Link(inserted.behind),
            WaitAt::Await(_, waiting) => nested(waiting.want()),
            WaitAt::GiveBack(_, signal) => nested(signal.want()),
            WaitAt::Ended(value) => Want::Ended(*value),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match self.at {
            WaitAt::Begin => WaitAt::SemP,
            WaitAt::SemP => {
                let result = answer.atomic();
                let [before, epoch] = split(result.second);
                let behind = SeatId(result.value);
                let inserted = Inserted { behind, epoch };
                if before > 0 {
                    WaitAt::Ended(before)
                } else if behind.is_nobody() {
                    WaitAt::Await(inserted, Await::new(self.me, epoch))
                } else {
                    WaitAt::Link(inserted)
                }
            }
            WaitAt::Link(inserted) => WaitAt::Await(inserted, Await::new(self.me, inserted.epoch)),
            WaitAt::Await(inserted, mut waiting) => {
                waiting.answer(answer);
                match waiting.want() {
                    Want::Ended(true) => WaitAt::Ended(0),
                    Want::Ended(false) => WaitAt::GiveBack(inserted, Signal::new()),
                    _ => WaitAt::Await(inserted, waiting),
                }
            }
            WaitAt::GiveBack(inserted, mut signal) => {
                signal.answer(answer);
                match signal.want() {
                    Want::Ended(_) => WaitAt::Await(inserted, Await::new(self.me, inserted.epoch)),
                    _ => WaitAt::GiveBack(inserted, signal),
                }
            }
            WaitAt::Ended(value) => WaitAt::Ended(value),
        };
    }
}

/// What a machine inside of another wants. Its end is seen before it is asked again.
const fn nested<R, S>(want: Want<R>) -> Want<S>
where
    R: Copy,
    S: Copy,
{
    match want {
        Want::Begin(place) => Want::Begin(place),
        Want::Stand(place) => Want::Stand(place),
        Want::Atomic(centre, atomic) => Want::Atomic(centre, atomic),
        Want::Link(to) => Want::Link(to),
        Want::Grant { to, slot, word } => Want::Grant { to, slot, word },
        Want::LookNext | Want::Ended(_) => Want::LookNext,
        Want::AwaitNext => Want::AwaitNext,
        Want::AwaitGrant { slot } => Want::AwaitGrant { slot },
        Want::View(of) => Want::View(of),
        Want::Member(at) => Want::Member(at),
        Want::Pause => Want::Pause,
    }
}

/// Takes a token if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TryWait {
    found: Option<u32>,
}

impl TryWait {
    /// Any caller may run it; it needs no seat.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "as the other machines")]
    pub const fn new() -> Self {
        Self { found: None }
    }
}

impl Machine for TryWait {
    /// Ends with the value that was found; 0: there was none to take.
    type Want = Want<u32>;
    type Answer = Answer;

    fn want(&self) -> Want<u32> {
        match self.found {
            None => Want::Atomic(Centre::Main, block(Opcode::SemP, EMPTY, 0)),
            Some(value) => Want::Ended(value),
        }
    }

    fn answer(&mut self, answer: Answer) {
        let [before, _] = split(answer.atomic().second);
        self.found.get_or_insert(before);
    }
}

/// Gives a token (`Ssignal`): to the first waiter, or to the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal {
    at: SignalAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SignalAt {
    SemV,
    Wake { to: SeatId, count: u32, epoch: u32 },
    Ended(u32),
}

impl Signal {
    /// Any caller may run it; it needs no seat.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "as the other machines")]
    pub const fn new() -> Self {
        Self { at: SignalAt::SemV }
    }
}

impl Machine for Signal {
    /// Ends with the value after; 0 when a participant waited.
    type Want = Want<u32>;
    type Answer = Answer;

    fn want(&self) -> Want<u32> {
        match self.at {
            SignalAt::SemV => Want::Atomic(Centre::Main, block(Opcode::SemV, 0, 0)),
            SignalAt::Wake { to, count, epoch } => wake(to, count, epoch),
            SignalAt::Ended(value) => Want::Ended(value),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match self.at {
            SignalAt::SemV => {
                let result = answer.atomic();
                let [count, epoch] = split(result.second);
                match result.value {
                    // The upper half is the value then.
                    EMPTY if count == NOBODY => SignalAt::Ended(epoch),
                    // Pending: the waiter that was woken before will hand it on.
                    EMPTY => SignalAt::Ended(0),
                    head => SignalAt::Wake {
                        to: SeatId(head),
                        count,
                        epoch,
                    },
                }
            }
            SignalAt::Wake { .. } => SignalAt::Ended(0),
            SignalAt::Ended(value) => SignalAt::Ended(value),
        };
    }
}
