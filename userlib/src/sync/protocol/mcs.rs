//! The lock: a chain of the participants that want it (MCS; thesis 8.2, table 17).
//!
//! The tail, at the lock's home, names the participant that asked last. A participant asks by exchanging the tail for
//! its own name. It so learns its predecessor, and tells it. The holder passes the lock to the successor that has told
//! it so. Uncontended: one round trip to get the lock and one to let go. Contended: one round trip and one message to
//! get it, one message to let go.

use super::seat::{Place, SeatId, View};
use super::survey::Survey;
use super::{Answer, Centre, GRANTS, Machine, Want, word};
use netvm_abi::atomic::EMPTY;
use netvm_abi::descriptor::Opcode;
use netvm_abi::mutant::{self, Mutant};

/// How a lock was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Acquired {
    /// The caller holds it.
    Held {
        /// The chain has lost a participant since it was last empty; messages of the lost one may still arrive late.
        broken: bool,
        /// It had no holder any more, and was taken by a recovery.
        recovered: bool,
    },
    /// Another participant has it: only [`TryAcquire`] ends so.
    Taken,
    /// It has left its place in the chain and has to ask anew, in another turn: only [`Acquire`] ends so.
    Astray,
}

const WHOLE: Acquired = Acquired::Held {
    broken: false,
    recovered: false,
};

/// Gets the lock, however long it takes.
///
/// # When a participant dies
/// A participant that has waited long [looks](Self::look) at its predecessor. It is *adrift* if the predecessor is gone
/// (and nothing has come of it after that was seen), or if the predecessor's turn is over and has not handed it the
/// lock. A participant adrift forgets its predecessor, and whatever that may have sent. One at a time (the recovery
/// word), the participants adrift look at the members ([`Survey`]). One takes the lock if no member has it or can come
/// to have it but by recovery.
///
/// # Why no other participant has it
/// The lock is handed on from each holder to the participant that asked next. Let X be adrift, and let the lock be held
/// or under way. Then its holder asked before X; or it has the lock from a participant that asked after X and got it
/// otherwise than from its predecessor: by recovery, or because the tail was empty. After X asked, the tail can have
/// been empty only if a participant cleared it that was the last to ask and held the lock; so that participant had it
/// by a recovery too.
///
/// No participant has the lock by a recovery after X asked, if the count of recoveries that X reads (as the owner of
/// the recovery word) is the count from before X asked, which X [knew](Self::new) then. A participant that recovers the
/// lock counts that, then holds it, and gives the recovery word back last. Of the participants that asked before X none
/// has it, if all of them are seen not to: see [`Survey`]. X's looks at the others may be far apart, with the recovery
/// word given back in between: as long as the lock is not recovered, participants seen adrift stay so.
///
/// If the lock was recovered after X asked, X leaves its place and asks anew, behind all others (*astray*), knowing the
/// new count of recoveries. Leaving is safe at any time. X tells its successor, which does the same.
///
/// # Why that comes to an end
/// The number of participants that asked before X only falls, whichever come and go. Each of them has the lock at most
/// once in that turn, and finds by itself when it is adrift. So after that many hand-overs, and that many looks, X
/// takes the lock, or another participant adrift has recovered it. Then X asks anew, once for each recovery by another.
/// Each recovery puts the participants behind one gap of the chain together, and there are no more gaps than members
/// have died, or left their place for a failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquire {
    me: SeatId,
    /// How often the lock had been recovered, as far as is known: at some time before this turn, or now.
    recoveries: u64,
    at: AcquireAt,
    /// What looks at the members have shown since it is adrift.
    survey: Survey,
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
    /// Was it recovered since? Owning the recovery word, or not.
    Count {
        owns: bool,
    },
    Claim(SeatId),
    Owner(SeatId),
    Survey,
    Recovered,
    Take,
    GiveBack(Then),
    Pause,
    Next,
    Leave(SeatId),
    Tell(SeatId),
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
    /// Its seat is in another turn, and tells of another hand-over. A participant that has handed over the lock may have
    /// left, and another have its seat: what the first one sent has come by then.
    past: bool,
}

/// What comes when the recovery word is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    Holds,
    Waits,
    Leaves,
}

/// The grant word for this turn: a late grant, from a dead participant, does not overwrite it.
const fn slot(to: SeatId) -> u8 {
    (to.turn() % GRANTS as u16) as u8
}

/// How often a lock may be found to be on its way before it is taken for lost.
const LOST: u8 = 8;

