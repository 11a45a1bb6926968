//! Messages between NICs: an 80-byte header and at most one page of payload, in UDP over IPv4.
//!
//! The header is twenty little-endian words. Every message carries the incarnations of both ends;
//! windowed kinds carry a sequence number, which is a slot of the receiver's sequence window and
//! at the same time a credit for one of its bounce pages (thesis 6.2.3).

use crate::descriptor::CommandFlags;
use crate::raw_header::first_word;
use crate::units::{
    CapabilitySlot, Epoch, Incarnation, NodeId, NotificationId, OpId, PortId, ReplySlot, Seq, Stamp, VirtAddr,
};
use crate::words::split;
use bitflags::bitflags;
use static_assertions::const_assert_eq;

pub use crate::body::{Body, Greeting, Owner, RawBody, ReadTicket};
pub use crate::raw_header::{Message, OwnHeader, RawHeader, claims_slot};
pub use crate::receipt::{ANSWERS_PER_SLOT, Receipt, Received, answers};

/// Words of a header.
pub const HEADER_WORDS: usize = 20;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 80;
/// First two bytes of a message.
pub const MAGIC: u16 = u16::from_le_bytes(*b"NV");
/// Version of the wire format.
pub const WIRE_VERSION: u8 = 2;
/// UDP port that a node listens on unless its node table says otherwise.
pub const DEFAULT_UDP_PORT: u16 = 4791 + 1000;

const_assert_eq!(HEADER_WORDS * 4, HEADER_BYTES);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// What a message is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $code,)* }

        impl Kind {
            /// All kinds, in order of their codes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// From its code.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    /// Windowed: data and/or a notification.
    Write = 1,
    /// Windowed: asks for data; answered by [`Kind::ReadReply`].
    ReadRequest = 2,
    /// Windowed: asks for an atomic operation.
    AtomicRequest = 3,
    /// Windowed and ordered: answered by [`Kind::FlushReply`] when all earlier has landed.
    Flush = 4,
    /// Windowed: a message between host drivers; see [`crate::control`].
    Control = 5,
    /// Data that a read asked for. Names the requester's read slot.
    ReadReply = 16,
    /// Result of an atomic.
    AtomicReply = 17,
    /// Everything before the flush has landed.
    FlushReply = 18,
    /// Frees window slots: everything before its sequence number has landed. Says what has been received, too
    /// ([`Receipt`]).
    Ack = 19,
    /// A message could not be carried out; goes to the port that sent it.
    Error = 20,
    /// Offers a link: version, page size, payload, window, incarnation.
    Hello = 21,
    /// Accepts (or refuses, by its status) a link.
    HelloAck = 22,
    /// Asks an idle peer whether it lives, and for an acknowledgement.
    Probe = 23,
    /// Ends a link: the sender's incarnation is over.
    Bye = 24,
}

impl Kind {
    /// Whether the message takes a slot of the receiver's sequence window.
    #[must_use]
    pub const fn is_windowed(self) -> bool {
        Self::windowed(self as u8)
    }

    /// The same for a code, whether or not it is one of a kind.
    pub(crate) const fn windowed(code: u8) -> bool {
        code < 16
    }
}

bitflags! {
    /// Flags of a message.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MessageFlags: u8 {
        /// The sender wants an acknowledgement as soon as this message has landed.
        const ACK_REQUEST = 1;
        /// Act only when everything earlier from this node has landed.
        const ORDERED = 2;
        /// An atomic on 64 bits instead of 32; one on a value, on the larger type of its kind.
        const WIDE = 4;
        /// It acts, and its notification is delivered, even if an earlier message of the stream has failed.
        const REGARDLESS = 8;
        /// A write that takes the next place of a shared queue ([`crate::shared_queue`]); acts as an ordered
        /// message does.
        const APPEND = 16;
        /// An answer that has a number of its own: its sender keeps it until it has been received.
        const NUMBERED = 32;
        /// An `Ack` that answers a request which found no window: it is to come again, however often.
        const REFUSED = 64;
    }
}

impl MessageFlags {
    /// What the flags of a command say to the receiver, too.
    #[must_use]
    #[inline(always)]
    pub const fn of_command(flags: CommandFlags) -> Self {
        // The same bits in both.
        Self::from_bits_truncate(flags.bits()).intersection(Self::ORDERED.union(Self::REGARDLESS))
    }
}

const_assert_eq!(MessageFlags::ORDERED.bits(), CommandFlags::ORDERED.bits());
const_assert_eq!(MessageFlags::REGARDLESS.bits(), CommandFlags::REGARDLESS.bits());

