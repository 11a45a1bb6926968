//! A short write on its way from its queue to the wire: from the words of its entry straight into a header.
//!
//! Nearly all writes that cost little data are short, and of a short write nearly all words of its head stand in its
//! message, too. So each is copied once, to where it leaves from.

use crate::body::Owner;
use crate::descriptor::{CommandFlags, HEAD_WORDS, Opcode};
use crate::raw_header::OwnHeader;
use crate::units::{NodeId, PortId};

/// A write whose payload stands in its descriptor, or that has none, and that is no append.
#[derive(Clone, Copy, Debug)]
pub struct ShortWrite {
    /// The message that carries it out, but for its number. Whether the fields make sense together is checked by the
    /// NIC, which knows the geometry.
    pub header: OwnHeader,
    /// Whether it has payload in its descriptor.
    pub inline: bool,
    /// The first words of that.
    pub pair: [u32; 2],
}

impl ShortWrite {
    /// Words of an entry that one can be made of.
    pub(crate) const WORDS: usize = HEAD_WORDS + 2;

    /// Of the entry whose first word is `first`; each of the others is asked for once.
    #[inline(always)]
    pub(crate) fn of(
        first: u32,
        word: impl Fn(usize) -> u32,
        from: (NodeId, PortId),
        owner: Owner,
    ) -> Option<Self> {
        let flags = Self::flags(first)?;
        Some(Self {
            header: OwnHeader::of_short_write(first, &word, flags, from, owner),
            inline: flags.contains(CommandFlags::INLINE),
            pair: [word(HEAD_WORDS), word(HEAD_WORDS + 1)],
        })
    }

    /// The flags of a short write whose entry begins with this word; nothing if it is none.
    #[inline(always)]
    const fn flags(first: u32) -> Option<CommandFlags> {
        const KIND: u32 = 0xFF | (CommandFlags::APPEND.bits() as u32) << 8;
        const INLINE: u32 = (CommandFlags::INLINE.bits() as u32) << 8;
        if first & KIND != Opcode::Write.code() as u32 || (first & INLINE == 0 && first >> 16 != 0) {
            return None;
        }
        CommandFlags::from_bits((first >> 8) as u8)
    }
}
