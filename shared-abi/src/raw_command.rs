//! A command's head as it was copied from its queue: checked once, each field read where it is needed.
//!
//! A NIC needs few fields to know what a command is, and hands most of the others on as they are. The words are its
//! own copy, so a field is the same at each look (promise P5).

use crate::descriptor::{Command, CommandFlags, HEAD_WORDS, Opcode};
use crate::status::Status;
use crate::units::{
    ByteLen, CapabilitySlot, Epoch, NodeId, NotificationId, OpId, PortId, ReplySlot, VirtAddr,
};
use crate::words::join;

/// The words of a descriptor's head whose opcode and flags are known ones.
#[derive(Clone, Copy, Debug)]
pub struct RawCommand<'a> {
    pub(crate) words: &'a [u32; HEAD_WORDS],
    opcode: Opcode,
    flags: CommandFlags,
}

impl<'a> RawCommand<'a> {
    /// Looks whether words are a command. Whether the fields make sense together is checked by the NIC, which knows
    /// the geometry.
    ///
    /// # Errors
    /// [`Status::Malformed`] for an unknown opcode or flag.
    #[inline(always)]
    pub const fn of(words: &'a [u32; HEAD_WORDS]) -> Result<Self, Status> {
        let Some(opcode) = Opcode::from_code(words[0] as u8) else {
            return Err(Status::Malformed);
        };
        let Some(flags) = CommandFlags::from_bits((words[0] >> 8) as u8) else {
            return Err(Status::Malformed);
        };
        Ok(Self { words, opcode, flags })
    }

    /// What to do.
    #[must_use]
    #[inline(always)]
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// How to do it.
    #[must_use]
    #[inline(always)]
    pub const fn flags(&self) -> CommandFlags {
        self.flags
    }

    /// Bytes to transfer.
    #[must_use]
    #[inline(always)]
    pub const fn len(&self) -> ByteLen {
        ByteLen(self.words[0] >> 16)
    }

    /// Whether it transfers nothing.
    #[must_use]
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len().0 == 0
    }

    /// The other node.
    #[must_use]
    #[inline(always)]
    pub const fn node(&self) -> NodeId {
        NodeId(self.words[1] as u16)
    }

    /// The port there.
    #[must_use]
    #[inline(always)]
    pub const fn port(&self) -> PortId {
        PortId((self.words[1] >> 16) as u16)
    }

    /// The notification to signal, if any.
    #[must_use]
    #[inline(always)]
    pub const fn notification(&self) -> NotificationId {
        NotificationId(self.words[3])
    }

    /// Address at the other node.
    #[must_use]
    #[inline(always)]
    pub const fn remote(&self) -> VirtAddr {
        VirtAddr(join(self.words[6], self.words[7]))
    }

    /// Address at this node.
    #[must_use]
    #[inline(always)]
    pub const fn local(&self) -> VirtAddr {
        VirtAddr(join(self.words[8], self.words[9]))
    }

    /// The library's number of the operation.
    #[must_use]
    #[inline(always)]
    pub const fn op(&self) -> OpId {
        OpId(self.words[10])
    }

    /// Where the answer goes, if one is wanted.
    #[must_use]
    #[inline(always)]
    pub const fn reply(&self) -> ReplySlot {
        ReplySlot(self.words[11] as u16)
    }

    /// Error epoch of the stream.
    #[must_use]
    #[inline(always)]
    pub const fn epoch(&self) -> Epoch {
        Epoch((self.words[11] >> 16) as u16)
    }

    /// First operand of an atomic.
    #[must_use]
    #[inline(always)]
    pub const fn operand(&self) -> u64 {
        join(self.words[12], self.words[13])
    }

    /// Value that a compare-and-swap expects.
    #[must_use]
    #[inline(always)]
    pub const fn compare(&self) -> u64 {
        join(self.words[14], self.words[15])
    }

    /// All of it.
    #[must_use]
    #[inline(always)]
    pub const fn decode(&self) -> Command {
        let words = self.words;
        Command {
            opcode: self.opcode,
            flags: self.flags,
            len: self.len(),
            node: self.node(),
            port: self.port(),
            capability: CapabilitySlot(words[2]),
            notification: self.notification(),
            secret: join(words[4], words[5]),
            remote: self.remote(),
            local: self.local(),
            op: self.op(),
            reply: self.reply(),
            epoch: self.epoch(),
            operand: self.operand(),
            compare: self.compare(),
        }
    }
}
