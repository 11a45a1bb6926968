//! Memory that two processes share: a sealed memfd, mapped once.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use netvm_memory::copy;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A memfd whose size can change no more, mapped for reading and writing. The other process may write to it at any
/// time: words are atomics, and bytes are reached through copies alone.
#[derive(Debug)]
pub(crate) struct Shared {
    at: usize,
    len: usize,
}

/// What a file must have before it is mapped: a file that its other holder shrinks raises SIGBUS here.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Shared {
    /// Makes a file of zeros, and maps it.
    pub(crate) fn create(name: &str, len: usize) -> Result<(OwnedFd, Self), Errno> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let shared = Self::map(&file, len)?;
        Ok((file, shared))
    }

    /// Maps what another process has made, if it is as it should be: sealed, and exactly so long.
    pub(crate) fn accept(file: &OwnedFd, len: usize) -> Result<Self, Errno> {
        let seals = rustix::fs::fcntl_get_seals(file)?;
        let size = rustix::fs::fstat(file)?.st_size;
        if !seals.contains(SEALS) || u64::try_from(size) != Ok(len as u64) {
            return Err(Errno::INVAL);
        }
        Self::map(file, len)
    }

    fn map(file: &impl AsFd, len: usize) -> Result<Self, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let at = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                len,
                prot,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        }?;
        let shared = Self {
            at: at.expose_provenance(),
            len,
        };
        // SAFETY: the mapping was just made. A child of fork has no part in it.
        unsafe { rustix::mm::madvise(at, len, Advice::LinuxDontFork) }?;
        Ok(shared)
    }

    /// The 32-bit word at a byte offset that is a constant of the layout.
    #[inline]
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: inside of the mapping and aligned, as just checked; the mapping lives as long as `self`.
        unsafe { &*core::ptr::with_exposed_provenance(self.at + offset) }
    }

    /// The 64-bit word likewise.
    #[inline]
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: as above.
        unsafe { &*core::ptr::with_exposed_provenance(self.at + offset) }
    }

    /// Copies bytes out; each byte is read once.
    #[inline]
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset <= self.len && into.len() <= self.len - offset);
        let from = core::ptr::with_exposed_provenance(self.at + offset);
        // SAFETY: inside of the mapping, as just checked.
        unsafe { copy::copy_out(from, into) };
    }

    /// Copies bytes in.
    #[inline]
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset <= self.len && from.len() <= self.len - offset);
        let to = core::ptr::with_exposed_provenance_mut(self.at + offset);
        // SAFETY: inside of the mapping, as just checked.
        unsafe { copy::copy_in(from, to) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and every reference into it borrowed this value.
        let _ = unsafe { rustix::mm::munmap(core::ptr::with_exposed_provenance_mut(self.at), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_can_still_shrink_or_has_another_size_is_refused() {
        let open = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 8192).unwrap();
        assert!(Shared::accept(&open, 8192).is_err());
        let (file, _) = Shared::create("t", 8192).unwrap();
        assert!(Shared::accept(&file, 4096).is_err());
        assert!(Shared::accept(&file, 8192).is_ok());
    }
}
