//! What an operator asks of one port, one segment, one link: what it holds now, and what its paging has cost so far.
//!
//! What the NIC handles without this driver is counted by the NIC alone; its share shows in the words that it
//! keeps for the port's owner and in the windows of a link, and is read there. What comes to the driver is
//! counted where its slot ends, once for the port, the segment and the link.

use crate::bounce::{Work, WorkKind};
use crate::counters::counters;
use netvm_abi::Status;

counters! {
    /// Paging work that has ended.
    pub struct WorkTally {
        /// Messages that were copied out of a bounce page.
        bounced,
        /// Bytes of them.
        bounced_bytes,
        /// Source pages that the NIC missed and was given.
        source_misses,
        /// Messages and misses that were refused, or whose page could not be had.
        failed,
        /// The longest that one of them has waited for its answer, in nanoseconds.
        slowest_ns,
    }
}

counters! {
    /// Of an open port, or one that is being closed.
    pub struct PortTally {
        /// Its generation.
        generation,
        /// Segments registered.
        segments,
        /// Exports of other nodes that it has bound to.
        imports,
        /// Paging work that has not begun.
        queued,
        /// Paging work under way.
        in_hand,
        /// Commands that the NIC has taken; up to 31 more than it says here.
        commands_taken,
        /// Writes completed at the source; up to 31 more.
        writes_done,
        /// Reads, flushes and atomics completed; up to 31 more.
        reads_done,
        /// Entries put into its notification queue.
        notifications,
        /// Errors reported to it.
        errors,
        /// Errors that found its error ring full.
        errors_lost,
    }
}

counters! {
    /// Of a registered segment.
    pub struct SegmentTally {
        /// Its identifier, as its owner knows it.
        segment,
        /// Its port.
        port,
        /// Address of its first byte in its process.
        start,
        /// Its bytes.
        bytes,
        /// Names it is exported under.
        exports,
        /// Pages that the NIC knows now.
        pages_mapped,
        /// Pages on their way out of the NIC's table.
        pages_leaving,
        /// Copies to and from it under way.
        in_hand,
    }
}

counters! {
    /// Of a name that a port exports a range under.
    pub struct ExportTally {
        /// Its port.
        port,
        /// Address of its first byte in its process.
        start,
        /// Its bytes.
        bytes,
        /// What importers may do at most, as bits of [`Modes`](netvm_abi::control::Modes).
        mode_bits,
        /// Lowest notification number that importers may use; 0: none.
        notify_first,
        /// Highest notification number that importers may use.
        notify_last,
        /// Capabilities that importers hold.
        grants,
        /// Capabilities that are being taken back.
        grants_ending,
        /// 1 once the name is free again, and its capabilities are being taken back.
        ending,
    }
}

counters! {
    /// Of the link to a node, or to this node itself.
    pub struct PeerTally {
        /// Incarnation of the link; 0 while it is down.
        incarnation,
        /// Payload of the path in bytes.
        payload,
        /// Messages sent and not acknowledged: window slots in use.
        in_flight,
        /// Sequence number of the next message to it.
        next_seq,
        /// Lowest sequence number from it that is not finished.
        waits_for_seq,
        /// Capabilities of this node that it holds.
        grants,
        /// Imports of this node's ports from it.
        imports,
        /// Messages of its last life that are still being copied.
        orphans,
    }
}

impl WorkTally {
    pub(crate) fn add(&mut self, work: &Work, status: Status, waited: u64) {
        match work.kind {
            _ if status != Status::Ok => self.failed += 1,
            WorkKind::Source | WorkKind::Atomic => self.source_misses += 1,
            WorkKind::Write | WorkKind::Reply => {
                self.bounced += 1;
                self.bounced_bytes += u64::from(work.len.0);
            }
        }
        self.slowest_ns = self.slowest_ns.max(waited);
    }
}
