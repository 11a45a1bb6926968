//! A card: core, loop and surroundings.

use std::collections::VecDeque;
use std::sync::Arc;

use netvm_abi::bar::BarMap;
use netvm_abi::page_table::HashKey;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::{Geometry, Nanos, NodeId};
use netvm_nic::platform::Operands;
use netvm_nic::{Config, ConfigError, Nic, Timers};
use netvm_platform::{Device as _, EventLoop};
use rustix::io::Errno;

use crate::board::{Board, Engine};
use crate::event_count::EventCount;
use crate::memory::{Heap, SharedPages, WordSpace};
use crate::message::{Pools, Spare};
use crate::transfer::Buffers;
use crate::wire::Wire;

/// What a card and its driver share, before either exists.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The node.
    pub node: NodeId,
    /// Sizes of the card's tables.
    pub geometry: Geometry,
    /// Key of the page hash.
    pub hash_key: HashKey,
    /// The card's memory.
    pub bar: Arc<WordSpace>,
    /// The driver's memory.
    pub shared: Arc<WordSpace>,
    /// The bounce pages.
    pub bounce: Arc<SharedPages>,
    /// The card's interrupt for the driver.
    pub interrupt: Arc<EventCount>,
    /// Its interrupts for ports.
    pub ports: Arc<[EventCount]>,
}

impl Parts {
    /// The memory of a card of this geometry.
    ///
    /// # Errors
    /// The kernel gives no memory, or no random numbers.
    pub fn new(node: NodeId, geometry: Geometry) -> Result<Self, Errno> {
        Ok(Self {
            node,
            geometry,
            hash_key: HashKey([random()?, random()?]),
            bar: Arc::new(WordSpace::new(BarMap::new(&geometry).words)?),
            shared: Arc::new(WordSpace::new(SharedMap::new(&geometry).words)?),
            bounce: Arc::new(SharedPages::new(geometry.bounce_slots())?),
            interrupt: Arc::new(EventCount::default()),
            ports: (0..geometry.ports).map(|_| EventCount::default()).collect(),
        })
    }
}

/// Eight random bytes.
///
/// # Errors
/// The kernel gives none.
pub fn random() -> Result<u64, Errno> {
    let mut bytes = [0u8; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Fills a few bytes, 256 at most, with random ones.
///
/// # Errors
/// The kernel gives none.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), Errno> {
    // So few come whole.
    match rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())? {
        got if got == bytes.len() => Ok(()),
        _ => Err(Errno::AGAIN),
    }
}

/// A card.
pub struct Core<E, W> {
    /// The core.
    pub nic: Nic<Heap>,
    /// Its loop.
    pub event_loop: EventLoop,
    /// Its surroundings.
    pub board: Board<E, W>,
    /// Counts the passes in which something came in and was handled.
    pub worked: u32,
}

impl<E: Engine, W: Wire> Core<E, W> {
    /// A card that is ready to be attached to.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn new(
        parts: &Parts,
        (engine, wire): (E, W),
        pools: &Pools,
        timers: Timers,
        inline_bytes: u16,
    ) -> Result<Self, ConfigError> {
        let mut board = Board {
            bar: Arc::clone(&parts.bar),
            shared: Arc::clone(&parts.shared),
            engine,
            buffers: Buffers {
                staging: (0..parts.geometry.staging).map(|_| None).collect(),
                spare: Spare::new(pools),
                received: Vec::new(),
                bounce: Arc::clone(&parts.bounce),
                operands: Operands::new(),
            },
            free_received: Vec::new(),
            sent: VecDeque::new(),
            wire,
            driver: Arc::clone(&parts.interrupt),
            noted: None,
            ports: Arc::clone(&parts.ports),
            now: Nanos(0),
            frames_sent: 0,
            bytes_sent: 0,
        };
        let config = Config {
            node: parts.node,
            geometry: parts.geometry,
            hash_key: parts.hash_key,
            incarnation_seed: random().unwrap_or_else(|_| crate::clock::monotonic()) as u32 | 1,
            inline_bytes,
            timers,
        };
        let mut nic = Nic::new(config, &mut Heap)?;
        nic.attach(&mut board);
        Ok(Self {
            nic,
            event_loop: EventLoop::new(),
            board,
            worked: 0,
        })
    }

    /// Passes until nothing is left to do now, `enough` says so after a pass, or there have been `passes`. Returns whether
    /// nothing is left, and when something will be due.
    pub fn serve(&mut self, now: Nanos, passes: u32, enough: impl Fn(&W) -> bool) -> (bool, Option<Nanos>) {
        let mut done = 0;
        self.board.now = now;
        loop {
            let progress = self.event_loop.poll_once(&mut self.nic, &mut self.board);
            done += 1;
            self.worked = self.worked.wrapping_add(u32::from(progress.worked));
            let more = progress.more || self.board.has_input();
            if !more || done == passes || enough(&self.board.wire) {
                let due = match (progress.deadline, self.board.engine.next_due()) {
                    (Some(timer), Some(late)) => Some(timer.min(late)),
                    (timer, late) => timer.or(late),
                };
                return (!more, due);
            }
        }
    }
}

impl<E, W> std::fmt::Debug for Core<E, W> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Core")
    }
}
