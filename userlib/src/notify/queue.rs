//! The notification queue (thesis 6.1.1): one-shot notifications in strict order, and event-count
//! ones that are handled nowhere else.

use super::future::NextNotification;
use super::inbox::{Interest, Want};
use crate::error::{Error, Result};
use crate::port::PortInner;
use crate::timeout::{Timeout, is_over};
use netvm_abi::NotificationId;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A port's notification queue.
///
/// One-shot numbers (from 1024 up) come out once per signal, in the order in which their sender
/// issued them, and need no acknowledgement. Event-count numbers (below 1024) come out when they
/// have pending signals, and again after each acknowledgement that leaves some.
#[derive(Clone)]
pub struct NotificationQueue {
    port: Arc<PortInner>,
}

impl NotificationQueue {
    pub(crate) fn new(port: &Arc<PortInner>) -> Self {
        Self {
            port: Arc::clone(port),
        }
    }

    /// Takes the next number, if there is one (thesis: `notfQRemove`).
    #[must_use]
    pub fn pop(&self) -> Option<NotificationId> {
        self.port.pop_ready()
    }

    /// Waits for the next number (thesis: `notfQWait`). Spins a little, then blocks.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn wait(&self, timeout: impl Into<Timeout>) -> Result<NotificationId> {
        let backend = &self.port.backend;
        self.port.ring_if_owed();
        let deadline = timeout.into().deadline(backend.now());
        for spins in 0..self.port.config.spins {
            if let Some(id) = self.pop() {
                return Ok(id);
            }
            self.port.alive()?;
            if is_over(deadline, spins, &**backend) {
                return Err(Error::TimedOut);
            }
            backend.relax(spins);
        }
        let _interest = Interest::new(&self.port, Want::Entry);
        loop {
            let token = backend.wait_token();
            if let Some(id) = self.pop() {
                return Ok(id);
            }
            self.port.alive()?;
            if backend.now() >= deadline {
                return Err(Error::TimedOut);
            }
            self.port.counters.blocked.fetch_add(1, Ordering::Relaxed);
            backend.block(token, deadline);
        }
    }

    /// A future that ends with the next number. It runs under any executor.
    #[must_use = "futures do nothing unless they are polled"]
    pub fn next(&self) -> NextNotification {
        NextNotification::new(&self.port)
    }
}

impl fmt::Debug for NotificationQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotificationQueue(port {})", self.port.port())
    }
}
