//! What the NIC core asks of the platform it runs on.
//!
//! The core is a state machine: the platform's loop hands it events (`Nic::handle_frame`
//! and its siblings) and it answers by calling these methods, which start things and return at
//! once. None of them may call back into the core; their ends come back as events.
//!

use netvm_abi::atomic::{Atomic, AtomicResult, OPERAND_BYTES, Operand};
use netvm_abi::wire::OwnHeader;
use netvm_abi::words::SharedWords;
use netvm_abi::{
    BounceId, ByteLen, Incarnation, NodeId, PAGE_SIZE, PageOffset, PortId, Ppn, ReceiveId, StagingId, Vpn,
};

/// A DMA in flight: a slot of the core's table and the use of that slot. Late or repeated
/// completions carry an old generation and are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DmaId {
    /// Slot, below 64.
    pub slot: u8,
    /// Use of the slot.
    pub generation: u32,
}

/// The path to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// It may lose a frame. The core keeps a copy of what it sends, and sends it again.
    pub loses_frames: bool,
    /// The largest payload that it takes, in bytes.
    pub payload: u32,
}

impl Path {
    /// Within a node: nothing is lost, and a page is taken.
    pub(crate) const fn own() -> Self {
        Self {
            loses_frames: false,
            payload: PAGE_SIZE,
        }
    }
}

impl Default for Path {
    /// One that loses frames, and takes a page.
    fn default() -> Self {
        Self {
            loses_frames: true,
            payload: PAGE_SIZE,
        }
    }
}

/// A page of an application, as a DMA sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// Where the page is.
    pub ppn: Ppn,
    /// The port and virtual page that the core takes it for: for checkers and reports only, no DMA engine needs it.
    pub vpn: Vpn,
    /// First byte.
    pub offset: PageOffset,
    /// Number of bytes; with the offset never beyond the page.
    pub len: ByteLen,
}

/// What a DMA moves. Payload starts at the first payload byte of a buffer or bounce page.
///
/// The platform moves an aligned payload of 1, 2, 4 or 8 bytes as a single store (promise P4), and
/// reports the end only when the bytes are globally visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dma {
    /// Application page to staging buffer.
    PageToStaging {
        /// From.
        page: PageRange,
        /// To.
        staging: StagingId,
    },
    /// Payload of a received message to an application page.
    ReceiveToPage {
        /// From.
        receive: ReceiveId,
        /// To.
        page: PageRange,
    },
    /// Payload of a received message to a bounce page.
    ReceiveToBounce {
        /// From.
        receive: ReceiveId,
        /// To.
        bounce: BounceId,
        /// Number of bytes.
        len: ByteLen,
    },
    /// Source bounce page (filled by the host) to staging buffer.
    BounceToStaging {
        /// From.
        bounce: BounceId,
        /// To.
        staging: StagingId,
        /// Number of bytes.
        len: ByteLen,
    },
    /// The operand of an atomic, of 1, 2, 4, 8 or 32 bytes and aligned to as many, to where
    /// [`operand`](Platform::operand) gives it for this DMA's slot.
    PageToOperand {
        /// From.
        page: PageRange,
    },
    /// The same back.
    OperandToPage {
        /// To.
        page: PageRange,
    },
}

/// Payload of a message that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// None.
    Empty,
    /// The first bytes of these little-endian words, as many as the header says; copied before the call returns.
    Inline(&'a [u32]),
    /// The first bytes of a staging buffer, as many as the header says. It stays untouched until the platform
    /// reports it sent.
    Staging(StagingId),
    /// The same, of a message that may have to leave again: afterwards the buffer still holds what it held.
    Kept(StagingId),
}

impl Payload<'_> {
    /// The same payload, of a message of which the core keeps a copy.
    #[must_use]
    #[inline(always)]
    pub(crate) const fn kept(self, kept: bool) -> Self {
        match self {
            Self::Staging(staging) if kept => Self::Kept(staging),
            payload => payload,
        }
    }
}

/// Operands of atomics on their way, one for each DMA slot: what a platform needs to keep for
/// [`Platform::operand`].
#[derive(Clone, Debug)]
pub struct Operands([[u8; OPERAND_BYTES]; DMA_SLOTS]);

/// DMAs that may be in flight.
pub const DMA_SLOTS: usize = 64;

impl Default for Operands {
    fn default() -> Self {
        Self::new()
    }
}

