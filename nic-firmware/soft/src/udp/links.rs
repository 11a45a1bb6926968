//! Nodes at the other end of UDP, and how two nodes make a link.
//!
//! The side that wants a link sends a `Hello`, the other answers with a `Challenge`, the first brings its token back in a
//! `Confirm`, the other has the link then and says `Welcome`. The token is a hash, under a key of this card, of the address, the
//! number of the node and the number that it gave to the link: so nothing is kept of a `Hello`, and no link is made for an
//! address that does not answer. A datagram that is lost is made good by the side that began: it asks again.
//!
//! A link may be made again while it is there: both sides begin at the same time, a process is started again at its address, a
//! datagram of an attempt that was given up comes late. So a link has several pairs of numbers, takes messages by each, and
//! sends by the pair by which the last message came. Only the side that has a `Welcome` sends by a new pair at once.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, UdpSocket};

use netvm_abi::wire::{self, HEADER_BYTES};
use netvm_abi::{Nanos, NodeId};
use zerocopy::IntoBytes as _;

use super::datagram::{self, Kind, Letter, PREFIX, Reason};
use super::socket::{Path, Socket};
use crate::PAGE_BYTES;
use crate::core::random;
use crate::link_error::LinkError;
use crate::message::{Message, SMALL_BYTES, Spare};

/// A node that has been silent for so long gives its number away to another address.
const SILENT: Nanos = Nanos::from_millis(3_000);

/// Pairs of numbers of a link: the one in use, one of an attempt of each side, and one more.
const PAIRS: usize = 4;

/// What the two sides call a link.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    ours: u64,
    theirs: u64,
}

/// The other end of a link.
#[derive(Clone, Copy, Debug)]
struct Link {
    path: Path,
    /// The pair to send by, and others to take messages by, the newest first; zeros: none.
    pairs: [Pair; PAIRS],
    heard: Nanos,
    /// The last message was a farewell.
    left: bool,
}

/// A link that this side wants.
#[derive(Clone, Copy, Debug)]
struct Dial {
    to: SocketAddr,
    id: u64,
    token: Option<[u8; 32]>,
    end: Option<Result<NodeId, LinkError>>,
}

/// What a datagram brought.
#[derive(Debug)]
enum Came {
    /// And how long its content was, padding included.
    Letter(Kind, Letter, usize),
    Message(Box<Message>),
}

/// What went over UDP so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStats {
    /// Calls that asked the kernel for datagrams.
    pub asked: u64,
    /// Datagrams that this node's kernel did not take.
    pub refused: u64,
    /// Datagrams that belong to no link, or are not what was sent.
    pub strange: u64,
}

/// UDP, as a part of a card's wire.
#[derive(Debug)]
pub struct Udp {
    node: NodeId,
    socket: Socket,
    /// By node number.
    links: Vec<Option<Link>>,
    by_id: HashMap<u64, NodeId>,
    arrived: VecDeque<Box<Message>>,
    /// What one call has brought; empty between two.
    came: Vec<(Path, u64, Came)>,
    /// The kernel may have more.
    more: bool,
    dials: Vec<Dial>,
    /// Nodes with which a link was made, for the driver.
    met: Vec<NodeId>,
    key: [u8; 32],
    /// Bytes of the longest message: letters are as long.
    longest: usize,
    now: Nanos,
    strange: u64,
}

impl Udp {
    /// Binds a socket. Messages carry `payload` bytes at most; node numbers are below `nodes`.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn bind(address: SocketAddr, (node, nodes): (NodeId, u16), payload: u32) -> io::Result<Self> {
        let mut key = [0; 32];
        for part in key.chunks_mut(8) {
            part.copy_from_slice(&random()?.to_le_bytes());
        }
        Ok(Self {
            node,
            socket: Socket::bind(address)?,
            links: vec![None; nodes.into()],
            by_id: HashMap::new(),
            arrived: VecDeque::new(),
            came: Vec::new(),
            more: false,
            dials: Vec::new(),
            met: Vec::new(),
            key,
            longest: HEADER_BYTES + payload as usize,
            now: Nanos(0),
            strange: 0,
        })
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

    fn link(&self, node: NodeId) -> Option<&Link> {
        self.links.get(node.index())?.as_ref()
    }

