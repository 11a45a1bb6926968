//! Taking grants back, and the barrier with the NIC (promise P5).
//!
//! A retracted grant is over when
//! 1. its valid word is cleared: messages that come later are refused;
//! 2. a barrier posted after that is answered: DMAs authorised earlier are done;
//! 3. no paging worker copies under it: bounced messages that wait are refused when their slot is
//!    emptied, and one that is being copied is waited for.
//!
//! One barrier is in flight at a time; what is retracted meanwhile waits for the next one. So a
//! barrier serves any number of revocations, and the event ring cannot fill up with them.
//!
//! Order of calls: `revoke_begin`, then `revoke_step` until done.

use crate::grants::GrantInfo;
use crate::watch::CardWait;

/// The end of one grant, driven by [`Host::revoke_step`](crate::Host::revoke_step).
#[derive(Debug)]
#[must_use = "a grant ends by steps"]
pub struct Revoke {
    pub(crate) grant: GrantInfo,
}

/// Barriers by number, modulo 2^32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Barriers {
    pub(crate) issued: u32,
    pub(crate) done: u32,
    /// When the one in flight was posted.
    pub(crate) issued_at: Option<CardWait>,
    pub(crate) wanted: bool,
}

impl Barriers {
    pub(crate) const fn new() -> Self {
        Self {
            issued: 0,
            done: 0,
            issued_at: None,
            wanted: false,
        }
    }

    pub(crate) const fn in_flight(&self) -> bool {
        self.issued != self.done
    }

    /// The wait for the one in flight.
    pub(crate) const fn waits(&self) -> Option<CardWait> {
        if self.in_flight() { self.issued_at } else { None }
    }

    /// The barrier that comes after everything that was done before this call.
    pub(crate) const fn stamp(&mut self) -> u32 {
        self.wanted = true;
        self.issued.wrapping_add(1)
    }

    pub(crate) const fn passed(&self, stamp: u32) -> bool {
        self.done.wrapping_sub(stamp) < 1 << 31
    }
}
