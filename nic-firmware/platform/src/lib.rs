//! The one loop that runs a NIC, whatever it runs on.
//!
//! A platform implements [`Device`] (and with it [`Platform`]) and calls
//! [`EventLoop::poll_once`] until nothing is left to do, then sleeps as [`EventLoop::try_sleep`] allows.
#![no_std]
#![forbid(unsafe_code)]

mod event_loop;

pub use event_loop::{DmaEnd, EventLoop, Progress, announce_sleep};
pub use netvm_nic::Frame;
pub use netvm_nic::platform::Platform;

use netvm_abi::{Nanos, StagingId};

/// What the loop asks of a platform besides what the core asks of it. No method blocks.
pub trait Device: Platform {
    /// The time on this NIC's monotonic clock.
    fn now(&mut self) -> Nanos;

    /// The next received message, if there is one.
    fn poll_frame(&mut self) -> Option<Frame>;

    /// The next DMA that has ended (its bytes are globally visible), if there is one.
    fn poll_dma(&mut self) -> Option<DmaEnd>;

    /// The next staging buffer whose message has left, if there is one.
    fn poll_sent(&mut self) -> Option<StagingId>;

    /// Whether one of the three polls above would give something now: asked once more before sleep.
    fn has_input(&mut self) -> bool;
}
