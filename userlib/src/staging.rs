//! The port-owned region through which bytes pass that the card cannot reach where they are.
//!
//! A ring of chunks. A chunk begins at the same offset in its page as its other end does, so that a
//! staged transfer is cut into no more messages than a zero-copy one. Bytes are copied while no lock
//! is held, because touching the region may park.

use crate::error::{Error, Result};
use crate::port::PortInner;
use crate::posting::Posted;
use crate::region::Region;
use netvm_abi::{PAGE_SIZE, PageOffset, VirtAddr};
use std::collections::VecDeque;

const PAGE: u64 = PAGE_SIZE as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A caller copies into it, or waits for a read.
    Busy,
    /// Free once this write message is done.
    Until(u64),
    Free,
}

/// The ring. Positions count bytes since it was empty last.
#[derive(Debug)]
pub(crate) struct Staging {
    size: u64,
    region: Option<Region>,
    head: u64,
    tail: u64,
    next_id: u64,
    /// In order of position: its number, where it ends, what it is for.
    chunks: VecDeque<(u64, u64, State)>,
}

/// What a reservation came to.
enum Room {
    /// Chunk number and its offset in the region.
    At(u64, u64),
    /// The oldest chunk is in the way.
    Behind(State),
}

impl Staging {
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            size: bytes.clamp(4 * PAGE, 1 << 30).next_multiple_of(PAGE),
            region: None,
            head: 0,
            tail: 0,
            next_id: 0,
            chunks: VecDeque::new(),
        }
    }

    /// Most bytes of a chunk: two fit, whatever their page offsets.
    const fn largest(&self) -> u64 {
        self.size / 2 - PAGE
    }

    /// The region, for the closing port to drop.
    pub(crate) fn take(&mut self) -> Option<Region> {
        self.region.take()
    }

    /// Finds room for `len` bytes at this offset in a page. Writes up to `done` are done.
    fn reserve(&mut self, len: u64, offset: PageOffset, done: u64) -> Room {
        while let Some(&(_, end, state)) = self.chunks.front() {
            let ended = match state {
                State::Busy => false,
                State::Until(number) => number <= done,
                State::Free => true,
            };
            if !ended {
                break;
            }
            self.tail = end;
            self.chunks.pop_front();
        }
        if self.chunks.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
        let skip = u64::from(offset.0).wrapping_sub(self.head) % PAGE;
        let mut start = self.head + skip;
        if start % self.size + len > self.size {
            start = start.next_multiple_of(self.size) + u64::from(offset.0);
        }
        if start + len - self.tail > self.size {
            return Room::Behind(self.chunks.front().map_or(State::Free, |chunk| chunk.2));
        }
        self.next_id += 1;
        self.head = start + len;
        self.chunks.push_back((self.next_id, self.head, State::Busy));
        Room::At(self.next_id, start % self.size)
    }

    fn set(&mut self, id: u64, state: State) {
        if let Some(chunk) = self.chunks.iter_mut().find(|chunk| chunk.0 == id) {
            chunk.2 = state;
        }
    }
}

/// A piece of the staging region, of the caller's alone. Free again when it is dropped, or, once
/// [`given`](Chunk::given), when the write from it is done.
pub(crate) struct Chunk<'a> {
    port: &'a PortInner,
    id: u64,
    then: State,
    pub(crate) region: Region,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Chunk<'_> {
    /// The address of its byte `at`.
    pub(crate) fn address(&self, at: u64) -> VirtAddr {
        let start = self.region.address().0.wrapping_add(self.offset);
        VirtAddr(start.wrapping_add(at))
    }

    /// It was given to writes, and this is what came of posting them.
    pub(crate) fn given(mut self, posted: Result<Posted>) -> Result<Posted> {
        self.then = match &posted {
            Ok(posted) => State::Until(posted.number),
            // Nothing was posted.
            Err(Error::NoRoom { .. } | Error::MessageTooLong { .. }) => State::Free,
            // Some of them may have been.
            Err(_) => State::Until(self.port.poster().writes()),
        };
        posted
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        self.port.staging.lock().set(self.id, self.then);
    }
}

