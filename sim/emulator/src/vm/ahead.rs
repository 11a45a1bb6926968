//! Which pages an application is going to want: when it takes one fault after the other in a row, the next ones are brought in with
//! the one that it asked for, as an operating system reads ahead. A fault costs two changes of threads, a page in a run a copy.

use super::PageIndex;

/// The most pages that one fault brings in.
pub(super) const MOST: usize = 16;

/// How a region is being walked through.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The page after the last that came.
    next: u64,
    /// How far the walk was trusted at that fault, in pages.
    run: usize,
}

impl Ahead {
    /// How many pages a fault on `page` should bring in: twice as many as the last, if the walk has gone on; 1 if not. Never beyond
    /// the next multiple of [`MOST`], where many a walk ends.
    pub(super) fn wish(&self, page: PageIndex) -> usize {
        self.trust(page).min(MOST - page.0 as usize % MOST)
    }

    /// A fault on `page` has brought in `came` pages.
    pub(super) fn came(&mut self, page: PageIndex, came: u64) {
        self.run = self.trust(page);
        self.next = page.0 + came;
    }

    fn trust(&self, page: PageIndex) -> usize {
        if page.0 == self.next {
            (self.run * 2).clamp(1, MOST)
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
        let mut ahead = Ahead::default();
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
        let mut ahead = Ahead::default();
        walk(&mut ahead, 0, 5);
        ahead.came(PageIndex(16), 3);
        assert_eq!(ahead.wish(PageIndex(19)), 13);
        assert_eq!(ahead.wish(PageIndex(32)), 1);
    }
}
