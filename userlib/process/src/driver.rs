//! The host driver of one node: the host core behind its lock, its interrupt thread, and its paging workers.
//!
//! What the core wants of the card while its lock is held (a wake-up
//! call) is noted and done after the lock was let go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netvm_abi::control::Grant;
use netvm_abi::words::SharedWords;
use netvm_abi::{BounceId, Incarnation, Nanos, NodeId, PortId, Status, Token};
use netvm_host::host::CardFailure;
use netvm_host::platform::{PageGone, Platform};
use netvm_host::{Host, Progress};
use netvm_host_platform::System;
use netvm_host_platform::notice::{self, Handler};

use netvm_memory::copy;
use netvm_soft::memory::{Heap, SharedPages, WordSpace};
use netvm_soft::turn::Turn;
use netvm_soft::{EventCount, PAGE_BYTES, Parts};
use tracing::{debug, error, info};

use crate::machine::Machine;
use crate::secrets::Secrets;

/// What the host core can reach.
#[derive(Debug)]
pub struct Glue {
    /// The card's memory.
    pub bar: Arc<WordSpace>,
    /// The driver's memory.
    pub shared: Arc<WordSpace>,
    /// The bounce pages.
    pub bounce: Arc<SharedPages>,
    secrets: Secrets,
    /// The core wants the card to be woken.
    wake: bool,
}

impl Glue {
    /// The words and pages of a card.
    #[must_use]
    pub fn new(parts: &Parts) -> Self {
        Self {
            bar: Arc::clone(&parts.bar),
            shared: Arc::clone(&parts.shared),
            bounce: Arc::clone(&parts.bounce),
            secrets: Secrets::default(),
            wake: false,
        }
    }
}

impl Platform for Glue {
    type Bar = WordSpace;
    type Shared = WordSpace;

    fn bar(&self) -> &WordSpace {
        &self.bar
    }

    fn shared(&self) -> &WordSpace {
        &self.shared
    }

    fn secret(&mut self) -> u64 {
        self.secrets.take()
    }

    fn applies_atomics(&self) -> bool {
        true
    }

    fn load_bounce(&mut self, bounce: BounceId, into: &mut [u32]) {
        let Some(page) = self.bounce.page(bounce.0) else {
            return;
        };
        let mut bytes = [0u8; 4];
        for (index, word) in into.iter_mut().enumerate().take(PAGE_BYTES / 4) {
            // SAFETY: the word lies in the bounce page, which lives as long as `self.bounce`.
            unsafe { copy::copy_out(page.add(index * 4), &mut bytes) };
            *word = u32::from_le_bytes(bytes);
        }
    }

    fn store_bounce(&mut self, bounce: BounceId, from: &[u32]) {
        let Some(page) = self.bounce.page(bounce.0) else {
            return;
        };
        for (index, word) in from.iter().enumerate().take(PAGE_BYTES / 4) {
            // SAFETY: the word lies in the bounce page, which lives as long as `self.bounce`.
            unsafe { copy::copy_in(&word.to_le_bytes(), page.add(index * 4)) };
        }
    }

    fn wake_nic(&mut self) {
        self.wake = true;
    }
}

/// An import with a waiting caller: `None` until it has ended.
type Imports = HashMap<Token, Option<Result<Grant, Status>>>;

/// The driver of one node.
pub struct HostSide<M: Machine> {
    core: Mutex<(Host<Heap>, Glue)>,
    node: NodeId,
    /// What it stands on.
    pub machine: M,
    /// The card has interrupted the driver.
    pub interrupt: Arc<EventCount>,
    /// Each port's event count: interrupts and wake-ups for the application.
    pub ports: Arc<[EventCount]>,
    /// Work for each port's paging worker.
    pub work: Box<[EventCount]>,
    /// Something that a `*_step`, an import or a connecting thread waits for has happened.
    pub steps: EventCount,
    imports: Mutex<Imports>,
    peers_up: Box<[AtomicBool]>,
    /// The right to hear what the card says.
    hearing: Turn<()>,
    /// When the interrupt thread wakes by itself, if it sleeps; 0: it does not.
    wakes_at: AtomicU64,
    /// The node ends.
    pub stop: AtomicBool,
}

