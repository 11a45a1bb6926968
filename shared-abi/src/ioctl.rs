//! `/dev/netvmN`: what a process asks of the host driver. Everything on the data path goes through mapped memory
//! ([`crate::bar::port`], [`crate::port_area`]); calls only set it up, wait, and tear it down.
//!
//! An open file is a port once [`REGISTER`] has succeeded; closing the file closes the port, whatever the process was
//! doing (promise P6). Numbers follow Linux' generic encoding (`asm-generic/ioctl.h`): direction, size of the
//! argument, the letter [`LETTER`], the number. The size is part of the number, so an argument never changes its
//! meaning: a structure that grows gets a new number.
//!
//! Structures are `repr(C)`, the same for 32- and 64-bit callers: integers of fixed width, naturally aligned, no
//! hidden padding; user pointers are `u64`. Reserved fields must be zero. `[in]` is read by the driver, `[out]`
//! written. A call fails with `-1` and `errno`; where the NetVM status says more, the structure has a `status`
//! ([`Status`](crate::Status) code), written even then.

use crate::control::NAME_BYTES;
use crate::counter_table;
use static_assertions::const_assert_eq;

/// The type byte: not taken in the kernel's table of ioctl numbers (6.12).
pub const LETTER: u8 = 0xF5;

const WRITE: u32 = 1;
const READ: u32 = 2;

const fn number(direction: u32, number: u8, size: usize) -> u32 {
    // The size field has 14 bits; `ioctls!` asserts that each structure fits.
    (direction << 30) | ((size as u32) << 16) | ((LETTER as u32) << 8) | number as u32
}

macro_rules! ioctls {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $argument:ty, $size:literal;)*) => {
        $(
            $(#[$doc])*
            pub const $name: u32 = number(READ | WRITE, $number, size_of::<$argument>());
            const_assert_eq!(size_of::<$argument>(), $size);
            const _: () = assert!(size_of::<$argument>() < 1 << 14 && align_of::<$argument>() <= 8);
        )*

        /// All calls that have an argument: name, number, bytes of the argument.
        pub const ALL: &[(&str, u32, usize)] = &[$((stringify!($name), $name, $size),)*];
    };
}

ioctls! {
    /// Describes the card and its geometry; needs no port.
    QUERY = 0x00, Query, 64;
    /// Makes this file a port.
    REGISTER = 0x01, Register, 64;
    /// Makes a range of the process a segment, which the NIC may be given pages of.
    ADOPT = 0x02, Adopt, 32;
    /// Ends a segment: all of its exports, and every mapping.
    DISOWN = 0x03, Disown, 16;
    /// Names a part of a segment, so that others may import it.
    EXPORT = 0x04, Export, 136;
    /// Ends an export; returns when nothing that was authorised by it is under way.
    UNEXPORT = 0x05, Unexport, 16;
    /// Binds to a remote export.
    IMPORT = 0x06, Import, 136;
    /// Lets go of an import.
    UNIMPORT = 0x07, Unimport, 24;
    /// Sleeps until the port area has news.
    WAIT = 0x08, Wait, 32;
    /// Copies counters.
    STAT = 0x09, Stat, 24;
    /// Lends a part of an export to a port of some node, for a time that the card measures.
    LEND = 0x0C, Lend, 80;
    /// Asks the card how much of a lease is left.
    LEASE_LEFT = 0x0D, LeaseLeft, 24;
    /// Takes leases back; returns when nothing that they allowed is under way.
    RECALL = 0x0E, Recall, 24;
}

/// Wakes a NIC that said it sleeps ([`SLEEPING`](crate::shared_map::status_page::SLEEPING)) after a doorbell. No
/// argument.
pub const WAKE: u32 = number(0, 0x0A, 0);

/// Has every [`WAIT`] of this port return, and changes [`PORT_EVENTS`](crate::port_area::PORT_EVENTS). No argument.
pub const NUDGE: u32 = number(0, 0x0B, 0);

/// Most entries of an export's access list: [`Export::allow_count`].
pub const ALLOW_ENTRIES: usize = 16;
/// Most leases that one call takes back: [`Recall::count`].
pub const RECALL_ENTRIES: usize = 32;

/// "Any port that is free" in [`Register::port`], "every port" in [`AllowEntry::port`].
pub const ANY_PORT: u16 = u16::MAX;
/// "Every node" in [`AllowEntry::node`].
pub const ANY_NODE: u16 = u16::MAX;
/// "Wait for ever" as a timeout in nanoseconds; 0 asks and returns at once.
pub const NO_TIMEOUT: u64 = u64::MAX;

