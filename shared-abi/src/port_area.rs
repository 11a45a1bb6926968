//! A port's area in host memory: what the NIC writes for the application to poll.
//!
//! Six pages, mapped into the application. Polling here costs no bus transaction and the NIC's
//! writes arrive coherently (thesis 5.3.1).

use crate::status::Status;
use crate::units::{Epoch, NodeId, OpId, PortId, VirtAddr, WordIndex};
use crate::words::{SharedWords, join, split};

/// Words of a port area: 6 pages.
pub const AREA_WORDS: u32 = 6144;

/// Commands the NIC has taken out of the queue (shadow counter, steps of 32 or as fenced).
pub const TAKEN: WordIndex = WordIndex(0);
/// Writes completed at the source (shadow counter, steps of 32 or as fenced).
pub const WRITES_DONE: WordIndex = WordIndex(1);
/// Reads, flushes and atomics completed (shadow counter, steps of 32 or as fenced).
pub const READS_DONE: WordIndex = WordIndex(2);
/// Entries that the NIC has put into the notification queue.
pub const NOTIFICATION_WRITE: WordIndex = WordIndex(16);
/// Records that the NIC has put into the error ring.
pub const ERROR_WRITE: WordIndex = WordIndex(17);
/// Errors that found the ring full and were only counted.
pub const ERRORS_LOST: WordIndex = WordIndex(18);
/// Driver-owned: 0 while the port lives, else the [`Status`] code that ended it.
pub const PORT_STATE: WordIndex = WordIndex(32);
/// Driver-owned: generation of the port.
pub const PORT_GENERATION: WordIndex = WordIndex(33);
/// Driver-owned: changes with every interrupt that may be for the port, and with its state.
pub const PORT_EVENTS: WordIndex = WordIndex(34);

/// The error ring.
pub const ERRORS: WordIndex = WordIndex(256);
/// Records of the error ring.
pub const ERROR_RECORDS: u32 = 32;
/// Words of an error record.
pub const ERROR_WORDS: usize = 8;
/// The reply slots.
pub const REPLIES: WordIndex = WordIndex(512);
/// Reply slots of a port.
pub const REPLY_SLOTS: u16 = 64;
/// Words of a reply slot.
pub const REPLY_WORDS: usize = 8;
/// Shadow signal counters of notifications 0..1024.
pub const SHADOW_SIGNALS: WordIndex = WordIndex(1024);
/// The notification queue: one word, the notification number, per entry.
pub const NOTIFICATIONS: WordIndex = WordIndex(2048);
/// The records of the port's shared queue: two words each ([`crate::shared_queue`]).
pub const QUEUE_RECORDS: WordIndex = WordIndex(4096);
/// Records of a shared queue.
pub const RECORDS_OF_QUEUE: u32 = 1024;

/// How often the NIC refreshes a shadow counter unasked (thesis 5.3.1).
pub const SHADOW_STEP: u32 = 32;

/// What the NIC tells the application about an operation that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorRecord {
    /// The operation.
    pub op: OpId,
    /// Why it failed.
    pub status: Status,
    /// Where it was going.
    pub node: NodeId,
    /// The port there.
    pub port: PortId,
    /// The stream's epoch in which it was posted.
    pub epoch: Epoch,
    /// The remote (or refused local) address.
    pub address: VirtAddr,
}

impl ErrorRecord {
    /// As words of the ring.
    #[must_use]
    pub const fn encode(&self) -> [u32; ERROR_WORDS] {
        let [low, high] = split(self.address.0);
        let place = self.node.0 as u32 | ((self.port.0 as u32) << 16);
        let what = self.status.code() as u32 | ((self.epoch.0 as u32) << 16);
        [self.op.0, what, place, low, high, 0, 0, 0]
    }

    /// From words of the ring.
    #[must_use]
    pub const fn decode(words: [u32; ERROR_WORDS]) -> Self {
        Self {
            op: OpId(words[0]),
            status: Status::from_code(words[1] as u8),
            epoch: Epoch((words[1] >> 16) as u16),
            node: NodeId(words[2] as u16),
            port: PortId((words[2] >> 16) as u16),
            address: VirtAddr(join(words[3], words[4])),
        }
    }
}

/// The result of a read, flush or atomic that asked for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The operation; written last, so that a record with the right number is whole.
    pub op: OpId,
    /// How it ended.
    pub status: Status,
    /// The old value of an atomic; the failing operation of a flush.
    pub value: u64,
    /// The second value of an extended atomic.
    pub second: u64,
}

/// Word of reply slot `slot` in a port area.
#[must_use]
pub const fn reply_at(slot: u16) -> WordIndex {
    REPLIES.plus(slot as u32 * REPLY_WORDS as u32)
}

impl Reply {
    /// Writes the record (NIC); the operation number is published last.
    pub fn store<W: SharedWords>(&self, area: &W, slot: u16) {
        let at = reply_at(slot);
        let [low, high] = split(self.value);
        let second = split(self.second);
        let status = u32::from(self.status.code());
        area.store_slice(at.plus(1), &[status, low, high, second[0], second[1]]);
        area.store_release(at, self.op.0);
    }

    /// The record, if operation `op` has ended (library).
    pub fn load<W: SharedWords>(area: &W, slot: u16, op: OpId) -> Option<Self> {
        let at = reply_at(slot);
        if area.load_acquire(at) != op.0 {
            return None;
        }
        Some(Self {
            op,
            status: Status::from_code(area.load_acquire(at.plus(1)) as u8),
            value: area.load_pair(at.plus(2)),
            second: area.load_pair(at.plus(4)),
        })
    }
}
