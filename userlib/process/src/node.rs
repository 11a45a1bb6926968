//! One node: its card's words, its driver, its memory, its open ports.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netvm_abi::control::Grant;
use netvm_abi::{Generation, Incarnation, Nanos, NodeId, PortId, Status, Token};
use netvm_host::Host;
use netvm_host::attach::{AttachError, HostConfig};
use netvm_host::host::CardFailure;
use netvm_host::platform::PageGone;
use netvm_host::ports::OpenPort;
use netvm_host_platform::System;
use netvm_host_platform::notice::Handler;
use netvm_soft::memory::Heap;
use netvm_soft::{EventCount, Parts};

use crate::driver::{Glue, HostSide};
use crate::machine::{Machine, Memory};

/// Pages that one step of closing a port deals with while it holds the driver's lock.
const STEP_PAGES: u32 = 256;

/// A port that is open: its life, and the flag that ends its worker.
type OpenEntry = (OpenPort, Arc<AtomicBool>);

/// One node.
#[derive(Debug)]
pub struct NodeParts<M: Machine, R> {
    /// What it shares with its card.
    pub card: Parts,
    /// Its driver.
    pub host: Arc<HostSide<M>>,
    /// Its memory.
    pub memory: R,
    open: Mutex<HashMap<PortId, OpenEntry>>,
}

/// Attaches a driver to a card, with these tables and this deadline of a page.
///
/// # Errors
/// The card does not answer as it should.
pub fn attach<M: Machine>(
    parts: &Parts,
    machine: M,
    chosen: &HostConfig,
) -> Result<Arc<HostSide<M>>, AttachError> {
    let mut glue = Glue::new(parts);
    let config = HostConfig {
        geometry: Some(parts.geometry),
        // A thread that holds a page lock may lose its processor for long.
        nic_deadline: Nanos::from_millis(20_000),
        heartbeat_deadline: Nanos::MAX,
        ..*chosen
    };
    let host = Host::attach(&mut glue, &mut Heap, &config, machine.now())?;
    Ok(Arc::new(HostSide::new((host, glue), machine, parts)))
}

impl<M: Machine, R: Memory<M>> NodeParts<M, R> {
    /// A node of these.
    pub fn new(card: Parts, host: Arc<HostSide<M>>, memory: R) -> Self {
        Self {
            card,
            host,
            memory,
            open: Mutex::default(),
        }
    }

    /// A thread that ran the card does what the driver's threads would be called for: it hears what the card says, and serves ports as far
    /// as that waits for nothing. It holds no lock when it comes.
    pub(crate) fn attend(&self) {
        let heard = Heard {
            host: &self.host,
            ports: RefCell::default(),
        };
        self.host.hear(&heard);
        for port in heard.ports.into_inner() {
            if !self.memory.serve_at_once(&self.host, port) {
                self.host.work(port);
            }
        }
        self.host.heard_elsewhere();
    }

    pub(crate) fn open_ports(&self) -> MutexGuard<'_, HashMap<PortId, OpenEntry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ports that are open.
    pub(crate) fn ports(&self) -> Vec<PortId> {
        self.open_ports().keys().copied().collect()
    }

    /// Whether this life of a port is open.
    pub(crate) fn is_open(&self, port: OpenPort) -> bool {
        let ours = |(open, _): &OpenEntry| open.generation == port.generation;
        self.open_ports().get(&port.port).is_some_and(ours)
    }

    pub(crate) fn port_events(&self, port: PortId) -> &EventCount {
        // The host core gave the number out, so it is below the geometry's.
        self.host.ports.get(port.index()).unwrap_or(&self.host.steps)
    }

    /// Closes a port as the exit of its process does. Closing one that is closed already, or whose number has a new owner, does
    /// nothing.
    pub fn close_port(&self, port: PortId, generation: Option<Generation>) -> bool {
        let mut ports = self.open_ports();
        // A process that died may let go of its handles when its number has a new owner already, which must keep it.
        let ours = |(open, _): &OpenEntry| generation.is_none_or(|known| known == open.generation);
        if !ports.get(&port).is_some_and(ours) {
            return false;
        }
        let Some((open, closed)) = ports.remove(&port) else {
            return false;
        };
        drop(ports);
        let begun = self.host.with(|host, glue, _| host.port_close_begin(glue, open));
        closed.store(true, Ordering::Release);
        if let Ok(mut close) = begun {
            self.host.drive(|host, glue, now| {
                host.port_close_step(glue, &mut close, now, STEP_PAGES, &mut |gone| {
                    self.host.page_gone(gone)
                })
            });
        }
        if let Some(worker) = self.host.work.get(port.index()) {
            worker.notify();
        }
        self.port_events(port).notify();
        true
    }
}

/// The driver, for a thread that serves ports by itself: their work is noted instead of called for.
struct Heard<'a, M: Machine> {
    host: &'a HostSide<M>,
    ports: RefCell<Vec<PortId>>,
}

impl<M: Machine> System for Heard<'_, M> {
    type Storage = Heap;
    type Platform = Glue;

    fn call<R>(&self, call: impl FnOnce(&mut Host<Heap>, &mut Glue, Nanos) -> R) -> Option<R> {
        self.host.call(call)
    }

    fn page_gone(&self, gone: PageGone) {
        self.host.page_gone(gone);
    }

    fn stop_card(&self) {
        self.host.stop_card();
    }
}

impl<M: Machine> Handler for Heard<'_, M> {
    fn work(&self, port: PortId) {
        let mut ports = self.ports.borrow_mut();
        if !ports.contains(&port) {
            ports.push(port);
        }
    }

    fn imported(&self, port: PortId, import: Token, result: Result<Grant, Status>) {
        self.host.imported(port, import, result);
    }

    fn peer_up(&self, peer: NodeId, incarnation: Incarnation) {
        self.host.peer_up(peer, incarnation);
    }

    fn peer_down(&self, peer: NodeId) {
        self.host.peer_down(peer);
    }

    fn card_dead(&self, cause: CardFailure) {
        self.host.card_dead(cause);
    }

    fn progress(&self) {
        self.host.progress();
    }
}
