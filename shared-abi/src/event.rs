//! Events between the host driver and its NIC, eight words each.
//!
//! Each kind answers or announces one thing that is outstanding, so a ring of
//! [`Geometry::ring_entries`](crate::Geometry::ring_entries) entries cannot overflow.

use crate::atomic::AtomicResult;
use crate::status::Status;
use crate::units::{
    BounceId, ByteLen, CapabilitySlot, Generation, Incarnation, Nanos, NodeId, PageOffset, PortId, StagingId,
    Token, Vpn,
};
use crate::words::{join, split};

/// Words of an event.
pub const EVENT_WORDS: usize = 8;

/// From the NIC to the host driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicEvent {
    /// A message (or read reply) waits in a bounce page; its record names the port.
    Bounced {
        /// The bounce page and record.
        bounce: BounceId,
        /// Use of the slot; echoed in the answer.
        generation: Generation,
    },
    /// A page that the NIC should read is not mapped. The command stalls its port, or holds its
    /// window slot, until the host answers.
    SourceMiss {
        /// The staging buffer that waits for the data; names the source bounce page as well.
        staging: StagingId,
        /// Use of the staging buffer; echoed in the answer.
        generation: Generation,
        /// The page.
        vpn: Vpn,
        /// First byte wanted.
        offset: PageOffset,
        /// Bytes wanted.
        len: ByteLen,
        /// How often the NIC has already tried (the host copies when this reaches 3).
        attempt: u8,
    },
    /// The page of an atomic's operand is not mapped; the bounce record says which. Answered by
    /// [`HostEvent::AtomicAnswer`], or, if it is refused, by [`HostEvent::BounceEnded`].
    AtomicMiss {
        /// The record; the bounce page itself is free for the host's use.
        bounce: BounceId,
        /// Use of the slot; echoed in the answer.
        generation: Generation,
        /// How often the NIC has already tried (the host does it itself when this reaches 3).
        attempt: u8,
    },
    /// A peer has a new incarnation: end everything of the old one, then answer `PeerReleased`.
    PeerReset {
        /// The peer.
        peer: NodeId,
        /// Its new incarnation.
        incarnation: Incarnation,
    },
    /// The link to a peer is up.
    PeerUp {
        /// The peer.
        peer: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// The link to a peer has failed. Bounced messages of it will not be acknowledged any more.
    PeerLost {
        /// The peer.
        peer: NodeId,
        /// The incarnation that is over.
        incarnation: Incarnation,
    },
    /// Every DMA that was active when the barrier was posted has finished.
    BarrierDone {
        /// From the request.
        token: Token,
    },
    /// Nothing of the closed port is active or queued in the NIC any more.
    PortClosed {
        /// The port.
        port: PortId,
        /// Its generation.
        generation: Generation,
    },
    /// A control message has left (its slot is free), or could not be sent.
    ControlSent {
        /// From the request.
        token: Token,
        /// `Ok`, `LinkLost` or `NoSuchNode`.
        status: Status,
    },
    /// How much of a lease is left.
    LeaseLeft {
        /// The capability.
        slot: CapabilitySlot,
        /// From the question.
        generation: Generation,
        /// From the question.
        token: Token,
        /// 0: it is over, for good.
        left: Nanos,
    },
}

/// What the host answers to a source miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceAnswer {
    /// The page is mapped: try again.
    Retry,
    /// The bytes are in the source bounce page, from its first byte on.
    Copied,
    /// They cannot be had.
    Failed(Status),
}

/// What the host answers to an atomic's miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicAnswer {
    /// The page is mapped: try again.
    Retry,
    /// The host has carried it out.
    Done(AtomicResult),
}

