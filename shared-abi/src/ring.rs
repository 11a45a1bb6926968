//! Event rings between host driver and NIC: one writer, one reader, eight-word entries.
//!
//! Entries and tail lie where the writer can post them, the head where the reader can: so each
//! word has one owner, and neither side reads across the bus to find the ring empty or not full.
//!
//! Ordering: the writer stores an entry, then releases the tail; the reader acquires the tail,
//! copies the entry, then releases the head; the writer acquires the head before it writes an
//! entry again.

use crate::event::EVENT_WORDS;
use crate::units::WordIndex;
use crate::words::SharedWords;

/// Where a ring lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// First entry, in the writer's target space.
    pub entries: WordIndex,
    /// Number of entries, a power of two.
    pub count: u32,
    /// Tail word, in the same space.
    pub tail: WordIndex,
    /// Head word, in the space that the reader writes to.
    pub head: WordIndex,
}

impl RingPlace {
    /// The ring from NIC to host: entries and tail in shared host memory, head in the BAR.
    #[must_use]
    pub const fn nic_events(geometry: &crate::Geometry) -> Self {
        Self {
            entries: crate::shared_map::SharedMap::new(geometry).nic_events,
            count: geometry.ring_entries(),
            tail: crate::shared_map::status_page::NIC_EVENT_TAIL,
            head: crate::bar::header::NIC_EVENT_HEAD,
        }
    }

    /// The ring from host to NIC: entries and tail in the BAR, head in shared host memory.
    #[must_use]
    pub const fn host_events(geometry: &crate::Geometry) -> Self {
        Self {
            entries: crate::bar::BarMap::new(geometry).host_events,
            count: geometry.ring_entries(),
            tail: crate::bar::header::HOST_EVENT_TAIL,
            head: crate::shared_map::status_page::HOST_EVENT_HEAD,
        }
    }

    const fn entry(&self, index: u32) -> WordIndex {
        self.entries.plus((index & (self.count - 1)) * EVENT_WORDS as u32)
    }
}

/// The writing end.
#[derive(Clone, Copy, Debug)]
pub struct RingWriter {
    place: RingPlace,
    tail: u32,
    head: u32,
}

impl RingWriter {
    /// An empty ring's writing end.
    #[must_use]
    pub const fn new(place: RingPlace) -> Self {
        Self {
            place,
            tail: 0,
            head: 0,
        }
    }

    /// Whether fewer entries than this wait, as far as the reader has told.
    pub fn has_fewer_than<H: SharedWords + ?Sized>(&mut self, heads: &H, count: u32) -> bool {
        if self.tail.wrapping_sub(self.head) >= count {
            self.head = heads.load_acquire(self.place.head);
        }
        self.tail.wrapping_sub(self.head) < count
    }

    /// Adds an entry. Returns false, and does nothing, when the ring is full.
    pub fn push<E, H>(&mut self, entries: &E, heads: &H, event: &[u32; EVENT_WORDS]) -> bool
    where
        E: SharedWords + ?Sized,
        H: SharedWords + ?Sized,
    {
        if self.tail.wrapping_sub(self.head) >= self.place.count {
            let head = heads.load_acquire(self.place.head);
            if self.tail.wrapping_sub(head) >= self.place.count {
                return false;
            }
            self.head = head;
        }
        entries.store_slice(self.place.entry(self.tail), event);
        self.tail = self.tail.wrapping_add(1);
        entries.store_release(self.place.tail, self.tail);
        true
    }
}

/// The reading end.
#[derive(Clone, Copy, Debug)]
pub struct RingReader {
    place: RingPlace,
    head: u32,
}

impl RingReader {
    /// An empty ring's reading end.
    #[must_use]
    pub const fn new(place: RingPlace) -> Self {
        Self { place, head: 0 }
    }

    /// Whether no entry waits.
    #[inline]
    pub fn is_empty<E: SharedWords + ?Sized>(&self, entries: &E) -> bool {
        entries.load_acquire(self.place.tail) == self.head
    }

    /// Takes an entry, if there is one. A tail that no writer could have reached (a dead card reads
    /// as all ones) counts as empty.
    pub fn pop<E, H>(&mut self, entries: &E, heads: &H) -> Option<[u32; EVENT_WORDS]>
    where
        E: SharedWords + ?Sized,
        H: SharedWords + ?Sized,
    {
        let waiting = entries.load_acquire(self.place.tail).wrapping_sub(self.head);
        if waiting == 0 || waiting > self.place.count {
            return None;
        }
        let mut event = [0; EVENT_WORDS];
        entries.load_slice(self.place.entry(self.head), &mut event);
        self.head = self.head.wrapping_add(1);
        heads.store_release(self.place.head, self.head);
        Some(event)
    }
}
