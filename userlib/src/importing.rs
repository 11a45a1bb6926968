//! An import under way.
//!
//! An import asks the exporter's driver, and asks again where the name is not there yet. That is a conversation of the control
//! path, with pauses. It runs beside the program, on a thread of the back end that ends with it (a coroutine in the simulator).

use crate::error::{Error, Result};
use crate::import::{RemoteSegment, import_while};
use crate::port::{Port, PortInner};
use crate::timeout::Timeout;
use netvm_abi::control::{Modes, Name};
use netvm_abi::{Nanos, NodeId, PortId};
use parking_lot::Mutex;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// An import under way. From [`Port::begin_import`].
///
/// It can be looked at ([`is_done`](Self::is_done)), waited for ([`wait_for`](Self::wait_for)) and awaited: it is a future that
/// runs under any executor. Its end makes the descriptor of the port's [`Events`](crate::Events) readable. Dropped before, it
/// gives the import up; a grant that comes later is given back.
///
/// ```no_run
/// use netvm::{Modes, Port, RemoteSegment, Timeout};
///
/// async fn bind(port: &Port, name: &str) -> netvm::Result<RemoteSegment> {
///     port.begin_import(1.into(), 7.into(), name, Modes::READ, Timeout::Never)?.await
/// }
/// ```
#[must_use = "dropping it gives the import up"]
pub struct PendingImport {
    port: Arc<PortInner>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// How it has ended, until that is taken.
    end: Option<Result<RemoteSegment>>,
    has_ended: bool,
    given_up: bool,
    waker: Option<Waker>,
}

impl Port {
    /// Begins what [`import_with`](Self::import_with) does, and does not wait for it.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::NoSuchNode`], [`Error::PortClosed`], [`Error::PortEnded`]; [`Error::Refused`] where no thread
    /// can be made. Whatever else an import fails with, its end tells.
    pub fn begin_import(
        &self,
        node: NodeId,
        port: PortId,
        name: &str,
        modes: Modes,
        timeout: impl Into<Timeout>,
    ) -> Result<PendingImport> {
        PendingImport::begin(&self.inner, (node, port), name, modes, timeout.into())
    }
}

impl PendingImport {
    fn begin(
        port: &Arc<PortInner>,
        (node, exporter): (NodeId, PortId),
        name: &str,
        modes: Modes,
        timeout: Timeout,
    ) -> Result<Self> {
        port.alive()?;
        port.check_node(node)?;
        Name::new(name).map_err(|_| Error::Name { name: name.into() })?;
        let state = Arc::new(Mutex::new(State::default()));
        let (inner, shared, name) = (Arc::clone(port), Arc::clone(&state), name.to_owned());
        let body = move || {
            let is_wanted = || !shared.lock().given_up;
            let end = import_while(&inner, node, exporter, &name, modes, timeout, &is_wanted);
            let (unwanted, waker) = {
                let mut state = shared.lock();
                state.has_ended = true;
                let unwanted = if state.given_up {
                    Some(end)
                } else {
                    state.end = Some(end);
                    None
                };
                (unwanted, state.waker.take())
            };
            // To let go of a segment may park: after the lock.
            drop(unwanted);
            if let Some(waker) = waker {
                waker.wake();
            }
            inner.backend.wake();
        };
        let spawned = port.backend.spawn("netvm-import", Box::new(body));
        spawned.map_err(|reason| Error::Refused {
            what: "start the thread of an import",
            reason,
        })?;
        Ok(Self {
            port: Arc::clone(port),
            state,
        })
    }

    /// Whether it has ended, well or not. Never waits.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.lock().has_ended
    }

    /// How it has ended, if it has: once. Never waits.
    pub fn end(&mut self) -> Option<Result<RemoteSegment>> {
        self.state.lock().end.take()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As [`Port::import`].
    pub fn wait(mut self) -> Result<RemoteSegment> {
        self.wait_for(Timeout::Never)
    }

    /// Waits for its end, so long. After [`Error::TimedOut`] it is still under way, and may be waited for again.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`Error::TimedOut`]; [`Error::Released`] after its end was taken.
    pub fn wait_for(&mut self, timeout: impl Into<Timeout>) -> Result<RemoteSegment> {
        let backend = Arc::clone(&self.port.backend);
        let deadline = timeout.into().deadline(backend.now());
        loop {
            // Before the look: an end that this does not find changes the token.
            let token = backend.wait_token();
            if let Some(end) = self.taken() {
                return end;
            }
            if deadline != Nanos::MAX && backend.now() >= deadline {
                return Err(Error::TimedOut);
            }
            backend.block(token, deadline);
        }
    }

    /// Its end, or that it was taken before.
    fn taken(&self) -> Option<Result<RemoteSegment>> {
        let mut state = self.state.lock();
        let end = state.end.take();
        end.or_else(|| state.has_ended.then_some(Err(Error::Released)))
    }
}

impl Future for PendingImport {
    type Output = Result<RemoteSegment>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A waker is the program's: neither cloned nor dropped under the lock.
        let waker = context.waker().clone();
        let mut state = self.state.lock();
        let before = if state.has_ended {
            None
        } else {
            state.waker.replace(waker)
        };
        let end = state.end.take();
        let ended = state.has_ended;
        drop(state);
        drop(before);
        match (end, ended) {
            (Some(end), _) => Poll::Ready(end),
            (None, true) => Poll::Ready(Err(Error::Released)),
            (None, false) => Poll::Pending,
        }
    }
}

impl Drop for PendingImport {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.given_up = true;
        let (end, waker) = (state.end.take(), state.waker.take());
        drop(state);
        // Either may run code that takes its time, or other locks.
        drop((end, waker));
    }
}

impl fmt::Debug for PendingImport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingImport")
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}
