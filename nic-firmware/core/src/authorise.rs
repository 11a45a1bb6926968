//! May this message do what it asks? Checked in O(1), before any lock (promise P5).

use crate::nic::Nic;
use crate::platform::Platform;
use netvm_abi::capability::{Capability, capability_at};
use netvm_abi::control::Modes;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::Header;
use netvm_abi::{Nanos, PAGE_SIZE, SegmentId};

/// What the check gives: the segment that the page must belong to, once it is locked. Nothing when
/// no memory is touched.
pub(crate) type Authority = Result<Option<SegmentId>, Status>;

impl<S: Storage> Nic<S> {
    /// Checks a request that wants to move `len` bytes in the way of `mode`, and its notification.
    /// Counts refusals.
    #[inline]
    pub(crate) fn authorise<P: Platform>(
        &mut self,
        p: &P,
        now: Nanos,
        header: &Header,
        len: u32,
        mode: Modes,
    ) -> Authority {
        let authority = self.check(p, now, header, len, mode);
        if let Err(status) = authority {
            *self.refusals(status) += 1;
        }
        authority
    }

    #[inline]
    fn check<P: Platform>(&self, p: &P, now: Nanos, header: &Header, len: u32, mode: Modes) -> Authority {
        let open = self
            .ports
            .get(header.destination_port.index())
            .is_some_and(|port| port.state == crate::port::PortState::Open);
        if !open {
            return Err(Status::NoSuchPort);
        }
        if u32::from(header.address.page_offset().0) + len > PAGE_SIZE {
            return Err(Status::Malformed);
        }
        if mutant::is(Mutant::CapabilityCheckSkipped) {
            return Ok(None);
        }
        if header.capability.0 >= self.config.geometry.capabilities {
            return Err(Status::CapabilityRefused);
        }
        let at = capability_at(self.bar.capabilities, header.capability);
        let Some(capability) = Capability::load(p.bar(), at) else {
            return Err(Status::CapabilityRefused);
        };
        let wrong = differ(capability.secret, header.secret)
            | differ(u64::from(capability.port.0), u64::from(header.destination_port.0))
            | differ(u64::from(capability.holder.0), u64::from(header.source.0))
            | differ(
                u64::from(capability.holder_port.0),
                u64::from(header.source_port.0),
            );
        if wrong != 0 {
            return Err(Status::CapabilityRefused);
        }
        if now >= capability.expires && capability.expires != Nanos::MAX {
            return Err(Status::Expired);
        }
        if header.notification.is_some() {
            let allowed = capability.modes.contains(Modes::NOTIFY)
                && capability.notify_first <= header.notification
                && header.notification <= capability.notify_last;
            if !allowed {
                return Err(Status::ModeRefused);
            }
        }
        if len == 0 {
            return Ok(None);
        }
        if !capability.modes.contains(mode) {
            return Err(Status::ModeRefused);
        }
        match header.address.checked_add(u64::from(len)) {
            Some(end) if header.address >= capability.start && end <= capability.end => {
                Ok(Some(capability.segment))
            }
            _ => Err(Status::OutOfRange),
        }
    }

    /// The counter of a reason to fail.
    pub(crate) fn refusals(&mut self, status: Status) -> &mut u64 {
        let counters = &mut self.counters;
        match status {
            Status::NoSuchPort => &mut counters.refused_port,
            Status::CapabilityRefused => &mut counters.refused_capability,
            Status::OutOfRange => &mut counters.refused_range,
            Status::ModeRefused => &mut counters.refused_mode,
            Status::Expired => &mut counters.refused_expired,
            Status::Malformed => &mut counters.refused_malformed,
            Status::Unsupported => &mut counters.unsupported,
            _ => &mut counters.failed,
        }
    }
}

/// Not zero if two values differ. Takes the same time whichever bits do; `black_box` keeps the
/// compiler from turning it into an early exit.
#[inline]
fn differ(left: u64, right: u64) -> u64 {
    core::hint::black_box(left ^ right)
}

#[cfg(test)]
mod tests {
    use super::differ;

    #[test]
    fn differ_is_zero_only_for_equal_values() {
        for bit in 0..64 {
            assert_ne!(differ(0, 1 << bit), 0);
            assert_eq!(differ(1 << bit, 1 << bit), 0);
        }
    }
}
