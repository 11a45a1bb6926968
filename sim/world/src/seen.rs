//! What the checkers are shown: memory accesses, frames on the wire and page events. Nothing of
//! this comes out of a core's state; it is recorded where the modelled hardware, the modelled kernel
//! and the system-call boundary do their part.

use crate::effort::CoreStep;
use crate::faults::FaultKind;
use crate::vm::ProcessId;
use netvm_abi::control::Modes;
use netvm_abi::{BounceId, Nanos, NodeId, NotificationId, PortId, Ppn, ReceiveId, StagingId, port_area};
use std::fmt;
use std::rc::Rc;

/// A range of bytes in one page of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    /// The port that the card takes the page for.
    pub(crate) port: PortId,
    /// Page number in that port's address space.
    pub(crate) page: u64,
    /// First byte in the page.
    pub(crate) offset: u32,
    /// Number of bytes.
    pub(crate) len: u32,
}

impl Place {
    /// Address of the first byte.
    pub(crate) const fn start(self) -> u64 {
        (self.page << 12) + self.offset as u64
    }
}

/// Which way a DMA between the card and an app's page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The card reads the page.
    FromPage,
    /// The card writes the page.
    ToPage,
}

/// What bytes belong to that are stored in an app's page. Equal bytes may be stored at one place for each of these
/// reasons, and only the first says that a message has landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// A message from another node.
    Message,
    /// The answer to a read of this node.
    Answer,
    /// An atomic's operand, changed.
    Operand,
}

/// A buffer between memory and wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Buffer {
    /// A staging buffer.
    Staging(StagingId),
    /// A bounce page.
    Bounce(BounceId),
    /// A received frame.
    Receive(ReceiveId),
    /// The operand of the atomic in a DMA slot.
    Operand(u8),
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Staging(id) => write!(f, "staging buffer {id}"),
            Self::Bounce(id) => write!(f, "bounce page {id}"),
            Self::Receive(id) => write!(f, "receive buffer {id}"),
            Self::Operand(slot) => write!(f, "operand {slot}"),
        }
    }
}

/// Identity of a DMA in a run.
pub(crate) type DmaNumber = u64;

/// An export as its owner asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportFact {
    /// First byte.
    pub(crate) start: u64,
    /// Byte after the last.
    pub(crate) end: u64,
    /// The modes each allowed caller has: node, port (none: all of them), modes, notifications.
    pub(crate) allowed: Vec<Allowed>,
    /// If it is a shared queue: bytes of an entry, and the event count that each one raises.
    pub(crate) queue: Option<(u64, u32)>,
}

/// One line of an allow-list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// The node, or any.
    pub(crate) node: Option<NodeId>,
    /// The port there, or any.
    pub(crate) port: Option<PortId>,
    /// What it may do.
    pub(crate) modes: Modes,
    /// The notifications it may raise, first and last.
    pub(crate) notify: (NotificationId, NotificationId),
}

/// What of a port ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All of it.
    Port,
    /// A region, with all exports in it.
    Region,
    /// An export, or what was lent of it.
    Export,
    /// A lease, now or by itself later.
    Lease,
}

/// What a card counts of a port's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// Commands taken out of the queue.
    Taken,
    /// Writes that are done.
    Writes,
    /// Reads, flushes and atomics that are done.
    Reads,
}

