//! What a datagram is made of where nodes have a cluster key.
//!
//! | bytes | content |
//! |---|---|
//! | 0, 1 | `NS` |
//! | 2 | version of this format |
//! | 3 | [`Kind`] |
//! | 4 to 11 | the receiver's number of the link; 0 in a [`Kind::Hello`] and a [`Kind::Confirm`] |
//! | 12 to 19 | number of a message; 0 in a letter |
//! | 20 to 35 | tag, over all other bytes |
//! | 36 to ... | a message, encrypted; or a [`Letter`] and a [`Proof`] in the clear, and zeros behind them |
//!
//! All numbers are little-endian. A message is sealed by AES-256-GCM under the key of its life and direction; the nonce is its
//! number, and the bytes before the tag are associated data. The tag of a letter is HMAC-SHA256, cut to 16 bytes. There is no
//! checksum: the tag finds what the network spoils.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::{hkdf, hmac};
use subtle::ConstantTimeEq as _;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zeroize::Zeroizing;

use netvm_abi::NodeId;

use super::datagram::{Kind, Letter};
use super::key::ClusterKey;
use super::replay::Seen;
use super::wiped::Wiped;

/// Bytes before the content.
pub const HEAD: usize = 36;
/// Of them, those that the tag protects as they are.
const CLEAR: usize = HEAD - TAG;
const TAG: usize = 16;
const MAGIC: [u8; 2] = *b"NS";
/// Version of this format, and of how keys are derived.
pub const VERSION: u8 = 1;
/// Bytes of a random value that each side brings to a link.
pub const NONCE_BYTES: usize = 16;
/// The last number of a key. AES-GCM may encrypt some 2^48 blocks before what is encrypted can be told from random bytes with a
/// chance of one in 2^32. A message has up to 2^8.
const LAST: u64 = 1 << 40;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 2],
    version: u8,
    kind: u8,
    link: U64,
    number: U64,
    tag: [u8; TAG],
}

const _: () = assert!(size_of::<Head>() == HEAD);

impl Head {
    fn new(kind: Kind, link: u64, number: u64) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            kind: kind as u8,
            link: U64::new(link),
            number: U64::new(number),
            tag: [0; TAG],
        }
    }
}

/// What a letter between nodes with a key says more than a [`Letter`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Proof {
    /// Of a `Challenge`, in order; its `Confirm` repeats it.
    pub(super) stamp: U64,
    /// The sender's random value, in a `Hello`, a `Confirm` and a `Welcome`.
    pub nonce: [u8; NONCE_BYTES],
    /// The receiver's random value, in an answer.
    pub echo: [u8; NONCE_BYTES],
}

impl Proof {
    /// Of a challenge with this stamp.
    #[must_use]
    pub fn stamped(mut self, stamp: u64) -> Self {
        self.stamp = U64::new(stamp);
        self
    }

    /// The stamp.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.stamp.get()
    }
}

/// Takes the head of a datagram: its kind, and the link that it names. Nothing of it is proven yet.
#[must_use]
pub fn head(datagram: &[u8]) -> Option<(Kind, u64)> {
    let (head, _) = Head::ref_from_prefix(datagram).ok()?;
    if head.magic != MAGIC || head.version != VERSION {
        return None;
    }
    Some((Kind::of(head.kind)?, head.link.get()))
}

/// What a letter says, before it is known to be from a node with the key.
#[must_use]
pub fn unproven(datagram: &[u8]) -> Option<Letter> {
    Letter::read(datagram.get(HEAD..)?)
}

/// Bytes of a letter and its proof.
pub const LETTER_BYTES: usize = size_of::<Letter>() + size_of::<Proof>();

/// Makes letters, and knows those of others that have the cluster key.
#[derive(Debug)]
pub struct Letters {
    key: Wiped<hmac::Key>,
}

/// What is not used twice: which keys are for what.
const LETTERS: &[u8] = b"netvm udp 1 letters";
const DIRECTIONS: [&[u8]; 2] = [b"netvm udp 1 from the dialler", b"netvm udp 1 to the dialler"];

impl Letters {
    /// With the key of a cluster.
    #[must_use]
    pub fn new(key: &ClusterKey) -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        expand(key, &[], &[LETTERS], &mut bytes);
        Self {
            key: Wiped::new(hmac::Key::new(hmac::HMAC_SHA256, &*bytes)),
        }
    }

    fn tag(&self, clear: &[u8], content: &[u8]) -> [u8; TAG] {
        let mut context = hmac::Context::with_key(self.key.get());
        context.update(clear);
        context.update(content);
        let tag = context.sign();
        tag.as_ref().first_chunk().copied().unwrap_or_default()
    }

    /// Appends a letter, with zeros behind it up to `room` bytes of content.
    pub fn write(
        &self,
        into: &mut Vec<u8>,
        (kind, link): (Kind, u64),
        letter: &Letter,
        proof: &Proof,
        room: usize,
    ) {
        let begin = into.len();
        let mut head = Head::new(kind, link, 0);
        into.extend_from_slice(head.as_bytes());
        into.extend_from_slice(letter.as_bytes());
        into.extend_from_slice(proof.as_bytes());
        into.resize(into.len().max(begin + HEAD + room), 0);
        let content = into.get(begin + HEAD..).unwrap_or_default();
        head.tag = self.tag(head.as_bytes().get(..CLEAR).unwrap_or_default(), content);
        if let Some(place) = into.get_mut(begin + CLEAR..begin + HEAD) {
            place.copy_from_slice(&head.tag);
        }
    }

    /// Reads a letter. Nothing where it is not from a node with this key, or not what was sent.
    #[must_use]
    pub fn read(&self, datagram: &[u8]) -> Option<(Letter, Proof)> {
        let (head, content) = Head::ref_from_prefix(datagram).ok()?;
        let tag = self.tag(head.as_bytes().get(..CLEAR)?, content);
        if !bool::from(tag.ct_eq(&head.tag)) {
            return None;
        }
        let (letter, rest) = content.split_at_checked(size_of::<Letter>())?;
        let (proof, _) = Proof::read_from_prefix(rest).ok()?;
        Some((Letter::read(letter)?, proof))
    }
}

