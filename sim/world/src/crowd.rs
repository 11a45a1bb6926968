//! Greedy ports beside a modest one: how long the modest one waits, against a bound that is derived.
//!
//! All ports are on one node of a modelled world. Each greedy port posts as fast as its queue takes: small and large
//! writes, reads, appends and atomics, to its own node and to two others. The modest port does the same operations, one
//! at a time.
//!
//! **The bound.** Let `P` be the number of greedy ports, [`PIPELINE`] the budget of a turn in commands, [`WINDOW`] the
//! messages of a node pair under way. Of the operations alone in the same world, let `TAKES` be the longest that one takes,
//! and `KEEPS` the longest that one keeps cards, bus and link busy, all added up. A command that stands before another
//! delays it by `KEEPS` at most.
//!
//! - *From post to send.* The command's own turn comes after at most one turn of each greedy port: `P * PIPELINE` commands
//!   (`nic-firmware/core/src/turns.rs` says why). What it lacks then is held by messages under way, or by ports that got it
//!   in those turns; it comes back as messages end, at most `WINDOW` of each of the three nodes. So the command leaves
//!   within `(P * PIPELINE + 3 * WINDOW) * KEEPS + TAKES`.
//! - *From post to completion.* At the other card stand at most `WINDOW` messages of each node before it:
//!   `3 * WINDOW * KEEPS` more. An operation of two commands (a write and the flush that waits for it) waits for two
//!   turns.
//!
//! A port that keeps others from their turns breaks this bound whatever the factors are: the greedy ports never stop.

use crate::check::Modest;
use crate::report::Failure;
use crate::stand::{Actor, Findings, Gate, SOON, Stand};
use crate::timing::CostModel;
use netvm::{
    Access, Error, OpId, Port, Region, RemoteSegment, Result, SharedConfig, SharedReceiver, SharedSender,
};
use netvm_abi::control::Modes;
use netvm_abi::status::Status;
use netvm_abi::{Nanos, NodeId, PAGE_SIZE, PortId};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Commands of a port that its card takes in a turn.
pub const PIPELINE: u64 = 8;
/// Messages under way from one node to another: the window of a modelled world.
pub const WINDOW: u64 = 64;
/// Nodes of the world.
const NODES: u16 = 3;
/// Where all its ports post.
const TARGETS: [u16; NODES as usize] = [1, 2, HOME];
const HOME: u16 = 0;
const SERVER: u16 = 1;
const MODEST: u16 = 2;
const FIRST_GREEDY: u16 = 3;
/// Operations of the modest port: rounds of each kind to each target.
const ROUNDS: usize = 4;

/// What a port posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Eight bytes in the descriptor.
    SmallWrite,
    /// A page, from a page.
    LargeWrite,
    /// A page, into a page.
    Read,
    /// To a shared queue.
    Append,
    /// A fetch-and-add.
    Atomic,
}

/// All of them.
pub const KINDS: [Kind; 5] = [
    Kind::SmallWrite,
    Kind::LargeWrite,
    Kind::Read,
    Kind::Append,
    Kind::Atomic,
];

/// How long a modest port may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// From a command's post to when it has left.
    pub sends: Nanos,
    /// From an operation's post to its completion.
    pub ends: Nanos,
}

/// What the operations of this world need without greedy ports: of each number the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alone {
    /// From the post to the completion.
    pub takes: Nanos,
    /// Cards, bus and link are busy with it, added up.
    pub keeps: Nanos,
}

impl Bound {
    /// Beside so many greedy ports, in a world whose operations need this alone.
    #[must_use]
    pub const fn derived(greedy: u16, alone: Alone) -> Self {
        let under_way = NODES as u64 * WINDOW * alone.keeps.0;
        let turns = greedy as u64 * PIPELINE * alone.keeps.0;
        let sends = turns + under_way + alone.takes.0;
        Self {
            sends: Nanos(sends),
            ends: Nanos(2 * sends + under_way),
        }
    }

    /// None.
    const NONE: Self = Self {
        sends: Nanos::MAX,
        ends: Nanos::MAX,
    };
}

/// What the modest port has waited.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// The longest, from a command's post to when it has left.
    pub sends: Nanos,
    /// The longest, from an operation's post to its completion.
    pub ends: Nanos,
    /// The most instructions that all cards carried out during one operation.
    instructions: u32,
    /// Commands that the greedy ports have posted beside it.
    pub greedy: u64,
}

struct Shared {
    kinds: Vec<Kind>,
    greedy: u16,
    /// The greedy ports are open; the modest one comes last.
    opened: Gate,
    ready: Gate,
    joined: Gate,
    over: Gate,
    left: Gate,
    commands: Cell<u64>,
    instructions: Cell<u32>,
    ends: Findings<u64>,
    bound: Bound,
}

