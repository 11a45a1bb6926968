//! The ports of a node's processes: their owners, their exports, their waiters.

use super::overslept::{self, Overslept};
use super::{AppId, running, wake, wake_after};
use crate::coroutine::Park;
use crate::node::Node;
use crate::seen::{Ending, ExportFact, Seen};
use crate::sim::Sim;
use crate::vm::ProcessId;
use netvm_abi::{ExportId, Nanos, PortId, SegmentId};
use netvm_host::ports::OpenPort;
use std::collections::BTreeMap;
use std::rc::Rc;

/// An open port of a node.
pub(crate) struct PortState {
    pub(crate) process: ProcessId,
    pub(crate) open: OpenPort,
    /// The event count that callers block on.
    pub(crate) events: u32,
    waiters: Vec<AppId>,
    /// The apps that spin on its words or its memory, in a modelled world.
    spinners: Vec<AppId>,
    /// Exports as the app asked for them, with the segment that they lie in.
    exports: Vec<(ExportId, SegmentId, Rc<ExportFact>)>,
}

/// The open ports of a node.
pub(crate) type Ports = BTreeMap<PortId, PortState>;

/// A port is open.
pub(crate) fn port_opened(sim: &Sim, node: &Node, process: ProcessId, open: OpenPort) {
    let state = PortState {
        process,
        open,
        events: 0,
        waiters: Vec::new(),
        spinners: Vec::new(),
        exports: Vec::new(),
    };
    node.ports.borrow_mut().insert(open.port, state);
    sim.see(Seen::PortOpened {
        node: node.id,
        port: open.port,
        process,
    });
    if let Some(word) = node.left_over(open.port, sim.counts_from.get()) {
        sim.see(Seen::LeftOver {
            node: node.id,
            port: open.port,
            word,
        });
    }
    sim.note(
        node.id,
        "port open",
        &[
            ("port", u64::from(open.port.0)),
            ("process", u64::from(process.0)),
        ],
    );
}

/// The driver has finished closing a port.
pub(crate) fn port_closed(sim: &Sim, node: &Node, port: PortId) {
    let Some(state) = node.ports.borrow_mut().remove(&port) else {
        return;
    };
    // Its queue memory has no owner now, and to an honest app perhaps next.
    node.hostile.borrow_mut().remove(&port);
    for (.., fact) in state.exports {
        sim.see(Seen::Unexported {
            node: node.id,
            port,
            fact,
        });
    }
    sim.see(Seen::PortClosed { node: node.id, port });
    sim.note(node.id, "port closed", &[("port", u64::from(port.0))]);
    for app in state.waiters {
        wake(sim, app);
    }
}

/// The process that owns a port.
pub(crate) fn owner(node: &Node, port: PortId) -> Option<ProcessId> {
    node.ports.borrow().get(&port).map(|state| state.process)
}

/// The open port behind a number.
pub(crate) fn open_port(node: &Node, port: PortId) -> Option<OpenPort> {
    node.ports.borrow().get(&port).map(|state| state.open)
}

/// The ports of a process.
pub(crate) fn ports_of(node: &Node, process: ProcessId) -> Vec<PortId> {
    node.ports
        .borrow()
        .iter()
        .filter(|(_, state)| state.process == process)
        .map(|(&port, _)| port)
        .collect()
}

/// The event count of a port.
pub(crate) fn events(node: &Node, port: PortId) -> u32 {
    node.ports.borrow().get(&port).map_or(0, |state| state.events)
}

/// Something happened that callers of a port may wait for.
pub(crate) fn port_event(sim: &Sim, node: &Node, port: PortId) {
    let waiters = {
        let mut ports = node.ports.borrow_mut();
        let Some(state) = ports.get_mut(&port) else { return };
        state.events = state.events.wrapping_add(1);
        std::mem::take(&mut state.waiters)
    };
    let scheduled = sim.model.map_or(Nanos(20), |model| model.wake);
    for app in waiters {
        wake_after(sim, app, scheduled);
    }
}

/// The running app, which is about to park, spins on a port's words or memory: the next store there ends that.
pub(crate) fn spin(sim: &Sim, node: &Node, port: PortId) {
    let Some((app, _)) = running(sim) else { return };
    if let Some(state) = node.ports.borrow_mut().get_mut(&port)
        && !state.spinners.contains(&app)
    {
        state.spinners.push(app);
    }
}

/// Something was stored where callers of a port may spin.
pub(crate) fn stir(sim: &Sim, node: &Node, port: PortId) {
    let Some(model) = &sim.model else { return };
    // Opening or closing a port stores to it, too.
    let Ok(mut ports) = node.ports.try_borrow_mut() else {
        return;
    };
    let Some(state) = ports.get_mut(&port) else { return };
    let spinners = std::mem::take(&mut state.spinners);
    drop(ports);
    for app in spinners {
        wake_after(sim, app, model.poll);
    }
}

