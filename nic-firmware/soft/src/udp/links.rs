//! Nodes at the other end of UDP: what is sent to them and what comes from them.
//!
//! A link may be made again while it is there: both sides begin at the same time, a process is started again at its address, a
//! datagram of an attempt that was given up comes late. So a link has several pairs of numbers, takes messages by each, and
//! sends by the pair by which the last message came. Only the side that has a `Welcome` sends by a new pair at once.
//!
//! Where a node has a cluster key, each pair has keys of its own ([`sealed`]), and nothing that is not sealed is taken.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, UdpSocket};

use netvm_abi::wire::{self, HEADER_BYTES};
use netvm_abi::{Incarnation, Nanos, NodeId};

use super::datagram::{self, Kind, Letter, PREFIX, Reason};
use super::key::ClusterKey;
use super::meeting::{Dial, SILENT, Said};
use super::sealed::{self, Bad, HEAD, LETTER_BYTES, Letters, NONCE_BYTES, Proof, Secrets};
use super::sizes::{EVERY_PATH, Sizes};
use super::socket::{Inbox, Path, Socket};
use crate::PAGE_BYTES;
use crate::core::random;
use crate::message::{Message, SMALL_BYTES, Spare};

/// Pairs of numbers of a link: the one in use, one of an attempt of each side, and one more.
const PAIRS: usize = 4;

/// What the two sides call a link, and the keys of that.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) ours: u64,
    pub(super) theirs: u64,
    /// This side's random value, for a `Welcome` that is said again.
    pub(super) nonce: [u8; NONCE_BYTES],
    pub(super) secrets: Option<Box<Secrets>>,
}

/// The other end of a link.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) path: Path,
    /// The largest payload that the letters of this meeting have shown, in bytes.
    pub(super) payload: u32,
    /// This end's life of the link since the meeting, as the card calls it.
    life: Option<Incarnation>,
    /// When that has last sent anything but a greeting, if it has.
    sent: Option<Nanos>,
    /// When anything but a greeting has last come.
    came: Nanos,
    /// A greeting has come since: the other side has given the life up. It may have had no answer; this end may have sent nothing.
    greeted: bool,
    /// The pair to send by, and others to take messages by, the newest first; zeros: none.
    pub(super) pairs: [Pair; PAIRS],
    pub(super) heard: Nanos,
    /// There was a farewell, and no greeting after it.
    pub(super) left: bool,
    /// The stamp of the last `Confirm` of this node, of whatever address. An older one makes no link.
    pub(super) confirmed: u64,
}

/// What went over UDP so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStats {
    /// Calls that asked the kernel for datagrams.
    pub asked: u64,
    /// Datagrams that this node's kernel did not take.
    pub refused: u64,
    /// Datagrams that belong to no link, or are not what was sent, or are not sealed where a key is wanted, or the reverse.
    pub strange: u64,
    /// Sealed datagrams that no holder of the key has made, or that the network has spoilt.
    pub forged: u64,
    /// Sealed datagrams that have come before, or belong to an attempt that is over.
    pub replayed: u64,
}

/// What a node with a cluster key has of it.
#[derive(Debug)]
pub(super) struct Keyed {
    pub(super) key: ClusterKey,
    pub(super) letters: Letters,
}

/// UDP, as a part of a card's wire.
#[derive(Debug)]
pub struct Udp {
    pub(super) node: NodeId,
    pub(super) socket: Socket,
    /// By node number.
    pub(super) links: Vec<Option<Link>>,
    by_id: HashMap<u64, NodeId>,
    arrived: VecDeque<Box<Message>>,
    inbox: Inbox,
    /// The kernel may have more.
    more: bool,
    pub(super) dials: Vec<Dial>,
    /// Nodes with which a link was made, for the driver.
    met: Vec<NodeId>,
    /// For tokens.
    pub(super) secret: [u8; 32],
    pub(super) keyed: Option<Keyed>,
    /// Of the last challenge.
    pub(super) stamp: u64,
    /// Of its messages, and so of its letters.
    pub(super) sizes: Sizes,
    pub(super) now: Nanos,
    /// After it a silent node's number is free for another address.
    pub(super) silence: Nanos,
    pub(super) strange: u64,
    pub(super) forged: u64,
    pub(super) replayed: u64,
}

