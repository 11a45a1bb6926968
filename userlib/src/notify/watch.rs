//! What every future of the library does: look, ask to be woken, leave a waker, look again.

use super::inbox::{Interest, Want, Wish};
use crate::error::Result;
use crate::port::PortInner;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A future that was polled and waits.
pub(super) struct Waiter {
    pub(super) key: u64,
    pub(super) wish: Wish,
    pub(super) waker: Waker,
}

/// A future's place among the port's waiters, once it has looked in vain.
#[derive(Default)]
pub(crate) struct Watch {
    left: Option<(u64, Interest)>,
}

impl Watch {
    /// It has not looked.
    pub(crate) const fn new() -> Self {
        Self { left: None }
    }

    /// Looks for something. What is not there says what the waker is to be called for.
    pub(crate) fn poll<T, W: Into<Wish>>(
        &mut self,
        port: &Arc<PortInner>,
        context: &Context<'_>,
        mut look: impl FnMut() -> std::result::Result<T, W>,
    ) -> Poll<Result<T>> {
        let wish: Wish = match look() {
            Ok(found) => {
                self.leave();
                return Poll::Ready(Ok(found));
            }
            Err(wish) => wish.into(),
        };
        port.ring_if_owed();
        let prepared = port.alive().and_then(|()| port.ensure_dispatcher());
        if let Err(error) = prepared {
            self.leave();
            return Poll::Ready(Err(error));
        }
        let key = self.asks_for(port, wish.want);
        let waker = context.waker().clone();
        let (before, sooner) = {
            let mut state = port.inbox.state.lock();
            let sooner = wish.until < state.next_look;
            let waiter = Waiter { key, wish, waker };
            let before = match state.waiters.iter_mut().find(|waiter| waiter.key == key) {
                Some(place) => Some(std::mem::replace(place, waiter)),
                None => {
                    state.waiters.push(waiter);
                    None
                }
            };
            (before, sooner)
        };
        drop(before);
        if sooner {
            // The dispatcher sleeps too long.
            port.backend.wake();
        }
        if let Want::Mark(mark) = wish.want {
            // Only now: where the fence word stands at a lower mark of another, the dispatcher asks for this one when that is
            // passed, if it finds the waker.
            port.ask(mark);
        }
        // The interrupt is enabled and the waker is there: what comes from now on wakes it. What came
        // before is seen here, a closed port included; or the dispatcher has been interrupted for it, and finds the waker.
        if let Ok(found) = look() {
            self.leave();
            return Poll::Ready(Ok(found));
        }
        if let Err(error) = port.alive() {
            self.leave();
            return Poll::Ready(Err(error));
        }
        Poll::Pending
    }

    /// Has the port interrupted for what is wanted. Gives the key of the future's waker.
    fn asks_for(&mut self, port: &Arc<PortInner>, want: Want) -> u64 {
        match &mut self.left {
            Some((key, interest)) => {
                if interest.want() != want {
                    *interest = Interest::new(port, want);
                }
                *key
            }
            None => {
                let interest = Interest::new(port, want);
                let key = {
                    let mut state = port.inbox.state.lock();
                    state.next_waiter += 1;
                    state.next_waiter
                };
                self.left = Some((key, interest));
                key
            }
        }
    }

    /// Takes the waker away again.
    pub(crate) fn leave(&mut self) {
        let Some((key, interest)) = self.left.take() else {
            return;
        };
        let removed = {
            let mut state = interest.port().inbox.state.lock();
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
