//! A word space of one thread, in which a test may decide what loads and stores do.

use netvm_abi::WordIndex;
use netvm_abi::words::SharedWords;
use std::cell::{Cell, RefCell};
use std::ops::{Deref, Range};
use std::sync::atomic::AtomicU32;

/// Words that start as zeros.
///
/// The party under test reaches them through [`SharedWords`]: its loads are counted, and a [`Hook`] may answer them. The
/// test reaches them as a slice of atomics, past count and hook.
#[derive(Default)]
pub struct Words {
    words: Box<[AtomicU32]>,
    loads: Cell<u32>,
    hook: RefCell<Option<Box<dyn Hook>>>,
}

/// What happens where the party under test reaches its words. Without more, that is what happens without a hook.
pub trait Hook {
    /// It loads the word at `at`: what it gets.
    fn load(&mut self, words: &[AtomicU32], at: WordIndex) -> u32 {
        words.load_acquire(at)
    }

    /// It stores `value` at `at`.
    fn store(&mut self, words: &[AtomicU32], at: WordIndex, value: u32) {
        words.store_release(at, value);
    }

    /// It makes a barrier that reads across the bus.
    fn bus_barrier(&mut self, words: &[AtomicU32]) {
        words.bus_barrier();
    }
}

impl Words {
    /// `len` words of zero.
    #[must_use]
    pub fn new(len: u32) -> Self {
        Self {
            words: (0..len).map(|_| AtomicU32::new(0)).collect(),
            ..Self::default()
        }
    }

    /// From now on `hook` answers.
    pub fn hook(&self, hook: impl Hook + 'static) {
        *self.hook.borrow_mut() = Some(Box::new(hook));
    }

    /// No hook answers any more.
    pub fn unhook(&self) {
        *self.hook.borrow_mut() = None;
    }

    /// Loads and bus barriers so far: reads across the bus, where these words are NIC memory.
    pub fn loads(&self) -> u32 {
        self.loads.get()
    }
}

impl Deref for Words {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        &self.words
    }
}

impl SharedWords for Words {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.loads.set(self.loads.get().wrapping_add(1));
        match &mut *self.hook.borrow_mut() {
            Some(hook) => hook.load(&self.words, at),
            None => self.words.load_acquire(at),
        }
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        match &mut *self.hook.borrow_mut() {
            Some(hook) => hook.store(&self.words, at, value),
            None => self.words.store_release(at, value),
        }
    }

    fn full_barrier(&self) {
        self.words.full_barrier();
    }

    fn bus_barrier(&self) {
        self.loads.set(self.loads.get().wrapping_add(1));
        match &mut *self.hook.borrow_mut() {
            Some(hook) => hook.bus_barrier(&self.words),
            None => self.words.bus_barrier(),
        }
    }
}

/// A hook: memory of a party that changes it while it is read.
#[derive(Clone, Debug)]
pub struct Lie {
    range: Range<u32>,
    script: Vec<u32>,
    state: u32,
    /// Of eight answers one is anything, and those up to this one are a bit away from the truth.
    wrong: u32,
}

impl Lie {
    /// Loads of `range` are answered with `script`, back to front, and when that is used up with the word's value, of
    /// which a bit or all may be changed, as `seed` says; 0: unchanged.
    #[must_use]
    pub const fn new(range: Range<u32>, script: Vec<u32>, seed: u32) -> Self {
        Self {
            range,
            script,
            state: seed,
            wrong: 4,
        }
    }

    /// No answer is true once the script is used up.
    #[must_use]
    pub fn always(self) -> Self {
        Self { wrong: 8, ..self }
    }

    fn answer(&mut self, truth: u32) -> u32 {
        if let Some(word) = self.script.pop() {
            return word;
        }
        if self.state == 0 {
            return truth;
        }
        // Marsaglia's xorshift.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        match self.state % 8 {
            0 => self.state,
            one if one < self.wrong => truth ^ (1 << ((self.state >> 8) % 32)),
            _ => truth,
        }
    }
}

impl Hook for Lie {
    fn load(&mut self, words: &[AtomicU32], at: WordIndex) -> u32 {
        let truth = words.load_acquire(at);
        if self.range.contains(&at.0) {
            self.answer(truth)
        } else {
            truth
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_of_the_party_are_counted_and_the_tests_own_are_not() {
        let words = Words::new(8);
        words.store_release(WordIndex(3), 7);
        assert_eq!((*words).load_acquire(WordIndex(3)), 7);
        assert_eq!(words.loads(), 0);
        let mut into = [0; 4];
        words.load_slice(WordIndex(2), &mut into);
        assert_eq!(into, [0, 7, 0, 0]);
        words.bus_barrier();
        assert_eq!(words.loads(), 5);
    }

    #[test]
    fn a_lie_follows_its_script_and_stays_in_its_range() {
        let words = Words::new(8);
        words.store_release(WordIndex(2), 5);
        words.hook(Lie::new(2..3, vec![9, 8], 0));
        let got = [0; 3].map(|_: u32| words.load_acquire(WordIndex(2)));
        assert_eq!(got, [8, 9, 5], "the script back to front, then the truth");
        words.hook(Lie::new(2..3, Vec::new(), 1).always());
        for _ in 0..1_000 {
            assert_ne!(words.load_acquire(WordIndex(2)), 5);
            assert_eq!(words.load_acquire(WordIndex(3)), 0);
        }
        assert_eq!((*words).load_acquire(WordIndex(2)), 5, "past the hook");
        words.unhook();
        assert_eq!(words.load_acquire(WordIndex(2)), 5);
    }

    #[test]
    fn a_hook_may_hold_stores_back() {
        struct Lost;
        impl Hook for Lost {
            fn store(&mut self, _: &[AtomicU32], _: WordIndex, _: u32) {}
        }
        let words = Words::new(1);
        words.hook(Lost);
        words.store_release(WordIndex(0), 1);
        words.unhook();
        assert_eq!(words.load_acquire(WordIndex(0)), 0);
    }
}
