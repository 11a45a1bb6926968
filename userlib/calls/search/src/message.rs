//! What members tell each other: one call each, without a result.

use crate::game::Game;
use netvm::Status;
use netvm_calls::{Address, Argument, Calls, Context, End, Function, Peer, Registry, signature};
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Stands for a link that has ended with a farewell, where a status says why.
const LEFT: u32 = u32::MAX;

/// Why a link has ended, as a member tells the first one.
pub(crate) const fn why_bits(why: End) -> u32 {
    match why {
        End::Gone(status) => status.code() as u32,
        _ => LEFT,
    }
}

/// The reverse of [`why_bits`].
pub(crate) fn why_of(bits: u32) -> End {
    u8::try_from(bits).map_or(End::Left, |code| End::Gone(Status::from_code(code)))
}

/// Stands for the node above the root, which the first member has.
pub(crate) const TOP: u32 = u32::MAX;

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which member has it.
    pub(crate) rank: u32,
    /// Its number there.
    pub(crate) node: u32,
}

/// A node is to be made.
pub(crate) struct Birth<G> {
    /// Its parent, at the member that asks.
    pub(crate) parent: u32,
    /// Which child of that it is.
    pub(crate) child: u32,
    /// The state of the game there.
    pub(crate) game: G,
}

/// What a member has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Counted {
    pub(crate) nodes: u64,
    pub(crate) unbalanced: u64,
    pub(crate) evaluated: u64,
    pub(crate) simulations: u64,
    pub(crate) deferred: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) leaves: u64,
}

impl netvm_calls::Plain for Counted {
    const LAYOUT: u64 =
        signature("nodes unbalanced evaluated simulations deferred sent received leaves: u64");
}

/// One child of the root, as its move's bytes follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Row {
    pub(crate) visits: u32,
    pub(crate) returned: u32,
    pub(crate) points: u32,
}

/// What is told.
pub(crate) enum Message<G: Game> {
    /// The rules: playouts at a leaf, the constant of UCB, the seed of all randomness. Before anything else.
    Rules([u64; 3]),
    /// A visit comes to this node.
    Select(u32),
    /// A visit comes to a node that is made by it.
    Birth(Birth<G>),
    /// A node's child is made: the node, which child, the child's number.
    Born([u32; 3]),
    /// Visits are back: the node, which child, how many, the points of the player that begins.
    Back([u32; 4]),
    /// This node and those below it are no longer needed.
    Prune(u32),
    /// The first member wants to know what the root's children have.
    Look(u32),
    /// The answer: the root's own counts (begun, returned, evaluated), and a row for each child.
    Seen(Vec<u8>),
    /// The root moves to the child by this move. The old one and its other children are no longer needed.
    Advance(u32, G::Move),
    /// The answer: the new root's member, number, visits and points; a number of [`TOP`] if there is none.
    Advanced([u32; 4]),
    /// This node is the root.
    Adopt(u32),
    /// The first member wants to know what is counted here.
    Count,
    /// The answer.
    Counted(Counted),
    /// A link to another member than the first has ended: which member, and why ([`why_bits`]).
    Lost([u32; 2]),
    /// The search is over.
    Quit,
}

const RULES: Function<[u64; 3]> = Function::new("search.rules");
const SELECT: Function<u32> = Function::new("search.select");
const BORN: Function<[u32; 3]> = Function::new("search.born");
const BACK: Function<[u32; 4]> = Function::new("search.back");
const PRUNE: Function<u32> = Function::new("search.prune");
const LOOK: Function<u32> = Function::new("search.look");
pub(crate) const SEEN: Function<Vec<u8>> = Function::new("search.seen");
const ADVANCED: Function<[u32; 4]> = Function::new("search.advanced");
const ADOPT: Function<u32> = Function::new("search.adopt");
const COUNT: Function<()> = Function::new("search.count");
const COUNTED: Function<Counted> = Function::new("search.counted");
const LOST: Function<[u32; 2]> = Function::new("search.lost");
const QUIT: Function<()> = Function::new("search.quit");

/// Its signature tells games apart.
const fn birth<G: Game>() -> Function<Birth<G>> {
    Function::new("search.birth")
}

