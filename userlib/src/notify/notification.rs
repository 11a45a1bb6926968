//! One event-count notification (thesis 6.1.3): test, spin, wait, acknowledge, arm.

use super::future::NotificationReady;
use super::inbox::{Interest, Want};
use crate::error::{Error, Result};
use crate::port::PortInner;
use crate::timeout::{Timeout, is_over};
use netvm_abi::{Nanos, NotificationId};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An event-count notification of a port: a count of signals, and a count of those acknowledged.
///
/// A signal stays pending until it is [acknowledged](Self::ack), by the code that handled it. Handle a number in one
/// way at a time: here, through the [queue](crate::NotificationQueue), or with a [handler](Self::arm).
#[derive(Clone)]
pub struct Notification {
    port: Arc<PortInner>,
    id: NotificationId,
    /// It belongs to an object of the library.
    own: bool,
}

impl Notification {
    pub(crate) fn new(port: &Arc<PortInner>, id: NotificationId, own: bool) -> Result<Self> {
        if !id.is_some() || id.is_one_shot() {
            return Err(Error::NotificationNumber { id });
        }
        let port = Arc::clone(port);
        Ok(Self { port, id, own })
    }

    /// One for the program.
    pub(crate) fn of_program(port: &Arc<PortInner>, id: NotificationId) -> Result<Self> {
        let notification = Self::new(port, id, false)?;
        notification.check_owner()?;
        Ok(notification)
    }

    /// The library may have taken the number for itself since the program has made this.
    fn check_owner(&self) -> Result<()> {
        if self.own {
            return Ok(());
        }
        self.port.inbox.state.lock().is_programs(self.id)
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> NotificationId {
        self.id
    }

    /// How many signals are pending (thesis: `notfTest`).
    #[must_use]
    #[inline]
    pub fn pending(&self) -> u32 {
        self.port.pending(self.id)
    }

    /// How many signals the card has counted in the life of the port.
    #[inline]
    pub(crate) fn signals(&self) -> u32 {
        self.port.signals(self.id)
    }

    /// Spins until a signal is pending; gives the number of those pending.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn spin(&self, timeout: impl Into<Timeout>) -> Result<u32> {
        let pending = self.pending();
        if pending > 0 {
            return Ok(pending);
        }
        let deadline = timeout.into().deadline(self.port.backend.now());
        let found = self.spin_for(u32::MAX, deadline, || self.some_pending())?;
        found.ok_or(Error::TimedOut)
    }

    fn some_pending(&self) -> Option<u32> {
        Some(self.pending()).filter(|&pending| pending > 0)
    }

    /// Looks up to `limit` times, until the deadline.
    fn spin_for<T>(&self, limit: u32, deadline: Nanos, look: impl Fn() -> Option<T>) -> Result<Option<T>> {
        let backend = &self.port.backend;
        self.port.ring_if_owed();
        let mut spins = 0;
        loop {
            if let Some(found) = look() {
                return Ok(Some(found));
            }
            self.port.alive()?;
            if spins >= limit && limit != u32::MAX {
                return Ok(None);
            }
            if is_over(deadline, spins, &**backend) {
                return Ok(None);
            }
            backend.relax(spins);
            spins = spins.saturating_add(1);
        }
    }

    /// Spins a little, then blocks until a signal is pending; gives the number of those pending.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::PortClosed`], [`Error::PortEnded`].
    pub fn wait(&self, timeout: impl Into<Timeout>) -> Result<u32> {
        let pending = self.pending();
        if pending > 0 {
            return Ok(pending);
        }
        let deadline = timeout.into().deadline(self.port.backend.now());
        self.wait_until(deadline)
    }

    /// As [`wait`](Self::wait), until this time.
    pub(crate) fn wait_until(&self, deadline: Nanos) -> Result<u32> {
        self.wait_for(deadline, || self.some_pending())
    }

    /// Waits until the card has counted other than `seen` signals, acknowledged or not.
    pub(crate) fn wait_signal(&self, seen: u32, deadline: Nanos) -> Result<()> {
        self.wait_for(deadline, || (self.signals() != seen).then_some(()))
    }

    /// Waits for something that a signal of this number announces.
    fn wait_for<T>(&self, deadline: Nanos, look: impl Fn() -> Option<T>) -> Result<T> {
        let backend = &self.port.backend;
        if let Some(found) = self.spin_for(self.port.config.spins, deadline, &look)? {
            return Ok(found);
        }
        let _interest = Interest::new(&self.port, Want::Signal(self.id));
        loop {
            let token = backend.wait_token();
            if let Some(found) = look() {
                return Ok(found);
            }
            self.port.alive()?;
            if backend.now() >= deadline {
                return Err(Error::TimedOut);
            }
            self.port.counters.blocked.fetch_add(1, Ordering::Relaxed);
            backend.block(token, deadline);
        }
    }

    /// Acknowledges one signal: it has been handled.
    ///
    /// # Errors
    /// [`Error::NothingPending`]; [`Error::NotificationTaken`].
    pub fn ack(&self) -> Result<()> {
        self.check_owner()?;
        self.port.acknowledge(self.id)
    }

    /// Acknowledges the signals that are pending, at most so many. Tells how many these were.
    ///
    /// # Errors
    /// [`Error::NotificationTaken`].
    pub fn ack_up_to(&self, most: u32) -> Result<u32> {
        self.check_owner()?;
        Ok(self.port.acknowledge_up_to(self.id, most))
    }

    /// Runs `handler` exactly once for each signal, those that are pending included, beside the
    /// program: on a thread of the library (a coroutine in the simulator), never in a signal handler,
    /// one handler of a port at a time. Each signal is acknowledged when its call returns. A handler
    /// that acknowledges signals itself, or receives their messages, is not called for those. The
    /// handler may use the port, write and notify; to go on with an event loop it may write to an
    /// eventfd. A handler armed before is replaced; one that panics is disarmed and counted.
    ///
    /// Handlers take turns: a signal's call comes after at most one call of each other armed number (and the calls for
    /// earlier signals of its own number), and futures are looked at after each call. A handler that blocks holds up all
    /// handlers and futures of the port. It may wait for a future of its own port with
    /// [`Port::block_on`](crate::Port::block_on); another executor, or `block_on` of another port, would wait for ever for
    /// the thread that it runs on.
    ///
    /// # Errors
    /// [`Error::PortClosed`], [`Error::PortEnded`]; [`Error::NotificationTaken`]; [`Error::Refused`] when the thread cannot
    /// be made.
    pub fn arm(&self, handler: impl FnMut(NotificationId) + Send + 'static) -> Result<()> {
        self.port.alive()?;
        self.check_owner()?;
        self.port.ensure_dispatcher()?;
        drop(self.port.set_handler(self.id, Some(Box::new(handler))));
        Ok(())
    }

    /// No handler runs for signals from now on; a call under way finishes. Tells whether one was
    /// armed. Signals that are left are pending as if it had never been.
    pub fn disarm(&self) -> bool {
        self.port.set_handler(self.id, None).is_some()
    }

    /// A future that ends when a signal is pending, with the number of those pending. It runs under
    /// any executor.
    #[must_use = "futures do nothing unless they are polled"]
    pub fn ready(&self) -> NotificationReady {
        NotificationReady::new(&self.port, self.id)
    }
}

impl fmt::Debug for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Notification({}, {} pending)", self.id, self.pending())
    }
}
