//! Owners of event-count numbers.
//!
//! Programs choose their numbers themselves, as they do with a file's offsets. Objects of the library
//! that need some of their own take them here: the one that the program names, or the highest that
//! is not seen to be used, so that a program which counts from 1 meets none of them.
//!
//! A number is used by one of the two only. The library takes none for which the program has a handler or a waiter,
//! or that an export of the program lets peers signal. Once it has a number, the program gets no
//! [`Notification`] of it and cannot export it; one that the program made before neither arms nor acknowledges.

use crate::backend::Refusal;
use crate::error::{Error, Result};
use crate::notify::Notification;
use crate::port::PortInner;
use netvm_abi::notification::EVENT_COUNTS;
use netvm_abi::{NotificationId, Status};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The highest number that is handed out. The one above stays free for programs that want one on which
/// nothing ever comes.
const HIGHEST: u32 = EVENT_COUNTS - 2;

/// An event-count notification that belongs to an object of the library. Begins with nothing pending,
/// and leaves nothing pending when it is given back. Its holder ends the export that lets others signal it before it
/// drops this.
pub(crate) struct OwnNotification {
    port: Arc<PortInner>,
    notification: Notification,
    /// Nothing else of the port gets it.
    kept: AtomicBool,
}

impl OwnNotification {
    /// Takes this number, or any.
    ///
    /// # Errors
    /// [`Error::NotificationNumber`]; [`Error::Refused`] when it is taken, or all are.
    pub(crate) fn take(port: &Arc<PortInner>, wanted: Option<NotificationId>) -> Result<Self> {
        let refused = |status: Status| Error::Refused {
            what: "take a notification number",
            reason: Refusal::Status(status),
        };
        let notification = match wanted {
            Some(id) => {
                let notification = Notification::new(port, id, true)?;
                let mut state = port.inbox.state.lock();
                if !state.is_unused(id) || !state.own(id) {
                    return Err(refused(Status::NotAllowed));
                }
                notification
            }
            None => {
                let mut state = port.inbox.state.lock();
                let free = (1..=HIGHEST).rev().map(NotificationId);
                let mut free = free.filter(|&id| state.is_unused(id) && port.pending(id) == 0);
                let id = free.next().ok_or_else(|| refused(Status::TableFull))?;
                drop(free);
                state.own(id);
                drop(state);
                Notification::new(port, id, true)?
            }
        };
        port.acknowledge_up_to(notification.id(), u32::MAX);
        Ok(Self {
            port: Arc::clone(port),
            notification,
            kept: AtomicBool::new(false),
        })
    }

    /// A receiver has taken as much as `count` signals stand for, in the life of the port. `more`: it has left something
    /// behind.
    pub(crate) fn took(&self, count: u32, more: bool) {
        self.port.took(self.id(), count, more);
    }

    /// The first `count` signals in the life of the port need no handling.
    pub(crate) fn acknowledge_to(&self, count: u32) {
        self.port.acknowledge_to(self.id(), count);
    }

    /// From now on nothing else of the port gets this number: a name that others may still have is made of it.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Acknowledges all that is pending. Tells how much that was.
    pub(crate) fn clear(&self) -> u32 {
        self.port.acknowledge_up_to(self.id(), u32::MAX)
    }
}

/// The numbers that an export of the program lets peers signal: none of the library's, for as long as it lives.
pub(crate) struct GivenAway {
    port: Arc<PortInner>,
    range: (NotificationId, NotificationId),
}

impl GivenAway {
    /// # Errors
    /// [`Error::NotificationTaken`].
    pub(crate) fn new(port: &Arc<PortInner>, range: (NotificationId, NotificationId)) -> Result<Self> {
        port.inbox.state.lock().give_away(range)?;
        Ok(Self {
            port: Arc::clone(port),
            range,
        })
    }
}

impl Drop for GivenAway {
    fn drop(&mut self) {
        self.port.inbox.state.lock().take_back(self.range);
    }
}

impl Deref for OwnNotification {
    type Target = Notification;

    fn deref(&self) -> &Notification {
        &self.notification
    }
}

impl Drop for OwnNotification {
    fn drop(&mut self) {
        self.clear();
        if !self.kept.load(Ordering::Relaxed) {
            self.port.inbox.state.lock().disown(self.id());
        }
    }
}
