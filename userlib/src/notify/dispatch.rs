//! The dispatcher: the one thread (or coroutine) of a port that calls handlers and wakes futures.
//!
//! It is started by the first handler or future and ends when the port is closed.

use super::future::Waiter;
use super::inbox::Want;
use crate::error::{Error, Result};
use crate::port::PortInner;
use netvm_abi::{Nanos, NotificationId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl PortInner {
    /// Starts the dispatcher if it does not run yet.
    pub(super) fn ensure_dispatcher(self: &Arc<Self>) -> Result<()> {
        {
            let mut state = self.inbox.state.lock();
            if state.dispatcher_runs {
                return Ok(());
            }
            state.dispatcher_runs = true;
        }
        let port = Arc::clone(self);
        let spawned = self
            .backend
            .spawn("netvm-notify", Box::new(move || port.dispatch()));
        spawned.map_err(|reason| {
            self.inbox.state.lock().dispatcher_runs = false;
            Error::Refused {
                what: "start the notification thread",
                reason,
            }
        })
    }

    fn dispatch(&self) {
        loop {
            let token = self.backend.wait_token();
            if self.alive().is_err() {
                // Every future learns of it when it is polled again.
                self.close_inbox();
                return;
            }
            while let Some(id) = self.pop_dispatch() {
                while self.call_handler(id) {}
            }
            for waiter in self.due_waiters() {
                waiter.waker.wake();
            }
            self.backend.block(token, Nanos::MAX);
        }
    }

    /// Calls the handler of `id` for one pending signal; false when there is none of either.
    fn call_handler(&self, id: NotificationId) -> bool {
        let (generation, mut handler) = {
            let mut state = self.inbox.state.lock();
            let Some(armed) = state.handlers.get_mut(&id) else {
                return false;
            };
            if self.pending(id) == 0 {
                return false;
            }
            // Taken out while it runs, so that it may use the port, and arm and disarm.
            match armed.handler.take() {
                Some(handler) => (armed.generation, handler),
                None => return false,
            }
        };
        self.counters.handler_calls.fetch_add(1, Ordering::Relaxed);
        let call = catch_unwind(AssertUnwindSafe(|| handler(id)));
        // The signal has been handled: acknowledged before anybody else may look at it. That there is
        // nothing to acknowledge means that the handler has done so itself.
        let _ = self.acknowledge(id);
        if call.is_err() {
            self.counters.handler_panics.fetch_add(1, Ordering::Relaxed);
            let still_armed = {
                let state = self.inbox.state.lock();
                state.handlers.get(&id).map(|armed| armed.generation) == Some(generation)
            };
            let removed = if still_armed {
                self.set_handler(id, None)
            } else {
                None
            };
            drop((removed, handler));
            return true;
        }
        let replaced = {
            let mut state = self.inbox.state.lock();
            match state.handlers.get_mut(&id) {
                Some(armed) if armed.generation == generation => armed.handler.replace(handler),
                _ => Some(handler),
            }
        };
        drop(replaced);
        true
    }

    /// Futures that have something to see, or may have.
    fn due_waiters(&self) -> Vec<Waiter> {
        let mut state = self.inbox.state.lock();
        if state.waiters.is_empty() {
            return Vec::new();
        }
        self.drain(&mut state);
        let waiters = std::mem::take(&mut state.waiters);
        let (due, rest) = waiters.into_iter().partition(|waiter| match waiter.want {
            Want::Signal(id) => self.pending(id) > 0,
            Want::Entry => state.has_ready(),
        });
        state.waiters = rest;
        due
    }
}
