//! Futures of channels: a message is there, or room for one.
//!
//! Each looks as the call does that waits, and asks for the same signal. What such a call does at certain times, to look after
//! the other end, the future does when the port's dispatcher wakes it at that time.

use super::{Receiver, Sender, SharedReceiver};
use crate::error::Result;
use crate::notify::{Watch, Wish};
use crate::port::PortInner;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What can be waited for.
pub(super) trait Waits {
    /// The port whose dispatcher wakes its future.
    fn waits_at(&self) -> Arc<PortInner>;

    /// Whether there is nothing to wait for any more, or what and until when.
    fn look(&mut self) -> Result<std::result::Result<(), Wish>>;
}

impl Waits for Receiver {
    fn waits_at(&self) -> Arc<PortInner> {
        Arc::clone(self.port())
    }

    fn look(&mut self) -> Result<std::result::Result<(), Wish>> {
        self.await_news()
    }
}

impl Waits for Sender {
    fn waits_at(&self) -> Arc<PortInner> {
        Arc::clone(self.port())
    }

    fn look(&mut self) -> Result<std::result::Result<(), Wish>> {
        self.await_place()
    }
}

impl Waits for SharedReceiver {
    fn waits_at(&self) -> Arc<PortInner> {
        Arc::clone(self.port())
    }

    fn look(&mut self) -> Result<std::result::Result<(), Wish>> {
        self.await_news()
    }
}

/// Looks, and leaves a waker where that was in vain.
pub(super) fn poll<W: Waits>(end: &mut W, watch: &mut Watch, context: &Context<'_>) -> Poll<Result<()>> {
    let port = end.waits_at();
    let polled = watch.poll(&port, context, || match end.look() {
        Ok(Ok(())) => Ok(Ok(())),
        Ok(Err(wish)) => Err(wish),
        Err(error) => Ok(Err(error)),
    });
    polled.map(|ended| ended.and_then(|looked| looked))
}

macro_rules! futures {
    ($($(#[$doc:meta])* $name:ident of $end:ident;)*) => {$(
        $(#[$doc])*
        #[must_use = "futures do nothing unless they are polled"]
        pub struct $name<'a> {
            end: &'a mut $end,
            watch: Watch,
        }

        impl<'a> $name<'a> {
            pub(super) const fn of(end: &'a mut $end) -> Self {
                Self { end, watch: Watch::new() }
            }
        }

        impl Future for $name<'_> {
            type Output = Result<()>;

            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
                let Self { end, watch } = &mut *self;
                poll(&mut **end, watch, context)
            }
        }

        impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.end)
            }
        }
    )*};
}

futures! {
    /// Ends when a receive would not wait. From [`Receiver::ready`].
    MessageReady of Receiver;
    /// Ends when a send would not wait for room. From [`Sender::ready`].
    RoomReady of Sender;
    /// Ends when a receive would not wait. From [`SharedReceiver::ready`].
    SharedReady of SharedReceiver;
}
