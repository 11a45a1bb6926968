//! A message's header as it came: checked once, each field read where it is needed.
//!
//! A NIC looks at few fields before it knows that it wants a message at all, and at others only when the
//! message's turn has come. The words are the NIC's own copy, so a field is the same at each look.

use crate::body::{Body, Names, Owner, RawBody, ReadTicket, read_len};
use crate::descriptor::{CommandFlags, RawCommand};
use crate::units::{
    CapabilitySlot, Epoch, Incarnation, NodeId, NotificationId, OpId, PortId, ReplySlot, Seq, Stamp, VirtAddr,
};
use crate::wire::{HEADER_BYTES, HEADER_WORDS, Header, HeaderError, Kind, MAGIC, MessageFlags, WIRE_VERSION};
use crate::words::{join, split};
use core::borrow::Borrow;

/// Whether words, if they are a header at all, are that of a message that takes a slot of the receiver's
/// sequence window.
#[must_use]
#[inline]
pub const fn claims_slot(words: &[u32; HEADER_WORDS]) -> bool {
    Kind::windowed((words[0] >> 24) as u8)
}

/// The first word of a header: what says that it is one.
pub(crate) const fn first_word(kind: Kind) -> u32 {
    MAGIC as u32 | ((WIRE_VERSION as u32) << 16) | ((kind as u32) << 24)
}

/// The words of a header, found to be one: each field is read where it is needed. `W` owns or borrows them.
#[derive(Clone, Copy, Debug)]
pub struct RawHeader<W> {
    words: W,
    kind: Kind,
    flags: MessageFlags,
}

impl<'a> RawHeader<&'a [u32; HEADER_WORDS]> {
    /// Looks whether words are a header.
    ///
    /// # Errors
    /// What is wrong with them.
    #[inline]
    pub const fn of(words: &'a [u32; HEADER_WORDS]) -> Result<Self, HeaderError> {
        if words[0] as u16 != MAGIC {
            return Err(HeaderError::Magic);
        }
        if (words[0] >> 16) as u8 != WIRE_VERSION {
            return Err(HeaderError::Version((words[0] >> 16) as u8));
        }
        let Some(kind) = Kind::from_code((words[0] >> 24) as u8) else {
            return Err(HeaderError::Kind((words[0] >> 24) as u8));
        };
        let Some(flags) = MessageFlags::from_bits(words[1] as u8) else {
            return Err(HeaderError::Flags(words[1] as u8));
        };
        Ok(Self { words, kind, flags })
    }

    /// A copy that owns its words.
    #[must_use]
    #[inline]
    pub const fn to_owned(&self) -> RawHeader<[u32; HEADER_WORDS]> {
        RawHeader {
            words: *self.words,
            kind: self.kind,
            flags: self.flags,
        }
    }
}

/// The part of a message that a command does not give word by word.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    kind: Kind,
    raw: RawBody,
    flags: MessageFlags,
    /// Bytes of payload behind the header.
    pub len: u16,
    notification: NotificationId,
}

impl Message {
    /// A message with this body. A request gets its ticket when it leaves ([`RawHeader::set_ticket`]).
    #[must_use]
    #[inline(always)]
    pub const fn new(body: Body, flags: MessageFlags, len: u16, notification: NotificationId) -> Self {
        let (kind, raw) = body.pack();
        Self {
            kind,
            raw,
            flags,
            len,
            notification,
        }
    }
}

/// A header that owns its words: one to be sent, or a copy of one that came.
pub type OwnHeader = RawHeader<[u32; HEADER_WORDS]>;

