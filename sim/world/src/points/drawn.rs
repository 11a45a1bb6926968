//! Faults that a world of seeds draws at its ticks. In a part of the worlds each strikes at one of the next accesses to the
//! shared words of its node, and not at the tick.

use super::strike::{self, Strike};
use super::{Access, Crash, counts};
use crate::dice::Dice;
use crate::faults::FaultKind;
use crate::sim::Sim;
use crate::words::Actor;
use netvm_abi::NodeId;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Most accesses that a fault waits for. Some hundreds are made between two ticks of a busy node.
const MOST: u64 = 600;

/// A fault that waits for its access.
struct Armed {
    node: NodeId,
    /// Accesses of the node that are still to come before it strikes.
    left: Cell<u64>,
    strike: Strike,
}

/// The faults of a world that strike at accesses, one at a time.
pub(crate) struct Drawn {
    dice: RefCell<Dice>,
    armed: RefCell<Option<Rc<Armed>>>,
}

impl Drawn {
    pub(super) fn new(dice: Dice) -> Self {
        Self {
            dice: RefCell::new(dice),
            armed: RefCell::default(),
        }
    }

    /// Has a fault wait for an access; false if another one waits.
    pub(super) fn arm(&self, node: NodeId, crash: Crash) -> bool {
        let mut armed = self.armed.borrow_mut();
        if armed.is_some() {
            return false;
        }
        let left = self.dice.borrow_mut().within(1, MOST);
        *armed = Some(Rc::new(Armed {
            node,
            left: Cell::new(left),
            strike: Strike::new(left, crash),
        }));
        true
    }

    /// What waits strikes no more.
    pub(super) fn disarm(&self) {
        self.armed.take();
    }

    /// An access is reached. The app that makes it may never come back from here.
    pub(super) fn reached(&self, sim: &Sim, id: NodeId, actor: Actor, access: impl FnOnce() -> Access) {
        let Some(armed) = self.armed.borrow().clone() else {
            return;
        };
        if armed.strike.has_struck() {
            strike::after(sim, &armed.strike, id, actor);
            return;
        }
        let node = sim.node(id);
        // The simulator's kernel takes it that a card which was just reset can be attached.
        if armed.node != id || node.resetting.get() || !counts(node) {
            return;
        }
        armed.left.set(armed.left.get().saturating_sub(1));
        if armed.left.get() > 0 {
            return;
        }
        let access = access();
        // Not every access has something that can fail. The next one may.
        if armed.strike.can_strike(sim, &access) {
            sim.faults.borrow_mut().count(FaultKind::AtAccess, node.states());
            strike::now(sim, &armed.strike, &access);
        }
    }

    /// A step of the world is over. Whether a fault has struck in it, which is over now.
    pub(super) fn settle(&self, sim: &Sim) -> bool {
        let Some(armed) = self.armed.borrow().clone() else {
            return false;
        };
        let has_struck = armed.strike.has_struck();
        if has_struck {
            strike::carry_out(sim, &armed.strike);
            self.disarm();
        }
        has_struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_waits_until_it_is_disarmed() {
        let drawn = Drawn::new(Dice::new(1));
        assert!(drawn.arm(NodeId(0), Crash::CardHangs));
        assert!(!drawn.arm(NodeId(1), Crash::ProcessDies), "another one waits");
        drawn.disarm();
        assert!(drawn.arm(NodeId(1), Crash::ProcessDies));
    }
}
