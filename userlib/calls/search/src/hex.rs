//! Hex: two players put stones on a board of hexagons, in turn. The first wins by a chain from top to bottom, the second by one
//! from left to right. On a full board exactly one of them has a chain.

use crate::game::{Game, Outcome, Player};
use netvm_calls::{Argument, signature};
use rand::Rng;
use std::fmt;

/// The size that the game is usually searched at.
pub type Hex11 = Hex<11>;

/// A board of `N` by `N` cells, up to 11 by 11. A move is a cell: row times `N` plus column.
///
/// A cell touches those beside it in its row, those above and below it, the one above to the right, and the one below to the
/// left.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hex<const N: usize> {
    /// A bit for each cell, for each player.
    stones: [u128; 2],
}

impl<const N: usize> Default for Hex<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Hex<N> {
    /// Cells of the board.
    pub const CELLS: usize = {
        assert!(N >= 1 && N <= 11, "a board has 1 to 11 rows");
        N * N
    };
    const ALL: u128 = u128::MAX >> (128 - Self::CELLS);
    const TOP: u128 = Self::ALL >> (Self::CELLS - N);
    const BOTTOM: u128 = Self::TOP << (Self::CELLS - N);
    const LEFT: u128 = {
        let mut column = 0;
        let mut row = 0;
        while row < N {
            column |= 1 << (row * N);
            row += 1;
        }
        column
    };
    const RIGHT: u128 = Self::LEFT << (N - 1);

    /// An empty board.
    #[must_use]
    pub const fn new() -> Self {
        Self { stones: [0; 2] }
    }

    /// The stone in a cell.
    #[must_use]
    pub const fn stone(&self, cell: u8) -> Option<Player> {
        if cell as usize >= Self::CELLS {
            None
        } else if self.stones[0] >> cell & 1 == 1 {
            Some(Player::First)
        } else if self.stones[1] >> cell & 1 == 1 {
            Some(Player::Second)
        } else {
            None
        }
    }

    /// Whether a player has a chain.
    #[must_use]
    pub fn is_connected(&self, player: Player) -> bool {
        match player {
            Player::First => Self::reaches(self.stones[0], Self::TOP, Self::BOTTOM),
            Player::Second => Self::reaches(self.stones[1], Self::LEFT, Self::RIGHT),
        }
    }

    const fn empty(&self) -> u128 {
        !(self.stones[0] | self.stones[1]) & Self::ALL
    }

    /// Whether stones of one edge reach another.
    fn reaches(stones: u128, from: u128, to: u128) -> bool {
        if stones & to == 0 {
            return false;
        }
        let (not_left, not_right) = (stones & !Self::LEFT, stones & !Self::RIGHT);
        let mut reached = stones & from;
        loop {
            if reached & to != 0 {
                return true;
            }
            // On a board of one cell these shift by 0.
            let grown = reached
                | (reached << 1 | reached >> (N - 1)) & not_left
                | (reached >> 1 | reached << (N - 1)) & not_right
                | (reached << N | reached >> N) & stones;
            if grown == reached {
                return false;
            }
            reached = grown;
        }
    }
}

impl<const N: usize> Argument for Hex<N> {
    const SIGNATURE: u64 = signature("Hex { first: u128, second: u128 }").wrapping_add(N as u64);

    fn put(&self, to: &mut Vec<u8>) {
        self.stones.put(to);
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let stones = <[u128; 2]>::take(bytes)?;
        let [first, second] = stones.map(u128::count_ones);
        let is_board = (stones[0] | stones[1]) & !Self::ALL == 0 && stones[0] & stones[1] == 0;
        (is_board && (first == second || first == second + 1)).then_some(Self { stones })
    }
}

impl<const N: usize> Game for Hex<N> {
    type Move = u8;

    fn player(&self) -> Player {
        if self.stones[0].count_ones() == self.stones[1].count_ones() {
            Player::First
        } else {
            Player::Second
        }
    }

    fn moves(&self, to: &mut Vec<u8>) {
        to.extend(cells(self.empty()));
    }

    fn apply(&mut self, by: u8) {
        let player = self.player();
        if self.empty() >> by.min(127) & 1 == 1 {
            self.stones[player as usize] |= 1 << by;
        }
    }

    fn outcome(&self) -> Option<Outcome> {
        // Only the move before can have ended it.
        let last = self.player().other();
        self.is_connected(last).then_some(Outcome::Won(last))
    }

