//! Participants of what is held between two calls: a lock between acquire and release, a place in a queue.
//!
//! C has no borrows. So what holds a participant owns it, and a handle is a [`Participant`]: free, held, or away with a call that was begun,
//! from which it comes back.

use std::convert::Infallible;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::fault::{Fault, Result};
use crate::pending::BUSY;

/// A participant, or what holds it. It serves one thread at a time.
pub(crate) struct Participant<O, H = Infallible>(Mutex<Slot<O, H>>);

/// What has become of a participant.
pub(crate) enum Slot<O, H> {
    /// It is not held.
    Free(O),
    /// It is held.
    Held(H),
    /// A call that was begun has it.
    Away,
    /// It went with such a call, or with a panic.
    Gone,
}

/// It is held already.
const HELD: Fault = Fault::Argument(libc::EDEADLK, "this participant holds it already, or waits there");
/// It is not held.
const NOT_HELD: Fault = Fault::Argument(libc::EPERM, "this participant does not hold it");
const AWAY: Fault = Fault::Argument(
    libc::EBUSY,
    "a call that was begun has this participant: wait for its end by netvm_pending_wait()",
);
const GONE: Fault = Fault::Argument(
    libc::EIO,
    "this participant went with a call that has failed or was given up: close it, and join again",
);

impl<O, H> Participant<O, H> {
    pub(crate) fn new(object: O) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Slot::Free(object))))
    }

    /// What has become of it.
    pub(crate) fn slot(&self) -> Result<MutexGuard<'_, Slot<O, H>>> {
        self.0.try_lock().ok_or(BUSY)
    }

    /// Takes one that is free out of its place, for a call that is begun.
    pub(crate) fn lend(self: &Arc<Self>) -> Result<(O, Lent<O, H>)> {
        let mut slot = self.slot()?;
        slot.free()?;
        match std::mem::replace(&mut *slot, Slot::Away) {
            Slot::Free(object) => Ok((object, Lent(Some(Arc::clone(self))))),
            Slot::Held(_) | Slot::Away | Slot::Gone => Err(GONE),
        }
    }

    /// As [`lend`](Self::lend), what holds it.
    pub(crate) fn lend_held(self: &Arc<Self>) -> Result<(H, Lent<O, H>)> {
        let mut slot = self.slot()?;
        slot.held()?;
        match std::mem::replace(&mut *slot, Slot::Away) {
            Slot::Held(held) => Ok((held, Lent(Some(Arc::clone(self))))),
            Slot::Free(_) | Slot::Away | Slot::Gone => Err(GONE),
        }
    }
}

impl<O, H> Slot<O, H> {
    /// Takes hold. An object of which no hold is taken stays free.
    pub(crate) fn hold(
        &mut self,
        take: impl FnOnce(O) -> std::result::Result<H, Box<(O, Fault)>>,
    ) -> Result<&mut H> {
        self.free()?;
        if let Self::Free(object) = std::mem::replace(self, Self::Gone) {
            match take(object) {
                Ok(held) => *self = Self::Held(held),
                Err(left) => {
                    let (object, fault) = *left;
                    *self = Self::Free(object);
                    return Err(fault);
                }
            }
        }
        self.held()
    }

    /// It is held.
    pub(crate) const fn held(&mut self) -> Result<&mut H> {
        match self {
            Self::Held(held) => Ok(held),
            Self::Free(_) => Err(NOT_HELD),
            Self::Away => Err(AWAY),
            Self::Gone => Err(GONE),
        }
    }

    /// It is not held.
    pub(crate) const fn free(&mut self) -> Result<&mut O> {
        match self {
            Self::Free(object) => Ok(object),
            Self::Held(_) => Err(HELD),
            Self::Away => Err(AWAY),
            Self::Gone => Err(GONE),
        }
    }

    /// Lets go: `end` ends the hold in its own way.
    pub(crate) fn let_go<R>(&mut self, end: impl FnOnce(H) -> (O, R)) -> Result<R> {
        self.held()?;
        match std::mem::replace(self, Self::Gone) {
            Self::Held(held) => {
                let (object, ended) = end(held);
                *self = Self::Free(object);
                Ok(ended)
            }
            Self::Free(_) | Self::Away | Self::Gone => Err(GONE),
        }
    }
}

/// The place of a participant that is away. It is gone unless it comes back.
pub(crate) struct Lent<O, H = Infallible>(Option<Arc<Participant<O, H>>>);

impl<O, H> Lent<O, H> {
    /// It comes back.
    pub(crate) fn back(mut self, slot: Slot<O, H>) {
        self.put(slot);
    }

    fn put(&mut self, slot: Slot<O, H>) {
        if let Some(participant) = self.0.take() {
            // Calls with one that is away return at once.
            *participant.0.lock() = slot;
        }
    }
}

impl<O, H> Drop for Lent<O, H> {
    fn drop(&mut self) {
        self.put(Slot::Gone);
    }
}
