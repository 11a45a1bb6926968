//! Places for what one-sided operations bring and take.
//!
//! The card reaches memory of `alloc`'s by itself, and a program's by way of a page of its own and a worker. So what a read brings comes to a
//! place here, and is copied when it is there; what a write takes is copied here first.

use netvm::{Port, Region, RegionSlice};
use parking_lot::Mutex;

use crate::buffer::Buffer;
use crate::everything::Everything;
use crate::wire::PAGE;

/// Bytes of a place.
pub(crate) const PLACE: usize = 64 << 10;
const PLACES: u16 = 128;
/// So many are left to reads.
const FOR_READS: usize = 32;
/// From one place to the next: bytes begin anywhere in its first page.
const STRIDE: u64 = PLACE as u64 + PAGE;

/// The places of a domain.
pub(crate) struct Scratch {
    memory: Region,
    free: Mutex<Vec<u16>>,
}

/// A place that an operation was given. One that is dropped is not used again: something may still come to it, or be read from it.
#[derive(Debug)]
pub(crate) struct Place {
    index: u16,
    /// Where its bytes begin.
    start: u64,
}

impl Scratch {
    /// Makes them, of a port's memory.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn new(port: &Port) -> netvm::Result<Self> {
        Ok(Self {
            memory: port.alloc(u64::from(PLACES) * STRIDE)?,
            free: Mutex::new((0..PLACES).rev().collect()),
        })
    }

    /// All of them.
    pub(crate) const fn memory(&self) -> &Region {
        &self.memory
    }

    /// A place, if one is free. Its bytes begin as far in a page as this address does, so both ends of a transfer are cut alike.
    pub(crate) fn take(&self, alike: u64, writes: bool) -> Option<Place> {
        let mut free = self.free.lock();
        if writes && free.len() <= FOR_READS {
            return None;
        }
        let index = free.pop()?;
        let start = u64::from(index) * STRIDE + alike % PAGE;
        Some(Place { index, start })
    }

    /// So much of a place.
    ///
    /// # Errors
    /// It has not so many bytes.
    pub(crate) fn room(&self, place: &Place, len: usize) -> netvm::Result<RegionSlice> {
        self.memory.slice(place.start..place.start + len as u64)
    }

    /// Copies what has come to the program's memory.
    ///
    /// # Errors
    /// That memory is gone.
    pub(crate) fn copy(&self, place: &Place, into: &Buffer, everything: &Everything) -> netvm::Result<()> {
        self.each(place, into, everything, |region, at, piece| {
            region.write_from(at, piece)
        })
    }

    /// Copies what is to go from the program's memory.
    ///
    /// # Errors
    /// That memory is gone.
    pub(crate) fn fill(&self, place: &Place, from: &Buffer, everything: &Everything) -> netvm::Result<()> {
        self.each(place, from, everything, |region, at, piece| {
            region.read_into(at, piece)
        })
    }

    /// Copies piece by piece, between a program's memory and a place. A page that is gone is an error, and no signal.
    fn each(
        &self,
        place: &Place,
        buffer: &Buffer,
        everything: &Everything,
        copy: impl Fn(&Region, u64, &mut [u8]) -> netvm::Result<()>,
    ) -> netvm::Result<()> {
        let mut bytes = self.bytes(place, buffer.len())?;
        for (start, len) in buffer.parts().filter(|(_, len)| *len > 0) {
            let (region, at) = everything.find(start as u64, len as u64)?;
            let (piece, rest) = bytes.split_at_mut(len);
            copy(region, at, piece)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Bytes of a place that the card does not use now: an operation has not been posted, or has ended.
    #[allow(clippy::mut_from_ref)]
    fn bytes<'a>(&'a self, place: &'a Place, len: usize) -> netvm::Result<&'a mut [u8]> {
        let start = place.start as usize;
        let bytes = self.memory.atomics().and_then(|all| all.get(start..start + len));
        let first = bytes.ok_or(netvm::Error::Released)?.as_ptr();
        // SAFETY: the bytes are atomics, so they may be changed, and only the holder of the place uses them.
        Ok(unsafe { core::slice::from_raw_parts_mut(first.cast_mut().cast::<u8>(), len) })
    }

    /// Nothing comes to this place any more, and nothing is read from it.
    pub(crate) fn give(&self, place: Place) {
        self.free.lock().push(place.index);
    }
}