    /// Fills the board at random, and judges it once. Moves that follow a chain change nothing: the other player can have none.
    fn playout<R: Rng>(&self, random: &mut R) -> Outcome {
        let mut free = [0u8; 128];
        let mut count = 0;
        for (place, cell) in free.iter_mut().zip(cells(self.empty())) {
            *place = cell;
            count += 1;
        }
        let of_first = match self.player() {
            Player::First => count - count / 2,
            Player::Second => count / 2,
        };
        // As many as the fewer stones are drawn, each of those that are left with the same chance (up to 2^-25 of it).
        let fewer = of_first.min(count - of_first);
        let mut drawn = 0u128;
        for at in 0..fewer {
            let span = (count - at) as u64;
            let other = at + ((u64::from(random.next_u32()) * span) >> 32) as usize;
            free.swap(at, other);
            if let Some(&cell) = free.get(at) {
                drawn |= 1 << cell;
            }
        }
        let firsts = if fewer == of_first {
            drawn
        } else {
            self.empty() & !drawn
        };
        if Self::reaches(self.stones[0] | firsts, Self::TOP, Self::BOTTOM) {
            Outcome::Won(Player::First)
        } else {
            Outcome::Won(Player::Second)
        }
    }
}

/// The cells of a set.
fn cells(set: u128) -> impl Iterator<Item = u8> {
    let halves = [(set as u64, 0u8), ((set >> 64) as u64, 64)];
    halves.into_iter().flat_map(|(mut half, base)| {
        std::iter::from_fn(move || {
            let cell = half.trailing_zeros() as u8;
            (half != 0).then(|| {
                half &= half - 1;
                base + cell
            })
        })
    })
}

