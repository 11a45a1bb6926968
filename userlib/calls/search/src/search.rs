//! The first member: it begins visits, counts those that are back, and reads what the root's children have.

use crate::config::SearchConfig;
use crate::error::{Error, Result};
use crate::game::Game;
use crate::member::{Done, Member};
use crate::message::{Counted, Message, Place, Row};
use netvm::Port;
use netvm_calls::{Address, Argument, CallsStats, End};
use zerocopy::FromBytes;

/// Visits under way for each member at least, if there may be: so that it is not idle.
const LEAST: u32 = 4;
/// Visits under way count as lost, and must not outweigh what is known: this part of the tree's visits at most.
const SHARE: u32 = 16;
/// A member that stands still keeps its visits under way, while others go on and choose without them. So visits begin in rounds, each of
/// this part of the tree's visits, and the next one waits for the last of them.
const ROUND: u32 = 4;

/// One move of the root, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice<M> {
    /// The move.
    pub by: M,
    /// Visits that took it.
    pub visits: u32,
    /// The mean of their playouts, for the player whose turn it is: 0 lost, 1 won.
    pub value: f64,
}

/// What a phase has come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase<M> {
    /// Visits of the root, in this phase and before.
    pub visits: u32,
    /// The mean of all playouts, for the player whose turn it is.
    pub value: f64,
    /// The moves that were tried: most visits first, then the best value.
    pub choices: Vec<Choice<M>>,
}

impl<M: Copy> Phase<M> {
    /// The move with the most visits; among such, with the most wins. Nothing if the game is over.
    #[must_use]
    pub fn best(&self) -> Option<M> {
        self.choices.first().map(|choice| choice.by)
    }
}

/// The whole tree, and what the search has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Nodes of the tree, at all members.
    pub nodes: u64,
    /// Visits that have ended at one of them.
    pub evaluated: u64,
    /// Playouts so far, for this and for other trees.
    pub simulations: u64,
    /// Visits so far that waited for a node that was being made.
    pub deferred: u64,
    /// Calls between members so far that carry the search.
    pub calls: u64,
    /// The fewest and the most leaves that a member has simulated so far.
    pub leaves: (u64, u64),
}

/// A search, at its first member.
pub struct Search<G: Game> {
    member: Member<G>,
    config: SearchConfig,
}

impl<G: Game> Search<G> {
    /// Makes this port's thread the first member, waits until all others are there, and tells them how to search.
    ///
    /// # Errors
    /// Those of [`Member::open`]; [`Error::Configuration`], also when this port is not the first of the list.
    pub fn open(port: Port, members: &[Address], config: SearchConfig) -> Result<Self> {
        config.check()?;
        if members.first() != Some(&Address::new(port.node().id(), port.id())) {
            return Err(Error::Configuration("the first of the list of members searches"));
        }
        let member = Member::open(port, members, config.member.clone())?;
        let mut search = Self { member, config };
        let simulations = u64::from(search.config.simulations);
        let exploration = u64::from(search.config.exploration.to_bits());
        let rules = [simulations, exploration, search.config.seed];
        for rank in 0..search.member.members() as u32 {
            search.member.shard.tell(rank, Message::Rules(rules));
        }
        // Nothing else may come to a member before.
        search.sweep()?;
        Ok(search)
    }

    /// Begins a game in this state, and forgets the one before.
    ///
    /// # Errors
    /// [`Error::Lost`] and others that end the search.
    pub fn begin(&mut self, game: G) -> Result<()> {
        self.member.shard.forget();
        self.member.shard.begin(game, None);
        self.settle()
    }

    /// The state of the game.
    #[must_use]
    pub fn game(&self) -> Option<&G> {
        self.member.shard.game()
    }

