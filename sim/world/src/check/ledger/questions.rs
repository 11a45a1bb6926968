//! What the checkers ask of the ledger.

use super::Ledger;
use super::lane::{Direction, Lane, Notified};
use std::collections::BTreeMap;

impl Ledger {
    /// Whether every message on links that are up has ended, but for those of the background.
    pub(in crate::check) fn quiet(&self) -> bool {
        self.lanes
            .values()
            .filter(|lane| !lane.abandoned)
            .flat_map(|lane| &lane.streams)
            .filter(|(port, _)| self.background != Some(**port))
            .all(|(_, stream)| stream.waiting.is_empty())
    }

    /// Whether the latest life of a direction still counts.
    pub(in crate::check) fn is_up(&self, from: u16, to: u16) -> bool {
        self.lanes.get(&(from, to)).is_some_and(|lane| !lane.abandoned)
    }

    /// A direction between two of the first `nodes` nodes whose latest life is over: nothing is owed there, so nothing
    /// can be missed.
    pub(in crate::check) fn given_up(&self, nodes: u16) -> Option<Direction> {
        let mut lanes = self.lanes.iter();
        let honest = |(from, to): &Direction| *from < nodes && *to < nodes;
        lanes
            .find(|(direction, lane)| lane.abandoned && honest(direction))
            .map(|(direction, _)| *direction)
    }

    /// The oldest message of each direction that has not ended.
    pub(in crate::check) fn unfinished(&self) -> String {
        let mut text = String::new();
        for (direction, lane) in &self.lanes {
            if let Some(entry) = lane.entries.iter().find(|entry| !entry.ended()) {
                text.push_str(&format!(
                    "message {} (kind {}) of node {} to {} is {:?}; ",
                    entry.message.seq, entry.message.kind, direction.0, direction.1, entry.stage
                ));
            }
        }
        text
    }

    /// What the streams towards a port wait for, for a report.
    pub(in crate::check) fn heads(&self, node: u16, port: u16) -> String {
        let mut text = String::new();
        for (direction, lane) in self.lanes.iter().filter(|((_, to), _)| *to == node) {
            for (source, stream) in &lane.streams {
                let Some(entry) = stream.waiting.front().and_then(|&seq| lane.entry(seq)) else {
                    continue;
                };
                if entry.message.destination_port == port {
                    text.push_str(&format!(
                        "; port {source} of node {} waits for message {:#x} (kind {}, epoch {}, poison {:?}, {:?})",
                        direction.0, entry.message.seq, entry.message.kind, entry.message.epoch, stream.poison, entry.stage
                    ));
                }
            }
        }
        text
    }

    /// How many owners a port has had.
    pub(in crate::check) fn port_life(&self, node: u16, port: u16) -> u32 {
        self.port_lives.get(&(node, port)).copied().unwrap_or_default()
    }

    /// The notifications of one number that may have been delivered to the present owner of a port.
    pub(in crate::check) fn due(&self, node: u16, port: u16, id: u32) -> u64 {
        self.due_of(node, port, id, |lane, key| lane.due(key))
    }

    /// The same if what its streams hold back has ended: see [`Lane::past_held`].
    pub(in crate::check) fn due_past_held(&self, node: u16, port: u16, id: u32) -> u64 {
        self.due_of(node, port, id, |lane, key| lane.past_held().due(key))
    }

    fn due_of(&self, node: u16, port: u16, id: u32, of_lane: impl Fn(&Lane, Notified) -> u64) -> u64 {
        let life = self.port_life(node, port);
        let to_node = self.lanes.iter().filter(|((_, to), _)| *to == node);
        let live: u64 = to_node.map(|(_, lane)| of_lane(lane, (port, life, id))).sum();
        let of = |counts: &BTreeMap<_, u64>| counts.get(&(node, port, life, id)).copied().unwrap_or_default();
        live + of(&self.past_due) + of(&self.raised)
    }

    /// The notifications that must have been delivered to the present owners of ports, by node, port and number: those
    /// of streams in which nothing ever failed, on links that are up.
    pub(in crate::check) fn owed(&self) -> BTreeMap<(u16, u16, u32), u64> {
        let mut owed: BTreeMap<(u16, u16, u32), u64> = BTreeMap::new();
        let mut owe = |(node, port, life, id), count| {
            if self.port_life(node, port) == life {
                *owed.entry((node, port, id)).or_default() += count;
            }
        };
        for ((_, node), lane) in self.lanes.iter().filter(|(_, lane)| !lane.abandoned) {
            for stream in lane.streams.values() {
                for ((owner, (port, life, id)), count) in &stream.due {
                    if !stream.failed.contains(owner) {
                        owe((*node, *port, *life, *id), *count);
                    }
                }
            }
        }
        for (key, count) in &self.raised {
            owe(*key, *count);
        }
        owed
    }
}
