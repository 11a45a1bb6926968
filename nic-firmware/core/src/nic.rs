//! The state machine and its events.

use crate::config::{Config, ConfigError};
use crate::counters::Counters;
use crate::platform::{DmaId, Platform};
use netvm_abi::bar::header;
use netvm_abi::page_lock;
use netvm_abi::page_table::PageTable;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::wire::HEADER_BYTES;
use netvm_abi::words::{SharedWords, split};
use netvm_abi::{Nanos, ReceiveId, StagingId};

/// A received message: its first bytes, copied out of the receive buffer. The payload stays there.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The buffer; the core gives it back through
    /// [`release_receive`](Platform::release_receive), exactly once.
    pub receive: ReceiveId,
    /// The first bytes of the message, zeroes where it is shorter than a header.
    pub head: [u8; HEADER_BYTES],
    /// Length of the whole message in bytes.
    pub len: usize,
}

impl Frame {
    /// From the whole message, or at least its first [`HEADER_BYTES`], and its length.
    #[must_use]
    pub fn new(receive: ReceiveId, message: &[u8], len: usize) -> Self {
        let mut head = [0; HEADER_BYTES];
        for (to, from) in head.iter_mut().zip(message) {
            *to = *from;
        }
        Self { receive, head, len }
    }
}

/// A NIC.
///
/// # Order of calls
/// 1. [`Nic::new`] (a platform with a heap) or `Nic::from_tables` (lent tables).
/// 2. [`attach`](Nic::attach), once the BAR and the driver's memory are reachable and the page
///    table is empty. It writes the BAR's header, the magic word last.
/// 3. Any of the `handle_*` methods, in any order, whenever their event happens. Each does a
///    bounded piece of work and returns; those that return `bool` say whether more waits.
///    `netvm_platform::poll_once` is the loop that calls them all.
/// 4. When nothing is left to do, sleep until [`next_deadline`](Nic::next_deadline); before that
///    follow the sleep protocol (`netvm_platform::Driver::try_sleep`), so that no doorbell is lost.
///
/// All effects go through the [`Platform`]; its methods only start things and never call back.
/// `now` must not run backwards.
pub struct Nic<S: Storage> {
    config: Config,
    page_table: PageTable,
    counters: Counters,
    _storage: core::marker::PhantomData<S::Table<u8>>,
}

impl<S: Storage> Nic<S> {
    /// Makes a NIC whose tables `storage` makes.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub fn new(config: Config, storage: &mut S) -> Result<Self, ConfigError>
    where
        S: MakeTable,
    {
        let _ = storage;
        config.geometry.validate().map_err(ConfigError::Geometry)?;
        Ok(Self {
            page_table: PageTable::of(&config.geometry, config.hash_key),
            config,
            counters: Counters::default(),
            _storage: core::marker::PhantomData,
        })
    }

    /// Publishes this NIC in its BAR; the magic word comes last.
    pub fn attach<P: Platform>(&mut self, p: &mut P) {
        let g = self.config.geometry;
        let bar = p.bar();
        page_lock::reset_locks(bar, &self.page_table);
        let low_high = |low: u16, high: u16| u32::from(low) | (u32::from(high) << 16);
        bar.store_release(header::VERSION, low_high(g.version, self.config.node.0));
        bar.store_release(header::PAGE_SIZE, g.page_size);
        bar.store_release(header::PAYLOAD, g.payload);
        bar.store_release(header::PORTS_NODES, low_high(g.ports, g.nodes));
        bar.store_release(header::WINDOW_STAGING, low_high(g.window, g.staging));
        bar.store_release(header::PAGE_ROWS, g.page_rows);
        bar.store_release(header::CAPABILITIES, g.capabilities);
        bar.store_release(header::READS, u32::from(g.reads));
        bar.store_release(header::NOTIFICATION_QUEUE, g.notification_queue);
        bar.store_release(header::INCARNATION, self.config.incarnation_seed);
        let [first, second] = self.config.hash_key.0;
        let [a, b] = split(first);
        let [c, d] = split(second);
        bar.store_slice(header::HASH_KEY, &[a, b, c, d]);
        bar.store_release(header::MAGIC, header::MAGIC_VALUE);
    }

    /// A frame has arrived.
    pub fn handle_frame<P: Platform>(&mut self, p: &mut P, now: Nanos, frame: &Frame) {
        let _ = now;
        p.release_receive(frame.receive);
    }

    /// A DMA has ended; `ok` is false when it could not be done.
    pub fn handle_dma_done<P: Platform>(&mut self, p: &mut P, now: Nanos, id: DmaId, ok: bool) {
        let _ = (p, now, id, ok);
    }

    /// A staging buffer has left and may be used again.
    pub fn handle_sent<P: Platform>(&mut self, p: &mut P, now: Nanos, staging: StagingId) {
        let _ = (p, now, staging);
    }

    /// Serves up to `budget` ports: takes commands, starts what has its resources, sends what is
    /// ready. Returns whether another call could do more at once.
    pub fn handle_doorbells<P: Platform>(&mut self, p: &mut P, now: Nanos, budget: u32) -> bool {
        let _ = (p, now, budget);
        false
    }

    /// Takes up to `budget` events of the host driver. Returns whether more wait.
    pub fn handle_host_events<P: Platform>(&mut self, p: &mut P, now: Nanos, budget: u32) -> bool {
        let _ = (p, now, budget);
        false
    }

    /// Does what is due at `now`. Returns whether more is due.
    pub fn handle_timers<P: Platform>(&mut self, p: &mut P, now: Nanos) -> bool {
        let _ = (p, now);
        false
    }

    /// Whether a doorbell, a fence or a host event waits: the second look of the sleep protocol.
    pub fn has_work<P: Platform>(&self, p: &P) -> bool {
        let _ = p;
        false
    }

    /// When [`handle_timers`](Self::handle_timers) wants to be called; nothing: not at all.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// What this NIC has done.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }
}
