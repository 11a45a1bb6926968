//! Who of a lock's members lives, and where each stands.
//!
//! A chain that has lost somebody is put together again by looking at everybody. The members are looked at
//! one after the other while they go on, twice: where nobody has moved between the first time and the
//! second, there was a moment in between at which all of it was true. (A turn has a number, and in one
//! turn nobody stands twice in the same place: so who looks the same has not moved.)

use super::seat::{Place, SeatId, View};
use super::{Answer, Machine, Want};

/// Looks at all members but oneself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Survey {
    me: SeatId,
    again: bool,
    place: u16,
    member: SeatId,
    first: Vec<(SeatId, View)>,
    second: Vec<(SeatId, View)>,
    ended: bool,
}

/// What a chain of those who wait leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    /// The one who looks.
    Me,
    /// One who is adrift: the lock comes to it by recovery alone.
    Adrift,
    /// One who may have or get the lock; or who is gone, which those behind it will find by themselves.
    Other,
}

impl Survey {
    /// For this participant.
    #[must_use]
    pub const fn new(me: SeatId) -> Self {
        Self {
            me,
            again: false,
            place: 0,
            member: SeatId::NOBODY,
            first: Vec::new(),
            second: Vec::new(),
            ended: false,
        }
    }

    /// What who stands behind `before` waits for in the end.
    fn root(&self, mut before: SeatId) -> Root {
        for _ in 0..=self.second.len() {
            if before == self.me {
                return Root::Me;
            }
            let found = self
                .second
                .iter()
                .find(|(id, view)| id.same_seat(before) && view.turn == before.turn());
            match found {
                Some((
                    _,
                    View {
                        place: Place::Behind(next),
                        ..
                    },
                )) => before = *next,
                Some((
                    _,
                    View {
                        place: Place::Adrift, ..
                    },
                )) => return Root::Adrift,
                _ => return Root::Other,
            }
        }
        Root::Other
    }

    /// Whether nobody has the lock or can come to have it but by recovery, of which there is one at a time.
    fn is_free(&self) -> bool {
        self.second.iter().all(|(_, view)| match view.place {
            Place::Over(_) | Place::Adrift => true,
            Place::Behind(before) => self.root(before) != Root::Other,
            Place::Asking | Place::Holding => false,
        })
    }

    /// Who stands next behind the one who looks. There is only one: who asked next after it.
    fn next(&self) -> SeatId {
        let behind = |(_, view): &&(SeatId, View)| view.place == Place::Behind(self.me);
        let next = self.second.iter().find(behind);
        next.map_or(SeatId::NOBODY, |(id, view)| id.in_turn(view.turn))
    }

    /// Whether nobody stands, or may be about to stand, next to the one who looks.
    fn is_deserted(&self) -> bool {
        self.second
            .iter()
            .all(|(_, view)| view.place != Place::Asking && view.place != Place::Behind(self.me))
    }

    /// Whether everybody who wants the lock stands behind the one who looks.
    fn is_whole(&self) -> bool {
        self.second.iter().all(|(_, view)| match view.place {
            Place::Over(_) => true,
            Place::Behind(before) => self.root(before) == Root::Me,
            Place::Asking | Place::Adrift | Place::Holding => false,
        })
    }
}

/// What a survey has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// Nobody has the lock or can come to have it but by recovery.
    pub free: bool,
    /// Everybody who wants the lock stands behind the one who looks.
    pub whole: bool,
    /// Who stands next behind the one who looks, whether or not its message has come.
    pub next: SeatId,
    /// Nobody does, or can still come to.
    pub deserted: bool,
}

impl Machine for Survey {
    /// None holds when somebody has moved meanwhile.
    type Outcome = Found;

    fn want(&self) -> Want<Found> {
        if self.ended {
            let still = self.first == self.second;
            return Want::Ended(Found {
                free: still && self.is_free(),
                whole: still && self.is_whole(),
                next: if still { self.next() } else { SeatId::NOBODY },
                deserted: still && self.is_deserted(),
            });
        }
        if self.member.is_nobody() {
            Want::Member(self.place)
        } else {
            Want::View(self.member)
        }
    }

    fn answer(&mut self, answer: Answer) {
        if !self.member.is_nobody() {
            if let Some(view) = answer.view() {
                let views = if self.again {
                    &mut self.second
                } else {
                    &mut self.first
                };
                views.push((self.member, view));
            }
            self.member = SeatId::NOBODY;
            self.place += 1;
            return;
        }
        let member = answer.next();
        if member.is_nobody() {
            self.ended = self.again;
            self.again = true;
            self.place = 0;
        } else if member.same_seat(self.me) {
            self.place += 1;
        } else {
            self.member = member;
        }
    }
}
