//! A card with a host beside it.

use crate::arena::Arena;
use crate::card::Card;
use crate::host::{self, Window};
use crate::wire::Wire;
use crate::{clock, interrupts};
use netvm_abi::{Nanos, NodeId};
use netvm_fw_common::host::{Complaint, Host, PAGES};
use netvm_nic::Config;
use netvm_platform::Progress;

/// A card and its host.
pub(super) struct End<W: Wire> {
    pub(super) card: Card<W>,
    pub(super) host: Host<Window>,
}

impl<W: Wire> End<W> {
    /// A card of `node` on `wire`, and a host for it, which has opened its port and asked for links to both nodes.
    pub(super) fn new(arena: &mut Arena, node: NodeId, wire: W) -> Result<Self, Complaint> {
        let config = Config {
            node,
            // Differs from start to start by as much as booting takes longer or shorter.
            incarnation_seed: (clock::now().0 as u32)
                .wrapping_mul(2)
                .wrapping_add(u32::from(node.0)),
            ..Config::default()
        };
        let geometry = config.geometry;
        let shared = host::inside(arena, &geometry, PAGES as usize);
        let card = Card::start(arena, config, shared, wire).map_err(|_| "the configuration is refused")?;
        let mut host = Host::new(shared, geometry, config.hash_key);
        host.open([NodeId(0), NodeId(1)].into_iter())?;
        Ok(Self { card, host })
    }

    /// A pass of the card and of its host.
    pub(super) fn turn(&mut self) -> Result<Progress, Complaint> {
        interrupts::passed();
        let mut progress = self.card.pass();
        progress.worked |= self.host.serve()?;
        Ok(progress)
    }

    /// Runs both until `done` or `end`, and sleeps while there is nothing to do; whether `done`.
    pub(super) fn until(&mut self, end: Nanos, done: impl Fn(&Self) -> bool) -> Result<bool, Complaint> {
        loop {
            if done(self) {
                return Ok(true);
            }
            if clock::now() >= end {
                return Ok(false);
            }
            let progress = self.turn()?;
            if !progress.worked && !done(self) {
                self.card
                    .sleep(progress.deadline.map_or(end, |deadline| deadline.min(end)));
            }
        }
    }

    /// Whether nothing has happened that should not.
    pub(super) fn is_sound(&self) -> bool {
        let counters = self.card.nic.counters();
        counters.malformed == 0
            && counters.messages_failed == 0
            && counters.dropped == 0
            && counters.dma_failed == 0
            && counters.events_lost == 0
            && counters.links_lost == 0
            && self.card.around.overflowed == 0
    }

    /// Says what the card did.
    pub(super) fn report(&self) {
        let counters = self.card.nic.counters();
        crate::log::info!(
            "node {}: {} messages sent, {} landed, {} zero-copy, {} bounced, {} notifications, {} interrupts",
            self.card.nic.config().node,
            counters.messages_sent,
            counters.messages_landed,
            counters.zero_copy,
            counters.bounced_not_found,
            counters.notifications_delivered,
            self.card.around.interrupts,
        );
        crate::log::info!(
            "{} messages sent again, {} tail probes, {} links lost",
            counters.retransmitted,
            counters.tail_probes,
            counters.links_lost,
        );
    }
}
