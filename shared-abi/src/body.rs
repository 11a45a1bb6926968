//! What the kinds of messages say: one typed [`Body`] for each, and the words that it is packed into.
//!
//! A header has 136 bits that mean something else for each kind. They stay packed while a message only passes through
//! ([`RawBody`]); [`Header::body`] and [`Header::set_body`] are the one place that knows where each field stands
//! (`docs/ABI.md`, chapter 12).

use crate::atomic::AtomicResult;
use crate::descriptor::Opcode;
use crate::status::Status;
use crate::units::{Generation, Incarnation, OpId, ReadSlot, ReplySlot};
use crate::wire::{Header, Kind};
use crate::words::{join, split};

/// Names a round trip: the requester's read slot, and which use of it. The answer repeats it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadTicket {
    /// The read slot.
    pub slot: ReadSlot,
    /// Use of the slot: an answer to an earlier use comes too late.
    pub generation: Generation,
}

impl ReadTicket {
    /// As one word: slot (bits 0..16), generation (32..64).
    #[must_use]
    #[inline(always)]
    pub(crate) const fn pack(self) -> u64 {
        join(self.slot.0 as u32, self.generation.0)
    }

    /// From that word; what stands between slot and generation is ignored.
    #[must_use]
    #[inline(always)]
    const fn unpack(word: u64) -> Self {
        let [slot, generation] = split(word);
        Self {
            slot: ReadSlot(slot as u16),
            generation: Generation(generation),
        }
    }
}

/// The owner of a sending port. A later owner of the port number differs in the generation; a node that starts again
/// counts generations from the beginning, so the start tells its owners from those before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Generation of the port.
    pub generation: Generation,
    /// Which start of its node.
    pub start: Incarnation,
}

impl Owner {
    /// As one word: generation (bits 0..32), start (32..64).
    #[must_use]
    #[inline(always)]
    const fn pack(self) -> u64 {
        join(self.generation.0, self.start.0)
    }

    /// From that word.
    #[must_use]
    #[inline(always)]
    pub(crate) const fn unpack(word: u64) -> Self {
        let [generation, start] = split(word);
        Self {
            generation: Generation(generation),
            start: Incarnation(start),
        }
    }
}

/// What one end of a link offers the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Greeting {
    /// Bytes of a page.
    pub page_size: u32,
    /// Bytes of the largest payload that this end takes.
    pub payload: u32,
    /// Messages of the window.
    pub window: u16,
    /// [`ABI_VERSION`](crate::ABI_VERSION) of this end.
    pub version: u16,
    /// This end may refuse a message for lack of a window: what is refused has to be sent again, whatever the wire is.
    pub refuses: bool,
}

impl Greeting {
    #[inline(always)]
    const fn pack(self) -> (u64, u64) {
        (
            join(self.page_size, self.payload),
            self.window as u64 | ((self.version as u64) << 16) | ((self.refuses as u64) << 32),
        )
    }

    #[inline(always)]
    const fn unpack(operand: u64, compare: u64) -> Self {
        let [page_size, payload] = split(operand);
        Self {
            page_size,
            payload,
            window: compare as u16,
            version: (compare >> 16) as u16,
            refuses: (compare >> 32) & 1 != 0,
        }
    }
}

