//! Connections for which something is due.

use crate::wire::Id;
use netvm::Nanos;

/// Which connections they are, and when it is due: one time for each. There are few.
#[derive(Default)]
pub(super) struct Deadlines(Vec<(Nanos, Id)>);

impl Deadlines {
    /// For this connection it is due then, and at no earlier time that was said.
    pub(super) fn set(&mut self, id: Id, at: Nanos) {
        self.clear(id);
        self.0.push((at, id));
    }

    /// For this connection nothing is due.
    pub(super) fn clear(&mut self, id: Id) {
        self.0.retain(|(_, other)| *other != id);
    }

    /// Takes those whose time has come.
    pub(super) fn take(&mut self, now: Nanos) -> Vec<Id> {
        let due = self.0.extract_if(.., |(at, _)| *at <= now);
        due.map(|(_, id)| id).collect()
    }

    /// When the next one is due; [`Nanos::MAX`]: none is.
    pub(super) fn next(&self) -> Nanos {
        self.0.iter().map(|(at, _)| *at).min().unwrap_or(Nanos::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_was_cleared_ends_no_later_one() {
        let (one, other) = (Id::new(1, 1), Id::new(2, 1));
        let mut due = Deadlines::default();
        due.set(one, Nanos(10));
        due.set(other, Nanos(12));
        due.clear(one);
        due.set(one, Nanos(15));
        due.set(one, Nanos(20));
        assert_eq!(due.next(), Nanos(12));
        assert!(due.take(Nanos(11)).is_empty());
        assert_eq!(due.take(Nanos(15)), [other]);
        assert_eq!(due.take(Nanos(20)), [one]);
        assert_eq!(due.next(), Nanos::MAX);
    }
}
