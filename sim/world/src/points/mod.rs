//! Crash points: every access to a shared word in a run of one conformance body, as the place where one fault strikes.
//!
//! A run without faults counts its accesses, and [`record()`] keeps those that differ. Two accesses differ by what makes
//! them (a program, the host driver or the card, and of which node), by the place in the code (the chain of return
//! addresses), by the kind of word, and by the state of the protocol: what the node is in the middle of
//! ([`ProtocolState`](crate::faults::ProtocolState)). Of equal ones the first counts.
//! What the host driver or a card does in several bodies counts in the first of them: [`Spot::common`].
//!
//! A run is a function of its seed. So one more run, in which a fault strikes at access number n, is the same up to there:
//! [`play()`]. That run looks at no return addresses.
//!
//! The window is from the body's beginning to its end, with what the exits of its processes do until the next look at the
//! run's phase. Accesses of a node that boots are left out, and those of a program that panics: it has no state to go on
//! from.

mod chain;
mod drawn;
mod play;
mod record;
mod strike;
mod word;

use crate::dice::Dice;
use crate::node::Node;
use crate::process;
use crate::sim::Sim;
use crate::words::{Actor, Touch};
use netvm_abi::{NodeId, PortId};
use std::cell::{Cell, OnceCell, RefCell};

pub use netvm_conformance::Case;
pub use play::{NODES, Point, Recorded, bodies, play, record, unrecorded};
pub use record::Spot;
pub use strike::Crash;

pub(crate) use drawn::Drawn;
pub(crate) use record::Recorder;
pub(crate) use strike::Strike;
pub(crate) use word::Word;

/// An access that is about to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) node: NodeId,
    pub(crate) actor: Actor,
    pub(crate) touch: Touch,
    pub(crate) word: Word,
}

/// What is done at accesses.
enum Task {
    Record(RefCell<Recorder>),
    Strike(Strike),
    Draw(Box<Drawn>),
}

/// The accesses of a run. Ordinary runs do not look at them.
#[derive(Default)]
pub(crate) struct Points {
    /// Whether accesses count now.
    is_open: Cell<bool>,
    /// How many have.
    reached: Cell<u64>,
    /// Return addresses above this place of the stack belong to a step that was interrupted.
    floor: Cell<Option<usize>>,
    task: OnceCell<Task>,
}

impl Points {
    /// Has the run keep its points.
    pub(crate) fn record(&self) {
        let _ = self.task.set(Task::Record(RefCell::default()));
    }

    /// Has a fault strike at the access of this number.
    pub(crate) fn strike(&self, access: u64, crash: Crash) {
        let _ = self.task.set(Task::Strike(Strike::new(access, crash)));
    }

    /// Has the faults that the world draws strike at accesses.
    pub(crate) fn draw(&self, dice: Dice) {
        let _ = self.task.set(Task::Draw(Box::new(Drawn::new(dice))));
    }

    /// A fault is drawn. Whether it waits for an access of the node.
    pub(crate) fn arm(&self, node: NodeId, crash: Crash) -> bool {
        let waits = matches!(self.task.get(), Some(Task::Draw(drawn)) if drawn.arm(node, crash));
        if waits {
            self.is_open.set(true);
        }
        waits
    }

    /// The world's faults are over, those that wait included.
    pub(crate) fn disarm(&self) {
        if let Some(Task::Draw(drawn)) = self.task.get() {
            drawn.disarm();
            self.is_open.set(false);
        }
    }

    /// The body begins.
    pub(crate) fn open(&self) {
        if let Some(Task::Record(_) | Task::Strike(_)) = self.task.get() {
            self.is_open.set(true);
        }
    }

    /// The body and its processes have ended.
    pub(crate) fn close(&self) {
        self.is_open.set(false);
    }

    /// Whether accesses have to be shown.
    pub(crate) fn are_open(&self) -> bool {
        self.is_open.get()
    }

    /// Runs a step in the middle of another one.
    pub(crate) fn nested(&self, step: impl FnOnce()) {
        let here = 0_u8;
        let outer = self.floor.replace(Some(std::ptr::from_ref(&here).addr()));
        step();
        self.floor.set(outer);
    }

    /// What was recorded.
    pub(crate) fn recorded(&self) -> (u64, Vec<Spot>) {
        let spots = match self.task.get() {
            Some(Task::Record(recorder)) => recorder.borrow().spots(),
            _ => Vec::new(),
        };
        (self.reached.get(), spots)
    }

    /// Whether the fault has struck.
    pub(crate) fn has_struck(&self) -> bool {
        matches!(self.task.get(), Some(Task::Strike(strike)) if strike.has_struck())
    }

    /// Where the fault has struck, in words; `None` if it has not.
    pub(crate) fn struck_at(&self) -> Option<String> {
        match self.task.get() {
            Some(Task::Strike(strike)) => strike.place(),
            _ => None,
        }
    }
}

/// An access is about to be made. Few have to be looked at.
pub(crate) fn reached(sim: &Sim, id: NodeId, actor: Actor, access: impl FnOnce() -> Access) {
    let points = &sim.points;
    match points.task.get() {
        Some(Task::Draw(drawn)) => return drawn.reached(sim, id, actor, access),
        Some(Task::Strike(strike)) if strike.has_struck() => {
            return strike::after(sim, strike, id, actor);
        }
        _ => {}
    }
    let node = sim.node(id);
    if !counts(node) {
        return;
    }
    let number = points.reached.get() + 1;
    points.reached.set(number);
    match points.task.get() {
        Some(Task::Record(recorder)) => {
            let access = access();
            let (states, victim) = (node.states(), strike::victim(sim, &access).is_some());
            let chain = chain::hash(points.floor.get());
            recorder
                .borrow_mut()
                .reach(number, &access, chain, states, victim);
        }
        Some(Task::Strike(strike)) if strike.access == number => {
            strike::now(sim, strike, &access());
        }
        _ => {}
    }
}

/// Whether an access of the node counts: not while it boots, nor in a panic.
fn counts(node: &Node) -> bool {
    !node.boots() && !std::thread::panicking()
}

/// A step of the world is over.
pub(crate) fn settle(sim: &Sim) {
    match sim.points.task.get() {
        Some(Task::Strike(strike)) => strike::carry_out(sim, strike),
        Some(Task::Draw(drawn)) if drawn.settle(sim) => sim.points.close(),
        _ => {}
    }
}

/// The process whose word this is, or in whose system call it is touched.
fn process_of(sim: &Sim, access: &Access) -> Option<crate::vm::ProcessId> {
    let running = || process::running(sim).map(|(_, process)| process);
    let owner = |port: PortId| {
        let ports = sim.node(access.node).ports.try_borrow().ok()?;
        ports.get(&port).map(|state| state.process)
    };
    let process = match access.actor {
        Actor::App => running(),
        Actor::Driver => access.word.port.and_then(owner).or_else(running),
        Actor::Card => access.word.port.and_then(owner),
    };
    process.filter(|&process| process::alive(sim, process))
}

impl Access {
    /// In words, but for the place in the code.
    fn describe(&self) -> String {
        let actor = match self.actor {
            Actor::App => "a program",
            Actor::Driver => "the host driver",
            Actor::Card => "the card",
        };
        let does = match self.touch {
            Touch::Load => "loads",
            Touch::Store => "stores",
        };
        format!("{actor} of node {} {does} {}", self.node, self.word)
    }
}
