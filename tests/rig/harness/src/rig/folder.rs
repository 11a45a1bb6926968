//! Where memories and sockets of machines are: in memory where there is room for them, gone at the end. What a killed rig
//! left is taken away by the next one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};

use crate::cache;

/// What every such folder is called at first.
const PREFIX: &str = "netvm-rig-";
/// In each: locked as long as its owner lives.
const LOCK: &str = "owner";
/// Bytes for sockets and what else is small.
const SMALL: u64 = 64 << 20;

/// A folder of this process, taken away with everything in it where this is dropped.
pub(super) struct Folder {
    path: PathBuf,
    _owner: File,
}

impl Folder {
    /// A new one, with room for `bytes`.
    pub(super) fn new(bytes: u64) -> Result<Self> {
        let (shm, disk) = (PathBuf::from("/dev/shm"), std::env::temp_dir());
        for base in [&shm, &disk] {
            sweep(base);
        }
        let base = match cache::room(&shm, bytes + SMALL, "the rig") {
            Ok(()) => shm,
            Err(_) => disk,
        };
        cache::room(&base, bytes + SMALL, "the memory of the rig's machines")?;
        Self::below(&base)
    }

    fn below(base: &Path) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{PREFIX}{}-{number}", std::process::id()));
        // It has its name only when it is locked: no other rig may take it for one that was left.
        let new = base.join(format!("new-{PREFIX}{}-{number}", std::process::id()));
        for path in [&path, &new] {
            // Of a process of the same number.
            let _ = std::fs::remove_dir_all(path);
        }
        std::fs::create_dir_all(&new).with_context(|| format!("making {}", new.display()))?;
        let owner = File::create(new.join(LOCK)).with_context(|| format!("writing to {}", new.display()))?;
        flock(&owner, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("locking {}", new.display()))?;
        std::fs::rename(&new, &path).with_context(|| format!("naming {}", path.display()))?;
        Ok(Self { path, _owner: owner })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is memory of machines that are gone.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Takes away what killed rigs have left: their locks are free. Their machines have ended with them.
fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // One without a lock is not ours.
        let Ok(owner) = File::open(entry.path().join(LOCK)) else {
            continue;
        };
        if flock(&owner, FlockOperation::NonBlockingLockExclusive).is_ok() {
            eprintln!("taking away what a killed rig left: {}", entry.path().display());
            // A folder of another user stays where it is.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dead_left_goes_and_what_lives_stays() {
        let base = std::env::temp_dir().join(format!("netvm-sweep-{}", std::process::id()));
        let alive = Folder::below(&base).expect("a folder");
        let dead = base.join(format!("{PREFIX}1-0"));
        let strange = base.join("other");
        for path in [&dead, &strange] {
            std::fs::create_dir_all(path).expect("a folder");
            File::create(path.join(LOCK)).expect("a file");
        }
        sweep(&base);
        assert!(alive.path().exists() && strange.exists());
        assert!(!dead.exists());
        drop(alive);
        sweep(&base);
        assert_eq!(std::fs::read_dir(&base).expect("the base").count(), 1);
        std::fs::remove_dir_all(&base).expect("gone");
    }
}
