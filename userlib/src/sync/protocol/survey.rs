//! Who of a lock's members lives, and where each stands.
//!
//! A chain that has lost somebody is put together again by looking at everybody, one after the other, while they
//! go on. No two looks are at the same moment, and members come and go meanwhile; so what a look shows counts only
//! where it stays true. It does, because all that is asked for is about those who stand *before* some turn
//! of the one who looks, the first look being later than that:
//!
//! - Who becomes a member after the table was read stands behind, and is never looked for.
//! - Who is seen in another turn than at first, or at an end, or is gone, or a member no more, stands before it no more,
//!   and will not again: whatever it does next, it asks behind.
//! - Who is seen waiting stands still for as long as it is in that turn behind that one.
//!
//! So those who count become fewer with each look, and never more: the looks come to an end, however many come and
//! go. (They may not where one of those who count is stopped; but that one may have the lock.)
//!
//! A look reads two words of a seat, which its owner writes one after the other. Who waits is believed only when two
//! looks in a row have shown the same.

use super::seat::{Place, SeatId, View};
use super::{Answer, Machine, Want};

/// Looks at all members but oneself; then again at those of whom there is more to know.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Survey {
    me: SeatId,
    /// Nobody has been looked at before this pass.
    first: bool,
    /// The place in the table that comes next, until all have been asked for.
    place: Option<u16>,
    /// Whom it looks at just now.
    member: SeatId,
    /// Whom it will look at in this pass.
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
    /// For this participant. From its first look on it tells of those who stood before anything that the
    /// participant has done before that.
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

    /// Looks again at those of whom there is more to know, once it has [ended](Found).
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
        // Somebody may have the same seat who takes part in something else.
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
        // Who stands before it may have come later than the table was read, and that is known by its standing behind
        // others in turn. These are as many as wait, and who waits does not go on.
        if let (None, Place::Behind(before)) = (self.place, view.place)
            && !before.same_seat(self.me)
            && !self.is_fresh(before)
        {
            self.others.push(before);
        }
    }

    /// Whether who stands behind `before` waits in the end for the one who looks, or for one who is adrift: the
    /// lock comes to these by recovery alone. If not, that one may have or get the lock; or it is gone, which those
    /// behind it will find by themselves.
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

/// What a survey has found, of those who count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// Nobody who stands before the one who looks has the lock or can come to have it but by recovery.
    pub free: bool,
    /// Who stands next behind the one who looks, whether or not its message has come. There is only one: who asked
    /// next after it; and it stays so.
    pub next: SeatId,
    /// Somebody asks of whom it is not known yet behind whom.
    pub asking: bool,
}

impl Machine for Survey {
    type Outcome = Found;

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
