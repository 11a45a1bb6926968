//! Notifications as futures. They need no runtime: the port's dispatcher wakes them.

use super::inbox::{Interest, Want};
use crate::backend::PortBackend;
use crate::error::{Error, Result};
use crate::port::PortInner;
use netvm_abi::{Nanos, NotificationId};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// A future that was polled and waits.
pub(super) struct Waiter {
    pub(super) key: u64,
    pub(super) want: Want,
    pub(super) waker: Waker,
}

/// What both futures do: look, enable interrupts and leave a waker, look again.
struct Watch {
    port: Arc<PortInner>,
    want: Want,
    /// Set from the first fruitless look on.
    left: Option<(u64, Interest)>,
}

impl Watch {
    fn poll<T>(&mut self, context: &Context<'_>, look: impl Fn(&PortInner) -> Option<T>) -> Poll<Result<T>> {
        if let Some(found) = look(&self.port) {
            self.leave();
            return Poll::Ready(Ok(found));
        }
        let prepared = self.port.alive().and_then(|()| self.port.ensure_dispatcher());
        if let Err(error) = prepared {
            self.leave();
            return Poll::Ready(Err(error));
        }
        let key = match &self.left {
            Some((key, _)) => *key,
            None => {
                let interest = Interest::new(&self.port, self.want);
                let key = {
                    let mut state = self.port.inbox.state.lock();
                    state.next_waiter += 1;
                    state.next_waiter
                };
                self.left = Some((key, interest));
                key
            }
        };
        let waker = context.waker().clone();
        let before = {
            let mut state = self.port.inbox.state.lock();
            let waiter = Waiter {
                key,
                want: self.want,
                waker,
            };
            match state.waiters.iter_mut().find(|waiter| waiter.key == key) {
                Some(place) => Some(std::mem::replace(place, waiter)),
                None => {
                    state.waiters.push(waiter);
                    None
                }
            }
        };
        drop(before);
        // The interrupt is enabled and the waker is there: what comes from now on wakes it. What came
        // before is seen here, a closed port included.
        if let Some(found) = look(&self.port) {
            self.leave();
            return Poll::Ready(Ok(found));
        }
        if let Err(error) = self.port.alive() {
            self.leave();
            return Poll::Ready(Err(error));
        }
        Poll::Pending
    }

    fn leave(&mut self) {
        let Some((key, interest)) = self.left.take() else {
            return;
        };
        let removed = {
            let mut state = self.port.inbox.state.lock();
            let at = state.waiters.iter().position(|waiter| waiter.key == key);
            at.map(|at| state.waiters.swap_remove(at))
        };
        drop((removed, interest));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Ends when a notification has pending signals, with their number. From
/// [`Notification::ready`](crate::Notification::ready).
#[must_use = "futures do nothing unless they are polled"]
pub struct NotificationReady {
    watch: Watch,
    id: NotificationId,
}

impl NotificationReady {
    pub(super) fn new(port: &Arc<PortInner>, id: NotificationId) -> Self {
        Self {
            watch: Watch {
                port: Arc::clone(port),
                want: Want::Signal(id),
                left: None,
            },
            id,
        }
    }
}

impl Future for NotificationReady {
    type Output = Result<u32>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.id;
        self.watch.poll(context, |port| {
            let pending = port.pending(id);
            (pending > 0).then_some(pending)
        })
    }
}

/// Ends with the next number of the notification queue. From
/// [`NotificationQueue::next`](crate::NotificationQueue::next).
#[must_use = "futures do nothing unless they are polled"]
pub struct NextNotification {
    watch: Watch,
}

impl NextNotification {
    pub(super) fn new(port: &Arc<PortInner>) -> Self {
        Self {
            watch: Watch {
                port: Arc::clone(port),
                want: Want::Entry,
                left: None,
            },
        }
    }
}

impl Future for NextNotification {
    type Output = Result<NotificationId>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.watch.poll(context, PortInner::pop_ready)
    }
}

/// Wakes a caller of [`block_on`] through the port's event count.
struct BlockedCaller(Arc<dyn PortBackend>);

impl Wake for BlockedCaller {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

/// Drives a future to its end. It is polled at each change of the port's event count, not only when it is woken: the
/// caller may be a handler of the port, and then the dispatcher, which would wake it, waits for the caller. The
/// deadline ends a block, so the future must end once it is polled after that.
fn drive<F: Future>(backend: &Arc<dyn PortBackend>, future: F, deadline: Nanos) -> F::Output {
    let waker = Waker::from(Arc::new(BlockedCaller(Arc::clone(backend))));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        // Before the poll: what changes from then on keeps the block from blocking.
        let token = backend.wait_token();
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        backend.block(token, deadline);
    }
}

/// Drives a future to its end.
pub(crate) fn block_on<F: Future>(backend: &Arc<dyn PortBackend>, future: F) -> F::Output {
    drive(backend, future, Nanos::MAX)
}

/// Drives a future until a deadline, then drops it.
pub(crate) fn block_on_until<F: Future>(
    backend: &Arc<dyn PortBackend>,
    future: F,
    deadline: Nanos,
) -> Result<F::Output> {
    let mut future = pin!(future);
    let limited = poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending if backend.now() >= deadline => Poll::Ready(Err(Error::TimedOut)),
        Poll::Pending => Poll::Pending,
    });
    drive(backend, limited, deadline)
}