    /// Makes so many visits more, waits until all are back, and reads what the root's children have.
    ///
    /// # Errors
    /// [`Error::NoGame`], [`Error::TooManyVisits`]; [`Error::Lost`] and others that end the search.
    pub fn phase(&mut self, visits: u32) -> Result<Phase<G::Move>> {
        let limit = u32::MAX / (2 * self.config.simulations);
        let (begun, ..) = self.member.shard.visits();
        let target = begun.checked_add(visits).filter(|&target| target <= limit);
        let target = target.ok_or(Error::TooManyVisits { limit })?;
        if self.member.shard.game().is_none() {
            return Err(Error::NoGame);
        }
        let least = LEAST.saturating_mul(self.member.members() as u32);
        let most = self.config.window.saturating_mul(self.member.members() as u32);
        let mut end_of_round = begun;
        loop {
            let (mut begun, returned, _) = self.member.shard.visits();
            if returned == target {
                return self.look();
            }
            if returned == end_of_round {
                let round = least.max(returned / ROUND);
                end_of_round = returned.saturating_add(round).min(target);
            }
            let window = least.max(returned / SHARE).min(most);
            while begun < end_of_round && begun - returned < window {
                let began = self.member.shard.visit();
                self.own(began)?;
                begun += 1;
            }
            self.member.turn()?;
        }
    }

    /// Makes a move: the search goes on below it, with all that is known of it. The rest of the tree is forgotten.
    ///
    /// # Errors
    /// [`Error::NoGame`], [`Error::IllegalMove`]; [`Error::Lost`] and others that end the search.
    pub fn advance(&mut self, by: G::Move) -> Result<()> {
        let mut game = self.game().ok_or(Error::NoGame)?.clone();
        let mut moves = Vec::new();
        if game.outcome().is_none() {
            game.moves(&mut moves);
        }
        if !moves.contains(&by) {
            return Err(Error::IllegalMove);
        }
        game.apply(by);
        let mut tree = None;
        if let Some(Place { rank, node }) = self.member.shard.root() {
            self.member.shard.tell(rank, Message::Advance(node, by));
            tree = Some(self.answer(|member| member.shard.answers.advanced.take())?);
        }
        self.member.shard.begin(game, tree);
        self.settle()
    }

    /// Counts the whole tree, and checks that no visit was lost: all that has begun has ended at one node, and every node has sent on
    /// or ended what came to it.
    ///
    /// # Errors
    /// [`Error::NotConserved`]; [`Error::Lost`] and others that end the search.
    pub fn census(&mut self) -> Result<Census> {
        let mut before = None;
        // Nodes that were given up may still be on their way out. Twice the same, and all that was sent received: then nothing is.
        let all = loop {
            let all = self.sweep()?;
            let sum = |of: fn(&Counted) -> u64| all.iter().map(of).sum::<u64>();
            let now = (sum(|one| one.sent), sum(|one| one.received));
            if now.0 == now.1 && before == Some(now) {
                break all;
            }
            before = Some(now);
        };
        let sum = |of: fn(&Counted) -> u64| all.iter().map(of).sum::<u64>();
        let census = Census {
            nodes: sum(|one| one.nodes),
            evaluated: sum(|one| one.evaluated),
            simulations: sum(|one| one.simulations),
            deferred: sum(|one| one.deferred),
            calls: sum(|one| one.sent),
            leaves: (
                all.iter().map(|one| one.leaves).min().unwrap_or(0),
                all.iter().map(|one| one.leaves).max().unwrap_or(0),
            ),
        };
        let (begun, returned, _) = self.member.shard.visits();
        let is_balanced =
            begun == returned && u64::from(begun) == census.evaluated && sum(|one| one.unbalanced) == 0;
        if is_balanced {
            Ok(census)
        } else {
            Err(Error::NotConserved {
                begun: begun.into(),
                returned: returned.into(),
                root: census.evaluated,
            })
        }
    }

    /// Ends the search, at all members.
    ///
    /// # Errors
    /// [`Error::Lost`] if one has died.
    pub fn end(mut self) -> Result<()> {
        for rank in self.member.other_members() {
            self.member.shard.tell(rank, Message::Quit);
        }
        self.settle()?;
        let mut left = 1;
        while left < self.member.members() {
            let Some((peer, why)) = self.member.calls.take_ended() else {
                self.member.calls.serve(netvm::Timeout::Never)?;
                continue;
            };
            match self.member.lost(peer, why) {
                Some(Error::Lost { why: End::Left, .. }) => left += 1,
                Some(lost) => return Err(lost),
                None => {}
            }
        }
        Ok(())
    }

    /// How many members there are.
    #[must_use]
    pub const fn members(&self) -> usize {
        self.member.members()
    }

