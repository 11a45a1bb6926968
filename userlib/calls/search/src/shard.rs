//! A member's part of the tree: a state machine. Messages go in; messages to other members and leaves to simulate come out.
//!
//! A visit comes to a node by [`Message::Select`]. The node counts it for the child that it chooses, at once (the virtual loss), and
//! sends it there. Where a move has no child yet, a member drawn at random makes it ([`Message::Birth`]) and tells its number
//! ([`Message::Born`]); visits that choose it meanwhile wait at the parent. A visit ends at the node that it has made, with
//! playouts, and goes back by [`Message::Back`], from node to parent; what goes back from a node at one time goes together.

use crate::game::{Game, Outcome};
use crate::message::{Birth, Counted, Message, Place, Row, TOP};
use crate::node::{Node, Rules};
use netvm_calls::Argument;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Something that no member of the same search sends.
pub(crate) type Malformed = &'static str;

/// The place above the root: where visits begin, and come back to.
struct Top<G> {
    game: G,
    /// The root, and when it is not there yet, whether it is being made.
    root: Option<Place>,
    is_born: bool,
    owner: u32,
    deferred: u32,
    begun: u32,
    returned: u32,
    /// Of the player that begins.
    points: u32,
}

/// What other members have answered.
pub(crate) struct Answers {
    pub(crate) seen: Option<Vec<u8>>,
    pub(crate) advanced: Option<[u32; 4]>,
    pub(crate) counted: Vec<Option<Counted>>,
    /// A member that another one has lost, and why ([`why_of`](crate::message::why_of)).
    pub(crate) lost: Option<[u32; 2]>,
}

pub(crate) struct Shard<G: Game> {
    rank: u32,
    members: u32,
    rules: Rules,
    random: SmallRng,
    nodes: Vec<Option<Box<Node<G>>>>,
    free: Vec<u32>,
    /// Nodes whose visit waits for playouts.
    leaves: VecDeque<u32>,
    /// Nodes that have something to tell their parents.
    untold: Vec<u32>,
    /// Messages to itself.
    own: VecDeque<Message<G>>,
    /// Messages to others.
    pub(crate) out: Vec<(u32, Message<G>)>,
    top: Option<Top<G>>,
    pub(crate) answers: Answers,
    pub(crate) counts: Counted,
    /// Messages that it has acted on, its own included.
    pub(crate) steps: u32,
    /// The search is over.
    pub(crate) is_over: bool,
}

impl<G: Game> Shard<G> {
    pub(crate) fn new(rank: u32, members: u32) -> Self {
        Self {
            rank,
            members,
            rules: Rules {
                simulations: 1,
                exploration: 1.0,
            },
            random: SmallRng::seed_from_u64(0),
            nodes: Vec::new(),
            free: Vec::new(),
            leaves: VecDeque::new(),
            untold: Vec::new(),
            own: VecDeque::new(),
            out: Vec::new(),
            top: None,
            answers: Answers {
                seen: None,
                advanced: None,
                counted: vec![None; members as usize],
                lost: None,
            },
            counts: Counted::default(),
            steps: 0,
            is_over: false,
        }
    }

    pub(crate) const fn rules(&self) -> Rules {
        self.rules
    }

    /// Whether a message is a part of the work on the tree: the search is quiet when all such have been received.
    const fn is_work(message: &Message<G>) -> bool {
        matches!(
            message,
            Message::Select(_)
                | Message::Birth(_)
                | Message::Born(_)
                | Message::Back(_)
                | Message::Prune(_)
                | Message::Adopt(_)
        )
    }

    pub(crate) fn tell(&mut self, rank: u32, message: Message<G>) {
        if rank == self.rank {
            self.own.push_back(message);
        } else {
            self.counts.sent += u64::from(Self::is_work(&message));
            self.out.push((rank, message));
        }
    }

    /// Takes a message of another member, and does all that follows from it here.
    pub(crate) fn take(&mut self, from: u32, message: Message<G>) -> Result<(), Malformed> {
        self.counts.received += u64::from(Self::is_work(&message));
        self.react(from, message)?;
        self.settle()
    }

