//! A counter that threads sleep on: look at the count, look at the condition, sleep until the count has changed.
//!
//! An event loop sleeps on a descriptor instead: it empties the descriptor, looks at the condition, and sleeps until the
//! descriptor is readable.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// An event count. Notifying costs no system call while no thread sleeps and there is no descriptor.
#[derive(Debug, Default)]
pub struct EventCount {
    count: AtomicU32,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
    /// There is a descriptor, or was.
    described: AtomicBool,
    descriptor: Mutex<Weak<OwnedFd>>,
}

impl EventCount {
    /// The count now; a caller that then finds nothing to do may [`wait`](Self::wait) on it.
    pub fn token(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Changes the count and wakes all sleepers.
    pub fn notify(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        // A sleeper announces itself before it compares the count, so one of the two sees the other.
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
        // As for the sleepers: the descriptor is there before its loop looks for the first time.
        if self.described.load(Ordering::SeqCst) {
            self.signal();
        }
    }

    /// An eventfd that each change of the count makes readable. It lives as long as its users.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn descriptor(&self) -> Result<Arc<OwnedFd>, Errno> {
        let mut known = self.descriptor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(descriptor) = known.upgrade() {
            return Ok(descriptor);
        }
        let descriptor = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        *known = Arc::downgrade(&descriptor);
        self.described.store(true, Ordering::SeqCst);
        Ok(descriptor)
    }

    #[cold]
    fn signal(&self) {
        let known = self.descriptor.lock().unwrap_or_else(PoisonError::into_inner);
        match known.upgrade() {
            // It fails only where the descriptor is as readable as it can be.
            Some(descriptor) => drop(rustix::io::write(&*descriptor, &1_u64.to_ne_bytes())),
            None => self.described.store(false, Ordering::SeqCst),
        }
    }

    /// Sleeps until the count differs from `token`, or `limit` has passed.
    pub fn wait(&self, token: u32, limit: Option<Duration>) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.count.load(Ordering::SeqCst) == token {
            guard = match end {
                None => self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    let woken = self.changed.wait_timeout(guard, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wake_up_is_lost() {
        let (ping, pong) = (EventCount::default(), EventCount::default());
        let (sent, answered) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=5000 {
                    loop {
                        let token = ping.token();
                        if sent.load(Ordering::SeqCst) >= round {
                            break;
                        }
                        ping.wait(token, None);
                    }
                    answered.store(round, Ordering::SeqCst);
                    pong.notify();
                }
            });
            for round in 1..=5000 {
                sent.store(round, Ordering::SeqCst);
                ping.notify();
                loop {
                    let token = pong.token();
                    if answered.load(Ordering::SeqCst) >= round {
                        break;
                    }
                    pong.wait(token, None);
                }
            }
        });
    }

    #[test]
    fn each_change_makes_the_descriptor_readable() {
        let count = EventCount::default();
        let is_readable = |descriptor: &OwnedFd| rustix::io::read(descriptor, &mut [0; 8]).is_ok();
        count.notify();
        let descriptor = count.descriptor().unwrap();
        assert!(!is_readable(&descriptor), "nothing has changed since it was made");
        count.notify();
        count.notify();
        assert!(is_readable(&descriptor));
        assert!(!is_readable(&descriptor), "it has been emptied");
        assert!(Arc::ptr_eq(&descriptor, &count.descriptor().unwrap()));
        // Without a user there is none, and a later user gets another one.
        drop(descriptor);
        count.notify();
        assert!(!count.described.load(Ordering::SeqCst));
        let descriptor = count.descriptor().unwrap();
        count.notify();
        assert!(is_readable(&descriptor));
    }

    #[test]
    fn a_wait_ends_at_its_limit() {
        let count = EventCount::default();
        let before = Instant::now();
        count.wait(count.token(), Some(Duration::from_millis(5)));
        assert!(before.elapsed() >= Duration::from_millis(5));
    }
}
