//! A slot of a peer's sequence window: one message, from its arrival until the LSN passes it.

use netvm_abi::status::Status;
use netvm_abi::wire::{HEADER_WORDS, Header, Kind, Owner, RawHeader};
use netvm_abi::{Epoch, Generation, NodeId, OpId, ReceiveId};

/// What a message is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// It has not arrived.
    Missing,
    /// Everything before it (it asked for that).
    Ordered,
    /// A DMA slot, or a staging buffer.
    Queued,
    /// A DMA into its page.
    Moving,
    /// The operand of its atomic operation is on the way here.
    Fetching,
    /// The operand is on the way back.
    Storing,
    /// A DMA into its bounce page.
    Bouncing,
    /// The host, which has its bounce page.
    Bounced,
    /// The data that a read asked for.
    Sourcing,
    /// Nothing: its link has failed, and it goes when its DMA or queue lets go of it.
    Dead,
    /// The LSN. It has landed.
    Landed,
    /// The LSN. It has failed.
    Failed,
}

/// A slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub(crate) state: SlotState,
    /// How it ended.
    pub(crate) status: Status,
    /// Whether it still has its receive buffer.
    pub(crate) holds_receive: bool,
    pub(crate) receive: ReceiveId,
    /// Use of the slot, which names it to the host.
    pub(crate) generation: Generation,
    /// Whether an atomic holds its page's unit.
    pub(crate) in_unit: bool,
    /// How often it has missed its page.
    pub(crate) attempts: u8,
    /// Generation of the receiving port when the message was let through.
    pub(crate) port_generation: Generation,
    /// Whether an append has got its place of a shared queue, and its record is not stored yet.
    pub(crate) has_place: bool,
    pub(crate) header: RawHeader<[u32; HEADER_WORDS]>,
}

impl Slot {
    /// A slot that waits for its first message.
    pub(crate) const MISSING: Self = Self {
        state: SlotState::Missing,
        status: Status::Ok,
        holds_receive: false,
        receive: ReceiveId(0),
        generation: Generation(0),
        in_unit: false,
        attempts: 0,
        port_generation: Generation(0),
        has_place: false,
        header: RawHeader::new(&Header::new(Kind::Write, NodeId(0), NodeId(0))),
    };

    /// The receive buffer, if the slot still has it: for the caller to give back.
    #[inline]
    pub(crate) fn let_go(&mut self) -> Option<ReceiveId> {
        core::mem::take(&mut self.holds_receive).then_some(self.receive)
    }
}

/// A port of another node as a sender to this one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stream {
    /// The first failure that the sender has not answered with a new epoch: notifications of that
    /// epoch are suppressed.
    pub(crate) poison: Option<Poison>,
}

/// Why a stream is poisoned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poison {
    pub(crate) epoch: Epoch,
    /// Owner of the sending port: the next one is not to blame.
    pub(crate) owner: Owner,
    pub(crate) status: Status,
    pub(crate) op: OpId,
}
