//! Regions: memory that the card can reach.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use netvm::{Region, RegionSlice};

use crate::argument::{bytes, bytes_mut, out};
use crate::call::call;
use crate::fault::{Fault, Result};
use crate::handle::{self, handles};
use crate::port::netvm_port;

/// Memory that the card can reach. No page of it is pinned.
pub struct netvm_region;

/// A region, and where the program sees it.
pub struct Memory {
    region: Region,
    /// The address of memory that the program has brought.
    adopted: Option<usize>,
}

handles! {
    netvm_region = 3: Memory;
}

impl Memory {
    /// A part of it.
    pub(crate) fn part(&self, offset: u64, len: usize) -> Result<RegionSlice> {
        let end = offset.checked_add(len as u64).ok_or(netvm::Error::OutOfRange {
            offset,
            len: len as u64,
            size: self.region.len(),
        })?;
        Ok(self.region.slice(offset..end)?)
    }

    /// All of it.
    pub(crate) const fn region(&self) -> &Region {
        &self.region
    }
}

/// Makes a region of `len` zeroed bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_alloc(
    port: *mut netvm_port,
    len: u64,
    region: *mut *mut netvm_region,
) -> c_int {
    call(|| {
        let place = out(region, "region")?;
        let made = handle::make(Memory {
            region: handle::get(port)?.alloc(len)?,
            adopted: None,
        })?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Makes a region of memory that the process already has: heap, stack or a file mapping. It must stay mapped until the region and
/// everything that uses it is closed. Others may change it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_adopt(
    port: *mut netvm_port,
    start: *mut c_void,
    len: u64,
    region: *mut *mut netvm_region,
) -> c_int {
    call(|| {
        let place = out(region, "region")?;
        let begin = NonNull::new(start.cast::<u8>()).ok_or(Fault::Null("start"))?;
        // SAFETY: the header asks for memory that stays mapped.
        let adopted = unsafe { handle::get(port)?.adopt(begin, len) }?;
        let made = handle::make(Memory {
            region: adopted,
            adopted: Some(start.expose_provenance()),
        })?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Makes a region of all memory that the process has now and later. An offset in it is an address. It is for local operands alone: what is
/// written from, and read into. It is the port's first and only region (-EOPNOTSUPP otherwise, and for all others afterwards); exports of
/// it are refused. Memory that a transfer uses must not be freed before that has ended, nor before the port is closed if it was a read that
/// has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_adopt_all(
    port: *mut netvm_port,
    region: *mut *mut netvm_region,
) -> c_int {
    call(|| {
        let place = out(region, "region")?;
        // SAFETY: the header asks for memory that stays as long as it is used.
        let adopted = unsafe { handle::get(port)?.adopt_all() }?;
        let made = handle::make(Memory {
            region: adopted,
            adopted: None,
        })?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(made) };
        Ok(())
    })
}

/// Where the program sees the region: the address of its first byte, valid until the region is closed. Remote nodes may change
/// what is there at any time. -EOPNOTSUPP where the process does not see it, and of a region of all memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_data(region: *mut netvm_region, data: *mut *mut c_void) -> c_int {
    call(|| {
        let place = out(data, "data")?;
        let memory = handle::get(region)?;
        let mapped = memory
            .region
            .atomics()
            .map(|bytes| bytes.as_ptr().cast::<c_void>().cast_mut());
        let adopted = memory.adopted.map(std::ptr::with_exposed_provenance_mut);
        let at = mapped.or(adopted).ok_or(Fault::argument(
            libc::EOPNOTSUPP,
            "the process does not see the memory of this node: use netvm_region_read and netvm_region_write",
        ))?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(at) };
        Ok(())
    })
}

/// Its length in bytes, as it was asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_len(region: *mut netvm_region, len: *mut u64) -> c_int {
    call(|| {
        let place = out(len, "len")?;
        let length = handle::get(region)?.region.len();
        // SAFETY: the header asks for such a place.
        unsafe { place.set(length) };
        Ok(())
    })
}

/// Copies bytes out of a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_read(
    region: *mut netvm_region,
    offset: u64,
    into: *mut c_void,
    len: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for such memory.
        let into = unsafe { bytes_mut(into, len, "into") }?;
        Ok(handle::get(region)?.region.read_into(offset, into)?)
    })
}

/// Copies bytes into a region. An aligned 1, 2, 4 or 8 bytes is a single store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_write(
    region: *mut netvm_region,
    offset: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header asks for such memory.
        let from = unsafe { bytes(from, len, "from") }?;
        Ok(handle::get(region)?.region.write_from(offset, from)?)
    })
}

/// Loads an aligned 32-bit word, with acquire order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_load32(
    region: *mut netvm_region,
    offset: u64,
    value: *mut u32,
) -> c_int {
    call(|| {
        let place = out(value, "value")?;
        let loaded = handle::get(region)?.region.word32(offset)?.load()?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(loaded) };
        Ok(())
    })
}

/// Loads an aligned 64-bit word, with acquire order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_load64(
    region: *mut netvm_region,
    offset: u64,
    value: *mut u64,
) -> c_int {
    call(|| {
        let place = out(value, "value")?;
        let loaded = handle::get(region)?.region.word64(offset)?.load()?;
        // SAFETY: the header asks for such a place.
        unsafe { place.set(loaded) };
        Ok(())
    })
}

/// Stores an aligned 32-bit word, with release order.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_region_store32(region: *mut netvm_region, offset: u64, value: u32) -> c_int {
    call(|| Ok(handle::get(region)?.region.word32(offset)?.store(value)?))
}

/// Stores an aligned 64-bit word, with release order.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_region_store64(region: *mut netvm_region, offset: u64, value: u64) -> c_int {
    call(|| Ok(handle::get(region)?.region.word64(offset)?.store(value)?))
}

/// Stores `value` in an aligned 32-bit word if that is `expected`; `old` gets what was there and may be NULL. Atomic among the
/// programs of this node; words that several nodes compete for are changed by netvm_atomic32() alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_compare_swap32(
    region: *mut netvm_region,
    offset: u64,
    expected: u32,
    value: u32,
    old: *mut u32,
) -> c_int {
    call(|| {
        let before = handle::get(region)?
            .region
            .word32(offset)?
            .compare_swap(expected, value)?;
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { crate::argument::set(old, before) };
        Ok(())
    })
}

/// The same for an aligned 64-bit word.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netvm_region_compare_swap64(
    region: *mut netvm_region,
    offset: u64,
    expected: u64,
    value: u64,
    old: *mut u64,
) -> c_int {
    call(|| {
        let before = handle::get(region)?
            .region
            .word64(offset)?
            .compare_swap(expected, value)?;
        // SAFETY: the header asks for such a place, or NULL.
        unsafe { crate::argument::set(old, before) };
        Ok(())
    })
}

/// Lets go of a region. Its memory is given back when nothing uses it any more: no export, and no transfer under way.
#[unsafe(no_mangle)]
pub extern "C" fn netvm_region_close(region: *mut netvm_region) -> c_int {
    call(|| handle::close(region))
}