/// Regions that a port's file can be mapped at; see [`mmap_offset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MapRegion {
    /// The port's block in NIC memory: 32,768 bytes, read and write, uncached or write-combining.
    Block = 0,
    /// The port's area in driver memory: 16,384 bytes, read only.
    Area = 1,
    /// The status pages: [`Query::status_bytes`], read only.
    Status = 2,
}

/// Offset for `mmap` of a region, in bytes. Each has 2^32 bytes of offsets for itself.
#[must_use]
pub const fn mmap_offset(region: MapRegion) -> u64 {
    (region as u64) << 32
}

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty = $at:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            feature = "zerocopy",
            derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
        )]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* }

        $(const_assert_eq!(core::mem::offset_of!($name, $field), $at);)*
        // No padding: the fields fill the structure.
        const_assert_eq!(0 $(+ size_of::<$kind>())*, size_of::<$name>());

        impl $name {
            /// Fields in order: name, offset and size in bytes.
            pub const FIELDS: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), $at, size_of::<$kind>()),)*];
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: Zero::ZERO,)* }
            }
        }
    )*};
}

/// All-zero values of field types.
trait Zero {
    const ZERO: Self;
}

macro_rules! zero {
    ($($kind:ty),*) => { $(impl Zero for $kind { const ZERO: Self = 0; })* };
}

zero!(u16, u32, u64);

impl Zero for [u8; NAME_BYTES] {
    const ZERO: Self = [0; NAME_BYTES];
}

impl Zero for [u8; counter_table::NAME_BYTES] {
    const ZERO: Self = [0; counter_table::NAME_BYTES];
}

