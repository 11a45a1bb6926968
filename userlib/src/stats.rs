//! What a port has done.

use std::sync::atomic::AtomicU64;

/// Counters of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortStats {
    /// Write calls posted.
    pub writes: u64,
    /// Messages that they were cut into.
    pub write_messages: u64,
    /// Read calls posted.
    pub reads: u64,
    /// Messages that they were cut into.
    pub read_messages: u64,
    /// Remote flushes posted.
    pub remote_flushes: u64,
    /// Waits posted for what the other card has received.
    pub received_flushes: u64,
    /// Atomics posted.
    pub atomics: u64,
    /// Bytes that travelled inside of descriptors.
    pub inline_bytes: u64,
    /// Bytes transferred straight from or to a region that the program named.
    pub zero_copy_bytes: u64,
    /// Bytes copied through the port's own region, because they came from or went to memory that the
    /// card cannot reach.
    pub staged_bytes: u64,
    /// How often a call found the command queue (or all reply slots) full and waited.
    pub queue_full: u64,
    /// Operations reported as failed.
    pub failures: u64,
    /// Notification signals acknowledged, by the program or after a handler ran.
    pub acknowledged: u64,
    /// Times a handler was called.
    pub handler_calls: u64,
    /// Panics of handlers (which were disarmed then), of what handlers and panics held, and of wakers.
    pub handler_panics: u64,
    /// Times a caller blocked instead of spinning.
    pub blocked: u64,
}

/// The counters that are not kept under one of the port's locks.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) handler_calls: AtomicU64,
    pub(crate) handler_panics: AtomicU64,
    pub(crate) blocked: AtomicU64,
}
