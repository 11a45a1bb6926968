//! The lock: a chain of those who want it (MCS; thesis 8.2, table 17).
//!
//! The tail, at the lock's home, names who asked last. Who asks exchanges it for its own name, and so
//! learns whom it comes after, and tells that one. Who is done hands the lock to whom it was told of.
//! Uncontended: one round trip to get it and one to let go. Contended: one round trip and one message
//! to get it, one message to let go.

use super::seat::{Place, SeatId, View};
use super::survey::Survey;
use super::{Answer, Centre, GRANTS, Machine, Want, word};
use netvm_abi::atomic::EMPTY;
use netvm_abi::descriptor::Opcode;

/// How a lock was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Acquired {
    /// The caller holds it.
    Held {
        /// The chain has lost somebody, and there may be others who wait for ever unless they look.
        broken: bool,
        /// It was nobody's any more.
        recovered: bool,
    },
    /// Somebody else has it: only [`TryAcquire`] ends so.
    Taken,
}

const WHOLE: Acquired = Acquired::Held {
    broken: false,
    recovered: false,
};

/// Gets the lock, however long it takes.
///
/// # When somebody dies
/// Who has waited long [looks](Self::look) at the one before it. If that is gone (and nothing has come of it after
/// that was seen), or its turn is over
/// and it has not handed the lock to this one, who waits is *adrift*: it forgets the one before, and
/// whatever that may have sent. One at a time (the recovery word) those adrift look at all members
/// ([`Survey`]), and take the lock if nobody has it or can come to have it otherwise. That is safe because
/// the tail names somebody as long as anybody waits, adrift or not: so nobody gets the lock by
/// exchanging it meanwhile. For that, who holds a *broken* chain clears the tail only when a survey shows that nobody
/// is adrift ([`Release`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquire {
    me: SeatId,
    at: AcquireAt,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum AcquireAt {
    Begin,
    Swap,
    Behind(SeatId),
    Link(SeatId),
    Wait(SeatId, Seen),
    Look(SeatId, Seen),
    Drift,
    Claim(SeatId),
    Owner(SeatId),
    Survey(Survey),
    Take,
    GiveBack(bool),
    Pause,
    Hold(Acquired),
    Ended(Acquired),
}

/// What looks at the one before have shown so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Seen {
    /// How often it was found to have handed over the lock, which has not come.
    given: u8,
    /// It is gone. It may have handed over the lock before, and left: what it sent has come by then.
    gone: bool,
}

/// Where a grant for this turn goes: one that comes late, from somebody dead, does not overwrite it.
const fn slot(to: SeatId) -> u8 {
    (to.turn() % GRANTS as u16) as u8
}

/// How often a lock may be found to be on its way before it is taken for lost.
const LOST: u8 = 8;

impl Acquire {
    /// For this participant, in a turn that it has not had before.
    #[must_use]
    pub const fn new(me: SeatId) -> Self {
        Self {
            me,
            at: AcquireAt::Begin,
        }
    }

    /// Whom it waits for.
    #[must_use]
    pub const fn behind(&self) -> Option<SeatId> {
        match self.at {
            AcquireAt::Link(who) | AcquireAt::Wait(who, _) => Some(who),
            _ => None,
        }
    }

    /// Whether it is to be told to go [on](Self::again).
    #[must_use]
    pub fn pauses(&self) -> bool {
        self.at == AcquireAt::Pause
    }

    /// It has waited long: looks whether the one before is still there.
    pub fn look(&mut self) {
        if let AcquireAt::Wait(who, seen) = self.at {
            self.at = AcquireAt::Look(who, seen);
        }
    }

    /// Goes on after a [pause](Want::Pause).
    pub fn again(&mut self) {
        if self.at == AcquireAt::Pause {
            self.at = AcquireAt::Claim(SeatId::NOBODY);
        }
    }

    /// Where it stands after a look at the one before.
    fn looked(&self, who: SeatId, seen: Seen, view: Option<View>) -> AcquireAt {
        let Some(view) = view else {
            return if seen.gone {
                AcquireAt::Drift
            } else {
                AcquireAt::Wait(who, Seen { gone: true, ..seen })
            };
        };
        let over = view.turn != who.turn() || matches!(view.place, Place::Over(_));
        if !over {
            AcquireAt::Wait(who, Seen::default())
        } else if view.given == self.me && seen.given < LOST {
            let given = seen.given + 1;
            AcquireAt::Wait(who, Seen { given, ..seen })
        } else {
            AcquireAt::Drift
        }
    }
}