/// What the two sides of a link have told each other, the side that dialled first.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Random values.
    pub nonces: [[u8; NONCE_BYTES]; 2],
    /// Node numbers.
    pub nodes: [NodeId; 2],
    /// Numbers of the link.
    pub ids: [u64; 2],
}

/// One side's keys of one life of a link.
#[derive(Debug)]
pub struct Secrets {
    /// For what is sent.
    pub seal: Sealer,
    /// For what comes.
    pub open: Opener,
}

impl Secrets {
    /// Of a life, for the side that dialled, or the other one. No two lives have the same: each side brings a random value.
    ///
    /// Gives nothing where the cipher refuses a key, which it does for wrong lengths alone.
    #[must_use]
    pub fn new(key: &ClusterKey, told: &Told, dialled: bool) -> Option<Self> {
        let [out, back] = DIRECTIONS.map(|direction| {
            let nodes = told.nodes.map(|node| node.0.to_le_bytes());
            let ids = told.ids.map(u64::to_le_bytes);
            let info = [direction, nodes.as_flattened(), ids.as_flattened()];
            let mut bytes = Zeroizing::new([0; 32]);
            expand(key, told.nonces.as_flattened(), &info, &mut bytes);
            UnboundKey::new(&AES_256_GCM, &*bytes)
                .ok()
                .map(|key| Wiped::new(LessSafeKey::new(key)))
        });
        let (seal, open) = if dialled { (out?, back?) } else { (back?, out?) };
        Some(Self {
            seal: Sealer { key: seal, next: 1 },
            open: Opener {
                key: open,
                seen: Seen::new(),
            },
        })
    }
}

/// HKDF-SHA256.
fn expand(key: &ClusterKey, salt: &[u8], info: &[&[u8]], into: &mut [u8; 32]) {
    let prk = Wiped::new(hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(key.bytes()));
    let expanded = prk.get().expand(info, hkdf::HKDF_SHA256);
    // It fails for other lengths than its own alone.
    let filled = expanded.and_then(|expanded| expanded.fill(into));
    debug_assert!(filled.is_ok());
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    if let Some(place) = bytes.last_chunk_mut() {
        *place = number.to_be_bytes();
    }
    Nonce::assume_unique_for_key(bytes)
}

/// A number of one message. It is used once, and cannot be copied.
#[derive(Debug)]
pub struct Number(u64);

/// Seals messages of one direction.
#[derive(Debug)]
pub struct Sealer {
    key: Wiped<LessSafeKey>,
    next: u64,
}

impl Sealer {
    /// The next number; nothing when the key has sealed as much as it may.
    pub fn number(&mut self) -> Option<Number> {
        let number = self.next;
        (number <= LAST).then(|| {
            self.next += 1;
            Number(number)
        })
    }

    /// Appends a message.
    pub fn write(&self, Number(number): Number, into: &mut Vec<u8>, link: u64, content: &[&[u8]]) {
        let begin = into.len();
        let head = Head::new(Kind::Message, link, number);
        into.extend_from_slice(head.as_bytes());
        content.iter().for_each(|part| into.extend_from_slice(part));
        let clear = Aad::from(head.as_bytes().get(..CLEAR).unwrap_or_default());
        let Some((place, content)) = into
            .get_mut(begin + CLEAR..)
            .and_then(<[u8]>::split_first_chunk_mut)
        else {
            return;
        };
        *place = match self
            .key
            .get()
            .seal_in_place_separate_tag(nonce(number), clear, content)
        {
            Ok(tag) => tag.as_ref().first_chunk().copied().unwrap_or_default(),
            // It refuses what is too long, which no message is. What is not sealed does not leave.
            Err(_) => {
                content.fill(0);
                [0; TAG]
            }
        };
    }
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// It is not from the other side of the link's life, or not what was sent.
    Forged,
    /// Its number has come before, or is too old to tell.
    Replayed,
}

/// Opens messages of one direction.
#[derive(Debug)]
pub struct Opener {
    key: Wiped<LessSafeKey>,
    seen: Seen,
}

impl Opener {
    /// Opens a message where it lies, once.
    ///
    /// # Errors
    /// [`Bad`]; the bytes are then of no use.
    pub fn open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Bad> {
        let (head, content) = datagram.split_first_chunk_mut::<HEAD>().ok_or(Bad::Forged)?;
        let head = Head::ref_from_bytes(head).map_err(|_| Bad::Forged)?;
        let number = head.number.get();
        if !self.seen.is_new(number) {
            return Err(Bad::Replayed);
        }
        let clear = Aad::from(head.as_bytes().get(..CLEAR).unwrap_or_default());
        let key = self.key.get();
        let opened = key.open_in_place_separate_tag(nonce(number), clear, head.tag.into(), content, 0..);
        let opened = opened.map_err(|_| Bad::Forged)?;
        self.seen.mark(number);
        Ok(opened)
    }
}

#[cfg(test)]
mod tests;
