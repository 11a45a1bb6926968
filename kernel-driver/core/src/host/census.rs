//! What a driver holds at the moment, counted one by one: for tests, and for programs that show the state of a host.
//!
//! A node that has nothing to do holds nothing. Each count looks through a whole table, so no path of the driver may ask.

use super::Host;
use crate::bounce::State as WorkState;
use crate::exports::State as ExportState;
use crate::grants::GrantState;
use crate::imports::State as ImportState;
use crate::ports::State as PortState;
use crate::segments::State as SegmentState;
use netvm_abi::storage::Storage;

/// Kinds of things that a driver holds.
const KINDS: usize = 11;

/// How many of each kind of thing a driver holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census([(&'static str, u32); KINDS]);

impl IntoIterator for Census {
    type Item = (&'static str, u32);
    type IntoIter = core::array::IntoIter<Self::Item, KINDS>;

    /// What is counted, and how many.
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Entries of a table that something is in.
fn held<T>(table: &[T], holds: impl Fn(&T) -> bool) -> u32 {
    table.iter().filter(|entry| holds(entry)).count() as u32
}

impl<S: Storage> Host<S> {
    /// Counts what the driver holds.
    #[must_use]
    pub fn census(&self) -> Census {
        let shares = self.segments.shares_held() + self.exports.shares.held() + self.imports.shares.held();
        Census([
            (
                "open_ports",
                held(&self.ports, |port| port.state != PortState::Free),
            ),
            ("mapped_pages", self.mapped_pages()),
            (
                "segments",
                held(&self.segments.table, |segment| {
                    segment.state != SegmentState::Free
                }),
            ),
            (
                "exports",
                held(&self.exports.table, |export| export.state != ExportState::Free),
            ),
            (
                "grants",
                held(&self.grants.table, |grant| grant.state != GrantState::Free),
            ),
            (
                "imports",
                held(&self.imports.table, |import| import.state != ImportState::Free),
            ),
            ("shares", shares),
            (
                "bounce_pages",
                held(&self.work, |work| work.state != WorkState::Idle),
            ),
            ("barriers", u32::from(self.barriers.in_flight())),
            ("control_messages", self.control.held()),
            ("lives_to_release", self.releasing),
        ])
    }
}
