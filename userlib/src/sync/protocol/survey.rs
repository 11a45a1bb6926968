//! Finds which of a lock's members live, and where each stands.
//!
//! A chain that has lost a participant is put together again by a *surveyor*, which looks at all members, one after the
//! other, while they go on. No two looks are at the same moment, and members come and go meanwhile; so what a look
//! shows counts only where it stays true. It does, because the surveyor asks only about participants that stand
//! *before* some turn of its own, and its first look is later than that:
//!
//! - A participant that becomes a member after the table was read stands behind, and is never looked for.
//! - A member seen in another turn than at first, finished, gone or unlisted is no longer ahead, and never will be
//!   again: whatever it does next, it asks behind.
//! - A member seen waiting stands still for as long as it is in that turn behind that predecessor.
//!
//! So the members that count become fewer with each look, and never more: the looks come to an end, however many
//! members come and go. (They may not where one of the members that count is stopped; but that one may have the lock.)
//!
//! A look reads two words of a seat, which its owner writes one after the other. A member counts as waiting only when
//! two looks in a row have shown the same.

use super::seat::{Place, SeatId, View};
use super::{Answer, Machine, Want};

/// Looks at all members but its own; then again at those of which there is more to know.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Survey {
    me: SeatId,
    /// This is the first pass: no member has been looked at before.
    first: bool,
    /// The place in the table that comes next, until all have been asked for.
    place: Option<u16>,
    /// The member it looks at just now.
    member: SeatId,
    /// The members it will look at in this pass.
    others: Vec<SeatId>,
    known: Vec<Known>,
}

/// What is known of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Known {
    id: SeatId,
    /// As last seen.
    view: View,
    /// It was seen so twice in a row.
    steady: bool,
    /// It was first seen in an earlier turn: does not count.
    late: bool,
    /// Looked at in this pass.
    fresh: bool,
    /// In the table as this pass began.
    listed: bool,
}

impl Known {
    /// Whether there is more to know of it.
    const fn is_open(&self) -> bool {
        !self.late && matches!(self.view.place, Place::Asking | Place::Behind(_) | Place::Holding)
    }
}

impl Survey {
    /// For this participant. From its first look on it tells of the participants that stood before anything that this
    /// one has done before that look.
    #[must_use]
    pub const fn new(me: SeatId) -> Self {
        Self {
            me,
            first: true,
            place: Some(0),
            member: SeatId::NOBODY,
            others: Vec::new(),
            known: Vec::new(),
        }
    }

    /// Looks again at those of which there is more to know, once it has ended.
    pub fn again(&mut self) {
        if self.place.is_some() {
            return;
        }
        self.place = Some(0);
        for known in &mut self.known {
            known.fresh = false;
            known.listed = false;
        }
    }

    /// The table has been read.
    fn listed(&mut self) {
        self.place = None;
        if std::mem::take(&mut self.first) {
            self.again();
            return;
        }
        // A member that is no longer listed has left; its seat may take part in something else by now.
        self.known.retain(|known| known.listed);
        let open = self.known.iter().filter(|known| known.is_open());
        self.others = open.map(|known| known.id).collect();
        self.member = self.next_other();
    }

    fn next_other(&mut self) -> SeatId {
        while let Some(id) = self.others.pop() {
            if !self.is_fresh(id) {
                return id;
            }
        }
        SeatId::NOBODY
    }

    fn is_fresh(&self, id: SeatId) -> bool {
        let mut known = self.known.iter();
        known.any(|known| known.fresh && known.id.same_seat(id))
    }

    /// Takes down what the one looked at shows.
    fn take_down(&mut self, view: Option<View>) {
        let id = self.member;
        let Some(view) = view else {
            self.known.retain(|known| !known.id.same_seat(id));
            return;
        };
        match self.known.iter_mut().find(|known| known.id.same_seat(id)) {
            Some(known) => {
                known.late |= known.view.turn != view.turn;
                known.steady = known.view == view;
                known.view = view;
                known.fresh = true;
            }
            None => self.known.push(Known {
                id,
                view,
                steady: false,
                late: false,
                fresh: true,
                listed: true,
            }),
        }
        // The predecessor may have become a member after the table was read; the participants that it stands behind in
        // turn show that, so the survey follows them. These are as many as wait, and a waiter does not go on.
        if let (None, Place::Behind(before)) = (self.place, view.place)
            && !before.same_seat(self.me)
            && !self.is_fresh(before)
        {
            self.others.push(before);
        }
    }

    /// Whether the waiter behind `before` waits in the end for the surveyor, or for a participant adrift: the lock
    /// comes to these by recovery alone. If not, the participant at the front may have or get the lock; or it is gone,
    /// which those behind it will find by themselves.
    fn is_cut_off(&self, mut before: SeatId) -> bool {
        for _ in 0..=self.known.len() {
            if before == self.me {
                return true;
            }
            let mut known = self.known.iter();
            let found = known.find(|known| known.id.same_seat(before) && known.view.turn == before.turn());
            match found.map(|known| (known.view.place, known.steady)) {
                Some((Place::Behind(next), true)) => before = next,
                Some((Place::Adrift, _)) => return true,
                _ => return false,
            }
        }
        false
    }

    fn found(&self) -> Found {
        let next = self
            .known
            .iter()
            .find(|known| known.view.place == Place::Behind(self.me));
        let next = next.map_or(SeatId::NOBODY, |next| next.id.in_turn(next.view.turn));
        let mut counting = self.known.iter().filter(|known| !known.late);
        Found {
            free: counting.clone().all(|known| match known.view.place {
                Place::Over(_) | Place::Adrift => true,
                Place::Behind(before) => known.steady && self.is_cut_off(before),
                Place::Asking | Place::Holding => false,
            }),
            next,
            asking: counting.any(|known| known.view.place == Place::Asking),
        }
    }
}

/// What a survey has found, of the members that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// No participant that stands before the surveyor has the lock or can come to have it but by recovery.
    pub free: bool,
    /// The surveyor's successor, whether or not its message has come. There is only one, the participant that asked
    /// next, and that stays so.
    pub next: SeatId,
    /// A participant asks whose predecessor is not known yet.
    pub asking: bool,
}

impl Machine for Survey {
    type Want = Want<Found>;
    type Answer = Answer;

    fn want(&self) -> Want<Found> {
        if !self.member.is_nobody() {
            return Want::View(self.member);
        }
        match self.place {
            Some(place) => Want::Member(place),
            None => Want::Ended(self.found()),
        }
    }

    fn answer(&mut self, answer: Answer) {
        if !self.member.is_nobody() {
            self.take_down(answer.view());
            self.member = SeatId::NOBODY;
            match &mut self.place {
                Some(place) => *place += 1,
                None => self.member = self.next_other(),
            }
            return;
        }
        let Some(place) = &mut self.place else { return };
        let member = answer.next();
        if member.is_nobody() {
            self.listed();
        } else if self.first && !member.same_seat(self.me) {
            self.member = member;
        } else {
            *place += 1;
            let known = self.known.iter_mut().find(|known| known.id.same_seat(member));
            if let Some(known) = known {
                known.listed = true;
            }
        }
    }
}
