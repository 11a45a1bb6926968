//! A slot of a peer's sequence window: one message, from its arrival until the LSN passes it.

use netvm_abi::status::Status;
use netvm_abi::wire::{HEADER_WORDS, Header, Kind, RawHeader};
use netvm_abi::{Generation, Geometry, NodeId, NotificationId, ReceiveId, VirtAddr, Vpn};

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
    /// The LSN. Its stream has passed it ([`order`](super::order)).
    Passed,
}

/// Where a message stands in the line of its stream, while its link is held up ([`order`](super::order)). As small as it is, a
/// slot has 104 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing(u16);

impl Standing {
    /// In no line.
    pub(super) const NONE: Self = Self(0);
    /// Behind one that its stream has not passed.
    pub(super) const WAITS: Self = Self(1 << 15);
    /// Its stream has passed all before it.
    pub(super) const COME: Self = Self(1 << 14);
    /// One of its stream waits for it, in the slot that the bits below say.
    const NEXT: u16 = 1 << 13;

    /// Whether it is in a line.
    pub(super) const fn is_in_line(self) -> bool {
        self.0 & (Self::WAITS.0 | Self::COME.0) != 0
    }

    /// Whether its turn has come.
    pub(super) const fn has_come(self) -> bool {
        self.0 & Self::COME.0 != 0
    }

    /// Its turn has come.
    pub(super) const fn comes(&mut self) {
        self.0 = self.0 & !Self::WAITS.0 | Self::COME.0;
    }

    /// The message in this slot waits for it.
    pub(super) const fn precedes(&mut self, slot: u16) {
        self.0 |= Self::NEXT | slot;
    }

    /// The slot of the message that waits for it.
    pub(super) fn next(self) -> Option<u16> {
        (self.0 & Self::NEXT != 0).then_some(self.0 & (Self::NEXT - 1))
    }
}

const _: () = assert!(
    Geometry::MAX_WINDOW <= Standing::NEXT,
    "a slot's index has 13 bits"
);
const _: () = assert!(size_of::<Slot>() == 104);

/// What a slot has of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Nothing.
    Missing,
    /// The message, which has not landed.
    Held,
    /// It has landed or failed.
    Ended,
}

/// A slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    state: SlotState,
    /// How it ended.
    status: Status,
    /// Whether it still has its receive buffer.
    holds_receive: bool,
    receive: ReceiveId,
    /// Use of the slot, which names it to the host.
    generation: Generation,
    /// Whether an atomic holds its page's unit.
    pub(super) in_unit: bool,
    /// How often an atomic has missed its page, or whether a read's data waits for the host.
    attempts: u8,
    /// Generation of the receiving port when the message was let through.
    port_generation: Generation,
    /// Whether an append has got its place of a shared queue, and its record is not stored yet.
    has_place: bool,
    /// Where it stands in its stream.
    pub(super) standing: Standing,
    header: RawHeader<[u32; HEADER_WORDS]>,
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
        standing: Standing::NONE,
        header: RawHeader::new(&Header::new(Kind::Write, NodeId(0), NodeId(0))),
    };

    /// A message comes into the slot.
    #[inline(always)]
    pub(crate) fn fill(&mut self, header: RawHeader<[u32; HEADER_WORDS]>, receive: ReceiveId) {
        self.header = header;
        self.receive = receive;
        self.holds_receive = true;
        self.generation.0 = self.generation.0.wrapping_add(1);
        self.status = Status::Ok;
        // From now on the slot is not empty.
        self.state = SlotState::Queued;
    }

    /// Whether it waits for the host, which takes as long as a page takes to come.
    pub(crate) const fn awaits_host(&self) -> bool {
        match self.state {
            SlotState::Bounced => true,
            SlotState::Sourcing => self.attempts != 0,
            _ => false,
        }
    }

    /// Whether the data that a read asks for waits for the host.
    pub(crate) const fn misses_source(&mut self, misses: bool) {
        self.attempts = misses as u8;
    }

    /// What the message waits for.
    #[inline]
    pub(crate) const fn state(&self) -> SlotState {
        self.state
    }

    /// It waits for something else now.
    #[inline]
    pub(crate) const fn set(&mut self, state: SlotState) {
        self.state = state;
    }

    /// The message has ended, and waits for the LSN.
    #[inline]
    pub(crate) fn end(&mut self, status: Status) {
        self.status = status;
        self.state = if status == Status::Ok {
            SlotState::Landed
        } else {
            SlotState::Failed
        };
    }

    /// How it ended.
    #[inline]
    pub(crate) const fn status(&self) -> Status {
        self.status
    }

    /// Its header. It stays in the slot until the next message comes into it.
    #[inline]
    pub(crate) const fn header(&self) -> &RawHeader<[u32; HEADER_WORDS]> {
        &self.header
    }

    /// The page that its message is for.
    #[inline(always)]
    pub(crate) fn page(&self) -> Vpn {
        Vpn::of(self.header.destination_port(), self.header.address())
    }

    /// Use of the slot, which names it to the host.
    #[inline]
    pub(crate) const fn generation(&self) -> Generation {
        self.generation
    }

    /// Its receive buffer.
    #[inline]
    pub(crate) const fn receive(&self) -> ReceiveId {
        self.receive
    }

    /// Whether it has a receive buffer.
    pub(crate) const fn has_receive(&self) -> bool {
        self.holds_receive
    }

    /// The receive buffer, if the slot still has it: for the caller to give back.
    #[inline]
    pub(crate) fn let_go(&mut self) -> Option<ReceiveId> {
        core::mem::take(&mut self.holds_receive).then_some(self.receive)
    }

    /// The message is let through to this owner of its port.
    #[inline]
    pub(crate) const fn let_through(&mut self, port: Generation) {
        self.port_generation = port;
    }

    /// The owner of its port to which the message was let through.
    #[inline]
    pub(crate) const fn let_through_to(&self) -> Generation {
        self.port_generation
    }

    /// How often it has missed its page.
    pub(crate) const fn attempts(&self) -> u8 {
        self.attempts
    }

    /// The host has brought its page: another attempt follows.
    pub(crate) const fn try_again(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        self.state = SlotState::Queued;
    }

    /// No attempt follows.
    pub(crate) const fn tries_no_more(&mut self) {
        self.attempts = 0;
    }

    /// An append gets its place, at `address`, and goes on as a write.
    pub(crate) fn give_place(&mut self, address: VirtAddr, number: u32, raises: NotificationId) {
        self.header.give_place(address, number, raises);
        self.has_place = true;
    }

    /// An append has a place whose record is not stored yet.
    #[inline]
    pub(crate) const fn has_place(&self) -> bool {
        self.has_place
    }

    /// The place that an append had, and the event count that it raises.
    pub(crate) fn end_place(&mut self) -> Option<(u32, NotificationId)> {
        core::mem::take(&mut self.has_place).then(|| self.header.end_place())
    }
}
