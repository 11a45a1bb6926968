//! What it takes to lock memory, as a fabric does that pins what is registered.

use anyhow::{Context as _, Result};
use rustix::mm::{MapFlags, ProtFlags};
use std::time::Instant;

/// Milliseconds to map and lock so many bytes, and until a word of each page has been written besides, by this process itself.
///
/// # Errors
/// The limit of locked memory is too low, or there is not so much memory.
pub fn lock(bytes: usize) -> Result<(f64, f64)> {
    let begin = Instant::now();
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, prot, MapFlags::PRIVATE) };
    let start = start.context("mapping memory to lock")?;
    // SAFETY: the mapping is this function's own.
    let locked = unsafe { rustix::mm::mlock(start, bytes) };
    let first = begin.elapsed();
    if locked.is_ok() {
        for at in (0..bytes).step_by(4096) {
            // SAFETY: the word lies in the mapping.
            unsafe { start.byte_add(at).cast::<u64>().write_volatile(1) };
        }
    }
    let every = begin.elapsed();
    // SAFETY: nothing refers to the mapping any more.
    unsafe { rustix::mm::munmap(start, bytes) }.context("unmapping")?;
    locked.context("mlock: run as root, or raise `ulimit -l`")?;
    Ok((first.as_secs_f64() * 1e3, every.as_secs_f64() * 1e3))
}
