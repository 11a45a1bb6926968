//! Questions for memory whose writers wait for the answer.

use crate::wire::Id;
use netvm::Nanos;

/// Which connections' writers wait, and until when: no writer waits for long.
#[derive(Default)]
pub(super) struct Awaited(Vec<(Nanos, Id)>);

impl Awaited {
    /// The writer of this connection waits until then.
    pub(super) fn ask(&mut self, id: Id, until: Nanos) {
        self.0.push((until, id));
    }

    /// It has its answer. Its next question has a time of its own.
    pub(super) fn answered(&mut self, id: Id) {
        self.0.retain(|(_, other)| *other != id);
    }

    /// Takes those whose time is over.
    pub(super) fn late(&mut self, now: Nanos) -> Vec<Id> {
        let late = self.0.extract_if(.., |(until, _)| *until <= now);
        late.map(|(_, id)| id).collect()
    }

    /// When the next one's time is over.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.iter().map(|(until, _)| *until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_its_question_and_no_later_one() {
        let (one, other) = (Id::new(1, 1), Id::new(2, 1));
        let mut awaited = Awaited::default();
        awaited.ask(one, Nanos(10));
        awaited.ask(other, Nanos(12));
        awaited.answered(one);
        awaited.ask(one, Nanos(20));
        assert_eq!(awaited.next(), Some(Nanos(12)));
        assert!(awaited.late(Nanos(11)).is_empty());
        assert_eq!(awaited.late(Nanos(12)), [other]);
        assert_eq!(awaited.late(Nanos(20)), [one]);
        assert_eq!(awaited.next(), None);
    }
}
