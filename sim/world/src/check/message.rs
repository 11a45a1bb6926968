//! The checkers' own reading of messages and descriptors, from the tables of `docs/ABI.md`: they
//! share no code with what they check, its decoder included.

/// A message as it lies on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) status: u8,
    pub(crate) len: u32,
    pub(crate) source: u16,
    pub(crate) destination: u16,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) source_life: u32,
    pub(crate) destination_life: u32,
    pub(crate) seq: u32,
    pub(crate) notification: u32,
    pub(crate) address: u64,
    pub(crate) op: u32,
    pub(crate) epoch: u16,
    pub(crate) operand: u64,
    pub(crate) compare: u64,
}

pub(crate) const WRITE: u8 = 1;
pub(crate) const READ_REQUEST: u8 = 2;
pub(crate) const ATOMIC_REQUEST: u8 = 3;
pub(crate) const FLUSH: u8 = 4;
/// Opcode of the command that waits for what has been received.
const FLUSH_RECEIVED: u8 = 4;
/// An extension of a lease.
const EXTEND_LEASE: u8 = 5;
pub(crate) const CONTROL: u8 = 5;
pub(crate) const READ_REPLY: u8 = 16;
pub(crate) const ATOMIC_REPLY: u8 = 17;
pub(crate) const FLUSH_REPLY: u8 = 18;
pub(crate) const ACK: u8 = 19;
pub(crate) const ERROR: u8 = 20;
pub(crate) const BYE: u8 = 24;
pub(crate) const ORDERED: u8 = 2;
/// The status of a refused append.
pub(crate) const NO_PLACE: u8 = 25;
/// Its notification is delivered whatever failed before.
pub(crate) const REGARDLESS: u8 = 8;
/// An answer that has a number of its own, and is sent until it has been received.
pub(crate) const NUMBERED: u8 = 32;
/// A write that takes the next place of a shared queue.
pub(crate) const APPEND: u8 = 16;
/// Bytes before the payload.
pub(crate) const HEAD: usize = 80;

fn word(bytes: &[u8], index: usize) -> u32 {
    let at = index * 4;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn pair(bytes: &[u8], index: usize) -> u64 {
    u64::from(word(bytes, index)) | u64::from(word(bytes, index + 1)) << 32
}

/// Where an answer has its number, and an acknowledgement that of the next one: word 10.
pub(crate) const NUMBER: usize = 40;

/// The number of an answer that has one of its own.
pub(crate) fn answer_number(frame: &[u8]) -> Option<u32> {
    let (kind, flags) = (*frame.get(3)?, *frame.get(4)?);
    let bytes = frame.get(NUMBER..NUMBER + 4)?;
    let number = u32::from_le_bytes(bytes.try_into().ok()?);
    (kind >= 16 && flags & NUMBERED != 0).then_some(number)
}

impl Message {
    /// Reads a message; nothing when it is none.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEAD || &bytes[..2] != b"NV" || bytes[2] != 2 {
            return None;
        }
        let message = Self {
            kind: bytes[3],
            // The wish for an acknowledgement is no part of what a message says.
            flags: bytes[4] & !1,
            status: bytes[5],
            len: word(bytes, 1) >> 16,
            source: word(bytes, 2) as u16,
            destination: (word(bytes, 2) >> 16) as u16,
            source_port: word(bytes, 3) as u16,
            destination_port: (word(bytes, 3) >> 16) as u16,
            source_life: word(bytes, 4),
            destination_life: word(bytes, 5),
            seq: word(bytes, 6),
            notification: word(bytes, 7),
            address: pair(bytes, 8),
            op: word(bytes, 11),
            epoch: (word(bytes, 14) >> 16) as u16,
            operand: pair(bytes, 16),
            compare: pair(bytes, 18),
        };
        (bytes.len() >= HEAD + message.len as usize).then_some(message)
    }

    /// Of an acknowledgement: the requests past one that is missing of which it says that they have landed or failed.
    pub(crate) fn ended_beyond(&self) -> impl Iterator<Item = u32> {
        let (from, beyond) = (self.compare as u32, self.address);
        (0..u32::from(self.epoch).min(64))
            .filter(move |bit| beyond >> bit & 1 != 0)
            .map(move |bit| from.wrapping_add(bit))
    }

    /// Bytes of an atomic request's operand: none of an extension of a lease, else 4 or 8, 32 for the opcodes from 32 to 63, and beyond those what the value's kind
    /// says.
    pub(crate) const fn operand_bytes(&self) -> u32 {
        match (self.status, self.flags & 4) {
            (EXTEND_LEASE, _) => 0,
            (64..128, 0) => 1,
            (64..128, _) => 2,
            (32..64, _) => 32,
            (_, 0) => 4,
            _ => 8,
        }
    }

    /// Whether its failure leaves nothing undone where it was going, so that notifications need not be held back.
    pub(crate) const fn only_asks(&self) -> bool {
        matches!(self.kind, READ_REQUEST | ATOMIC_REQUEST)
    }

    /// Whether it says nothing of where it goes.
    pub(crate) const fn appends(&self) -> bool {
        self.kind == WRITE && self.flags & APPEND != 0
    }

    /// Whether it is held back behind one of its stream that has failed: it acts in order, and changes something.
    pub(crate) const fn asks_for_order(&self) -> bool {
        asks_for_order(self.kind, self.flags)
    }

    /// Whether it takes a slot of the receiver's window.
    pub(crate) const fn windowed(&self) -> bool {
        self.kind >= 1 && self.kind < 16
    }
}