    /// What went over it.
    #[must_use]
    pub fn stats(&self) -> UdpStats {
        UdpStats {
            asked: self.socket.asked,
            refused: self.socket.refused,
            strange: self.strange,
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

    /// Sends a message to a node that [it has](Self::has).
    pub fn send(&mut self, to: NodeId, message: &Message) {
        let Some(link) = self.links.get(to.index()).copied().flatten() else {
            return;
        };
        let content = [&message.header[..], message.payload()];
        let len = PREFIX + HEADER_BYTES + message.payload().len();
        self.socket.send(link.path, len, |into| {
            datagram::write(into, Kind::Message, link.pairs[0].theirs, &content, 0);
        });
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
        let mut came = std::mem::take(&mut self.came);
        let mut strange = 0;
        self.more = self.socket.receive(|path, bytes| {
            let what = datagram::read(bytes).and_then(|(kind, id, content)| {
                let what = match kind {
                    Kind::Message => Came::Message(message(content, spare)?),
                    kind => Came::Letter(kind, Letter::read(content)?, content.len()),
                };
                Some((path, id, what))
            });
            match what {
                Some(what) => came.push(what),
                None => strange += 1,
            }
        });
        self.strange += strange;
        // In the order in which they came: the first messages of a link follow the letter that makes it.
        for (path, id, what) in came.drain(..) {
            match what {
                Came::Message(message) => self.take(path, id, message, spare),
                Came::Letter(Kind::Hello, letter, len) => self.read_hello(path, &letter, len, &is_taken),
                Came::Letter(kind, letter, _) => self.read_letter(path, kind, id, &letter, &is_taken),
            }
        }
        self.came = came;
    }

    /// A message counts by the number of its link, and only from where the other side was met.
    fn take(&mut self, path: Path, id: u64, mut message: Box<Message>, spare: &mut Spare) {
        let from = self.by_id.get(&id).copied();
        let link = from.and_then(|from| self.links.get_mut(from.index())?.as_mut());
        match (from, link) {
            (Some(from), Some(link)) if link.path.to == path.to => {
                // After a farewell the number is free for a node at another address.
                link.left = is_farewell(&message);
                link.heard = self.now;
                if let Some(at) = link.pairs.iter().position(|pair| pair.ours == id) {
                    link.pairs[..=at].rotate_right(1);
                }
                message.arrived_from(from, self.node);
                self.arrived.push_back(message);
            }
            _ => {
                self.strange += 1;
                spare.give(message);
            }
        }
    }

    fn write_letter(&mut self, path: Path, kind: Kind, link: u64, letter: &Letter) {
        self.write_padded(path, kind, link, letter, self.longest);
    }

    fn write_padded(&mut self, path: Path, kind: Kind, link: u64, letter: &Letter, room: usize) {
        let len = PREFIX + room.max(size_of::<Letter>());
        self.socket.send(path, len, |into| {
            datagram::write(into, kind, link, &[letter.as_bytes()], room);
        });
    }

    /// Proves, to this card later, that the node with this number is at this address, and gave this number to the link.
    fn token(&self, path: Path, letter: &Letter) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(path.to.to_string().as_bytes());
        hasher.update(&letter.node().0.to_le_bytes());
        hasher.update(&letter.id().to_le_bytes());
        hasher.finalize()
    }

    /// The sender's address is not proven: the answer is not longer than what it answers, and nothing is kept.
    fn read_hello(&mut self, path: Path, letter: &Letter, len: usize, is_taken: &impl Fn(NodeId) -> bool) {
        let (kind, answer) = match self.refuses(path, letter, is_taken) {
            Some(reason) => (Kind::Refusal, Letter::from(self.node, 0).refusing(reason)),
            None => {
                let token = *self.token(path, letter).as_bytes();
                (Kind::Challenge, Letter::from(self.node, 0).with_token(token))
            }
        };
        self.write_padded(path, kind, letter.id(), &answer, self.longest.min(len));
    }

    fn read_letter(
        &mut self,
        path: Path,
        kind: Kind,
        id: u64,
        letter: &Letter,
        is_taken: &impl Fn(NodeId) -> bool,
    ) {
        match kind {
            Kind::Confirm if self.token(path, letter) == blake3::Hash::from(letter.token) => {
                if let Some(reason) = self.refuses(path, letter, is_taken) {
                    let answer = Letter::from(self.node, 0).refusing(reason);
                    return self.write_letter(path, Kind::Refusal, letter.id(), &answer);
                }
                // A repeated one: the `Welcome` was lost.
                let pairs = self.link(letter.node()).map(|link| link.pairs);
                let known = pairs
                    .into_iter()
                    .flatten()
                    .find(|pair| pair.theirs == letter.id());
                let ours = match known {
                    Some(pair) => pair.ours,
                    None => {
                        let Some(ours) = new_id() else { return };
                        let theirs = letter.id();
                        self.meet(letter.node(), path, Pair { ours, theirs }, false);
                        ours
                    }
                };
                let answer = Letter::from(self.node, ours);
                self.write_letter(path, Kind::Welcome, letter.id(), &answer);
            }
            Kind::Challenge | Kind::Welcome | Kind::Refusal => {
                self.read_answer(path, kind, id, letter, is_taken)
            }
            Kind::Hello | Kind::Confirm | Kind::Message => self.strange += 1,
        }
    }

    fn read_answer(
        &mut self,
        path: Path,
        kind: Kind,
        id: u64,
        letter: &Letter,
        is_taken: &impl Fn(NodeId) -> bool,
    ) {
        let Some(at) = self
            .dials
            .iter()
            .position(|dial| dial.id == id && dial.to == path.to && dial.end.is_none())
        else {
            // An answer to what was asked twice.
            return;
        };
        let end = match kind {
            Kind::Challenge => {
                if let Some(dial) = self.dials.get_mut(at) {
                    dial.token = Some(letter.token);
                }
                return self.ask(at);
            }
            Kind::Welcome => match self.refuses(path, letter, is_taken) {
                None => {
                    let theirs = letter.id();
                    self.meet(letter.node(), path, Pair { ours: id, theirs }, true);
                    Ok(letter.node())
                }
                Some(Reason::Version(_)) => Err(LinkError::Version(letter.abi())),
                Some(_) => Err(LinkError::Refused(
                    "its number belongs to another node here, or is not below this node's number of nodes",
                )),
            },
            _ => Err(match letter.reason() {
                Some(Reason::Taken(free)) => LinkError::NumberTaken { free },
                Some(Reason::Full) => LinkError::NoNumber,
                Some(Reason::TooHigh(nodes)) => LinkError::NumberTooHigh { nodes },
                Some(Reason::Version(version)) => LinkError::Version(version),
                None => LinkError::Malformed,
            }),
        };
        if let Some(dial) = self.dials.get_mut(at) {
            dial.end = Some(end);
        }
    }

    /// Why there can be no link with the sender of this letter.
    fn refuses(&self, path: Path, letter: &Letter, is_taken: &impl Fn(NodeId) -> bool) -> Option<Reason> {
        let node = letter.node();
        let taken = |node: NodeId| {
            let other = self.link(node).is_some_and(|link| {
                link.path.to != path.to && !link.left && link.heard.after(SILENT) > self.now
            });
            node == self.node || is_taken(node) || other
        };
        if letter.abi() != netvm_abi::ABI_VERSION {
            return Some(Reason::Version(netvm_abi::ABI_VERSION));
        }
        if node.index() >= self.links.len() {
            return Some(Reason::TooHigh(self.links.len() as u16));
        }
        taken(node).then(|| {
            let mut numbers = (0..self.links.len() as u16).map(NodeId);
            let free = numbers.find(|number| !taken(*number) && !self.has(*number));
            free.map_or(Reason::Full, Reason::Taken)
        })
    }

    /// There is a link. `at_once`: the other side has this pair, too.
    fn meet(&mut self, node: NodeId, path: Path, pair: Pair, at_once: bool) {
        let Some(place) = self.links.get_mut(node.index()) else {
            return;
        };
        let before = place.filter(|link| link.path.to == path.to);
        let mut pairs = before.map(|link| link.pairs).unwrap_or_default();
        pairs.rotate_right(1);
        let oldest = std::mem::replace(&mut pairs[0], pair);
        if before.is_some() && !at_once {
            pairs.swap(0, 1);
        }
        // All of a link to another address, or the oldest.
        let gone = match before {
            None => place.map(|link| link.pairs).unwrap_or_default(),
            Some(_) => [oldest; PAIRS],
        };
        for old in gone {
            self.by_id.remove(&old.ours);
        }
        *place = Some(Link {
            path,
            pairs,
            heard: self.now,
            left: false,
        });
        self.by_id.insert(pair.ours, node);
        self.met.push(node);
    }

    /// Begins to make a link with the node at an address. Returns what to [ask](Self::redial) for.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn dial(&mut self, to: SocketAddr) -> Result<u64, LinkError> {
        let id = new_id().ok_or(LinkError::System("random numbers", rustix::io::Errno::AGAIN))?;
        self.dials.push(Dial {
            to,
            id,
            token: None,
            end: None,
        });
        self.ask(self.dials.len() - 1);
        Ok(id)
    }

