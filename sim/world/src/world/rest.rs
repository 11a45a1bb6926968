//! When everything has ended, nothing is held: no page of memory, and nothing of the cards' and the drivers' tables.
//!
//! The last answers and farewells may be on their way then, so a node has some time to come to rest. A node that never
//! does has lost something: the table that it belongs to is smaller from now on, and one day it is full.

use super::{Stop, World};
use crate::check::{Promise, Violation};
use crate::node::Node;
use crate::reunion;
use crate::sim::Sim;

impl World {
    /// Whether all nodes have come to rest.
    ///
    /// # Errors
    /// When one takes too long.
    pub(super) fn is_at_rest(&self, elapsed: netvm_abi::Nanos) -> Result<bool, Stop> {
        let held: Vec<String> = self
            .sim
            .nodes
            .iter()
            .flat_map(|node| held(&self.sim, node))
            .collect();
        if held.is_empty() {
            return Ok(true);
        }
        if elapsed <= reunion::bound(&self.config, &self.timers) {
            return Ok(false);
        }
        Err(Stop::Broken(Violation {
            promise: Promise::P6,
            what: format!(
                "{} ms after everything has ended this is still held: {}",
                elapsed.0 / 1_000_000,
                held.join("; ")
            ),
        }))
    }
}

/// What a node holds, in words.
fn held(sim: &Sim, node: &Node) -> Vec<String> {
    let (card, driver) = (node.card.borrow(), node.driver(sim));
    let of_card = card
        .iter()
        .flat_map(|card| card.census())
        .map(|(what, count)| ("card", what, count));
    let of_driver = driver.iter().flat_map(|driver| driver.host.census());
    let of_driver = of_driver.map(|(what, count)| ("driver", what, count));
    let [capabilities, pages] = node.armed();
    let frames = (node.memory_limit - node.vm.borrow().free_frames()) as u32;
    let [dmas, receives] = node.bus.borrow().held();
    let of_node = [
        ("host", "page_frames", frames),
        ("table", "capabilities", capabilities),
        ("table", "page_slots", pages),
        ("bus", "dmas", dmas),
        ("bus", "receive_buffers", receives),
    ];
    of_card
        .chain(of_driver)
        .chain(of_node)
        .filter(|&(_, _, count)| count != 0)
        .map(|(whose, what, count)| format!("{whose} of node {}: {count} {what}", node.id))
        .collect()
}
