//! What the NIC remembers of an open port.

use crate::complete::Looked;
use crate::stream::{Entry, Stage};
use netvm_abi::Generation;
use netvm_abi::command_queue::Consumer;
use netvm_abi::notification::EVENT_COUNTS;
use netvm_abi::shared_queue::Cursor;

/// Commands of a port that may be on their way at once: copied, being staged, or ready to leave.
pub(crate) const PIPELINE: usize = 8;

/// Entries of a notification queue (the only size that the geometry admits).
pub(crate) const NOTIFICATION_ENTRIES: u32 = 2048;

/// The life of a port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortState {
    /// Has no owner.
    Closed,
    /// Served.
    Open,
    /// Waits for its DMAs.
    Closing,
}

/// A completion counter and its shadow in host memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    /// What has been completed.
    pub(crate) done: u32,
    /// What the application has been told.
    pub(crate) shadow: u32,
    /// Of what it wants to hear exactly.
    pub(crate) fence: u32,
}

/// Which completion counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Commands taken.
    Taken = 0,
    /// Writes done.
    Writes = 1,
    /// Reads, flushes and atomics done.
    Reads = 2,
}

/// A port.
pub struct Port {
    pub(crate) state: PortState,
    pub(crate) generation: Generation,
    /// End of the queue at which commands are copied.
    pub(crate) fetch: Consumer,
    /// End of the queue at which entries are given back; at most [`PIPELINE`] behind `fetch`.
    pub(crate) retire: Consumer,
    /// The first used entry of the pipeline.
    pub(crate) head: u8,
    /// Used entries of the pipeline.
    pub(crate) len: u8,
    /// The doorbell word last complained about.
    pub(crate) broken: Option<u32>,
    pub(crate) counts: [Completion; 3],
    /// DMAs that use this port's pages.
    pub(crate) dmas: u16,
    /// Staging buffers held for this port's commands.
    pub(crate) staging: u16,
    /// Of these, those whose page the host has been asked for.
    pub(crate) missing: u16,
    /// Read slots held.
    pub(crate) reads: u16,
    pub(crate) error_write: u32,
    pub(crate) errors_lost: u32,
    /// Entries put into the notification queue.
    pub(crate) notification_write: u32,
    /// Entries that the application had taken when the NIC last looked.
    pub(crate) notification_read: u32,
    /// One-shot entries between the two.
    pub(crate) one_shots: u32,
    /// Which event counts have an entry in the queue.
    pub(crate) queued: [u32; EVENT_COUNTS as usize / 32],
    /// Places of its shared queue.
    pub(crate) cursor: Cursor,
    pub(crate) pipeline: [Entry; PIPELINE],
}

impl Port {
    /// A closed port.
    pub(crate) fn closed() -> Self {
        Self {
            state: PortState::Closed,
            generation: Generation(0),
            fetch: Consumer::default(),
            retire: Consumer::default(),
            head: 0,
            len: 0,
            broken: None,
            counts: [Completion {
                done: 0,
                shadow: 0,
                fence: 0,
            }; 3],
            dmas: 0,
            staging: 0,
            missing: 0,
            reads: 0,
            error_write: 0,
            errors_lost: 0,
            notification_write: 0,
            notification_read: 0,
            one_shots: 0,
            queued: [0; EVENT_COUNTS as usize / 32],
            cursor: Cursor::default(),
            pipeline: [Entry::EMPTY; PIPELINE],
        }
    }

    /// Whether the port is served and still of this generation.
    pub(crate) fn is(&self, generation: Generation) -> bool {
        self.state == PortState::Open && self.generation == generation
    }

    /// Whether a look that found these words leaves nothing to do: no command is new, no fence has moved, and no entry
    /// is on its way. (An entry that lacks something may have got it.)
    #[inline]
    pub(crate) fn rests(&self, words: &Looked) -> bool {
        let [taken, writes, reads] = words.fences;
        let [known_taken, known_writes, known_reads] = self.fences();
        let news = (words.doorbell ^ self.fetch.taken())
            | (taken ^ known_taken)
            | (writes ^ known_writes)
            | (reads ^ known_reads);
        news | u32::from(self.len) == 0
    }

    /// Index of the pipeline entry `offset` behind the head.
    pub(crate) const fn index(&self, offset: u8) -> u8 {
        (self.head + offset) % PIPELINE as u8
    }

    /// A pipeline entry.
    #[inline]
    pub(crate) fn entry(&mut self, index: u8) -> Option<&mut Entry> {
        self.pipeline.get_mut(usize::from(index))
    }

    /// Index of the last entry of the pipeline, if it lacks something: it holds the stream behind it.
    #[inline]
    pub(crate) fn wanting(&self) -> Option<u8> {
        let last = self.index(self.len.checked_sub(1)?);
        let entry = self.pipeline.get(usize::from(last))?;
        (entry.stage == Stage::Wanting).then_some(last)
    }

    /// How far the entry at the head of the pipeline is.
    #[inline]
    pub(crate) fn head_stage(&self) -> Option<Stage> {
        if self.len == 0 || self.state != PortState::Open {
            return None;
        }
        self.pipeline.get(usize::from(self.head)).map(|entry| entry.stage)
    }

    /// Whether the entry at the head of the pipeline waits for nothing any more.
    #[inline]
    pub(crate) fn head_may_leave(&self) -> bool {
        matches!(self.head_stage(), Some(Stage::Ready | Stage::Failed(_)))
    }

    /// The entry at the head has left the pipeline, and its place in the queue is free.
    #[inline]
    pub(crate) fn drop_head(&mut self) {
        self.head = self.index(1);
        self.len = self.len.saturating_sub(1);
        self.retire.take();
        let [taken, ..] = &mut self.counts;
        taken.done = self.retire.taken();
    }

    /// The counts of which the application wants to hear exactly, as far as the NIC knows.
    #[inline]
    pub(crate) fn fences(&self) -> [u32; 3] {
        self.counts.map(|count| count.fence)
    }
}
