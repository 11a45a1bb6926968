//! Command descriptors: what an application asks of its NIC (thesis tables 10 and 11).
//!
//! A descriptor is 48 words: a head of 16 and room for 128 bytes of inline payload. Local
//! addresses need no key: the port's own doorbell identifies the caller. The NIC copies a descriptor
//! once and checks the copy; the words in the queue may change under it at any time.

pub use crate::raw_command::RawCommand;
use crate::status::Status;
use crate::units::{
    ByteLen, CapabilitySlot, Epoch, NodeId, NotificationId, OpId, PortId, ReplySlot, VirtAddr,
};
use crate::value::{FIRST, ValueCode};
use crate::words::{join, split};
use bitflags::bitflags;
use core::fmt;
use core::num::NonZero;
use static_assertions::const_assert_eq;

/// Words of a descriptor's head.
pub const HEAD_WORDS: usize = 16;
/// Most bytes of inline payload; a platform's threshold may be lower.
pub const INLINE_BYTES: usize = 128;
/// Words of a descriptor.
pub const DESCRIPTOR_WORDS: usize = HEAD_WORDS + INLINE_BYTES / 4;
/// Descriptors in a command queue (thesis 5.3.1).
pub const QUEUE_ENTRIES: u32 = 64;

const_assert_eq!(DESCRIPTOR_WORDS * 4, 192);

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// What to do. In one byte, also where it may be nothing: commands and messages pass through many hands.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct Opcode(NonZero<u8>);

        #[expect(non_upper_case_globals, reason = "written and matched as the variants of an enumeration are")]
        impl Opcode {
            $($(#[$doc])* pub const $name: Self = Self(NonZero::new($code).unwrap());)*
        }

        impl Opcode {
            /// All that have a name of their own, in order of their codes; those on values are
            /// [others](ValueCode::all).
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// From its code.
            #[must_use]
            #[inline(always)]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => Self::of_value(code) }
            }

            const fn name(self) -> Option<&'static str> {
                match self.code() { $($code => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

opcodes! {
    /// Transfer local memory (or the inline payload) to remote memory.
    Write = 1,
    /// Transfer remote memory to local memory.
    Read = 2,
    /// Answer when everything earlier from this port to that node has landed.
    FlushRemote = 3,
    /// End when that node's card has received everything earlier from this port. Nothing leaves for it but a question.
    FlushReceived = 4,
    /// Make the lease that the capability is end `operand` nanoseconds from now, if `compare` is its generation
    /// ([`crate::lease`]); reply is what is left, and what can be left at most.
    ExtendLease = 5,
    /// Atomic: set to `operand` if zero; reply is the old value.
    TestAndSet = 16,
    /// Atomic: add `operand`, wrapping; reply is the old value.
    FetchAdd = 17,
    /// Atomic: exchange with `operand`; reply is the old value.
    Swap = 18,
    /// Atomic: replace with `operand` if equal to `compare`; reply is the old value.
    CompareSwap = 19,
    /// On a queue block: `operand` waits last; reply is its predecessor, and count and epoch.
    Enqueue = 32,
    /// On a queue block: takes the first; reply is the waiter to wake, and count behind it and epoch.
    Dequeue = 33,
    /// On a queue block: `operand` waits first now, if `compare` is the epoch; reply is 1 if it is to be
    /// woken at once (2: another epoch), and count behind it and epoch.
    NewHead = 34,
    /// On a queue block: takes one from the semaphore, or `operand` waits last; reply is its
    /// predecessor, and the value before and epoch.
    SemP = 35,
    /// On a queue block: takes the first, or gives one to the semaphore; reply is the waiter to wake,
    /// and count behind it and epoch, or value.
    SemV = 36,
    /// On a queue block: empties it, if `operand` is the epoch; reply is 1 if it was, and count before and
    /// epoch now.
    ResetQueue = 37,
}

impl Opcode {
    /// An operation on a value; nothing for a code of another one, or of none. The compiler is to see that it does nothing else: most
    /// readers of a message do not want its opcode.
    #[cold]
    #[inline]
    const fn of_value(code: u8) -> Option<Self> {
        match (ValueCode::from_code(code), NonZero::new(code)) {
            (Some(_), Some(code)) => Some(Self(code)),
            _ => None,
        }
    }

    /// Its code.
    #[must_use]
    #[inline(always)]
    pub const fn code(self) -> u8 {
        self.0.get()
    }

    /// What it does to a value, if it is an atomic on one ([`crate::value`]).
    #[must_use]
    #[inline(always)]
    pub const fn on_value(self) -> Option<ValueCode> {
        if self.code() < FIRST {
            return None;
        }
        ValueCode::from_code(self.code())
    }

    /// Whether the operation counts as a write in the completion counters; all others count as
    /// reads: they end with an answer.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write)
    }

    /// Whether it is an atomic operation ([`crate::atomic`]).
    #[must_use]
    #[inline]
    pub const fn is_atomic(self) -> bool {
        self.code() >= Self::TestAndSet.code()
    }

    /// Whether it is an atomic operation on a queue block.
    #[must_use]
    #[inline]
    pub const fn is_extended(self) -> bool {
        self.code() >= Self::Enqueue.code() && self.code() < FIRST
    }

    /// Bytes of an atomic's operand, which is also its alignment; 0 for what is no atomic, and for a type that there is
    /// not.
    #[must_use]
    #[inline]
    pub const fn operand_bytes(self, wide: bool) -> u32 {
        if self.code() >= FIRST {
            self.bytes_of_value(wide)
        } else if self.is_extended() {
            crate::atomic::OPERAND_BYTES as u32
        } else if !self.is_atomic() {
            0
        } else if wide {
            8
        } else {
            4
        }
    }

    #[cold]
    const fn bytes_of_value(self, wide: bool) -> u32 {
        match self.on_value() {
            Some(code) => code.bytes(wide),
            None => 0,
        }
    }
}

impl ValueCode {
    /// As an opcode.
    #[must_use]
    pub const fn opcode(self) -> Opcode {
        Opcode(self.nonzero())
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.on_value()) {
            (Some(name), _) => f.write_str(name),
            (None, Some(code)) => write!(f, "{code:?}"),
            (None, None) => write!(f, "{}", self.code()),
        }
    }
}

bitflags! {
    /// How to do it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CommandFlags: u8 {
        /// The payload stands in the descriptor; `local` is not used.
        const INLINE = 1;
        /// Act only when everything earlier from this port to that node has landed.
        const ORDERED = 2;
        /// The atomic works on 64 bits instead of 32; one on a value, on the larger type of its kind.
        const WIDE = 4;
        /// It acts, and its notification is delivered, even if an earlier message of the stream has failed.
        const REGARDLESS = 8;
        /// The write takes the next place of a shared queue ([`crate::shared_queue`]); its remote address is 0.
        const APPEND = 16;
    }
}

/// The head of a command descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub opcode: Opcode,
    /// How to do it.
    pub flags: CommandFlags,
    /// Bytes to transfer, at most a page and not across a page on either side.
    pub len: ByteLen,
    /// The other node.
    pub node: NodeId,
    /// The port there.
    pub port: PortId,
    /// The capability that allows it.
    pub capability: CapabilitySlot,
    /// The capability's secret.
    pub secret: u64,
    /// Address at the other node.
    pub remote: VirtAddr,
    /// Address at this node.
    pub local: VirtAddr,
    /// The notification to signal, if any.
    pub notification: NotificationId,
    /// The library's number of the operation.
    pub op: OpId,
    /// Where the answer goes, if one is wanted.
    pub reply: ReplySlot,
    /// Error epoch of the stream.
    pub epoch: Epoch,
    /// First operand of an atomic.
    pub operand: u64,
    /// Value that a compare-and-swap expects.
    pub compare: u64,
}

