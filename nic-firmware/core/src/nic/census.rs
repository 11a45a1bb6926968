//! What a NIC holds at the moment, counted one by one: for tests, and for programs that show the state of a card.
//!
//! A card that has nothing to do holds nothing. Each count looks through a whole table, so no step of the NIC may ask.

use super::Nic;
use crate::links::LinkReport;
use netvm_abi::storage::Storage;
use netvm_abi::{NodeId, PortId};

/// Kinds of things that a NIC holds.
const KINDS: usize = 14;

/// How many of each kind of thing a NIC holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census([(&'static str, u32); KINDS]);

impl IntoIterator for Census {
    type Item = (&'static str, u32);
    type IntoIter = core::array::IntoIter<Self::Item, KINDS>;

    /// What is counted, and how many.
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<S: Storage> Nic<S> {
    /// Commands that a port has posted and that have not left yet. One that the card has not looked at since is not among them.
    #[must_use]
    pub fn commands(&self, port: PortId) -> u32 {
        self.ports
            .get(port)
            .map_or(0, |port| u32::from(port.pipeline.len()))
    }

    /// Messages of a port that are not known to have landed.
    #[must_use]
    pub fn under_way_of(&self, port: PortId) -> u32 {
        self.links.slots_of(&self.env.config, port)
    }

    /// Messages of all ports that are not known to have landed.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.links.credits_held()
    }

    /// What the link to a node shows of itself.
    #[must_use]
    pub fn link_report(&self, node: NodeId) -> Option<LinkReport> {
        self.links.report(node)
    }

    /// Counts what the NIC holds.
    #[must_use]
    pub fn census(&self) -> Census {
        let (open, waiting, shares) = self.ports.held();
        let (slots, receives, units) = self.inbound.held();
        Census([
            ("open_ports", open),
            ("commands", waiting),
            ("shares", shares),
            ("window_slots", slots),
            ("receive_buffers", receives),
            ("units", units),
            ("staging_buffers", self.staging.held()),
            ("read_slots", self.round_trips.held()),
            ("credits", self.links.credits_held()),
            ("answers", self.links.answers_owed()),
            ("copies", self.links.copies_held()),
            ("control_messages", self.links.controls_held()),
            ("dma_slots", self.dmas.in_flight()),
            ("barriers", self.dmas.barriers_held()),
        ])
    }
}
