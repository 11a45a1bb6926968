//! A member of a search: an endpoint, its part of the tree, and what moves messages between both.

use crate::config::MemberConfig;
use crate::error::{Error, Result};
use crate::game::Game;
use crate::message::{Come, Inbox, Message, tell, why_bits, why_of};
use crate::shard::{Malformed, Shard};
use netvm::{Nanos, Port, Timeout};
use netvm_calls::{Address, Calls, CallsStats, End, Peer};
use std::fmt;

/// The name of the members' endpoints.
const NAME: &str = "netvm search";

/// So many ports an export can name. Where there are more members every port may call, and calls of others are passed over.
const ADMITTED: usize = 16;

/// What a member has done in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// Playouts of a leaf: of one visit, or none.
    pub playouts: u32,
    /// Steps of visits, each from one node to the next, down or up.
    pub steps: u32,
}

type Pace = Box<dyn FnMut(Done) + Send>;

/// A member that has a part of the tree, and does what the first member's search brings it. Of one thread, as its port is.
pub struct Member<G: Game> {
    pub(crate) calls: Calls,
    pub(crate) shard: Shard<G>,
    members: Vec<Address>,
    rank: usize,
    /// The links to the others.
    peers: Vec<Option<Peer>>,
    inbox: Inbox<G>,
    /// The list that is exchanged with the inbox.
    come: Come<G>,
    /// A member other than the first that cannot be reached any more: the first one is told.
    left: Option<(usize, End)>,
    pace: Option<Pace>,
}

