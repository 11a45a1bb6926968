//! The capability table: what remote ports may do, written by the host driver, checked by the NIC
//! in O(1).
//!
//! A message names a slot and its 64-bit secret. Validity is one word. To revoke, the host clears
//! it, and rewrites the slot only after a [`Barrier`](crate::event::HostEvent::Barrier): by then no
//! NIC step that saw the old entry is still under way, so an entry is never read while it changes.
//!
//! The end of a [lease](crate::lease) is the NIC's: it alone stores it once the entry is published.

use crate::control::Modes;
use crate::shared_queue::QueueShape;
use crate::units::{CapabilitySlot, Nanos, NodeId, NotificationId, PortId, SegmentId, VirtAddr, WordIndex};
use crate::words::{Part, SharedWords, join, split};

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
    /// End of its life on the NIC's clock; [`Nanos::MAX`]: none; 0: that of a lease which has not begun.
    pub expires: Nanos,
    /// The shared queue that its range is.
    pub queue: QueueShape,
}

/// Word of a slot, relative to the BAR, given the table's place.
#[must_use]
pub const fn capability_at(table: WordIndex, slot: CapabilitySlot) -> WordIndex {
    table.plus(slot.0 * CAPABILITY_WORDS as u32)
}

/// Copies the words of an entry, for a NIC to whose step each look at shared words is an act of its own.
///
/// **Order.** The driver stores words 1 to 14, then word 0 with release. Here word 0 is loaded first, with acquire, and
/// everything else later. So a copy that says "valid" has the words that were published with it, and not those of the
/// entry that stood there before. One slice over all words would not do: its loads have no order among themselves,
/// and a processor with weak order may take the secret before the validity. (An entry that is revoked meanwhile keeps
/// its words until the NIC has answered the barrier, which it does between two steps.)
#[must_use]
pub fn copy_entry<W: SharedWords + ?Sized>(bar: &W, at: WordIndex) -> [u32; CAPABILITY_WORDS] {
    let mut words = [0; CAPABILITY_WORDS];
    let [valid, rest @ ..] = &mut words;
    *valid = bar.load_acquire(at);
    bar.load_slice(at.plus(1), rest);
    words
}

/// A node and one of its ports as an entry names its holder.
#[must_use]
#[inline]
pub const fn holder_word(node: NodeId, port: PortId) -> u32 {
    node.0 as u32 | ((port.0 as u32) << 16)
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $type:ty = |$word:ident| $value:expr;)*) => {
        $(
            $(#[$doc])*
            #[must_use]
            #[inline]
            pub fn $name(&self) -> $type {
                let $word = |at| self.0.load_acquire(WordIndex(at));
                $value
            }
        )*
    };
}

impl Capability {
    /// One that allows nothing: no mode, no byte, no notification.
    pub const NOTHING: Self = Self {
        port: PortId(0),
        modes: Modes::empty(),
        segment: SegmentId(0),
        holder: NodeId(0),
        holder_port: PortId(0),
        start: VirtAddr(0),
        end: VirtAddr(0),
        secret: 0,
        notify_first: NotificationId::NONE,
        notify_last: NotificationId::NONE,
        expires: Nanos::MAX,
        queue: QueueShape::NONE,
    };

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
                holder_word(self.holder, self.holder_port),
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
                self.queue.word(),
            ],
        );
        bar.store_release(at, 1);
    }

    /// Stores the end of a lease's life (NIC).
    pub(crate) fn set_end<W: SharedWords + ?Sized>(bar: &W, at: WordIndex, end: Nanos) {
        bar.store_slice(at.plus(12), &split(end.0));
    }

    /// Makes the entry invalid (host driver). Follow with a barrier event before it is used again.
    pub fn retract<W: SharedWords + ?Sized>(bar: &W, at: WordIndex) {
        bar.store_release(at, 0);
        bar.full_barrier();
    }

    /// The entry, if it is valid (NIC).
    #[inline]
    pub fn load<W: SharedWords + ?Sized>(bar: &W, at: WordIndex) -> Option<Self> {
        let entry = CapabilityEntry::of(Part::new(bar, at, CAPABILITY_WORDS as u32))?;
        Some(Self {
            port: entry.port(),
            modes: entry.modes(),
            segment: entry.segment(),
            holder: NodeId(entry.holder() as u16),
            holder_port: PortId((entry.holder() >> 16) as u16),
            start: entry.start(),
            end: entry.end(),
            secret: entry.secret(),
            notify_first: entry.notify_first(),
            notify_last: entry.notify_last(),
            expires: entry.expires(),
            queue: entry.queue(),
        })
    }
}

/// The words of a valid entry, for a NIC that looks at each field where it needs it: all of one step
/// see the same entry (see the module's text).
#[derive(Clone, Copy, Debug)]
pub struct CapabilityEntry<W>(W);

impl<W: SharedWords> CapabilityEntry<W> {
    /// The entry in `words`, which begin with it, if it is valid.
    #[inline]
    pub fn of(words: W) -> Option<Self> {
        (words.load_acquire(WordIndex(0)) == 1).then_some(Self(words))
    }

    fields! {
        /// The exporting port.
        port: PortId = |word| PortId(word(1) as u16);
        /// What it allows.
        modes: Modes = |word| Modes::from_bits_truncate((word(1) >> 16) as u16);
        /// The segment that its pages belong to.
        segment: SegmentId = |word| SegmentId(word(2));
        /// The node that may use it, and the port there, in one word: see [`holder_word`].
        holder: u32 = |word| word(3);
        /// First byte.
        start: VirtAddr = |word| VirtAddr(join(word(4), word(5)));
        /// Byte after the last.
        end: VirtAddr = |word| VirtAddr(join(word(6), word(7)));
        /// Proof of possession.
        secret: u64 = |word| join(word(8), word(9));
        /// Lowest notification number.
        notify_first: NotificationId = |word| NotificationId(word(10));
        /// Highest notification number.
        notify_last: NotificationId = |word| NotificationId(word(11));
        /// End of its life on the NIC's clock; [`Nanos::MAX`]: none.
        expires: Nanos = |word| Nanos(join(word(12), word(13)));
        /// The shared queue that its range is.
        queue: QueueShape = |word| QueueShape::from_word(word(14));
    }
}
