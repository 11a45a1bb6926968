//! Two cards in one image, each with a host beside it, joined by a loopback.

use super::host::{Complaint, Host, PAGES};
use crate::arena::Arena;
use crate::card::Card;
use crate::host::Shared;
use crate::wire::loopback::{Hub, Loopback};
use netvm_abi::{Geometry, NodeId};
use netvm_nic::Config;
use netvm_platform::Progress;

/// A card and its host.
pub(super) struct End {
    pub(super) card: Card<Loopback>,
    pub(super) host: Host,
}

impl End {
    fn new(arena: &mut Arena, hub: Hub, node: u16) -> Result<Self, Complaint> {
        let config = Config {
            node: NodeId(node),
            incarnation_seed: 0x1000 + u32::from(node),
            ..Config::default()
        };
        let geometry: Geometry = config.geometry;
        let shared = Shared::inside(arena, &geometry, PAGES as usize);
        let wire = hub.end(config.node);
        let card = Card::start(arena, config, shared, wire).map_err(|_| "the configuration is refused")?;
        let host = Host::new(shared, geometry, config.hash_key);
        Ok(Self { card, host })
    }

    /// A pass of the card and of its host.
    fn turn(&mut self) -> Result<Progress, Complaint> {
        let mut progress = self.card.pass();
        progress.worked |= self.host.serve()?;
        Ok(progress)
    }
}

/// Node 0 and node 1.
pub(super) struct Pair {
    pub(super) source: End,
    pub(super) destination: End,
}

impl Pair {
    /// Two linked cards; each may write the other's pages.
    pub(super) fn linked(arena: &mut Arena) -> Result<Self, Complaint> {
        let hub = Hub::new(arena);
        let mut pair = Self {
            source: End::new(arena, hub, 0)?,
            destination: End::new(arena, hub, 1)?,
        };
        for end in [&mut pair.source, &mut pair.destination] {
            end.host.open([NodeId(0), NodeId(1)].into_iter())?;
        }
        pair.until("the link does not come up", |pair| {
            pair.source.host.is_linked(NodeId(1)) && pair.destination.host.is_linked(NodeId(0))
        })?;
        pair.source.host.grant(NodeId(1));
        pair.destination.host.grant(NodeId(0));
        Ok(pair)
    }

    /// Runs both until nothing moves.
    pub(super) fn settle(&mut self) -> Result<(), Complaint> {
        let mut quiet = 0;
        for _ in 0..10_000 {
            crate::interrupts::passed();
            let moved = self.source.turn()?.worked | self.destination.turn()?.worked;
            quiet = if moved { 0 } else { quiet + 1 };
            if quiet == 2 {
                return Ok(());
            }
        }
        Err("the cards do not come to rest")
    }

    /// Runs both until `done`, for a second at most; sleeps while there is nothing to do.
    pub(super) fn until(
        &mut self,
        complaint: Complaint,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), Complaint> {
        let end = crate::clock::now().after(netvm_abi::Nanos::from_millis(1000));
        while !done(self) {
            if crate::clock::now() > end {
                return Err(complaint);
            }
            crate::interrupts::passed();
            let turns = [self.source.turn()?, self.destination.turn()?];
            if turns.iter().any(|turn| turn.worked) {
                continue;
            }
            let deadline = turns.iter().filter_map(|turn| turn.deadline).min();
            if self.source.card.try_sleep() && self.destination.card.try_sleep() {
                // Nobody but these two could bring anything, so there is nothing to look for once more.
                crate::interrupts::sleep(Some(deadline.unwrap_or(end).min(end)), || true);
            }
        }
        Ok(())
    }
}
