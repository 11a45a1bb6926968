//! Notifications as futures. They need no runtime: the port's dispatcher wakes them.

use super::inbox::Want;
use super::watch::Watch;
use crate::backend::PortBackend;
use crate::error::{Error, Result};
use crate::port::PortInner;
use netvm_abi::{Nanos, NotificationId};
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// Ends when a notification has pending signals, with their number. From
/// [`Notification::ready`](crate::Notification::ready).
#[must_use = "futures do nothing unless they are polled"]
pub struct NotificationReady {
    port: Arc<PortInner>,
    watch: Watch,
    id: NotificationId,
}

impl NotificationReady {
    pub(super) fn new(port: &Arc<PortInner>, id: NotificationId) -> Self {
        Self {
            port: Arc::clone(port),
            watch: Watch::default(),
            id,
        }
    }
}

impl Future for NotificationReady {
    type Output = Result<u32>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { port, watch, id } = &mut *self;
        watch.poll(port, context, || match port.pending(*id) {
            0 => Err(Want::Signal(*id)),
            pending => Ok(pending),
        })
    }
}

/// Ends with the next number of the notification queue. From
/// [`NotificationQueue::next`](crate::NotificationQueue::next).
#[must_use = "futures do nothing unless they are polled"]
pub struct NextNotification {
    port: Arc<PortInner>,
    watch: Watch,
}

impl NextNotification {
    pub(super) fn new(port: &Arc<PortInner>) -> Self {
        Self {
            port: Arc::clone(port),
            watch: Watch::default(),
        }
    }
}

impl Future for NextNotification {
    type Output = Result<NotificationId>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { port, watch } = &mut *self;
        watch.poll(port, context, || port.pop_ready().ok_or(Want::Entry))
    }
}

/// Ends when a time of the port's clock has come. From [`Port::sleep`](crate::Port::sleep).
#[must_use = "futures do nothing unless they are polled"]
pub struct Sleep {
    port: Arc<PortInner>,
    watch: Watch,
    until: Nanos,
}

impl Sleep {
    pub(crate) fn new(port: &Arc<PortInner>, until: Nanos) -> Self {
        Self {
            port: Arc::clone(port),
            watch: Watch::default(),
            until,
        }
    }
}

impl Future for Sleep {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { port, watch, until } = &mut *self;
        watch.poll(port, context, || {
            if port.backend.now() >= *until {
                Ok(())
            } else {
                Err(Want::Time.until(*until))
            }
        })
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sleep(port {}, until {:?})", self.port.port(), self.until)
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