impl OwnHeader {
    /// The header of the message that carries out a command of `port` at `node`. Destination, address, capability,
    /// secret, operation, reply slot and epoch are the command's own words; sequence number and incarnations are zero
    /// until the message leaves ([`set_number`](Self::set_number)).
    #[must_use]
    #[inline(always)]
    pub const fn carrying(
        message: Message,
        (node, port): (NodeId, PortId),
        command: &RawCommand<'_>,
    ) -> Self {
        let from = command.words;
        let operand = split(message.raw.operand);
        let compare = split(message.raw.compare);
        Self {
            words: [
                first_word(message.kind),
                message.flags.bits() as u32
                    | ((message.raw.status as u32) << 8)
                    | ((message.len as u32) << 16),
                node.0 as u32 | (from[1] << 16),
                port.0 as u32 | (from[1] & 0xFFFF_0000),
                0,
                0,
                0,
                message.notification.0,
                from[6],
                from[7],
                from[2],
                from[10],
                from[4],
                from[5],
                from[11],
                0,
                operand[0],
                operand[1],
                compare[0],
                compare[1],
            ],
            kind: message.kind,
            flags: message.flags,
        }
    }

    /// The header of the message that carries out a short write of `port` at `node`, by the words of its command's head:
    /// what [`carrying`](Self::carrying) makes of it, without the steps between. Each word is asked for once.
    #[inline(always)]
    pub(crate) fn of_short_write(
        first: u32,
        word: impl Fn(usize) -> u32,
        flags: CommandFlags,
        (node, port): (NodeId, PortId),
        owner: Owner,
    ) -> Self {
        let to = word(1);
        let flags = MessageFlags::of_command(flags);
        Self {
            words: [
                first_word(Kind::Write),
                first & 0xFFFF_0000 | u32::from(flags.bits()),
                u32::from(node.0) | to << 16,
                u32::from(port.0) | to & 0xFFFF_0000,
                0,
                0,
                0,
                word(3),
                word(6),
                word(7),
                word(2),
                word(10),
                word(4),
                word(5),
                word(11),
                0,
                0,
                0,
                owner.generation.0,
                owner.start.0,
            ],
            kind: Kind::Write,
            flags,
        }
    }

    /// The header of the answer to `request`: nodes and ports turned round, number, operation and epoch repeated.
    /// `incarnations` are those of the answering end of the link and of the other.
    #[must_use]
    #[inline(always)]
    pub const fn answering(request: &Self, incarnations: [Incarnation; 2], body: Body, len: u16) -> Self {
        let (kind, raw) = body.pack();
        let from = &request.words;
        let names = match body {
            Body::AtomicReply { ticket, .. } => Names::of(ticket),
            _ => Names {
                op: OpId(from[11]),
                reply: ReplySlot::NONE,
            },
        };
        let operand = split(raw.operand);
        let compare = split(raw.compare);
        Self {
            words: [
                first_word(kind),
                ((raw.status as u32) << 8) | ((len as u32) << 16),
                from[2].rotate_left(16),
                from[3].rotate_left(16),
                incarnations[0].0,
                incarnations[1].0,
                from[6],
                0,
                0,
                0,
                0,
                names.op.0,
                0,
                0,
                names.reply.0 as u32 | (from[14] & 0xFFFF_0000),
                0,
                operand[0],
                operand[1],
                compare[0],
                compare[1],
            ],
            kind,
            flags: MessageFlags::empty(),
        }
    }

    /// Its words.
    #[must_use]
    #[inline]
    pub const fn words(&self) -> &[u32; HEADER_WORDS] {
        &self.words
    }

