//! What is built once a machine and kept outside of the checkout: tools, kernels.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::FlockOperation;

/// `$NETVM_CACHE`, else `$XDG_CACHE_HOME/netvm`, else `~/.cache/netvm`; made if it is not there.
pub fn folder() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = if let Some(own) = set("NETVM_CACHE") {
        PathBuf::from(own)
    } else if let Some(base) = set("XDG_CACHE_HOME") {
        PathBuf::from(base).join("netvm")
    } else {
        let home = set("HOME").context("none of NETVM_CACHE, XDG_CACHE_HOME and HOME is set")?;
        PathBuf::from(home).join(".cache/netvm")
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("making the cache {}", folder.display()))?;
    // The compiler that builds below it starts in other folders.
    std::path::absolute(&folder).context("the cache's path")
}

/// Waits until no other process builds `name` in `folder`; the turn ends with the file.
pub fn turn(folder: &Path, name: &str) -> Result<File> {
    let path = folder.join(format!("{name}.lock"));
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!("waiting for another build of {name} ({})", path.display());
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .with_context(|| format!("locking {}", path.display()))?;
    }
    Ok(file)
}

/// Fails unless `folder`'s disk has room for `bytes`.
pub fn room(folder: &Path, bytes: u64, what: &str) -> Result<()> {
    let disk = rustix::fs::statvfs(folder).context("asking how much room the disk has")?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < bytes {
        bail!(
            "{what} needs {} MiB below {}, and its disk has {} MiB; NETVM_CACHE names another place",
            bytes >> 20,
            folder.display(),
            free >> 20
        );
    }
    Ok(())
}

/// A short name for `text`: the same for the same text on every machine (FNV-1a; a cache needs no protection from its own user).
pub fn name_of(text: &str) -> String {
    let hash = text.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_fnv() {
        // Test vectors of the FNV reference (draft-eastlake-fnv, appendix C).
        assert_eq!(name_of(""), "cbf29ce484222325");
        assert_eq!(name_of("foobar"), "85944171f73967e8");
    }

    #[test]
    fn a_full_disk_is_named() {
        let error = room(Path::new("/"), u64::MAX, "a kernel").expect_err("no disk is that large");
        assert!(error.to_string().contains("NETVM_CACHE"), "{error}");
        room(Path::new("/"), 0, "nothing").unwrap();
    }
}