impl<M: Machine> std::fmt::Debug for HostSide<M> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "HostSide({})", self.node)
    }
}

impl<M: Machine> HostSide<M> {
    pub(crate) fn new((host, glue): (Host<Heap>, Glue), machine: M, parts: &Parts) -> Self {
        let nodes = host.geometry().nodes;
        Self {
            work: parts.ports.iter().map(|_| EventCount::default()).collect(),
            core: Mutex::new((host, glue)),
            node: parts.node,
            machine,
            interrupt: Arc::clone(&parts.interrupt),
            ports: Arc::clone(&parts.ports),
            steps: EventCount::default(),
            imports: Mutex::default(),
            peers_up: (0..nodes).map(|_| AtomicBool::new(false)).collect(),
            hearing: Turn::new(()),
            wakes_at: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Calls the core, and then wakes the card if the core asked for it.
    pub fn with<R>(&self, call: impl FnOnce(&mut Host<Heap>, &mut Glue, Nanos) -> R) -> R {
        let mut guard = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let (host, glue) = &mut *guard;
        let result = call(host, glue, self.machine.now());
        let wake = std::mem::take(&mut glue.wake);
        drop(guard);
        if wake {
            self.machine.kick_in_passing();
        }
        result
    }

    pub(crate) fn imports(&self) -> MutexGuard<'_, Imports> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps something to its end.
    pub fn drive(&self, mut step: impl FnMut(&mut Host<Heap>, &mut Glue, Nanos) -> Progress) {
        loop {
            let token = self.steps.token();
            match self.with(&mut step) {
                Progress::Done => return,
                Progress::Again => {}
                Progress::Wait => {
                    self.machine.kick_in_passing();
                    self.steps.wait(token, Some(Duration::from_micros(100)));
                }
            }
        }
    }

    /// Calls the core until it answers.
    ///
    /// # Errors
    /// The core's.
    pub fn until<R>(
        &self,
        mut call: impl FnMut(&mut Host<Heap>, &mut Glue, Nanos) -> Result<Option<R>, Status>,
    ) -> Result<R, Status> {
        loop {
            let token = self.steps.token();
            if let Some(result) = self.with(&mut call)? {
                return Ok(result);
            }
            self.machine.kick_in_passing();
            self.steps.wait(token, Some(Duration::from_micros(100)));
        }
    }

    /// The interrupt thread's body: hears what the card says until it is stopped.
    pub fn listen(&self) {
        loop {
            // Before `stop` is looked at, or a call that says it could come between the look and the token, and be waited for.
            let token = self.interrupt.token();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.hear(self);
            let due = self.due();
            self.wakes_at.store(due.0, Ordering::SeqCst);
            // Another thread that hears may leave something that is due sooner. It looks at `wakes_at` after it has let go of the
            // core's lock, and this thread takes that lock once more after it has said when it wakes: one of them sees the other.
            if self.due() >= due {
                let now = self.machine.now();
                let limit = (due != Nanos::MAX).then(|| Duration::from_nanos(due.0.saturating_sub(now.0)));
                self.interrupt.wait(token, limit);
            }
            self.wakes_at.store(0, Ordering::SeqCst);
        }
    }

    fn due(&self) -> Nanos {
        self.with(|host, _, _| host.next_deadline())
    }

    /// Hears all that the card says. One thread does so at a time, so that what is said of a peer is acted on in order; it does it for
    /// those that come meanwhile.
    pub(crate) fn hear(&self, handler: &impl Handler) {
        let mut turn = self.hearing.ask();
        while let Some(held) = turn {
            notice::hear(handler);
            // Events taken may be what a step waits for, even without a notice.
            self.steps.notify();
            turn = held.done();
        }
    }

    /// After another thread than the interrupt thread has heard the card: that one wakes in time for what is due now.
    pub(crate) fn heard_elsewhere(&self) {
        if self.due().0 < self.wakes_at.load(Ordering::SeqCst) {
            self.interrupt.notify();
        }
    }

    /// Says whether it was up before.
    fn set_peer(&self, peer: NodeId, up: bool) -> bool {
        let known = self.peers_up.get(peer.index());
        let before = known.is_some_and(|known| known.swap(up, Ordering::AcqRel));
        self.steps.notify();
        before
    }

    /// Whether the link to a peer is up.
    #[must_use]
    pub fn is_up(&self, peer: NodeId) -> bool {
        self.peers_up
            .get(peer.index())
            .is_some_and(|up| up.load(Ordering::Acquire))
    }

    /// Waits until the links to these peers are up; false after `limit`.
    pub fn wait_for_peers(&self, peers: &[NodeId], limit: Duration) -> bool {
        let end = std::time::Instant::now() + limit;
        loop {
            let token = self.steps.token();
            if peers.iter().all(|peer| self.is_up(*peer)) {
                return true;
            }
            if std::time::Instant::now() >= end {
                return false;
            }
            self.machine.kick_in_passing();
            self.steps.wait(token, Some(Duration::from_millis(1)));
        }
    }

    /// Ends the driver's threads.
    pub fn shut_down(&self) {
        self.stop.store(true, Ordering::Release);
        self.interrupt.notify();
        self.work.iter().for_each(EventCount::notify);
        self.ports.iter().for_each(EventCount::notify);
        self.steps.notify();
    }

    /// Says for good that the card sleeps: every doorbell calls.
    pub fn set_sleeping(&self) {
        self.with(|_, glue, _| {
            glue.shared
                .store_release(netvm_abi::shared_map::status_page::SLEEPING, 1)
        });
    }
}

impl<M: Machine> System for HostSide<M> {
    type Storage = Heap;
    type Platform = Glue;

    fn call<R>(&self, call: impl FnOnce(&mut Host<Heap>, &mut Glue, Nanos) -> R) -> Option<R> {
        Some(self.with(call))
    }

    fn page_gone(&self, gone: PageGone) {
        self.machine.page_gone(gone);
    }

    fn stop_card(&self) {
        self.machine.halt();
        self.with(|host, glue, now| host.card_stopped(glue, true, now));
        self.ports.iter().for_each(EventCount::notify);
        self.interrupt.notify();
        self.steps.notify();
    }
}

impl<M: Machine> Handler for HostSide<M> {
    fn work(&self, port: PortId) {
        if let Some(worker) = self.work.get(port.index()) {
            worker.notify();
        }
    }

    fn imported(&self, _: PortId, import: Token, result: Result<Grant, Status>) {
        // A caller that gave up waiting has removed the entry.
        if let Some(entry) = self.imports().get_mut(&import) {
            *entry = Some(result);
        }
        self.steps.notify();
    }

    fn peer_up(&self, peer: NodeId, _: Incarnation) {
        self.set_peer(peer, true);
        debug!(node = self.node.0, peer = peer.0, "a peer is there");
    }

    fn peer_down(&self, peer: NodeId) {
        if self.set_peer(peer, false) {
            info!(
                node = self.node.0,
                peer = peer.0,
                "a peer is gone: what was under way to it has failed"
            );
        } else {
            let (node, peer) = (self.node.0, peer.0);
            debug!(
                node,
                peer, "a link that was not up begins anew, or its greetings have had no answer"
            );
        }
    }

    fn card_dead(&self, cause: CardFailure) {
        error!(
            node = self.node.0,
            ?cause,
            "the card is dead: the node is of no use any more"
        );
    }

    fn progress(&self) {
        self.steps.notify();
    }
}
