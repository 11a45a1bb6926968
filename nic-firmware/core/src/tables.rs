//! The tables of a NIC, and how much memory they take.

use crate::config::ConfigError;
use crate::inbound::{Slot, Stream, UNITS, Unit};
use crate::links::{COPIES, Copy, Hand, NO_COPY, Outgoing, Peer, Sender};
use crate::ports::{NOTIFICATION_ENTRIES, Port};
use crate::queue::Deadline;
use crate::round_trips::RoundTrip;
use crate::staging::Buffer;
use crate::windows::{ASIDE, Aside, Holder};
use core::fmt;
use netvm_abi::Geometry;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::wire::answers;

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident: $entry:ty = $make:expr, $len:expr;)*) => {
        /// The tables that a platform without a heap lends to a NIC: each as long as
        /// [`footprint`] says, of entries made by `Tables::entry` and its siblings.
        pub struct Tables<S: Storage> { $($(#[$doc])* pub $name: S::Table<$entry>,)* }

        impl<S: Storage> Tables<S> {
            /// Makes all tables.
            pub fn make(geometry: &Geometry, storage: &mut S) -> Self
            where
                S: MakeTable,
            {
                Self { $($name: storage.table(($len)(geometry), |_| $make),)* }
            }

            /// Checks lengths, and puts every entry into its first state.
            ///
            /// # Errors
            /// [`ConfigError::Table`] for the first table that is too short or too long.
            pub(crate) fn reset(&mut self, geometry: &Geometry) -> Result<(), ConfigError> {
                $(
                    let needed = ($len)(geometry);
                    let lent = self.$name.len();
                    if lent != needed {
                        return Err(ConfigError::Table { name: stringify!($name), needed, lent });
                    }
                    for entry in self.$name.iter_mut() {
                        *entry = $make;
                    }
                )*
                Ok(())
            }
        }

        /// An entry of each table in its first state, for static memory.
        pub mod entry {
            #![allow(clippy::wildcard_imports)]
            use super::*;
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name() -> $entry { $make }
            )*
        }

        const ROWS: usize = [$(stringify!($name),)*].len();

        /// Memory of the NIC core's tables as a function of the geometry.
        #[must_use]
        pub fn footprint(geometry: &Geometry) -> Footprint {
            Footprint {
                rows: [$(Row {
                    name: stringify!($name),
                    entries: ($len)(geometry),
                    entry_bytes: size_of::<$entry>(),
                },)*],
            }
        }
    };
}

tables! {
    /// Ports.
    ports: Port = Port::closed(), |g: &Geometry| usize::from(g.ports);
    /// Copies of the notification queues: what stands where.
    queued: u16 = 0, |g: &Geometry| usize::from(g.ports) * NOTIFICATION_ENTRIES as usize;
    /// The links that have a window to send.
    senders_of: Holder = Holder::NONE, |g: &Geometry| usize::from(g.window_count());
    /// The links that have a window to receive.
    receivers_of: Holder = Holder::NONE, |g: &Geometry| usize::from(g.window_count());
    /// Nodes.
    peers: Peer = Peer::unknown(), |g: &Geometry| usize::from(g.nodes);
    /// Slots of all receiving windows.
    slots: Slot = Slot::MISSING, |g: &Geometry| g.window_slots() as usize;
    /// Messages sent and not acknowledged.
    outgoing: Outgoing = Outgoing::default(), |g: &Geometry| g.window_slots() as usize;
    /// Copies of messages that have left and may be lost.
    copies: Copy = Copy::FREE, |g: &Geometry| copies_at_once(g).min(COPIES.max(2 * usize::from(g.window)));
    /// For each message that is numbered and not received, its copy.
    kept: u16 = NO_COPY, copies_at_once;
    /// For each number of an answer that has been received past one that is missing, a bit.
    answered: u64 = 0, |g: &Geometry| usize::from(g.window_count()) * answer_words(g.window);
    /// This node's ports as senders, for each sending window.
    senders: Sender = Sender::default(), port_pairs;
    /// Other nodes' ports as senders to this one, for each receiving window.
    streams: Stream = Stream::default(), port_pairs;
    /// What senders have lost towards nodes without a window.
    losses_aside: Aside<Sender> = Aside::NONE, entries_aside;
    /// Streams of nodes without a window that say something.
    streams_aside: Aside<Stream> = Aside::NONE, entries_aside;
    /// Staging buffers (without their bytes).
    staging: Buffer = Buffer::FREE, |g: &Geometry| usize::from(g.staging);
    /// Round trips under way.
    reads: RoundTrip = RoundTrip::FREE, |g: &Geometry| usize::from(g.reads);
    /// Links of the waiting lines, one for each operation.
    links: u32 = 0, |g: &Geometry| g.bounce_slots() as usize;
    /// Units of atomics, `UNITS` for each port.
    units: Unit = Unit::FREE, |g: &Geometry| usize::from(g.ports) * usize::from(UNITS);
    /// Links of the timers, three for each node.
    deadlines: Deadline = Deadline::default(), |g: &Geometry| 3 * usize::from(g.nodes);
    /// Places in the timing wheel.
    hands: Hand = Hand::REST, |g: &Geometry| usize::from(g.nodes);
}

/// The tables of the links.
pub(crate) struct LinkTables<S: Storage> {
    pub(crate) peers: S::Table<Peer>,
    pub(crate) outgoing: S::Table<Outgoing>,
    pub(crate) senders: S::Table<Sender>,
    pub(crate) losses_aside: S::Table<Aside<Sender>>,
    pub(crate) senders_of: S::Table<Holder>,
    pub(crate) receivers_of: S::Table<Holder>,
    pub(crate) deadlines: S::Table<Deadline>,
    pub(crate) copies: S::Table<Copy>,
    pub(crate) kept: S::Table<u16>,
    pub(crate) answered: S::Table<u64>,
    pub(crate) hands: S::Table<Hand>,
}

/// Words that a bit for each answer of a link takes.
pub(crate) fn answer_words(window: u16) -> usize {
    answers(window) as usize / u64::BITS as usize
}

/// Requests and answers that may be on their way at once.
fn copies_at_once(g: &Geometry) -> usize {
    usize::from(g.window_count()) * (usize::from(g.window) + answers(g.window) as usize)
}

fn port_pairs(g: &Geometry) -> usize {
    usize::from(g.window_count()) * usize::from(g.ports)
}

fn entries_aside(g: &Geometry) -> usize {
    if g.shares_windows() { ASIDE } else { 0 }
}

/// One table's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The table.
    pub name: &'static str,
    /// Its entries.
    pub entries: usize,
    /// Bytes of an entry.
    pub entry_bytes: usize,
}

impl Row {
    /// Bytes of the table.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.entries * self.entry_bytes
    }
}

/// Memory of all tables; prints as a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// One row for each table.
    pub rows: [Row; ROWS],
}

impl Footprint {
    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.iter().map(Row::bytes).sum()
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12}{:>10}{:>8}{:>14}",
            "table", "entries", "bytes", "total bytes"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<12}{:>10}{:>8}{:>14}",
                row.name,
                row.entries,
                row.entry_bytes,
                row.bytes()
            )?;
        }
        write!(f, "{:<12}{:>10}{:>8}{:>14}", "all", "", "", self.bytes())
    }
}
