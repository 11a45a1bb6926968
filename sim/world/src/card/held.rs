//! Passes of a card that are held up between two accesses to shared words, as its processor is by a bus that stalls or by
//! a machine that gives it no time.
//!
//! Such a pass runs as a coroutine. While it is held up everything else goes on: programs, workers, calls of the driver,
//! other cards, DMAs and the wire. What the card has stored so far leaves its store buffer. A card that hangs meanwhile
//! has stopped in the middle of the pass, with whatever it has locked; the pass ends with a reset or a restart.

use super::whole_pass;
use crate::coroutine::{App, Park, Turn};
use crate::node::Node;
use crate::sim::{Event, Sim};
use crate::words::Side;
use netvm_abi::{Nanos, NodeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The pass of a card that is held up, if one is.
#[derive(Default)]
pub(crate) struct HeldPass {
    pass: RefCell<Option<App>>,
    /// How often passes of this card were held up: an event to go on is for one of these.
    turn: Cell<u64>,
    /// The card was to begin another pass meanwhile.
    missed: Cell<bool>,
}

impl HeldPass {
    /// Whether a pass is held up, so that the next one has to wait for its end.
    pub(super) fn misses(&self) -> bool {
        let held = self.pass.borrow().is_some();
        if held {
            self.missed.set(true);
        }
        held
    }

    /// The pass does not go on: its card begins anew, or the world is over.
    pub(crate) fn end(&self) {
        let pass = self.pass.borrow_mut().take();
        self.missed.set(false);
        if let Some(mut pass) = pass {
            // The core's destructors free memory, and reach nothing of the world.
            pass.unwind();
        }
    }
}

/// Begins a pass that may be held up.
pub(super) fn begin(sim: &Sim, node: &Rc<Node>) {
    let (world, own) = (sim.me.clone(), Rc::downgrade(node));
    let body = move || {
        if let (Some(sim), Some(node)) = (world.upgrade(), own.upgrade()) {
            whole_pass(&sim, &node);
        }
    };
    match App::new(&sim.pool, &sim.passes, Box::new(body)) {
        Ok(pass) => go_on(sim, node, pass),
        Err(error) => sim.complain(format!("no memory for the stack of a card's pass: {error}")),
    }
}

/// A pass goes on, if it is still held up for this `turn`.
pub(crate) fn resume(sim: &Sim, node: &Rc<Node>, turn: u64) {
    if node.held.turn.get() != turn || node.card_gone.get() {
        return;
    }
    let paused = node.paused_until.get();
    if paused > sim.now() {
        return sim.at(paused, Event::Resume { node: node.id, turn });
    }
    let pass = node.held.pass.borrow_mut().take();
    if let Some(pass) = pass {
        go_on(sim, node, pass);
        node.words().drain(Side::Nic);
    }
}

fn go_on(sim: &Sim, node: &Rc<Node>, mut pass: App) {
    match pass.run(&sim.passes) {
        Turn::Parked(Park::Until(at) | Park::Access(at)) => {
            *node.held.pass.borrow_mut() = Some(pass);
            let turn = node.held.turn.get() + 1;
            node.held.turn.set(turn);
            sim.at(at, Event::Resume { node: node.id, turn });
        }
        Turn::Finished => {
            if node.held.missed.take() {
                node.kick(sim, Nanos(100));
            }
        }
        Turn::Panicked(what) => sim.complain(format!("the card of node {} has panicked: {what}", node.id)),
    }
}

/// Before an access of a pass that may be held up: now and then it is, mostly for as long as a few accesses take, and
/// sometimes for as long as a program may run.
pub(crate) fn held_up(sim: &Sim, node: NodeId) {
    if !sim.holds_up(node) {
        return;
    }
    let longest = if sim.below(16) == 0 { 50_000 } else { 3_000 };
    let span = sim.span(Nanos(50), Nanos(longest));
    sim.note(node, "card held up", &[("for", span.0)]);
    sim.passes.park(Park::Until(sim.now().after(span)));
}
