//! A file that is mapped, of which a process keeps only a part in its memory. As the system does when memory is short: pages that
//! are too many go back to the file, those that come next are faulted in again.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::PAGE;
use crate::unnamed;
use netvm::{Port, Region};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Pages that go together.
const STRETCH: usize = 16;
/// How often it is looked how many pages there are, at least.
const PACE: Duration = Duration::from_millis(1);
/// Says of a page that the process has it (`/proc/PID/pagemap`).
const PRESENT: u64 = 1 << 63;

/// The mapping. It stays until the process ends: a node may write to it as long as it is exported.
pub(super) struct PagedFile {
    start: NonNull<u8>,
    len: u64,
    /// Bytes of it that may be in memory.
    resident: u64,
    pages: File,
    hand: Mutex<Hand>,
}

// SAFETY: the memory is reached through the library and by advice to the kernel only; both may come from any thread.
unsafe impl Sync for PagedFile {}

/// Where the next pages are taken from, and what has been taken.
#[derive(Default)]
struct Hand {
    at: usize,
    evictions: u64,
    most: u64,
}

impl PagedFile {
    /// Maps a file without a name in `folder`.
    ///
    /// # Errors
    /// What the kernel refuses, in words.
    pub(super) fn map(folder: &Path, len: u64, resident: u64) -> Result<Self, String> {
        let (file, pages) = probe(folder, len).map_err(|(what, fix)| format!("{what}: {fix}"))?;
        // Room for all of it: a full disk would end the demo in its middle.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
            Err(Errno::OPNOTSUPP) => rustix::fs::ftruncate(&file, len),
            other => other,
        }
        .map_err(|errno| format!("{} MiB in {}: {errno}", len >> 20, folder.display()))?;
        let bytes = usize::try_from(len).map_err(|error| error.to_string())?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), bytes, prot, MapFlags::SHARED, &file, 0) };
        let start = start.map_err(|errno| format!("a mapping of {} MiB: {errno}", len >> 20))?;
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or("a mapping at address 0")?,
            len,
            resident,
            pages,
            hand: Mutex::default(),
        })
    }

    /// The mapping as memory of a port.
    ///
    /// # Errors
    /// What the library says.
    pub(super) fn region(&self, port: &Port) -> netvm::Result<Region> {
        // SAFETY: the mapping stays for good, is written by nothing else, and no reference into it exists.
        unsafe { port.adopt(self.start, self.len) }
    }

    /// Takes pages away, in turn, if more than allowed are in memory.
    ///
    /// # Errors
    /// The kernel does not say which pages are, in words.
    pub(super) fn look(&self) -> Result<(), String> {
        let first = self.start.as_ptr().addr() as u64 / PAGE;
        let count = (self.len / PAGE) as usize;
        let mut entries = vec![0; count * 8];
        self.pages
            .read_exact_at(&mut entries, first * 8)
            .map_err(|error| format!("/proc/self/pagemap: {error}"))?;
        let present: Vec<bool> = entries
            .chunks_exact(8)
            .map(|entry| {
                entry
                    .try_into()
                    .is_ok_and(|entry| u64::from_ne_bytes(entry) & PRESENT != 0)
            })
            .collect();
        let mut there = present.iter().filter(|present| **present).count() as u64;
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        hand.most = hand.most.max(there * PAGE);
        let stretches = count.div_ceil(STRETCH);
        for _ in 0..stretches {
            if there * PAGE <= self.resident {
                break;
            }
            let from = hand.at * STRETCH;
            let to = (from + STRETCH).min(count);
            let taken = present.get(from..to).unwrap_or_default();
            let taken = taken.iter().filter(|present| **present).count() as u64;
            if taken > 0 {
                self.forget(from, to - from)?;
            }
            there -= taken;
            hand.evictions += taken;
            hand.at = (hand.at + 1) % stretches;
        }
        Ok(())
    }

    /// Pages go back to the file.
    fn forget(&self, first: usize, pages: usize) -> Result<(), String> {
        let at = self.start.as_ptr().wrapping_add(first * PAGE as usize);
        // SAFETY: the pages lie in the mapping, which is shared with its file: what was written stays there.
        let advised = unsafe { rustix::mm::madvise(at.cast(), pages * PAGE as usize, Advice::LinuxDontNeed) };
        advised.map_err(|errno| format!("madvise: {errno}"))
    }

    /// Looks again and again, until told to stop.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub(super) fn keep_small(&self, stop: &AtomicBool) -> Result<(), String> {
        while !stop.load(Ordering::Acquire) {
            let begin = Instant::now();
            self.look()?;
            // A long list takes a fifth of a processor at most.
            std::thread::sleep(PACE.max(begin.elapsed() * 4));
        }
        Ok(())
    }

    /// What is seen counts from here on.
    pub(super) fn begin(&self) {
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        (hand.evictions, hand.most) = (0, 0);
    }

    /// Pages that have been taken away, and the most bytes that any look has found in memory.
    pub(super) fn seen(&self) -> (u64, u64) {
        let hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        (hand.evictions, hand.most)
    }
}

/// The file, still empty, that is to have `len` bytes, and where the kernel says which pages there are.
///
/// # Errors
/// What cannot be had, and what changes that.
pub(super) fn probe(folder: &Path, len: u64) -> Result<(OwnedFd, File), (String, &'static str)> {
    if let Some(most) = unnamed::limit_below(len) {
        let what = format!(
            "files of this process may have {} MiB, not {} MiB",
            most >> 20,
            len >> 20
        );
        return Err((what, "give a smaller --mib, or `ulimit -f unlimited`"));
    }
    let file = unnamed::open(folder).map_err(|errno| {
        let what = format!("no file in {} (TMPDIR): {errno}", folder.display());
        (what, "set TMPDIR to a folder where files can be made")
    })?;
    let pages = File::open("/proc/self/pagemap")
        .map_err(|error| (format!("/proc/self/pagemap: {error}"), "/proc has to be mounted"))?;
    Ok((file, pages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_too_many_go_and_keep_what_was_written() {
        let pages = 100;
        let file = PagedFile::map(&std::env::temp_dir(), pages * 4096, 32 * 4096).expect("mapped");
        let at = |page: u64| {
            let at = file.start.as_ptr().wrapping_add((page * 4096) as usize);
            at.cast::<u64>()
        };
        for page in 0..pages {
            // SAFETY: inside of the mapping, which this test alone uses.
            unsafe { at(page).write_volatile(page + 7) };
        }
        file.look().expect("looked");
        let (evictions, most) = file.seen();
        assert!((68..=84).contains(&evictions), "{evictions}");
        assert_eq!(most, pages * 4096);
        file.look().expect("looked");
        assert_eq!(file.seen().0, evictions, "few enough are there");
        for page in 0..pages {
            // SAFETY: as above.
            assert_eq!(unsafe { at(page).read_volatile() }, page + 7);
        }
    }
}