/// The same for all ports of a node.
pub(crate) fn all_ports_event(sim: &Sim, node: &Node) {
    let ports: Vec<PortId> = node.ports.borrow().keys().copied().collect();
    for port in ports {
        port_event(sim, node, port);
    }
}

/// Blocks the running app until an event of its port or a time. Some time passes in any case: a
/// caller that asks again and again must not stop the world's clock.
pub(crate) fn block(sim: &Sim, node: &Node, port: PortId, token: u32, deadline: Nanos) {
    let Some((app, _)) = running(sim) else { return };
    overslept::waits_again(sim, app, (node.id, port, token));
    let waits = {
        let mut ports = node.ports.borrow_mut();
        match ports.get_mut(&port) {
            Some(state) if state.events == token => {
                state.waiters.push(app);
                true
            }
            _ => false,
        }
    };
    if !waits {
        sim.parker.park(Park::Until(sim.now().after(Nanos(300))));
        return;
    }
    // Far enough not to be a busy loop, near enough for a run to notice that no wake-up comes: see `overslept`.
    let far = sim.now().after(Nanos::from_millis(20));
    node.activity.waiting.set(node.activity.waiting.get() + 1);
    sim.parker
        .park(Park::Until(deadline.min(far).max(sim.now().after(Nanos(100)))));
    node.activity
        .waiting
        .set(node.activity.waiting.get().saturating_sub(1));
    if let Some(state) = node.ports.borrow_mut().get_mut(&port) {
        let woken = !state.waiters.contains(&app);
        state.waiters.retain(|&waiter| waiter != app);
        if !woken && deadline > far {
            overslept::note(sim, app, Overslept::new(node, port, token));
        }
    }
}

/// An export exists.
pub(crate) fn exported(
    sim: &Sim,
    node: &Node,
    port: PortId,
    export: (ExportId, SegmentId),
    fact: ExportFact,
) {
    let fact = Rc::new(fact);
    if let Some(state) = node.ports.borrow_mut().get_mut(&port) {
        state.exports.push((export.0, export.1, fact.clone()));
    }
    sim.see(Seen::Exported {
        node: node.id,
        port,
        fact,
    });
}

/// A part of an export is lent: as long as that lasts, it is an export to one port.
pub(crate) fn lent(
    sim: &Sim,
    node: &Node,
    port: PortId,
    export: ExportId,
    fact: ExportFact,
) -> Rc<ExportFact> {
    let fact = Rc::new(fact);
    if let Some(state) = node.ports.borrow_mut().get_mut(&port) {
        let whole = state.exports.iter().find(|entry| entry.0 == export);
        if let Some(segment) = whole.map(|entry| entry.1) {
            state.exports.push((export, segment, fact.clone()));
        }
    }
    let (node, given) = (node.id, fact.clone());
    sim.see(Seen::Exported {
        node,
        port,
        fact: given,
    });
    sim.see(Seen::Ends {
        node,
        port,
        what: Ending::Lease,
    });
    fact
}

/// A lease is about to be taken back.
pub(crate) fn recalls(sim: &Sim, node: &Node, port: PortId) {
    sim.see(Seen::Ends {
        node: node.id,
        port,
        what: Ending::Export,
    });
}

/// The taking back of a lease has returned.
pub(crate) fn lease_gone(sim: &Sim, node: &Node, port: PortId, fact: &Rc<ExportFact>) {
    forget(sim, node, port, |entry| Rc::ptr_eq(&entry.2, fact));
}

/// The withdrawal of an export has returned.
pub(crate) fn export_gone(sim: &Sim, node: &Node, port: PortId, export: ExportId) {
    forget(sim, node, port, |entry| entry.0 == export);
}

/// A segment is gone, its exports with it.
pub(crate) fn segment_gone(sim: &Sim, node: &Node, port: PortId, segment: SegmentId) {
    forget(sim, node, port, |entry| entry.1 == segment);
}

fn forget(
    sim: &Sim,
    node: &Node,
    port: PortId,
    which: impl Fn(&(ExportId, SegmentId, Rc<ExportFact>)) -> bool,
) {
    let mut facts = Vec::new();
    if let Some(state) = node.ports.borrow_mut().get_mut(&port) {
        state.exports.retain(|entry| {
            let goes = which(entry);
            if goes {
                facts.push(entry.2.clone());
            }
            !goes
        });
    }
    for fact in facts {
        sim.see(Seen::Unexported {
            node: node.id,
            port,
            fact,
        });
    }
}
