//! May this message do what it asks? Checked in O(1), before any lock (promise P5).
//!
//! The end of a lease is compared with the time as that of any capability is. What is special about leases is in [`crate::leases`].

use crate::counters::Counters;
use crate::inbound::Slot;
use crate::ports::Port;
use core::sync::atomic::AtomicU32;
use netvm_abi::bar::BarMap;
use netvm_abi::capability::{CAPABILITY_WORDS, CapabilityEntry, capability_at, copy_entry, holder_word};
use netvm_abi::control::Modes;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::shared_queue::Places;
use netvm_abi::status::Status;
use netvm_abi::wire::{HEADER_WORDS, MessageFlags, RawHeader};
use netvm_abi::words::SharedWords;
use netvm_abi::{Geometry, Nanos, NotificationId, PAGE_SIZE, SegmentId, WordIndex};

/// What the check gives: the segment that the page must belong to, once it is locked.
pub(crate) type Authority = Result<SegmentId, Status>;

/// Where the capability table is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CapabilityTable {
    pub(crate) first: WordIndex,
    pub(crate) count: u32,
    /// Where the lease table is.
    pub(crate) leases: WordIndex,
}

impl CapabilityTable {
    /// The table of a NIC.
    pub(crate) const fn of(geometry: &Geometry) -> Self {
        let map = BarMap::new(geometry);
        Self {
            first: map.capabilities,
            count: geometry.capabilities,
            leases: map.leases,
        }
    }

    /// Checks a request to an open port.
    #[inline(always)]
    fn check<W: SharedWords + ?Sized>(&self, bar: &W, request: &Request<'_>) -> Authority {
        let slot = request.header.capability();
        if slot.0 >= self.count {
            return Err(Status::CapabilityRefused);
        }
        let at = capability_at(self.first, slot);
        let copy;
        let words = match bar
            .atomics(at, CAPABILITY_WORDS as u32)
            .and_then(<[_]>::first_chunk)
        {
            Some(words) => words,
            None => {
                copy = copied(bar, at);
                &copy
            }
        };
        request.check(words)
    }
}

/// What a message asks for.
pub(crate) struct Request<'a> {
    pub(crate) header: &'a RawHeader<[u32; HEADER_WORDS]>,
    pub(crate) now: Nanos,
    /// Bytes that it moves, in the way of `mode`.
    pub(crate) len: u32,
    pub(crate) mode: Modes,
}

impl Request<'_> {
    /// Whether the capability in `words` allows it, and its notification.
    #[inline(always)]
    fn check(&self, words: &[AtomicU32; CAPABILITY_WORDS]) -> Authority {
        let (header, capability) = (self.header, self.named(words)?);
        if header.notification().is_some() {
            let allowed = capability.modes().contains(Modes::NOTIFY)
                && capability.notify_first() <= header.notification()
                && header.notification() <= capability.notify_last();
            if !allowed && !mutant::is(Mutant::NotificationUnchecked) {
                return Err(Status::ModeRefused);
            }
        }
        if self.len != 0 {
            if !capability.modes().contains(self.mode) {
                return Err(Status::ModeRefused);
            }
            let end = header.address().checked_add(u64::from(self.len));
            let inside =
                header.address() >= capability.start() && end.is_some_and(|end| end <= capability.end());
            if !inside {
                return Err(Status::OutOfRange);
            }
        }
        Ok(capability.segment())
    }
}

