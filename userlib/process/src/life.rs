//! Tells a process from its children: what was made before a `fork` is of no use after it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes of the page that the kernel wipes. Any page is at least as large.
const PAGE_BYTES: usize = 4096;

/// Which process it is in a line of descent: the first has 1, a child of it that asks 2, a child of that 3.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// 0 in a child until that asks.
    word: &'static AtomicU64,
    number: u64,
}

/// The address of the word of this process, and of its children.
static WORD: OnceLock<Result<usize, Errno>> = OnceLock::new();
/// Lives so far in this line. Copied by a `fork`.
static LIVES: AtomicU64 = AtomicU64::new(0);

impl Life {
    /// The present one.
    ///
    /// # Errors
    /// There is no memory for a page, or the kernel wipes none at a `fork` (Linux before 4.14).
    pub fn present() -> Result<Self, Errno> {
        let at = (*WORD.get_or_init(map))?;
        // SAFETY: the page is mapped for good, aligned, and reached through this atomic only.
        let word: &AtomicU64 = unsafe { &*std::ptr::with_exposed_provenance(at) };
        let number = match word.load(Ordering::Relaxed) {
            0 => begin(word),
            number => number,
        };
        Ok(Self { word, number })
    }

    /// Whether this process is the one that asked, and no child of it.
    #[inline]
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }
}

#[cold]
fn begin(word: &AtomicU64) -> u64 {
    let next = LIVES.fetch_add(1, Ordering::Relaxed) + 1;
    // Another thread may have begun it.
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(number) => number,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs something in a child of `fork` and says whether it holds there.
    fn holds_in_a_child(holds: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls nothing but `holds`, which takes no lock, and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(!holds());
            // SAFETY: it ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: one status, as said.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        ended == child && status == 0
    }

    #[test]
    fn a_child_has_a_life_of_its_own() {
        let parent = Life::present().unwrap();
        assert!(parent.is_present());
        // Before the child has asked, and after it.
        assert!(holds_in_a_child(|| {
            let before = parent.is_present();
            let child = Life::present();
            let of_child = child.is_ok_and(|child| {
                child.is_present() && holds_in_a_child(|| !child.is_present() && !parent.is_present())
            });
            !before && of_child && !parent.is_present()
        }));
        assert!(parent.is_present());
        assert!(Life::present().unwrap().is_present());
    }
}
