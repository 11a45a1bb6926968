//! A port's command queue: one producer (the library), one consumer (the NIC), 64 entries.
//!
//! Ordering: the producer writes an entry, then releases the doorbell word; the consumer acquires
//! the doorbell word, then copies the entry. An entry is written again only after the shadow
//! counter [`TAKEN`](crate::port_area::TAKEN), released by the NIC after its copy, says that it
//! was taken. The doorbell word counts commands, modulo 2^32, so that none is lost between polls.

use crate::bar::port::{COMMANDS, DOORBELL};
use crate::body::Owner;
use crate::descriptor::{DESCRIPTOR_WORDS, HEAD_WORDS, QUEUE_ENTRIES};
use crate::short_write::ShortWrite;
use crate::units::{NodeId, PortId, WordIndex};
use crate::words::SharedWords;
use core::sync::atomic::{Ordering, fence};

const fn entry(index: u32) -> WordIndex {
    COMMANDS.plus((index % QUEUE_ENTRIES) * DESCRIPTOR_WORDS as u32)
}

/// Words of an entry where every access is an act of its own.
#[cold]
#[inline(never)]
fn copied<W: SharedWords, const N: usize>(block: W, at: WordIndex) -> [u32; N] {
    let mut words = [0; N];
    block.load_slice(at, &mut words);
    words
}

/// The library's end. All words are relative to the port's block.
#[derive(Clone, Copy, Debug)]
pub struct Producer {
    /// Whole, so that what is kept of a command says for ever which one it was.
    posted: u64,
    /// Where `posted` stands when no entry is free, as far as this end knows.
    full_at: u32,
}

impl Default for Producer {
    fn default() -> Self {
        Self::starting_at(0)
    }
}

impl Producer {
    /// The end of an empty queue whose counters stand at `count`: 0 for a new port. A library that is given a
    /// port whose block is not all zeroes starts where the doorbell word stands.
    #[must_use]
    pub const fn starting_at(count: u32) -> Self {
        Self {
            posted: count as u64,
            full_at: count.wrapping_add(QUEUE_ENTRIES),
        }
    }

    /// Commands posted so far, modulo 2^32.
    #[must_use]
    #[inline]
    pub const fn posted(&self) -> u32 {
        self.posted as u32
    }

    /// Commands posted so far, counted on from where this end [started](Self::starting_at).
    #[must_use]
    #[inline]
    pub const fn commands(&self) -> u64 {
        self.posted
    }

    /// Entries that are free as far as this end knows.
    #[must_use]
    #[inline]
    pub const fn free(&self) -> u32 {
        self.full_at.wrapping_sub(self.posted())
    }

    /// Learns how many commands the NIC has taken; a number that cannot be is ignored.
    #[inline]
    pub const fn update_taken(&mut self, taken: u32) {
        if self.posted().wrapping_sub(taken) <= QUEUE_ENTRIES {
            self.full_at = taken.wrapping_add(QUEUE_ENTRIES);
        }
    }

    /// Writes an entry and rings the doorbell. Returns false, and does nothing, when the queue is
    /// full. `inline` beyond the entry's room is cut off.
    pub fn post<W: SharedWords + ?Sized>(
        &mut self,
        block: &W,
        head: &[u32; HEAD_WORDS],
        inline: &[u32],
    ) -> bool {
        if self.free() == 0 {
            return false;
        }
        let at = entry(self.posted());
        block.store_slice(at, head);
        if !inline.is_empty() {
            let room = DESCRIPTOR_WORDS - HEAD_WORDS;
            block.store_slice(at.plus(HEAD_WORDS as u32), inline.get(..room).unwrap_or(inline));
        }
        self.ring(block, self.posted + 1);
        true
    }

    /// Rings the doorbell: so many [commands](Self::commands) have been posted. For a caller that has found an entry
    /// [`free`](Self::free) and written it in its own way, and so counts one more.
    #[inline]
    pub fn ring<W: SharedWords + ?Sized>(&mut self, block: &W, commands: u64) {
        self.posted = commands;
        block.store_release(DOORBELL, commands as u32);
    }
}

/// What the consumer found behind the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Nothing new.
    Empty,
    /// This many commands wait.
    Pending(u32),
    /// The word is not a count that this queue could have reached: more than 64 past the last.
    Broken,
}

/// The NIC's end. All words are relative to the port's block.
#[derive(Clone, Copy, Debug, Default)]
pub struct Consumer {
    taken: u32,
}

impl Consumer {
    /// The end of an empty queue whose counters stand at `count`; as [`Producer::starting_at`].
    #[must_use]
    pub const fn starting_at(count: u32) -> Self {
        Self { taken: count }
    }

    /// Commands taken so far, modulo 2^32.
    #[must_use]
    pub const fn taken(&self) -> u32 {
        self.taken
    }

    /// Looks at the doorbell word.
    #[inline]
    pub fn poll<W: SharedWords + ?Sized>(&self, block: &W) -> Doorbell {
        self.compare(block.load_acquire(DOORBELL))
    }

    /// The same for a doorbell word that has been loaded (with acquire).
    #[must_use]
    #[inline]
    pub const fn compare(&self, doorbell: u32) -> Doorbell {
        match doorbell.wrapping_sub(self.taken) {
            0 => Doorbell::Empty,
            pending @ 1..=QUEUE_ENTRIES => Doorbell::Pending(pending),
            _ => Doorbell::Broken,
        }
    }

    /// Copies the head of the next entry, once. Call only when commands are pending.
    #[inline(always)]
    pub fn copy_head<W: SharedWords + ?Sized>(&self, block: &W, head: &mut [u32; HEAD_WORDS]) {
        let at = entry(self.taken);
        let words = block.atomics(at, HEAD_WORDS as u32);
        let Some(words) = words.and_then(<[_]>::first_chunk::<HEAD_WORDS>) else {
            *head = copied(block, at);
            return;
        };
        for (to, from) in head.iter_mut().zip(words) {
            *to = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
    }

    /// Copies the next entry, each word once, if it is a [short write](ShortWrite) of `from`. Nothing for all others:
    /// what they are is found in a copy of their own. Call only when commands are pending.
    #[inline(always)]
    pub fn copy_short_write<W: SharedWords + Copy>(
        &self,
        block: W,
        from: (NodeId, PortId),
        owner: Owner,
    ) -> Option<ShortWrite> {
        let at = entry(self.taken);
        let words = block.atomics(at, ShortWrite::WORDS as u32);
        let Some(words) = words.and_then(<[_]>::first_chunk::<{ ShortWrite::WORDS }>) else {
            let words: [u32; ShortWrite::WORDS] = copied(block, at);
            return ShortWrite::of(words[0], |at| words[at], from, owner);
        };
        let load = |at: usize| words[at].load(Ordering::Relaxed);
        let write = ShortWrite::of(load(0), load, from, owner);
        fence(Ordering::Acquire);
        write
    }

    /// Copies inline payload of the next entry, once; `into` beyond the entry's room stays as it is.
    #[inline(always)]
    pub fn copy_inline<W: SharedWords + ?Sized>(&self, block: &W, into: &mut [u32]) {
        let room = (DESCRIPTOR_WORDS - HEAD_WORDS).min(into.len());
        if let Some(into) = into.get_mut(..room) {
            block.load_slice(entry(self.taken).plus(HEAD_WORDS as u32), into);
        }
    }

    /// The next entry has been copied.
    #[inline]
    pub const fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }
}
