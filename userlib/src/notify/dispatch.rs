//! The dispatcher: the one thread (or coroutine) of a port that calls handlers and wakes futures.
//!
//! It is started by the first handler or future and ends when the port is closed, or when a loop of the program takes over
//! ([`Events`](super::Events)): then the loop is the dispatcher. Handlers, what they hold, and wakers are
//! code of the program: none of their panics ends the dispatcher.

use super::inbox::{Handler, State, Want};
use super::watch::Waiter;
use crate::error::{Error, Result};
use crate::fence::{Count, Mark};
use crate::port::PortInner;
use crate::poster::reached;
use netvm_abi::{Nanos, NotificationId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many panics a piece of the program's code may follow up with, each when what the one before carried is dropped.
const PANICS_IN_A_ROW: u32 = 8;

/// So many futures are looked through.
const FEW: usize = 8;

impl State {
    /// Whether the dispatcher may have something to do when this number is handed out. A receiver that takes messages by itself would
    /// wake it for each.
    pub(super) fn is_dispatched(&self, id: NotificationId) -> bool {
        // With many futures a look at each costs more than a thread that finds nothing.
        self.handlers.contains_key(&id)
            || self.members.contains_key(&id)
            || self.waiters.len() > FEW
            || self.waiters.iter().any(|waiter| match waiter.wish.want {
                Want::Signal(of) | Want::Change(of, _) => of == id,
                Want::Entry | Want::Member(_) => true,
                Want::Mark(_) | Want::Time => false,
            })
    }
}

impl PortInner {
    /// Starts the dispatcher if it does not run yet.
    pub(super) fn ensure_dispatcher(self: &Arc<Self>) -> Result<()> {
        {
            let mut state = self.inbox.state.lock();
            if state.dispatcher_runs || state.looped {
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

    /// Serves handlers and futures until the port ends, or a loop of the program takes over.
    fn dispatch(&self) {
        loop {
            let token = self.backend.wait_token();
            loop {
                if self.hands_over() {
                    // The loop has waited for this.
                    self.backend.wake();
                    return;
                }
                if self.alive().is_err() {
                    // Every future learns of it when it is polled again.
                    self.close_inbox();
                    return;
                }
                if !self.turn() {
                    break;
                }
            }
            let until = self.ask_for_waiters();
            self.backend.block(token, until);
        }
    }

    /// Whether the dispatcher's thread ends because a loop has taken over. One lock decides which of the two it is.
    fn hands_over(&self) -> bool {
        let mut state = self.inbox.state.lock();
        state.dispatcher_runs = !state.looped;
        state.looped
    }

    /// One call of one handler, then a look at all futures. So
    /// a busy number keeps none of them waiting: a signal is handled after at most one call of each other armed number
    /// (and those before it of its own), and a future is woken after the call under way. False if there was nothing to call.
    pub(super) fn turn(&self) -> bool {
        let next = self.pop_dispatch();
        if let Some(id) = next {
            self.call_handler(id);
        }
        for waiter in self.due_waiters() {
            self.guarded(|| waiter.waker.wake());
        }
        next.is_some()
    }

    /// Runs code of the program on the dispatcher, which outlives its panics. Each is counted. Tells whether it ended
    /// without one.
    pub(super) fn guarded(&self, code: impl FnOnce()) -> bool {
        let Err(mut carried) = catch_unwind(AssertUnwindSafe(code)) else {
            return true;
        };
        // What a panic carries is the program's, too, and may panic when it is dropped.
        for _ in 0..PANICS_IN_A_ROW {
            self.counters.handler_panics.fetch_add(1, Ordering::Relaxed);
            match catch_unwind(AssertUnwindSafe(move || drop(carried))) {
                Ok(()) => return false,
                Err(next) => carried = next,
            }
        }
        // A value that does so again and again is leaked: the dispatcher is worth more.
        std::mem::forget(carried);
        false
    }

    /// Calls the handler of `id`, if there is one and a reason to call it. If there are more signals, the
    /// acknowledgement puts the number at the end of the dispatcher's list.
    fn call_handler(&self, id: NotificationId) {
        let (generation, mut handler, before) = {
            let mut state = self.inbox.state.lock();
            if !state.handlers.contains_key(&id) || !self.take_reason(&mut state, id) {
                return;
            }
            let Some(armed) = state.handlers.get_mut(&id) else {
                return;
            };
            // Taken out while it runs, so that it may use the port, and arm and disarm.
            match armed.handler.take() {
                Some(handler) => (armed.generation, handler, self.acknowledged(id)),
                None => return,
            }
        };
        self.counters.handler_calls.fetch_add(1, Ordering::Relaxed);
        let ended = self.guarded(|| handler(id));
        // This signal has been handled: acknowledged before anything else may look at it. If the handler has
        // acknowledged it, or taken its message, nothing changes: another signal is not acknowledged in its place.
        self.acknowledge_to(id, before.wrapping_add(1));
        let spent = if ended {
            self.put_back(id, generation, handler)
        } else {
            self.disarm_if(id, generation);
            Some(handler)
        };
        self.guarded(|| drop(spent));
    }

    /// The handler has run, and runs again for the next signal, unless it was replaced or disarmed meanwhile.
    fn put_back(&self, id: NotificationId, generation: u64, handler: Handler) -> Option<Handler> {
        let mut state = self.inbox.state.lock();
        match state.handlers.get_mut(&id) {
            Some(armed) if armed.generation == generation => armed.handler.replace(handler),
            _ => Some(handler),
        }
    }

    /// Futures that have something to see, or may have.
    fn due_waiters(&self) -> Vec<Waiter> {
        let mut state = self.inbox.state.lock();
        if state.waiters.is_empty() {
            return Vec::new();
        }
        self.drain(&mut state);
        let in_vain = state.waiters.iter().any(|waiter| match waiter.wish.want {
            Want::Entry => !state.has_ready(),
            Want::Member(group) => !state.has_member(group),
            _ => false,
        });
        if in_vain {
            self.make_sure(&mut state);
        }
        let waiters = std::mem::take(&mut state.waiters);
        let times = waiters.iter().any(|waiter| waiter.wish.until != Nanos::MAX);
        let now = if times { self.backend.now() } else { Nanos(0) };
        let has_come = |want| match want {
            Want::Signal(id) => self.pending(id) > 0,
            Want::Change(id, seen) => self.signals(id) != seen,
            Want::Entry => state.has_ready(),
            Want::Member(group) => state.has_member(group),
            Want::Mark(mark) => self.has_come_to(mark),
            Want::Time => false,
        };
        let (due, rest) = waiters
            .into_iter()
            .partition(|waiter| waiter.wish.until <= now || has_come(waiter.wish.want));
        state.waiters = rest;
        due
    }

    /// There is one fence word for each count, so it is asked anew for those futures that still wait: the one that was asked
    /// for may have been passed, or been another thread's. A count that has come to its mark since the last look interrupts
    /// the port again, after the token was read: the block that follows ends at once. Tells when the first of all futures
    /// wants to look again.
    pub(super) fn ask_for_waiters(&self) -> Nanos {
        let mut lowest = [None::<Mark>; 3];
        let next_look = {
            let mut state = self.inbox.state.lock();
            for waiter in &state.waiters {
                let Want::Mark(mark) = waiter.wish.want else {
                    continue;
                };
                let [taken, writes, reads] = &mut lowest;
                let place = match mark.count {
                    Count::Taken => taken,
                    Count::Writes => writes,
                    Count::Reads => reads,
                };
                match place {
                    Some(lower) if reached(mark.at, lower.at) => {}
                    _ => *place = Some(mark),
                }
            }
            let times = state.waiters.iter().map(|waiter| waiter.wish.until);
            let next_look = times.min().unwrap_or(Nanos::MAX);
            state.next_look = next_look;
            next_look
        };
        for mark in lowest.into_iter().flatten() {
            self.ask(mark);
        }
        next_look
    }
}
