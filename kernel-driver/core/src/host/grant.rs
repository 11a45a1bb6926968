//! Deriving capabilities for importers, and their release.
//!
//! An importer may have given up before the answer comes, and then have no control slot to say so: the grant is lost to it, and
//! held here. Such grants cost nothing until capabilities are short. Then some of what is held is told again, in turn
//! ([`Host::tell_grants_again`]): an importer that knows the grant ignores that, any other releases it.

use super::Host;
use crate::control::{ANSWERS, Purpose};
use crate::grants::{GrantInfo, GrantState};
use crate::lists::List;
use crate::platform::Platform;
use netvm_abi::capability::capability_at;
use netvm_abi::control::{Control, Grant, Modes};
use netvm_abi::lease::{Terms, lease_at};
use netvm_abi::storage::Storage;
use netvm_abi::{CapabilitySlot, ExportId, Nanos, NodeId, PortId, Status, Token};
use subtle::ConstantTimeEq;

/// Entries that one look for grants to tell again passes (promise P7). There is one look in a poll.
const TOLD_SLICE: u32 = 64;
/// How many of them it tells at most.
const TOLD_AT_ONCE: u32 = 2;
/// Answers that stay free for importers that ask.
const ANSWERS_KEPT: usize = (ANSWERS.end - ANSWERS.start) as usize / 2;

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
        if self.grants_are_short(holder) {
            self.tell_grants_again(platform);
        }
        let most = self.grants_of_a_node();
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
        if peer.grants.len() >= most {
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

    /// Grants that one node may hold: half of the table.
    const fn grants_of_a_node(&self) -> u32 {
        self.geometry.capabilities.div_ceil(2)
    }

    /// Whether the table, or a node's half of it, has a quarter left or less.
    fn grants_are_short(&self, holder: NodeId) -> bool {
        let half = self.grants_of_a_node();
        let held = self.peers.get(holder.index()).map_or(0, |peer| peer.grants.len());
        held >= half - half / 4 || self.grants.free.len() <= self.geometry.capabilities / 4
    }

    /// Tells some of the importers again what they were granted: the next ones of the table, as far as control slots allow.
    pub(crate) fn tell_grants_again<P: Platform>(&mut self, platform: &mut P) {
        if !core::mem::take(&mut self.grants.may_tell) {
            return;
        }
        let mut told = 0;
        for _ in 0..TOLD_SLICE.min(self.geometry.capabilities) {
            if told >= TOLD_AT_ONCE || self.control.room(Purpose::Answer) <= ANSWERS_KEPT {
                return;
            }
            let index = self.grants.next_told % self.geometry.capabilities;
            self.grants.next_told = index + 1;
            let Some(entry) = self.grants.table.get(index as usize) else {
                return;
            };
            let (holder, token) = (entry.capability.holder, entry.request);
            // A lease's holder did not ask; this node's own imports end without a message; the grants of a link that is lost
            // are being taken back.
            let asked = entry.state == GrantState::Live && entry.lease.is_none() && holder != self.node;
            let peer = self.peers.get(holder.index());
            let reached = peer.is_some_and(|peer| peer.up.is_some() && peer.releasing.is_none());
            if asked
                && reached
                && let Some(grant) = self.grants.as_grant(index)
            {
                told += 1;
                self.counters.grants_told_again += 1;
                self.send_control(
                    platform,
                    holder,
                    Purpose::Answer,
                    &Control::Granted { token, grant },
                );
            }
        }
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
