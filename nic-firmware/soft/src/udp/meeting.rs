//! How two nodes make a link.
//!
//! The side that wants a link sends a `Hello`, the other answers with a `Challenge`, the first brings its token back in a
//! `Confirm`, the other has the link then and says `Welcome`. The token is a hash, under a secret of this card, of the address,
//! the number of the node and the number that it gave to the link: so nothing is kept of a `Hello`, and no link is made for an
//! address that does not answer. A datagram that is lost is made good by the side that began: it asks again.
//!
//! **With a cluster key** each letter bears a tag under it, and each side brings a random value: the dialler in all that it
//! says, the other side in its `Welcome`. The keys of the link come of both, so no life has the keys of another, and what was
//! recorded of one opens in none. Answers repeat the dialler's value. Challenges are stamped: a `Confirm` makes no link when it
//! is [old](TOKEN_LIFE), or not newer than the last one of its node.

use std::net::SocketAddr;

use netvm_abi::{Nanos, NodeId};

use super::datagram::{self, Kind, Letter, PREFIX, Reason};
use super::links::{Pair, Udp, new_id};
use super::sealed::{LETTER_BYTES, NONCE_BYTES, Proof, Secrets, Told};
use super::sizes::payload_of;
use super::socket::Path;
use crate::core::fill_random;
use crate::link_error::LinkError;

/// A node that has been silent for so long gives its number away to another address, if a program does not say.
pub(super) const SILENT: Nanos = Nanos::from_millis(3_000);
/// How long a token is good for, where there is a key.
const TOKEN_LIFE: Nanos = Nanos::from_millis(10_000);
/// How often a token is brought back in letters of one length. When no length is left, another one is asked for.
const CONFIRMS: u32 = 4;
/// How often an attempt asks before it believes what is said of keys without proof.
const BELIEVES: u32 = 10;

/// A link that this side wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dial {
    to: SocketAddr,
    id: u64,
    nonce: [u8; NONCE_BYTES],
    /// A token, and its stamp.
    token: Option<([u8; 32], u64)>,
    /// Which of this node's [sizes](Udp::sizes) it is brought back in, and how often it was.
    size: usize,
    confirms: u32,
    asked: u32,
    /// An answer has come that counts.
    answered: bool,
    /// What was said of keys. Anyone may have said it.
    hint: Option<LinkError>,
    end: Option<Result<NodeId, LinkError>>,
}

/// A letter that has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) path: Path,
    pub(super) kind: Kind,
    /// The link that it names.
    pub(super) id: u64,
    pub(super) letter: Letter,
    pub(super) proof: Proof,
    /// How long its content was, padding included.
    pub(super) room: usize,
}

