//! Two cards in one image, each with a host beside it, joined by a loopback.

use super::end::End;
use crate::arena::Arena;
use crate::wire::loopback::{Hub, Loopback};
use netvm_abi::NodeId;
use netvm_fw_common::host::Complaint;

/// Node 0 and node 1.
pub(super) struct Pair {
    pub(super) source: End<Loopback>,
    pub(super) destination: End<Loopback>,
}

impl Pair {
    /// Two linked cards; each may write the other's pages.
    pub(super) fn linked(arena: &mut Arena) -> Result<Self, Complaint> {
        let hub = Hub::new(arena);
        let mut pair = Self {
            source: End::new(arena, NodeId(0), hub.end(NodeId(0)))?,
            destination: End::new(arena, NodeId(1), hub.end(NodeId(1)))?,
        };
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
            let turns = [self.source.turn()?, self.destination.turn()?];
            if turns.iter().any(|turn| turn.worked) {
                continue;
            }
            let deadline = turns.iter().filter_map(|turn| turn.deadline).min();
            if self.source.card.try_sleep() && self.destination.card.try_sleep() {
                // Only these two could bring anything, so there is nothing to look for once more.
                crate::interrupts::sleep(Some(deadline.unwrap_or(end).min(end)), || true);
            }
        }
        Ok(())
    }
}
