//! Leases: capabilities that end by this NIC's clock (`docs/decisions/0042-leases.md`).
//!
//! What they do is in [`netvm_abi::lease`]. An access is compared with the end of its capability in [`crate::authorise`].

use crate::authorise::{CapabilityTable, Request, copied};
use crate::inbound::Slot;
use crate::ports::Port;
use netvm_abi::atomic::AtomicResult;
use netvm_abi::capability::capability_at;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::Opcode;
use netvm_abi::lease::Lease;
use netvm_abi::status::Status;
use netvm_abi::wire::{Body, OwnHeader};
use netvm_abi::words::SharedWords;
use netvm_abi::{CapabilitySlot, Generation, Nanos};

/// What a request for an extension asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension {
    generation: Generation,
    asked: Nanos,
}

impl Extension {
    /// Of a request in the form of an atomic; nothing if it is no extension.
    pub(crate) fn requested_by(header: &OwnHeader) -> Option<Self> {
        match header.body() {
            Body::AtomicRequest {
                opcode: Some(Opcode::ExtendLease),
                operand,
                compare,
                ..
            } if header.payload_len() == 0 => Some(Self {
                generation: Generation(u32::try_from(compare).unwrap_or(0)),
                asked: Nanos(operand),
            }),
            _ => None,
        }
    }
}

impl CapabilityTable {
    fn lease<'a, W: SharedWords + ?Sized>(&self, bar: &'a W, slot: CapabilitySlot) -> Option<Lease<'a, W>> {
        (slot.0 < self.count).then(|| Lease::of(bar, (self.first, self.leases), slot))
    }

    /// A message has found its capability over. If that is a lease that has not begun, it begins, and goes on.
    pub(crate) fn begins_late<W: SharedWords + ?Sized>(
        &self,
        bar: &W,
        slot: CapabilitySlot,
        now: Nanos,
    ) -> bool {
        self.lease(bar, slot)
            .is_some_and(|lease| lease.begin(now) && !lease.is_over(now))
    }

    /// The host says that a lease begins. Returns whether it does.
    pub(crate) fn begin_lease<W: SharedWords + ?Sized>(
        &self,
        bar: &W,
        now: Nanos,
        slot: CapabilitySlot,
        generation: Generation,
    ) -> bool {
        self.lease(bar, slot)
            .is_some_and(|lease| lease.begin_generation(now, generation))
    }

    /// The host asks how much of a lease is left.
    pub(crate) fn lease_left<W: SharedWords + ?Sized>(
        &self,
        bar: &W,
        now: Nanos,
        slot: CapabilitySlot,
        generation: Generation,
    ) -> Nanos {
        self.lease(bar, slot)
            .map_or(Nanos(0), |lease| lease.left(now, generation))
    }

    /// The request in a window slot extends a lease of an open port.
    pub(crate) fn extend_lease<W: SharedWords + ?Sized>(
        &self,
        bar: &W,
        now: Nanos,
        slot: &mut Slot,
        port: &Port,
        extension: Extension,
    ) -> Result<AtomicResult, Status> {
        if !port.is_open() {
            return Err(Status::NoSuchPort);
        }
        slot.let_through(port.generation());
        let header = slot.header();
        let request = Request {
            header,
            now,
            len: 0,
            mode: Modes::empty(),
        };
        let named = header.capability();
        let lease = self.lease(bar, named).ok_or(Status::CapabilityRefused)?;
        let words = copied(bar, capability_at(self.first, named));
        match request.named(&words) {
            Err(Status::Expired) if self.begins_late(bar, named, now) => {}
            checked => {
                checked?;
            }
        }
        lease.extend(now, extension.generation, extension.asked)
    }
}