/// Whether a code from 64 on is an operation that its kind of values has: the first four kinds have 19, floating-point numbers
/// no bits, and complex ones no order either.
const fn is_on_value(opcode: u8) -> bool {
    let (kind, operation) = (opcode / 32, opcode % 32);
    match (kind, operation) {
        (_, 19..) => false,
        (..6, _) => true,
        (6, 6 | 7 | 9 | 18) => false,
        (6, _) => true,
        _ => matches!(operation, 2..=5 | 8 | 10..=13),
    }
}

/// Whether an operation of this kind of message, with these flags, says that everything before it has landed.
const fn asks_for_order(kind: u8, flags: u8) -> bool {
    matches!(kind, WRITE | ATOMIC_REQUEST) && flags & (ORDERED | APPEND) != 0 && flags & REGARDLESS == 0
}

/// What a descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(crate) opcode: u8,
    pub(crate) inline: bool,
    /// As in a message, where it has them.
    pub(crate) flags: u8,
    pub(crate) len: u32,
    pub(crate) node: u16,
    pub(crate) port: u16,
    pub(crate) remote: u64,
    pub(crate) local: u64,
    pub(crate) op: u32,
    /// Where its answer goes; all ones for none.
    pub(crate) reply: u16,
    pub(crate) epoch: u16,
    pub(crate) operand: u64,
    pub(crate) compare: u64,
    /// Digest of the payload in it, if it has one.
    pub(crate) carried: u64,
}

impl Posted {
    /// Reads the head of a descriptor.
    pub(crate) const fn read(words: &[u32; 16]) -> Self {
        const fn pair(words: &[u32; 16], at: usize) -> u64 {
            words[at] as u64 | (words[at + 1] as u64) << 32
        }
        Self {
            opcode: words[0] as u8,
            inline: words[0] & 0x100 != 0,
            flags: (words[0] >> 8) as u8 & (ORDERED | REGARDLESS | APPEND),
            len: words[0] >> 16,
            node: words[1] as u16,
            port: (words[1] >> 16) as u16,
            remote: pair(words, 6),
            local: pair(words, 8),
            op: words[10],
            reply: words[11] as u16,
            epoch: (words[11] >> 16) as u16,
            operand: pair(words, 12),
            compare: pair(words, 14),
            carried: 0,
        }
    }

    /// The same with a payload of this digest in it.
    pub(crate) const fn carrying(self, carried: u64) -> Self {
        Self { carried, ..self }
    }

    /// The kind of message that it becomes; 0 for none.
    pub(crate) const fn kind(&self) -> u8 {
        match self.opcode {
            1 => WRITE,
            2 => READ_REQUEST,
            3 => FLUSH,
            EXTEND_LEASE | 16..=19 | 32..=37 => ATOMIC_REQUEST,
            64.. if is_on_value(self.opcode) => ATOMIC_REQUEST,
            _ => 0,
        }
    }

    /// Whether it is a write: alone of its kind, nothing is told of its end if it succeeds.
    pub(crate) const fn is_write(&self) -> bool {
        self.kind() == WRITE
    }

    /// Whether it sends nothing, and ends when its node has received what left before it.
    pub(crate) const fn awaits_receipt(&self) -> bool {
        self.opcode == FLUSH_RECEIVED
    }

    /// Whether it is held back behind one of its stream that has failed.
    pub(crate) const fn asks_for_order(&self) -> bool {
        asks_for_order(self.kind(), self.flags)
    }

