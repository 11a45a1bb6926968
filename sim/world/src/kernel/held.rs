//! Steps of a node's kernel (a poll of the driver, a worker's turn, a step of a job, a system call) that are held up.
//!
//! Programs, cards, DMAs and the wire go on meanwhile. The host core is behind a lock, which such a step has: what else
//! needs the core waits for the lock, so the step goes on to its end at once ([`Node::driver`]). Other steps of the same
//! kernel wait for the end by themselves.

use crate::coroutine::Park;
use crate::driver;
use crate::held::{Came, Held, hold_up};
use crate::node::Node;
use crate::sim::{Event, Sim};
use crate::words::Side;
use netvm_abi::{Nanos, NodeId, PortId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What the kernel of a node does in a step of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The driver takes what the card has told it.
    Poll,
    /// A port's paging worker goes on.
    Worker(PortId),
    /// A job goes on, if it has not done so since.
    Job { job: u64, turn: u64 },
}

impl Step {
    fn carry_out(self, sim: &Sim, node: &Node) {
        match self {
            Self::Poll => driver::poll(sim, node),
            Self::Worker(port) => driver::work(sim, node, port),
            Self::Job { job, turn } => super::due(sim, node, job, turn),
        }
    }

    fn event(self, node: &Node) -> Event {
        let (node, life) = (node.id, node.life.get());
        match self {
            Self::Poll => Event::Driver { node, life },
            Self::Worker(port) => Event::Worker { node, life, port },
            Self::Job { job, turn } => Event::Job {
                node,
                life,
                job,
                turn,
            },
        }
    }
}

/// The step of a kernel that is held up, if one is.
#[derive(Default)]
pub(crate) struct HeldStep {
    step: Held,
    /// Steps that were to begin meanwhile.
    missed: RefCell<Vec<Step>>,
    /// Something waits for it: it is not held up again.
    awaited: Cell<bool>,
}

impl HeldStep {
    /// The step does not go on: its node begins anew, or the world is over.
    pub(crate) fn end(&self) {
        self.missed.borrow_mut().clear();
        self.step.end();
    }
}

/// A step of the kernel. In worlds whose kernels are held up it goes on in a coroutine.
pub(crate) fn run(sim: &Sim, node: &Rc<Node>, step: Step) {
    if node.held_step.step.is_held() {
        return node.held_step.missed.borrow_mut().push(step);
    }
    if sim.may_hold_up(Side::Host) {
        let (world, own) = (sim.me.clone(), Rc::downgrade(node));
        let body = move || {
            if let (Some(sim), Some(node)) = (world.upgrade(), own.upgrade()) {
                step.carry_out(&sim, &node);
            }
        };
        let came = node.held_step.step.begin(sim, &sim.steps, Box::new(body));
        came_so_far(sim, node, came);
    } else {
        step.carry_out(sim, node);
    }
    node.words().drain(Side::Host);
}

/// A system call of the program that runs. In worlds whose kernels are held up it goes on in a coroutine, and its program
/// waits for the end. What follows from the call belongs into it: its program may be killed meanwhile, and the kernel goes
/// on all the same. Nothing: the node has begun anew.
pub(crate) fn call<T: 'static>(
    sim: &Sim,
    node: &Rc<Node>,
    call: impl FnOnce(&Sim, &Rc<Node>) -> T + 'static,
) -> Option<T> {
    finish(sim, node);
    if !sim.may_hold_up(Side::Host) || !sim.parker.inside() || std::thread::panicking() {
        return Some(call(sim, node));
    }
    let (world, own) = (sim.me.clone(), Rc::downgrade(node));
    let answer = Rc::new(Cell::new(None));
    let (answers, life) = (answer.clone(), node.life.get());
    let body = move || {
        if let (Some(sim), Some(node)) = (world.upgrade(), own.upgrade()) {
            answers.set(Some(call(&sim, &node)));
        }
    };
    // It parks by itself, and not by its program, on whose stack it begins.
    let came = sim
        .parker
        .masked(|| node.held_step.step.begin(sim, &sim.steps, Box::new(body)));
    came_so_far(sim, node, came);
    loop {
        if let Some(answer) = answer.take() {
            return Some(answer);
        }
        if node.life.get() != life || !node.held_step.step.is_held() {
            return None;
        }
        sim.parker.park(Park::Until(sim.now().after(Nanos(500))));
    }
}

/// A step goes on, if it is still held up for this `turn`.
pub(crate) fn resume(sim: &Sim, node: &Node, turn: u64) {
    if let Some(came) = node.held_step.step.resume(&sim.steps, turn) {
        came_so_far(sim, node, came);
        node.words().drain(Side::Host);
    }
}

/// Something waits for the lock that a step has.
pub(crate) fn finish(sim: &Sim, node: &Node) {
    if !node.held_step.step.is_held() {
        return;
    }
    sim.note(node.id, "kernel awaited", &[]);
    let held = &node.held_step;
    held.awaited.set(true);
    // The step parks nothing of what waits for it, on whose stack it goes on.
    let came = sim
        .parker
        .masked(|| sim.passes.masked(|| held.step.go_on(&sim.steps)));
    held.awaited.set(false);
    if let Some(came) = came {
        came_so_far(sim, node, came);
    }
}

fn came_so_far(sim: &Sim, node: &Node, came: Came) {
    match came {
        Came::HeldUp { until, turn } => sim.at(
            until,
            Event::Resume {
                node: node.id,
                side: Side::Host,
                turn,
            },
        ),
        Came::ToItsEnd => {
            for step in node.held_step.missed.take() {
                sim.after(Nanos(50), step.event(node));
            }
        }
        Came::ToAPanic(what) => sim.complain(format!("the kernel of node {} has panicked: {what}", node.id)),
    }
}

/// Before an access of a step that may be held up: now and then it is.
pub(crate) fn held_up(sim: &Sim, node: NodeId) {
    if !sim.node(node).held_step.awaited.get() && sim.holds_up(node, Side::Host) {
        hold_up(sim, node, &sim.steps, "kernel held up");
    }
}
