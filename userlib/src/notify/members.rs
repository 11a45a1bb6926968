//! Numbers that one object of the library waits for together, apart from the port's notification queue.

use super::inbox::{Interest, Want};
use crate::error::{Error, Result};
use crate::port::PortInner;
use crate::timeout::is_over;
use netvm_abi::{Nanos, NotificationId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A set of event-count numbers with a list of its own: those that may have something to look at. A number of a group
/// never comes out of the port's notification queue, so groups and readers of that queue take nothing from one
/// another. A number that has a handler goes to both.
pub(crate) struct Group {
    port: Arc<PortInner>,
    key: u64,
}

impl Group {
    pub(crate) fn new(port: &Arc<PortInner>) -> Self {
        Self {
            port: Arc::clone(port),
            key: port.inbox.state.lock().new_group(),
        }
    }

    /// Its port.
    pub(crate) const fn port(&self) -> &Arc<PortInner> {
        &self.port
    }

    /// What a future wants that waits for one of its numbers.
    pub(crate) const fn want(&self) -> Want {
        Want::Member(self.key)
    }

    /// Takes a number in.
    pub(crate) fn add(&self, id: NotificationId) {
        self.port.inbox.state.lock().members.insert(id, self.key);
    }

    /// Takes a number out. If it has something pending it goes to the port's queue.
    pub(crate) fn remove(&self, id: NotificationId) {
        let mut state = self.port.inbox.state.lock();
        if state.members.remove(&id).is_some() {
            self.port.announce_if_due(&mut state, id);
        }
    }

    /// The next number that may have something to look at.
    pub(crate) fn pop(&self) -> Option<NotificationId> {
        let mut state = self.port.inbox.state.lock();
        self.port.drain(&mut state);
        let mut found = state.pop_member(self.key);
        if found.is_none() && self.port.make_sure(&mut state) {
            found = state.pop_member(self.key);
            drop(state);
            // Some of what came to light may be another's.
            self.port.backend.wake();
        }
        found
    }

    /// Waits for the next number: spins a little, then blocks.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::PortClosed`], [`Error::PortEnded`].
    pub(crate) fn wait_until(&self, deadline: Nanos) -> Result<NotificationId> {
        let backend = &self.port.backend;
        self.port.ring_if_owed();
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
        // An entry that the card makes from here on wakes this caller. Another thread may drain it into
        // the list, but the event count has changed by then.
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
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut state = self.port.inbox.state.lock();
        for id in state.end_group(self.key) {
            self.port.announce_if_due(&mut state, id);
        }
    }
}