impl Default for Command {
    fn default() -> Self {
        Self {
            opcode: Opcode::Write,
            flags: CommandFlags::empty(),
            len: ByteLen(0),
            node: NodeId(0),
            port: PortId(0),
            capability: CapabilitySlot(0),
            secret: 0,
            remote: VirtAddr(0),
            local: VirtAddr(0),
            notification: NotificationId::NONE,
            op: OpId(0),
            reply: ReplySlot::NONE,
            epoch: Epoch(0),
            operand: 0,
            compare: 0,
        }
    }
}

impl Command {
    /// As the words of a queue entry's head.
    #[must_use]
    #[inline]
    pub const fn encode(&self) -> [u32; HEAD_WORDS] {
        let secret = split(self.secret);
        let remote = split(self.remote.0);
        let local = split(self.local.0);
        let operand = split(self.operand);
        let compare = split(self.compare);
        [
            self.opcode.code() as u32 | ((self.flags.bits() as u32) << 8) | ((self.len.0 & 0xFFFF) << 16),
            self.node.0 as u32 | ((self.port.0 as u32) << 16),
            self.capability.0,
            self.notification.0,
            secret[0],
            secret[1],
            remote[0],
            remote[1],
            local[0],
            local[1],
            self.op.0,
            self.reply.0 as u32 | ((self.epoch.0 as u32) << 16),
            operand[0],
            operand[1],
            compare[0],
            compare[1],
        ]
    }

