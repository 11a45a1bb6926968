//! Which listeners of this machine have the library: a file for each address, locked while a process has the socket.
//!
//! The kernel takes the lock back when the last process that has inherited it has ended, so a file that is not locked means nothing. The folder
//! is the user's own: others can neither add an address nor take one away. A network namespace has names of its own.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// So often a file may be taken away while it is being locked.
const TRIES: u32 = 100;

/// A listener that others find. While it lives, its file is locked.
pub(crate) struct Announced {
    file: File,
    path: PathBuf,
    /// A child of `fork` has the same lock.
    is_shared: AtomicBool,
}

impl Announced {
    /// The process is about to fork.
    pub(crate) fn share(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }
}

impl Drop for Announced {
    /// The last process that has the address takes the file away. One that is killed leaves it, and so does one of several that have one
    /// lock: it is locked by nothing in the end, and is used again.
    fn drop(&mut self) {
        if self.is_shared.load(Ordering::Relaxed) {
            return;
        }
        let alone = ask(
            self.file.as_raw_fd(),
            libc::F_OFD_SETLK,
            &mut lock_of(libc::F_WRLCK),
        );
        if alone.is_ok() && is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a file is the one that has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let named = fs::metadata(path);
    let opened = file.metadata();
    matches!((named, opened), (Ok(named), Ok(opened)) if named.ino() == opened.ino())
}

/// The user's folder, which no other user can have made.
fn folder() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = PathBuf::from(format!("/dev/shm/netvm-tcp-{user}"));
    // If it is there already, what follows looks at it.
    let _ = DirBuilder::new().mode(0o700).create(&folder);
    let found = fs::symlink_metadata(&folder)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(Error::other("the folder of listeners is not this user's own"));
    }
    Ok(folder)
}

/// The file of an address, as this network namespace means it.
fn file_of(address: SocketAddr) -> Result<PathBuf> {
    let namespace = fs::metadata("/proc/self/ns/net")?.ino();
    let port = address.port();
    Ok(folder()?.join(match address.ip() {
        IpAddr::V4(ip) => format!("{namespace}-{ip}-{port}"),
        IpAddr::V6(ip) => format!("{namespace}-{:032x}-{port}", ip.to_bits()),
    }))
}

/// A lock of the open file, on all of it.
fn lock_of(kind: libc::c_int) -> libc::flock {
    // SAFETY: all noughts are a lock of all bytes from the first on.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

fn ask(fd: RawFd, command: libc::c_int, lock: &mut libc::flock) -> Result<()> {
    // SAFETY: the descriptor is open, and the lock stands for the call.
    match unsafe { crate::real::fcntl(fd, command, (&raw mut *lock).addr()) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Says that a listener has the library.
///
/// # Errors
/// The folder is not to be trusted, or the file cannot be made or locked.
pub(crate) fn announce(address: SocketAddr) -> Result<Announced> {
    let path = file_of(address)?;
    for _ in 0..TRIES {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)?;
        // Processes may share an address: each has its part in the lock.
        let locked = ask(file.as_raw_fd(), libc::F_OFD_SETLK, &mut lock_of(libc::F_RDLCK));
        // If not, the last one that had it is just taking it away.
        if locked.is_ok() && is_at(&file, &path) {
            return Ok(Announced {
                file,
                path,
                is_shared: AtomicBool::new(false),
            });
        }
        std::thread::yield_now();
    }
    Err(Error::other(
        "the file of a listener is taken away again and again",
    ))
}

/// Whether a process has the lock of this address.
fn is_locked(address: SocketAddr) -> bool {
    let Ok(path) = file_of(address) else {
        return false;
    };
    let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else {
        return false;
    };
    let mut lock = lock_of(libc::F_WRLCK);
    ask(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock).is_ok()
        && libc::c_int::from(lock.l_type) != libc::F_UNLCK
}

/// Whether the listener at an address of this machine has the library.
pub(crate) fn has_library(address: SocketAddr) -> bool {
    let port = address.port();
    let ip = address.ip().to_canonical();
    let all = [ip, Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    // A listener of all addresses of version 6 takes those of version 4 as well; not so the other way round.
    let fits = all
        .into_iter()
        .filter(|listener| ip.is_ipv4() || listener.is_ipv6());
    fits.into_iter().any(|ip| is_locked(SocketAddr::new(ip, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_while_it_lives() {
        // A port of this test: no socket is needed for a name.
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 1);
        assert!(!has_library(at("127.0.0.71")));
        let one = announce(at("127.0.0.71")).unwrap();
        let two = announce(at("127.0.0.71")).unwrap();
        assert!(has_library(at("127.0.0.71")) && has_library(at("::ffff:127.0.0.71")));
        assert!(!has_library(at("127.0.0.72")) && !has_library(at("::1")));
        drop(one);
        assert!(has_library(at("127.0.0.71")));
        drop(two);
        assert!(!has_library(at("127.0.0.71")));
        assert!(!file_of(at("127.0.0.71")).unwrap().exists());
    }
}