impl Machine for Acquire {
    type Outcome = Acquired;

    fn want(&self) -> Want<Acquired> {
        let swap = |operand: u64, compare: u64| {
            Want::Atomic(Centre::Recovery, word(Opcode::CompareSwap, operand, compare))
        };
        match &self.at {
            AcquireAt::Begin => Want::Begin(Place::Asking),
            AcquireAt::Swap => Want::Atomic(Centre::Main, word(Opcode::Swap, self.me.0, 0)),
            AcquireAt::Behind(who) => Want::Stand(Place::Behind(*who)),
            AcquireAt::Link(who) => Want::Link(*who),
            AcquireAt::Wait(..) => Want::AwaitGrant { slot: slot(self.me) },
            AcquireAt::Look(who, _) | AcquireAt::Owner(who) => Want::View(*who),
            AcquireAt::Drift => Want::Stand(Place::Adrift),
            AcquireAt::Claim(owner) => swap(self.me.0, owner.0),
            AcquireAt::Survey(survey) => match survey.want() {
                Want::Member(at) => Want::Member(at),
                Want::View(of) => Want::View(of),
                _ => Want::Pause,
            },
            AcquireAt::Take | AcquireAt::Hold(_) => Want::Stand(Place::Holding),
            AcquireAt::GiveBack(_) => swap(EMPTY, self.me.0),
            AcquireAt::Pause => Want::Pause,
            AcquireAt::Ended(how) => Want::Ended(*how),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match &mut self.at {
            AcquireAt::Begin => AcquireAt::Swap,
            AcquireAt::Swap => match answer.atomic().value {
                EMPTY => AcquireAt::Hold(WHOLE),
                // Left alone by everybody else: an earlier turn of its own was the last.
                before if self.me.same_seat(SeatId(before)) => AcquireAt::Drift,
                before => AcquireAt::Behind(SeatId(before)),
            },
            AcquireAt::Behind(who) => AcquireAt::Link(*who),
            AcquireAt::Link(who) => AcquireAt::Wait(*who, Seen::default()),
            AcquireAt::Wait(who, seen) => {
                let from = SeatId(answer.word());
                // Anything else was meant for a turn that is over.
                if from.with_mark(false) == *who {
                    AcquireAt::Hold(Acquired::Held {
                        broken: from.mark(),
                        recovered: false,
                    })
                } else {
                    AcquireAt::Wait(*who, *seen)
                }
            }
            AcquireAt::Look(who, seen) => {
                let (who, seen) = (*who, *seen);
                self.looked(who, seen, answer.view())
            }
            AcquireAt::Drift => AcquireAt::Claim(SeatId::NOBODY),
            AcquireAt::Claim(owner) => match SeatId(answer.atomic().value) {
                found if found == *owner => AcquireAt::Survey(Survey::new(self.me)),
                SeatId::NOBODY => AcquireAt::Pause,
                found => AcquireAt::Owner(found),
            },
            AcquireAt::Owner(owner) => match answer.view() {
                Some(view) if view.turn == owner.turn() => AcquireAt::Pause,
                _ => AcquireAt::Claim(*owner),
            },
            AcquireAt::Survey(survey) => {
                survey.answer(answer);
                match survey.want() {
                    Want::Ended(found) if found.free => AcquireAt::Take,
                    Want::Ended(_) => AcquireAt::GiveBack(false),
                    _ => return,
                }
            }
            AcquireAt::Take => AcquireAt::GiveBack(true),
            AcquireAt::GiveBack(true) => AcquireAt::Ended(Acquired::Held {
                broken: true,
                recovered: true,
            }),
            AcquireAt::GiveBack(false) | AcquireAt::Pause => AcquireAt::Pause,
            AcquireAt::Hold(how) | AcquireAt::Ended(how) => AcquireAt::Ended(*how),
        };
    }
}

/// Gets the lock if nobody has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TryAcquire {
    me: SeatId,
    at: TryAt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TryAt {
    Begin,
    Swap,
    Stand(Acquired),
    Ended(Acquired),
}

impl TryAcquire {
    /// For this participant, in a turn that it has not had before.
    #[must_use]
    pub const fn new(me: SeatId) -> Self {
        Self { me, at: TryAt::Begin }
    }
}

impl Machine for TryAcquire {
    type Outcome = Acquired;

