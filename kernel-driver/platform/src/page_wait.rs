//! Whether a worker that waits for a page is all that keeps an address space.
//!
//! A worker holds a reference to the address space while it serves. A process that ends meanwhile leaves that reference the
//! last, and nothing tells so: its port has to be looked at. Two things are read for that, one after the other: whether the
//! worker waits, and how many references there are. Between them the worker may come to the end of its wait and give its
//! reference back. Then the last reference is that of the process, which lives, and its port must not be taken from it.
//!
//! So each wait has a number. Only references that are counted within one wait tell anything.
//!
//! **Order.** The worker takes its reference, begins the wait (a store that releases), ends it (another one), and gives the
//! reference back, with an atomic operation that stays behind what is before it. The look loads the number, counts, and loads
//! the number again, with a barrier in between. If the count lacks the worker's reference since that was given back, the
//! wait's end is visible to the second load, which differs from the first. `tests/loom/tests/page_wait.rs` tries every order.

use core::sync::atomic::AtomicU32;
use netvm_abi::WordIndex;
use netvm_abi::words::SharedWords;

/// The waits' number. It is odd while the worker waits.
const NUMBER: WordIndex = WordIndex(0);

/// The waits of one worker for pages. There is one thread that waits, and any may look.
#[derive(Debug, Default)]
pub struct PageWait<W: SharedWords = [AtomicU32; 1]> {
    words: W,
}

impl<W: SharedWords> PageWait<W> {
    /// A worker that does not wait, with one word that is 0.
    pub const fn new(words: W) -> Self {
        Self { words }
    }

    /// The worker waits while `wait` runs. Its reference to the address space is taken before, and given back after that.
    pub fn during<R>(&self, wait: impl FnOnce() -> R) -> R {
        let number = self.words.load_acquire(NUMBER);
        self.words.store_release(NUMBER, number.wrapping_add(1));
        let result = wait();
        self.words.store_release(NUMBER, number.wrapping_add(2));
        result
    }

    /// Whether the worker waits.
    pub fn is_waiting(&self) -> bool {
        !self.words.load_acquire(NUMBER).is_multiple_of(2)
    }

    /// Whether the worker waits, and no reference but its own is left of those that `count` counts.
    pub fn is_last(&self, count: impl FnOnce() -> u32) -> bool {
        let number = self.words.load_acquire(NUMBER);
        if number.is_multiple_of(2) || count() > 1 {
            return false;
        }
        self.words.full_barrier();
        self.words.load_acquire(NUMBER) == number
    }
}
