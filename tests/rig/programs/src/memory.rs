//! Memory pressure: the kernel is asked to take a control group's pages away.

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
