//! A port's commands on their way out: copied, getting their resources, staged ahead, leaving in the order in which
//! they were posted.

use netvm_abi::command_queue::{Consumer, Doorbell};
use netvm_abi::descriptor::HEAD_WORDS;
use netvm_abi::short_write::ShortWrite;
use netvm_abi::status::Status;
use netvm_abi::wire::{Header, Kind, OwnHeader, Owner};
use netvm_abi::words::SharedWords;
use netvm_abi::{Incarnation, NodeId, PortId, ReadSlot, StagingId, VirtAddr};

/// Commands of a port that may be on their way at once: copied, being staged, or ready to leave.
pub(crate) const PIPELINE: usize = 8;

/// What the payload of a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// There is none.
    Nothing,
    /// The descriptor; copied when the message leaves.
    Descriptor,
    /// A page of the port (at the entry's local address), through a staging buffer.
    Page,
    /// Nothing leaves: the command waits for what the other card has received.
    NoMessage,
}

/// How far an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It lacks resources.
    Wanting,
    /// Its payload is on the way into the staging buffer.
    Filling,
    /// It may leave.
    Ready,
    /// It does not leave: at its turn it asks what the other card has received.
    Asking,
    /// It will not leave.
    Failed(Status),
}

/// A command on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) stage: Stage,
    pub(crate) source: Source,
    /// The message as it will leave, but for sequence number and incarnations.
    pub(crate) header: OwnHeader,
    /// Where the payload comes from, or a read's answer goes.
    pub(crate) local: VirtAddr,
    /// Life of the link in which its credit was reserved; 0: it has none.
    pub(crate) session: Incarnation,
    pub(crate) read: Option<ReadSlot>,
    pub(crate) staging: Option<StagingId>,
    /// Whether a missing resource has been counted.
    pub(crate) stalled: bool,
}

impl Entry {
    /// An unused entry.
    pub(crate) const EMPTY: Self = Self {
        stage: Stage::Wanting,
        source: Source::Nothing,
        header: OwnHeader::new(&Header::new(Kind::Write, NodeId(0), NodeId(0))),
        local: VirtAddr(0),
        session: Incarnation(0),
        read: None,
        staging: None,
        stalled: false,
    };

    /// Whether it has a window slot of its destination.
    pub(crate) fn has_credit(&self) -> bool {
        self.session.0 != 0 && self.source != Source::NoMessage
    }

    /// Whether it counts as a write.
    #[inline]
    pub(crate) fn is_write(&self) -> bool {
        self.header.kind() == Kind::Write
    }

    /// Whether an answer comes back, which a read slot waits for.
    #[inline]
    pub(crate) fn is_round_trip(&self) -> bool {
        matches!(
            self.header.kind(),
            Kind::ReadRequest | Kind::Flush | Kind::AtomicRequest
        )
    }

    /// Bytes that the message makes the other side (or its reply makes this side) move at once.
    #[inline]
    pub(crate) fn moves(&self) -> u16 {
        match self.header.kind() {
            Kind::ReadRequest => self.header.read_len() as u16,
            _ => self.header.payload_len(),
        }
    }
}

/// A port's pipeline, and both ends of its command queue.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    /// End of the queue at which entries are given back. The end at which commands are copied is `len` further on.
    retire: Consumer,
    /// The first used entry.
    head: u8,
    /// Used entries.
    len: u8,
    /// The doorbell word last complained about.
    broken: Option<u32>,
    entries: [Entry; PIPELINE],
}

impl Pipeline {
    /// Empty, of a port whose commands are counted from `count` on.
    pub(crate) fn starting_at(count: u32) -> Self {
        Self {
            retire: Consumer::starting_at(count),
            head: 0,
            len: 0,
            broken: None,
            entries: [Entry::EMPTY; PIPELINE],
        }
    }

    /// End of the queue at which commands are copied.
    #[inline]
    const fn fetch(&self) -> Consumer {
        Consumer::starting_at(self.retire.taken().wrapping_add(self.len as u32))
    }

