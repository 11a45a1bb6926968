//! The books of one port, one segment, one link.

use super::Host;
use crate::bounce::WorkKind;
use crate::exports::State as ExportState;
use crate::platform::Platform;
use crate::tally::{ExportTally, PeerTally, PortTally, SegmentTally, WorkTally};
use netvm_abi::control::NAME_BYTES;
use netvm_abi::shared_map::status_page;
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{Incarnation, NodeId, PAGE_SIZE, PortId, Status, port_area};

impl<S: Storage> Host<S> {
    /// Counts work that ends, for its port, its segment and the link it came by.
    pub(crate) fn tally(&mut self, index: u32, status: Status, waited: u64) {
        let Some(work) = self.work.get(index as usize) else {
            return;
        };
        let segment = self.segments.holding_near(work.near, work.port, work.address());
        if let Some(segment) = segment
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

    /// The first export from place `from` of the table on, those that are ending included: its place, and its
    /// name, padded with zeroes.
    #[must_use]
    pub fn export_tally(&self, from: u32) -> Option<(u32, [u8; NAME_BYTES], ExportTally)> {
        let mut exports = self.exports.table.iter().enumerate().skip(from as usize);
        let (place, export) = exports.find(|(_, export)| export.state != ExportState::Free)?;
        let root = &export.root;
        let tally = ExportTally {
            port: u64::from(root.port.0),
            start: root.start.0,
            bytes: root.end.0.saturating_sub(root.start.0),
            mode_bits: u64::from(root.modes.bits()),
            notify_first: u64::from(root.notify_first.0),
            notify_last: u64::from(root.notify_last.0),
            grants: u64::from(export.grants.len()),
            grants_ending: u64::from(export.ending),
            ending: u64::from(export.state == ExportState::Ending),
        };
        Some((place as u32, export.name, tally))
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
