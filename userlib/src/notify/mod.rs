//! Receiving notifications (thesis 6.1): event counts, the notification queue, handlers, futures.

mod acknowledge;
mod dispatch;
mod events;
mod future;
mod inbox;
mod members;
mod notification;
mod numbers;
mod queue;
mod unsure;
mod watch;

pub use events::Events;
pub use future::{NextNotification, NotificationReady, Sleep};
pub(crate) use future::{block_on, block_on_until};
pub(crate) use inbox::{Inbox, Want, Wish};
pub(crate) use members::Group;
pub use notification::Notification;
pub(crate) use numbers::{GivenAway, OwnNotification};
pub use queue::NotificationQueue;
pub(crate) use watch::Watch;
