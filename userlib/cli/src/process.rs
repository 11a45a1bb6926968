//! What `/proc` says about this process and this machine.

use std::fs;
use std::path::Path;

/// Bytes of this process' memory that cannot be paged: `VmLck` (mlock) and `VmPin` (pinned by a device).
/// `None` where `/proc` does not say.
pub fn pinned_bytes() -> Option<u64> {
    pinned_in(&fs::read_to_string("/proc/self/status").ok()?)
}

/// The most memory that this process ever had, in bytes.
pub fn peak_bytes() -> Option<u64> {
    kib(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:").map(|kib| kib * 1024)
}

/// The memory that this process has now, in bytes.
pub fn resident_bytes() -> Option<u64> {
    kib(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:").map(|kib| kib * 1024)
}

/// As [`resident_bytes`], after memory that was freed has gone back to the system: what is made next is counted whole.
pub fn resident_bytes_in_use() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time.
    unsafe {
        libc::malloc_trim(0)
    };
    resident_bytes()
}

/// Bytes of the machine's memory.
pub fn machine_bytes() -> Option<u64> {
    kib(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:").map(|kib| kib * 1024)
}

/// Bytes that the machine could still give to programs.
pub fn available_bytes() -> Option<u64> {
    kib(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:").map(|kib| kib * 1024)
}

/// Bytes that can still be written to the file system of `folder`.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

fn pinned_in(status: &str) -> Option<u64> {
    Some((kib(status, "VmLck:")? + kib(status, "VmPin:")?) * 1024)
}

/// The number in a line like `VmLck:         12 kB`.
fn kib(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_and_pinned_are_added() {
        assert_eq!(
            pinned_in("Name:\tx\nVmLck:\t      12 kB\nVmPin:\t       4 kB\n"),
            Some(16 * 1024)
        );
        assert_eq!(pinned_in("VmLck:\t12 kB\n"), None);
        assert_eq!(pinned_in("VmLck:\t12\nVmPin:\t4 kB\n"), None);
    }

    /// The figure is not constantly zero: locked memory shows.
    #[test]
    fn locking_memory_raises_pinned_bytes() {
        let before = pinned_bytes().expect("/proc/self/status");
        let buffer = vec![1_u8; 64 * 1024];
        let locked = lock(&buffer);
        let during = pinned_bytes().expect("/proc/self/status");
        if locked {
            assert!(during >= before + 60 * 1024, "{before} -> {during}");
        }
    }

    fn lock(buffer: &[u8]) -> bool {
        let address = buffer.as_ptr().cast_mut().cast();
        // SAFETY: the range is ours and stays alive; locking it changes nothing that the program can see.
        unsafe { rustix::mm::mlock(address, buffer.len()) }.is_ok()
    }
}
