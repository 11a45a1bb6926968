//! Passes of a card that are held up.
//!
//! Programs, workers, calls of the driver, other cards, DMAs and the wire go on meanwhile. What the card has stored so far
//! leaves its store buffer. A card that hangs while its pass is held up has stopped in the middle of it, with whatever it has
//! locked; the pass ends with a reset or a restart.

use super::whole_pass;
use crate::held::{Came, Held, hold_up};
use crate::node::Node;
use crate::sim::{Event, Sim};
use crate::words::Side;
use netvm_abi::{Nanos, NodeId};
use std::cell::Cell;
use std::rc::Rc;

/// The pass of a card that is held up, if one is.
#[derive(Default)]
pub(crate) struct HeldPass {
    pass: Held,
    /// The card was to begin another pass meanwhile.
    missed: Cell<bool>,
}

impl HeldPass {
    /// Whether a pass is held up, so that the next one has to wait for its end.
    pub(super) fn misses(&self) -> bool {
        let held = self.pass.is_held();
        if held {
            self.missed.set(true);
        }
        held
    }

    /// The pass does not go on: its card begins anew, or the world is over.
    pub(crate) fn end(&self) {
        self.missed.set(false);
        self.pass.end();
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
    let came = node.held.pass.begin(sim, &sim.passes, Box::new(body));
    came_so_far(sim, node, came);
}

/// A pass goes on, if it is still held up for this `turn`.
pub(crate) fn resume(sim: &Sim, node: &Rc<Node>, turn: u64) {
    if node.card_gone.get() {
        return;
    }
    let paused = node.paused_until.get();
    if paused > sim.now() {
        let side = Side::Nic;
        return sim.at(
            paused,
            Event::Resume {
                node: node.id,
                side,
                turn,
            },
        );
    }
    if let Some(came) = node.held.pass.resume(&sim.passes, turn) {
        came_so_far(sim, node, came);
        node.words().drain(Side::Nic);
    }
}

fn came_so_far(sim: &Sim, node: &Node, came: Came) {
    match came {
        Came::HeldUp { until, turn } => sim.at(
            until,
            Event::Resume {
                node: node.id,
                side: Side::Nic,
                turn,
            },
        ),
        Came::ToItsEnd => {
            if node.held.missed.take() {
                node.kick(sim, Nanos(100));
            }
        }
        Came::ToAPanic(what) => sim.complain(format!("the card of node {} has panicked: {what}", node.id)),
    }
}

/// Before an access of a pass that may be held up: now and then it is.
pub(crate) fn held_up(sim: &Sim, node: NodeId) {
    if sim.holds_up(node, Side::Nic) {
        hold_up(sim, node, &sim.passes, "card held up");
    }
}
