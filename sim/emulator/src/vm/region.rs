//! A region's memory: one memfd, mapped linearly twice.
//!
//! The application's mapping is the one that faults. The alias serves card and pager; a page is there exactly while a frame holds
//! it. Two linear mappings cost two entries in the kernel's list however large the region is (a mapping per frame would hit
//! `vm.max_map_count` at 65,530 pages, about 255 MiB).

use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{PAGE_SIZE, PageIndex};

/// A memfd with its alias mapping. The application's mapping is handed out separately, because the application may unmap or move
/// it at any time.
#[derive(Debug)]
pub struct RegionMapping {
    memory: OwnedFd,
    alias: usize,
    pages: u64,
}

impl RegionMapping {
    /// Makes a region of `pages` pages and returns it with the address of its application mapping, which the caller must unmap.
    /// Neither mapping is inherited by `fork`.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn new(pages: u64) -> Result<(Self, usize), Errno> {
        let len = pages.checked_mul(PAGE_SIZE as u64).ok_or(Errno::OVERFLOW)?;
        let bytes = usize::try_from(len).map_err(|_| Errno::OVERFLOW)?;
        let memory = rustix::fs::memfd_create("netvm-region", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, len)?;
        let alias = map_shared(&memory, bytes)?;
        let mapping = Self { memory, alias, pages };
        let app = map_shared(&mapping.memory, bytes)?;
        Ok((mapping, app))
    }

    /// The number of pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Where the alias mapping begins, and how many bytes it has.
    #[must_use]
    pub fn alias(&self) -> (usize, usize) {
        (self.alias, self.pages as usize * PAGE_SIZE)
    }

    /// Address of a page in the alias mapping; a page that the region does not have is a bug of the caller's.
    #[must_use]
    pub fn alias_of(&self, page: PageIndex) -> usize {
        debug_assert!(page.0 < self.pages);
        self.alias + page.0 as usize * PAGE_SIZE
    }

    /// Takes the memory of `pages` pages from `first` on away from every mapping. Raises no userfaultfd event.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn punch(&self, first: PageIndex, pages: u64) -> Result<(), Errno> {
        const PAGE: u64 = PAGE_SIZE as u64;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match rustix::fs::fallocate(&self.memory, flags, first.0 * PAGE, pages * PAGE) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }
}

impl Drop for RegionMapping {
    fn drop(&mut self) {
        let _ =
            // SAFETY: the alias mapping is this value's own; frames that pointed into it were released before
            // (Pager::remove_region).
            unsafe { rustix::mm::munmap(core::ptr::with_exposed_provenance_mut(self.alias), self.alias().1) };
    }
}

fn map_shared(memory: &OwnedFd, bytes: usize) -> Result<usize, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    unsafe {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let at = rustix::mm::mmap(
            core::ptr::null_mut(),
            bytes,
            prot,
            MapFlags::SHARED | MapFlags::NORESERVE,
            memory,
            0,
        )?;
        // A child of fork must not see memory whose faults stay unanswered.
        rustix::mm::madvise(at, bytes, Advice::LinuxDontFork)?;
        Ok(at.expose_provenance())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_show_one_memory_and_a_hole_clears_both() {
        let (region, app) = RegionMapping::new(3).unwrap();
        let app: *mut u64 = core::ptr::with_exposed_provenance_mut(app + PAGE_SIZE);
        let alias: *mut u64 = core::ptr::with_exposed_provenance_mut(region.alias_of(PageIndex(1)));
        // SAFETY: both point at page 1 of the region, mapped readable and writable, used by this thread only.
        unsafe {
            app.write_volatile(77);
            assert_eq!(alias.read_volatile(), 77);
            region.punch(PageIndex(1), 1).unwrap();
            assert_eq!(alias.read_volatile(), 0);
            assert_eq!(app.read_volatile(), 0);
        }
        // SAFETY: the application mapping belongs to this test.
        unsafe { rustix::mm::munmap(app.cast::<u8>().sub(PAGE_SIZE).cast(), 3 * PAGE_SIZE).unwrap() };
    }

    #[test]
    fn sixty_four_gibibytes_of_address_space_cost_no_memory() {
        let pages = (64 << 30) / PAGE_SIZE as u64;
        let (region, app) = RegionMapping::new(pages).unwrap();
        assert_eq!(region.alias().1, 64 << 30);
        // SAFETY: the application mapping belongs to this test.
        unsafe { rustix::mm::munmap(core::ptr::with_exposed_provenance_mut(app), 64 << 30).unwrap() };
    }
}
