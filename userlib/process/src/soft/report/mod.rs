//! What a running node tells programs of the same user: counters, ports, segments, exports, links.
//!
//! `netvm show`, `stat` and `top` [ask](page) the nodes of other processes. A question names a [`Section`] and a place of its
//! list; the answer is a [`Page`] of at most [`MOST_ENTRIES`] entries, as JSON, and the place to go on from. So an answer is
//! bounded, and a node looks at its tables only while it is asked. Names travel with values: a counter that is added or goes
//! changes no layout. [`FORMAT`] goes up when the meaning of a page changes.

mod ask;
mod give;

pub use ask::{ReportError, all, page};
pub(super) use give::give;

use serde::{Deserialize, Serialize};

/// Version of what pages say.
pub const FORMAT: u16 = 1;
/// Entries of a page at most.
pub const MOST_ENTRIES: usize = 32;

/// Names and values of counters.
pub type Counted = Vec<(String, u64)>;

/// What can be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The node: sizes, memory, age. One entry.
    Node,
    /// What the card has counted. One entry.
    Card,
    /// What the driver has counted. One entry.
    Driver,
    /// Open ports.
    Ports,
    /// Registered segments.
    Segments,
    /// Exports.
    Exports,
    /// Links.
    Links,
}

impl Section {
    /// All of them; the place of each is its number in a question.
    pub const ALL: [Self; 7] = [
        Self::Node,
        Self::Card,
        Self::Driver,
        Self::Ports,
        Self::Segments,
        Self::Exports,
        Self::Links,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Card => "card",
            Self::Driver => "driver",
            Self::Ports => "ports",
            Self::Segments => "segments",
            Self::Exports => "exports",
            Self::Links => "links",
        }
    }
}

/// One thing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number: of the node, port or peer, or its place in the driver's table.
    pub number: u32,
    /// What is said of it in words.
    pub labels: Vec<(String, String)>,
    /// What is counted.
    pub counted: Counted,
}

impl Entry {
    /// A counter, if it is there.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u64> {
        let mut all = self.counted.iter();
        all.find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// A label, if it is there.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        let mut all = self.labels.iter();
        all.find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// A part of a section's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// [`FORMAT`] of the node.
    pub format: u16,
    /// The entries.
    pub entries: Vec<Entry>,
    /// The place of the next page.
    pub next: Option<u32>,
}
