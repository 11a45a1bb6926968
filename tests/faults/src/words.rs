//! Shared words of one thread, some of which may answer each load differently.

use netvm_abi::WordIndex;
use netvm_abi::words::SharedWords;
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Words, and what happens to loads of a part of them.
pub struct Words {
    words: Box<[Cell<u32>]>,
    lying: RefCell<Option<Lie>>,
}

/// How loads of a range are answered.
struct Lie {
    range: Range<u32>,
    script: Vec<u32>,
    state: u32,
}

impl Words {
    /// `len` words of zero.
    #[must_use]
    pub fn new(len: u32) -> Self {
        Self {
            words: (0..len).map(|_| Cell::new(0)).collect(),
            lying: RefCell::new(None),
        }
    }

    /// From now on loads of `range` are answered with `script`, back to front, and when that is used up with the
    /// word's value, of which a bit or all may be changed, as `seed` says; 0: unchanged.
    pub fn lie(&self, range: Range<u32>, script: Vec<u32>, seed: u32) {
        *self.lying.borrow_mut() = Some(Lie {
            range,
            script,
            state: seed,
        });
    }

    /// Loads tell the truth again.
    pub fn be_honest(&self) {
        *self.lying.borrow_mut() = None;
    }
}

impl Lie {
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
            1..4 => truth ^ (1 << ((self.state >> 8) % 32)),
            _ => truth,
        }
    }
}

impl SharedWords for Words {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        let truth = self.words.get(at.index()).map_or(u32::MAX, Cell::get);
        match &mut *self.lying.borrow_mut() {
            Some(lie) if lie.range.contains(&at.0) => lie.answer(truth),
            _ => truth,
        }
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        if let Some(word) = self.words.get(at.index()) {
            word.set(value);
        }
    }

    fn full_barrier(&self) {}

    fn bus_barrier(&self) {}
}
