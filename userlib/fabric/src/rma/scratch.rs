//! Places for what short reads bring.
//!
//! The card reaches memory of `alloc`'s by itself, and a program's by way of a page of its own and a worker. So what a short read brings
//! comes to a place here, and is copied when it is there.

use netvm::{Port, Region, RegionSlice};
use parking_lot::Mutex;

use crate::buffer::Buffer;

/// Bytes of a place.
pub(crate) const PLACE: usize = 4096;
const PLACES: u16 = 64;

/// The places of a domain.
pub(crate) struct Scratch {
    memory: Region,
    free: Mutex<Vec<u16>>,
}

/// A place that a read was given. One that is dropped is not used again: something may still come to it.
#[derive(Debug)]
pub(crate) struct Place(u16);

impl Place {
    const fn start(&self) -> u64 {
        self.0 as u64 * PLACE as u64
    }
}

impl Scratch {
    /// Makes them, of a port's memory.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn new(port: &Port) -> netvm::Result<Self> {
        Ok(Self {
            memory: port.alloc(u64::from(PLACES) * PLACE as u64)?,
            free: Mutex::new((0..PLACES).rev().collect()),
        })
    }

    /// All of them.
    pub(crate) const fn memory(&self) -> &Region {
        &self.memory
    }

    /// A place, if one is free.
    pub(crate) fn take(&self) -> Option<Place> {
        self.free.lock().pop().map(Place)
    }

    /// So much of a place, for a read.
    ///
    /// # Errors
    /// It has not so many bytes.
    pub(crate) fn room(&self, place: &Place, len: usize) -> netvm::Result<RegionSlice> {
        self.memory.slice(place.start()..place.start() + len as u64)
    }

    /// Copies what has come.
    ///
    /// # Errors
    /// The memory is gone.
    pub(crate) fn copy(&self, place: &Place, into: &Buffer) -> netvm::Result<()> {
        into.scatter(0, into.len(), |at, piece| {
            self.memory.read_into(place.start() + at as u64, piece)
        })
    }

    /// Nothing comes to this place any more.
    pub(crate) fn give(&self, place: Place) {
        self.free.lock().push(place.0);
    }
}