impl Udp {
    /// Binds a socket. Messages carry `payload` bytes at most; node numbers are below `nodes`.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn bind(address: SocketAddr, (node, nodes): (NodeId, u16), payload: u32) -> io::Result<Self> {
        let mut secret = [0; 32];
        crate::core::fill_random(&mut secret)?;
        Ok(Self {
            node,
            socket: Socket::bind(address)?,
            links: (0..nodes).map(|_| None).collect(),
            by_id: HashMap::new(),
            arrived: VecDeque::new(),
            inbox: Inbox::new(),
            more: false,
            dials: Vec::new(),
            met: Vec::new(),
            secret,
            keyed: None,
            stamp: 0,
            sizes: Sizes::up_to(payload),
            now: Nanos(0),
            silence: SILENT,
            strange: 0,
            forged: 0,
            replayed: 0,
        })
    }

    /// With the key of a cluster, if there is one: everything that is sent is sealed, and nothing else is taken.
    #[must_use]
    pub fn with_key(mut self, key: Option<ClusterKey>) -> Self {
        self.keyed = key.map(|key| Keyed {
            letters: Letters::new(&key),
            key,
        });
        self
    }

    /// With another time after which a silent node gives its number away to another address; 3 s if not set.
    #[must_use]
    pub fn with_silence(mut self, silence: Nanos) -> Self {
        self.silence = silence;
        self
    }

    /// Whether it has a cluster key, so that all of its links are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.keyed.is_some()
    }

    /// Bytes of a datagram before its content.
    pub(super) fn head(&self) -> usize {
        if self.is_encrypted() { HEAD } else { PREFIX }
    }

    /// Its socket, to wait for and to ask for its address.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        self.socket.socket()
    }

    /// Whether a node is at the other end of a link of this kind.
    #[must_use]
    pub fn has(&self, node: NodeId) -> bool {
        self.link(node).is_some()
    }

    /// Where messages to a node go to.
    #[must_use]
    pub fn address_of(&self, node: NodeId) -> Option<SocketAddr> {
        self.link(node).map(|link| link.path.to)
    }

    /// The largest payload of messages to a node, for this life of the link at this end; nothing without a link.
    pub fn payload(&mut self, node: NodeId, life: Incarnation) -> Option<u32> {
        let link = self.links.get_mut(node.index())?.as_mut()?;
        if link.life != Some(life) {
            let hears = |sent| sent < link.came.after(Nanos(self.silence.0 / 2));
            if link.sent.take().is_some_and(hears) && !link.greeted {
                // This end has given the life before up while short messages came through.
                link.payload = link.payload.min(EVERY_PATH);
            }
            link.life = Some(life);
        }
        Some(link.payload)
    }

    pub(super) fn link(&self, node: NodeId) -> Option<&Link> {
        self.links.get(node.index())?.as_ref()
    }

    /// What went over it.
    #[must_use]
    pub fn stats(&self) -> UdpStats {
        UdpStats {
            asked: self.socket.asked,
            refused: self.socket.refused,
            strange: self.strange,
            forged: self.forged,
            replayed: self.replayed,
        }
    }

    /// Counts up whenever something passes, in either direction.
    pub(crate) fn passed(&self) -> u64 {
        self.socket.passed
    }

    /// Nodes with which a link was made since the last call.
    pub fn take_met(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.met)
    }

    /// Sends a message to a node that [it has](Self::has). One that is sent again is sealed anew, with a number of its own.
    pub fn send(&mut self, to: NodeId, message: &Message) {
        let Some(link) = self.links.get_mut(to.index()).and_then(Option::as_mut) else {
            return;
        };
        // What is still sent of a life before the meeting says nothing of this one.
        if link.life == Some(message.life()) && !is_greeting(kind_of(message)) {
            link.sent = Some(self.now);
        }
        let content = [&message.header[..], message.payload()];
        let len = HEADER_BYTES + message.payload().len();
        let Pair { theirs, secrets, .. } = &mut link.pairs[0];
        match secrets {
            Some(secrets) => match secrets.seal.number() {
                Some(number) => self.socket.send(link.path, HEAD + len, |into| {
                    secrets.seal.write(number, into, *theirs, &content);
                }),
                None => self.let_go(to),
            },
            None if self.keyed.is_some() => {}
            None => self.socket.send(link.path, PREFIX + len, |into| {
                datagram::write(into, Kind::Message, *theirs, &content, 0);
            }),
        }
    }

    /// A key has sealed as much as it may. Nothing is sent or taken until the link is made again, so the card finds it lost.
    fn let_go(&mut self, node: NodeId) {
        if let Some(Some(link)) = self.links.get_mut(node.index()) {
            for pair in std::mem::take(&mut link.pairs) {
                self.by_id.remove(&pair.ours);
            }
            link.left = true;
        }
    }

    /// Sends what waits for company.
    pub fn flush(&mut self) {
        self.socket.flush();
    }

    /// The next message that [`look`](Self::look) has found.
    pub fn pop(&mut self) -> Option<Box<Message>> {
        self.arrived.pop_front()
    }

    /// Whether there is one.
    #[must_use]
    pub fn has_input(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Whether the kernel may have more.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Takes what has come. `is_taken` says of a node number whether it belongs to a node that is linked in another way.
    pub fn look(&mut self, now: Nanos, spare: &mut Spare, is_taken: impl Fn(NodeId) -> bool) {
        self.now = now;
        let mut inbox = std::mem::take(&mut self.inbox);
        self.more = self.socket.receive(&mut inbox);
        // In the order in which they came: the first messages of a link follow the letter that makes it.
        for (path, bytes) in inbox.datagrams() {
            if self.is_encrypted() {
                self.read_sealed(path, bytes, spare, &is_taken);
            } else {
                self.read_plain(path, bytes, spare, &is_taken);
            }
        }
        self.inbox = inbox;
    }

    /// At a node without a key.
    fn read_plain(
        &mut self,
        path: Path,
        bytes: &[u8],
        spare: &mut Spare,
        is_taken: &impl Fn(NodeId) -> bool,
    ) {
        match datagram::read(bytes) {
            Some((Kind::Message, id, content)) => match self.sender(path, id) {
                Some((from, at)) => self.take(from, at, message(content, spare)),
                None => self.strange += 1,
            },
            Some((kind, id, content)) => match Letter::read(content) {
                Some(letter) => {
                    let said = Said {
                        path,
                        kind,
                        id,
                        letter,
                        proof: Proof::default(),
                        room: content.len(),
                    };
                    self.read_letter(&said, is_taken);
                }
                None => self.strange += 1,
            },
            None => {
                self.strange += 1;
                if let Some((Kind::Hello, _)) = sealed::head(bytes) {
                    self.hint(path, Reason::NoKey, sealed::unproven(bytes), bytes.len());
                }
            }
        }
    }

    /// At a node with a key.
    fn read_sealed(
        &mut self,
        path: Path,
        bytes: &mut [u8],
        spare: &mut Spare,
        is_taken: &impl Fn(NodeId) -> bool,
    ) {
        match sealed::head(bytes) {
            Some((Kind::Message, id)) => match self.sender(path, id) {
                Some((from, at)) => self.open(from, at, bytes, spare),
                None => self.strange += 1,
            },
            Some((kind, id)) => {
                let read = self.keyed.as_ref().and_then(|keyed| keyed.letters.read(bytes));
                match read {
                    Some((letter, proof)) => {
                        let said = Said {
                            path,
                            kind,
                            id,
                            letter,
                            proof,
                            room: bytes.len() - HEAD,
                        };
                        self.read_letter(&said, is_taken);
                    }
                    None => {
                        self.forged += 1;
                        if kind == Kind::Hello {
                            self.hint(path, Reason::OtherKey, sealed::unproven(bytes), bytes.len());
                        }
                    }
                }
            }
            None => {
                self.strange += 1;
                self.read_unsealed(path, bytes);
            }
        }
    }

    /// The node and pair that a message belongs to: it counts by the number of its link, and only from where the other side was
    /// met.
    fn sender(&self, path: Path, id: u64) -> Option<(NodeId, usize)> {
        let from = *self.by_id.get(&id)?;
        let link = self.link(from).filter(|link| link.path.to == path.to)?;
        let at = link.pairs.iter().position(|pair| pair.ours == id)?;
        Some((from, at))
    }

    fn open(&mut self, from: NodeId, at: usize, bytes: &mut [u8], spare: &mut Spare) {
        let link = self.links.get_mut(from.index()).and_then(Option::as_mut);
        let secrets = link.and_then(|link| link.pairs.get_mut(at)?.secrets.as_mut());
        match secrets.map(|secrets| secrets.open.open(bytes)) {
            Some(Ok(content)) => self.take(from, at, message(content, spare)),
            Some(Err(Bad::Replayed)) => self.replayed += 1,
            Some(Err(Bad::Forged)) => self.forged += 1,
            None => self.strange += 1,
        }
    }

    fn take(&mut self, from: NodeId, at: usize, message: Option<Box<Message>>) {
        let link = self.links.get_mut(from.index()).and_then(Option::as_mut);
        let (Some(mut message), Some(link)) = (message, link) else {
            self.strange += 1;
            return;
        };
        let kind = kind_of(&message);
        link.left = has_left(link.left, kind);
        link.heard = self.now;
        link.greeted = is_greeting(kind);
        if !link.greeted {
            link.came = self.now;
        }
        if let Some(pairs) = link.pairs.get_mut(..=at) {
            pairs.rotate_right(1);
        }
        message.arrived_from(from, self.node);
        self.arrived.push_back(message);
    }

    /// There is a link. `at_once`: the other side has this pair, too. `stamp`: of what proved it.
    /// `payload`: what the letters have shown that the path takes.
    pub(super) fn meet(
        &mut self,
        node: NodeId,
        (path, payload): (Path, u32),
        pair: Pair,
        at_once: bool,
        stamp: u64,
    ) {
        let Some(place) = self.links.get_mut(node.index()) else {
            return;
        };
        let before = place.take();
        let confirmed = before.as_ref().map_or(0, |link| link.confirmed);
        self.by_id.insert(pair.ours, node);
        let mut pairs: [Pair; PAIRS] = Default::default();
        // All of a link to another address, or the oldest.
        let mut gone = [0; PAIRS];
        match before {
            Some(link) if link.path.to == path.to => {
                pairs = link.pairs;
                pairs.rotate_right(1);
                gone[0] = std::mem::replace(&mut pairs[0], pair).ours;
                if !at_once && pairs[1].theirs != 0 {
                    pairs.swap(0, 1);
                }
            }
            other => {
                pairs[0] = pair;
                gone = other
                    .map(|link| link.pairs.map(|pair| pair.ours))
                    .unwrap_or_default();
            }
        }
        for old in gone {
            self.by_id.remove(&old);
        }
        *place = Some(Link {
            path,
            payload,
            life: None,
            sent: None,
            came: self.now,
            greeted: false,
            pairs,
            heard: self.now,
            left: false,
            confirmed: confirmed.max(stamp),
        });
        self.met.push(node);
    }

    /// Sends a letter, padded to `room` bytes of content.
    pub(super) fn write_letter(
        &mut self,
        path: Path,
        kind: Kind,
        link: u64,
        letter: &Letter,
        proof: &Proof,
        room: usize,
    ) {
        match &self.keyed {
            Some(keyed) => self.socket.send(path, HEAD + room.max(LETTER_BYTES), |into| {
                keyed.letters.write(into, (kind, link), letter, proof, room);
            }),
            None => self.write_plain(path, kind, link, letter, room),
        }
    }

    /// Sends a letter that no key has sealed.
    pub(super) fn write_plain(&mut self, path: Path, kind: Kind, link: u64, letter: &Letter, room: usize) {
        let len = PREFIX + room.max(size_of::<Letter>());
        self.socket.send(path, len, |into| {
            datagram::write(into, kind, link, &[zerocopy::IntoBytes::as_bytes(letter)], room);
        });
    }
}

