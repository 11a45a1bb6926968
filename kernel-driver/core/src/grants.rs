//! Capabilities derived for importers: a mirror of the NIC's capability table in host memory.
//!
//! A slot's life: free, live (the NIC honours it), retracted (invalid in the NIC's table, DMAs
//! authorised earlier may be under way), passed (nothing is under way; its holder is still to be
//! told), free. [`crate::revoke`] has the second half.

use crate::leases::{FOR_IMPORTS, Lease};
use crate::lists::{Links, List, linked};
use crate::shares::Shares;
use netvm_abi::capability::Capability;
use netvm_abi::control::{Grant, Modes};
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::{
    ByteLen, CapabilitySlot, ExportId, Generation, Nanos, NodeId, NotificationId, PortId, SegmentId, Status,
    Token, VirtAddr,
};
use subtle::ConstantTimeEq;

/// A capability that an importer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantInfo {
    /// Its slot in the NIC's table.
    pub slot: CapabilitySlot,
    /// Use of the slot.
    pub generation: Generation,
    /// The export it was derived from.
    pub export: ExportId,
    /// The node that may use it.
    pub holder: NodeId,
    /// The port there.
    pub holder_port: PortId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantState {
    Free,
    Live,
    Retracted,
    Passed,
}

#[derive(Debug)]
pub(crate) struct GrantEntry {
    pub(crate) state: GrantState,
    pub(crate) generation: u32,
    pub(crate) capability: Capability,
    pub(crate) export: u32,
    /// The import request that it answered.
    pub(crate) request: Token,
    /// The barrier after which no DMA under it is under way.
    pub(crate) stamp: u32,
    /// Workers that are copying under it.
    pub(crate) in_hand: u32,
    /// Its holder is to be told of the revocation.
    pub(crate) tell: bool,
    /// It is a lease.
    pub(crate) lease: Option<Lease>,
    /// A lease is not over before, as far as the host knows. [`Nanos::MAX`] of what is no lease.
    pub(crate) sure_until: Nanos,
    of_export: Links,
    of_peer: Links,
    /// Of the free or the retracted list.
    of_state: Links,
}

linked!(GrantEntry: 0 => of_export, 1 => of_peer, 2 => of_state);

pub(crate) struct Grants<S: Storage> {
    pub(crate) table: S::Table<GrantEntry>,
    pub(crate) free: List<2>,
    pub(crate) retracted: List<2>,
    /// Retracted ones whose holder is still to be told.
    pub(crate) untold: u32,
    /// No grant was told again in this poll.
    pub(crate) may_tell: bool,
    /// The entry with which telling importers again goes on.
    pub(crate) next_told: u32,
    /// How many leases a port may give.
    pub(crate) shares: Shares<S>,
}

/// What a message wants to do under a capability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) slot: CapabilitySlot,
    pub(crate) secret: u64,
    pub(crate) port: PortId,
    pub(crate) holder: NodeId,
    pub(crate) holder_port: PortId,
    pub(crate) address: VirtAddr,
    pub(crate) len: ByteLen,
    pub(crate) modes: Modes,
    pub(crate) notification: NotificationId,
}

impl<S: MakeTable> Grants<S> {
    pub(crate) fn new(tables: &mut S, entries: u32, ports: u16) -> Self {
        let mut table = tables.table(entries as usize, |_| GrantEntry {
            state: GrantState::Free,
            generation: 1,
            capability: Capability::NOTHING,
            export: 0,
            request: Token(0),
            stamp: 0,
            in_hand: 0,
            tell: false,
            lease: None,
            sure_until: Nanos::MAX,
            of_export: Links::NONE,
            of_peer: Links::NONE,
            of_state: Links::NONE,
        });
        let free = List::of_all(&mut table);
        Self {
            table,
            free,
            retracted: List::EMPTY,
            untold: 0,
            may_tell: true,
            next_told: 0,
            shares: Shares::new(tables, entries - entries / FOR_IMPORTS, ports),
        }
    }
}

