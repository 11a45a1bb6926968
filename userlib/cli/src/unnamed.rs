//! Files without a name: they go with the process, however that ends.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// An empty file on the file system of `folder`, for reading and writing.
///
/// # Errors
/// What the kernel refuses.
pub(crate) fn open(folder: &Path) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, mode) {
        // Not every file system has files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => named_for_a_moment(folder),
        other => other,
    }
}

/// The size that files of this process may have, if that is less than `len`: beyond it the kernel ends the process by a signal.
pub(crate) fn limit_below(len: u64) -> Option<u64> {
    getrlimit(Resource::Fsize).current.filter(|most| *most < len)
}

/// What [`open`] gives, of a file that has a name until it is open.
fn named_for_a_moment(folder: &Path) -> Result<OwnedFd, Errno> {
    /// Threads of this process do not meet.
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("netvm-{}-{serial}", std::process::id()));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::unlink(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_has_a_name() {
        let folder = std::env::temp_dir();
        for open in [open, named_for_a_moment] {
            let (first, second) = (open(&folder).unwrap(), open(&folder).unwrap());
            let links = [first, second].map(|file| rustix::fs::fstat(&file).unwrap().st_nlink);
            assert_eq!(links, [0, 0]);
        }
    }
}
