//! A node of the tree, and the choice among its children.

use crate::game::{Game, Outcome, Player};
use crate::message::Place;

/// A child whose address is not known yet.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// How positions are judged, the same at every member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rules {
    /// Playouts at a leaf for each visit.
    pub(crate) simulations: u32,
    /// The constant of UCB.
    pub(crate) exploration: f32,
}

impl Rules {
    /// The most points that so many visits can bring: two for each playout.
    pub(crate) const fn most(self, visits: u32) -> u32 {
        visits.saturating_mul(self.simulations.saturating_mul(2))
    }
}

/// What a node knows of its children, in the order of its moves. Each number has a list of its own, so that the choice among
/// them is made by vectors.
#[derive(Default)]
pub(crate) struct Children {
    /// The members that have them.
    pub(crate) owners: Vec<u32>,
    /// Their numbers there.
    pub(crate) nodes: Vec<u32>,
    /// Visits that went there: a visit counts as lost until it is back.
    pub(crate) visits: Vec<u32>,
    /// Visits that are back.
    pub(crate) returned: Vec<u32>,
    /// Points that they brought to the player whose turn it is at the node.
    pub(crate) points: Vec<u32>,
    /// Visits that wait until the child's address is known.
    pub(crate) deferred: Vec<u32>,
    values: Vec<f32>,
}

impl Children {
    /// Adds one that is being made. Its first visit is under way there.
    pub(crate) fn add(&mut self, owner: u32) -> usize {
        self.owners.push(owner);
        self.nodes.push(UNKNOWN);
        self.visits.push(1);
        self.returned.push(0);
        self.points.push(0);
        self.deferred.push(0);
        self.values.push(0.0);
        self.owners.len() - 1
    }

    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    /// Where a child is, once that is known.
    pub(crate) fn place(&self, child: usize) -> Option<Place> {
        let (rank, node) = (*self.owners.get(child)?, *self.nodes.get(child)?);
        (node != UNKNOWN).then_some(Place { rank, node })
    }

    /// The child with the highest bound, wins / visits + c * sqrt(ln N / visits), where visits and N count playouts.
    pub(crate) fn best(&mut self, of_node: u32, rules: Rules) -> usize {
        let simulations = rules.simulations as f32;
        let of_points = 1.0 / (2.0 * simulations);
        let ln = (of_node as f32 * simulations).max(1.0).ln();
        let explores = rules.exploration * (ln / simulations).sqrt();
        let counts = self.points.iter().zip(&self.visits);
        for (value, (&points, &visits)) in self.values.iter_mut().zip(counts) {
            let each = 1.0 / visits as f32;
            *value = points as f32 * each * of_points + explores * each.sqrt();
        }
        let mut best = 0;
        let mut highest = f32::NEG_INFINITY;
        for (at, &value) in self.values.iter().enumerate() {
            if value > highest {
                (best, highest) = (at, value);
            }
        }
        best
    }
}

/// A node.
pub(crate) struct Node<G: Game> {
    pub(crate) game: G,
    pub(crate) player: Player,
    pub(crate) outcome: Option<Outcome>,
    /// Its parent.
    pub(crate) parent: Place,
    /// Which child of that it is.
    pub(crate) child: u32,
    /// Its moves in a random order, from the first visit on that goes beyond it. Child after child is made in this order.
    pub(crate) moves: Vec<G::Move>,
    pub(crate) children: Children,
    /// Visits that came.
    pub(crate) begun: u32,
    /// Visits that are over.
    pub(crate) returned: u32,
    /// Visits that ended here: of a leaf, and of an end of the game.
    pub(crate) evaluated: u32,
    /// Visits and points that are to be told to the parent.
    pub(crate) untold: (u32, u32),
}

impl<G: Game> Node<G> {
    pub(crate) fn new(game: G, parent: Place, child: u32) -> Self {
        Self {
            player: game.player(),
            outcome: game.outcome(),
            game,
            parent,
            child,
            moves: Vec::new(),
            children: Children::default(),
            begun: 1,
            returned: 0,
            evaluated: 0,
            untold: (0, 0),
        }
    }

    /// Visits are back from a child, with points of the player that begins. Nothing if they cannot be.
    pub(crate) fn back(&mut self, child: usize, visits: u32, points: u32, rules: Rules) -> Option<()> {
        let children = &mut self.children;
        let returned = children.returned.get(child)?.checked_add(visits)?;
        let most = rules.most(visits);
        if returned > *children.visits.get(child)? || points > most || visits == 0 {
            return None;
        }
        *children.returned.get_mut(child)? = returned;
        let own = match self.player {
            Player::First => points,
            Player::Second => most - points,
        };
        let of_child = children.points.get_mut(child)?;
        *of_child = of_child.saturating_add(own);
        Some(())
    }

    /// Whether every visit that came is over, and went one way: it ended here, or at one child.
    pub(crate) fn is_balanced(&self) -> bool {
        let children: u64 = self.children.visits.iter().copied().map(u64::from).sum();
        self.begun == self.returned
            && u64::from(self.begun) == u64::from(self.evaluated) + children
            && self.children.visits == self.children.returned
            && self.children.deferred.iter().all(|&deferred| deferred == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        simulations: 16,
        exploration: 1.0,
    };

    fn children(of: &[(u32, u32)]) -> Children {
        let mut children = Children::default();
        for &(visits, points) in of {
            let at = children.add(0);
            children.visits[at] = visits;
            children.points[at] = points;
        }
        children
    }

    #[test]
    fn the_highest_bound_is_chosen() {
        // As often visited: the better one.
        assert_eq!(children(&[(10, 100), (10, 101), (10, 99)]).best(30, RULES), 1);
        // As good: the one that was visited less.
        assert_eq!(children(&[(20, 200), (10, 100)]).best(30, RULES), 1);
        // By hand: 0.5 + sqrt(ln 480 / 320) = 0.639, 0.6 + sqrt(ln 480 / 160) = 0.796, 0.59375 + 0.1964 = 0.790.
        assert_eq!(children(&[(20, 320), (10, 192)]).best(30, RULES), 1);
        assert_eq!(children(&[(10, 192), (10, 190)]).best(30, RULES), 0);
        // A visit under way counts as lost.
        assert_eq!(children(&[(11, 192), (10, 190)]).best(30, RULES), 1);
    }

    #[test]
    fn without_exploration_the_best_mean_is_chosen() {
        let rules = Rules {
            exploration: 0.0,
            ..RULES
        };
        assert_eq!(children(&[(1000, 17_000), (1, 16)]).best(1001, rules), 0);
    }
}