impl<G: Game> Member<G> {
    /// Makes this port's thread a member, and waits until it is linked with all others. They are listed in the same order at each
    /// of them; the first one searches.
    ///
    /// # Errors
    /// [`Error::Configuration`] when the list is not one, or this port is not in it; [`Error::Missing`]; [`Error::Lost`]; those of
    /// the calls.
    pub fn open(port: Port, members: &[Address], config: MemberConfig) -> Result<Self> {
        let here = Address::new(port.node().id(), port.id());
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::Configuration("a member is listed twice"));
        }
        let rank = members.iter().position(|&member| member == here);
        let rank = rank.ok_or(Error::Configuration("this port is not in the list of members"))?;
        let mut calls = config.calls;
        if members.len() <= ADMITTED {
            for member in members {
                calls = calls.from_port(member.node, member.port);
            }
        }
        let inbox = Inbox::new();
        let calls = Calls::open(
            port,
            NAME,
            inbox.functions()?,
            calls.connect_timeout(config.patience),
        )?;
        let mut member = Self {
            calls,
            shard: Shard::new(rank as u32, members.len() as u32),
            members: members.to_vec(),
            rank,
            peers: vec![None; members.len()],
            inbox,
            come: Vec::new(),
            left: None,
            pace: None,
        };
        member.link(config.patience)?;
        Ok(member)
    }

    /// Links itself with all others: to those before it in the list, and from those behind it.
    fn link(&mut self, patience: std::time::Duration) -> Result<()> {
        let now = self.calls.port().now();
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let deadline = Nanos(now.0.saturating_add(patience));
        for rank in 0..self.rank {
            let peer = self.calls.begin_connect(self.address(rank))?;
            if let Some(of) = self.peers.get_mut(rank) {
                *of = Some(peer);
            }
        }
        loop {
            while let Some(peer) = self.calls.take_accepted() {
                let from = self.calls.address_of(peer)?;
                let rank = self.members.iter().position(|&member| member == from);
                if let Some(of) = rank.and_then(|rank| self.peers.get_mut(rank)) {
                    of.get_or_insert(peer);
                }
            }
            let missing =
                (0..self.members.len()).find(|&rank| rank != self.rank && self.peers[rank].is_none());
            // A link that does not come up in time ends by itself.
            while let Some((peer, why)) = self.calls.take_ended() {
                if let Some(lost) = self.lost(peer, why) {
                    return Err(lost);
                }
            }
            let Some(rank) = missing else { return Ok(()) };
            let now = self.calls.port().now();
            if now >= deadline {
                let address = self.address(rank);
                return Err(Error::Missing { rank, address });
            }
            let left = std::time::Duration::from_nanos(deadline.0 - now.0);
            match self.calls.serve(left) {
                Ok(()) | Err(netvm_calls::Error::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Does this member's part until the search is over.
    ///
    /// # Errors
    /// [`Error::Lost`] when another member has gone before; [`Error::Malformed`], [`Error::CallFailed`]; those of the calls.
    pub fn run(mut self) -> Result<()> {
        if self.rank == 0 {
            return Err(Error::Configuration(
                "the first member searches: make a `Search` of it",
            ));
        }
        while !self.shard.is_over {
            self.turn()?;
        }
        Ok(())
    }

    /// Its place in the list of members.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// How many members there are.
    #[must_use]
    pub const fn members(&self) -> usize {
        self.members.len()
    }

    /// What its endpoint has done.
    #[must_use]
    pub const fn stats(&self) -> CallsStats {
        self.calls.stats()
    }

    /// Runs something after each turn in which this member has done something: to give way to others, or to let time pass where
    /// time is modelled.
    pub fn pace(&mut self, pace: impl FnMut(Done) + Send + 'static) {
        self.pace = Some(Box::new(pace));
    }

    pub(crate) fn address(&self, rank: usize) -> Address {
        self.members.get(rank).copied().unwrap_or(Address::new(0, 0))
    }

    pub(crate) fn other_members(&self) -> impl Iterator<Item = u32> + use<G> {
        let rank = self.rank;
        (0..self.members.len())
            .filter(move |&other| other != rank)
            .map(|other| other as u32)
    }

    /// Does what there is to do; waits for more if there is nothing.
    pub(crate) fn turn(&mut self) -> Result<()> {
        let steps = self.shard.steps;
        let mut playouts = 0;
        let mut did = self.calls.progress()?;
        did |= self.take_messages()?;
        if let Some((at, game)) = self.shard.next_leaf() {
            let points = self.shard.simulate(&game);
            playouts = self.shard.rules().simulations;
            let done = self.shard.simulated(at, points);
            self.check(self.rank, done)?;
        }
        // Also what ends here, without a message, is a step on.
        did |= self.shard.is_busy();
        let told = self.shard.report();
        self.check(self.rank, told)?;
        let steps = self.shard.steps.wrapping_sub(steps);
        if let Some(pace) = &mut self.pace
            && (playouts > 0 || steps > 0)
        {
            pace(Done { playouts, steps });
        }
        self.hear_of_losses()?;
        did |= self.send()?;
        if self.shard.is_over {
            return Ok(());
        }
        self.look_after_links()?;
        did |= self.send()?;
        if !did && self.inbox.is_empty() && !self.shard.is_busy() {
            self.calls.serve(Timeout::Never)?;
        }
        Ok(())
    }

    /// Whether something has come.
    fn take_messages(&mut self) -> Result<bool> {
        self.inbox.take(&mut self.come);
        let mut come = std::mem::take(&mut self.come);
        let did = !come.is_empty();
        for (from, message) in come.drain(..) {
            if let Some(rank) = self.members.iter().position(|&member| member == from) {
                let taken = self.shard.take(rank as u32, message);
                self.check(rank, taken)?;
            }
        }
        self.come = come;
        Ok(did)
    }

    /// Whether there was something to send.
    pub(crate) fn send(&mut self) -> Result<bool> {
        let mut did = false;
        while !self.shard.out.is_empty() {
            did = true;
            let mut out = std::mem::take(&mut self.shard.out);
            for (rank, message) in out.drain(..) {
                let rank = rank as usize;
                let Some(Some(peer)) = self.peers.get(rank).copied() else {
                    continue;
                };
                match tell(&mut self.calls, peer, &message) {
                    Ok(()) => {}
                    Err(netvm_calls::Error::Ended(why)) => self.miss(rank, why)?,
                    Err(error) => return Err(error.into()),
                }
            }
            // Its room is used again, unless a loss is to be told.
            if self.shard.out.is_empty() {
                self.shard.out = out;
            }
        }
        Ok(did)
    }

    /// A link has ended. Between two members of which neither is the first that is well when the search is over: some leave before others
    /// have heard of it, or have got to know them. If it is not, only the first member can tell, which may still reach both.
    fn miss(&mut self, rank: usize, why: End) -> Result<()> {
        if is_absent(why) && rank != 0 && self.rank != 0 {
            if self.left.is_none() {
                self.left = Some((rank, why));
                self.shard.tell(0, Message::Lost([rank as u32, why_bits(why)]));
            }
            return Ok(());
        }
        // The first member has left because of what it was told.
        let (rank, why) = self.left.filter(|_| rank == 0).unwrap_or((rank, why));
        let address = self.address(rank);
        Err(Error::Lost { rank, address, why })
    }

    /// What another member has told of a third.
    fn hear_of_losses(&mut self) -> Result<()> {
        let Some([rank, why]) = self.shard.answers.lost.take() else {
            return Ok(());
        };
        let (rank, why) = (rank as usize, why_of(why));
        let address = self.address(rank);
        Err(Error::Lost { rank, address, why })
    }

    fn check(&self, rank: usize, done: std::result::Result<(), Malformed>) -> Result<()> {
        done.map_err(|what| Error::Malformed { rank, what })
    }

    /// Hears of links that have ended, and of calls that have failed.
    fn look_after_links(&mut self) -> Result<()> {
        while let Some((peer, why)) = self.calls.take_ended() {
            if let Some(rank) = self.rank_of(peer) {
                self.miss(rank, why)?;
            }
        }
        if let Some(failure) = self.calls.take_failure() {
            let (function, why) = (failure.function, failure.why);
            return Err(Error::CallFailed { function, why });
        }
        Ok(())
    }

    fn rank_of(&self, peer: Peer) -> Option<usize> {
        self.peers.iter().position(|&other| other == Some(peer))
    }

    /// The member whose link has ended; nothing if it was of no member.
    pub(crate) fn lost(&self, peer: Peer, why: End) -> Option<Error> {
        let rank = self.rank_of(peer)?;
        let address = self.address(rank);
        Some(Error::Lost { rank, address, why })
    }
}

/// Whether the other side may only have left earlier than this one.
const fn is_absent(why: End) -> bool {
    matches!(why, End::Left | End::Gone(_))
}

impl<G: Game> fmt::Debug for Member<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("rank", &self.rank)
            .field("members", &self.members)
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex::Hex11;
    use crate::message::SEEN;
    use crate::{Search, SearchConfig};
    use netvm::PortConfig;
    use netvm_process::SoftNode;
    use std::time::Duration;

    /// Longest wait for another thread.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Members of whose links one ends, while the first member reaches both of its ends.
    #[test]
    fn two_members_that_lose_each_other_end_the_search() {
        let node = SoftNode::builder().start().unwrap();
        let mut ports: Vec<_> = (0..3)
            .map(|_| Port::open(&node.node(), PortConfig::default()).unwrap())
            .collect();
        let members: Vec<_> = ports
            .iter()
            .map(|port| Address::new(port.node().id(), port.id()))
            .collect();
        let config = || MemberConfig::default().patience(PATIENCE);
        let open = move |port, members: &[Address]| Member::<Hex11>::open(port, members, config()).unwrap();
        let (third, second) = (ports.pop().unwrap(), ports.pop().unwrap());
        let (first, address) = (ports.pop().unwrap(), members[2]);
        let (to_second, to_third) = (members.clone(), members.clone());
        let second = std::thread::spawn(move || open(second, &to_second).run());
        let third = std::thread::spawn(move || {
            let mut member = open(third, &to_third);
            let second = member.peers[1].take().unwrap();
            // It has an answer when the link is up at both ends.
            member.calls.ask(second, &SEEN, &Vec::new(), PATIENCE).unwrap();
            member.calls.close(second, PATIENCE).unwrap();
            member.run()
        });
        let rules = SearchConfig::default().member(config());
        let end = (|| {
            let mut search = Search::<Hex11>::open(first, &members, rules)?;
            search.begin(Hex11::new())?;
            search.phase(10_000)
        })();
        let (rank, why) = (2, End::Left);
        let lost = Error::Lost { rank, address, why };
        assert_eq!(end.unwrap_err(), lost);
        assert_eq!(second.join().unwrap().unwrap_err(), lost);
        let end = third.join().unwrap().unwrap_err();
        assert!(matches!(end, Error::Lost { rank: 0, .. }), "{end}");
    }
}