    /// Whether nothing is told of it behind a failure of its stream that its program has been told of.
    pub(crate) const fn ends_without_a_word(&self) -> bool {
        self.is_write() && self.asks_for_order()
    }

    /// Whether this message is what becomes of it.
    pub(crate) const fn is(&self, message: &Message) -> bool {
        let same = self.kind() == message.kind
            && self.node == message.destination
            && self.port == message.destination_port
            && self.remote == message.address
            && self.epoch == message.epoch;
        // An atomic's number is its own again in the answer only.
        same && match message.kind {
            ATOMIC_REQUEST => {
                self.opcode == message.status
                    && self.operand == message.operand
                    && self.compare == message.compare
            }
            WRITE => self.op == message.op && self.len == message.len,
            _ => self.op == message.op,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use netvm_abi::wire::{Header, Kind, RawBody};
    use netvm_abi::{Incarnation, NodeId, NotificationId, PortId, Seq, VirtAddr};

    #[test]
    fn the_operations_on_values_are_those_of_the_abi() {
        for opcode in 64..=u8::MAX {
            let known = netvm_abi::descriptor::Opcode::from_code(opcode).is_some();
            assert_eq!(is_on_value(opcode), known, "{opcode}");
        }
    }

    /// A message made with the ABI's encoder.
    pub(in crate::check) fn frame(
        kind: Kind,
        seq: u32,
        address: u64,
        payload: &[u8],
        notify: u32,
    ) -> Vec<u8> {
        let mut header = Header::new(kind, NodeId(0), NodeId(1));
        header.source_port = PortId(3);
        header.destination_port = PortId(4);
        header.source_incarnation = Incarnation(7);
        header.destination_incarnation = Incarnation(8);
        header.seq = Seq(seq);
        header.address = VirtAddr(address);
        header.len = payload.len() as u16;
        header.notification = NotificationId(notify);
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn the_checkers_reading_agrees_with_the_abis_writing() {
        let bytes = frame(Kind::Write, 9, 0x1234_5678_9ABC, b"abcd", 1030);
        let message = Message::read(&bytes).unwrap();
        assert_eq!((message.kind, message.seq, message.len), (WRITE, 9, 4));
        assert_eq!((message.source, message.destination), (0, 1));
        assert_eq!((message.source_port, message.destination_port), (3, 4));
        assert_eq!((message.source_life, message.destination_life), (7, 8));
        assert_eq!((message.address, message.notification), (0x1234_5678_9ABC, 1030));
        assert!(message.windowed());
        assert!(Message::read(&bytes[..82]).is_none());
        for kind in Kind::ALL {
            assert_eq!(
                Message::read(&frame(*kind, 0, 0, &[], 0)).unwrap().windowed(),
                kind.is_windowed()
            );
        }
    }

    #[test]
    fn descriptors_are_read_as_they_are_written() {
        let command = netvm_abi::descriptor::Command {
            flags: netvm_abi::descriptor::CommandFlags::INLINE,
            len: netvm_abi::ByteLen(100),
            local: VirtAddr(0xABC0_0000_1000),
            ..Default::default()
        };
        let expected = Posted {
            opcode: 1,
            inline: true,
            flags: 0,
            len: 100,
            node: 0,
            port: 0,
            remote: 0,
            local: 0xABC0_0000_1000,
            op: 0,
            reply: 0xFFFF,
            epoch: 0,
            operand: 0,
            compare: 0,
            carried: 0,
        };
        assert_eq!(Posted::read(&command.encode()), expected);
        let command = netvm_abi::descriptor::Command {
            opcode: netvm_abi::descriptor::Opcode::SemV,
            flags: netvm_abi::descriptor::CommandFlags::ORDERED,
            node: NodeId(1),
            port: PortId(4),
            remote: VirtAddr(0x5_0000_0008),
            op: netvm_abi::OpId(77),
            epoch: netvm_abi::Epoch(3),
            operand: 5,
            compare: 6,
            ..Default::default()
        };
        let posted = Posted::read(&command.encode());
        let mut header = Header::new(Kind::AtomicRequest, NodeId(0), NodeId(1));
        (header.destination_port, header.address) = (command.port, command.remote);
        header.epoch = command.epoch;
        header.raw = RawBody {
            status: command.opcode.code(),
            operand: command.operand,
            compare: command.compare,
        };
        let message = Message::read(&header.encode()).unwrap();
        assert!(posted.is(&message) && posted.asks_for_order());
        header.raw.compare += 1;
        assert!(!posted.is(&Message::read(&header.encode()).unwrap()));
    }
}