impl<S: Storage> Grants<S> {
    /// The host's own check of a claim, as the NIC makes it (promise P5); on success the segment.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn check(&self, claim: &Claim, now: Nanos) -> Result<SegmentId, Status> {
        let entry = self
            .table
            .get(claim.slot.index())
            .filter(|entry| entry.state == GrantState::Live)
            .ok_or(Status::CapabilityRefused)?;
        let capability = &entry.capability;
        let same = claim.secret.ct_eq(&capability.secret)
            & claim.port.0.ct_eq(&capability.port.0)
            & claim.holder.0.ct_eq(&capability.holder.0)
            & claim.holder_port.0.ct_eq(&capability.holder_port.0);
        if !bool::from(same) {
            return Err(Status::CapabilityRefused);
        }
        // A lease may live longer. The card knows: the caller asks it.
        if now >= entry.sure_until && !mutant::is(Mutant::LeaseUnasked) {
            return Err(Status::Expired);
        }
        if !capability.modes.contains(claim.modes) {
            return Err(Status::ModeRefused);
        }
        let end = claim.address.checked_add(u64::from(claim.len.0));
        let inside = claim.address >= capability.start && end.is_some_and(|end| end <= capability.end);
        if claim.len.0 > 0 && !inside {
            return Err(Status::OutOfRange);
        }
        let notified = claim.notification;
        if notified.is_some()
            && !(capability.modes.contains(Modes::NOTIFY)
                && (capability.notify_first..=capability.notify_last).contains(&notified))
        {
            return Err(Status::ModeRefused);
        }
        Ok(capability.segment)
    }

    pub(crate) fn info(&self, index: u32, export: ExportId) -> Option<GrantInfo> {
        let entry = self.table.get(index as usize)?;
        Some(GrantInfo {
            slot: CapabilitySlot(index),
            generation: Generation(entry.generation),
            export,
            holder: entry.capability.holder,
            holder_port: entry.capability.holder_port,
        })
    }

    pub(crate) fn as_grant(&self, index: u32) -> Option<Grant> {
        let capability = &self.table.get(index as usize)?.capability;
        Some(Grant {
            start: capability.start,
            len: capability.end.0 - capability.start.0,
            capability: CapabilitySlot(index),
            secret: capability.secret,
            modes: capability.modes,
            notify_first: capability.notify_first,
            notify_last: capability.notify_last,
            queue: capability.queue,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_kit::Heap;

    /// Every way in which a claim may not fit its capability, one at a time (promise P5).
    #[test]
    fn a_claim_is_checked_field_by_field() {
        let mut grants = Grants::new(&mut Heap::default(), 4, 2);
        let capability = Capability {
            port: PortId(3),
            modes: Modes::WRITE | Modes::NOTIFY,
            segment: SegmentId(9),
            holder: NodeId(1),
            holder_port: PortId(2),
            start: VirtAddr(0x1010),
            end: VirtAddr(0x1020),
            secret: 77,
            notify_first: NotificationId(5),
            notify_last: NotificationId(6),
            ..Capability::NOTHING
        };
        grants.table[1].capability = capability;
        grants.table[1].sure_until = Nanos(100);
        let good = Claim {
            slot: CapabilitySlot(1),
            secret: 77,
            port: PortId(3),
            holder: NodeId(1),
            holder_port: PortId(2),
            address: VirtAddr(0x1010),
            len: ByteLen(16),
            modes: Modes::WRITE,
            notification: NotificationId(6),
        };
        let check = |grants: &Grants<Heap>, change: &dyn Fn(&mut Claim)| {
            let mut claim = good;
            change(&mut claim);
            grants.check(&claim, Nanos(99))
        };
        assert_eq!(
            check(&grants, &|_| ()),
            Err(Status::CapabilityRefused),
            "not live"
        );
        grants.table[1].state = GrantState::Live;
        assert_eq!(check(&grants, &|_| ()), Ok(SegmentId(9)));
        assert_eq!(grants.check(&good, Nanos(100)), Err(Status::Expired));
        type Case<'a> = (&'a dyn Fn(&mut Claim), Status);
        let cases: [Case<'_>; 13] = [
            (&|c| c.slot = CapabilitySlot(0), Status::CapabilityRefused),
            (&|c| c.slot = CapabilitySlot(4), Status::CapabilityRefused),
            (&|c| c.secret ^= 1 << 63, Status::CapabilityRefused),
            (&|c| c.port = PortId(4), Status::CapabilityRefused),
            (&|c| c.holder = NodeId(2), Status::CapabilityRefused),
            (&|c| c.holder_port = PortId(3), Status::CapabilityRefused),
            (&|c| c.modes = Modes::READ, Status::ModeRefused),
            (&|c| c.address = VirtAddr(0x100F), Status::OutOfRange),
            (&|c| c.address = VirtAddr(0x1011), Status::OutOfRange),
            (&|c| c.address = VirtAddr(u64::MAX), Status::OutOfRange),
            (&|c| c.len = ByteLen(u32::MAX), Status::OutOfRange),
            (&|c| c.notification = NotificationId(4), Status::ModeRefused),
            (&|c| c.notification = NotificationId(7), Status::ModeRefused),
        ];
        for (i, (change, status)) in cases.into_iter().enumerate() {
            assert_eq!(check(&grants, change), Err(status), "case {i}");
        }
        // A message without data names no address; one without a number notifies no port.
        let empty = |c: &mut Claim| {
            c.len = ByteLen(0);
            c.address = VirtAddr(0);
            c.modes = Modes::empty();
        };
        assert_eq!(check(&grants, &empty), Ok(SegmentId(9)));
        grants.table[1].capability.modes = Modes::WRITE;
        assert_eq!(check(&grants, &|_| ()), Err(Status::ModeRefused));
        assert_eq!(
            check(&grants, &|c| c.notification = NotificationId::NONE),
            Ok(SegmentId(9))
        );
    }
}