/// From the host driver to the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// A port is open: serve its command queue.
    PortOpen {
        /// The port.
        port: PortId,
        /// Its generation.
        generation: Generation,
        /// Where the counts of its commands begin.
        counts_from: u32,
    },
    /// A port is closed: drop its commands, then answer `PortClosed`.
    PortClose {
        /// The port.
        port: PortId,
        /// Its generation.
        generation: Generation,
    },
    /// A bounced message has been dealt with.
    BounceEnded {
        /// The bounce page.
        bounce: BounceId,
        /// From the event.
        generation: Generation,
        /// `Ok`: it has landed.
        status: Status,
    },
    /// Answer to a source miss.
    SourceAnswer {
        /// The staging buffer.
        staging: StagingId,
        /// From the event.
        generation: Generation,
        /// The answer.
        answer: SourceAnswer,
    },
    /// Answer to an atomic's miss.
    AtomicAnswer {
        /// The record.
        bounce: BounceId,
        /// From the event.
        generation: Generation,
        /// The answer.
        answer: AtomicAnswer,
    },
    /// Send the control message in this slot of the shared memory.
    SendControl {
        /// The destination.
        peer: NodeId,
        /// The slot.
        slot: u16,
        /// Echoed in `ControlSent`.
        token: Token,
    },
    /// Everything of the peer's old incarnation has been released.
    PeerReleased {
        /// The peer.
        peer: NodeId,
        /// The incarnation from `PeerReset` or `PeerLost`.
        incarnation: Incarnation,
    },
    /// Keep a link to this peer.
    PeerConnect {
        /// The peer.
        peer: NodeId,
    },
    /// Tell when all DMAs that are active now have finished.
    Barrier {
        /// Echoed in `BarrierDone`.
        token: Token,
    },
    /// A lease begins, unless it has begun.
    LeaseBegin {
        /// The capability.
        slot: CapabilitySlot,
        /// The lease; another one of that slot is left alone.
        generation: Generation,
    },
    /// How much of a lease is left?
    LeaseAsk {
        /// The capability.
        slot: CapabilitySlot,
        /// The lease; nothing is left of another one of that slot.
        generation: Generation,
        /// Echoed in `LeaseLeft`.
        token: Token,
    },
}

impl NicEvent {
    /// As words.
    #[must_use]
    pub const fn encode(&self) -> [u32; EVENT_WORDS] {
        match *self {
            Self::Bounced { bounce, generation } => [1, bounce.0, generation.0, 0, 0, 0, 0, 0],
            Self::SourceMiss {
                staging,
                generation,
                vpn,
                offset,
                len,
                attempt,
            } => {
                let [low, high] = split(vpn.raw());
                let place = staging.0 as u32 | ((offset.0 as u32) << 16);
                [2, place, generation.0, low, high, len.0, attempt as u32, 0]
            }
            Self::PeerReset { peer, incarnation } => [3, peer.0 as u32, incarnation.0, 0, 0, 0, 0, 0],
            Self::PeerUp { peer, incarnation } => [4, peer.0 as u32, incarnation.0, 0, 0, 0, 0, 0],
            Self::PeerLost { peer, incarnation } => [5, peer.0 as u32, incarnation.0, 0, 0, 0, 0, 0],
            Self::BarrierDone { token } => [6, token.0, 0, 0, 0, 0, 0, 0],
            Self::PortClosed { port, generation } => [7, port.0 as u32, generation.0, 0, 0, 0, 0, 0],
            Self::ControlSent { token, status } => [8, token.0, status.code() as u32, 0, 0, 0, 0, 0],
            Self::AtomicMiss {
                bounce,
                generation,
                attempt,
            } => [9, bounce.0, generation.0, attempt as u32, 0, 0, 0, 0],
            Self::LeaseLeft {
                slot,
                generation,
                token,
                left,
            } => {
                let [low, high] = split(left.0);
                [10, slot.0, generation.0, token.0, low, high, 0, 0]
            }
        }
    }

    /// From words; nothing when the kind is unknown.
    #[must_use]
    pub const fn decode(words: &[u32; EVENT_WORDS]) -> Option<Self> {
        let generation = Generation(words[2]);
        let peer = NodeId(words[1] as u16);
        let incarnation = Incarnation(words[2]);
        let token = Token(words[1]);
        Some(match words[0] {
            1 => Self::Bounced {
                bounce: BounceId(words[1]),
                generation,
            },
            2 => Self::SourceMiss {
                staging: StagingId(words[1] as u16),
                generation,
                vpn: Vpn::from_raw(join(words[3], words[4])),
                offset: PageOffset((words[1] >> 16) as u16),
                len: ByteLen(words[5]),
                attempt: words[6] as u8,
            },
            3 => Self::PeerReset { peer, incarnation },
            4 => Self::PeerUp { peer, incarnation },
            5 => Self::PeerLost { peer, incarnation },
            6 => Self::BarrierDone { token },
            7 => Self::PortClosed {
                port: PortId(words[1] as u16),
                generation,
            },
            8 => Self::ControlSent {
                token,
                status: Status::from_code(words[2] as u8),
            },
            9 => Self::AtomicMiss {
                bounce: BounceId(words[1]),
                generation,
                attempt: words[3] as u8,
            },
            10 => Self::LeaseLeft {
                slot: CapabilitySlot(words[1]),
                generation,
                token: Token(words[3]),
                left: Nanos(join(words[4], words[5])),
            },
            _ => return None,
        })
    }
}

