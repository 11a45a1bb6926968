//! Virtual time: a heap of events, taken out in order of time and, at one time, of posting.

use netvm_abi::Nanos;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Events of type `E` waiting for their time.
pub(crate) struct Clock<E> {
    now: Nanos,
    posted: u64,
    heap: BinaryHeap<Entry<E>>,
}

struct Entry<E> {
    at: Nanos,
    order: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Nanos, u64) {
        (self.at, self.order)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// Reversed, because the standard heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<E> Clock<E> {
    /// A clock that starts at one second, so that "long ago" is never below zero.
    pub(crate) fn new() -> Self {
        Self {
            now: Nanos(1_000_000_000),
            posted: 0,
            heap: BinaryHeap::new(),
        }
    }

    /// Bytes that its line takes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.heap.capacity() * size_of::<Entry<E>>()) as u64
    }

    /// The present.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// How many events were ever posted.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Posts `event` for `at`, or for now when that is past.
    pub(crate) fn post(&mut self, at: Nanos, event: E) {
        let order = self.posted;
        self.posted += 1;
        self.heap.push(Entry {
            at: at.max(self.now),
            order,
            event,
        });
    }

    /// Posts `event` for `span` from now.
    pub(crate) fn post_after(&mut self, span: Nanos, event: E) {
        self.post(self.now.after(span), event);
    }

    /// Takes the next event and moves the present to its time.
    pub(crate) fn next(&mut self) -> Option<E> {
        let entry = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_keep_their_order() {
        let mut clock = Clock::new();
        clock.post_after(Nanos(20), 'c');
        clock.post_after(Nanos(10), 'a');
        clock.post_after(Nanos(10), 'b');
        clock.post(Nanos(0), 'n');
        let start = clock.now();
        assert_eq!(clock.next(), Some('n'));
        assert_eq!(clock.now(), start, "the past is not entered again");
        assert_eq!(
            [clock.next(), clock.next(), clock.next()],
            [Some('a'), Some('b'), Some('c')]
        );
        assert_eq!(clock.now(), start.after(Nanos(20)));
        assert_eq!(clock.next(), None);
    }
}