    /// As bytes of the wire.
    #[must_use]
    #[inline]
    pub const fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let (chunks, _) = bytes.as_chunks_mut();
        let mut at = 0;
        while at < HEADER_WORDS {
            chunks[at] = self.words[at].to_le_bytes();
            at += 1;
        }
        bytes
    }

    /// Sets the address at the receiver.
    #[inline]
    pub const fn set_address(&mut self, address: VirtAddr) {
        [self.words[8], self.words[9]] = split(address.0);
    }

    /// It says nothing of what is before or behind it in its stream.
    #[inline]
    pub fn stand_alone(&mut self) {
        self.add_flags(MessageFlags::REGARDLESS);
    }

    #[inline]
    pub(crate) fn add_flags(&mut self, flags: MessageFlags) {
        self.flags |= flags;
        self.words[1] |= u32::from(flags.bits());
    }

    /// Sets the notification to signal.
    #[inline]
    pub const fn set_notification(&mut self, notification: NotificationId) {
        self.words[7] = notification.0;
    }

    /// Gives the message its number in the present life of the link, whose ends are `incarnations`: the sender's
    /// and the receiver's.
    #[inline]
    pub const fn set_number(&mut self, seq: Seq, incarnations: [Incarnation; 2]) {
        self.words[4] = incarnations[0].0;
        self.words[5] = incarnations[1].0;
        self.words[6] = seq.0;
    }

    /// Says when this frame leaves.
    #[inline]
    pub const fn set_stamp(&mut self, stamp: Stamp) {
        self.words[15] = stamp.0;
    }

    /// The word that an answer has its number in: a capability is for requests.
    #[inline]
    pub(crate) const fn set_word_of_answer(&mut self, number: u32) {
        self.words[10] = number;
    }

    /// Asks for an acknowledgement as soon as the message has landed.
    #[inline]
    pub fn request_ack(&mut self) {
        self.add_flags(MessageFlags::ACK_REQUEST);
    }

    /// Gives a request its ticket, which it gets last: only a request that leaves has one.
    #[inline]
    pub const fn set_ticket(&mut self, ticket: ReadTicket) {
        match self.kind {
            Kind::AtomicRequest => {
                let Names { op, reply } = Names::of(ticket);
                self.words[14] = (self.words[14] & 0xFFFF_0000) | reply.0 as u32;
                self.words[11] = op.0;
            }
            Kind::ReadRequest | Kind::Flush => [self.words[16], self.words[17]] = split(ticket.pack()),
            _ => {}
        }
    }

    /// The words of a header.
    #[must_use]
    pub const fn new(header: &Header) -> Self {
        Self {
            words: header.encode_words(),
            kind: header.kind,
            flags: header.flags,
        }
    }

    /// Gives an append its place of a shared queue, and keeps which one that is and what it raises in words that a
    /// write does not use.
    pub const fn give_place(&mut self, address: VirtAddr, place: u32, raises: NotificationId) {
        [self.words[8], self.words[9]] = split(address.0);
        self.words[16] = place;
        self.words[17] = raises.0;
    }

    /// An append that has a place is over: from now on it has the notification, too. Gives the place, and that.
    pub const fn end_place(&mut self) -> (u32, NotificationId) {
        self.words[7] = self.words[17];
        (self.words[16], NotificationId(self.words[7]))
    }
}

impl<W: Borrow<[u32; HEADER_WORDS]>> RawHeader<W> {
    #[inline]
    fn word(&self, at: usize) -> u32 {
        self.words.borrow()[at]
    }

    #[inline]
    fn pair(&self, at: usize) -> u64 {
        join(self.word(at), self.word(at + 1))
    }

    /// What it is.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Flags.
    #[must_use]
    #[inline]
    pub fn flags(&self) -> MessageFlags {
        self.flags
    }

    /// Bytes of payload behind the header.
    #[must_use]
    #[inline]
    pub fn payload_len(&self) -> u16 {
        (self.word(1) >> 16) as u16
    }

    /// The sending node.
    #[must_use]
    #[inline]
    pub fn source(&self) -> NodeId {
        NodeId(self.word(2) as u16)
    }

    /// The receiving node.
    #[must_use]
    #[inline]
    pub fn destination(&self) -> NodeId {
        NodeId((self.word(2) >> 16) as u16)
    }

    /// The sending port.
    #[must_use]
    #[inline]
    pub fn source_port(&self) -> PortId {
        PortId(self.word(3) as u16)
    }

    /// The receiving port.
    #[must_use]
    #[inline]
    pub fn destination_port(&self) -> PortId {
        PortId((self.word(3) >> 16) as u16)
    }

    /// Incarnation of the sender's end of the link.
    #[must_use]
    #[inline]
    pub fn source_incarnation(&self) -> Incarnation {
        Incarnation(self.word(4))
    }

    /// Incarnation of the receiver's end of the link.
    #[must_use]
    #[inline]
    pub fn destination_incarnation(&self) -> Incarnation {
        Incarnation(self.word(5))
    }

