//! A game searched by members on three nodes (`netvm-search`): the application of remote calls counts each visit once.

use super::calls::{address, small};
use crate::env::Env;
use crate::outcome::{Outcome, Trouble, due, right};
use crate::side::worse;
use netvm_calls::{Argument, signature};
use netvm_search::{Error, Game, Member, MemberConfig, Outcome as End, Player, Search, SearchConfig};

/// Playouts at each leaf.
const SIMULATIONS: u32 = 2;

/// A heap, from which the players take 1 to 3 in turn. To take the last is to win.
#[derive(Clone, Copy, Debug)]
struct Heap {
    left: u32,
    taken: u32,
}

impl Argument for Heap {
    const SIGNATURE: u64 = signature("Heap { left: u32, turns: u32 }");

    fn put(&self, to: &mut Vec<u8>) {
        [self.left, self.taken].put(to);
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let [left, taken] = <[u32; 2]>::take(bytes)?;
        Some(Self { left, taken })
    }
}

impl Game for Heap {
    type Move = u8;

    fn player(&self) -> Player {
        if self.taken.is_multiple_of(2) {
            Player::First
        } else {
            Player::Second
        }
    }

    fn moves(&self, to: &mut Vec<u8>) {
        to.extend((1..=3).filter(|&by| u32::from(by) <= self.left));
    }

    fn apply(&mut self, by: u8) {
        self.left = self.left.saturating_sub(u32::from(by));
        self.taken += 1;
    }

    fn outcome(&self) -> Option<End> {
        (self.left == 0).then(|| End::Won(self.player().other()))
    }
}

/// Rings so small that calls wait for room.
fn config(env: &Env) -> MemberConfig {
    MemberConfig::default().calls(small()).patience(env.patience)
}

/// Members, one on each node.
const MEMBERS: usize = 3;

fn members(env: &Env) -> Vec<netvm_calls::Address> {
    (0..MEMBERS).map(|node| address(env, node, 0)).collect()
}

/// Searches, makes the best move, and searches on, to the end of the game.
fn first(env: &Env) -> Outcome {
    let visits = env.scaled(12);
    let rules = SearchConfig::default()
        .simulations(SIMULATIONS)
        .seed(env.seed)
        .member(config(env));
    let mut search = Search::open(env.open(0, 0)?, &members(env), rules)?;
    let heap = Heap { left: 6, taken: 0 };
    search.begin(heap)?;
    while let Some(game) = search.game().copied()
        && game.outcome().is_none()
    {
        let known = search.phase(0)?.visits;
        let phase = search.phase(visits)?;
        right!(
            phase.visits == known + visits,
            "{known} and {visits} visits: {phase:?}"
        );
        let tried: u32 = phase.choices.iter().map(|choice| choice.visits).sum();
        // One has made the position, and has ended there.
        right!(
            tried + 1 == phase.visits,
            "visits got lost below the root: {phase:?}"
        );
        let Some(by) = phase.best() else {
            return Err(Trouble::Wrong(format!("no move was tried: {game:?}")));
        };
        search.census()?;
        search.advance(by)?;
    }
    // One game more, after all that is left of the first was given up.
    search.begin(heap)?;
    let phase = search.phase(2 * visits)?;
    right!(phase.visits == 2 * visits, "{visits} visits twice: {phase:?}");
    let census = search.census()?;
    right!(census.evaluated == u64::from(2 * visits), "{census:?}");
    let members = search.members();
    due!(members == MEMBERS, "{members} members");
    Ok(search.end()?)
}

pub(super) fn search_shared(env: &Env) -> Outcome {
    let others: Vec<_> = (1..MEMBERS)
        .map(|node| {
            env.spawn(node, "member", move |env| {
                let member = Member::<Heap>::open(env.open(node, 0)?, &members(env), config(env))?;
                Ok(member.run()?)
            })
        })
        .collect();
    let mine = first(env);
    others
        .into_iter()
        .fold(mine, |mine, other| worse(mine, other.join()))
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error {
            Error::Calls(error) => error.into(),
            Error::Lost { why, .. } => netvm_calls::Error::Ended(why).into(),
            Error::CallFailed { why, .. } => netvm_calls::Error::Failed(why).into(),
            Error::Missing { .. } => Self::Failed(netvm::Error::TimedOut),
            error @ (Error::NotConserved { .. } | Error::Malformed { .. }) => Self::Wrong(error.to_string()),
            error => Self::Unexpected(error.to_string()),
        }
    }
}
