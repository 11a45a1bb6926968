//! The machine's clock.

/// Its monotonic time, in nanoseconds. Every ring of a doorbell reads it.
#[must_use]
pub fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither part is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
