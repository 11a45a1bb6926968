//! What of ended operations the program has not read yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::{Completion, Failed};

/// The entries of a queue. Whether there are any is seen without their lock.
#[derive(Default)]
pub(super) struct Entries {
    kinds: Mutex<Kinds>,
    /// Of both kinds. It changes under the lock: an entry that is counted later may be read before, and the count be that of an
    /// empty queue while another entry waits.
    count: AtomicUsize,
}

#[derive(Default)]
struct Kinds {
    good: VecDeque<Completion>,
    bad: VecDeque<Failed>,
}

/// Entries that are being read.
pub(super) struct Reading<'a> {
    kinds: MutexGuard<'a, Kinds>,
    count: &'a AtomicUsize,
}

impl Entries {
    pub(super) fn push(&self, completion: Completion) {
        let mut kinds = self.kinds.lock();
        kinds.good.push_back(completion);
        self.count.fetch_add(1, Ordering::Release);
    }

    pub(super) fn push_failed(&self, failed: Failed) {
        let mut kinds = self.kinds.lock();
        kinds.bad.push_back(failed);
        self.count.fetch_add(1, Ordering::Release);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(super) fn read(&self) -> Reading<'_> {
        Reading {
            kinds: self.kinds.lock(),
            count: &self.count,
        }
    }
}

impl Reading<'_> {
    pub(super) fn has_good(&self) -> bool {
        !self.kinds.good.is_empty()
    }

    pub(super) fn has_bad(&self) -> bool {
        !self.kinds.bad.is_empty()
    }

    pub(super) fn good(&mut self) -> Option<Completion> {
        let completion = self.kinds.good.pop_front()?;
        self.count.fetch_sub(1, Ordering::Release);
        Some(completion)
    }

    pub(super) fn bad(&mut self) -> Option<Failed> {
        let failed = self.kinds.bad.pop_front()?;
        self.count.fetch_sub(1, Ordering::Release);
        Some(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted_whatever_a_reader_takes() {
        const EACH: usize = 100_000;
        let entries = Entries::default();
        let read = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..EACH).for_each(|context| entries.push(Completion::new(context, 0))));
            }
            let mut read = 0;
            while read < 2 * EACH {
                if entries.is_empty() {
                    std::hint::spin_loop();
                    continue;
                }
                let mut reading = entries.read();
                while reading.good().is_some() {
                    read += 1;
                }
                // Counted, as the lock is held: none.
                assert_eq!(entries.count.load(Ordering::Acquire), 0, "after {read}");
            }
            read
        });
        assert_eq!((read, entries.is_empty()), (2 * EACH, true));
    }
}
