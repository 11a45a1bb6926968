//! P2: what arrives is what was asked for, byte by byte.
//!
//! The checker follows bytes from place to place. Memory holds what its app has stored there and what has landed since
//! ([`Shadow`]); a program that loads other bytes has been given wrong ones. What a DMA or the kernel takes out of a page
//! is what memory holds. A write leaves with the bytes that its descriptor carries, or with those that were taken, since it
//! was posted, out of exactly the place that it names; the answer to a read with those that were taken since the request
//! arrived. An answer ends where the descriptor of its read says. (That a message lands where it says, with the bytes that
//! it had when it left, is in the ledger.)
//!
//! Every move happens at a moment of its own, so memory holds one value at each moment, also where two writes race.

use super::message::{HEAD, Message, Posted, READ_REPLY, READ_REQUEST, WRITE};
use super::shadow::Shadow;
use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::{Place, Seen, Stored, Way, digest};
use crate::vm::ProcessId;
use netvm_abi::{Nanos, NodeId, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// A port of a node.
type At = (NodeId, PortId);

/// Bytes of a port's memory: the port, first address, length.
type Span = (NodeId, PortId, u64, u32);

/// A request for data: from, to, both incarnations, sequence number.
type Request = (u16, u16, u32, u32, u32);

/// What is known of a read.
struct Read {
    /// What it asks for.
    of: Span,
    /// Where its answer belongs, if its program has said so.
    into: Option<Span>,
    arrived: Option<Nanos>,
    /// Digest of the answer.
    answer: Option<u64>,
}

/// Values that were taken out of one place and have not left: as many as there are staging buffers, at most.
const KEPT: usize = 64;

/// The bytes of all memory, and of what is under way.
pub(super) struct Contents {
    /// Honest nodes: those with lower numbers.
    nodes: u16,
    owners: BTreeMap<At, ProcessId>,
    hostile: BTreeSet<At>,
    memory: Shadow,
    /// When a DMA or the kernel took what out of a place.
    taken: BTreeMap<Span, Vec<(Nanos, u64)>>,
    reads: BTreeMap<Request, Read>,
    /// Answers that have arrived, by where they belong.
    answers: BTreeMap<Span, Vec<u64>>,
}

const fn span((node, port): At, start: u64, len: u32) -> Span {
    (node, port, start, len)
}

impl Contents {
    /// Empty memory of a run with this many honest nodes.
    pub(super) fn new(nodes: u16) -> Self {
        Self {
            nodes,
            owners: BTreeMap::new(),
            hostile: BTreeSet::new(),
            memory: Shadow::default(),
            taken: BTreeMap::new(),
            reads: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }

    /// A port has another owner, or none.
    fn forget(&mut self, (node, port): At) {
        self.owners.remove(&(node, port));
        self.hostile.remove(&(node, port));
        let all = (node, port, 0, 0)..=(node, port, u64::MAX, u32::MAX);
        let gone: Vec<Span> = self.taken.range(all.clone()).map(|(&span, _)| span).collect();
        gone.iter().for_each(|span| drop(self.taken.remove(span)));
        let gone: Vec<Span> = self.answers.range(all).map(|(&span, _)| span).collect();
        gone.iter().for_each(|span| drop(self.answers.remove(span)));
    }

    /// Bytes are taken out of a page.
    fn takes(&self, node: NodeId, place: Place, bytes: &[u8], by: &str) -> Verdict {
        // Of a port that is gone another checker says so.
        let Some(&process) = self.owners.get(&(node, place.port)) else {
            return Ok(());
        };
        if let Some(wrong) = self.memory.differs((node, process), place.start(), bytes) {
            let what = format!("{by} takes {} bytes at {:#x}", place.len, place.start());
            return Err(differs((node, place.port), &what, bytes, place.start(), wrong));
        }
        Ok(())
    }

    /// All bytes of a place have been taken out.
    fn has_taken(&mut self, now: Nanos, node: NodeId, place: Place, bytes: &[u8]) {
        if !self.owners.contains_key(&(node, place.port)) {
            return;
        }
        let span = span((node, place.port), place.start(), place.len);
        let taken = self.taken.entry(span).or_default();
        if taken.len() == KEPT {
            taken.remove(0);
        }
        taken.push((now, digest(bytes)));
    }

    /// Whether these bytes were taken out of a place since then; if so, they are not there for another message.
    fn was_taken(&mut self, from: Span, since: Nanos, digest: u64) -> bool {
        let Some(taken) = self.taken.get_mut(&from) else {
            return false;
        };
        let fits = |&(at, value): &(Nanos, u64)| at >= since && value == digest;
        let found = taken.iter().position(fits);
        if let Some(found) = found {
            taken.remove(found);
            if taken.is_empty() {
                self.taken.remove(&from);
            }
        }
        found.is_some()
    }

    /// Bytes are stored in a page.
    fn puts(&mut self, node: NodeId, place: Place, bytes: &[u8]) {
        if let Some(&process) = self.owners.get(&(node, place.port)) {
            self.memory.store((node, process), place.start(), bytes);
        }
    }

    /// All bytes of a message, or of an answer, have been stored.
    fn has_put(&mut self, node: NodeId, place: Place, bytes: &[u8], stored: Stored) -> Verdict {
        let at = (node, place.port);
        if stored == Stored::Answer && self.owners.contains_key(&at) && !self.hostile.contains(&at) {
            let span = span(at, place.start(), place.len);
            let found = self.answers.get_mut(&span).and_then(|answers| {
                let digest = digest(bytes);
                let found = answers.iter().position(|&answer| answer == digest)?;
                Some(answers.remove(found))
            });
            if found.is_none() {
                return Err(format!(
                    "node {node}: {} bytes are stored at {:#x} of port {}, which are the answer to no read of that place",
                    place.len,
                    place.start(),
                    place.port
                ));
            }
            if self.answers.get(&span).is_some_and(Vec::is_empty) {
                self.answers.remove(&span);
            }
        }
        Ok(())
    }

    /// A command has become a message, and left.
    fn left(&mut self, message: &Message, digest: u64, command: &Posted, at: Nanos) -> Verdict {
        let port = (NodeId(message.source), PortId(message.source_port));
        let local = span(port, command.local, command.len);
        if message.kind == READ_REQUEST {
            if let Some(read) = self.reads.get_mut(&asked(message)) {
                read.into = Some(local);
            }
            return Ok(());
        }
        if message.kind != WRITE || message.len == 0 || self.hostile.contains(&port) {
            return Ok(());
        }
        let right = if command.inline {
            command.carried == digest
        } else {
            self.was_taken(local, at, digest)
        };
        if right {
            return Ok(());
        }
        Err(format!(
            "operation {} of port {} of node {} leaves with {} bytes that are not those {}",
            message.op,
            port.1,
            port.0,
            message.len,
            if command.inline {
                "in its descriptor".to_owned()
            } else {
                format!("at {:#x}, which it names", command.local)
            }
        ))
    }

    fn sent(&mut self, frame: &[u8]) -> Verdict {
        let Some(message) = Message::read(frame) else {
            return Ok(());
        };
        if message.kind == READ_REQUEST {
            let (node, port) = (NodeId(message.destination), PortId(message.destination_port));
            let read = Read {
                of: (node, port, message.address, message.compare as u32),
                into: None,
                arrived: None,
                answer: None,
            };
            self.reads.insert(asked(&message), read);
        }
        if message.kind != READ_REPLY || message.status != 0 || message.destination >= self.nodes {
            return Ok(());
        }
        let says = |what| {
            format!(
                "node {} answers read {} of port {} of node {} {what}",
                message.source, message.seq, message.destination_port, message.destination
            )
        };
        let request = answered(&message);
        let known = self
            .reads
            .get(&request)
            .and_then(|read| Some((read.of, read.arrived?)));
        let Some((of, arrived)) = known else {
            return Err(says("which it was not asked"));
        };
        let value = digest(&frame[HEAD..HEAD + message.len as usize]);
        if message.len != of.3 || (message.len > 0 && !self.was_taken(of, arrived, value)) {
            return Err(says("with bytes that are not those that it asks for"));
        }
        if let Some(read) = self.reads.get_mut(&request) {
            read.answer = Some(value);
        }
        Ok(())
    }

    fn arrived(&mut self, now: Nanos, to: NodeId, frame: &[u8]) {
        let Some(message) = Message::read(frame).filter(|message| message.destination == to.0) else {
            return;
        };
        match message.kind {
            READ_REQUEST => {
                if let Some(read) = self.reads.get_mut(&asked(&message)) {
                    read.arrived.get_or_insert(now);
                }
            }
            READ_REPLY => {
                // A second copy of it is no news.
                if let Some(read) = self.reads.remove(&answered(&message))
                    && let (Some(into), Some(value)) = (read.into, read.answer)
                    && message.len > 0
                {
                    self.answers.entry(into).or_default().push(value);
                }
            }
            _ => {}
        }
    }
}

/// The request that this message is.
const fn asked(message: &Message) -> Request {
    (
        message.source,
        message.destination,
        message.source_life,
        message.destination_life,
        message.seq,
    )
}

/// The request that this message answers.
const fn answered(message: &Message) -> Request {
    (
        message.destination,
        message.source,
        message.destination_life,
        message.source_life,
        message.seq,
    )
}

/// What is wrong with bytes of a port.
fn differs((node, port): At, what: &str, bytes: &[u8], start: u64, (at, held): (u64, u8)) -> String {
    let got = bytes.get((at - start) as usize).copied().unwrap_or_default();
    format!("node {node}: {what} of port {port}: {got:#04x} at {at:#x}, where {held:#04x} was stored")
}

impl Checker for Contents {
    fn promise(&self) -> Promise {
        Promise::P2
    }

    fn see(&mut self, now: Nanos, fact: &Seen, news: &[News], ledger: &Ledger) -> Verdict {
        if let Seen::Sent { frame } = fact {
            self.sent(frame)?;
        }
        for item in news {
            if let News::Left {
                lane,
                seq,
                command,
                at,
            } = item
                && let Some(entry) = ledger.lanes.get(lane).and_then(|lane| lane.entry(*seq))
            {
                self.left(&entry.message, entry.digest, command, *at)?;
            }
        }
        match fact {
            Seen::Arrived { to, frame } => self.arrived(now, *to, frame),
            Seen::DmaPart {
                node,
                way: Way::FromPage,
                place,
                bytes,
                ..
            } => return self.takes(*node, *place, bytes, "a DMA"),
            Seen::DmaPart {
                node, place, bytes, ..
            } => self.puts(*node, *place, bytes),
            Seen::DmaMoved {
                node,
                way: Way::FromPage,
                place,
                bytes,
                parted,
                ..
            } => {
                if !parted {
                    self.takes(*node, *place, bytes, "a DMA")?;
                }
                self.has_taken(now, *node, *place, bytes);
            }
            Seen::BounceFilled {
                node,
                from: Some((_, place)),
                bytes,
                ..
            } => {
                self.takes(*node, *place, bytes, "the kernel")?;
                self.has_taken(now, *node, *place, bytes);
            }
            Seen::DmaMoved {
                node,
                place,
                bytes,
                stored: Some(stored),
                parted,
                ..
            } => {
                if !parted {
                    self.puts(*node, *place, bytes);
                }
                return self.has_put(*node, *place, bytes, *stored);
            }
            Seen::HostCopied {
                node,
                place,
                bytes,
                stored,
                ..
            } => {
                self.puts(*node, *place, bytes);
                return self.has_put(*node, *place, bytes, *stored);
            }
            Seen::AppStored {
                node,
                process,
                at,
                bytes,
            } => self.memory.store((*node, *process), *at, bytes),
            Seen::AppLoaded {
                node,
                process,
                at,
                bytes,
            } => {
                if let Some((wrong, held)) = self.memory.differs((*node, *process), *at, bytes) {
                    return Err(format!(
                        "node {node}: process {} loads {:#04x} at {wrong:#x}, where {held:#04x} was stored",
                        process.0,
                        bytes[(wrong - at) as usize],
                    ));
                }
            }
            Seen::Discarded {
                node,
                process,
                first,
                pages,
            } => self.memory.discard((*node, *process), *first, *pages),
            Seen::PortOpened { node, port, process } => {
                self.forget((*node, *port));
                self.owners.insert((*node, *port), *process);
            }
            Seen::PortClosed { node, port } => self.forget((*node, *port)),
            Seen::Hostile { node, port } => {
                self.hostile.insert((*node, *port));
            }
            Seen::Gone { node, process } => self.memory.end((*node, *process)),
            Seen::Restarted { node } => {
                self.memory.forget(*node);
                self.owners.retain(|at, _| at.0 != *node);
                self.hostile.retain(|at| at.0 != *node);
                self.taken.retain(|span, _| span.0 != *node);
                self.answers.retain(|span, _| span.0 != *node);
            }
            _ => {}
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::frame;
    use super::super::tests::{NODE, PORT, PROCESS, arrived, caught, feed, port_opened, sent};
    use super::*;
    use netvm_abi::Ppn;
    use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
    use netvm_abi::wire::Kind;
    use netvm_abi::{ByteLen, VirtAddr};

    const OTHER: NodeId = NodeId(1);

    fn loads(at: u64, bytes: &[u8]) -> Seen {
        Seen::AppLoaded {
            node: NODE,
            process: PROCESS,
            at,
            bytes: bytes.into(),
        }
    }

    fn stores(at: u64, bytes: &[u8]) -> Seen {
        Seen::AppStored {
            node: NODE,
            process: PROCESS,
            at,
            bytes: bytes.into(),
        }
    }

    /// Port 3 of node 0 asks something of address 0x1000 of port 4 of node 1.
    fn posted(opcode: Opcode, flags: CommandFlags, local: u64, carried: &[u8]) -> Seen {
        let command = Command {
            opcode,
            flags,
            len: ByteLen(4),
            node: OTHER,
            port: PortId(4),
            remote: VirtAddr(0x1000),
            local: VirtAddr(local),
            ..Command::default()
        };
        Seen::Posted {
            node: NODE,
            port: PORT,
            words: command.encode(),
            inline: digest(carried),
        }
    }

    fn place(port: PortId, at: u64) -> Place {
        Place {
            port,
            page: at >> 12,
            offset: (at & 0xFFF) as u32,
            len: 4,
        }
    }

    fn moves((node, port): At, at: u64, bytes: &[u8], stored: Option<Stored>) -> Seen {
        Seen::DmaMoved {
            node,
            dma: 1,
            way: if stored.is_some() {
                Way::ToPage
            } else {
                Way::FromPage
            },
            ppn: Ppn(100),
            place: place(port, at),
            bytes: bytes.into(),
            stored,
            parted: false,
        }
    }

    fn judge(facts: &[Seen]) -> Verdict {
        feed(&mut Contents::new(2), facts)
    }

    #[test]
    fn an_app_loads_what_was_stored() {
        let facts = |load| [port_opened(), stores(0x5000, b"data"), load];
        assert_eq!(judge(&facts(loads(0x4FFF, b"\0data\0"))), Ok(()));
        caught(
            judge(&facts(loads(0x5000, b"dada"))),
            "0x64 at 0x5002, where 0x74",
        );
        let lands = |stored| moves((NODE, PORT), 0x5000, b"more", Some(stored));
        for stored in [Stored::Message, Stored::Operand] {
            let facts = |load| [port_opened(), stores(0x5000, b"data"), lands(stored), load];
            assert_eq!(judge(&facts(loads(0x5000, b"more"))), Ok(()));
            caught(judge(&facts(loads(0x5000, b"data"))), "was stored");
        }
        let discarded = Seen::Discarded {
            node: NODE,
            process: PROCESS,
            first: 5,
            pages: 1,
        };
        let facts = |load| [stores(0x5000, b"data"), discarded.clone(), load];
        assert_eq!(judge(&facts(loads(0x5000, &[0; 4]))), Ok(()));
        caught(judge(&facts(loads(0x5000, b"data"))), "where 0x00 was stored");
    }

    #[test]
    fn a_write_leaves_with_the_bytes_that_it_names() {
        let left = |bytes: &[u8]| sent(frame(Kind::Write, 5, 0x1000, bytes, 0));
        let inline = posted(Opcode::Write, CommandFlags::INLINE, 0, b"data");
        assert_eq!(judge(&[port_opened(), inline.clone(), left(b"data")]), Ok(()));
        caught(
            judge(&[port_opened(), inline, left(b"dada")]),
            "in its descriptor",
        );
        let named = posted(Opcode::Write, CommandFlags::empty(), 0x5000, b"");
        let source = |at| {
            [
                port_opened(),
                stores(0x5000, b"datadata"),
                named.clone(),
                moves((NODE, PORT), at, b"data", None),
            ]
        };
        let with = |at, bytes| [&source(at)[..], &[left(bytes)]].concat();
        assert_eq!(judge(&with(0x5000, b"data")), Ok(()));
        caught(judge(&with(0x5000, b"dada")), "which it names");
        // The right bytes, out of the wrong place.
        caught(judge(&with(0x5004, b"data")), "which it names");
        // Out of a frame that is not that of the page.
        caught(judge(&with(0x5002, b"data")), "a DMA takes");
        // What was taken before it was posted is not what it asks for.
        let mut early = with(0x5000, b"data");
        early.swap(2, 3);
        let (mut ledger, mut contents) = (Ledger::default(), Contents::new(2));
        for (at, fact) in (1..).zip(&early[..4]) {
            let news = ledger.see(Nanos(at), fact);
            assert_eq!(contents.see(Nanos(at), fact, &news, &ledger), Ok(()));
        }
        let news = ledger.see(Nanos(9), &early[4]);
        caught(
            contents.see(Nanos(9), &early[4], &news, &ledger),
            "which it names",
        );
    }

    /// The answer to a read of port 3 of node 0, with these bytes.
    fn answer(bytes: &[u8]) -> Vec<u8> {
        let mut answer = frame(Kind::ReadReply, 5, 0, bytes, 0);
        // From node 1 to node 0, port 4 to port 3, life 8 to life 7.
        for (one, other) in [(8, 10), (12, 14), (16, 20)] {
            let width = other - one;
            for byte in 0..width {
                answer.swap(one + byte, other + byte);
            }
        }
        answer
    }

    #[test]
    fn a_read_brings_what_it_asks_for_to_where_it_says() {
        let owner = Seen::PortOpened {
            node: OTHER,
            port: PortId(4),
            process: crate::vm::ProcessId(2),
        };
        let mut request = frame(Kind::ReadRequest, 5, 0x1000, b"", 0);
        request[72] = 4;
        let begun = [
            port_opened(),
            owner,
            Seen::AppStored {
                node: OTHER,
                process: crate::vm::ProcessId(2),
                at: 0x1000,
                bytes: b"datadata".as_slice().into(),
            },
            posted(Opcode::Read, CommandFlags::empty(), 0x5000, b""),
            sent(request.clone()),
            arrived(request),
        ];
        let with = |taken: u64, bytes: &[u8], into: u64, stored: &[u8]| {
            let more = [
                moves((OTHER, PortId(4)), taken, b"data", None),
                sent(answer(bytes)),
                Seen::Arrived {
                    to: NODE,
                    frame: answer(bytes).into(),
                },
                moves((NODE, PORT), into, stored, Some(Stored::Answer)),
                loads(0x5000, stored),
            ];
            judge(&[&begun[..], &more].concat())
        };
        assert_eq!(with(0x1000, b"data", 0x5000, b"data"), Ok(()));
        caught(
            with(0x1000, b"dada", 0x5000, b"dada"),
            "not those that it asks for",
        );
        caught(
            with(0x1004, b"data", 0x5000, b"data"),
            "not those that it asks for",
        );
        caught(with(0x1000, b"data", 0x5000, b"dada"), "to no read of that place");
        caught(with(0x1000, b"data", 0x5008, b"data"), "to no read of that place");
        caught(judge(&[sent(answer(b"data"))]), "which it was not asked");
    }
}