impl Request<'_> {
    /// Whether the capability in `words` is the one that the message names, and the sender's: the steps that
    /// every check begins with.
    #[inline(always)]
    pub(crate) fn named<'w>(
        &self,
        words: &'w [AtomicU32; CAPABILITY_WORDS],
    ) -> Result<CapabilityEntry<&'w [AtomicU32; CAPABILITY_WORDS]>, Status> {
        let header = self.header;
        let Some(capability) = CapabilityEntry::of(words) else {
            return Err(Status::CapabilityRefused);
        };
        let wrong = (capability.secret() ^ header.secret())
            | u64::from(capability.port().0 ^ header.destination_port().0)
            | u64::from(capability.holder() ^ holder_word(header.source(), header.source_port()));
        // Takes the same time whichever bits differ: `black_box` wants the whole sum, so the compiler
        // cannot leave at the first difference.
        if core::hint::black_box(wrong) != 0 {
            return Err(Status::CapabilityRefused);
        }
        // No time comes to `Nanos::MAX`, "never".
        if self.now >= capability.expires() && !mutant::is(Mutant::LeaseUnending) {
            return Err(Status::Expired);
        }
        Ok(capability)
    }

    /// Whether the capability in `words` allows an append of this length, and to which queue.
    fn check_append(&self, words: &[AtomicU32; CAPABILITY_WORDS]) -> Result<Queue, Status> {
        let capability = self.named(words)?;
        if !capability.modes().contains(self.mode) {
            return Err(Status::ModeRefused);
        }
        let shape = capability.queue();
        let Some(places) = shape.places(capability.start(), capability.end()) else {
            return Err(Status::OutOfRange);
        };
        if self.len > shape.entry_bytes() {
            return Err(Status::OutOfRange);
        }
        Ok(Queue {
            places,
            raises: shape.notification(),
        })
    }
}

/// The queue that a capability lets a message append to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub(crate) places: Places,
    /// The event count that each entry raises.
    pub(crate) raises: NotificationId,
}

/// An entry's words, copied: see [`copy_entry`] for their order.
#[cold]
#[inline(never)]
pub(crate) fn copied<W: SharedWords + ?Sized>(bar: &W, at: WordIndex) -> [AtomicU32; CAPABILITY_WORDS] {
    copy_entry(bar, at).map(AtomicU32::new)
}

impl CapabilityTable {
    /// Checks the request in a window slot, which wants to move `len` bytes in the way of `mode`, and
    /// remembers for which life of its port it was let through.
    #[inline(always)]
    pub(crate) fn authorise<W: SharedWords + ?Sized>(
        &self,
        bar: &W,
        now: Nanos,
        slot: &mut Slot,
        port: &Port,
        len: u32,
        mode: Modes,
    ) -> Authority {
        if !port.is_open() {
            return Err(Status::NoSuchPort);
        }
        slot.let_through(port.generation());
        let header = slot.header();
        if u32::from(header.address().page_offset().0) + len > PAGE_SIZE {
            return Err(Status::Malformed);
        }
        if mutant::is(Mutant::CapabilityCheckSkipped) {
            return Ok(SegmentId(0));
        }
        if mutant::is(Mutant::FalseRefusal) && len == 40 {
            return Err(Status::NoMemory);
        }
        self.check(
            bar,
            &Request {
                header,
                now,
                len,
                mode,
            },
        )
    }

    /// Finds the queue that the append in a window slot is for, if it may append to it. Where it goes is not its
    /// sender's choice, and neither is which event count it raises: its message may name none.
    pub(crate) fn authorise_append<W: SharedWords + ?Sized>(
        &self,
        bar: &W,
        now: Nanos,
        slot: &Slot,
        port: &Port,
    ) -> Result<Queue, Status> {
        if !port.is_open() {
            return Err(Status::NoSuchPort);
        }
        let header = slot.header();
        let len = u32::from(header.payload_len());
        if len == 0 || header.notification().is_some() || header.flags().contains(MessageFlags::REGARDLESS) {
            return Err(Status::Malformed);
        }
        let request = Request {
            header,
            now,
            len,
            mode: Modes::APPEND,
        };
        let slot = header.capability();
        if slot.0 >= self.count {
            return Err(Status::CapabilityRefused);
        }
        request.check_append(&copied(bar, capability_at(self.first, slot)))
    }
}

/// Whether a page of this segment is one that the authority is for.
#[inline]
pub(crate) fn covers(authority: SegmentId, page: SegmentId) -> bool {
    authority == page || mutant::is(Mutant::CapabilityCheckSkipped)
}

impl Counters {
    /// The counter of a reason to fail.
    pub(crate) fn refusals(&mut self, status: Status) -> &mut u64 {
        match status {
            Status::NoSuchPort => &mut self.refused_port,
            Status::CapabilityRefused => &mut self.refused_capability,
            Status::OutOfRange => &mut self.refused_range,
            Status::ModeRefused => &mut self.refused_mode,
            Status::Expired => &mut self.refused_expired,
            Status::Malformed => &mut self.refused_malformed,
            Status::NoPlace => &mut self.appends_refused,
            _ => &mut self.failed,
        }
    }
}
