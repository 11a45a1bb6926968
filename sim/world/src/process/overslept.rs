//! Wake-ups that never come.
//!
//! A wait of the library ends by a wake-up, or by its own deadline. The simulator ends it after 20 ms in any case: an app
//! whose wake-up was lost would otherwise stand still, and the run with it. Such an end must change nothing. The library
//! looks at what it waits for, and waits again. If the app does anything else, then what it waits for was there already,
//! and a wake-up should have come. The same holds if it returns.
//!
//! A wake-up may be on its way just then: it counts as lost if it has not come [`GRACE`] later. A card that is off the bus
//! sends none.

use super::AppId;
use crate::node::Node;
use crate::seen::Seen;
use crate::sim::{Event, Sim};
use netvm_abi::{Nanos, NodeId, PortId};

/// Longer than an interrupt takes, however the bus lags.
const GRACE: Nanos = Nanos::from_micros(100);

/// A wait that the clock has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overslept {
    node: NodeId,
    life: u32,
    port: PortId,
    /// The event count that it waited to see changed.
    token: u32,
}

impl Overslept {
    pub(super) fn new(node: &Node, port: PortId, token: u32) -> Self {
        Self {
            node: node.id,
            life: node.life.get(),
            port,
            token,
        }
    }

    /// Whether still no wake-up has come, and one could have.
    fn holds(&self, sim: &Sim) -> bool {
        let node = sim.node(self.node);
        let ports = node.ports.borrow();
        node.life.get() == self.life
            && !node.card_gone.get()
            && !node.resetting.get()
            && ports
                .get(&self.port)
                .is_some_and(|state| state.events == self.token)
    }
}

/// The clock has ended a wait of an app.
pub(super) fn note(sim: &Sim, app: AppId, wait: Overslept) {
    sim.overslept.borrow_mut().insert(app, wait);
}

/// The app waits for an event of this port to follow this one.
pub(super) fn waits_again(sim: &Sim, app: AppId, (node, port, token): (NodeId, PortId, u32)) {
    let Some(wait) = sim.overslept.borrow_mut().remove(&app) else {
        return;
    };
    if (wait.node, wait.port, wait.token) != (node, port, token) {
        suspect(sim, wait);
    }
}

/// The running app does something.
pub(crate) fn acts(sim: &Sim) {
    if !sim.overslept.borrow().is_empty()
        && let Some((app, _)) = super::running(sim)
    {
        acted(sim, app);
    }
}

/// An app does something, or has ended.
pub(super) fn acted(sim: &Sim, app: AppId) {
    let wait = sim.overslept.borrow_mut().remove(&app);
    if let Some(wait) = wait {
        suspect(sim, wait);
    }
}

fn suspect(sim: &Sim, wait: Overslept) {
    if wait.holds(sim) {
        sim.after(GRACE, Event::Overslept(wait));
    }
}

/// A wake-up that was on its way has come by now.
pub(crate) fn found(sim: &Sim, wait: Overslept) {
    if wait.holds(sim) {
        sim.see(Seen::Overslept {
            node: wait.node,
            port: wait.port,
        });
    }
}
