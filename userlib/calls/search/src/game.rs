//! What a game is, said by one thread for one thread.

use netvm_calls::{Argument, Plain};
use rand::Rng;
use std::fmt;

/// Who moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Player {
    /// The one that begins.
    First,
    /// The other.
    Second,
}

impl Player {
    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// How a game has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// One has won.
    Won(Player),
    /// Neither has.
    Draw,
}

impl Outcome {
    /// What it is worth to the player that begins, in halves of a win.
    pub(crate) const fn points(self) -> u32 {
        match self {
            Self::Won(Player::First) => 2,
            Self::Draw => 1,
            Self::Won(Player::Second) => 0,
        }
    }
}

/// A state of a game of two players that both know everything: all that a search needs to be told.
///
/// A state goes to other processes as the argument of a call, so it has bytes ([`Argument`]). Its signature tells programs
/// apart that play another game. Bytes that are no state of the game are refused by [`Argument::take`].
pub trait Game: Argument + Clone + Send + 'static {
    /// A move. Equal ones are the same move.
    type Move: Plain + Copy + PartialEq + fmt::Debug + Send + 'static;

    /// Whose turn it is.
    fn player(&self) -> Player;

    /// Appends the moves that may be made, each once. There is one at least, as long as the game is not over.
    fn moves(&self, to: &mut Vec<Self::Move>);

    /// Makes a move, one of [`moves`](Self::moves).
    fn apply(&mut self, by: Self::Move);

    /// How it has ended, if it has.
    fn outcome(&self) -> Option<Outcome>;

    /// Plays random moves up to the end. A game that knows a shorter way to an end of the same chances takes it.
    fn playout<R: Rng>(&self, random: &mut R) -> Outcome {
        let mut game = self.clone();
        let mut moves = Vec::new();
        loop {
            if let Some(outcome) = game.outcome() {
                return outcome;
            }
            moves.clear();
            game.moves(&mut moves);
            // Without an outcome and without a move: a game that keeps to its word has none such.
            if moves.is_empty() {
                return Outcome::Draw;
            }
            let at = random.random_range(0..moves.len());
            if let Some(&by) = moves.get(at) {
                game.apply(by);
            }
        }
    }
}
