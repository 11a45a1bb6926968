//! A shared receive queue: many senders append to it, and the receiver's NIC gives out the places.
//!
//! An append is a write without an address. The NIC that it arrives at gives it the next place of the queue, writes
//! it there as any other write, and then stores a [`Record`] of the place into the port's area. Records of
//! different senders may become valid in another order than places were given out; the receiver takes them in the
//! order of places, and gives back how many it is done with in [`QUEUE_FREED`].
//!
//! The steps on shared words are here, apart from NIC and library, so that a model checker runs what ships.

use crate::bar::port::QUEUE_FREED;
use crate::port_area::{QUEUE_RECORDS, RECORDS_OF_QUEUE};
use crate::status::Status;
use crate::units::{NodeId, NotificationId, PortId, VirtAddr, WordIndex};
use crate::words::SharedWords;

/// Most places of a queue, and records in a port's area.
pub const MOST_PLACES: u32 = RECORDS_OF_QUEUE;
/// Smallest entry: log2 of its bytes.
pub const SMALLEST_ENTRY: u8 = 3;
/// Largest entry, a page: log2 of its bytes.
pub const LARGEST_ENTRY: u8 = 12;
/// Words of a record.
pub const RECORD_WORDS: u32 = 2;

/// What an export says of the queue in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueueShape {
    /// Log2 of an entry's bytes; 0: there is no queue.
    pub entry: u8,
    /// The event count that is raised for each entry: the receiver's choice, so that no sender can leave it asleep.
    /// 0: none.
    pub number: u16,
}

impl QueueShape {
    /// No queue.
    pub const NONE: Self = Self { entry: 0, number: 0 };

    /// As a word.
    #[must_use]
    #[inline]
    pub const fn word(self) -> u32 {
        self.entry as u32 | ((self.number as u32) << 16)
    }

    /// From a word.
    #[must_use]
    #[inline]
    pub const fn from_word(word: u32) -> Self {
        Self {
            entry: word as u8,
            number: (word >> 16) as u16,
        }
    }

    /// Whether there is a queue.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.entry != 0
    }

    /// The event count.
    #[must_use]
    pub const fn notification(self) -> NotificationId {
        NotificationId(self.number as u32)
    }

    /// Bytes of an entry.
    #[must_use]
    pub const fn entry_bytes(self) -> u32 {
        1u32.wrapping_shl(self.entry as u32)
    }

    /// The queue in `start..end`, if entries of this shape fill it: each inside of a page, and a power of two of them.
    #[must_use]
    pub fn places(self, start: VirtAddr, end: VirtAddr) -> Option<Places> {
        if !(SMALLEST_ENTRY..=LARGEST_ENTRY).contains(&self.entry) {
            return None;
        }
        let len = end.0.checked_sub(start.0)?;
        let capacity = u32::try_from(len >> self.entry).ok()?;
        let fits = capacity.is_power_of_two()
            && capacity <= MOST_PLACES
            && u64::from(capacity) << self.entry == len
            && start.0.is_multiple_of(u64::from(self.entry_bytes()));
        fits.then_some(Places {
            start,
            capacity,
            entry: self.entry,
        })
    }
}

/// Where the entries of a queue are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    start: VirtAddr,
    capacity: u32,
    entry: u8,
}

impl Places {
    /// How many there are: a power of two.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The address of a place: inside of the queue, whatever its number.
    #[must_use]
    #[inline]
    pub const fn address(&self, place: u32) -> VirtAddr {
        VirtAddr(
            self.start
                .0
                .wrapping_add(((place & (self.capacity - 1)) as u64) << self.entry),
        )
    }
}

/// The NIC's state of a port's queue: 8 bytes.
///
/// `freed` belongs to the receiver. The NIC keeps what it saw last and looks again only when that says that the
/// queue is full. An old value is always too low, so it only refuses more than it must. A receiver that
/// stores an impossible value harms only its own places: they are given out twice, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    tail: u32,
    freed: u32,
}

impl Cursor {
    /// The next place of a queue of `capacity` places, or nothing when it is full. `block` is where the port's block
    /// starts.
    ///
    /// The load acquires: what the receiver read of a place that it has freed was read before the NIC writes there.
    #[inline]
    pub fn take<W: SharedWords + ?Sized>(&mut self, bar: &W, block: WordIndex, capacity: u32) -> Option<u32> {
        if self.tail.wrapping_sub(self.freed) >= capacity {
            self.freed = bar.load_acquire(block.plus(QUEUE_FREED.0));
            if self.tail.wrapping_sub(self.freed) >= capacity {
                return None;
            }
        }
        let place = self.tail;
        self.tail = place.wrapping_add(1);
        Some(place)
    }

    /// Places given out so far, modulo 2^32.
    #[must_use]
    pub const fn tail(&self) -> u32 {
        self.tail
    }
}

/// Gives back all places before `freed` (receiver). The store releases: reads of those places come before it.
#[inline]
pub fn free<W: SharedWords + ?Sized>(block: &W, freed: u32) {
    block.store_release(QUEUE_FREED, freed);
}

