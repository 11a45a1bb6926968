//! Deriving capabilities for importers, and their release.

use super::Host;
use crate::grants::{GrantInfo, GrantState};
use crate::lists::List;
use crate::platform::Platform;
use netvm_abi::capability::capability_at;
use netvm_abi::control::{Grant, Modes};
use netvm_abi::lease::{Terms, lease_at};
use netvm_abi::storage::Storage;
use netvm_abi::{CapabilitySlot, ExportId, Nanos, NodeId, PortId, Status, Token};
use subtle::ConstantTimeEq;

impl<S: Storage> Host<S> {
    /// The grants of an export that work, in no order.
    pub fn grants_of(&self, export: ExportId) -> impl Iterator<Item = GrantInfo> + '_ {
        let entry = self.exports.live(export);
        let mut next = entry.and_then(|export| export.grants.first());
        core::iter::from_fn(move || {
            let index = next?;
            next = List::<0>::after(&self.grants.table, index);
            self.grants.info(index, export)
        })
    }

    /// Derives a capability of an export for an importer and gives it to the NIC. A request that is
    /// made again gets what it got the first time.
    ///
    /// # Errors
    /// [`Status::NotAllowed`], [`Status::TableFull`].
    pub(crate) fn grant<P: Platform>(
        &mut self,
        platform: &mut P,
        export: u32,
        holder: NodeId,
        holder_port: PortId,
        modes: Modes,
        request: Token,
    ) -> Result<Grant, Status> {
        let mut derived = self.exports.derive(export, holder, holder_port, modes)?;
        if self.grants.free.is_empty() {
            // More may be over than one look takes.
            self.reap();
        }
        let peer = self.peers.get_mut(holder.index()).ok_or(Status::NoSuchNode)?;
        let mut next = peer.grants.first();
        while let Some(index) = next {
            next = List::<1>::after(&self.grants.table, index);
            let same = self.grants.table.get(index as usize).is_some_and(|entry| {
                entry.request == request
                    && entry.export == export
                    && entry.capability.holder_port == holder_port
                    && entry.capability.modes == derived.modes
            });
            if same {
                self.counters.grants_repeated += 1;
                return self.grants.as_grant(index).ok_or(Status::TableFull);
            }
        }
        // One node cannot take the whole table from the others.
        if peer.grants.len() >= self.geometry.capabilities.div_ceil(2) {
            return Err(Status::TableFull);
        }
        let grants = &mut self.grants;
        let index = grants
            .free
            .pop_front(&mut grants.table)
            .ok_or(Status::TableFull)?;
        derived.secret = platform.secret();
        if let Some(entry) = grants.table.get_mut(index as usize) {
            entry.state = GrantState::Live;
            entry.capability = derived;
            entry.export = export;
            entry.request = request;
            entry.tell = false;
            entry.lease = None;
            entry.sure_until = Nanos::MAX;
        }
        peer.grants.push_back(&mut grants.table, index);
        if let Some(export) = self.exports.table.get_mut(export as usize) {
            export.grants.push_back(&mut grants.table, index);
        }
        let slot = CapabilitySlot(index);
        Terms::none(platform.bar(), lease_at(self.bar_map.leases, slot));
        let at = capability_at(self.bar_map.capabilities, slot);
        derived.publish(platform.bar(), at);
        self.counters.grants += 1;
        self.grants.as_grant(index).ok_or(Status::TableFull)
    }

    /// A holder lets go of a capability.
    ///
    /// # Errors
    /// [`Status::CapabilityRefused`] when it does not hold it.
    pub(crate) fn release_grant<P: Platform>(
        &mut self,
        platform: &mut P,
        holder: NodeId,
        slot: CapabilitySlot,
        secret: u64,
        now: Nanos,
    ) -> Result<(), Status> {
        let held = self.grants.table.get(slot.index()).is_some_and(|entry| {
            entry.state == GrantState::Live
                && entry.capability.holder == holder
                && bool::from(entry.capability.secret.ct_eq(&secret))
        });
        if !held {
            return Err(Status::CapabilityRefused);
        }
        self.retract_grant(platform, slot.0, false);
        self.counters.grants_released += 1;
        self.request_barrier(platform, now);
        self.reap();
        Ok(())
    }

    /// A worker begins (or ends) to copy under a grant.
    pub(crate) fn grant_in_hand(&mut self, slot: CapabilitySlot, begins: bool) {
        if let Some(entry) = self.grants.table.get_mut(slot.index()) {
            entry.in_hand = if begins {
                entry.in_hand + 1
            } else {
                entry.in_hand.saturating_sub(1)
            };
        }
    }
}
