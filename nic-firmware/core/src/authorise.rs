//! May this message do what it asks? Checked in O(1), before any lock (promise P5).

use crate::nic::Nic;
use crate::platform::Platform;
use crate::port::PortState;
use netvm_abi::bar::BarMap;
use netvm_abi::capability::{CAPABILITY_WORDS, CapabilityEntry, capability_at};
use netvm_abi::control::Modes;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::Header;
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::{BounceId, Geometry, Nanos, PAGE_SIZE, SegmentId, WordIndex};

/// What the check gives: the segment that the page must belong to, once it is locked.
pub(crate) type Authority = Result<SegmentId, Status>;

/// Where the capability table is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CapabilityTable {
    first: WordIndex,
    count: u32,
}

impl CapabilityTable {
    /// The table of a NIC.
    pub(crate) const fn of(geometry: &Geometry) -> Self {
        Self {
            first: BarMap::new(geometry).capabilities,
            count: geometry.capabilities,
        }
    }

    /// Checks a request to an open port.
    #[inline]
    fn check<W: SharedWords + ?Sized>(&self, bar: &W, request: &Request<'_>) -> Authority {
        let slot = request.header.capability;
        if slot.0 >= self.count {
            return Err(Status::CapabilityRefused);
        }
        let at = capability_at(self.first, slot);
        let words = bar.atomics(at, CAPABILITY_WORDS as u32);
        match words.and_then(|words| words.first_chunk::<CAPABILITY_WORDS>()) {
            Some(words) => request.check(words),
            None => request.check_by_words(bar, at),
        }
    }
}

/// What a message asks for.
struct Request<'a> {
    header: &'a Header,
    now: Nanos,
    /// Bytes that it moves, in the way of `mode`.
    len: u32,
    mode: Modes,
}

impl Request<'_> {
    /// Whether the capability in `words` allows it, and its notification.
    #[inline]
    fn check<W: SharedWords>(&self, words: W) -> Authority {
        let header = self.header;
        let Some(capability) = CapabilityEntry::of(words) else {
            return Err(Status::CapabilityRefused);
        };
        let wrong = (capability.secret() ^ header.secret)
            | u64::from(capability.port().0 ^ header.destination_port.0)
            | u64::from(capability.holder().0 ^ header.source.0)
            | u64::from(capability.holder_port().0 ^ header.source_port.0);
        // Takes the same time whichever bits differ: `black_box` wants the whole sum, so the compiler
        // cannot leave at the first difference.
        if core::hint::black_box(wrong) != 0 {
            return Err(Status::CapabilityRefused);
        }
        let expires = capability.expires();
        if self.now >= expires && expires != Nanos::MAX {
            return Err(Status::Expired);
        }
        if header.notification.is_some() {
            let allowed = capability.modes().contains(Modes::NOTIFY)
                && capability.notify_first() <= header.notification
                && header.notification <= capability.notify_last();
            if !allowed {
                return Err(Status::ModeRefused);
            }
        }
        if self.len != 0 {
            if !capability.modes().contains(self.mode) {
                return Err(Status::ModeRefused);
            }
            let end = header.address.checked_add(u64::from(self.len));
            let inside =
                header.address >= capability.start() && end.is_some_and(|end| end <= capability.end());
            if !inside {
                return Err(Status::OutOfRange);
            }
        }
        Ok(capability.segment())
    }

    /// The same where every access is an act of its own.
    #[cold]
    #[inline(never)]
    fn check_by_words<W: SharedWords + ?Sized>(&self, bar: &W, at: WordIndex) -> Authority {
        self.check(Part::new(bar, at, CAPABILITY_WORDS as u32))
    }
}

impl<S: Storage> Nic<S> {
    /// Checks the request in a window slot, which wants to move `len` bytes in the way of `mode`, and
    /// remembers for which life of its port it was let through. Counts refusals.
    #[inline]
    pub(crate) fn authorise<P: Platform>(
        &mut self,
        p: &P,
        now: Nanos,
        at: BounceId,
        len: u32,
        mode: Modes,
    ) -> Authority {
        let Some(slot) = self.slots.get_mut(at.index()) else {
            return Err(Status::Malformed);
        };
        let header = &slot.header;
        let authority = match self.ports.get(header.destination_port.index()) {
            Some(port) if port.state == PortState::Open => {
                slot.port_generation = port.generation;
                if u32::from(header.address.page_offset().0) + len > PAGE_SIZE {
                    Err(Status::Malformed)
                } else if mutant::is(Mutant::CapabilityCheckSkipped) {
                    Ok(SegmentId(0))
                } else {
                    self.capabilities.check(
                        p.bar(),
                        &Request {
                            header,
                            now,
                            len,
                            mode,
                        },
                    )
                }
            }
            _ => Err(Status::NoSuchPort),
        };
        if let Err(status) = authority {
            *self.refusals(status) += 1;
        }
        authority
    }

    /// Whether a page of this segment is one that the authority is for.
    #[inline]
    pub(crate) fn covers(authority: SegmentId, page: SegmentId) -> bool {
        authority == page || mutant::is(Mutant::CapabilityCheckSkipped)
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