impl Acquire {
    /// For this participant, in a turn that it has not had before, which knows that the lock has been recovered so
    /// often: read at any time before this.
    #[must_use]
    pub const fn new(me: SeatId, recoveries: u64) -> Self {
        Self {
            me,
            recoveries,
            at: AcquireAt::Begin,
            survey: Survey::new(me),
        }
    }

    /// How often the lock has been recovered, as far as it knows.
    #[must_use]
    pub const fn recoveries(&self) -> u64 {
        self.recoveries
    }

    /// The participant it waits for.
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
            self.at = AcquireAt::Count { owns: false };
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
        let past = view.turn != who.turn();
        if !past && !matches!(view.place, Place::Over(_)) {
            AcquireAt::Wait(who, Seen::default())
        } else if view.given == self.me && seen.given < LOST {
            let given = seen.given + 1;
            AcquireAt::Wait(who, Seen { given, ..seen })
        } else if view.given != self.me && past && !seen.past {
            AcquireAt::Wait(who, Seen { past, ..seen })
        } else {
            AcquireAt::Drift
        }
    }
}

impl Machine for Acquire {
    type Want = Want<Acquired>;
    type Answer = Answer;

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
            AcquireAt::Count { .. } => Want::Atomic(Centre::Recoveries, word(Opcode::FetchAdd, 0, 0)),
            AcquireAt::Survey => match self.survey.want() {
                Want::Member(at) => Want::Member(at),
                Want::View(of) => Want::View(of),
                _ => Want::Pause,
            },
            AcquireAt::Recovered => Want::Atomic(Centre::Recoveries, word(Opcode::FetchAdd, 1, 0)),
            AcquireAt::Take | AcquireAt::Hold(_) => Want::Stand(Place::Holding),
            AcquireAt::GiveBack(_) => swap(EMPTY, self.me.0),
            AcquireAt::Pause => Want::Pause,
            AcquireAt::Next => Want::LookNext,
            AcquireAt::Leave(_) => Want::Stand(Place::Over(SeatId::NOBODY)),
            AcquireAt::Tell(next) => Want::Grant {
                to: *next,
                slot: slot(*next),
                word: self.me.astray(),
            },
            AcquireAt::Ended(how) => Want::Ended(*how),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match &mut self.at {
            AcquireAt::Begin => AcquireAt::Swap,
            AcquireAt::Swap => match answer.atomic().value {
                EMPTY => AcquireAt::Hold(WHOLE),
                // No other participant has asked since: the tail names an earlier turn of this seat.
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
                } else if from.0 == who.astray() {
                    AcquireAt::Drift
                } else {
                    AcquireAt::Wait(*who, *seen)
                }
            }
            AcquireAt::Look(who, seen) => {
                let (who, seen) = (*who, *seen);
                self.looked(who, seen, answer.view())
            }
            AcquireAt::Drift => AcquireAt::Count { owns: false },
            AcquireAt::Count { owns } => {
                let count = answer.atomic().value;
                let since = std::mem::replace(&mut self.recoveries, count) != count;
                match (since, *owns) {
                    (true, true) => AcquireAt::GiveBack(Then::Leaves),
                    (true, false) => AcquireAt::Next,
                    (false, true) => {
                        self.survey.again();
                        AcquireAt::Survey
                    }
                    (false, false) => AcquireAt::Claim(SeatId::NOBODY),
                }
            }
            AcquireAt::Claim(owner) => match SeatId(answer.atomic().value) {
                found if found == *owner => AcquireAt::Count { owns: true },
                SeatId::NOBODY => AcquireAt::Pause,
                found => AcquireAt::Owner(found),
            },
            AcquireAt::Owner(owner) => match answer.view() {
                // An owner whose turn is over no longer recovers, whatever kept it from giving the word back.
                Some(view) if view.turn == owner.turn() && !matches!(view.place, Place::Over(_)) => {
                    AcquireAt::Pause
                }
                _ => AcquireAt::Claim(*owner),
            },
            AcquireAt::Survey => {
                self.survey.answer(answer);
                match self.survey.want() {
                    Want::Ended(found) if found.free => AcquireAt::Recovered,
                    Want::Ended(_) => AcquireAt::GiveBack(Then::Waits),
                    _ => return,
                }
            }
            AcquireAt::Recovered => {
                self.recoveries = answer.atomic().value.wrapping_add(1);
                AcquireAt::Take
            }
            AcquireAt::Take => AcquireAt::GiveBack(Then::Holds),
            AcquireAt::GiveBack(Then::Holds) => AcquireAt::Ended(Acquired::Held {
                broken: true,
                recovered: !mutant::is(Mutant::DeadHolderUntold),
            }),
            AcquireAt::GiveBack(Then::Leaves) => AcquireAt::Next,
            AcquireAt::GiveBack(Then::Waits) | AcquireAt::Pause => AcquireAt::Pause,
            AcquireAt::Next => AcquireAt::Leave(answer.next()),
            AcquireAt::Leave(next) if next.is_nobody() => AcquireAt::Ended(Acquired::Astray),
            AcquireAt::Leave(next) => AcquireAt::Tell(*next),
            AcquireAt::Tell(_) => AcquireAt::Ended(Acquired::Astray),
            AcquireAt::Hold(how) | AcquireAt::Ended(how) => AcquireAt::Ended(*how),
        };
    }
}