impl PortInner {
    /// A chunk for up to `len` bytes of a transfer whose other end has this page offset. Waits for
    /// room; so the caller must have no other chunk, or two callers could wait for each other.
    pub(crate) fn stage(&self, len: u64, offset: PageOffset) -> Result<Chunk<'_>> {
        let mut spins = 0;
        loop {
            self.alive()?;
            match self.try_stage(len, offset)? {
                Ok(chunk) => return Ok(chunk),
                Err(State::Until(number)) => self.wait_writes(number)?,
                Err(State::Busy | State::Free) => {
                    self.backend.relax(spins);
                    spins = spins.saturating_add(1);
                }
            }
        }
    }

    /// As [`stage`](Self::stage), but gives up when there is no room, and says what is in the way.
    pub(crate) fn try_stage(
        &self,
        len: u64,
        offset: PageOffset,
    ) -> Result<std::result::Result<Chunk<'_>, State>> {
        let region = self.staging_region()?;
        let done = self.poster().writes_done(&self.area);
        let (len, room) = {
            let mut staging = self.staging.lock();
            let len = len.min(staging.largest());
            (len, staging.reserve(len, offset, done))
        };
        Ok(match room {
            Room::Behind(state) => Err(state),
            Room::At(id, offset) => Ok(Chunk {
                port: self,
                id,
                then: State::Free,
                region,
                offset,
                len,
            }),
        })
    }

    /// Most bytes of a chunk.
    pub(crate) fn largest_chunk(&self) -> u64 {
        self.staging.lock().largest()
    }

    /// How many bytes it has, or will have.
    pub(crate) fn staging_size(&self) -> u64 {
        self.staging.lock().size
    }

    /// Gives it its region, before it has made one.
    pub(crate) fn give_staging(&self, region: Region) {
        let mut made = Some(region);
        let mut staging = self.staging.lock();
        if staging.region.is_none() {
            staging.region = made.take();
        }
        drop(staging);
        // Regions may park when they are dropped: after the lock.
        drop(made);
    }

    fn staging_region(&self) -> Result<Region> {
        let size = {
            let staging = self.staging.lock();
            if let Some(region) = &staging.region {
                return Ok(region.clone());
            }
            staging.size
        };
        // Allocation may park, so two threads may both get here: the second's goes back.
        let mut made = Some(self.alloc(size)?);
        let region = {
            let mut staging = self.staging.lock();
            if staging.region.is_none() {
                staging.region = made.take();
            }
            staging.region.clone()
        };
        drop(made);
        region.ok_or(Error::PortClosed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_never_overlap_and_keep_their_page_offset(
            asks in proptest::collection::vec((1u64..60_000, 0u16..4096, 0usize..4), 1..200),
        ) {
            let mut staging = Staging::new(64 << 10);
            let mut live: VecDeque<(u64, u64, u64)> = VecDeque::new();
            for (len, offset, keep) in asks {
                let len = len.min(staging.largest());
                let mut tries = 0;
                loop {
                    match staging.reserve(len, PageOffset(offset), 0) {
                        Room::At(id, start) => {
                            prop_assert_eq!(start % PAGE, u64::from(offset));
                            prop_assert!(start + len <= staging.size);
                            for &(_, other, other_len) in &live {
                                prop_assert!(start + len <= other || other + other_len <= start);
                            }
                            live.push_back((id, start, len));
                            break;
                        }
                        Room::Behind(_) => {
                            tries += 1;
                            prop_assert!(tries < 100);
                            let Some((id, ..)) = live.pop_front() else {
                                return Err(TestCaseError::fail("an empty ring refused"));
                            };
                            staging.set(id, State::Free);
                        }
                    }
                }
                while live.len() > keep {
                    let Some((id, ..)) = live.pop_front() else { break };
                    staging.set(id, State::Free);
                }
            }
        }
    }

    #[test]
    fn a_chunk_is_free_when_its_write_is_done() {
        let mut staging = Staging::new(16 << 10);
        let Room::At(first, _) = staging.reserve(4096, PageOffset(0), 0) else {
            panic!("no room in an empty ring");
        };
        staging.set(first, State::Until(5));
        let mut others = 0;
        while let Room::At(..) = staging.reserve(4096, PageOffset(0), 4) {
            others += 1;
        }
        assert_eq!(others, 3);
        assert!(matches!(
            staging.reserve(4096, PageOffset(0), 4),
            Room::Behind(State::Until(5))
        ));
        assert!(matches!(staging.reserve(4096, PageOffset(0), 5), Room::At(_, 0)));
    }

    #[test]
    fn a_chunk_stays_free_however_many_writes_come_after_it() {
        let mut staging = Staging::new(16 << 10);
        for _ in 0..4 {
            let Room::At(id, _) = staging.reserve(4096, PageOffset(0), 0) else {
                panic!("no room in an empty ring");
            };
            staging.set(id, State::Until(5));
        }
        for done in [5, 1 << 31, (1 << 31) + 6, (1 << 32) + 4] {
            let room = staging.reserve(4096, PageOffset(0), done);
            let Room::At(id, _) = room else {
                panic!("no room after {done} writes");
            };
            staging.set(id, State::Until(5));
        }
    }
}