const fn advance<G: Game>() -> Function<(u32, G::Move)> {
    Function::new("search.advance")
}

impl<G: Game> Argument for Birth<G> {
    const SIGNATURE: u64 = signature("Birth { parent: u32, child: u32, game }") ^ G::SIGNATURE.rotate_left(1);

    fn put(&self, to: &mut Vec<u8>) {
        [self.parent, self.child].put(to);
        self.game.put(to);
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let (head, game) = bytes.split_at_checked(size_of::<[u32; 2]>())?;
        let [parent, child] = <[u32; 2]>::take(head)?;
        let game = G::take(game)?;
        Some(Self { parent, child, game })
    }
}

/// What has come, in its order, and from where. Functions only put it here: what is to be done may have to wait for room.
pub(crate) struct Inbox<G: Game>(Arc<Mutex<Come<G>>>);

/// Messages, and where they come from.
pub(crate) type Come<G> = Vec<(Address, Message<G>)>;

impl<G: Game> Clone for Inbox<G> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<G: Game> Inbox<G> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    fn put(&self, context: &Context<'_>, message: Message<G>) {
        let mut messages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push((context.from(), message));
    }

    /// Exchanges what has come for an empty list.
    pub(crate) fn take(&self, empty: &mut Come<G>) {
        let mut messages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *messages, empty);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The functions of a member.
    pub(crate) fn functions(&self) -> netvm_calls::Result<Registry> {
        let mut all = Registry::new();
        // The most frequent first: they are found soonest.
        self.add(&mut all, &SELECT, Message::Select)?;
        self.add(&mut all, &BACK, Message::Back)?;
        self.add(&mut all, &birth::<G>(), Message::Birth)?;
        self.add(&mut all, &BORN, Message::Born)?;
        self.add(&mut all, &PRUNE, Message::Prune)?;
        self.add(&mut all, &RULES, Message::Rules)?;
        self.add(&mut all, &LOOK, Message::Look)?;
        self.add(&mut all, &SEEN, Message::Seen)?;
        self.add(&mut all, &advance::<G>(), |(node, by)| Message::Advance(node, by))?;
        self.add(&mut all, &ADVANCED, Message::Advanced)?;
        self.add(&mut all, &ADOPT, Message::Adopt)?;
        self.add(&mut all, &COUNT, |()| Message::Count)?;
        self.add(&mut all, &COUNTED, Message::Counted)?;
        self.add(&mut all, &LOST, Message::Lost)?;
        self.add(&mut all, &QUIT, |()| Message::Quit)?;
        Ok(all)
    }

    fn add<A: Argument + 'static>(
        &self,
        all: &mut Registry,
        function: &Function<A>,
        message: fn(A) -> Message<G>,
    ) -> netvm_calls::Result<()> {
        let inbox = self.clone();
        all.add(function, move |context, argument| {
            inbox.put(context, message(argument));
        })
    }
}

/// Tells a member something.
pub(crate) fn tell<G: Game>(calls: &mut Calls, to: Peer, message: &Message<G>) -> netvm_calls::Result<()> {
    match message {
        Message::Rules(rules) => calls.call(to, &RULES, rules),
        Message::Select(node) => calls.call(to, &SELECT, node),
        Message::Birth(of) => calls.call(to, &birth::<G>(), of),
        Message::Born(born) => calls.call(to, &BORN, born),
        Message::Back(back) => calls.call(to, &BACK, back),
        Message::Prune(node) => calls.call(to, &PRUNE, node),
        Message::Look(node) => calls.call(to, &LOOK, node),
        Message::Seen(bytes) => calls.call(to, &SEEN, bytes),
        Message::Advance(node, by) => calls.call(to, &advance::<G>(), &(*node, *by)),
        Message::Advanced(advanced) => calls.call(to, &ADVANCED, advanced),
        Message::Adopt(node) => calls.call(to, &ADOPT, node),
        Message::Count => calls.call(to, &COUNT, &()),
        Message::Counted(counted) => calls.call(to, &COUNTED, counted),
        Message::Lost(lost) => calls.call(to, &LOST, lost),
        Message::Quit => calls.call(to, &QUIT, &()),
    }
}
