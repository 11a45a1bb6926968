//! All memory of the process, as regions of a port: what is below the provider's own places in it, and what is above.

use std::ptr::NonNull;

use netvm::{Error, Port, Region, RegionSlice, Result};

/// The first address.
const FIRST: u64 = 0x1000;
/// Behind the last one: user space of x86-64.
const END: u64 = 1 << 47;

/// All memory of the process.
pub(crate) struct Everything {
    /// Where each part begins, and its memory.
    parts: [(u64, Region); 2],
}

impl Everything {
    /// All but `own`, which is memory of the same port.
    ///
    /// # Errors
    /// The port takes no memory of the program's.
    pub(crate) fn but(port: &Port, own: &Region) -> Result<Self> {
        let bytes = own.atomics().ok_or(Error::Released)?;
        let start = bytes.as_ptr().expose_provenance() as u64;
        let end = start + bytes.len().next_multiple_of(netvm::abi::PAGE_SIZE as usize) as u64;
        Ok(Self {
            parts: [adopt(port, FIRST, start)?, adopt(port, end, END)?],
        })
    }

    /// The region that a range of addresses lies in, and where it begins there.
    ///
    /// # Errors
    /// It lies in none.
    pub(crate) fn find(&self, start: u64, len: u64) -> Result<(&Region, u64)> {
        let inside = |(first, region): &&(u64, Region)| {
            let at = start.checked_sub(*first);
            at.and_then(|at| at.checked_add(len))
                .is_some_and(|end| end <= region.len())
        };
        let found = self.parts.iter().find(inside);
        let (first, region) = found.ok_or(Error::OutOfRange {
            offset: start,
            len,
            size: END,
        })?;
        Ok((region, start - first))
    }

    /// A range of addresses.
    ///
    /// # Errors
    /// No memory of the program can be there.
    pub(crate) fn slice(&self, start: u64, len: u64) -> Result<RegionSlice> {
        let (region, at) = self.find(start, len)?;
        region.slice(at..at + len)
    }
}

fn adopt(port: &Port, start: u64, end: u64) -> Result<(u64, Region)> {
    let at = NonNull::new(core::ptr::with_exposed_provenance_mut(start as usize)).ok_or(Error::Released)?;
    // SAFETY: the region stands for addresses. Only ranges of it are used that a program has named in a call of libfabric, and
    // whose memory it has promised to keep and to share. An access to one that is gone all the same ends in an error.
    let region = unsafe { port.adopt(at, end - start) }?;
    Ok((start, region))
}