    /// Does what it has told itself to do.
    pub(crate) fn settle(&mut self) -> Result<(), Malformed> {
        while let Some(message) = self.own.pop_front() {
            self.react(self.rank, message)?;
        }
        Ok(())
    }

    fn node(&mut self, node: u32) -> Result<&mut Node<G>, Malformed> {
        let slot = self.nodes.get_mut(node as usize).and_then(Option::as_deref_mut);
        slot.ok_or("a node that it does not have")
    }

    fn react(&mut self, from: u32, message: Message<G>) -> Result<(), Malformed> {
        self.steps = self.steps.wrapping_add(1);
        match message {
            Message::Select(node) => self.select(node),
            Message::Birth(birth) => self.make(from, birth),
            Message::Born([TOP, _, node]) => self.root_is_born(from, node),
            Message::Born([node, child, at]) => self.born(from, node, child, at),
            Message::Back([TOP, _, visits, points]) => {
                let most = self.rules.most(visits);
                let top = self
                    .top
                    .as_mut()
                    .ok_or("the top of a tree that it does not have")?;
                let returned = top.returned.checked_add(visits);
                top.returned = returned
                    .filter(|&returned| returned <= top.begun && points <= most)
                    .ok_or("visits that have not begun")?;
                top.points = top.points.saturating_add(points);
                Ok(())
            }
            Message::Back([node, child, visits, points]) => {
                let rules = self.rules;
                let back = self.node(node)?.back(child as usize, visits, points, rules);
                back.ok_or("visits that have not begun")?;
                self.note(node, visits, points)
            }
            Message::Prune(node) => self.prune(node, None).map(drop),
            Message::Look(node) => {
                let seen = self.look(node)?;
                self.tell(0, Message::Seen(seen));
                Ok(())
            }
            Message::Advance(node, by) => {
                let at = self.node(node)?.moves.iter().position(|&other| other == by);
                let child = self.prune(node, Some(at.unwrap_or(usize::MAX)))?;
                self.tell(0, Message::Advanced(child.unwrap_or([0, TOP, 0, 0])));
                Ok(())
            }
            Message::Adopt(node) => {
                let parent = Place { rank: 0, node: TOP };
                let node = self.node(node)?;
                (node.parent, node.child) = (parent, 0);
                Ok(())
            }
            Message::Count => {
                let counted = self.count();
                self.tell(0, Message::Counted(counted));
                Ok(())
            }
            Message::Rules([simulations, exploration, seed]) => {
                if from != 0 {
                    return Err("rules, which are the first member's to make");
                }
                self.rules = Rules {
                    simulations: u32::try_from(simulations).map_err(|_| "too many simulations")?,
                    exploration: f32::from_bits(exploration as u32),
                };
                // Another one at each member.
                let own = u64::from(self.rank).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                self.random = SmallRng::seed_from_u64(seed.wrapping_add(own));
                Ok(())
            }
            Message::Seen(bytes) => {
                self.answers.seen = Some(bytes);
                Ok(())
            }
            Message::Advanced(advanced) => {
                self.answers.advanced = Some(advanced);
                Ok(())
            }
            Message::Counted(counted) => {
                if let Some(of) = self.answers.counted.get_mut(from as usize) {
                    *of = Some(counted);
                }
                Ok(())
            }
            Message::Lost(lost) if self.rank == 0 && (1..self.members).contains(&lost[0]) => {
                self.answers.lost.get_or_insert(lost);
                Ok(())
            }
            Message::Lost(_) => Err("the loss of a member, which is the first member's to hear"),
            Message::Quit if from == 0 => {
                self.is_over = true;
                Ok(())
            }
            Message::Quit => Err("the end, which is the first member's to say"),
        }
    }