/// What the operations need when no greedy port is there.
///
/// # Errors
/// [`Failure`] when an operation failed or a promise was broken.
pub fn alone(model: &CostModel) -> std::result::Result<Alone, Box<Failure>> {
    let waits = play(model, &[], 0, Bound::NONE)?;
    // A page crosses a bus, the link and a bus.
    let page = u64::from(PAGE_SIZE);
    let moves =
        |bytes_per_micro: u64, fixed: Nanos| Nanos(page * 1_000 / bytes_per_micro.max(1)).after(fixed);
    let bus = moves(model.dma_bytes_per_micro, model.dma_read)
        .after(moves(model.dma_bytes_per_micro, model.dma_write));
    let link = moves(model.link_bytes_per_micro, Nanos(0));
    Ok(Alone {
        takes: waits.ends,
        keeps: model.card_time(waits.instructions).after(bus).after(link),
    })
}

/// Puts a modest port beside so many greedy ones, which post these kinds in turn, and holds its waits against the bound.
///
/// # Errors
/// [`Failure`] when it waited for longer, an operation failed or a promise was broken.
pub fn play(
    model: &CostModel,
    kinds: &[Kind],
    greedy: u16,
    bound: Bound,
) -> std::result::Result<Waits, Box<Failure>> {
    let shared = Rc::new(Shared {
        kinds: kinds.to_vec(),
        greedy,
        opened: Gate::default(),
        ready: Gate::default(),
        joined: Gate::default(),
        over: Gate::default(),
        left: Gate::default(),
        commands: Cell::new(0),
        instructions: Cell::new(0),
        ends: Findings::default(),
        bound,
    });
    let mut stand = Stand::new(model, NODES);
    for node in TARGETS {
        let at = shared.clone();
        stand.process(node, "server", move |actor| server(actor, &at));
    }
    let at = shared.clone();
    stand.process(HOME, "modest", move |actor| modest(actor, &at));
    for number in FIRST_GREEDY..FIRST_GREEDY + greedy {
        let at = shared.clone();
        stand.process(HOME, "greedy", move |actor| greed(actor, number, &at));
    }
    let longest = Rc::<Cell<Nanos>>::default();
    let watched = Modest {
        node: NodeId(HOME),
        port: PortId(MODEST),
        bound: bound.sends,
        longest: longest.clone(),
    };
    stand.watch(watched);
    stand.play(greedy + 2)?;
    let ends = shared.ends.borrow();
    Ok(Waits {
        sends: longest.get(),
        ends: Nanos(ends.iter().copied().max().unwrap_or_default()),
        instructions: shared.instructions.get(),
        greedy: shared.commands.get(),
    })
}

impl Shared {
    fn clients(&self) -> usize {
        usize::from(self.greedy) + 1
    }

    fn everyone(&self) -> usize {
        self.clients() + usize::from(NODES)
    }
}