/// What a message says beyond the fields that all kinds have.
///
/// Every header has one: a field that the sender of a kind leaves zero is ignored, and a code that is unknown is
/// nothing, or [`Status::Malformed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Data, a notification, or both.
    Write {
        /// Owner of the sending port.
        owner: Owner,
        /// Of an append: the latest append of its stream that found no place ([`Status::NoPlace`]), as far as its sender
        /// knows. 0: none, and of every other write.
        refusal: OpId,
    },
    /// Asks for data.
    ReadRequest {
        /// Where the answer is awaited.
        ticket: ReadTicket,
        /// Bytes wanted. More than fits here reads as the most.
        len: u32,
    },
    /// Asks for an atomic operation; [`Atomic::requested`](crate::atomic::Atomic::requested) checks it.
    AtomicRequest {
        /// Where the answer is awaited.
        ticket: ReadTicket,
        /// Which operation; nothing if its code is unknown.
        opcode: Option<Opcode>,
        /// First argument.
        operand: u64,
        /// Second argument.
        compare: u64,
    },
    /// Asks whether all earlier has landed.
    Flush {
        /// Where the answer is awaited.
        ticket: ReadTicket,
        /// Owner of the sending port.
        owner: Owner,
    },
    /// From one host driver to another: the payload says it all.
    Control,
    /// Answers a read.
    ReadReply {
        /// The request's.
        ticket: ReadTicket,
        /// How it went.
        status: Status,
    },
    /// Answers an atomic.
    AtomicReply {
        /// The request's.
        ticket: ReadTicket,
        /// How it went.
        status: Status,
        /// What the operation answers.
        result: AtomicResult,
    },
    /// Answers a flush.
    FlushReply {
        /// The flush's.
        ticket: ReadTicket,
        /// What the first failure of the stream was.
        status: Status,
        /// Which operation it was.
        failed: OpId,
        /// The latest append of the stream that found no place; 0 for none.
        refused: OpId,
    },
    /// Frees window slots up to the header's sequence number, and says what has been received
    /// ([`Receipt`](crate::wire::Receipt)).
    Ack,
    /// A message could not be carried out.
    Error {
        /// Why not.
        status: Status,
        /// Owner of the port that sent it: a later one hears nothing.
        owner: Owner,
    },
    /// Offers a link.
    Hello {
        /// What is offered.
        greeting: Greeting,
    },
    /// Accepts a link, or refuses it.
    HelloAck {
        /// Whether, and why not.
        status: Status,
        /// What is offered in turn.
        greeting: Greeting,
    },
    /// Asks for an acknowledgement; the header's sequence number is the next that the sender will use.
    Probe,
    /// Ends a link.
    Bye,
}

/// A body as it stands in a header. Only what looks at raw messages (tests, and tools that make bad ones) has a use
/// for its fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawBody {
    /// Code of a [`Status`], or of an atomic's [`Opcode`].
    pub status: u8,
    /// Words 16 and 17.
    pub operand: u64,
    /// Words 18 and 19.
    pub compare: u64,
}

impl Body {
    /// From a header's fields.
    ///
    /// Inlined with the match that follows it, so that only the fields of the kinds that the match tells apart are read.
    #[inline(always)]
    pub(crate) const fn of(kind: Kind, raw: RawBody, names: Names) -> Self {
        let RawBody {
            status,
            operand,
            compare,
        } = raw;
        match kind {
            Kind::Write => Self::Write {
                owner: Owner::unpack(compare),
                refusal: OpId(operand as u32),
            },
            Kind::ReadRequest => Self::ReadRequest {
                ticket: ReadTicket::unpack(operand),
                len: read_len(compare),
            },
            Kind::AtomicRequest => Self::AtomicRequest {
                ticket: names.ticket(),
                opcode: Opcode::from_code(status),
                operand,
                compare,
            },
            Kind::Flush => Self::Flush {
                ticket: ReadTicket::unpack(operand),
                owner: Owner::unpack(compare),
            },
            Kind::Control => Self::Control,
            Kind::ReadReply => Self::ReadReply {
                ticket: ReadTicket::unpack(operand),
                status: Status::from_code(status),
            },
            Kind::AtomicReply => Self::AtomicReply {
                ticket: names.ticket(),
                status: Status::from_code(status),
                result: AtomicResult {
                    value: operand,
                    second: compare,
                },
            },
            Kind::FlushReply => Self::FlushReply {
                ticket: ReadTicket::unpack(compare),
                status: Status::from_code(status),
                failed: OpId(operand as u32),
                refused: OpId((operand >> 32) as u32),
            },
            Kind::Ack => Self::Ack,
            Kind::Error => Self::Error {
                status: Status::from_code(status),
                owner: Owner::unpack(compare),
            },
            Kind::Hello => Self::Hello {
                greeting: Greeting::unpack(operand, compare),
            },
            Kind::HelloAck => Self::HelloAck {
                status: Status::from_code(status),
                greeting: Greeting::unpack(operand, compare),
            },
            Kind::Probe => Self::Probe,
            Kind::Bye => Self::Bye,
        }
    }

