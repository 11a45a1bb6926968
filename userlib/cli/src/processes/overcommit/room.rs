//! How much memory the process may use, and how much room there is for a file.

use std::path::Path;

use super::size;
use crate::process;

/// Bytes that a file system is left beside what a client touches.
const SPARE: u64 = 16 << 20;

/// Refuses a client that would fill the file system of `folder`.
///
/// # Errors
/// How much there is, in words.
pub(super) fn check(folder: &Path, touch: u64) -> Result<(), String> {
    match process::free_bytes(folder) {
        Some(free) if free < touch.saturating_add(SPARE) => Err(format!(
            "{} (TMPDIR) has {} left, too little for {} of written pages: free some, give a smaller --touch, or start `netvm serve` \
             with TMPDIR on another file system",
            folder.display(),
            size(free),
            size(touch)
        )),
        _ => Ok(()),
    }
}

/// Bytes of memory that this process may use: the machine's, or what its control groups allow.
pub(in crate::processes) fn memory_bytes() -> Option<u64> {
    let machine = process::machine_bytes()?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter();
    let limits = limits.filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
    Some(limits.fold(machine, u64::min))
}

/// Where the limits stand, of both versions of control groups: of each group, and of those above it.
fn limit_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, name) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|one| one == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        for group in Path::new(path).ancestors() {
            let group = group.display().to_string();
            files.push(format!("{root}{}/{name}", group.trim_end_matches('/')));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_groups_above_count() {
        let files = limit_files("9:cpu:/x\n4:cpuset,memory:/a/b\n0::/c\n\n");
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/c/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        let memory = memory_bytes().expect("/proc/meminfo");
        assert!(memory > 0 && memory <= process::machine_bytes().expect("/proc/meminfo"));
    }

    #[test]
    fn a_full_file_system_is_told_before_anything_is_written() {
        let folder = std::env::temp_dir();
        check(&folder, 0).expect("room for nothing");
        let error = check(&folder, u64::MAX).unwrap_err();
        assert!(error.contains("--touch") && error.contains("TMPDIR"), "{error}");
    }
}
