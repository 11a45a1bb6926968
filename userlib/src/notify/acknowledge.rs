//! Acknowledging signals: one, all, or up to a number (see [`super::inbox`] for what that has to keep true).

use super::inbox::State;
use crate::error::{Error, Result};
use crate::port::PortInner;
use netvm_abi::NotificationId;
use netvm_abi::bar::port::ACKNOWLEDGED;
use netvm_abi::words::SharedWords;

impl PortInner {
    /// Acknowledges one signal.
    pub(crate) fn acknowledge(&self, id: NotificationId) -> Result<()> {
        match self.acknowledge_up_to(id, 1) {
            0 => Err(Error::NothingPending { id }),
            _ => Ok(()),
        }
    }

    /// Acknowledges all signals that are pending, but `most` at most. Tells how many.
    pub(crate) fn acknowledge_up_to(&self, id: NotificationId, most: u32) -> u32 {
        let (taken, wake) = {
            let mut state = self.inbox.state.lock();
            self.drain(&mut state);
            // None, once the port is closed.
            let taken = self.pending(id).min(most);
            if taken == 0 || !self.has_words() {
                return 0;
            }
            (taken, self.settle_signals(&mut state, id, taken))
        };
        if wake {
            self.backend.wake();
        }
        taken
    }

    /// Acknowledges signals until `count` are, in the life of the port; none that has not come.
    pub(crate) fn acknowledge_to(&self, id: NotificationId, count: u32) {
        let wake = {
            let mut state = self.inbox.state.lock();
            self.drain(&mut state);
            match self.unacknowledged(id, count) {
                taken if taken > 0 && self.has_words() => self.settle_signals(&mut state, id, taken),
                _ => false,
            }
        };
        if wake {
            self.backend.wake();
        }
    }

    /// A receiver has taken something. So the first `count` signals in the life of the port need no other handling.
    /// `more`: it has left something behind, so the number is handed out once more.
    pub(crate) fn took(&self, id: NotificationId, count: u32, more: bool) {
        let wake = {
            let mut state = self.inbox.state.lock();
            if !self.has_words() {
                return;
            }
            self.drain(&mut state);
            if more {
                state.again.add(id);
            } else {
                state.again.remove(id);
            }
            let taken = self.unacknowledged(id, count);
            self.settle_signals(&mut state, id, taken)
        };
        if wake {
            self.backend.wake();
        }
    }

    /// How many signals are to be acknowledged until `count` are.
    fn unacknowledged(&self, id: NotificationId, count: u32) -> u32 {
        let missing = count.wrapping_sub(self.inbox.count(id));
        match missing.cast_signed() {
            1.. => missing.min(self.pending(id)),
            _ => 0,
        }
    }

    /// Acknowledges `taken` signals, which are pending, and announces the number if that leaves a reason to. Returns
    /// whether a waiter has to be woken.
    fn settle_signals(&self, state: &mut State, id: NotificationId, taken: u32) -> bool {
        state.out.remove(id);
        if taken > 0 {
            let count = self.inbox.count(id).wrapping_add(taken);
            self.inbox.set_count(id, count);
            self.block.store_release(ACKNOWLEDGED.plus(id.0), count);
            state.acknowledged += u64::from(taken);
        }
        let mut more = self.pending(id) > 0 || state.again.has(id);
        if more {
            self.announce(state, id);
        } else if state.queue_interest > 0 {
            // A caller sleeps on the queue, or is about to, and a signal that came to light late has no entry.
            more = self.make_sure(state);
        }
        more && (state.queue_interest > 0
            || (state.dispatcher_runs && state.is_dispatched(id))
            || state.looped)
    }
}