/// What became of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// [`Status::Ok`]: a message lies there. Anything else: the place is to be skipped.
    pub status: Status,
    /// Bytes of the message.
    pub len: u16,
    /// The sender.
    pub node: NodeId,
    /// From which port.
    pub port: PortId,
}

/// Where the record of a place is, in a port's area.
#[must_use]
#[inline]
pub const fn record_at(place: u32) -> WordIndex {
    QUEUE_RECORDS.plus((place % RECORDS_OF_QUEUE) * RECORD_WORDS)
}

/// Which use of its place a record is of: it differs from that of the use before, and is not 0 for the first one.
const fn lap(place: u32) -> u32 {
    (place / RECORDS_OF_QUEUE + 1) & 0xFF
}

impl Record {
    /// Stores the record (NIC), when what it speaks of is visible. The word with the lap comes last, with
    /// release: a reader that sees it sees the other word and the message. `area` is where the port's area starts.
    pub fn store<W: SharedWords + ?Sized>(&self, shared: &W, area: WordIndex, place: u32) {
        let at = area.plus(record_at(place).0);
        shared.store_release(at.plus(1), self.node.0 as u32 | ((self.port.0 as u32) << 16));
        let word = self.len as u32 | ((self.status.code() as u32) << 16) | (lap(place) << 24);
        shared.store_release(at, word);
    }

    /// The record of a place, if it has been stored (receiver). `area` begins with the port's area.
    #[must_use]
    pub fn load<W: SharedWords + ?Sized>(area: &W, place: u32) -> Option<Self> {
        let at = record_at(place);
        let word = area.load_acquire(at);
        if word >> 24 != lap(place) {
            return None;
        }
        // The NIC stores to it again only when this place has been freed.
        let source = area.load_acquire(at.plus(1));
        Some(Self {
            status: Status::from_code((word >> 16) as u8),
            len: word as u16,
            node: NodeId(source as u16),
            port: PortId((source >> 16) as u16),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port_area::AREA_WORDS;
    use core::sync::atomic::AtomicU32;

    fn shape(entry: u8) -> QueueShape {
        QueueShape { entry, number: 7 }
    }

    #[test]
    fn only_whole_powers_of_two_inside_of_pages_are_queues() {
        let places = |entry, start, len| shape(entry).places(VirtAddr(start), VirtAddr(start + len));
        assert_eq!(places(6, 0x1040, 0x100).map(|p| p.capacity()), Some(4));
        assert_eq!(places(12, 0x1000, 0x1000).map(|p| p.capacity()), Some(1));
        assert_eq!(places(3, 0, 8 * 1024).map(|p| p.capacity()), Some(1024));
        for (entry, start, len) in [
            (2, 0, 64),
            (13, 0, 1 << 14),
            (0, 0, 64),
            (64, 0, 64),
            (255, 0, 64),
            (6, 0x1020, 0x100),
            (6, 0, 0xC0),
            (6, 0, 0x11F),
            (6, 0, 0),
            (3, 0, 16 * 1024),
        ] {
            assert_eq!(places(entry, start, len), None, "{entry} {start} {len}");
        }
        assert_eq!(shape(6).places(VirtAddr(64), VirtAddr(0)), None);
    }

    #[test]
    fn every_place_lies_inside_of_the_queue() {
        let places = shape(6).places(VirtAddr(0x1040), VirtAddr(0x1140)).unwrap();
        assert_eq!(places.address(0).0, 0x1040);
        assert_eq!(places.address(3).0, 0x1100);
        assert_eq!(places.address(4).0, 0x1040);
        assert_eq!(places.address(u32::MAX).0, 0x1100);
    }

    #[test]
    fn a_cursor_gives_out_what_was_freed_across_the_wrap() {
        let block: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
        let block = &block[..];
        let first = u32::MAX - 2;
        let mut cursor = Cursor {
            tail: first,
            freed: first,
        };
        free(block, first);
        let taken: [_; 5] = core::array::from_fn(|_| cursor.take(block, WordIndex(0), 4));
        assert_eq!(
            taken,
            [Some(first), Some(first + 1), Some(first + 2), Some(0), None]
        );
        free(block, first + 1);
        assert_eq!(cursor.take(block, WordIndex(0), 4), Some(1));
        assert_eq!(cursor.take(block, WordIndex(0), 4), None);
        // Freed what was never given out: nothing more is given out.
        free(block, 77);
        assert_eq!(cursor.take(block, WordIndex(0), 4), None);
        free(block, 1);
        assert_eq!(cursor.take(block, WordIndex(0), 4), Some(2));
    }

    #[test]
    fn a_record_is_found_by_its_own_lap_alone() {
        let area = [const { AtomicU32::new(0) }; AREA_WORDS as usize];
        let area = &area[..];
        let record = Record {
            status: Status::NoMemory,
            len: 4096,
            node: NodeId(0xABCD),
            port: PortId(0x1234),
        };
        for place in [0, 1, 1023, 1024, 255 * 1024, 256 * 1024, u32::MAX] {
            assert_eq!(Record::load(area, place), None, "{place}");
            record.store(area, WordIndex(0), place);
            assert_eq!(Record::load(area, place), Some(record), "{place}");
            assert_eq!(Record::load(area, place.wrapping_add(1024)), None, "{place}");
        }
    }
}