    fn want(&self) -> Want<Acquired> {
        match self.at {
            TryAt::Begin => Want::Begin(Place::Asking),
            TryAt::Swap => Want::Atomic(Centre::Main, word(Opcode::CompareSwap, self.me.0, EMPTY)),
            TryAt::Stand(Acquired::Held { .. }) => Want::Stand(Place::Holding),
            TryAt::Stand(Acquired::Taken) => Want::Stand(Place::Over(SeatId::NOBODY)),
            TryAt::Ended(how) => Want::Ended(how),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match self.at {
            TryAt::Begin => TryAt::Swap,
            TryAt::Swap if answer.atomic().value == EMPTY => TryAt::Stand(WHOLE),
            TryAt::Swap => TryAt::Stand(Acquired::Taken),
            TryAt::Stand(how) | TryAt::Ended(how) => TryAt::Ended(how),
        };
    }
}

/// Lets go of the lock. Ends with who has it now, if somebody had asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Release {
    me: SeatId,
    broken: bool,
    at: ReleaseAt,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ReleaseAt {
    Look,
    Survey(Survey),
    Clear,
    Await,
    Seek(Survey),
    Over(SeatId),
    Grant(SeatId),
    Ended(SeatId),
}

impl Release {
    /// For a holder, in the turn in which it acquired the lock, whose chain is whole or not.
    #[must_use]
    pub const fn new(me: SeatId, broken: bool) -> Self {
        Self {
            me,
            broken,
            at: ReleaseAt::Look,
        }
    }

    /// Who has asked does not come to say so: looks who it is. If there is nobody who still may say so, it has
    /// died, and the lock is left alone: who stands behind it finds that, and is adrift.
    pub fn look(&mut self) {
        if self.at == ReleaseAt::Await {
            self.at = ReleaseAt::Seek(Survey::new(self.me));
        }
    }
}

impl Machine for Release {
    type Outcome = SeatId;

    fn want(&self) -> Want<SeatId> {
        match &self.at {
            ReleaseAt::Look => Want::LookNext,
            ReleaseAt::Survey(survey) | ReleaseAt::Seek(survey) => match survey.want() {
                Want::Member(at) => Want::Member(at),
                Want::View(of) => Want::View(of),
                _ => Want::Pause,
            },
            ReleaseAt::Clear => Want::Atomic(Centre::Main, word(Opcode::CompareSwap, EMPTY, self.me.0)),
            ReleaseAt::Await => Want::AwaitNext,
            ReleaseAt::Over(next) => Want::Stand(Place::Over(*next)),
            ReleaseAt::Grant(to) => Want::Grant {
                to: *to,
                slot: slot(*to),
                word: self.me.with_mark(self.broken).0,
            },
            ReleaseAt::Ended(next) => Want::Ended(*next),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match &mut self.at {
            ReleaseAt::Look if answer.next().is_nobody() && self.broken => {
                ReleaseAt::Survey(Survey::new(self.me))
            }
            ReleaseAt::Look if answer.next().is_nobody() => ReleaseAt::Clear,
            ReleaseAt::Survey(survey) => {
                survey.answer(answer);
                match survey.want() {
                    Want::Ended(found) if found.whole => ReleaseAt::Clear,
                    // The tail stays as it is. Who comes next finds nobody before it who will hand it
                    // the lock, and recovers it.
                    Want::Ended(_) => ReleaseAt::Over(SeatId::NOBODY),
                    _ => return,
                }
            }
            ReleaseAt::Seek(survey) => {
                survey.answer(answer);
                match survey.want() {
                    // Its message was lost, or comes late.
                    Want::Ended(found) if !found.next.is_nobody() => ReleaseAt::Over(found.next),
                    Want::Ended(found) if found.deserted => ReleaseAt::Over(SeatId::NOBODY),
                    Want::Ended(_) => ReleaseAt::Await,
                    _ => return,
                }
            }
            ReleaseAt::Clear if answer.atomic().value == self.me.0 => ReleaseAt::Over(SeatId::NOBODY),
            // Somebody has asked meanwhile, and is about to say so.
            ReleaseAt::Clear => ReleaseAt::Await,
            ReleaseAt::Look | ReleaseAt::Await => ReleaseAt::Over(answer.next()),
            // Said before the grant goes out: who finds that this one's turn is over, and that the lock
            // was handed to somebody else or nobody, need not wait for it.
            ReleaseAt::Over(next) if next.is_nobody() => ReleaseAt::Ended(*next),
            ReleaseAt::Over(next) => ReleaseAt::Grant(*next),
            ReleaseAt::Grant(next) | ReleaseAt::Ended(next) => ReleaseAt::Ended(*next),
        };
    }
}
