// SPDX-License-Identifier: GPL-2.0

//! Event counts and threads of the module.
//!
//! A waiter reads the count, looks at what it waits for, then sleeps until the count is another one: no signal is lost
//! in between.

use crate::errno::{self, Errno};
use crate::shim;
use core::ffi::c_int;
use core::ptr::NonNull;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The count has changed (or the thread is to end).
    News,
    /// The time is over.
    Late,
    /// A signal for the process is pending.
    Signal,
}

fn woken(code: c_int) -> Woken {
    match code {
        shim::WAIT_NEWS => Woken::News,
        shim::WAIT_TIME => Woken::Late,
        _ => Woken::Signal,
    }
}

/// An event count.
pub(crate) struct Event {
    at: NonNull<shim::NvEvent>,
    owned: bool,
}

// SAFETY: an event count may be used by any thread, and by several at once.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new one.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: no conditions.
        let at = NonNull::new(unsafe { shim::nv_event_new() }).ok_or(errno::NOMEM)?;
        Ok(Self { at, owned: true })
    }

    /// The card's interrupt.
    ///
    /// # Safety
    /// The card outlives this.
    pub(crate) unsafe fn of_interrupt(card: *mut shim::NvCard) -> Self {
        // SAFETY: the card lives, as promised, and has one from its beginning.
        let at = unsafe { NonNull::new_unchecked(shim::nv_card_interrupt(card)) };
        Self { at, owned: false }
    }

    /// Its count.
    pub(crate) fn count(&self) -> u32 {
        // SAFETY: it lives as long as `self`; so in all functions here.
        unsafe { shim::nv_event_count(self.at.as_ptr()) }
    }

    /// Counts, and wakes all waiters.
    pub(crate) fn signal(&self) {
        // SAFETY: as above.
        unsafe { shim::nv_event_signal(self.at.as_ptr()) }
    }

    /// Sleeps until the count is not `seen`, at most for `nanos` nanoseconds (`u64::MAX`: for ever).
    pub(crate) fn wait(&self, seen: u32, nanos: u64, interruptible: bool) -> Woken {
        // SAFETY: as above; the caller may sleep, being a process' or a thread's own code.
        woken(unsafe { shim::nv_event_wait(self.at.as_ptr(), seen, nanos, interruptible) })
    }

    /// As [`wait`](Self::wait), in a thread of the module, whose end wakes it too.
    pub(crate) fn thread_wait(&self, seen: u32, nanos: u64) {
        // SAFETY: as above.
        let _ = unsafe { shim::nv_thread_wait(self.at.as_ptr(), seen, nanos) };
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: it was made here, and without a reference to it no thread waits on it.
            unsafe { shim::nv_event_free(self.at.as_ptr()) }
        }
    }
}

/// The calling thread, one of the module's.
pub(crate) struct Thread;

impl Thread {
    /// Whether it shall end.
    pub(crate) fn should_stop() -> bool {
        // SAFETY: called from bodies of threads only.
        unsafe { shim::nv_thread_should_stop() }
    }

    /// Whether it shall rest.
    pub(crate) fn should_rest() -> bool {
        // SAFETY: as above.
        unsafe { shim::nv_thread_should_rest() }
    }

    /// Rests until it shall go on, or end.
    pub(crate) fn rest() {
        // SAFETY: as above.
        unsafe { shim::nv_thread_rest() }
    }
}
