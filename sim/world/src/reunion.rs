//! After the faults each node reaches each one, itself included: of every ordered pair, one has a message to the other
//! confirmed.
//!
//! Links that the faults have broken may be found broken only now, by the first message that is lost on them. So a
//! process tries again, and what counts is when it has got through.

use crate::config::Config;
use crate::workload::{Env, REUNION, Role};
use netvm::{Access, Error, Port, PortConfig, RemoteSegment, Result, Timeout};
use netvm_abi::control::Modes;
use netvm_abi::{Nanos, NodeId};
use netvm_nic::config::Timers;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Nodes of a world in which every pair is tried. In larger ones, links come with their first use, and each node tries
/// its neighbours.
pub(crate) const ALL_PAIRS: u16 = 16;

/// How long after the last fault each pair has got through: the host's time for a page that is slow to come, the cards'
/// for a link that is down without their knowing, and a card's that has to be found dead, emptied and reset.
pub(crate) fn bound(config: &Config, timers: &Timers) -> Nanos {
    config
        .deadline
        .after(timers.loss_bound())
        .after(Nanos::from_millis(60))
}

/// The pairs that have not got through, from and to.
#[derive(Clone, Default)]
pub(crate) struct Apart(Rc<RefCell<BTreeSet<(NodeId, NodeId)>>>);

impl Apart {
    /// All pairs that are tried in such a world.
    fn of(config: &Config) -> Self {
        let nodes = config.nodes;
        let tries = |from: u16| -> Vec<u16> {
            if nodes <= ALL_PAIRS {
                (0..nodes).collect()
            } else {
                vec![from, (from + 1) % nodes, (from + nodes - 1) % nodes]
            }
        };
        let pairs =
            (0..nodes).flat_map(|from| tries(from).into_iter().map(move |to| (NodeId(from), NodeId(to))));
        Self(Rc::new(RefCell::new(pairs.collect())))
    }

    /// Whether all have.
    pub(crate) fn is_over(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Those that have not, for a report.
    pub(crate) fn describe(&self) -> String {
        let pairs = self.0.borrow();
        let text: Vec<String> = pairs.iter().map(|(from, to)| format!("{from} to {to}")).collect();
        text.join(", ")
    }

    /// The next node that this one tries after `last`.
    fn next(&self, from: NodeId, last: NodeId) -> Option<NodeId> {
        let pairs = self.0.borrow();
        let mine = |above: u16| pairs.range((from, NodeId(above))..=(from, NodeId(u16::MAX)));
        let next = mine(last.0.saturating_add(1)).next().or_else(|| mine(0).next());
        next.map(|pair| pair.1)
    }

    fn together(&self, from: NodeId, to: NodeId) {
        self.0.borrow_mut().remove(&(from, to));
    }
}

/// A role for each node.
pub(crate) fn roles(config: &Config) -> (Apart, Vec<Role>) {
    let apart = Apart::of(config);
    let role = |id| {
        let apart = apart.clone();
        let mut role = Role::new("reunion", NodeId(id), move |env| {
            // An error ends this life of it; the role starts over.
            let patience = Timeout::After(env.millis(2));
            let _ = reunite(&env, &apart, patience);
        });
        // The others of its kind send to it.
        role.server = true;
        role
    };
    let roles = (0..config.nodes).map(role).collect();
    (apart, roles)
}

/// Tries one node after the other, and is there for all others until the run closes.
fn reunite(env: &Env, apart: &Apart, patience: Timeout) -> Result<()> {
    let port = Port::open(&env.node, PortConfig::number(REUNION.0))?;
    let region = port.alloc(4096)?;
    let access = Access::everyone().modes(Modes::WRITE);
    let _here = port.export("here", &region, .., access)?;
    let mut last = env.id;
    while !env.stage.closing() {
        if let Some(to) = apart.next(env.id, last) {
            last = to;
            match greet(env, &port, to, patience) {
                Ok(()) => apart.together(env.id, to),
                Err(error @ (Error::PortClosed | Error::PortEnded { .. })) => return Err(error),
                Err(_) => {}
            }
            // What has failed to one node must not come between this one and another.
            let _ = port.flush();
        }
        let pause = if apart.is_over() { 1_000 } else { 100 };
        match port.notification(1)?.wait(Duration::from_micros(pause)) {
            Ok(_) | Err(Error::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Has a message to a node confirmed.
fn greet(env: &Env, port: &Port, to: NodeId, patience: Timeout) -> Result<()> {
    let remote: RemoteSegment = port.import_with(to, REUNION, "here", Modes::WRITE, patience)?;
    remote
        .write(u64::from(env.id.0) % 512 * 8, &u64::MAX.to_le_bytes()[..])
        .post()?;
    port.flush_remote(to)
}