impl<const N: usize> fmt::Display for Hex<N> {
    /// The board, each row half a cell further to the right: X the first player's, from top to bottom, O the second's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in 0..N {
            write!(f, "{:row$}", "")?;
            for column in 0..N {
                let stone = match self.stone((row * N + column) as u8) {
                    Some(Player::First) => 'X',
                    Some(Player::Second) => 'O',
                    None => '.',
                };
                write!(f, "{stone} ")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hex {N}x{N}:\n{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;

    /// A board of a drawing, whose lines may be indented.
    fn board<const N: usize>(drawing: &str) -> Hex<N> {
        let marks: Vec<char> = drawing.chars().filter(|mark| !mark.is_whitespace()).collect();
        assert_eq!(marks.len(), N * N);
        let of = |wanted| {
            let at = |(cell, &mark): (usize, &char)| if mark == wanted { 1 << cell } else { 0 };
            marks
                .iter()
                .enumerate()
                .map(at)
                .fold(0, |all, bit: u128| all | bit)
        };
        Hex {
            stones: [of('X'), of('O')],
        }
    }

    /// Whether a player has a chain, found cell by cell.
    fn slowly<const N: usize>(board: &Hex<N>, player: Player) -> bool {
        let mut open: Vec<(i32, i32)> = (0..N as i32)
            .map(|at| if player == Player::First { (0, at) } else { (at, 0) })
            .collect();
        let mut seen = std::collections::HashSet::new();
        while let Some((row, column)) = open.pop() {
            let is_inside = (0..N as i32).contains(&row) && (0..N as i32).contains(&column);
            let cell = row * N as i32 + column;
            if !is_inside || board.stone(cell as u8) != Some(player) || !seen.insert(cell) {
                continue;
            }
            let end = if player == Player::First { row } else { column };
            if end == N as i32 - 1 {
                return true;
            }
            for (down, right) in [(0, 1), (0, -1), (1, 0), (-1, 0), (1, -1), (-1, 1)] {
                open.push((row + down, column + right));
            }
        }
        false
    }

    #[test]
    fn chains_of_known_positions() {
        let straight = board::<3>(
            "X O .
              X O .
               X . .",
        );
        assert!(straight.is_connected(Player::First) && !straight.is_connected(Player::Second));
        assert_eq!(straight.outcome(), Some(Outcome::Won(Player::First)));
        // Below to the left is a neighbour, below to the right is none.
        let left = board::<3>(
            ". O X
              O X .
               X O .",
        );
        assert!(left.is_connected(Player::First));
        let right = board::<3>(
            "X O .
              . X O
               . . X",
        );
        assert!(!right.is_connected(Player::First) && right.outcome().is_none());
        // The ends of rows do not touch.
        let around = board::<4>(
            ". . . X
              O X . .
               X O . .
                . O X O",
        );
        assert!(!around.is_connected(Player::First) && !around.is_connected(Player::Second));
        let across = board::<4>(
            ". X O O
              X O . X
               O X . .
                X X . .",
        );
        assert!(across.is_connected(Player::Second));
    }

    #[test]
    fn the_smallest_board_is_won_by_the_first_stone() {
        let mut one = Hex::<1>::new();
        assert_eq!(one.outcome(), None);
        one.apply(0);
        assert_eq!(one.outcome(), Some(Outcome::Won(Player::First)));
    }

    #[test]
    fn players_take_turns_and_cells_are_taken_once() {
        let mut game = Hex11::new();
        assert_eq!(game.player(), Player::First);
        game.apply(60);
        assert_eq!(
            (game.player(), game.stone(60)),
            (Player::Second, Some(Player::First))
        );
        let before = game;
        game.apply(60);
        game.apply(121);
        game.apply(255);
        assert_eq!(game, before, "a move that cannot be made changes nothing");
        let mut moves = Vec::new();
        game.moves(&mut moves);
        assert_eq!(moves.len(), 120);
        assert!(!moves.contains(&60));
    }

    #[test]
    fn bytes_that_are_no_board_are_refused() {
        let bytes = |stones: [u128; 2]| {
            let mut bytes = Vec::new();
            stones.put(&mut bytes);
            bytes
        };
        let game = board::<3>("X O . . X . . . .");
        let mut put = Vec::new();
        game.put(&mut put);
        assert_eq!(Hex::<3>::take(&put), Some(game));
        assert_eq!(Hex::<3>::take(&put[1..]), None);
        for wrong in [[1, 1], [3, 0], [0, 1], [1 << 9, 0]] {
            assert_eq!(Hex::<3>::take(&bytes(wrong)), None, "{wrong:?}");
        }
        assert_ne!(Hex::<3>::SIGNATURE, Hex::<4>::SIGNATURE);
    }

    #[test]
    fn playouts_are_fair_on_an_empty_board_and_true_on_a_won_one() {
        let mut random = SmallRng::seed_from_u64(7);
        let wins = |game: &Hex11, random: &mut SmallRng| {
            let won = |_: &u32| game.playout(random) == Outcome::Won(Player::First);
            (0..4000).filter(won).count()
        };
        // The first player has a stone more.
        let empty = wins(&Hex11::new(), &mut random);
        assert!((1950..2350).contains(&empty), "{empty} of 4000");
        let mut won = Hex11::new();
        for row in 0..11 {
            won.apply(row * 11 + 5);
            won.apply(row * 11 + 7);
        }
        assert_eq!(won.outcome(), None, "it is the first player's turn");
        assert!(won.is_connected(Player::First));
        assert_eq!(wins(&won, &mut random), 4000);
    }

    /// A chance of each cell: filled boards as the quick playout makes them have them all alike.
    #[test]
    fn quick_playouts_end_as_slow_ones_do() {
        let mut random = SmallRng::seed_from_u64(11);
        let game = board::<5>(
            "X O . . X
              . O X . .
               . . . X O
                O . X . .
                 X . . O .",
        );
        let (mut quick, mut slow) = (0, 0);
        for _ in 0..20_000 {
            quick += u32::from(game.playout(&mut random) == Outcome::Won(Player::First));
            let mut played = game;
            let mut moves = Vec::new();
            played.moves(&mut moves);
            moves.shuffle(&mut random);
            let mut moves = moves.into_iter();
            while played.outcome().is_none() {
                played.apply(moves.next().unwrap());
            }
            slow += u32::from(played.outcome() == Some(Outcome::Won(Player::First)));
        }
        // 70 is the deviation of one sum, 100 that of their difference.
        assert!(quick.abs_diff(slow) < 600, "{quick} and {slow} of 20000");
    }

    proptest! {
        #[test]
        fn a_full_board_has_exactly_one_winner(
            order in Just((0u8..121).collect::<Vec<_>>()).prop_shuffle()
        ) {
            let mut game = Hex11::new();
            let mut first_end = None;
            for cell in order {
                game.apply(cell);
                prop_assert_eq!(game.is_connected(Player::First), slowly(&game, Player::First));
                prop_assert_eq!(game.is_connected(Player::Second), slowly(&game, Player::Second));
                first_end = first_end.or(game.outcome());
            }
            prop_assert!(game.is_connected(Player::First) != game.is_connected(Player::Second));
            // The one that had a chain first has it still.
            let end = if game.is_connected(Player::First) { Player::First } else { Player::Second };
            prop_assert_eq!(first_end, Some(Outcome::Won(end)));
        }
    }
}