impl HostEvent {
    /// As words.
    #[must_use]
    pub const fn encode(&self) -> [u32; EVENT_WORDS] {
        match *self {
            Self::PortOpen {
                port,
                generation,
                counts_from,
            } => [1, port.0 as u32, generation.0, counts_from, 0, 0, 0, 0],
            Self::PortClose { port, generation } => [2, port.0 as u32, generation.0, 0, 0, 0, 0, 0],
            Self::BounceEnded {
                bounce,
                generation,
                status,
            } => [3, bounce.0, generation.0, status.code() as u32, 0, 0, 0, 0],
            Self::SourceAnswer {
                staging,
                generation,
                answer,
            } => {
                let (what, status) = match answer {
                    SourceAnswer::Retry => (0, Status::Ok),
                    SourceAnswer::Copied => (1, Status::Ok),
                    SourceAnswer::Failed(status) => (2, status),
                };
                [
                    4,
                    staging.0 as u32,
                    generation.0,
                    what,
                    status.code() as u32,
                    0,
                    0,
                    0,
                ]
            }
            Self::SendControl { peer, slot, token } => [5, peer.0 as u32, slot as u32, token.0, 0, 0, 0, 0],
            Self::PeerReleased { peer, incarnation } => [6, peer.0 as u32, incarnation.0, 0, 0, 0, 0, 0],
            Self::PeerConnect { peer } => [7, peer.0 as u32, 0, 0, 0, 0, 0, 0],
            Self::Barrier { token } => [8, token.0, 0, 0, 0, 0, 0, 0],
            Self::AtomicAnswer {
                bounce,
                generation,
                answer,
            } => {
                let (what, result) = match answer {
                    AtomicAnswer::Retry => (0, AtomicResult { value: 0, second: 0 }),
                    AtomicAnswer::Done(result) => (1, result),
                };
                let value = split(result.value);
                let second = split(result.second);
                [
                    9,
                    bounce.0,
                    generation.0,
                    what,
                    value[0],
                    value[1],
                    second[0],
                    second[1],
                ]
            }
            Self::LeaseBegin { slot, generation } => [10, slot.0, generation.0, 0, 0, 0, 0, 0],
            Self::LeaseAsk {
                slot,
                generation,
                token,
            } => [11, slot.0, generation.0, token.0, 0, 0, 0, 0],
        }
    }

    /// From words; nothing when the kind is unknown.
    #[must_use]
    pub const fn decode(words: &[u32; EVENT_WORDS]) -> Option<Self> {
        let port = PortId(words[1] as u16);
        let peer = NodeId(words[1] as u16);
        let generation = Generation(words[2]);
        Some(match words[0] {
            1 => Self::PortOpen {
                port,
                generation,
                counts_from: words[3],
            },
            2 => Self::PortClose { port, generation },
            3 => Self::BounceEnded {
                bounce: BounceId(words[1]),
                generation,
                status: Status::from_code(words[3] as u8),
            },
            4 => Self::SourceAnswer {
                staging: StagingId(words[1] as u16),
                generation,
                answer: match words[3] {
                    0 => SourceAnswer::Retry,
                    1 => SourceAnswer::Copied,
                    2 => SourceAnswer::Failed(Status::from_code(words[4] as u8)),
                    _ => return None,
                },
            },
            5 => Self::SendControl {
                peer,
                slot: words[2] as u16,
                token: Token(words[3]),
            },
            6 => Self::PeerReleased {
                peer,
                incarnation: Incarnation(words[2]),
            },
            7 => Self::PeerConnect { peer },
            8 => Self::Barrier {
                token: Token(words[1]),
            },
            9 => Self::AtomicAnswer {
                bounce: BounceId(words[1]),
                generation,
                answer: match words[3] {
                    0 => AtomicAnswer::Retry,
                    1 => AtomicAnswer::Done(AtomicResult {
                        value: join(words[4], words[5]),
                        second: join(words[6], words[7]),
                    }),
                    _ => return None,
                },
            },
            10 => Self::LeaseBegin {
                slot: CapabilitySlot(words[1]),
                generation,
            },
            11 => Self::LeaseAsk {
                slot: CapabilitySlot(words[1]),
                generation,
                token: Token(words[3]),
            },
            _ => return None,
        })
    }
}
