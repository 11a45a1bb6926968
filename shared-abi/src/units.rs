//! Units and names: every number that crosses a boundary says what it counts.

use core::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(
            feature = "zerocopy",
            derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
        )]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The bare number.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }

            /// The number as an array index.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

unit!(/// A node of the network: an index into the node table that all nodes share.
    NodeId(u16));
unit!(/// An application's endpoint on a node.
    PortId(u16));
unit!(/// Distinguishes successive owners of one port number (or one slot of any kind).
    Generation(u32));
unit!(/// One life of the link between two nodes; compared for equality only.
    Incarnation(u32));
unit!(/// Physical page number: a bus page number from the host's DMA API, so an IOMMU may stand between.
    Ppn(u64));
unit!(/// A virtual address in the address space that a port names, in bytes.
    VirtAddr(u64));
unit!(/// Byte offset inside one page.
    PageOffset(u16));
unit!(/// A length in bytes.
    ByteLen(u32));
unit!(/// A point in time or a span, in nanoseconds of the platform's monotonic clock.
    Nanos(u64));
unit!(/// Position of a message in the sequence of one node to another; wraps.
    Seq(u32));
unit!(/// When a message left its card, by that card's clock, in ticks of 64 ns; wraps after 275 s.
    Stamp(u32));
unit!(/// A registered range of a port: the unit of mapping (thesis 4.1).
    SegmentId(u32));
unit!(/// A name given to (part of) a segment.
    ExportId(u32));
unit!(/// Index into the NIC's capability table.
    CapabilitySlot(u32));
unit!(/// Notification number (thesis 6.1): 0 none, 1..=1023 event counts, from 1024 one-shot.
    NotificationId(u32));
unit!(/// The library's number of an operation, echoed in errors and replies.
    OpId(u32));
unit!(/// Error epoch of a stream (source port to node): raised when the library has surfaced an error.
    Epoch(u16));
unit!(/// Index of a reply slot in a port area.
    ReplySlot(u16));
unit!(/// Index of a staging buffer in NIC memory.
    StagingId(u16));
unit!(/// Index of a receive buffer in NIC memory.
    ReceiveId(u32));
unit!(/// Index of a pending read at the requesting NIC.
    ReadSlot(u16));
unit!(/// Index of a bounce page and its record; see [`crate::bounce`].
    BounceId(u32));
unit!(/// Names a request of the host driver to its NIC, echoed in the answer.
    Token(u32));
unit!(/// Index of a 32-bit word in a shared word space.
    WordIndex(u32));

impl VirtAddr {
    /// The page that holds this address, 48 bits.
    #[must_use]
    pub const fn page_number(self) -> u64 {
        // Bits 12 to 59.
        (self.0 << 4) >> 16
    }

    /// The offset inside that page.
    #[must_use]
    pub const fn page_offset(self) -> PageOffset {
        PageOffset((self.0 & 0xFFF) as u16)
    }

    /// This address `bytes` further on, or nothing when it would leave the address space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl Seq {
    /// How far `self` lies past `earlier`, modulo 2^32.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether `self` is later than `other`, of two numbers that are less than 2^31 apart.
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        (self.since(other) as i32) > 0
    }

    /// The sequence number `count` further on.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl Stamp {
    /// Nanoseconds of a tick.
    pub const TICK: u64 = 64;

    /// Of this point in time.
    #[must_use]
    #[inline]
    pub const fn of(now: Nanos) -> Self {
        Self((now.0 / Self::TICK) as u32)
    }

    /// Ticks from `earlier` to `self`, modulo 2^32.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether `self` is later than `other`, of two stamps that are less than 137 s apart.
    #[must_use]
    #[inline]
    pub const fn is_after(self, other: Self) -> bool {
        (self.since(other) as i32) > 0
    }
}

impl Nanos {
    /// "Never": a deadline that does not come.
    pub const MAX: Self = Self(u64::MAX);

    /// From milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// From microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// This point in time `span` later, saturating.
    #[must_use]
    pub const fn after(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl NotificationId {
    /// No notification.
    pub const NONE: Self = Self(0);
    /// First one-shot number (thesis 6.1.4).
    pub const FIRST_ONE_SHOT: Self = Self(1024);

    /// Whether a message with this number notifies its destination.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }

    /// Whether this is a one-shot number.
    #[must_use]
    pub const fn is_one_shot(self) -> bool {
        self.0 >= Self::FIRST_ONE_SHOT.0
    }
}

impl ReplySlot {
    /// The operation asks for no reply record.
    pub const NONE: Self = Self(u16::MAX);
}

impl WordIndex {
    /// The word `count` further on.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

/// Virtual page number: 16-bit port and 48-bit page number. Unique on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Vpn(u64);

impl PortId {
    /// The host driver's own port. No program owns it.
    pub const DRIVER: Self = Self(0);
}

impl Vpn {
    /// The page of `port` that holds `address`.
    #[must_use]
    pub const fn of(port: PortId, address: VirtAddr) -> Self {
        Self::new(port, address.page_number())
    }

    /// From a port and a 48-bit page number; higher bits are cut off.
    #[must_use]
    pub const fn new(port: PortId, page_number: u64) -> Self {
        Self(((port.0 as u64) << 48) | (page_number & 0xFFFF_FFFF_FFFF))
    }

    /// From the 64-bit form.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The 64-bit form: port in the upper 16 bits.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The port.
    #[must_use]
    pub const fn port(self) -> PortId {
        PortId((self.0 >> 48) as u16)
    }

    /// The page number inside the port's address space.
    #[must_use]
    pub const fn page_number(self) -> u64 {
        self.0 & 0xFFFF_FFFF_FFFF
    }

    /// The address of the page's first byte.
    #[must_use]
    pub const fn address(self) -> VirtAddr {
        VirtAddr(self.page_number() << 12)
    }
}

impl fmt::Display for Vpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.port(), self.page_number())
    }
}
