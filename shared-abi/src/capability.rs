//! The capability table: what remote ports may do, written by the host driver, checked by the NIC
//! in O(1).
//!
//! A message names a slot and its 64-bit secret. Validity is one word. To revoke, the host clears
//! it, and rewrites the slot only after a [`Barrier`](crate::event::HostEvent::Barrier): by then no
//! NIC step that saw the old entry is still under way, so an entry is never read while it changes.

use crate::control::Modes;
use crate::units::{CapabilitySlot, Nanos, NodeId, NotificationId, PortId, SegmentId, VirtAddr, WordIndex};
use crate::words::{SharedWords, join, split};

/// Words of an entry.
pub const CAPABILITY_WORDS: usize = 16;

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The exporting port.
    pub port: PortId,
    /// What it allows.
    pub modes: Modes,
    /// The segment that its pages belong to.
    pub segment: SegmentId,
    /// The node that may use it.
    pub holder: NodeId,
    /// The port there that may use it.
    pub holder_port: PortId,
    /// First byte.
    pub start: VirtAddr,
    /// Byte after the last.
    pub end: VirtAddr,
    /// Proof of possession.
    pub secret: u64,
    /// Lowest notification number.
    pub notify_first: NotificationId,
    /// Highest notification number.
    pub notify_last: NotificationId,
    /// End of its life on the NIC's clock; [`Nanos::MAX`]: none.
    pub expires: Nanos,
}

/// Word of a slot, relative to the BAR, given the table's place.
#[must_use]
pub const fn capability_at(table: WordIndex, slot: CapabilitySlot) -> WordIndex {
    table.plus(slot.0 * CAPABILITY_WORDS as u32)
}

impl Capability {
    /// Writes the entry and makes it valid (host driver).
    pub fn publish<W: SharedWords + ?Sized>(&self, bar: &W, at: WordIndex) {
        let start = split(self.start.0);
        let end = split(self.end.0);
        let secret = split(self.secret);
        let expires = split(self.expires.0);
        bar.store_slice(
            at.plus(1),
            &[
                self.port.0 as u32 | ((self.modes.bits() as u32) << 16),
                self.segment.0,
                self.holder.0 as u32 | ((self.holder_port.0 as u32) << 16),
                start[0],
                start[1],
                end[0],
                end[1],
                secret[0],
                secret[1],
                self.notify_first.0,
                self.notify_last.0,
                expires[0],
                expires[1],
            ],
        );
        bar.store_release(at, 1);
    }

    /// Makes the entry invalid (host driver). Follow with a barrier event before it is used again.
    pub fn retract<W: SharedWords + ?Sized>(bar: &W, at: WordIndex) {
        bar.store_release(at, 0);
        bar.full_barrier();
    }

    /// The entry, if it is valid (NIC).
    #[inline]
    pub fn load<W: SharedWords + ?Sized>(bar: &W, at: WordIndex) -> Option<Self> {
        if bar.load_acquire(at) != 1 {
            return None;
        }
        let mut words = [0; 13];
        bar.load_slice(at.plus(1), &mut words);
        Some(Self {
            port: PortId(words[0] as u16),
            modes: Modes::from_bits_truncate((words[0] >> 16) as u16),
            segment: SegmentId(words[1]),
            holder: NodeId(words[2] as u16),
            holder_port: PortId((words[2] >> 16) as u16),
            start: VirtAddr(join(words[3], words[4])),
            end: VirtAddr(join(words[5], words[6])),
            secret: join(words[7], words[8]),
            notify_first: NotificationId(words[9]),
            notify_last: NotificationId(words[10]),
            expires: Nanos(join(words[11], words[12])),
        })
    }
}