impl Udp {
    /// Proves, to this card later, that the node with this number is at this address, and gave this number to the link.
    fn token(&self, said: &Said, stamp: u64) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(said.path.to.to_string().as_bytes());
        hasher.update(&said.letter.node().0.to_le_bytes());
        hasher.update(&said.letter.id().to_le_bytes());
        hasher.update(&said.proof.nonce);
        hasher.update(&stamp.to_le_bytes());
        hasher.finalize()
    }

    pub(super) fn read_letter(&mut self, said: &Said, is_taken: &impl Fn(NodeId) -> bool) {
        match said.kind {
            // Sent back to this node, which a key does not forbid.
            Kind::Hello | Kind::Confirm if self.is_encrypted() && self.is_ours(said.letter.id()) => {
                self.replayed += 1;
            }
            Kind::Hello => self.read_hello(said, is_taken),
            Kind::Confirm => self.read_confirm(said, is_taken),
            Kind::Challenge | Kind::Welcome | Kind::Refusal => self.read_answer(said, is_taken),
            Kind::Message => self.strange += 1,
        }
    }

    fn is_ours(&self, id: u64) -> bool {
        self.dials.iter().any(|dial| dial.id == id)
    }

    /// The sender's address is not proven: the answer is not longer than what it answers, and nothing is kept.
    fn read_hello(&mut self, said: &Said, is_taken: &impl Fn(NodeId) -> bool) {
        let letter = Letter::from(self.node, 0);
        let proof = answer_to(said);
        let (kind, letter, proof) = match self.refuses(said, is_taken) {
            Some(reason) => (Kind::Refusal, letter.refusing(reason), proof),
            None => {
                let stamp = self.next_stamp();
                let token = *self.token(said, stamp).as_bytes();
                (Kind::Challenge, letter.with_token(token), proof.stamped(stamp))
            }
        };
        let room = self.sizes.longest().min(said.room);
        self.write_letter(said.path, kind, said.letter.id(), &letter, &proof, room);
    }

    /// The time, and above all stamps before. Without a key there are none.
    fn next_stamp(&mut self) -> u64 {
        if self.is_encrypted() {
            self.stamp = self.now.0.max(self.stamp + 1);
        }
        self.stamp
    }

    fn read_confirm(&mut self, said: &Said, is_taken: &impl Fn(NodeId) -> bool) {
        let stamp = said.proof.stamp();
        if self.token(said, stamp) != blake3::Hash::from(said.letter.token) {
            // With a key it was a node's once: for another address, or before this card was started.
            let count = if self.is_encrypted() {
                &mut self.replayed
            } else {
                &mut self.strange
            };
            *count += 1;
            return;
        }
        let proof = answer_to(said);
        // As long as what it answers: so the other side learns what the path takes this way, too.
        let room = self.sizes.longest().min(said.room);
        if let Some(reason) = self.refuses(said, is_taken) {
            let answer = Letter::from(self.node, 0).refusing(reason);
            let (path, id) = (said.path, said.letter.id());
            return self.write_letter(path, Kind::Refusal, id, &answer, &proof, room);
        }
        // A repeated one: the `Welcome` was lost, or was too long for the way back. The dialler, which hears one in the end, offers no
        // more than that took.
        let link = self.link(said.letter.node());
        let known = link.and_then(|link| link.pairs.iter().find(|pair| pair.theirs == said.letter.id()));
        let known = known.map(|pair| (pair.ours, pair.nonce));
        let Some((ours, nonce)) = known.or_else(|| self.confirm(said, stamp, room)) else {
            return;
        };
        let answer = Letter::from(self.node, ours);
        let proof = Proof { nonce, ..proof };
        let (path, id) = (said.path, said.letter.id());
        self.write_letter(path, Kind::Welcome, id, &answer, &proof, room);
    }

    /// Makes the link that a `Confirm` asks for, whose messages are `room` bytes long at most. Gives this side's number of it, and its
    /// random value.
    fn confirm(&mut self, said: &Said, stamp: u64, room: usize) -> Option<(u64, [u8; NONCE_BYTES])> {
        let node = said.letter.node();
        let ours = new_id()?;
        let theirs = said.letter.id();
        let mut nonce = [0; NONCE_BYTES];
        let secrets = match &self.keyed {
            None => None,
            Some(keyed) => {
                let last = self.link(node).map_or(0, |link| link.confirmed);
                if stamp <= last || Nanos(stamp).after(TOKEN_LIFE) < self.now {
                    self.replayed += 1;
                    return None;
                }
                fill_random(&mut nonce).ok()?;
                let told = Told {
                    nonces: [said.proof.nonce, nonce],
                    nodes: [node, self.node],
                    ids: [theirs, ours],
                };
                Some(Box::new(Secrets::new(&keyed.key, &told, false)?))
            }
        };
        let pair = Pair {
            ours,
            theirs,
            nonce,
            secrets,
        };
        self.meet(node, (said.path, payload_of(room)), pair, false, stamp);
        Some((ours, nonce))
    }

    fn read_answer(&mut self, said: &Said, is_taken: &impl Fn(NodeId) -> bool) {
        let asked = |dial: &Dial| dial.id == said.id && dial.to == said.path.to && dial.end.is_none();
        let Some(at) = self.dials.iter().position(asked) else {
            // An answer to what was asked twice.
            return;
        };
        let Some(dial) = self.dials.get_mut(at) else {
            return;
        };
        if dial.nonce != said.proof.echo {
            self.replayed += 1;
            return;
        }
        dial.answered = true;
        let nonce = dial.nonce;
        let end = match said.kind {
            Kind::Challenge => {
                dial.token = Some((said.letter.token, said.proof.stamp()));
                (dial.size, dial.confirms) = (0, 0);
                return self.ask(at);
            }
            Kind::Welcome => match self.refuses(said, is_taken) {
                None => match self.welcome(said, nonce) {
                    Some(()) => Ok(said.letter.node()),
                    None => Err(LinkError::Malformed),
                },
                Some(Reason::Version(_)) => Err(LinkError::Version(said.letter.abi())),
                Some(_) => Err(LinkError::Refused(
                    "its number belongs to another node here, or is not below this node's number of nodes",
                )),
            },
            _ => Err(said.letter.reason().map_or(LinkError::Malformed, error)),
        };
        if let Some(dial) = self.dials.get_mut(at) {
            dial.end = Some(end);
        }
    }

    /// The other side has made the link.
    fn welcome(&mut self, said: &Said, nonce: [u8; NONCE_BYTES]) -> Option<()> {
        let (node, ours, theirs) = (said.letter.node(), said.id, said.letter.id());
        let secrets = match &self.keyed {
            None => None,
            Some(keyed) => {
                let told = Told {
                    nonces: [nonce, said.proof.nonce],
                    nodes: [self.node, node],
                    ids: [ours, theirs],
                };
                Some(Box::new(Secrets::new(&keyed.key, &told, true)?))
            }
        };
        let pair = Pair {
            ours,
            theirs,
            nonce,
            secrets,
        };
        let room = self.sizes.longest().min(said.room);
        self.meet(node, (said.path, payload_of(room)), pair, true, 0);
        Some(())
    }

    /// Why there can be no link with the sender of this letter.
    fn refuses(&self, said: &Said, is_taken: &impl Fn(NodeId) -> bool) -> Option<Reason> {
        let node = said.letter.node();
        let taken = |node: NodeId| {
            let other = self.link(node).is_some_and(|link| {
                link.path.to != said.path.to && !link.left && link.heard.after(self.silence) > self.now
            });
            node == self.node || is_taken(node) || other
        };
        if said.letter.abi() != netvm_abi::ABI_VERSION {
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

    /// Tells the sender of a `Hello` what it did wrong with keys, without proof and in no more bytes than it sent.
    pub(super) fn hint(&mut self, path: Path, reason: Reason, hello: Option<Letter>, len: usize) {
        let Some(hello) = hello else { return };
        let answer = Letter::from(self.node, 0).refusing(reason);
        let room = self.sizes.longest().min(len.saturating_sub(PREFIX));
        self.write_plain(path, Kind::Refusal, hello.id(), &answer, room);
    }

    /// What is not sealed, at a node with a key. It is answered, or is a hint for an attempt; it makes and ends nothing.
    pub(super) fn read_unsealed(&mut self, path: Path, bytes: &[u8]) {
        let Some((kind, id, content)) = datagram::read(bytes) else {
            return;
        };
        let letter = Letter::read(content);
        match kind {
            Kind::Hello => self.hint(path, Reason::WantsKey, letter, bytes.len()),
            Kind::Refusal => {
                let reason = letter.and_then(|letter| letter.reason());
                let of = |dial: &&mut Dial| dial.id == id && dial.to == path.to;
                if let (Some(dial), Some(reason @ (Reason::NoKey | Reason::OtherKey))) =
                    (self.dials.iter_mut().find(of), reason)
                {
                    dial.hint = Some(error(reason));
                }
            }
            _ => {}
        }
    }

    /// Begins to make a link with the node at an address. Returns what to [ask](Self::redial) for.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn dial(&mut self, to: SocketAddr) -> Result<u64, LinkError> {
        let none = |errno| LinkError::System("random numbers", errno);
        let id = new_id().ok_or_else(|| none(rustix::io::Errno::AGAIN))?;
        let mut nonce = [0; NONCE_BYTES];
        if self.is_encrypted() {
            fill_random(&mut nonce).map_err(none)?;
        }
        self.dials.push(Dial {
            to,
            id,
            nonce,
            token: None,
            size: 0,
            confirms: 0,
            asked: 0,
            answered: false,
            hint: None,
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
        let believed = |dial: &Dial| {
            let believes = dial.asked >= BELIEVES && !dial.answered;
            dial.hint.filter(|_| believes).map(Err)
        };
        let end = self.dials.get(at).and_then(|dial| dial.end.or(believed(dial)));
        if end.is_none() {
            self.ask(at);
        } else {
            self.dials.remove(at);
        }
        end
    }

    /// How an attempt ended, if it has.
    #[must_use]
    pub fn end_of(&self, id: u64) -> Option<Result<NodeId, LinkError>> {
        self.dials.iter().find(|dial| dial.id == id)?.end
    }

    /// Gives an attempt up, and says why it may have had no answer.
    pub fn hang_up(&mut self, id: u64) -> LinkError {
        let hint = self
            .dials
            .iter()
            .find(|dial| dial.id == id)
            .and_then(|dial| dial.hint);
        self.dials.retain(|dial| dial.id != id);
        hint.unwrap_or(LinkError::TimedOut)
    }

    /// Asks, as long as this node's kernel takes.
    fn ask(&mut self, at: usize) {
        let Some(dial) = self.dials.get_mut(at) else {
            return;
        };
        dial.asked = dial.asked.saturating_add(1);
        while self.ask_in(at) {}
    }

    /// Asks with a letter of the length that has its turn. Whether its kernel has found that too long for its own network, and there is a
    /// shorter one.
    fn ask_in(&mut self, at: usize) -> bool {
        let Some(dial) = self.dials.get_mut(at) else {
            return false;
        };
        if dial.confirms == CONFIRMS {
            dial.confirms = 0;
            dial.size += 1;
        }
        let shortest = self.sizes.shortest();
        let room = match dial.token {
            None => shortest,
            Some(_) => self.sizes.get(dial.size).unwrap_or_else(|| {
                // The other side no longer takes the token: it was started again, or has taken a later one.
                dial.token = None;
                shortest
            }),
        };
        let letter = Letter::from(self.node, dial.id);
        let proof = Proof {
            nonce: dial.nonce,
            ..Proof::default()
        };
        let (kind, letter, proof) = match dial.token {
            None => (Kind::Hello, letter, proof),
            Some((token, stamp)) => {
                dial.confirms += 1;
                (Kind::Confirm, letter.with_token(token), proof.stamped(stamp))
            }
        };
        let path = Path {
            to: dial.to,
            from: None,
        };
        self.socket.flush();
        self.socket.too_long = false;
        self.write_letter(path, kind, 0, &letter, &proof, room);
        self.socket.flush();
        if !self.socket.too_long {
            return false;
        }
        let head = self.head();
        let Some(dial) = self.dials.get_mut(at) else {
            return false;
        };
        if room == shortest {
            dial.end = Some(Err(LinkError::TooLong(head + room)));
            return false;
        }
        dial.size += 1;
        dial.confirms = 0;
        true
    }
}

/// What an answer proves: that it is one to this letter.
fn answer_to(said: &Said) -> Proof {
    Proof {
        echo: said.proof.nonce,
        ..Proof::default()
    }
}

/// What a refusal means to the side that asked.
fn error(reason: Reason) -> LinkError {
    match reason {
        Reason::Taken(free) => LinkError::NumberTaken { free },
        Reason::Full => LinkError::NoNumber,
        Reason::TooHigh(nodes) => LinkError::NumberTooHigh { nodes },
        Reason::Version(version) => LinkError::Version(version),
        Reason::WantsKey => LinkError::WantsKey,
        Reason::NoKey => LinkError::NoKey,
        Reason::OtherKey => LinkError::OtherKey,
    }
}

/// A letter is shorter than the shortest message that a link may be set to: an answer to one is padded to its length.
const _: () = assert!(LETTER_BYTES <= netvm_abi::wire::HEADER_BYTES + 256);