fn server(actor: &Actor, shared: &Shared) -> Result<()> {
    let port = actor.open(SERVER)?;
    let memory = port.alloc(place_of(MODEST + 1 + shared.greedy))?;
    for place in 0..=MODEST + shared.greedy {
        memory.write_from(place_of(place), &[0; PLACE as usize])?;
    }
    let _memory = port.export(
        "memory",
        &memory,
        ..,
        Access::everyone().modes(Modes::READ | Modes::WRITE | Modes::ATOMIC),
    )?;
    let config = || SharedConfig::default().message_bytes(64).capacity(1_024);
    let mut queue = SharedReceiver::open(&port, "queue", config())?;
    shared.ready.pass(actor, shared.everyone());
    while shared.left.come() < shared.clients() {
        match queue.recv(Duration::from_micros(50)) {
            Ok(message) => drop(message),
            Err(Error::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bytes of a port's place in the memory of a server: a page for large writes and reads, one for small ones.
const PLACE: u64 = 2 * PAGE_SIZE as u64;

/// Where the place of a port begins. The checkers tell ports apart by where they write.
const fn place_of(port: u16) -> u64 {
    port as u64 * PLACE
}

/// What a port posts to one node.
struct Target {
    memory: RemoteSegment,
    queue: SharedSender,
}

/// A port and all that it posts to.
struct Client {
    port: Port,
    own: Region,
    targets: Vec<Target>,
}

impl Client {
    fn join(actor: &Actor, number: u16, shared: &Shared) -> Result<Self> {
        if number == MODEST {
            shared.opened.pass(actor, shared.clients());
        }
        let port = actor.open(number)?;
        if number != MODEST {
            shared.opened.pass(actor, 0);
        }
        let own = port.alloc(2 * u64::from(PAGE_SIZE))?;
        own.write_from(0, &[number as u8; 2 * PAGE_SIZE as usize])?;
        shared.ready.pass(actor, shared.everyone());
        let mut targets = Vec::new();
        for node in TARGETS {
            targets.push(Target {
                memory: port.import(node.into(), SERVER.into(), "memory", SOON)?,
                queue: SharedSender::join(&port, node.into(), SERVER.into(), "queue", SOON)?,
            });
        }
        Ok(Self { port, own, targets })
    }

    /// Hands an operation to the card.
    fn post(&self, kind: Kind, target: &Target) -> Result<Option<OpId>> {
        let page = u64::from(PAGE_SIZE);
        let large = place_of(self.port.id().0);
        let small = large + page;
        let bytes = [self.port.id().0 as u8; 8];
        match kind {
            Kind::SmallWrite => target.memory.write(small, &bytes).post().map(Some),
            Kind::LargeWrite => target
                .memory
                .write(large, self.own.slice(..page)?)
                .post()
                .map(Some),
            Kind::Read => target
                .memory
                .read(large, self.own.slice(page..)?)
                .post()
                .map(Some),
            Kind::Append => target.queue.post(&bytes).map(Some),
            Kind::Atomic => {
                // Its answer is not waited for.
                target
                    .memory
                    .word64(small + 8)?
                    .add(1)
                    .post()
                    .map(|_pending| None)
            }
        }
    }

    /// Hands it over, and returns when it has ended.
    fn call(&self, kind: Kind, node: u16, target: &Target) -> Result<()> {
        match kind {
            Kind::SmallWrite | Kind::LargeWrite | Kind::Append => {
                self.post(kind, target)?;
                self.port.flush_remote(node.into())
            }
            Kind::Read => {
                self.post(kind, target)?;
                self.port.flush_reads()
            }
            Kind::Atomic => {
                let word = place_of(self.port.id().0) + u64::from(PAGE_SIZE) + 8;
                target.memory.word64(word)?.fetch_add(1).map(drop)
            }
        }
    }
}

fn modest(actor: &Actor, shared: &Shared) -> Result<()> {
    let client = Client::join(actor, MODEST, shared)?;
    shared.joined.pass(actor, shared.clients());
    // The greedy ports fill their queues.
    actor.rest(Nanos::from_micros(100));
    for round in 0..ROUNDS {
        for kind in KINDS {
            for (node, target) in TARGETS.into_iter().zip(&client.targets) {
                let (since, before) = (actor.now(), actor.instructions());
                client.call(kind, node, target)?;
                let waited = actor.now().0 - since.0;
                if waited > shared.bound.ends.0 {
                    actor.complain(&format!(
                        "{kind:?} of a modest port has ended after {waited} ns in round {round}, bound {}",
                        shared.bound.ends.0
                    ));
                }
                shared.ends.borrow_mut().push(waited);
                actor.rest(Nanos::from_micros(3));
                let did = u32::try_from(actor.instructions() - before).unwrap_or(u32::MAX);
                shared.instructions.set(shared.instructions.get().max(did));
            }
        }
    }
    shared.over.pass(actor, 1);
    shared.left.pass(actor, 0);
    Ok(())
}

fn greed(actor: &Actor, number: u16, shared: &Shared) -> Result<()> {
    let client = Client::join(actor, number, shared)?;
    shared.joined.pass(actor, shared.clients());
    let mut turn = usize::from(number);
    let (mut posted, mut refused) = (0, 0);
    while shared.over.come() == 0 {
        let kind = shared.kinds[turn % shared.kinds.len()];
        let target = &client.targets[turn / shared.kinds.len() % client.targets.len()];
        turn += 1;
        match client.post(kind, target) {
            Ok(_) => posted += 1,
            // An append found no place: it posts the next one.
            Err(Error::Failed(failure)) if failure.status == Status::QueueFull => refused += 1,
            Err(Error::QueueFull) => refused += 1,
            Err(error) => return Err(error),
        }
    }
    shared.commands.set(shared.commands.get() + posted + refused);
    drop(client);
    shared.left.pass(actor, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::Geometry;

    #[test]
    fn the_bound_counts_with_the_window_of_its_world() {
        assert_eq!(u64::from(Geometry::default().window), WINDOW);
        let alone = Alone {
            takes: Nanos(10_000),
            keeps: Nanos(1_000),
        };
        let bound = Bound::derived(8, alone);
        assert_eq!(bound.sends, Nanos((8 * 8 + 3 * 64) * 1_000 + 10_000));
        assert_eq!(bound.ends, Nanos(2 * 266_000 + 192_000));
    }
}