arguments! {
    /// Argument of [`QUERY`].
    Query {
        /// `[out]` [`ABI_VERSION`](crate::ABI_VERSION).
        version: u16 = 0,
        /// `[out]` This node.
        node: u16 = 2,
        /// `[out]` Nodes in the network.
        nodes: u16 = 4,
        /// `[out]` Ports of this node.
        ports: u16 = 6,
        /// `[out]` Page size in bytes.
        page_size: u32 = 8,
        /// `[out]` Largest payload of a message in bytes.
        payload: u32 = 12,
        /// `[out]` Sequence window of each peer, in messages.
        window: u16 = 16,
        /// `[out]` Most bytes that travel inline in a descriptor.
        inline_bytes: u16 = 18,
        /// `[out]` Bytes of the status pages.
        status_bytes: u32 = 20,
        /// `[out]` Bytes of pinned memory: all that the driver shares with its NIC.
        pinned_bytes: u64 = 24,
        /// `[out]` Bytes of bounce pages, part of the pinned memory.
        bounce_bytes: u64 = 32,
        /// `[out]` Counters that [`STAT`] knows.
        counters: u32 = 40,
        /// Zero.
        reserved0: u32 = 44,
        /// Zero.
        reserved1: u64 = 48,
        /// Zero.
        reserved2: u64 = 56,
    }

    /// Argument of [`REGISTER`].
    Register {
        /// `[in]` [`ABI_VERSION`](crate::ABI_VERSION) of the caller; another one fails with `EPROTO`.
        version: u16 = 0,
        /// `[in]` The port wanted, or [`ANY_PORT`]. `[out]` The port. A taken one fails with `EADDRINUSE`.
        port: u16 = 2,
        /// `[in]` Zero.
        flags: u32 = 4,
        /// `[in]` Least entries of the notification queue wanted. `[out]` What it has.
        notification_queue: u32 = 8,
        /// `[out]` Generation of the port.
        generation: u32 = 12,
        /// `[out]` `mmap` offset of the port's block.
        block_offset: u64 = 16,
        /// `[out]` `mmap` offset of the port's area.
        area_offset: u64 = 24,
        /// `[out]` `mmap` offset of the status pages.
        status_offset: u64 = 32,
        /// `[in]` Descriptor of an eventfd that is signalled as [`WAIT`] would wake, or `u32::MAX`.
        eventfd: u32 = 40,
        /// `[out]` Status code.
        status: u32 = 44,
        /// Zero.
        reserved0: u64 = 48,
        /// Zero.
        reserved1: u64 = 56,
    }

    /// Argument of [`ADOPT`].
    Adopt {
        /// `[in]` First address, page-aligned.
        address: u64 = 0,
        /// `[in]` Bytes, a multiple of the page size, not zero.
        len: u64 = 8,
        /// `[in]` Zero.
        flags: u32 = 16,
        /// `[out]` The segment.
        segment: u32 = 20,
        /// `[out]` Status code.
        status: u32 = 24,
        /// Zero.
        reserved: u32 = 28,
    }

    /// Argument of [`DISOWN`].
    Disown {
        /// `[in]` The segment.
        segment: u32 = 0,
        /// `[out]` Status code.
        status: u32 = 4,
        /// Zero.
        reserved: u64 = 8,
    }

    /// Argument of [`EXPORT`].
    Export {
        /// `[in]` The name, 1 to 64 bytes, padded with zeroes.
        name: [u8; NAME_BYTES] = 0,
        /// `[in]` First address, any alignment, inside the segment.
        address: u64 = 64,
        /// `[in]` Bytes, not zero.
        len: u64 = 72,
        /// `[in]` The segment.
        segment: u32 = 80,
        /// `[in]` Most that any importer may do ([`Modes`](crate::control::Modes)).
        modes: u32 = 84,
        /// `[in]` Lowest notification number that importers may use.
        notify_first: u32 = 88,
        /// `[in]` Highest notification number that importers may use.
        notify_last: u32 = 92,
        /// `[in]` Pointer to an array of [`AllowEntry`].
        allow: u64 = 96,
        /// `[in]` Entries of the array; zero allows no importer anything.
        allow_count: u32 = 104,
        /// `[out]` The export.
        export: u32 = 108,
        /// `[in]` Life of derived capabilities in nanoseconds from each import on; zero: without end.
        lease: u64 = 112,
        /// `[out]` Status code.
        status: u32 = 120,
        /// `[in]` The shared queue that the range is ([`QueueShape`](crate::shared_queue::QueueShape)), or zero.
        queue: u32 = 124,
        /// Zero.
        reserved1: u64 = 128,
    }

    /// The nodes and ports that may import an export, and with which modes.
    AllowEntry {
        /// The node, or [`ANY_NODE`].
        node: u16 = 0,
        /// The port there, or [`ANY_PORT`].
        port: u16 = 2,
        /// What it may do at most.
        modes: u16 = 4,
        /// Zero.
        reserved: u16 = 6,
    }

    /// Argument of [`UNEXPORT`].
    Unexport {
        /// `[in]` The export.
        export: u32 = 0,
        /// `[out]` Status code.
        status: u32 = 4,
        /// Zero.
        reserved: u64 = 8,
    }

    /// Argument of [`IMPORT`].
    Import {
        /// `[in]` The export's name, padded with zeroes.
        name: [u8; NAME_BYTES] = 0,
        /// `[in]` The exporting node.
        node: u16 = 64,
        /// `[in]` The exporting port.
        port: u16 = 66,
        /// `[in]` The modes wanted. `[out]` The modes granted.
        modes: u32 = 68,
        /// `[in]` Nanoseconds to wait for the export to appear.
        timeout: u64 = 72,
        /// `[out]` First address at the exporter.
        address: u64 = 80,
        /// `[out]` Bytes.
        len: u64 = 88,
        /// `[out]` The capability's secret.
        secret: u64 = 96,
        /// `[out]` The capability's slot.
        capability: u32 = 104,
        /// `[out]` Lowest notification number allowed.
        notify_first: u32 = 108,
        /// `[out]` Highest notification number allowed.
        notify_last: u32 = 112,
        /// `[out]` Status code.
        status: u32 = 116,
        /// `[out]` The shared queue that it is, or zero.
        queue: u32 = 120,
        /// Zero.
        reserved0: u32 = 124,
        /// Zero.
        reserved1: u64 = 128,
    }

    /// Argument of [`UNIMPORT`].
    Unimport {
        /// `[in]` The capability's secret.
        secret: u64 = 0,
        /// `[in]` The capability's slot.
        capability: u32 = 8,
        /// `[in]` The exporting node.
        node: u16 = 12,
        /// Zero.
        reserved0: u16 = 14,
        /// `[out]` Status code.
        status: u32 = 16,
        /// Zero.
        reserved1: u32 = 20,
    }

    /// Argument of [`WAIT`]. Returns when one of these four words of the port area is no longer what the caller has
    /// seen, or after the timeout (`ETIMEDOUT`), or for a signal (`EINTR`).
    Wait {
        /// `[in]` [`NOTIFICATION_WRITE`](crate::port_area::NOTIFICATION_WRITE) as seen. `[out]` As it is now.
        notifications: u32 = 0,
        /// `[in]` [`ERROR_WRITE`](crate::port_area::ERROR_WRITE) as seen. `[out]` As it is now.
        errors: u32 = 4,
        /// `[in]` [`PORT_STATE`](crate::port_area::PORT_STATE) as seen. `[out]` As it is now.
        state: u32 = 8,
        /// `[in]` [`PORT_EVENTS`](crate::port_area::PORT_EVENTS) as seen. `[out]` As it is now.
        events: u32 = 12,
        /// `[in]` Nanoseconds.
        timeout: u64 = 16,
        /// Zero.
        reserved: u64 = 24,
    }

    /// Argument of [`STAT`].
    Stat {
        /// `[in]` Pointer to an array of [`Counter`].
        counters: u64 = 0,
        /// `[in]` Entries of the array. `[out]` Counters there are; no more than the array holds are written.
        count: u32 = 8,
        /// `[in]` Whose ([`StatScope`]).
        scope: u32 = 12,
        /// `[in]` Of ports, segments and peers: the number from which on to look. `[out]` Whose counters these are,
        /// or [`NOBODY`]. Of the driver and the card: zero.
        which: u32 = 16,
        /// Zero.
        reserved: u32 = 20,
    }

    /// Argument of [`LEND`].
    Lend {
        /// `[in]` First address, inside the export.
        address: u64 = 0,
        /// `[in]` Bytes, not zero.
        len: u64 = 8,
        /// `[in]` Nanoseconds that it lasts, unless it is extended; not zero.
        duration: u64 = 16,
        /// `[in]` Nanoseconds that it lasts at most; no less than `duration`.
        longest: u64 = 24,
        /// `[out]` The capability's secret.
        secret: u64 = 32,
        /// `[in]` The export.
        export: u32 = 40,
        /// `[in]` What the holder may do, of what the export allows.
        modes: u32 = 44,
        /// `[in]` The holder's node.
        node: u16 = 48,
        /// `[in]` The holder's port.
        port: u16 = 50,
        /// `[out]` The capability's slot.
        capability: u32 = 52,
        /// `[out]` Tells the lease from others of its slot.
        generation: u32 = 56,
        /// `[out]` Status code.
        status: u32 = 60,
        /// `[out]` Lowest notification number allowed.
        notify_first: u32 = 64,
        /// `[out]` Highest notification number allowed.
        notify_last: u32 = 68,
        /// Zero.
        reserved: u64 = 72,
    }

    /// Argument of [`LEASE_LEFT`].
    LeaseLeft {
        /// `[in]` The capability's slot.
        capability: u32 = 0,
        /// `[in]` The lease's generation.
        generation: u32 = 4,
        /// `[out]` Nanoseconds that are left at least; zero: it is over for good.
        left: u64 = 8,
        /// `[out]` Status code.
        status: u32 = 16,
        /// Zero.
        reserved: u32 = 20,
    }

    /// Argument of [`RECALL`].
    Recall {
        /// `[in]` Pointer to an array of [`LeaseName`]. Those that are gone already, or another port's, are left out.
        leases: u64 = 0,
        /// `[in]` Entries of the array, [`RECALL_ENTRIES`] at most.
        count: u32 = 8,
        /// `[out]` Status code.
        status: u32 = 12,
        /// Zero.
        reserved: u64 = 16,
    }

    /// Names a lease of the calling port.
    LeaseName {
        /// The capability's slot.
        capability: u32 = 0,
        /// The lease's generation.
        generation: u32 = 4,
    }

    /// One counter, as [`STAT`] gives it.
    Counter {
        /// Its name: UTF-8, zeros behind it.
        name: [u8; counter_table::NAME_BYTES] = 0,
        /// What was counted since driver, card, port, segment or link were started; or what there is now.
        value: u64 = 32,
    }
}

/// The owner of the counters that [`STAT`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum StatScope {
    /// The driver's.
    Driver = 0,
    /// The card's, as it published them last.
    Card = 1,
    /// An open port's.
    Port = 2,
    /// A registered segment's; `which` counts places in the driver's table.
    Segment = 3,
    /// Those of the link to a node.
    Peer = 4,
}

/// In [`Stat::which`]: there is no port, segment or peer of this or a higher number.
pub const NOBODY: u32 = u32::MAX;

const_assert_eq!(size_of::<AllowEntry>(), 8);
