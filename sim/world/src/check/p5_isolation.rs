//! P5: what a remote port may touch is what an export allows it at that moment; what a local port
//! may touch is what it named itself; and no port takes more than its share of a window.

use super::ledger::Stage;
use super::message::{ATOMIC_REQUEST, Message, Posted, READ_REQUEST};
use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::{ExportFact, Place, Seen, Way};
use netvm_abi::control::Modes;
use netvm_abi::{Nanos, NodeId, PortId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What a read asks for: node, address, length, port.
type Asked = (NodeId, u64, u32, u16);

/// Knows the exports as their owners asked for them, and what each port posted.
pub(super) struct Isolation {
    windows: Vec<u32>,
    exports: BTreeMap<(NodeId, PortId), Vec<Rc<ExportFact>>>,
    /// Local ranges that a port named in its own commands.
    named: BTreeSet<(NodeId, PortId, u64, u32)>,
    /// Ports whose apps post anything, also behind the checker's back: their own pages only.
    hostile: BTreeSet<(NodeId, PortId)>,
    /// Ranges that arrived read requests ask for, with the caller.
    asked: BTreeMap<Asked, Vec<(u16, u16)>>,
    /// The same for operands of atomics, and how many of the requests have not been seen to store.
    operands: BTreeMap<Asked, (Vec<(u16, u16)>, u32)>,
}

impl Isolation {
    /// A checker for cards with windows of so many messages.
    pub(super) const fn new(windows: Vec<u32>) -> Self {
        Self {
            windows,
            exports: BTreeMap::new(),
            named: BTreeSet::new(),
            hostile: BTreeSet::new(),
            asked: BTreeMap::new(),
            operands: BTreeMap::new(),
        }
    }

    fn allows(&self, node: NodeId, place: Place, caller: (u16, u16), mode: Modes) -> bool {
        let (start, end) = (place.start(), place.start() + u64::from(place.len));
        self.exports.get(&(node, place.port)).is_some_and(|exports| {
            exports.iter().any(|export| {
                export.start <= start
                    && end <= export.end
                    && export.allowed.iter().any(|line| {
                        line.node.is_none_or(|node| node.0 == caller.0)
                            && line.port.is_none_or(|port| port.0 == caller.1)
                            && line.modes.contains(mode)
                    })
            })
        })
    }

    /// Whether the owner of a port named this range itself.
    fn is_own(&self, node: NodeId, place: Place) -> bool {
        self.named.contains(&(node, place.port, place.start(), place.len))
            || self.hostile.contains(&(node, place.port))
    }

    fn landed(&self, ledger: &Ledger, lane: (u16, u16), seq: u32) -> Verdict {
        let Some(entry) = ledger.lanes.get(&lane).and_then(|lane| lane.entry(seq)) else {
            return Ok(());
        };
        let message = &entry.message;
        // An append was judged when its bytes were stored.
        if entry.stage != Stage::Landed || message.kind != super::message::WRITE || message.appends() {
            return Ok(());
        }
        let place = place_of(message);
        let caller = (message.source, message.source_port);
        if message.len > 0 && !self.allows(NodeId(lane.1), place, caller, Modes::WRITE) {
            return Err(format!(
                "port {} of node {} wrote {} bytes at {:#x} of port {} of node {}, which no export allows it",
                message.source_port, lane.0, message.len, message.address, message.destination_port, lane.1
            ));
        }
        Ok(())
    }

    fn appended(&self, ledger: &Ledger, lane: (u16, u16), seq: u32, at: u64) -> Verdict {
        let Some(entry) = ledger.lanes.get(&lane).and_then(|lane| lane.entry(seq)) else {
            return Ok(());
        };
        let message = &entry.message;
        let place = place_of(&Message {
            address: at,
            ..*message
        });
        if self.allows(
            NodeId(lane.1),
            place,
            (message.source, message.source_port),
            Modes::APPEND,
        ) {
            return Ok(());
        }
        Err(format!(
            "port {} of node {} appended to the queue of port {} of node {}, which no export allows it",
            message.source_port, lane.0, message.destination_port, lane.1
        ))
    }

    /// The window of a link: the smaller one of both. A node that is not honest offers what the first one has.
    fn window(&self, (source, destination): (u16, u16)) -> u32 {
        let of = |node: u16| self.windows.get(usize::from(node)).or(self.windows.first());
        let both = [of(source), of(destination)].into_iter().flatten();
        both.min().copied().unwrap_or_default()
    }

    fn share(&self, ledger: &Ledger, lane: (u16, u16), seq: u32) -> Verdict {
        let Some(lane_of) = ledger.lanes.get(&lane) else {
            return Ok(());
        };
        let Some(port) = lane_of.entry(seq).map(|entry| entry.message.source_port) else {
            return Ok(());
        };
        let window = self.window(lane);
        let skip = lane_of.acked.wrapping_sub(lane_of.first) as usize;
        let held = lane_of
            .entries
            .iter()
            .skip(skip)
            .filter(|entry| entry.message.source_port == port && !entry.settled)
            .count() as u32;
        if port != 0 && held > window / 2 {
            return Err(format!(
                "port {port} of node {} holds {held} slots of node {}",
                lane.0, lane.1
            ));
        }
        let all = lane_of.entries.len() - skip.min(lane_of.entries.len());
        if all as u32 > window {
            return Err(format!(
                "node {} has {all} messages in flight to node {}",
                lane.0, lane.1
            ));
        }
        Ok(())
    }

    /// Whether a request for an atomic explains that the operand at this place is fetched.
    fn is_operand(&self, node: NodeId, place: Place) -> bool {
        let key = (node, place.start(), place.len, place.port.0);
        self.operands.get(&key).is_some_and(|(callers, _)| {
            callers
                .iter()
                .any(|&caller| self.allows(node, place, caller, Modes::ATOMIC))
        })
    }

    /// Whether one explains that it is stored: each does so at most once.
    fn stores_operand(&mut self, node: NodeId, place: Place) -> bool {
        if !self.is_operand(node, place) {
            return false;
        }
        let key = (node, place.start(), place.len, place.port.0);
        match self.operands.get_mut(&key) {
            Some((_, unstored)) if *unstored > 0 => {
                *unstored -= 1;
                true
            }
            _ => false,
        }
    }

    fn read(&mut self, node: NodeId, place: Place) -> Verdict {
        if self.is_own(node, place) || self.is_operand(node, place) {
            return Ok(());
        }
        let callers = self.asked.get(&(node, place.start(), place.len, place.port.0));
        if callers.is_some_and(|callers| {
            callers
                .iter()
                .any(|&caller| self.allows(node, place, caller, Modes::READ))
        }) {
            return Ok(());
        }
        Err(format!(
            "node {node}: the card read {} bytes at {:#x} of port {}, which no port may read",
            place.len,
            place.start(),
            place.port
        ))
    }
}

fn place_of(message: &Message) -> Place {
    Place {
        port: PortId(message.destination_port),
        page: (message.address >> 12) & 0xFFFF_FFFF_FFFF,
        offset: (message.address & 0xFFF) as u32,
        len: message.len,
    }
}

impl Checker for Isolation {
    fn promise(&self) -> Promise {
        Promise::P5
    }

    fn see(&mut self, _now: Nanos, fact: &Seen, news: &[News], ledger: &Ledger) -> Verdict {
        for item in news {
            match *item {
                News::Landed { lane, seq, .. } => self.landed(ledger, lane, seq)?,
                News::Appended { lane, seq, at } => self.appended(ledger, lane, seq, at)?,
                News::Posted {
                    lane,
                    seq,
                    repeated: false,
                    gap: false,
                } => self.share(ledger, lane, seq)?,
                News::Unexplained => {
                    let (node, place) = match *fact {
                        Seen::DmaMoved { node, place, .. } | Seen::HostCopied { node, place, .. } => {
                            (node, place)
                        }
                        _ => continue,
                    };
                    if !self.stores_operand(node, place) && !self.is_own(node, place) {
                        return Err(format!(
                            "node {node}: {} bytes appeared at {:#x} of port {} that no message explains",
                            place.len,
                            place.start(),
                            place.port
                        ));
                    }
                }
                _ => {}
            }
        }
        match fact {
            Seen::Posted {
                node, port, words, ..
            } => {
                let posted = Posted::read(words);
                self.named.insert((*node, *port, posted.local, posted.len));
            }
            Seen::Exported { node, port, fact } => {
                self.exports.entry((*node, *port)).or_default().push(fact.clone());
            }
            Seen::Unexported { node, port, fact } => {
                if let Some(list) = self.exports.get_mut(&(*node, *port))
                    && let Some(at) = list.iter().position(|export| export == fact)
                {
                    list.remove(at);
                }
            }
            Seen::Hostile { node, port } => {
                self.hostile.insert((*node, *port));
            }
            Seen::PortOpened { node, port, .. } => {
                self.hostile.remove(&(*node, *port));
                self.exports.remove(&(*node, *port));
                self.named.retain(|key| (key.0, key.1) != (*node, *port));
            }
            Seen::Restarted { node } => {
                self.exports.retain(|key, _| key.0 != *node);
                self.named.retain(|key| key.0 != *node);
                self.asked.retain(|key, _| key.0 != *node);
                self.operands.retain(|key, _| key.0 != *node);
            }
            Seen::Arrived { to, frame } => {
                let Some(message) = Message::read(frame) else {
                    return Ok(());
                };
                let (caller, port) = ((message.source, message.source_port), message.destination_port);
                let callers = match message.kind {
                    READ_REQUEST => {
                        let key = (*to, message.address, message.compare as u32, port);
                        self.asked.entry(key).or_default()
                    }
                    ATOMIC_REQUEST => {
                        let key = (*to, message.address, message.operand_bytes(), port);
                        let (callers, unstored) = self.operands.entry(key).or_default();
                        *unstored += 1;
                        callers
                    }
                    _ => return Ok(()),
                };
                if !callers.contains(&caller) {
                    callers.push(caller);
                }
            }
            Seen::DmaStart {
                node,
                way: Way::FromPage,
                place,
                ..
            } => return self.read(*node, *place),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::frame;
    use super::super::tests::{arrived, caught, exported, feed, moved_at, sent};
    use super::*;
    use netvm_abi::wire::{Header, Kind};
    use netvm_abi::{Incarnation, Seq};

    fn checker() -> Isolation {
        Isolation::new(vec![64, 64])
    }

    fn write() -> [Seen; 3] {
        let write = frame(Kind::Write, 5, 0x1010, b"data", 0);
        [sent(write.clone()), arrived(write), moved_at(0x1010, b"data")]
    }

    #[test]
    fn a_write_inside_of_an_export_is_fine_and_one_outside_is_caught() {
        let [a, b, c] = write();
        let facts = [
            exported(0x1000, 0x2000, Modes::WRITE),
            a.clone(),
            b.clone(),
            c.clone(),
        ];
        assert_eq!(feed(&mut checker(), &facts), Ok(()));
        for export in [
            exported(0x1000, 0x1012, Modes::WRITE),
            exported(0x1000, 0x2000, Modes::READ),
        ] {
            let facts = [export, a.clone(), b.clone(), c.clone()];
            caught(feed(&mut checker(), &facts), "no export allows");
        }
    }

    #[test]
    fn bytes_that_no_message_explains_are_caught() {
        let facts = [exported(0x1000, 0x2000, Modes::WRITE), moved_at(0x1010, b"data")];
        caught(feed(&mut checker(), &facts), "no message explains");
    }

    #[test]
    fn a_withdrawn_export_allows_nothing() {
        let [a, b, c] = write();
        let Seen::Exported { node, port, fact } = exported(0x1000, 0x2000, Modes::WRITE) else {
            panic!()
        };
        let facts = [
            Seen::Exported {
                node,
                port,
                fact: fact.clone(),
            },
            a,
            b,
            Seen::Unexported { node, port, fact },
            c,
        ];
        caught(feed(&mut checker(), &facts), "no export allows");
    }

    /// Two equal writes: the bytes of the one that landed are first taken for the other's. When that
    /// one is refused later, the export may be gone; it was there when the bytes were stored.
    #[test]
    fn a_landing_is_judged_by_the_exports_of_its_time() {
        let first = frame(Kind::Write, 5, 0x1010, b"data", 0);
        let second = frame(Kind::Write, 6, 0x1010, b"data", 0);
        let mut header = Header::new(Kind::Error, NodeId(1), NodeId(0));
        header.source_incarnation = Incarnation(8);
        header.destination_incarnation = Incarnation(7);
        header.seq = Seq(5);
        let refusal = header.encode().to_vec();
        let Seen::Exported { node, port, fact } = exported(0x1000, 0x2000, Modes::WRITE) else {
            panic!()
        };
        let open = Seen::Exported {
            node,
            port,
            fact: fact.clone(),
        };
        let shut = Seen::Unexported { node, port, fact };
        let mut facts = vec![
            open,
            sent(first.clone()),
            sent(second.clone()),
            arrived(first),
            arrived(second),
            moved_at(0x1010, b"data"),
            shut,
            sent(refusal),
        ];
        assert_eq!(feed(&mut checker(), &facts), Ok(()));
        facts.push(moved_at(0x1010, b"data"));
        caught(feed(&mut checker(), &facts), "no message explains");
    }

    #[test]
    fn half_of_the_smaller_window_is_the_share_of_a_port() {
        let facts: Vec<Seen> = (0..65)
            .map(|seq| sent(frame(Kind::Write, seq, 0x1000, b"data", 0)))
            .collect();
        for (windows, share) in [([64, 64], 32), ([64, 256], 32), ([256, 128], 64)] {
            let mut checker = Isolation::new(windows.to_vec());
            assert_eq!(feed(&mut checker, &facts[..share]), Ok(()));
            let mut checker = Isolation::new(windows.to_vec());
            caught(feed(&mut checker, &facts), &format!("holds {} slots", share + 1));
        }
    }

    #[test]
    fn an_atomic_fetches_its_operand_and_stores_it_once() {
        let mut header = Header::new(Kind::AtomicRequest, NodeId(0), NodeId(1));
        header.source_port = PortId(3);
        header.destination_port = PortId(4);
        header.source_incarnation = Incarnation(7);
        header.destination_incarnation = Incarnation(8);
        header.seq = Seq(5);
        header.address = netvm_abi::VirtAddr(0x1010);
        header.raw.status = 17;
        let request = arrived(header.encode().to_vec());
        let stored = moved_at(0x1010, b"1234");
        let open = exported(0x1000, 0x2000, Modes::ATOMIC);
        let mut facts = vec![open, request.clone(), stored.clone()];
        assert_eq!(feed(&mut checker(), &facts), Ok(()));
        facts.push(stored.clone());
        caught(feed(&mut checker(), &facts), "no message explains");
        let writable = exported(0x1000, 0x2000, Modes::WRITE);
        caught(
            feed(&mut checker(), &[writable, request, stored]),
            "no message explains",
        );
    }

    #[test]
    fn the_card_reads_only_what_a_port_may_read() {
        let start = |address: u64| Seen::DmaStart {
            node: NodeId(1),
            dma: 1,
            way: Way::FromPage,
            ppn: netvm_abi::Ppn(100),
            place: Place {
                port: PortId(4),
                page: address >> 12,
                offset: (address & 0xFFF) as u32,
                len: 4,
            },
        };
        caught(feed(&mut checker(), &[start(0x1010)]), "no port may read");
        let mut words = [0; 16];
        (words[0], words[8]) = (1 | 4 << 16, 0x1010);
        let posted = Seen::Posted {
            node: NodeId(1),
            port: PortId(4),
            words,
            inline: 0,
        };
        assert_eq!(feed(&mut checker(), &[posted, start(0x1010)]), Ok(()));
    }
}
