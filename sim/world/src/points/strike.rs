//! One fault, at one access.
//!
//! A program stands at the access when it is killed, or when its node goes down: the access is not made, nor anything
//! after it.
//!
//! The host driver and the card run their steps to the end, for they are no coroutines. What they do from the access on
//! has no effect beyond their node:
//!
//! - A card that hangs goes on computing to the end of its pass. Its stores stay in its store buffer, where it alone sees
//!   them; its frames, DMAs and interrupts are dropped, and it gets no more input ([`NodeWords::halt`]).
//! - A node that restarts does so when the step is over. Until then its card is halted in the same way, and so nothing
//!   leaves the node. No time passes meanwhile, and the restart throws all of the node's memory away.
//! - A process that dies in a step of the host driver dies when the step is over, as a process dies on its way out of the
//!   kernel. In the middle of a card's pass it dies at once.
//!
//! [`NodeWords::halt`]: crate::words::NodeWords::halt

use super::{Access, chain, process_of};
use crate::coroutine::Park;
use crate::faults::FaultKind;
use crate::process;
use crate::seen::Seen;
use crate::sim::Sim;
use crate::vm::ProcessId;
use crate::words::Actor;
use crate::world;
use netvm_abi::{Nanos, NodeId};
use std::cell::{Cell, OnceCell};
use std::fmt;
use std::str::FromStr;

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crash {
    /// The process dies whose word it is, or in whose system call it is touched.
    ProcessDies,
    /// The node's card hangs.
    CardHangs,
    /// The node restarts.
    NodeRestarts,
}

impl Crash {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ProcessDies, Self::CardHangs, Self::NodeRestarts];

    /// As the command line names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProcessDies => "process-dies",
            Self::CardHangs => "card-hangs",
            Self::NodeRestarts => "node-restarts",
        }
    }

    /// The kind of fault that it is.
    pub(crate) const fn kind(self) -> FaultKind {
        match self {
            Self::ProcessDies => FaultKind::ProcessDies,
            Self::CardHangs => FaultKind::CardHangs,
            Self::NodeRestarts => FaultKind::NodeRestarts,
        }
    }
}

impl FromStr for Crash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let crash = Self::ALL.into_iter().find(|crash| crash.name() == text);
        crash.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no fault `{text}`; there are: {names}")
        })
    }
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What happens when the present step is over.
#[derive(Clone, Copy, Debug)]
enum Doom {
    Process(ProcessId),
    Node(NodeId),
}

/// One fault, at one access.
pub(crate) struct Strike {
    /// The number of the access.
    pub(super) access: u64,
    crash: Crash,
    /// Where it has struck.
    place: OnceCell<(Access, Vec<usize>)>,
    doom: Cell<Option<Doom>>,
}

impl Strike {
    pub(super) fn new(access: u64, crash: Crash) -> Self {
        Self {
            access,
            crash,
            place: OnceCell::new(),
            doom: Cell::new(None),
        }
    }

    pub(super) fn has_struck(&self) -> bool {
        self.place.get().is_some()
    }

    /// Whether there is something at this access that it can strike.
    pub(super) fn can_strike(&self, sim: &Sim, access: &Access) -> bool {
        match self.crash {
            Crash::ProcessDies => victim(sim, access).is_some(),
            Crash::CardHangs => !sim.node(access.node).card_gone.get(),
            Crash::NodeRestarts => true,
        }
    }

    /// Where it has struck, in words.
    pub(super) fn place(&self) -> Option<String> {
        let (access, chain) = self.place.get()?;
        Some(format!(
            "{} where {}: {}",
            self.crash,
            access.describe(),
            chain::describe(chain)
        ))
    }
}

/// The process that dies at an access, if one does.
pub(super) fn victim(sim: &Sim, access: &Access) -> Option<ProcessId> {
    process_of(sim, access)
}

/// The access is reached.
pub(super) fn now(sim: &Sim, strike: &Strike, access: &Access) {
    let chain = chain::addresses(sim.points.floor.get());
    let _ = strike.place.set((*access, chain));
    let (node, kind) = (sim.node(access.node), strike.crash.kind());
    sim.faults.borrow_mut().count(kind, node.states());
    sim.note(
        access.node,
        "fault",
        &[(kind.label(), 1), ("access", strike.access)],
    );
    sim.see(Seen::Fault {
        node: access.node,
        kind,
    });
    match strike.crash {
        Crash::CardHangs => world::hang(sim, node),
        Crash::NodeRestarts => {
            node.words().halt();
            strike.doom.set(Some(Doom::Node(access.node)));
        }
        Crash::ProcessDies => strike.doom.set(victim(sim, access).map(Doom::Process)),
    }
    match access.actor {
        Actor::App => after(sim, strike, access.node, access.actor),
        // In the middle of a card's pass, the kernel can run.
        Actor::Card if strike.crash == Crash::ProcessDies && node.driver_is_free() => {
            carry_out(sim, strike);
        }
        Actor::Card | Actor::Driver => {}
    }
}

/// Another access is reached, after the fault: a program that is not meant to go on stands still there.
pub(super) fn after(sim: &Sim, strike: &Strike, id: NodeId, actor: Actor) {
    if actor != Actor::App || !sim.parker.inside() || std::thread::panicking() {
        return;
    }
    let Some((_, process)) = process::running(sim) else {
        return;
    };
    let is_doomed = match strike.doom.get() {
        Some(Doom::Process(doomed)) => doomed == process,
        Some(Doom::Node(node)) => node == id,
        None => false,
    };
    if is_doomed {
        carry_out(sim, strike);
    }
    if !process::alive(sim, process) {
        sim.parker.park(Park::Until(Nanos::MAX));
    }
}

/// What is meant to happen when the present step is over, happens.
pub(super) fn carry_out(sim: &Sim, strike: &Strike) {
    match strike.doom.take() {
        Some(Doom::Process(process)) => process::kill(sim, process, true),
        Some(Doom::Node(node)) => world::restart(sim, sim.node(node)),
        None => {}
    }
}