    /// Whether no command is on its way.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Commands on their way.
    pub(crate) const fn len(&self) -> u8 {
        self.len
    }

    /// Whether there is room for another command.
    #[inline]
    pub(crate) const fn has_room(&self) -> bool {
        (self.len as usize) < PIPELINE
    }

    /// Commands copied so far.
    #[inline]
    pub(crate) fn fetched(&self) -> u32 {
        self.fetch().taken()
    }

    /// Commands whose places are free again.
    #[inline]
    pub(crate) fn retired(&self) -> u32 {
        self.retire.taken()
    }

    /// What a doorbell word says.
    #[inline]
    pub(crate) fn compare(&self, doorbell: u32) -> Doorbell {
        self.fetch().compare(doorbell)
    }

    /// What the doorbell word says now.
    pub(crate) fn poll<W: SharedWords + ?Sized>(&self, block: &W) -> Doorbell {
        self.fetch().poll(block)
    }

    /// A doorbell word that no honest queue shows. Returns whether it is a new one.
    pub(crate) fn complain(&mut self, doorbell: u32) -> bool {
        self.broken.replace(doorbell) != Some(doorbell)
    }

    /// Copies the head of the next command.
    #[inline(always)]
    pub(crate) fn copy_head<W: SharedWords + ?Sized>(&self, block: &W, head: &mut [u32; HEAD_WORDS]) {
        self.fetch().copy_head(block, head);
    }

    /// Copies the next command, if it is a short write. The pipeline is empty.
    #[inline(always)]
    pub(crate) fn copy_short_write<W: SharedWords + Copy>(
        &self,
        block: W,
        from: (NodeId, PortId),
        owner: Owner,
    ) -> Option<ShortWrite> {
        self.retire.copy_short_write(block, from, owner)
    }

    /// The end of the queue at the command that leaves next: its payload may stand in its descriptor.
    #[inline(always)]
    pub(crate) const fn leaving(&self) -> Consumer {
        self.retire
    }

    /// Index of the entry `offset` behind the head.
    const fn index(&self, offset: u8) -> u8 {
        (self.head + offset) % PIPELINE as u8
    }

    /// An entry.
    #[inline]
    pub(crate) fn entry(&mut self, index: u8) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(index))
    }

    /// The entry at the head.
    #[inline]
    pub(crate) fn head(&mut self) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(self.head))
    }

    /// Index of the last entry, if it lacks something: it holds the stream behind it.
    #[inline]
    pub(crate) fn wanting(&self) -> Option<u8> {
        let last = self.index(self.len.checked_sub(1)?);
        let entry = self.entries.get(usize::from(last))?;
        (entry.stage == Stage::Wanting).then_some(last)
    }

    /// How far the entry at the head is.
    #[inline]
    pub(crate) fn head_stage(&self) -> Option<Stage> {
        if self.len == 0 {
            return None;
        }
        self.entries.get(usize::from(self.head)).map(|entry| entry.stage)
    }

    /// Whether the entry at the head waits for nothing any more.
    #[inline]
    pub(crate) fn head_may_leave(&self) -> bool {
        matches!(
            self.head_stage(),
            Some(Stage::Ready | Stage::Asking | Stage::Failed(_))
        )
    }

    /// Gives the next entry to a command that has been copied.
    pub(crate) fn admit(&mut self) -> u8 {
        let index = self.index(self.len);
        self.len += 1;
        index
    }

    /// The entry at the head has left, and its place in the queue is free.
    #[inline]
    pub(crate) fn drop_head(&mut self) {
        self.head = self.index(1);
        self.len = self.len.saturating_sub(1);
        self.retire.take();
    }

    /// A command has gone straight through the empty pipeline.
    #[inline(always)]
    pub(crate) fn pass_through(&mut self) {
        self.retire.take();
    }

    /// Takes the next entry out of the pipeline of a port that closes.
    pub(crate) fn drain(&mut self) -> Option<Entry> {
        let entry = self.head().copied();
        self.len = self.len.checked_sub(1)?;
        self.head = self.index(1);
        entry
    }
}