    /// Sequence number.
    #[must_use]
    #[inline]
    pub fn seq(&self) -> Seq {
        Seq(self.word(6))
    }

    /// The notification to signal.
    #[must_use]
    #[inline]
    pub fn notification(&self) -> NotificationId {
        NotificationId(self.word(7))
    }

    /// Address at the receiver.
    #[must_use]
    #[inline]
    pub fn address(&self) -> VirtAddr {
        VirtAddr(self.pair(8))
    }

    /// The capability.
    #[must_use]
    #[inline]
    pub fn capability(&self) -> CapabilitySlot {
        CapabilitySlot(self.word(10))
    }

    /// The operation of the sending port.
    #[must_use]
    #[inline]
    pub fn op(&self) -> OpId {
        OpId(self.word(11))
    }

    /// The capability's secret.
    #[must_use]
    #[inline]
    pub fn secret(&self) -> u64 {
        self.pair(12)
    }

    /// Reply slot of the sending port.
    #[must_use]
    #[inline]
    pub fn reply(&self) -> ReplySlot {
        ReplySlot(self.word(14) as u16)
    }

    /// Error epoch of the stream.
    #[must_use]
    #[inline]
    pub fn epoch(&self) -> Epoch {
        Epoch((self.word(14) >> 16) as u16)
    }

    /// When the frame left, by its sender's clock.
    #[must_use]
    #[inline]
    pub fn stamp(&self) -> Stamp {
        Stamp(self.word(15))
    }

    /// Of an acknowledgement: which answers have been received past the lowest that is missing.
    #[inline]
    pub(crate) fn answers_beyond(&self) -> u64 {
        self.pair(16)
    }

    /// Of an acknowledgement: the numbers of the first bits, of requests and of answers.
    #[inline]
    pub(crate) fn received_from(&self) -> [Seq; 2] {
        [Seq(self.word(18)), Seq(self.word(19))]
    }

    /// Owner of the sending port, as a write or a flush names it.
    #[must_use]
    #[inline]
    pub fn owner(&self) -> Owner {
        Owner::unpack(self.pair(18))
    }

    /// The latest refusal that the sender of an append knows of: [`Body::Write`]. Only before the append has a place
    /// ([`give_place`](RawHeader::give_place)).
    #[must_use]
    #[inline]
    pub fn refusal(&self) -> OpId {
        OpId(self.word(16))
    }

    /// Bytes that it wants, if it is a [`Body::ReadRequest`].
    #[must_use]
    #[inline]
    pub fn read_len(&self) -> u32 {
        read_len(self.pair(18))
    }

    /// Where the answer to it is awaited, if it is a [`Body::AtomicRequest`].
    #[must_use]
    #[inline(always)]
    pub fn atomic_ticket(&self) -> Option<ReadTicket> {
        let names = Names {
            op: self.op(),
            reply: self.reply(),
        };
        (self.kind == Kind::AtomicRequest).then(|| names.ticket())
    }

    /// What the message says.
    #[must_use]
    #[inline(always)]
    pub fn body(&self) -> Body {
        let names = Names {
            op: self.op(),
            reply: self.reply(),
        };
        Body::of(self.kind, self.raw_body(), names)
    }

    #[inline(always)]
    fn raw_body(&self) -> RawBody {
        RawBody {
            status: (self.word(1) >> 8) as u8,
            operand: self.pair(16),
            compare: self.pair(18),
        }
    }

    /// All of it.
    #[must_use]
    #[inline]
    pub fn decode(&self) -> Header {
        Header {
            kind: self.kind,
            flags: self.flags,
            len: self.payload_len(),
            source: self.source(),
            destination: self.destination(),
            source_port: self.source_port(),
            destination_port: self.destination_port(),
            source_incarnation: self.source_incarnation(),
            destination_incarnation: self.destination_incarnation(),
            seq: self.seq(),
            notification: self.notification(),
            address: self.address(),
            capability: self.capability(),
            op: self.op(),
            secret: self.secret(),
            reply: self.reply(),
            epoch: self.epoch(),
            stamp: self.stamp(),
            raw: self.raw_body(),
        }
    }
}