/// Whether a card has left, after a message of this kind: from its farewell on its number is free for a node at another
/// address, until it greets again. What else comes after a farewell may have been overtaken by it.
fn has_left(before: bool, kind: Option<wire::Kind>) -> bool {
    match kind {
        Some(wire::Kind::Bye) => true,
        Some(wire::Kind::Hello | wire::Kind::HelloAck) => false,
        _ => before,
    }
}

/// Whether a message only begins or ends a life of a link.
const fn is_greeting(kind: Option<wire::Kind>) -> bool {
    matches!(
        kind,
        Some(wire::Kind::Hello | wire::Kind::HelloAck | wire::Kind::Bye)
    )
}

/// What a message is, by its own account.
fn kind_of(message: &Message) -> Option<wire::Kind> {
    wire::Kind::from_code((message.word(0) >> 24) as u8)
}

/// A number for a link: not 0, and not to be guessed.
pub(super) fn new_id() -> Option<u64> {
    random().ok().filter(|id| *id != 0)
}

/// A message, of what a datagram holds.
fn message(content: &[u8], spare: &mut Spare) -> Option<Box<Message>> {
    let (header, payload) = content.split_first_chunk::<HEADER_BYTES>()?;
    if payload.len() > PAGE_BYTES {
        return None;
    }
    let mut message = spare.messages.take();
    message.header = *header;
    message.len = payload.len();
    if payload.len() <= SMALL_BYTES {
        let places = message.small.iter_mut();
        places.zip(payload).for_each(|(to, from)| *to = *from);
    } else {
        let mut buffer = spare.pages.take();
        if let Some(place) = buffer.0.get_mut(..payload.len()) {
            place.copy_from_slice(payload);
        }
        message.buffer = Some(buffer);
    }
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::has_left;
    use netvm_abi::wire::Kind;

    #[test]
    fn what_a_farewell_has_overtaken_takes_no_number_again() {
        let after = |kinds: &[Kind]| kinds.iter().fold(false, |left, kind| has_left(left, Some(*kind)));
        assert!(after(&[Kind::Hello, Kind::Bye]));
        assert!(after(&[Kind::Bye, Kind::Probe, Kind::Ack, Kind::Write]));
        assert!(!after(&[Kind::Bye, Kind::Probe, Kind::Hello]));
        assert!(!after(&[Kind::Bye, Kind::HelloAck, Kind::Write]));
        assert!(!has_left(false, None));
    }
}