    /// What this member's endpoint has done.
    #[must_use]
    pub const fn stats(&self) -> CallsStats {
        self.member.stats()
    }

    /// As [`Member::pace`].
    pub fn pace(&mut self, pace: impl FnMut(Done) + Send + 'static) {
        self.member.pace(pace);
    }

    /// Does what it has told itself, and sends what there is to send.
    fn settle(&mut self) -> Result<()> {
        let settled = self.member.shard.settle();
        self.own(settled)?;
        self.member.send().map(drop)
    }

    fn own(&self, done: std::result::Result<(), &'static str>) -> Result<()> {
        done.map_err(|what| Error::Malformed {
            rank: self.member.rank(),
            what,
        })
    }

    /// Waits for an answer.
    fn answer<T>(&mut self, mut of: impl FnMut(&mut Member<G>) -> Option<T>) -> Result<T> {
        self.settle()?;
        loop {
            if let Some(answer) = of(&mut self.member) {
                return Ok(answer);
            }
            self.member.turn()?;
        }
    }

    /// Asks every member what it has counted.
    fn sweep(&mut self) -> Result<Vec<Counted>> {
        let members = self.member.members();
        self.member.shard.answers.counted = vec![None; members];
        for rank in 0..members as u32 {
            self.member.shard.tell(rank, Message::Count);
        }
        self.answer(|member| {
            let counted = &mut member.shard.answers.counted;
            counted.iter().copied().collect::<Option<Vec<_>>>()
        })
    }

    /// Reads what the root's children have.
    fn look(&mut self) -> Result<Phase<G::Move>> {
        let Some(Place { rank, node }) = self.member.shard.root() else {
            let (visits, value, choices) = (0, 0.5, Vec::new());
            return Ok(Phase {
                visits,
                value,
                choices,
            });
        };
        self.member.shard.tell(rank, Message::Look(node));
        let bytes = self.answer(|member| member.shard.answers.seen.take())?;
        let rank = rank as usize;
        let what = "what is no list of moves";
        let ([begun, returned, evaluated], rows) =
            read::<G::Move>(&bytes).ok_or(Error::Malformed { rank, what })?;
        let (at_top, back, points) = self.member.shard.visits();
        let taken: u64 = rows.iter().map(|(_, row)| u64::from(row.visits)).sum();
        let is_back = rows.iter().all(|(_, row)| row.visits == row.returned);
        let all = taken + u64::from(evaluated);
        if [at_top, back, returned] != [begun; 3] || all != u64::from(begun) || !is_back {
            return Err(Error::NotConserved {
                begun: at_top.into(),
                returned: back.into(),
                root: all,
            });
        }
        let most = |visits: u32| 2.0 * f64::from(visits) * f64::from(self.config.simulations);
        let mut choices: Vec<_> = rows
            .into_iter()
            .map(|(by, row)| Choice {
                by,
                visits: row.visits,
                value: f64::from(row.points) / most(row.visits),
            })
            .collect();
        choices.sort_by(|one, other| {
            let wins = other.value.total_cmp(&one.value);
            other.visits.cmp(&one.visits).then(wins)
        });
        let firsts = f64::from(points) / most(begun);
        Ok(Phase {
            visits: begun,
            value: match self.game().map(Game::player) {
                Some(crate::Player::Second) => 1.0 - firsts,
                _ => firsts,
            },
            choices,
        })
    }
}

/// The root's own counts (begun, returned, evaluated), and its children.
type Seen<M> = ([u32; 3], Vec<(M, Row)>);

/// What a root's member has answered.
fn read<M: netvm_calls::Plain>(bytes: &[u8]) -> Option<Seen<M>> {
    let (own, rest) = bytes.split_at_checked(size_of::<[u32; 3]>())?;
    let own = <[u32; 3]>::take(own)?;
    let each = size_of::<Row>() + size_of::<M>();
    let rows = rest.chunks(each).map(|chunk| {
        let (row, by) = Row::read_from_prefix(chunk).ok()?;
        (row.visits > 0).then_some(())?;
        Some((M::take(by)?, row))
    });
    Some((own, rows.collect::<Option<_>>()?))
}

impl<G: Game> std::fmt::Debug for Search<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Search")
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}
