//! Memory as the kernel sees it: a control group's, pressed out, and how much of this process is in memory.

use std::fs;
use std::io;
use std::path::Path;

/// Asks the kernel to reclaim so many bytes from a control group (`memory.reclaim`, cgroup v2). That it finds fewer is no
/// error: what can be taken has been.
///
/// # Errors
/// There is no such group, or it has no memory controller.
pub fn reclaim(group: &Path, bytes: u64) -> io::Result<()> {
    match fs::write(group.join("memory.reclaim"), bytes.to_string()) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        other => other,
    }
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
    let mut entries = vec![0; (len.div_ceil(PAGE) * 8) as usize];
    pagemap.read_exact_at(&mut entries, start / PAGE * 8)?;
    let present = entries.chunks_exact(8).filter(|entry| {
        let entry: [u8; 8] = (*entry).try_into().unwrap_or_default();
        u64::from_ne_bytes(entry) & PRESENT != 0
    });
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
    fn what_was_touched_is_resident_and_nothing_is_pinned() {
        let bytes = vec![1_u8; 64 << 10];
        let start = bytes.as_ptr().addr() as u64;
        let inside = resident(start, bytes.len() as u64).expect("pagemap");
        assert!(inside >= 60 << 10, "{inside}");
        assert_eq!(pinned().expect("status"), 0);
    }
}
