//! A normal exit loses nothing that was posted.
//!
//! `exit` runs no destructors of nodes that are still in use. So a process that has nodes asks the C library to be called by
//! `exit`, once, and keeps a list of its nodes. `_exit` and signals end a process without that, as pulling the plug does.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak, mpsc};
use std::time::{Duration, Instant};

use super::{Inner, LINGER};

/// The nodes of this process, and which process that is: a child of `fork` inherits the list, and perhaps its lock.
static NODES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// A node that is to leave when the process exits.
pub(super) fn remember(node: &Arc<Inner>) {
    let me = rustix::process::getpid().as_raw_pid();
    let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    nodes.retain(|node| node.strong_count() != 0);
    nodes.push(Arc::downgrade(node));
    // A child of `fork` has inherited the registration.
    if PROCESS.swap(me, Ordering::AcqRel) == 0 {
        // SAFETY: the function may be called at any time; it is a part of the program, which is not unloaded before. Without
        // memory for the registration an exit is as sudden as a signal.
        let _ = unsafe { libc::atexit(leave) };
    }
}

extern "C" fn leave() {
    if PROCESS.load(Ordering::Acquire) != rustix::process::getpid().as_raw_pid() {
        return;
    }
    // A signal handler that calls `exit` may have interrupted the thread that holds this lock, and others that `leave` takes:
    // threads that wait for those are left behind, and the process ends without. Another thread lets go of it at once.
    let end = Instant::now() + GRACE;
    let nodes = loop {
        match NODES.try_lock() {
            Ok(mut nodes) => break std::mem::take(&mut *nodes),
            Err(TryLockError::Poisoned(poisoned)) => break std::mem::take(&mut *poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => return,
        }
    };
    // All at once: each may have to wait for its peers.
    let (left, ended) = mpsc::channel::<()>();
    for node in nodes {
        let left = left.clone();
        let leaves = std::thread::Builder::new().spawn(move || {
            if let Some(node) = node.upgrade() {
                node.leave();
                // Its destructor would wait for threads, which end with the process.
                std::mem::forget(node);
            }
            drop(left);
        });
        drop(leaves);
    }
    drop(left);
    // Nothing is ever sent: it ends when the last thread has, or when none can be waited for any longer.
    let _ = ended.recv_timeout(LINGER + GRACE);
}

/// For a lock that another thread holds, and for threads that get no turn at once.
const GRACE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    /// What a signal handler that calls `exit` finds where it has interrupted [`remember`].
    #[test]
    fn a_list_that_is_locked_keeps_no_process_from_its_exit() {
        PROCESS.store(rustix::process::getpid().as_raw_pid(), Ordering::Release);
        let nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
        leave();
        drop(nodes);
    }
}