    /// From the words of a queue entry's head. Whether the fields make sense together is checked
    /// by the NIC, which knows the geometry.
    ///
    /// # Errors
    /// [`Status::Malformed`] for an unknown opcode or flag.
    #[inline]
    pub const fn decode(words: &[u32; HEAD_WORDS]) -> Result<Self, Status> {
        match RawCommand::of(words) {
            Ok(raw) => Ok(raw.decode()),
            Err(status) => Err(status),
        }
    }
}

/// The head of a write's descriptor with everything that the destination determines, so that a library
/// fills in only what differs from write to write. In pairs of words, low one first: a library moves
/// two at a time.
#[derive(Clone, Copy, Debug)]
pub struct WriteTemplate([u64; HEAD_WORDS / 2]);

/// What differs from write to write to one place.
#[derive(Clone, Copy, Debug)]
pub struct WriteFields {
    /// How to do it.
    pub how: FlagTag,
    /// Bytes to transfer.
    pub len: ByteLen,
    /// Address at the other node.
    pub remote: VirtAddr,
    /// Address at this node.
    pub local: VirtAddr,
    /// The notification to signal, if any.
    pub notification: NotificationId,
    /// The library's number of the operation.
    pub op: OpId,
    /// Error epoch of the stream.
    pub stream: StreamTag,
}

/// A command's flags, shifted to where they stand in a descriptor's first word: known when a program is
/// compiled, mostly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagTag(u32);

impl FlagTag {
    /// Of these flags.
    #[must_use]
    #[inline(always)]
    pub const fn new(flags: CommandFlags) -> Self {
        Self((flags.bits() as u32) << 8)
    }
}

/// A stream's error epoch, shifted to where it stands in a pair of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTag(pub u64);

impl From<Epoch> for StreamTag {
    fn from(epoch: Epoch) -> Self {
        Self(join(0, ReplySlot::NONE.0 as u32 | ((epoch.0 as u32) << 16)))
    }
}

impl StreamTag {
    /// The epoch.
    #[must_use]
    pub const fn epoch(self) -> Epoch {
        Epoch((self.0 >> 48) as u16)
    }
}

impl WriteTemplate {
    /// With node, port, capability and secret of `command`.
    #[must_use]
    pub const fn new(command: &Command) -> Self {
        let words = Command {
            opcode: Opcode::Write,
            flags: CommandFlags::empty(),
            len: ByteLen(0),
            notification: NotificationId::NONE,
            ..*command
        }
        .encode();
        let mut pairs = [0; HEAD_WORDS / 2];
        let mut at = 0;
        while at < pairs.len() {
            pairs[at] = join(words[2 * at], words[2 * at + 1]);
            at += 1;
        }
        Self(pairs)
    }

    /// The same as [`Command::encode`] of the whole command, without a reply slot, in pairs.
    #[must_use]
    #[inline(always)]
    pub const fn fill(&self, write: &WriteFields) -> [u64; HEAD_WORDS / 2] {
        let [how, whom, secret, ..] = self.0;
        [
            how | (write.how.0 | ((write.len.0 & 0xFFFF) << 16)) as u64,
            whom | ((write.notification.0 as u64) << 32),
            secret,
            write.remote.0,
            write.local.0,
            write.op.0 as u64 | write.stream.0,
            0,
            0,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_template_is_the_encoded_command() {
        let command = Command {
            flags: CommandFlags::INLINE.union(CommandFlags::ORDERED),
            len: ByteLen(77),
            node: NodeId(3),
            port: PortId(9),
            capability: CapabilitySlot(0x1234_5678),
            secret: 0xFEDC_BA98_7654_3210,
            remote: VirtAddr(0x7FFF_1234_5678),
            local: VirtAddr(0x5555_8765_4321),
            notification: NotificationId(1500),
            op: OpId(42),
            epoch: Epoch(7),
            ..Command::default()
        };
        let bare = Command {
            node: command.node,
            port: command.port,
            capability: command.capability,
            secret: command.secret,
            ..Command::default()
        };
        let pairs = WriteTemplate::new(&bare).fill(&WriteFields {
            how: FlagTag::new(command.flags),
            len: command.len,
            remote: command.remote,
            local: command.local,
            notification: command.notification,
            op: command.op,
            stream: command.epoch.into(),
        });
        let words = command.encode();
        assert_eq!(pairs.map(split).as_flattened(), words);
    }
}