/// Gets the lock if it is free.
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
    type Want = Want<Acquired>;
    type Answer = Answer;

    fn want(&self) -> Want<Acquired> {
        match self.at {
            TryAt::Begin => Want::Begin(Place::Asking),
            TryAt::Swap => Want::Atomic(Centre::Main, word(Opcode::CompareSwap, self.me.0, EMPTY)),
            TryAt::Stand(Acquired::Held { .. }) => Want::Stand(Place::Holding),
            TryAt::Stand(_) => Want::Stand(Place::Over(SeatId::NOBODY)),
            TryAt::Ended(how) => Want::Ended(how),
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.at = match self.at {
            TryAt::Begin => TryAt::Swap,
            TryAt::Swap if answer.atomic().value == EMPTY || mutant::is(Mutant::TryTakesHeldLock) => {
                TryAt::Stand(WHOLE)
            }
            TryAt::Swap => TryAt::Stand(Acquired::Taken),
            TryAt::Stand(how) | TryAt::Ended(how) => TryAt::Ended(how),
        };
    }
}

/// Lets go of the lock. Ends with its new holder, if a successor had asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Release {
    me: SeatId,
    broken: bool,
    at: ReleaseAt,
    /// What looks at the members have shown since a successor is known to have asked.
    survey: Survey,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ReleaseAt {
    Clear,
    Await,
    Seek,
    Over(SeatId),
    Grant(SeatId),
    Ended(SeatId),
}

impl Release {
    /// For a holder, in the turn in which it acquired the lock, whose chain is broken or not. `next` is the successor
    /// [in this turn](SeatId::follower) at a look while the lock was held: it decides where the release goes to, and so
    /// what the driver has to make land before.
    #[must_use]
    pub const fn new(me: SeatId, broken: bool, next: SeatId) -> Self {
        Self {
            me,
            broken,
            at: if next.is_nobody() {
                ReleaseAt::Clear
            } else {
                ReleaseAt::Over(next)
            },
            survey: Survey::new(me),
        }
    }

    /// The successor's message does not come: looks for the successor among the members. If no member can still send
    /// that message, the successor has died, and the lock is left alone: the participant behind the successor finds
    /// that, and is adrift.
    pub fn look(&mut self) {
        if self.at == ReleaseAt::Await {
            self.survey.again();
            self.at = ReleaseAt::Seek;
        }
    }
}

impl Machine for Release {
    type Want = Want<SeatId>;
    type Answer = Answer;

    fn want(&self) -> Want<SeatId> {
        match &self.at {
            ReleaseAt::Seek => match self.survey.want() {
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
            ReleaseAt::Seek => {
                self.survey.answer(answer);
                match self.survey.want() {
                    // Its message was lost, or comes late.
                    Want::Ended(found) if !found.next.is_nobody() => ReleaseAt::Over(found.next),
                    // A participant that still asks may be the successor.
                    Want::Ended(found) if found.asking => ReleaseAt::Await,
                    Want::Ended(_) => ReleaseAt::Over(SeatId::NOBODY),
                    _ => return,
                }
            }
            ReleaseAt::Clear if answer.atomic().value == self.me.0 => ReleaseAt::Over(SeatId::NOBODY),
            // A successor has asked meanwhile, and its message is under way.
            ReleaseAt::Clear if mutant::is(Mutant::SuccessorForgotten) => ReleaseAt::Over(SeatId::NOBODY),
            ReleaseAt::Clear => ReleaseAt::Await,
            ReleaseAt::Await => ReleaseAt::Over(answer.next()),
            // Said before the grant goes out: a participant that finds this turn over, and the lock handed to another
            // participant or to none, need not wait for it.
            ReleaseAt::Over(next) if next.is_nobody() => ReleaseAt::Ended(*next),
            ReleaseAt::Over(next) => ReleaseAt::Grant(*next),
            ReleaseAt::Grant(next) | ReleaseAt::Ended(next) => ReleaseAt::Ended(*next),
        };
    }
}