impl Operands {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self([[0; OPERAND_BYTES]; DMA_SLOTS])
    }

    /// A slot's operand.
    #[must_use]
    #[inline]
    pub fn get(&self, slot: u8) -> Operand {
        let bytes = self.0.get(usize::from(slot)).unwrap_or(&[0; OPERAND_BYTES]);
        let mut operand = [0; OPERAND_BYTES / 8];
        for (word, bytes) in operand.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        operand
    }

    /// Sets it.
    #[inline]
    pub fn set(&mut self, slot: u8, operand: &Operand) {
        if let Some(bytes) = self.0.get_mut(usize::from(slot)) {
            for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(operand) {
                *bytes = word.to_le_bytes();
            }
        }
    }

    /// Its first bytes, for a DMA; nothing if there are fewer.
    pub fn bytes(&mut self, slot: u8, len: ByteLen) -> Option<&mut [u8]> {
        self.0.get_mut(usize::from(slot))?.get_mut(..len.index())
    }
}

/// Bytes of a port's page, by their address alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The page.
    pub vpn: Vpn,
    /// Where in the page.
    pub offset: PageOffset,
    /// How much.
    pub len: ByteLen,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A received message's payload goes there.
    In(ReceiveId),
    /// What lies there goes into a staging buffer.
    Out(StagingId),
}

/// The receiver of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The host driver: its event ring has news.
    Driver,
    /// An application that may sleep: its port area has news.
    Port(PortId),
}

/// The NIC's surroundings.
pub trait Platform {
    /// NIC memory, which the host sees as the BAR ([`netvm_abi::bar`]).
    type Bar: SharedWords + ?Sized;
    /// The driver's memory on the host ([`netvm_abi::shared_map`]).
    type Shared: SharedWords + ?Sized;

    /// NIC memory.
    fn bar(&self) -> &Self::Bar;

    /// The driver's memory. Stores arrive in the order in which they are made, and after every DMA
    /// that has been reported done.
    fn shared(&self) -> &Self::Shared;

    /// Starts a DMA; its end comes back through `handle_dma_done`.
    fn start_dma(&mut self, id: DmaId, dma: Dma);

    /// The operand that a DMA with this slot has fetched ([`Operands`] keeps them).
    fn operand(&self, slot: u8) -> Operand;

    /// The operand that a DMA with this slot will store.
    fn set_operand(&mut self, slot: u8, operand: &Operand);

    /// Whether [`apply`](Self::apply) does something.
    fn applies_atomics(&self) -> bool {
        false
    }

    /// Carries out an atomic on a page, which is locked meanwhile, by one read-modify-write of the processor. Its operand has 1, 2, 4
    /// or 8 bytes and is aligned to as many. `None`: the platform cannot do so; nothing has happened, and the core does it by
    /// two DMAs. For platforms on which a processor shares the memory with the card: programs there may use atomics of
    /// their own on the same words.
    fn apply(&mut self, page: &PageRange, atomic: &Atomic) -> Option<AtomicResult> {
        let _ = (page, atomic);
        None
    }

    /// Whether [`reach`](Self::reach) and [`reach_and_apply`](Self::reach_and_apply) do something.
    fn reaches(&self) -> bool {
        false
    }

    /// Moves bytes of another node's request that is allowed, to or from a page that the table lacks, in this call. False: the
    /// platform cannot do so now; what is there is as before, or was overwritten in part, and the core goes the way of a miss.
    ///
    /// For platforms that need no entry to find a page: those that live in the process whose memory it is. They must not wait for the
    /// page.
    fn reach(&mut self, place: &Place, way: Way) -> bool {
        let _ = (place, way);
        false
    }

    /// The same for an atomic, as [`apply`](Self::apply) does it; nothing has happened if the answer is `None`.
    fn reach_and_apply(&mut self, place: &Place, atomic: &Atomic) -> Option<AtomicResult> {
        let _ = (place, atomic);
        None
    }

    /// The path to a node, for a life of the link that begins, with this end's incarnation of it. It is asked for several times while
    /// one life begins, and is the same each time.
    fn path_to(&mut self, node: NodeId, life: Incarnation) -> Path {
        let _ = (node, life);
        Path::default()
    }

    /// Sends a message. A staging buffer comes back through `handle_sent`.
    fn transmit(&mut self, header: &OwnHeader, payload: Payload<'_>);

    /// The core is done with a received message's buffer.
    fn release_receive(&mut self, receive: ReceiveId);

    /// Interrupts the host. What is woken sees everything that the core has stored before.
    fn interrupt(&mut self, whom: Interrupt);
}