/// The header of a message: the fields that all kinds have, and the [`Body`] of its kind.
///
/// Fields that a kind has no use for are zero (`reply`: none). The sequence number is a window slot, for windowed
/// kinds; the request's, for an answer or an error; the lowest that is missing, in an `Ack`; the next that the sender
/// will use, in a `Probe`; the first of a life, in a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is. Changes with the body: [`set_body`](Self::set_body).
    pub kind: Kind,
    /// Flags.
    pub flags: MessageFlags,
    /// Bytes of payload behind the header.
    pub len: u16,
    /// The sending node.
    pub source: NodeId,
    /// The receiving node.
    pub destination: NodeId,
    /// The sending port (0: the host driver).
    pub source_port: PortId,
    /// The receiving port (0: the host driver).
    pub destination_port: PortId,
    /// Incarnation of the sender's end of the link.
    pub source_incarnation: Incarnation,
    /// Incarnation of the receiver's end of the link (0: not known yet, greetings only).
    pub destination_incarnation: Incarnation,
    /// Sequence number.
    pub seq: Seq,
    /// The notification to signal.
    pub notification: NotificationId,
    /// Address at the receiver.
    pub address: VirtAddr,
    /// The capability.
    pub capability: CapabilitySlot,
    /// The operation of the sending port; of an atomic on the wire a part of its ticket.
    pub op: OpId,
    /// The capability's secret.
    pub secret: u64,
    /// Reply slot of the sending port; of an atomic on the wire a part of its ticket.
    pub reply: ReplySlot,
    /// Error epoch of the stream.
    pub epoch: Epoch,
    /// When this frame left, by its sender's clock. Another time that a message is sent has another stamp.
    pub stamp: Stamp,
    /// The body as it stands on the wire: [`body`](Self::body) reads it, [`set_body`](Self::set_body) writes it.
    pub raw: RawBody,
}

impl Header {
    /// A message from one node to another; everything else zero.
    #[must_use]
    #[inline(always)]
    pub const fn of(body: Body, source: NodeId, destination: NodeId) -> Self {
        let mut header = Self::new(Kind::Write, source, destination);
        header.set_body(body);
        header
    }

    /// A header of `kind` from one node to another; everything else, also its body, zero.
    #[must_use]
    #[inline]
    pub const fn new(kind: Kind, source: NodeId, destination: NodeId) -> Self {
        Self {
            kind,
            flags: MessageFlags::empty(),
            len: 0,
            source,
            destination,
            source_port: PortId(0),
            destination_port: PortId(0),
            source_incarnation: Incarnation(0),
            destination_incarnation: Incarnation(0),
            seq: Seq(0),
            notification: NotificationId::NONE,
            address: VirtAddr(0),
            capability: CapabilitySlot(0),
            op: OpId(0),
            secret: 0,
            reply: ReplySlot::NONE,
            epoch: Epoch(0),
            stamp: Stamp(0),
            raw: RawBody {
                status: 0,
                operand: 0,
                compare: 0,
            },
        }
    }

    /// As words.
    #[must_use]
    #[inline]
    pub const fn encode_words(&self) -> [u32; HEADER_WORDS] {
        let address = split(self.address.0);
        let secret = split(self.secret);
        let operand = split(self.raw.operand);
        let compare = split(self.raw.compare);
        [
            first_word(self.kind),
            self.flags.bits() as u32 | ((self.raw.status as u32) << 8) | ((self.len as u32) << 16),
            self.source.0 as u32 | ((self.destination.0 as u32) << 16),
            self.source_port.0 as u32 | ((self.destination_port.0 as u32) << 16),
            self.source_incarnation.0,
            self.destination_incarnation.0,
            self.seq.0,
            self.notification.0,
            address[0],
            address[1],
            self.capability.0,
            self.op.0,
            secret[0],
            secret[1],
            self.reply.0 as u32 | ((self.epoch.0 as u32) << 16),
            self.stamp.0,
            operand[0],
            operand[1],
            compare[0],
            compare[1],
        ]
    }

    /// From words.
    ///
    /// # Errors
    /// What is wrong with them.
    #[inline]
    pub fn decode_words(words: &[u32; HEADER_WORDS]) -> Result<Self, HeaderError> {
        RawHeader::of(words).map(|raw| raw.decode())
    }

    /// As bytes of the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        OwnHeader::new(self).to_bytes()
    }

    /// From bytes of the wire; payload may follow.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let Some(header) = bytes.get(..HEADER_BYTES) else {
            return Err(HeaderError::Short(bytes.len()));
        };
        let mut words = [0; HEADER_WORDS];
        for (word, chunk) in words.iter_mut().zip(header.chunks_exact(4)) {
            if let Ok(chunk) = chunk.try_into() {
                *word = u32::from_le_bytes(chunk);
            }
        }
        let header = Self::decode_words(&words)?;
        if usize::from(header.len) + HEADER_BYTES > bytes.len() {
            return Err(HeaderError::Short(bytes.len()));
        }
        Ok(header)
    }
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// They do not begin with [`MAGIC`].
    Magic,
    /// The wire version is another.
    Version(u8),
    /// The kind is unknown.
    Kind(u8),
    /// A flag is unknown.
    Flags(u8),
    /// Only this many bytes are there, fewer than header and payload need.
    Short(usize),
}

impl core::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Magic => write!(f, "not a NetVM message"),
            Self::Version(version) => write!(f, "wire version {version}, this side speaks {WIRE_VERSION}"),
            Self::Kind(kind) => write!(f, "unknown message kind {kind}"),
            Self::Flags(flags) => write!(f, "unknown message flags {flags:#x}"),
            Self::Short(len) => write!(f, "cut short: {len} bytes"),
        }
    }
}

impl core::error::Error for HeaderError {}
