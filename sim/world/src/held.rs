//! A step of a node that is held up between two accesses to shared words, as a processor is by a bus that stalls or by a
//! machine that gives it no time.
//!
//! Such a step runs as a coroutine. While it is held up everything else of the world goes on that does not wait for it.
//! What a step may be, and what waits for it, is said where it begins: a pass of a card (`card/held.rs`), a step of the
//! kernel (`kernel/held.rs`).

use crate::coroutine::{App, Park, Parker, Turn};
use crate::sim::Sim;
use netvm_abi::{Nanos, NodeId};
use std::cell::{Cell, RefCell};

/// The step of its kind that is held up at a node, if one is.
#[derive(Default)]
pub(crate) struct Held {
    step: RefCell<Option<App>>,
    /// How often steps of this kind were held up here: an event to go on is for one of these.
    turn: Cell<u64>,
}

/// How far a step has come.
pub(crate) enum Came {
    /// It is held up. It is to go on at this time, if this is still its turn.
    HeldUp { until: Nanos, turn: u64 },
    /// To its end.
    ToItsEnd,
    /// To a panic.
    ToAPanic(String),
}

impl Held {
    pub(crate) fn is_held(&self) -> bool {
        self.step.borrow().is_some()
    }

    /// Runs a step, which may be held up by `parker`.
    pub(crate) fn begin(&self, sim: &Sim, parker: &Parker, body: Box<dyn FnOnce()>) -> Came {
        match App::new(&sim.pool, parker, body) {
            Ok(step) => self.run(step, parker),
            Err(error) => Came::ToAPanic(format!("no memory for its stack: {error}")),
        }
    }

    /// The step goes on. Nothing if this is not its `turn` any more.
    pub(crate) fn resume(&self, parker: &Parker, turn: u64) -> Option<Came> {
        (self.turn.get() == turn).then(|| self.go_on(parker)).flatten()
    }

    /// The step goes on, whatever its turn. Nothing if none is held up.
    pub(crate) fn go_on(&self, parker: &Parker) -> Option<Came> {
        let step = self.step.borrow_mut().take()?;
        Some(self.run(step, parker))
    }

    fn run(&self, mut step: App, parker: &Parker) -> Came {
        match step.run(parker) {
            Turn::Parked(Park::Until(until) | Park::Access(until)) => {
                *self.step.borrow_mut() = Some(step);
                let turn = self.turn.get() + 1;
                self.turn.set(turn);
                Came::HeldUp { until, turn }
            }
            Turn::Finished => Came::ToItsEnd,
            Turn::Panicked(what) => Came::ToAPanic(what),
        }
    }

    /// The step does not go on: what it belongs to begins anew, or the world is over.
    pub(crate) fn end(&self) {
        let step = self.step.borrow_mut().take();
        if let Some(mut step) = step {
            // The destructors of a core free memory, and reach nothing of the world.
            step.unwind();
        }
    }
}

/// Holds the running step up: mostly for as long as a few accesses take, and sometimes for as long as a program may run.
pub(crate) fn hold_up(sim: &Sim, node: NodeId, parker: &Parker, what: &'static str) {
    let longest = if sim.below(16) == 0 { 50_000 } else { 3_000 };
    let span = sim.span(Nanos(50), Nanos(longest));
    sim.note(node, what, &[("for", span.0)]);
    parker.park(Park::Until(sim.now().after(span)));
}
