//! A 64-bit word that programs of several nodes change.

use super::linear::Object;
use super::{Histories, Kept, Kind};

/// What is asked of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordOp {
    /// A read, of a remote program or of the one whose memory it is.
    Load,
    /// A plain write.
    Store(u64),
    /// Fetch-and-add.
    Add(u64),
    /// Swap.
    Swap(u64),
    /// Compare-and-swap: stores the second if the word is the first.
    CompareSwap(u64, u64),
}

/// The word.
#[derive(Clone, Debug)]
pub(crate) struct Word;

impl Kept for Word {
    const NAME: &'static str = "word";
    /// What fresh memory holds.
    const NEW: u64 = 0;

    fn kept(histories: &mut Histories) -> &mut Kind<Self> {
        &mut histories.words
    }
}

impl Object for Word {
    type State = u64;
    type Op = WordOp;
    /// The old value; nothing for a write, which does not tell it.
    type Answer = Option<u64>;

    fn step(state: &u64, op: &WordOp, answer: Option<&Option<u64>>) -> Option<u64> {
        let told = answer.copied().flatten();
        if told.is_some_and(|old| old != *state) {
            return None;
        }
        Some(match *op {
            WordOp::Load => *state,
            WordOp::Store(new) | WordOp::Swap(new) => new,
            WordOp::Add(count) => state.wrapping_add(count),
            WordOp::CompareSwap(expected, new) if *state == expected => new,
            WordOp::CompareSwap(..) => *state,
        })
    }
}
