//! References that cross the library's `Send + Sync` interfaces in a world of one thread.

use crate::sim::Sim;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::thread::ThreadId;

/// Something of one thread. The library's interfaces ask for `Send + Sync`, because other back ends
/// have threads; a world has one, and this checks it.
pub(crate) struct Solo<T> {
    value: ManuallyDrop<T>,
    thread: ThreadId,
}

// SAFETY: the value is only reached, cloned or dropped on the thread that made it: `check` guards
// each of these (a drop elsewhere leaks).
unsafe impl<T> Send for Solo<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Solo<T> {}

impl<T> Solo<T> {
    /// Wraps a value of this thread.
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            thread: std::thread::current().id(),
        }
    }

    fn here(&self) -> bool {
        std::thread::current().id() == self.thread
    }

    fn check(&self) -> &T {
        assert!(
            self.here(),
            "a simulated world was used from another thread than its own"
        );
        &self.value
    }
}

impl Solo<Weak<Sim>> {
    /// The world, until it is over. An app finds none from then on, although the world may still be there.
    pub(crate) fn upgrade(&self) -> Option<Rc<Sim>> {
        self.check().upgrade().filter(|sim| sim.lasts())
    }
}

impl<T: Clone> Clone for Solo<T> {
    fn clone(&self) -> Self {
        Self {
            value: ManuallyDrop::new(self.check().clone()),
            thread: self.thread,
        }
    }
}

impl<T> Deref for Solo<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.check()
    }
}

impl<T> Drop for Solo<T> {
    fn drop(&mut self) {
        if self.here() {
            // SAFETY: dropped once, here, on the thread that made it.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T> fmt::Debug for Solo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Solo")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_may_hold_it_but_not_use_it() {
        let value = Rc::new(5);
        let solo = Solo::new(value.clone());
        assert_eq!(**solo, 5);
        let clone = solo.clone();
        assert_eq!(Rc::strong_count(&value), 3);
        drop(clone);
        assert_eq!(Rc::strong_count(&value), 2);
        assert!(std::thread::spawn(move || **solo).join().is_err());
        assert_eq!(Rc::strong_count(&value), 2, "what another thread drops is leaked");
    }
}