    /// Its kind and packed fields. The ticket of an atomic is not among them ([`Names`]).
    #[inline(always)]
    pub(crate) const fn pack(self) -> (Kind, RawBody) {
        let (kind, status, operand, compare) = match self {
            Self::Write { owner, refusal } => (Kind::Write, 0, refusal.0 as u64, owner.pack()),
            Self::ReadRequest { ticket, len } => (Kind::ReadRequest, 0, ticket.pack(), len as u64),
            Self::AtomicRequest {
                opcode,
                operand,
                compare,
                ..
            } => {
                let code = match opcode {
                    Some(opcode) => opcode.code(),
                    None => 0,
                };
                (Kind::AtomicRequest, code, operand, compare)
            }
            Self::Flush { ticket, owner } => (Kind::Flush, 0, ticket.pack(), owner.pack()),
            Self::Control => (Kind::Control, 0, 0, 0),
            Self::ReadReply { ticket, status } => (Kind::ReadReply, status.code(), ticket.pack(), 0),
            Self::AtomicReply { status, result, .. } => {
                (Kind::AtomicReply, status.code(), result.value, result.second)
            }
            Self::FlushReply {
                ticket,
                status,
                failed,
                refused,
            } => {
                let ops = join(failed.0, refused.0);
                (Kind::FlushReply, status.code(), ops, ticket.pack())
            }
            Self::Ack => (Kind::Ack, 0, 0, 0),
            Self::Error { status, owner } => (Kind::Error, status.code(), 0, owner.pack()),
            Self::Hello { greeting } => {
                let (operand, compare) = greeting.pack();
                (Kind::Hello, 0, operand, compare)
            }
            Self::HelloAck { status, greeting } => {
                let (operand, compare) = greeting.pack();
                (Kind::HelloAck, status.code(), operand, compare)
            }
            Self::Probe => (Kind::Probe, 0, 0, 0),
            Self::Bye => (Kind::Bye, 0, 0, 0),
        };
        let raw = RawBody {
            status,
            operand,
            compare,
        };
        (kind, raw)
    }
}

/// Bytes that a read request wants, from the word that says so.
#[inline(always)]
pub(crate) const fn read_len(word: u64) -> u32 {
    if word > u32::MAX as u64 {
        u32::MAX
    } else {
        word as u32
    }
}

/// The names of operation and reply slot in a header: an atomic, whose operand and compare are taken, has its ticket
/// there.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) op: OpId,
    pub(crate) reply: ReplySlot,
}

impl Names {
    #[inline(always)]
    pub(crate) const fn of(ticket: ReadTicket) -> Self {
        Self {
            op: OpId(ticket.generation.0),
            reply: ReplySlot(ticket.slot.0),
        }
    }

    #[inline(always)]
    pub(crate) const fn ticket(self) -> ReadTicket {
        ReadTicket {
            slot: ReadSlot(self.reply.0),
            generation: Generation(self.op.0),
        }
    }
}

impl Header {
    /// What the message says.
    #[must_use]
    #[inline(always)]
    pub const fn body(&self) -> Body {
        let names = Names {
            op: self.op,
            reply: self.reply,
        };
        Body::of(self.kind, self.raw, names)
    }

    /// Makes it a message that says this: its kind, and the fields that depend on the kind.
    #[inline(always)]
    pub const fn set_body(&mut self, body: Body) {
        (self.kind, self.raw) = body.pack();
        if let Body::AtomicRequest { ticket, .. } | Body::AtomicReply { ticket, .. } = body {
            Names {
                op: self.op,
                reply: self.reply,
            } = Names::of(ticket);
        }
    }
}
