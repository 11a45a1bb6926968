//! Sizes that the host driver chooses at attach and the NIC accepts or refuses.

use crate::frame::MIN_PAYLOAD;
use crate::{ABI_VERSION, PAGE_SIZE};
use core::fmt;

/// How large the tables of one NIC are. Everything in the [`bar`](crate::bar) and in the
/// [`shared_map`](crate::shared_map) follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Version of this ABI.
    pub version: u16,
    /// Page size in bytes.
    pub page_size: u32,
    /// Largest payload of a message in bytes; a path may agree on less (its MTU).
    pub payload: u32,
    /// Ports of this node. Port 0 belongs to the host driver.
    pub ports: u16,
    /// Nodes in the network, this one included.
    pub nodes: u16,
    /// Messages of a window: in flight, credits and bounce pages alike.
    pub window: u16,
    /// Windows in each direction: to so many nodes messages may be under way at once, and from so many. Where there are more nodes,
    /// a link has a window only while it needs one (`docs/decisions/0033-windows.md`).
    pub windows: u16,
    /// Rows of the page table; each holds [`ROW_SLOTS`](crate::page_table::ROW_SLOTS) entries.
    pub page_rows: u32,
    /// Entries of the capability table.
    pub capabilities: u32,
    /// Staging buffers of the NIC, each one page.
    pub staging: u16,
    /// Reads (and other round trips) that the NIC keeps in flight.
    pub reads: u16,
    /// Entries of each port's notification queue; half of them are for one-shot notifications.
    pub notification_queue: u32,
}

/// Why a geometry cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// The other side speaks another version.
    Version {
        /// What it speaks.
        theirs: u16,
    },
    /// The page size is not 4096 bytes.
    PageSize {
        /// What was asked for, in bytes.
        asked: u32,
    },
    /// The payload is not a multiple of 8 from [`MIN_PAYLOAD`] bytes to one page.
    Payload {
        /// What was asked for, in bytes.
        asked: u32,
    },
    /// The window is not a power of two from 64 to 1024.
    Window {
        /// What was asked for, in messages.
        asked: u16,
    },
    /// A table has no entry, too many, or not a power of two where one is needed.
    Table {
        /// The field.
        name: &'static str,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { theirs } => {
                write!(
                    f,
                    "the other side speaks NetVM ABI version {theirs}, this side {ABI_VERSION}"
                )
            }
            Self::PageSize { asked } => {
                write!(f, "pages of {asked} bytes are not supported, only {PAGE_SIZE}")
            }
            Self::Payload { asked } => {
                write!(
                    f,
                    "a payload of {asked} bytes is not a multiple of 8 from {MIN_PAYLOAD} to {PAGE_SIZE}"
                )
            }
            Self::Window { asked } => {
                write!(f, "a window of {asked} is not a power of two from 64 to 1024")
            }
            Self::Table { name } => write!(f, "'{name}' is out of its range"),
        }
    }
}

impl core::error::Error for GeometryError {}

impl Default for Geometry {
    fn default() -> Self {
        Self {
            version: ABI_VERSION,
            page_size: PAGE_SIZE,
            payload: PAGE_SIZE,
            ports: 64,
            nodes: 2,
            window: 64,
            windows: 64,
            page_rows: 8192,
            capabilities: 1024,
            staging: 64,
            reads: 64,
            notification_queue: 2048,
        }
    }
}

impl Geometry {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field that cannot be served, and what was asked for.
    pub const fn validate(&self) -> Result<(), GeometryError> {
        if self.version != ABI_VERSION {
            return Err(GeometryError::Version { theirs: self.version });
        }
        if self.page_size != PAGE_SIZE {
            return Err(GeometryError::PageSize {
                asked: self.page_size,
            });
        }
        if self.payload < MIN_PAYLOAD || self.payload > PAGE_SIZE || !self.payload.is_multiple_of(8) {
            return Err(GeometryError::Payload { asked: self.payload });
        }
        if !Self::has_window(self.window) {
            return Err(GeometryError::Window { asked: self.window });
        }
        if self.windows < 2 || self.windows > 4096 {
            return Err(GeometryError::Table { name: "windows" });
        }
        if self.ports < 2 || self.ports > 1024 {
            return Err(GeometryError::Table { name: "ports" });
        }
        if self.nodes < 1 || self.nodes > 4096 {
            return Err(GeometryError::Table { name: "nodes" });
        }
        if !self.page_rows.is_power_of_two() || self.page_rows > 1 << 24 {
            return Err(GeometryError::Table { name: "page_rows" });
        }
        if self.capabilities == 0 || self.capabilities > 1 << 20 {
            return Err(GeometryError::Table { name: "capabilities" });
        }
        if self.staging < 4 || self.staging > 1024 {
            return Err(GeometryError::Table { name: "staging" });
        }
        if self.reads == 0 || self.reads > 1024 {
            return Err(GeometryError::Table { name: "reads" });
        }
        if self.notification_queue != 2048 {
            return Err(GeometryError::Table {
                name: "notification_queue",
            });
        }
        Ok(())
    }

    /// The largest window, in messages.
    pub const MAX_WINDOW: u16 = 1024;

    /// Whether a window can be of this size: a power of two from 64 to [`MAX_WINDOW`](Self::MAX_WINDOW).
    #[must_use]
    pub const fn has_window(window: u16) -> bool {
        window.is_power_of_two() && window >= 64 && window <= Self::MAX_WINDOW
    }

    /// Windows that there are in each direction: no more than there are nodes.
    #[must_use]
    pub const fn window_count(&self) -> u16 {
        if self.windows < self.nodes {
            self.windows
        } else {
            self.nodes
        }
    }

    /// Whether a node may have to wait for a window, so that a message from it may be refused.
    #[must_use]
    pub const fn shares_windows(&self) -> bool {
        self.windows < self.nodes
    }

    /// Slots of all windows of one direction.
    #[must_use]
    pub const fn window_slots(&self) -> u32 {
        self.window_count() as u32 * self.window as u32
    }

    /// Number of bounce pages and records: slots of all windows, read replies, read sources.
    #[must_use]
    pub const fn bounce_slots(&self) -> u32 {
        self.window_slots() + self.reads as u32 + self.staging as u32
    }

    /// Entries that an event ring needs so that it can never overflow: one for each thing that
    /// may be outstanding (bounce slots, ports opening and closing, peers, barriers, control).
    #[must_use]
    pub const fn ring_entries(&self) -> u32 {
        (self.bounce_slots() + 4 * self.ports as u32 + 4 * self.nodes as u32 + 256).next_power_of_two()
    }
}
