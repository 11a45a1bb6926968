//! Which pages an application or the card is going to want: when one of them takes one fault after the other in a row, the next
//! pages are brought in with the one that it asked for, as an operating system reads ahead. A fault costs two changes of threads, a
//! page in a run a copy.

use super::PageIndex;

/// The most pages that one fault brings in for an application.
pub(super) const FOR_APP: usize = 16;
/// The most that one brings in for the card. More than a window of messages: what it brings in beyond those that are under way
/// already is written in place.
pub(super) const FOR_NIC: usize = 128;
/// The most that one brings in for either.
pub(super) const MOST: usize = FOR_NIC;

/// How a region is being walked through.
#[derive(Debug)]
pub(super) struct Ahead {
    /// The page after the last that came.
    next: u64,
    /// How far the walk was trusted at that fault, in pages.
    run: usize,
    /// How far it is trusted at most.
    most: usize,
}

impl Ahead {
    /// For walks that may be trusted for up to `most` pages.
    pub(super) fn up_to(most: usize) -> Self {
        Self {
            next: 0,
            run: 0,
            most,
        }
    }

    /// A fault on `page` is not answered yet. A walk has gone on, unseen, over pages that were there already.
    pub(super) fn pass(&mut self, page: PageIndex, there: impl Fn(PageIndex) -> bool) {
        let unseen = self.next..page.0.min(self.next.saturating_add(self.most as u64));
        self.next += unseen.take_while(|page| there(PageIndex(*page))).count() as u64;
    }

    /// How many pages a fault on `page` should bring in: twice as many as the last, if the walk has gone on; 1 if not. Never beyond
    /// the next multiple of the most, where many a walk ends.
    pub(super) fn wish(&self, page: PageIndex) -> usize {
        self.trust(page).min(self.most - page.0 as usize % self.most)
    }

    /// A fault on `page` has brought in `came` pages.
    pub(super) fn came(&mut self, page: PageIndex, came: u64) {
        self.run = self.trust(page);
        self.next = page.0 + came;
    }

    fn trust(&self, page: PageIndex) -> usize {
        if page.0 == self.next {
            (self.run * 2).clamp(1, self.most)
        } else {
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults in turn, each for the page after the last that came; returns what each is good for.
    fn walk(ahead: &mut Ahead, from: u64, faults: usize) -> Vec<usize> {
        let mut page = from;
        (0..faults)
            .map(|_| {
                let wish = ahead.wish(PageIndex(page));
                ahead.came(PageIndex(page), wish as u64);
                page += wish as u64;
                wish
            })
            .collect()
    }

    #[test]
    fn a_walk_is_trusted_more_and_more_and_a_jump_not_at_all() {
        let mut ahead = Ahead::up_to(FOR_APP);
        assert_eq!(walk(&mut ahead, 32, 7), [1, 2, 4, 8, 1, 16, 16]);
        assert_eq!(walk(&mut ahead, 7, 2), [1, 2]);
        assert_eq!(
            walk(&mut ahead, 9, 1),
            [1],
            "a page that came already is no next one"
        );
    }

    #[test]
    fn a_walk_goes_on_after_the_pages_that_came() {
        let mut ahead = Ahead::up_to(FOR_APP);
        walk(&mut ahead, 0, 5);
        ahead.came(PageIndex(16), 3);
        assert_eq!(ahead.wish(PageIndex(19)), 13);
        assert_eq!(ahead.wish(PageIndex(32)), 1);
    }

    #[test]
    fn a_walk_goes_on_over_pages_that_are_there_already() {
        let mut ahead = Ahead::up_to(FOR_APP);
        walk(&mut ahead, 0, 5);
        ahead.pass(PageIndex(20), |_| true);
        assert_eq!(ahead.wish(PageIndex(20)), 12);
        ahead.came(PageIndex(20), 12);
        ahead.pass(PageIndex(35), |page| page != PageIndex(33));
        assert_eq!(ahead.wish(PageIndex(35)), 1, "page 33 was jumped over");
    }
}
