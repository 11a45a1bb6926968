//! What an operator asks of one port, one segment, one link: what it holds now, and what its paging has cost so far.
//!
//! What the NIC handles without this driver is counted by the NIC alone; its share shows in the words that it
//! keeps for the port's owner and in the windows of a link, and is read there. What comes to the driver is
//! counted where its slot ends, once for the port, the segment and the link.

use crate::bounce::{Work, WorkKind};
use crate::counters::counters;
use crate::host::Host;
use crate::platform::Platform;
use netvm_abi::shared_map::status_page;
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{Incarnation, NodeId, PAGE_SIZE, PortId, Status, port_area};

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
    fn add(&mut self, work: &Work, status: Status, waited: u64) {
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

impl<S: Storage> Host<S> {
    /// Counts work that ends, for its port, its segment and the link it came by.
    pub(crate) fn tally(&mut self, index: u32, status: Status, waited: u64) {
        let Some(work) = self.work.get(index as usize) else {
            return;
        };
        let segment = self.locate(work.port, work.address());
        if let Some((segment, _)) = segment
            && let Some(segment) = self.segments.get(segment)
        {
            segment.tally.add(work, status, waited);
        }
        if let Some(port) = self.ports.get_mut(work.port.index()) {
            port.tally.add(work, status, waited);
        }
        // A missing source belongs to no peer.
        if work.kind != WorkKind::Source
            && let Some(peer) = self.peers.get_mut(work.peer.index())
        {
            peer.tally.add(work, status, waited);
        }
    }

    /// The first port from `from` on that is not free.
    pub fn port_tally<P: Platform>(
        &self,
        platform: &P,
        from: PortId,
    ) -> Option<(PortId, PortTally, WorkTally)> {
        let mut ports = self.ports.iter().enumerate().skip(from.index());
        let (number, entry) = ports.find(|(_, entry)| !entry.is_free())?;
        let port = PortId(number as u16);
        let area = self.shared_map.port_area(port);
        let word = |at: netvm_abi::WordIndex| u64::from(platform.shared().load_acquire(area.plus(at.0)));
        let mut segments = 0;
        let mut next = self.segments.first_in(port, 0);
        while let Some((at, ..)) = next {
            segments += 1;
            next = self.segments.next_in(port, at);
        }
        let tally = PortTally {
            generation: word(port_area::PORT_GENERATION),
            segments,
            imports: u64::from(entry.imports.len()),
            queued: u64::from(entry.queue.len()),
            in_hand: u64::from(entry.in_hand),
            commands_taken: word(port_area::TAKEN),
            writes_done: word(port_area::WRITES_DONE),
            reads_done: word(port_area::READS_DONE),
            notifications: word(port_area::NOTIFICATION_WRITE),
            errors: word(port_area::ERROR_WRITE),
            errors_lost: word(port_area::ERRORS_LOST),
        };
        Some((port, tally, entry.tally))
    }

    /// The first segment from place `from` of the table on, those that are ending included, and its place.
    #[must_use]
    pub fn segment_tally(&self, from: u32) -> Option<(u32, SegmentTally, WorkTally)> {
        let entries = self.segments.table.len() as u32;
        let (place, id) = (from..entries).find_map(|place| Some((place, self.segments.used(place)?)))?;
        let segment = self.segments.table.get(place as usize)?;
        let pages = self.shadow.pages(id);
        let tally = SegmentTally {
            segment: u64::from(id.0),
            port: u64::from(segment.port.0),
            start: segment.first * u64::from(PAGE_SIZE),
            bytes: segment.pages * u64::from(PAGE_SIZE),
            exports: u64::from(segment.exports.len()),
            pages_mapped: pages.map_or(0, |pages| u64::from(pages.mapped.len())),
            pages_leaving: pages.map_or(0, |pages| u64::from(pages.zapped.len())),
            in_hand: u64::from(segment.in_hand),
        };
        Some((place, tally, segment.tally))
    }

    /// The first node from `from` on whose link is up, or that has ever sent anything to page in.
    pub fn peer_tally<P: Platform>(
        &self,
        platform: &P,
        from: NodeId,
    ) -> Option<(NodeId, PeerTally, WorkTally)> {
        let mut peers = self.peers.iter().enumerate().skip(from.index());
        let (number, entry) = peers.find(|(number, entry)| {
            self.peer(NodeId(*number as u16)).is_some() || entry.tally != WorkTally::default()
        })?;
        let node = NodeId(number as u16);
        let shared = platform.shared();
        let up = self
            .peer(node)
            .filter(|incarnation| *incarnation != Incarnation(0));
        let windows = status_page::peer_windows(node);
        // Each word is the NIC's at some moment, not all of them the same one.
        let [next, acknowledged, finished] = [0, 1, 2].map(|word| shared.load_acquire(windows.plus(word)));
        let tally = PeerTally {
            incarnation: up.map_or(0, |incarnation| u64::from(incarnation.0)),
            payload: up.map_or(0, |_| {
                u64::from(shared.load_acquire(status_page::peer_payload(node)))
            }),
            in_flight: up.map_or(0, |_| u64::from(next.wrapping_sub(acknowledged))),
            next_seq: u64::from(next),
            waits_for_seq: u64::from(finished),
            grants: u64::from(entry.grants.len()),
            imports: u64::from(entry.imports.len()),
            orphans: u64::from(entry.orphans),
        };
        Some((node, tally, entry.tally))
    }
}