    /// A visit comes to a node.
    fn select(&mut self, at: u32) -> Result<(), Malformed> {
        let (rules, members) = (self.rules, self.members);
        let slot = self.nodes.get_mut(at as usize).and_then(Option::as_deref_mut);
        let node = slot.ok_or("a node that it does not have")?;
        node.begun = node.begun.checked_add(1).ok_or("too many visits")?;
        if let Some(outcome) = node.outcome {
            node.evaluated += 1;
            let points = outcome.points().saturating_mul(rules.simulations);
            return self.note(at, 1, points);
        }
        if node.moves.is_empty() {
            node.game.moves(&mut node.moves);
            node.moves.shuffle(&mut self.random);
        }
        let made = node.children.len();
        if let Some(&by) = node.moves.get(made) {
            let owner = self.random.random_range(0..members);
            let child = node.children.add(owner) as u32;
            let mut game = node.game.clone();
            game.apply(by);
            let parent = at;
            self.tell(owner, Message::Birth(Birth { parent, child, game }));
            return Ok(());
        }
        if made == 0 {
            return Err("a game that is not over, and has no moves");
        }
        let child = node.children.best(node.begun, rules);
        if let Some(visits) = node.children.visits.get_mut(child) {
            *visits += 1;
        }
        match node.children.place(child) {
            Some(place) => self.tell(place.rank, Message::Select(place.node)),
            None => {
                if let Some(deferred) = node.children.deferred.get_mut(child) {
                    *deferred += 1;
                }
                self.counts.deferred += 1;
            }
        }
        Ok(())
    }

