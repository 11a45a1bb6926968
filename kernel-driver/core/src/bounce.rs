//! Work for paging workers: what the NIC could not do itself, from its event to a port's queue.
//!
//! There is one place for each bounce page, so that nothing can be lost for want of room: window
//! slots, read replies and staging buffers all own theirs. A place is idle, queued at its port, or in
//! a worker's hands (paging, copying; see [`crate::paging`]).

use crate::grants::Claim;
use crate::lists::{Links, linked};
use crate::platform::Resident;
use crate::shadow::MapTicket;
use netvm_abi::atomic::{Atomic, AtomicResult};
use netvm_abi::{
    ByteLen, CapabilitySlot, Generation, Nanos, NodeId, PageOffset, PortId, SegmentId, VirtAddr, Vpn,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Queued,
    /// A worker pages in.
    Paging,
    /// A worker copies.
    Copying,
    /// No worker has it: the card is asked whether its lease is over.
    Asking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// A remote write, under a capability.
    Write,
    /// The reply to a read of the port itself.
    Reply,
    /// A source that the NIC should read.
    Source,
    /// An atomic operation, under a capability.
    Atomic,
}

/// The place of one bounce page.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) state: State,
    pub(crate) kind: WorkKind,
    pub(crate) generation: Generation,
    pub(crate) port: PortId,
    pub(crate) port_generation: Generation,
    /// The sender.
    pub(crate) peer: NodeId,
    pub(crate) claim: Option<Claim>,
    pub(crate) vpn: Vpn,
    pub(crate) offset: PageOffset,
    pub(crate) len: ByteLen,
    /// Tries of the NIC (sources, atomics).
    pub(crate) attempt: u8,
    /// When the NIC's event was taken.
    pub(crate) since: Nanos,
    /// When the card was asked about its lease.
    pub(crate) asked: Nanos,
    pub(crate) races: u8,
    pub(crate) evictions: u8,
    pub(crate) copied: bool,
    /// What an atomic does, and its answer once it is carried out.
    pub(crate) atomic: Option<Atomic>,
    pub(crate) result: Option<AtomicResult>,
    /// Its peer's incarnation is over: the answer is not awaited.
    pub(crate) orphan: bool,
    pub(crate) ticket: Option<MapTicket>,
    pub(crate) resident: Option<Resident>,
    /// The segment that a worker copies to or from.
    pub(crate) segment: Option<SegmentId>,
    /// The segment in which its page was found last.
    pub(crate) near: Option<SegmentId>,
    pub(crate) links: Links,
}

linked!(Work: 0 => links);

impl Work {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Idle,
            kind: WorkKind::Write,
            generation: Generation(0),
            port: PortId(0),
            port_generation: Generation(0),
            peer: NodeId(0),
            claim: None,
            vpn: Vpn::from_raw(0),
            offset: PageOffset(0),
            len: ByteLen(0),
            attempt: 0,
            since: Nanos(0),
            asked: Nanos(0),
            races: 0,
            evictions: 0,
            copied: false,
            atomic: None,
            result: None,
            orphan: false,
            ticket: None,
            resident: None,
            segment: None,
            near: None,
            links: Links::NONE,
        }
    }

    /// The capability under which it is copied.
    pub(crate) fn grant(&self) -> Option<CapabilitySlot> {
        self.claim.map(|claim| claim.slot)
    }

    pub(crate) fn address(&self) -> VirtAddr {
        VirtAddr(self.vpn.address().0 + u64::from(self.offset.0))
    }
}
