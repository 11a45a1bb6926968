//! The functions that are called: one for each size, which counts.

use netvm_calls::{Function, Registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of both endpoints.
pub(crate) const NAME: &str = "bench calls";
/// The port of the called endpoint.
pub(crate) const PORT: u16 = 1;
/// What raw writes go to.
pub(crate) const RAW: &str = "bench raw";
/// Bytes of it.
pub(crate) const RAW_BYTES: u64 = 1 << 20;
/// A channel.
pub(crate) const CHANNEL: &str = "bench channel";

pub(crate) const COUNT_8: Function<[u8; 8]> = Function::new("count 8");
pub(crate) const COUNT_64: Function<[u8; 64]> = Function::new("count 64");
pub(crate) const COUNT_256: Function<[u8; 256]> = Function::new("count 256");
pub(crate) const COUNT_1024: Function<[u8; 1024]> = Function::new("count 1024");
/// How many calls have run, by size.
pub(crate) const RAN: Function<(), u64> = Function::new("ran");
/// So many messages come over the channel.
pub(crate) const EXPECT: Function<u64> = Function::new("expect");
/// The other process may end.
pub(crate) const STOP: Function<()> = Function::new("stop");

/// What the functions have done.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    pub(crate) ran: Arc<AtomicU64>,
    pub(crate) expected: Arc<AtomicU64>,
    pub(crate) stopped: Arc<AtomicU64>,
}

impl Counts {
    pub(crate) fn registry(&self) -> netvm_calls::Result<Registry> {
        let mut registry = Registry::new();
        self.count(&mut registry, &COUNT_8)?;
        self.count(&mut registry, &COUNT_64)?;
        self.count(&mut registry, &COUNT_256)?;
        self.count(&mut registry, &COUNT_1024)?;
        let ran = Arc::clone(&self.ran);
        registry.add(&RAN, move |_, ()| ran.load(Ordering::Relaxed))?;
        let expected = Arc::clone(&self.expected);
        registry.add(&EXPECT, move |_, messages| {
            expected.fetch_add(messages, Ordering::Relaxed);
        })?;
        let stopped = Arc::clone(&self.stopped);
        registry.add(&STOP, move |_, ()| stopped.store(1, Ordering::Relaxed))?;
        Ok(registry)
    }

    fn count<const N: usize>(
        &self,
        registry: &mut Registry,
        function: &Function<[u8; N]>,
    ) -> netvm_calls::Result<()> {
        let ran = Arc::clone(&self.ran);
        registry.add(function, move |_, argument: [u8; N]| {
            // So that it is read, as a function's argument is. No other thread counts.
            std::hint::black_box(&argument);
            ran.store(ran.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        })
    }
}