    /// Makes a node. The visit that has made it is evaluated here.
    fn make(&mut self, from: u32, birth: Birth<G>) -> Result<(), Malformed> {
        let Birth { parent, child, game } = birth;
        let place = Place {
            rank: from,
            node: parent,
        };
        let node = Box::new(Node::new(game, place, child));
        let outcome = node.outcome;
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                let at = u32::try_from(self.nodes.len()).ok().filter(|&at| at < TOP);
                self.nodes.push(None);
                at.ok_or("more nodes than have numbers")?
            }
        };
        if let Some(slot) = self.nodes.get_mut(at as usize) {
            *slot = Some(node);
        }
        self.counts.nodes += 1;
        self.tell(from, Message::Born([parent, child, at]));
        match outcome {
            None => self.leaves.push_back(at),
            Some(outcome) => {
                let points = outcome.points().saturating_mul(self.rules.simulations);
                self.node(at)?.evaluated += 1;
                self.note(at, 1, points)?;
            }
        }
        Ok(())
    }

    /// A child is there: visits that waited for it go on.
    fn born(&mut self, from: u32, node: u32, child: u32, at: u32) -> Result<(), Malformed> {
        let children = &mut self.node(node)?.children;
        let child = child as usize;
        let is_asked = children.owners.get(child) == Some(&from) && children.place(child).is_none();
        if !is_asked || at == TOP {
            return Err("a node that was not asked for");
        }
        if let Some(number) = children.nodes.get_mut(child) {
            *number = at;
        }
        let deferred = children.deferred.get_mut(child).map(std::mem::take);
        for _ in 0..deferred.unwrap_or(0) {
            self.tell(from, Message::Select(at));
        }
        Ok(())
    }

    fn root_is_born(&mut self, from: u32, node: u32) -> Result<(), Malformed> {
        let top = self
            .top
            .as_mut()
            .ok_or("the top of a tree that it does not have")?;
        if top.root.is_some() || !top.is_born || top.owner != from || node == TOP {
            return Err("a root that was not asked for");
        }
        top.root = Some(Place { rank: from, node });
        for _ in 0..std::mem::take(&mut top.deferred) {
            self.tell(from, Message::Select(node));
        }
        Ok(())
    }

    /// Visits of a node are over.
    fn note(&mut self, at: u32, visits: u32, points: u32) -> Result<(), Malformed> {
        let node = self.node(at)?;
        let is_new = node.untold.0 == 0;
        node.returned = node.returned.saturating_add(visits);
        node.untold.0 = node.untold.0.saturating_add(visits);
        node.untold.1 = node.untold.1.saturating_add(points);
        if is_new {
            self.untold.push(at);
        }
        Ok(())
    }

    /// Tells parents what has come back since the last time.
    pub(crate) fn report(&mut self) -> Result<(), Malformed> {
        // Parents that are here have something to tell then, too.
        while !self.untold.is_empty() {
            for at in std::mem::take(&mut self.untold) {
                let node = self.node(at)?;
                let (visits, points) = std::mem::take(&mut node.untold);
                let (parent, child) = (node.parent, node.child);
                self.tell(parent.rank, Message::Back([parent.node, child, visits, points]));
            }
            self.settle()?;
        }
        Ok(())
    }

    /// The next node whose visit waits for playouts.
    pub(crate) fn next_leaf(&mut self) -> Option<(u32, G)> {
        let at = self.leaves.pop_front()?;
        let game = self.node(at).ok()?.game.clone();
        Some((at, game))
    }

    /// Plays a leaf to its end, as often as the rules say. Its points, of the player that begins.
    pub(crate) fn simulate(&mut self, game: &G) -> u32 {
        let random = &mut self.random;
        (0..self.rules.simulations)
            .map(|_| Outcome::points(game.playout(random)))
            .sum()
    }

    /// A leaf's visit is evaluated.
    pub(crate) fn simulated(&mut self, at: u32, points: u32) -> Result<(), Malformed> {
        self.counts.simulations += u64::from(self.rules.simulations);
        self.counts.leaves += 1;
        self.node(at)?.evaluated += 1;
        self.note(at, 1, points)
    }

    /// Whether there is something to do without a message.
    pub(crate) fn is_busy(&self) -> bool {
        !self.leaves.is_empty() || !self.untold.is_empty()
    }

    /// Gives a node up, and with it all below, but for one child: where that is, its visits, and the points of the player that begins.
    fn prune(&mut self, at: u32, but: Option<usize>) -> Result<Option<[u32; 4]>, Malformed> {
        let node = self.node(at)?;
        if node.begun != node.returned {
            return Err("the end of a node that has visits under way");
        }
        let node = self.nodes.get_mut(at as usize).and_then(Option::take);
        let node = node.ok_or("a node that it does not have")?;
        self.free.push(at);
        self.counts.nodes -= 1;
        let mut kept = None;
        for child in 0..node.children.len() {
            let Some(place) = node.children.place(child) else {
                return Err("the end of a node that has a child under way");
            };
            if but == Some(child) {
                let of = |list: &[u32]| list.get(child).copied().unwrap_or(0);
                let (visits, points) = (of(&node.children.visits), of(&node.children.points));
                let firsts = match node.player {
                    crate::Player::First => points,
                    crate::Player::Second => self.rules.most(visits) - points,
                };
                kept = Some([place.rank, place.node, visits, firsts]);
            } else {
                self.tell(place.rank, Message::Prune(place.node));
            }
        }
        Ok(kept)
    }

    fn look(&mut self, at: u32) -> Result<Vec<u8>, Malformed> {
        let node = self.node(at)?;
        let mut bytes = Vec::new();
        [node.begun, node.returned, node.evaluated].put(&mut bytes);
        for child in 0..node.children.len() {
            let of = |list: &[u32]| list.get(child).copied().unwrap_or(0);
            let row = Row {
                visits: of(&node.children.visits),
                returned: of(&node.children.returned),
                points: of(&node.children.points),
            };
            bytes.extend_from_slice(row.as_bytes());
            if let Some(by) = node.moves.get(child) {
                by.put(&mut bytes);
            }
        }
        Ok(bytes)
    }

    /// What there is now, and what was done so far.
    fn count(&self) -> Counted {
        let nodes = || self.nodes.iter().flatten();
        Counted {
            unbalanced: nodes().filter(|node| !node.is_balanced()).count() as u64,
            evaluated: nodes().map(|node| u64::from(node.evaluated)).sum(),
            ..self.counts
        }
    }

    /// Begins a tree. The first visit makes its root.
    pub(crate) fn begin(&mut self, game: G, tree: Option<[u32; 4]>) {
        let [rank, node, visits, points] = tree.unwrap_or([0, TOP, 0, 0]);
        let root = (node != TOP).then_some(Place { rank, node });
        if let Some(root) = root {
            self.tell(root.rank, Message::Adopt(root.node));
        }
        self.top = Some(Top {
            game,
            root,
            is_born: root.is_some(),
            owner: rank,
            deferred: 0,
            begun: visits,
            returned: visits,
            points,
        });
    }

    /// The tree's root is no longer needed.
    pub(crate) fn forget(&mut self) {
        if let Some(root) = self.top.take().and_then(|top| top.root) {
            self.tell(root.rank, Message::Prune(root.node));
        }
    }

    /// A visit begins.
    pub(crate) fn visit(&mut self) -> Result<(), Malformed> {
        let owner = self.random.random_range(0..self.members);
        let top = self
            .top
            .as_mut()
            .ok_or("the top of a tree that it does not have")?;
        top.begun += 1;
        if let Some(root) = top.root {
            self.tell(root.rank, Message::Select(root.node));
        } else if top.is_born {
            top.deferred += 1;
            self.counts.deferred += 1;
        } else {
            (top.is_born, top.owner) = (true, owner);
            let game = top.game.clone();
            let (parent, child) = (TOP, 0);
            self.tell(owner, Message::Birth(Birth { parent, child, game }));
        }
        self.settle()
    }

    /// Visits of this tree that have begun, that are back, and the points that they have brought.
    pub(crate) fn visits(&self) -> (u32, u32, u32) {
        let top = self.top.as_ref();
        top.map_or((0, 0, 0), |top| (top.begun, top.returned, top.points))
    }

    pub(crate) fn root(&self) -> Option<Place> {
        self.top.as_ref().and_then(|top| top.root)
    }

    pub(crate) fn game(&self) -> Option<&G> {
        self.top.as_ref().map(|top| &top.game)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hex::Hex;
    use proptest::{prop_assert, proptest};
    use std::collections::BTreeMap;

    type Board = Hex<3>;

    /// Members whose messages lie on links, in their order, until they are delivered.
    struct All {
        shards: Vec<Shard<Board>>,
        links: BTreeMap<(u32, u32), VecDeque<Message<Board>>>,
        random: SmallRng,
    }

    impl All {
        fn new(members: u32, seed: u64) -> Self {
            let mut all = Self {
                shards: (0..members).map(|rank| Shard::new(rank, members)).collect(),
                links: BTreeMap::new(),
                random: SmallRng::seed_from_u64(seed),
            };
            for shard in &mut all.shards {
                let rules = Message::Rules([2, 1f32.to_bits().into(), seed]);
                shard.take(0, rules).unwrap();
            }
            all
        }

        fn collect(&mut self) {
            for (from, shard) in self.shards.iter_mut().enumerate() {
                for (to, message) in shard.out.drain(..) {
                    let link = self.links.entry((from as u32, to)).or_default();
                    link.push_back(message);
                }
            }
        }

        /// Does one thing of all that could happen. False if nothing can.
        fn step(&mut self) -> Result<bool, Malformed> {
            self.collect();
            let links = self.links.iter().filter(|(_, link)| !link.is_empty());
            let ways: Vec<_> = links.map(|(way, _)| *way).collect();
            let busy: Vec<_> = (0..self.shards.len())
                .filter(|&at| self.shards[at].is_busy())
                .collect();
            let choices = ways.len() + busy.len();
            if choices == 0 {
                return Ok(false);
            }
            let choice = self.random.random_range(0..choices);
            if let Some(&(from, to)) = ways.get(choice) {
                let message = self.links.get_mut(&(from, to)).unwrap().pop_front().unwrap();
                self.shards[to as usize].take(from, message)?;
                return Ok(true);
            }
            let shard = &mut self.shards[busy[choice - ways.len()]];
            match shard.next_leaf() {
                Some((at, game)) if self.random.random_bool(0.7) => {
                    let points = shard.simulate(&game);
                    shard.simulated(at, points)?;
                }
                Some((at, _)) => {
                    shard.leaves.push_back(at);
                    shard.report()?;
                }
                None => shard.report()?,
            }
            Ok(true)
        }

        fn check(&mut self, begun: u32) {
            let counts: Vec<_> = self.shards.iter().map(Shard::count).collect();
            let sum = |of: fn(&Counted) -> u64| counts.iter().map(of).sum::<u64>();
            assert_eq!(sum(|one| one.evaluated), u64::from(begun));
            assert_eq!(sum(|one| one.unbalanced), 0);
            assert_eq!(sum(|one| one.sent), sum(|one| one.received));
            let visits = self.shards[0].visits();
            assert_eq!((visits.0, visits.1), (begun, begun));
        }
    }

    proptest! {
        #[test]
        fn visits_are_conserved_in_every_order(
            members in 1u32..5, seed: u64, visits in 1u32..300, window in 1u32..40
        ) {
            let mut all = All::new(members, seed);
            all.shards[0].begin(Board::new(), None);
            let mut begun = 0;
            loop {
                let (_, returned, _) = all.shards[0].visits();
                if begun < visits && begun - returned < window {
                    all.shards[0].visit().unwrap();
                    begun += 1;
                } else if !all.step().unwrap() {
                    break;
                }
            }
            all.check(visits);
            // The root moves, its other children are forgotten, and the search goes on at once.
            let Place { rank, node } = all.shards[0].root().unwrap();
            all.shards[0].tell(rank, Message::Advance(node, 4));
            all.shards[0].settle().unwrap();
            let advanced = loop {
                if let Some(advanced) = all.shards[0].answers.advanced.take() {
                    break advanced;
                }
                prop_assert!(all.step().unwrap());
            };
            let mut game = Board::new();
            game.apply(4);
            all.shards[0].begin(game, Some(advanced));
            all.shards[0].settle().unwrap();
            for _ in 0..20 {
                all.shards[0].visit().unwrap();
            }
            while all.step().unwrap() {}
            all.check(advanced[2] + 20);
            // Nothing is left of a tree that is forgotten.
            all.shards[0].forget();
            all.shards[0].settle().unwrap();
            while all.step().unwrap() {}
            prop_assert!(all.shards.iter().all(|shard| shard.counts.nodes == 0));
        }
    }

    #[test]
    fn what_no_member_sends_is_refused() {
        let mut shard = Shard::<Board>::new(1, 2);
        let game = Board::new();
        let (parent, child) = (7, 3);
        shard
            .take(0, Message::Birth(Birth { parent, child, game }))
            .unwrap();
        assert!(matches!(shard.out.last(), Some((0, Message::Born([7, 3, 0])))));
        shard.take(0, Message::Select(0)).unwrap();
        for wrong in [
            Message::Select(1),
            Message::Select(TOP),
            Message::Born([0, 9, 1]),
            Message::Born([TOP, 0, 1]),
            Message::Back([0, 0, 2, 0]),
            Message::Back([0, 0, 1, 3]),
            Message::Back([0, 0, 0, 0]),
            Message::Back([TOP, 0, 1, 0]),
            Message::Prune(5),
            // Its visits are under way.
            Message::Prune(0),
            Message::Look(9),
            Message::Adopt(9),
        ] {
            assert!(shard.take(0, wrong).is_err());
        }
        assert!(shard.take(1, Message::Quit).is_err() && !shard.is_over);
        assert!(shard.take(0, Message::Lost([0, 0])).is_err());
        let mut first = Shard::<Board>::new(0, 2);
        assert!(first.take(1, Message::Lost([0, 0])).is_err());
        assert!(first.take(1, Message::Lost([2, 0])).is_err());
        assert!(first.answers.lost.is_none());
    }
}
