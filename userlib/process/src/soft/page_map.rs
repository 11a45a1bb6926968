//! Which pages of the process can be reached without a wait, by the kernel's word: `/proc/self/pagemap`.
//!
//! An answer is true for the moment in which it was given. A page that goes right after it is waited for by the thread that asked.

use std::os::fd::OwnedFd;

use netvm_host::platform::Access;
use netvm_soft::PAGE_BYTES;
use rustix::fs::{Mode, OFlags};

/// The process has the page in its table.
const PRESENT: u64 = 1 << 63;
/// A store to it is for the program's own handler first (`userfaultfd`).
const HANDLED: u64 = 1 << 57;
/// It is a file's, or shared.
const OF_FILE: u64 = 1 << 61;
const ENTRY_BYTES: u64 = 8;

/// The map of a process' pages.
#[derive(Debug)]
pub(super) struct PageMap(Option<OwnedFd>);

impl PageMap {
    /// This process'. Where the kernel does not show it, no page is known to be there.
    pub(super) fn of_this_process() -> Self {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Self(rustix::fs::open("/proc/self/pagemap", flags, Mode::empty()).ok())
    }

    /// Whether the page of this address can be used so without a wait for a file's server, a disk or a swap device.
    ///
    /// A page of a file that is mapped can be read. To write it may have to ask the file system first.
    pub(super) fn has(&self, address: u64, access: Access) -> bool {
        let entry = self.entry(address);
        entry & PRESENT != 0 && (access == Access::Read || entry & (OF_FILE | HANDLED) == 0)
    }

    /// Whether the page of this address is there and the process' own: no file is behind it, and no handler of the program's before it.
    pub(super) fn has_own(&self, address: u64) -> bool {
        self.entry(address) & (PRESENT | OF_FILE | HANDLED) == PRESENT
    }

    /// What the kernel says of the page of this address; of one that it knows nothing of, 0.
    fn entry(&self, address: u64) -> u64 {
        let Some(map) = &self.0 else { return 0 };
        let mut entry = [0; ENTRY_BYTES as usize];
        let at = address / PAGE_BYTES as u64 * ENTRY_BYTES;
        if rustix::io::pread(map, &mut entry, at) != Ok(entry.len()) {
            return 0;
        }
        u64::from_ne_bytes(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{Advice, MapFlags, ProtFlags};

    fn mapped(file: Option<&OwnedFd>) -> (u64, &'static mut [u8]) {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, which stays until the test ends.
        unsafe {
            let start = match file {
                Some(file) => {
                    rustix::mm::mmap(std::ptr::null_mut(), PAGE_BYTES, prot, MapFlags::SHARED, file, 0)
                }
                None => rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, prot, MapFlags::PRIVATE),
            };
            let start = start.unwrap();
            let bytes = std::slice::from_raw_parts_mut(start.cast(), PAGE_BYTES);
            (start.expose_provenance() as u64, bytes)
        }
    }

    #[test]
    fn a_page_is_there_once_it_was_touched() {
        let pages = PageMap::of_this_process();
        let (at, bytes) = mapped(None);
        assert!(!pages.has(at, Access::Read));
        bytes[100] = 1;
        assert!(pages.has(at, Access::Read) && pages.has(at + 4000, Access::Write) && pages.has_own(at));
        // SAFETY: the page is the test's own.
        unsafe { rustix::mm::madvise(bytes.as_mut_ptr().cast(), PAGE_BYTES, Advice::LinuxDontNeed).unwrap() };
        assert!(!pages.has(at, Access::Read) && !pages.has_own(at));
        assert!(!pages.has(1 << 46, Access::Read), "nothing is mapped there");
    }

    #[test]
    fn a_page_of_a_file_is_read_at_once_and_not_written() {
        let file = rustix::fs::memfd_create("pages", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, PAGE_BYTES as u64).unwrap();
        let pages = PageMap::of_this_process();
        let (at, bytes) = mapped(Some(&file));
        assert!(!pages.has(at, Access::Read));
        bytes[0] = 1;
        assert!(pages.has(at, Access::Read));
        assert!(!pages.has(at, Access::Write) && !pages.has_own(at));
    }

    #[test]
    fn without_a_map_nothing_is_known() {
        let (at, bytes) = mapped(None);
        bytes[0] = 1;
        assert!(!PageMap(None).has(at, Access::Read));
    }
}
