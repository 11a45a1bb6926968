//! Tells a process from its children: what was made before a `fork` is of no use after it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes of the page that the kernel wipes. Any page is at least as large.
const PAGE_BYTES: usize = 4096;

/// Which process it is in a line of descent: the first has 1, a child of it that uses the library 2, a child of that 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life(u64);

/// The address of a word that is 0 in a child until that asks.
static WORD: OnceLock<Result<usize, Errno>> = OnceLock::new();
/// Lives so far in this line. Copied by a `fork`.
static LIVES: AtomicU64 = AtomicU64::new(0);

/// The present one.
pub(crate) fn present() -> Result<Life, Errno> {
    let at = (*WORD.get_or_init(map))?;
    // SAFETY: the page is mapped for good, aligned, and reached through this atomic only.
    let word: &AtomicU64 = unsafe { &*std::ptr::with_exposed_provenance(at) };
    match word.load(Ordering::Relaxed) {
        0 => Ok(begin(word)),
        life => Ok(Life(life)),
    }
}

#[cold]
fn begin(word: &AtomicU64) -> Life {
    let next = LIVES.fetch_add(1, Ordering::Relaxed) + 1;
    // Another thread may have begun it.
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Life(next),
        Err(life) => Life(life),
    }
}

fn map() -> Result<usize, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice; the advice concerns it alone.
    let at = unsafe {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, prot, MapFlags::PRIVATE)?;
        rustix::mm::madvise(at, PAGE_BYTES, Advice::LinuxWipeOnFork)?;
        at
    };
    Ok(at.expose_provenance())
}
