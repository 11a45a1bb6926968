//! Listeners.

use crate::address::Address;
use crate::conn::Conn;
use crate::engine::{Call, Engine, Handle};
use crate::error;
use crate::stream::Stream;
use crate::wire::Reason;
use crossbeam_queue::SegQueue;
use futures_util::task::AtomicWaker;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

/// What a listener and the network share.
pub(crate) struct Waiting {
    service: u16,
    backlog: usize,
    ready: SegQueue<Arc<Conn>>,
    waker: AtomicWaker,
    closed: AtomicBool,
    engine: Weak<Engine>,
}

impl Waiting {
    pub(crate) const fn new(service: u16, backlog: usize, engine: Weak<Engine>) -> Self {
        Self {
            service,
            backlog,
            ready: SegQueue::new(),
            waker: AtomicWaker::new(),
            closed: AtomicBool::new(false),
            engine,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.ready.len() >= self.backlog
    }

    pub(crate) fn push(&self, conn: Arc<Conn>) {
        self.ready.push(conn);
        self.waker.wake();
    }

    /// The network has ended.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // What was never accepted ends. Without an engine everything has ended.
        if let Some(engine) = self.engine.upgrade() {
            while let Some(conn) = self.ready.pop() {
                engine.call(Call::Abort(conn));
            }
        }
    }
}

/// Takes connections to a number. Dropping it takes the number back, and resets connections that were not accepted.
pub struct Listener {
    engine: Arc<Handle>,
    waiting: Arc<Waiting>,
    nonblocking: bool,
    timeout: Option<Duration>,
}

impl Listener {
    pub(crate) const fn new(engine: Arc<Handle>, waiting: Arc<Waiting>) -> Self {
        Self {
            engine,
            waiting,
            nonblocking: false,
            timeout: None,
        }
    }

    /// Where others connect to.
    #[must_use]
    pub fn local_address(&self) -> Address {
        Address {
            node: self.engine.port.node().id(),
            port: self.engine.port.id(),
            service: self.waiting.service,
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock), if it does not block; [`TimedOut`](io::ErrorKind::TimedOut) after the
    /// [time-out](Self::set_timeout); [`NotConnected`](io::ErrorKind::NotConnected) when the network has ended.
    pub fn accept(&mut self) -> io::Result<Stream> {
        if self.nonblocking {
            self.engine.look();
            return match self.poll(None) {
                Poll::Ready(accepted) => accepted,
                Poll::Pending => Err(error::would_block()),
            };
        }
        self.engine.wait(self.timeout, |context| self.poll(context))
    }

    /// The next connection, if there is one; else the waker is called when there is.
    pub(crate) fn poll(&self, context: Option<&Context<'_>>) -> Poll<io::Result<Stream>> {
        if let Some(context) = context {
            self.waiting.waker.register(context.waker());
        }
        match self.waiting.ready.pop() {
            Some(conn) => Poll::Ready(Ok(Stream::new(Arc::clone(&self.engine), conn))),
            None if self.waiting.closed.load(Ordering::Acquire) => Poll::Ready(Err(Reason::Closed.error())),
            None => Poll::Pending,
        }
    }

    /// The next connection, if there is one. If not, the waker is called when there is.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected) when the network has ended.
    pub fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        self.engine.drive();
        self.poll(Some(context))
    }

    /// As [`accept`](Self::accept), as a future.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected) when the network has ended.
    pub async fn accept_async(&mut self) -> io::Result<Stream> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    /// Whether [`accept`](Self::accept) returns at once.
    pub const fn set_nonblocking(&mut self, nonblocking: bool) {
        self.nonblocking = nonblocking;
    }

    /// How long [`accept`](Self::accept) waits; none: for ever.
    pub const fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.engine.call(Call::Unlisten(self.waiting.service));
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.local_address())
    }
}
