//! Memory for large transfers, in pieces.

use crate::engine::Engine;
use crossbeam_queue::SegQueue;
use netvm::{Region, RegionSlice};
use std::io;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A region, cut into pieces of one size.
pub(crate) struct Area {
    region: Region,
    free: SegQueue<u32>,
    pieces: u32,
    bytes: u32,
    /// Pieces in use.
    used: AtomicU32,
    /// The network waits for a piece.
    wanted: AtomicBool,
    engine: Weak<Engine>,
}

impl Area {
    pub(crate) fn new(region: Region, pieces: u32, bytes: u32, engine: Weak<Engine>) -> Arc<Self> {
        let free = SegQueue::new();
        (0..pieces).for_each(|piece| free.push(piece));
        Arc::new(Self {
            region,
            free,
            pieces,
            bytes,
            used: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
            engine,
        })
    }

    pub(crate) const fn piece_bytes(&self) -> u32 {
        self.bytes
    }

    pub(crate) const fn pieces(&self) -> u32 {
        self.pieces
    }

    /// Whether more than three quarters of it are in use.
    pub(crate) fn is_scarce(&self) -> bool {
        self.free() < self.pieces.div_ceil(4)
    }

    /// Pieces that are not in use.
    pub(crate) fn free(&self) -> u32 {
        self.pieces.saturating_sub(self.used.load(Ordering::Acquire))
    }

    /// A free piece.
    pub(crate) fn take(&self) -> Option<u32> {
        let piece = self.free.pop();
        if piece.is_some() {
            self.used.fetch_add(1, Ordering::AcqRel);
        }
        piece
    }

    /// The network is called when a piece comes back.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    /// Takes a piece back. A peer that gives back what it does not have changes nothing once all are there.
    pub(crate) fn give(&self, piece: u32) {
        let fewer = |used: u32| used.checked_sub(1);
        let given = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
        if given.is_ok() {
            self.free.push(piece);
        }
    }

    pub(crate) fn offset(&self, piece: u32) -> u64 {
        u64::from(piece) * u64::from(self.bytes)
    }

    pub(crate) const fn region(&self) -> &Region {
        &self.region
    }
}

/// Bytes that lie in a piece, which is free again when this goes.
pub(crate) struct Landed {
    area: Arc<Area>,
    piece: u32,
    len: u32,
}

impl Landed {
    /// The piece was taken, and is this one's from now on.
    pub(crate) const fn new(area: Arc<Area>, piece: u32, len: u32) -> Self {
        Self { area, piece, len }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    /// A part of it, for a read to go to.
    pub(crate) fn part(&self, offset: u32, len: u32) -> netvm::Result<RegionSlice> {
        let start = self.area.offset(self.piece) + u64::from(offset);
        self.area.region.slice(start..start + u64::from(len))
    }

    pub(crate) fn read_into(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        let at = self.area.offset(self.piece) + offset as u64;
        self.area
            .region
            .read_into(at, into)
            .map_err(|error| crate::error::library("bytes that have arrived cannot be read", error))
    }
}

impl Drop for Landed {
    fn drop(&mut self) {
        self.area.give(self.piece);
        if self.area.wanted.swap(false, Ordering::AcqRel)
            && let Some(engine) = self.area.engine.upgrade()
        {
            engine.drive();
        }
    }
}