/// One fact.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// A frame now backs a page.
    FrameGiven { node: NodeId, ppn: Ppn },
    /// A frame is free: no access to it is allowed.
    FrameTaken { node: NodeId, ppn: Ppn },
    /// The kernel's page table entry says this from now on.
    Permission {
        node: NodeId,
        process: ProcessId,
        page: u64,
        ppn: Ppn,
        writable: bool,
    },
    /// The driver's invalidation of this mapping is complete; the kernel now changes its entry.
    Invalidated {
        node: NodeId,
        process: ProcessId,
        page: u64,
        ppn: Ppn,
    },
    /// The driver has taken the card's write permission away; the page stays where it is, and the card
    /// may go on reading it.
    Protected {
        node: NodeId,
        process: ProcessId,
        page: u64,
    },
    /// A frame's bytes went to swap: it is clean.
    WrittenBack { node: NodeId, ppn: Ppn },
    /// A frame was given up without writing it, because it was taken for clean; `same` compares its
    /// bytes with the copy in swap.
    DroppedClean { node: NodeId, ppn: Ppn, same: bool },
    /// Reclaim begins to ask for the accessed marks of a page.
    AgeAsked { node: NodeId, ppn: Ppn },
    /// It has the answer, and the marks are cleared.
    AgeTold { node: NodeId, ppn: Ppn, young: bool },

    /// A DMA begins to use buffers: it takes bytes out of one, or puts them into one, or both.
    DmaUses {
        node: NodeId,
        dma: DmaNumber,
        from: Option<Buffer>,
        into: Option<Buffer>,
    },
    /// The card's processor, or the kernel, reads a buffer.
    BufferRead { node: NodeId, buffer: Buffer },
    /// The card's processor changes a buffer, or gives it back.
    BufferTaken { node: NodeId, buffer: Buffer },
    /// A staging buffer begins to leave.
    StagingLeaves { node: NodeId, staging: StagingId },
    /// It has left.
    StagingLeft { node: NodeId, staging: StagingId },
    /// The card has told the driver of a bounce page, which is the driver's from now on.
    BounceGiven {
        node: NodeId,
        bounce: BounceId,
        /// The node whose message it is.
        from: NodeId,
    },
    /// The driver has told the card that it is done with a bounce page.
    BounceEnded { node: NodeId, bounce: BounceId },
    /// The driver has told the card that it is done with all messages of a node.
    MessagesEnded { node: NodeId, from: NodeId },
    /// A DMA begins to touch an app's page.
    DmaStart {
        node: NodeId,
        dma: DmaNumber,
        way: Way,
        ppn: Ppn,
        place: Place,
    },
    /// Its bytes have moved.
    DmaMoved {
        node: NodeId,
        dma: DmaNumber,
        way: Way,
        ppn: Ppn,
        place: Place,
        bytes: Rc<[u8]>,
        /// Of one that writes the page.
        stored: Option<Stored>,
        /// They moved in parts, which were seen before.
        parted: bool,
    },
    /// A part of a DMA's bytes moves.
    DmaPart {
        node: NodeId,
        way: Way,
        ppn: Ppn,
        /// All that the DMA moves.
        of: Place,
        /// What moves now.
        place: Place,
        bytes: Rc<[u8]>,
    },
    /// A DMA's completion is reported to the card.
    DmaDone { node: NodeId, dma: DmaNumber },
    /// It was cut off: bus mastering was stopped.
    DmaAborted { node: NodeId, dma: DmaNumber },
    /// A message's payload lies in a bounce page.
    BounceFilled {
        node: NodeId,
        bounce: BounceId,
        /// Where the kernel has copied it from; nothing if a DMA has brought it.
        from: Option<(Ppn, Place)>,
        bytes: Rc<[u8]>,
    },
    /// The kernel copied from a bounce page to a page of a process.
    HostCopied {
        node: NodeId,
        bounce: BounceId,
        ppn: Ppn,
        place: Place,
        bytes: Rc<[u8]>,
        stored: Stored,
    },
    /// An app has stored bytes in a page of its own.
    AppStored {
        node: NodeId,
        process: ProcessId,
        at: u64,
        bytes: Rc<[u8]>,
    },
    /// An app has loaded bytes from a page of its own.
    AppLoaded {
        node: NodeId,
        process: ProcessId,
        at: u64,
        bytes: Rc<[u8]>,
    },
    /// An app threw a range of pages away: it reads as zero from now on.
    Discarded {
        node: NodeId,
        process: ProcessId,
        first: u64,
        pages: u64,
    },

    /// A frame was put on the wire.
    Sent { frame: Rc<[u8]> },
    /// The next fact is a frame that leaves its card only then: the core of a modelled card has work before it.
    Leaves { at: Nanos },
    /// A frame was handed to a card.
    Arrived { to: NodeId, frame: Rc<[u8]> },
    /// A cut link swallowed a frame.
    Cut { frame: Rc<[u8]> },
    /// A frame came to a card that is not there.
    Lost { from: NodeId, to: NodeId },
    /// A greeting came of a life that the card of `from` has not begun.
    MadeUp { from: NodeId, to: NodeId },
    /// The wire lost this frame alone, or spoilt it so that its checksum gave it away.
    FrameLost { frame: Rc<[u8]> },
    /// A card ends the life of a link: what arrives from now on does not count, whenever its store in the status page lands.
    LinkEnds { node: NodeId, peer: NodeId },
    /// A card says in its status page that its link to a node is down.
    LinkDown { node: NodeId, peer: NodeId },

    /// The card raised the signal count of a notification (the word in its memory).
    Signalled {
        node: NodeId,
        port: PortId,
        id: NotificationId,
        count: u32,
    },
    /// The card stored the shadow of a signal count, which apps read.
    Shadowed {
        node: NodeId,
        port: PortId,
        id: NotificationId,
        count: u32,
    },
    /// The card stored how many operations of a port it has taken or done, since its driver opened it.
    Counted {
        node: NodeId,
        port: PortId,
        which: Counts,
        count: u32,
    },
    /// The card appended an entry to a port's notification queue.
    Queued {
        node: NodeId,
        port: PortId,
        id: NotificationId,
    },

    /// The card stored the record of a place of a port's shared queue: its first word, and the sender's.
    Recorded {
        node: NodeId,
        port: PortId,
        slot: u32,
        word: u32,
        source: u32,
    },
    /// An app gave back all places of its shared queue before this one.
    Freed { node: NodeId, port: PortId, freed: u32 },

    /// An app waited until the clock ended its wait, and went on as if it had been woken: no wake-up has come for what it
    /// found.
    Overslept { node: NodeId, port: PortId },

    /// A core's step took more than any of its kind before it: so many accesses of words, of tables and of its platform.
    LongestStep { node: NodeId, step: CoreStep, work: u32 },

    /// A fault of the run strikes a node, of those that may make an operation fail or a card seem dead.
    Fault { node: NodeId, kind: FaultKind },
    /// The card told an app of an operation that has failed: a record of its port's error ring.
    Told {
        node: NodeId,
        port: PortId,
        words: [u32; port_area::ERROR_WORDS],
    },

    /// The card answered an operation in a reply slot of its port: what stands there, the operation first.
    Replied {
        node: NodeId,
        port: PortId,
        slot: u16,
        words: [u32; port_area::REPLY_WORDS],
    },
    /// The card had more errors to tell an app of than it has records.
    ErrorsLost { node: NodeId, port: PortId },

    /// A port has a region from now on.
    Registered {
        node: NodeId,
        port: PortId,
        start: u64,
        len: u64,
    },
    /// A port, or something of it, begins to end: what is asked of it from now on may fail.
    Ends {
        node: NodeId,
        port: PortId,
        what: Ending,
    },

    /// An app rang its doorbell: the head of the descriptor that it published, and the digest of the payload in it.
    Posted {
        node: NodeId,
        port: PortId,
        words: [u32; 16],
        inline: u64,
    },

    /// A port belongs to a process from now on.
    PortOpened {
        node: NodeId,
        port: PortId,
        process: ProcessId,
    },
    /// The driver has finished closing a port: nothing of it may happen any more.
    PortClosed { node: NodeId, port: PortId },
    /// A port is in the hands of an app that posts anything.
    Hostile { node: NodeId, port: PortId },
    /// A port is open whose words tell something of its last owner: the first such word.
    LeftOver {
        node: NodeId,
        port: PortId,
        word: &'static str,
    },
    /// The card interrupts a port.
    Interrupted { node: NodeId, port: PortId },
    /// The card's page table still has a valid entry for a page of a port that is closed.
    StillMapped { node: NodeId, port: PortId, page: u64 },
    /// An export exists (recorded before the call returns).
    Exported {
        node: NodeId,
        port: PortId,
        fact: Rc<ExportFact>,
    },
    /// An export is withdrawn and the withdrawal has returned.
    Unexported {
        node: NodeId,
        port: PortId,
        fact: Rc<ExportFact>,
    },
    /// The exit of a process is complete.
    Gone { node: NodeId, process: ProcessId },
    /// A node went down with everything on it; links of its old life are over.
    Restarted { node: NodeId },
    /// A card stopped for good and was declared dead by its driver.
    CardDead { node: NodeId },
    /// A card was switched off for a while and is not expected to answer until it is back.
    CardPaused { node: NodeId, until: Nanos },
}

/// Collects facts until the checkers take them.
#[derive(Default)]
pub(crate) struct Log(Vec<Seen>);

impl Log {
    /// Adds a fact.
    pub(crate) fn see(&mut self, fact: Seen) {
        self.0.push(fact);
    }

    /// Takes what was collected.
    pub(crate) fn take(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.0)
    }

    /// Whether nothing was collected.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A digest of payload bytes: FNV-1a over words, enough to tell messages of a run apart.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64 ^ bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        hash = (hash ^ word).wrapping_mul(0x0100_0000_01B3).rotate_left(23);
    }
    for &byte in chunks.remainder() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    }
    hash
}
