//! Memory as the kernel sees it: a control group's, pressed out, and how much of this process is in memory.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zerocopy::IntoBytes as _;

/// Asks the kernel to reclaim `bytes` bytes from a control group (`memory.reclaim`, cgroup v2). That it finds fewer is
/// no error: what can be taken has been.
///
/// # Errors
/// There is no such group, or it has no memory controller.
pub fn reclaim(group: &Path, bytes: u64) -> io::Result<()> {
    match fs::write(group.join("memory.reclaim"), bytes.to_string()) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        other => other,
    }
}

/// Does `work` while the kernel is made to add up what it knows of a control group (`memory.stat`), 50 times a second.
///
/// Linux 6.12's classic LRU decides by such sums whether to age the active pages of a group (`inactive_is_low` in mm/vmscan.c),
/// and adds them up by itself every two seconds only (`mem_cgroup_flush_stats_ratelimited`). When all inactive pages have
/// become active within that time, it still believes that there are some, ages none, finds nothing to take, and kills a
/// process of the group although swap is free. Reading the group's statistics keeps it from that.
///
/// # Errors
/// There is no such group, or it has no memory controller.
pub fn watched<T>(group: &Path, work: impl FnOnce() -> T) -> io::Result<T> {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let sums = group.join("memory.stat");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| -> io::Result<()> {
            // Once at least: work that is over before this thread runs hears, too, that there is no such group.
            loop {
                fs::read(&sums)?;
                if stop.load(Ordering::Acquire) {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let stop = Stop(&stop);
        let done = work();
        drop(stop);
        watch
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(done)
    })
}

/// Bytes of an address range of this process that are in memory, from its page table (`/proc/self/pagemap`): asking
/// touches nothing.
///
/// # Errors
/// The file cannot be read.
pub fn resident(start: u64, len: u64) -> io::Result<u64> {
    use std::os::unix::fs::FileExt as _;
    const PAGE: u64 = 4096;
    const PRESENT: u64 = 1 << 63;
    let pagemap = fs::File::open("/proc/self/pagemap")?;
    let mut entries = vec![0_u64; len.div_ceil(PAGE) as usize];
    pagemap.read_exact_at(entries.as_mut_bytes(), start / PAGE * 8)?;
    let present = entries.iter().filter(|entry| **entry & PRESENT != 0);
    Ok(present.count() as u64 * PAGE)
}

/// Bytes of this process that cannot be paged out: locked (`VmLck`) and pinned (`VmPin`).
///
/// # Errors
/// `/proc` does not say.
pub fn pinned() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    match (field("VmLck:"), field("VmPin:")) {
        (Some(locked), Some(pinned)) => Ok((locked + pinned) * 1024),
        _ => Err(io::Error::other("/proc/self/status has no VmLck or VmPin")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_not_there_cannot_be_watched() {
        let done = watched(Path::new("/nowhere"), || ());
        assert_eq!(
            done.err().map(|error| error.kind()),
            Some(io::ErrorKind::NotFound)
        );
    }

    #[test]
    fn what_was_touched_is_resident_and_nothing_is_pinned() {
        let bytes = vec![1_u8; 64 << 10];
        let start = bytes.as_ptr().addr() as u64;
        let inside = resident(start, bytes.len() as u64).expect("pagemap");
        assert!(inside >= 60 << 10, "{inside}");
        assert_eq!(pinned().expect("status"), 0);
    }
}