    /// How an attempt ended. If it has not, asks again.
    ///
    /// # Errors
    /// There will be no link.
    pub fn redial(&mut self, id: u64) -> Option<Result<NodeId, LinkError>> {
        let at = self.dials.iter().position(|dial| dial.id == id)?;
        if self.socket.too_long {
            self.socket.too_long = false;
            self.dials.remove(at);
            return Some(Err(LinkError::TooLong(PREFIX + self.longest)));
        }
        match self.end_of(id) {
            None => {
                self.ask(at);
                None
            }
            end => {
                self.dials.remove(at);
                end
            }
        }
    }

    /// How an attempt ended, if it has.
    #[must_use]
    pub fn end_of(&self, id: u64) -> Option<Result<NodeId, LinkError>> {
        self.dials.iter().find(|dial| dial.id == id)?.end
    }

    /// Gives an attempt up.
    pub fn hang_up(&mut self, id: u64) {
        self.dials.retain(|dial| dial.id != id);
    }

    fn ask(&mut self, at: usize) {
        let Some(&Dial { to, id, token, .. }) = self.dials.get(at) else {
            return;
        };
        let letter = Letter::from(self.node, id);
        let (kind, letter) = match token {
            None => (Kind::Hello, letter),
            Some(token) => (Kind::Confirm, letter.with_token(token)),
        };
        self.write_letter(Path { to, from: None }, kind, 0, &letter);
        self.socket.flush();
    }
}

/// Whether a message ends its sender's life.
fn is_farewell(message: &Message) -> bool {
    message.len == 0 && message.word(0) >> 24 == wire::Kind::Bye as u32
}

/// A number for a link: not 0, and not to be guessed.
fn new_id() -> Option<u64> {
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
