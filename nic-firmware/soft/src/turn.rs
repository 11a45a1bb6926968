//! A lock without waiting: the thread that gets it works for all.
//!
//! One word says whether a thread holds it and whether another has asked meanwhile. Asking takes it if it is free; if not, it
//! leaves a mark and goes away. The holder cannot let go while there is a mark: it does its work again. So what a caller has made
//! ready before it asks is seen by a piece of work that begins after the asking.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and another thread has asked.
const ASKED: u32 = 2;

/// A value, and the right to work on it.
#[derive(Debug)]
pub struct Turn<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a `Holder`, of which there is one at a time, handed from thread to thread by acquire
// and release operations on `state`.
unsafe impl<T: Send> Sync for Turn<T> {}

/// The right to work, until it is dropped.
pub struct Holder<'a, T>(&'a Turn<T>);

impl<T> Turn<T> {
    /// A value that no thread works on.
    pub const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the turn, or tells its holder to work once more.
    #[inline]
    pub fn ask(&self) -> Option<Holder<'_, T>> {
        let mut state = FREE;
        loop {
            let wanted = if state == FREE { HELD } else { ASKED };
            // Release too: the holder that sees the mark sees what the asker had made ready.
            match self
                .state
                .compare_exchange(state, wanted, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(FREE) => return Some(Holder(self)),
                Ok(_) => return None,
                Err(now) => state = now,
            }
        }
    }

    /// Waits for the turn, for rare visitors such as statistics.
    pub fn wait(&self) -> Holder<'_, T> {
        loop {
            if self
                .state
                .compare_exchange(FREE, HELD, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Holder(self);
            }
            std::thread::yield_now();
        }
    }
}

impl<T> Holder<'_, T> {
    /// Lets go. Gives the turn back if another thread has asked meanwhile.
    #[inline]
    pub fn done(self) -> Option<Self> {
        let state = &self.0.state;
        if state
            .compare_exchange(HELD, FREE, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            std::mem::forget(self);
            return None;
        }
        // A swap, not a store: it also sees what the last of several askers had made ready.
        state.swap(HELD, Ordering::AcqRel);
        Some(self)
    }
}

impl<T> Drop for Holder<'_, T> {
    fn drop(&mut self) {
        self.0.state.store(FREE, Ordering::Release);
    }
}

impl<T> Deref for Holder<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the holder is the only one, and lives as long as the reference.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Holder<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Work that is ready before asking is done, whichever thread gets the turn.
    #[test]
    fn nothing_made_ready_is_forgotten() {
        const ROUNDS: u64 = 100_000;
        let turn = Turn::new(0u64);
        let ready: [AtomicU64; 3] = Default::default();
        std::thread::scope(|scope| {
            for mine in &ready {
                scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        mine.store(round, Ordering::Relaxed);
                        let mut held = turn.ask();
                        while let Some(mut holder) = held {
                            *holder = ready.iter().map(|ready| ready.load(Ordering::Relaxed)).sum();
                            held = holder.done();
                        }
                    }
                });
            }
        });
        assert_eq!(*turn.wait(), 3 * ROUNDS);
    }

    #[test]
    fn a_visitor_is_told_of_a_request() {
        let turn = Turn::new(());
        let visitor = turn.wait();
        assert!(turn.ask().is_none());
        let again = visitor.done();
        assert!(again.is_some());
        assert!(again.and_then(Holder::done).is_none());
        assert!(turn.ask().is_some());
    }
}
