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
