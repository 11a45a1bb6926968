//! The host driver of one node: the host core behind its lock, its interrupt thread, and its paging workers.
//!
//! Lock order: pager -> host core. The card never takes either. What the core wants of the card while its lock is held (a wake-up
//! call) is noted and done after the lock was let go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netvm_abi::control::Grant;
use netvm_abi::page_lock::Clear;
use netvm_abi::words::SharedWords;
use netvm_abi::{BounceId, Incarnation, Nanos, NodeId, PortId, Ppn, Status, Token, Vpn};
use netvm_host::platform::{PageGone, Platform, Resident};
use netvm_host::unmap::UnmapKind;
use netvm_host::{Host, Progress};
use netvm_host_platform::notice::{self, Handler};
use netvm_host_platform::{System, unmap};

use crate::copy;
use crate::event_count::EventCount;
use crate::memory::{Heap, SharedPages, WordSpace};
use crate::network::Network;
use crate::places::Places;
use crate::vm::{Frame, FrameTable, PageEvents, PageKey, RegionId};

/// What the host core can reach.
pub(crate) struct Glue {
    pub(crate) bar: Arc<WordSpace>,
    pub(crate) shared: Arc<WordSpace>,
    pub(crate) bounce: Arc<SharedPages>,
    /// The core wants the card to be woken.
    wake: bool,
}

impl Glue {
    pub(crate) fn new(bar: Arc<WordSpace>, shared: Arc<WordSpace>, bounce: Arc<SharedPages>) -> Self {
        Self {
            bar,
            shared,
            bounce,
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
        let mut bytes = [0u8; 8];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            // The kernel's generator; for 8 bytes it fails only while the machine boots.
            if let Ok(count) = rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
                filled += count;
            }
        }
        u64::from_ne_bytes(bytes)
    }

    fn load_bounce(&mut self, bounce: BounceId, into: &mut [u32]) {
        let Some(page) = self.bounce.page(bounce.0) else {
            return;
        };
        let mut bytes = [0u8; 4];
        for (index, word) in into.iter_mut().enumerate().take(crate::vm::PAGE_SIZE / 4) {
            // SAFETY: the word lies in the bounce page, which lives as long as `self.bounce`.
            unsafe { copy::copy_out(page.add(index * 4), &mut bytes) };
            *word = u32::from_le_bytes(bytes);
        }
    }

    fn store_bounce(&mut self, bounce: BounceId, from: &[u32]) {
        let Some(page) = self.bounce.page(bounce.0) else {
            return;
        };
        for (index, word) in from.iter().enumerate().take(crate::vm::PAGE_SIZE / 4) {
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
pub(crate) struct HostSide {
    core: Mutex<(Host<Heap>, Glue)>,
    pub(crate) node: usize,
    pub(crate) network: Arc<Network>,
    pub(crate) frames: Arc<FrameTable>,
    pub(crate) places: Places,
    /// The card has interrupted the driver.
    pub(crate) interrupt: Arc<EventCount>,
    /// Each port's event count: interrupts and wake-ups for the application.
    pub(crate) ports: Arc<[EventCount]>,
    /// Work for each port's paging worker.
    pub(crate) work: Box<[EventCount]>,
    /// Something that a `*_step` or an import waits for has happened.
    pub(crate) steps: EventCount,
    pub(crate) imports: Mutex<Imports>,
    pub(crate) peers_up: Box<[AtomicBool]>,
    pub(crate) stop: AtomicBool,
}

impl HostSide {
    pub(crate) fn new(
        (host, glue): (Host<Heap>, Glue),
        node: usize,
        network: Arc<Network>,
        frames: Arc<FrameTable>,
        interrupt: Arc<EventCount>,
        ports: Arc<[EventCount]>,
    ) -> Self {
        let nodes = host.geometry().nodes;
        Self {
            work: ports.iter().map(|_| EventCount::default()).collect(),
            core: Mutex::new((host, glue)),
            node,
            network,
            frames,
            places: Places::default(),
            interrupt,
            ports,
            steps: EventCount::default(),
            imports: Mutex::default(),
            peers_up: (0..nodes).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
        }
    }

    /// Calls the core, and then wakes the card if the core asked for it.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Host<Heap>, &mut Glue, Nanos) -> R) -> R {
        let mut guard = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let (host, glue) = &mut *guard;
        let result = call(host, glue, self.network.now());
        let wake = std::mem::take(&mut glue.wake);
        drop(guard);
        if wake {
            self.network.kick(self.node);
        }
        result
    }

    pub(crate) fn imports(&self) -> MutexGuard<'_, Imports> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a call of the core that may publish a page, under the lock: the frame, which cannot be evicted meanwhile, counts as
    /// the card's before the entry can be seen.
    pub(crate) fn before_publishing(&self, frame: Frame) {
        self.frames.set_mapped(frame);
    }

    /// A page left the card's table in that call. An earlier entry of the same page makes way for the new one: then the frame
    /// stays the card's.
    pub(crate) fn gone_for(&self, frame: Frame, gone: PageGone) {
        let replaced = frame_of(gone.ppn) == frame;
        self.page_gone(PageGone {
            still_readable: gone.still_readable || replaced,
            ..gone
        });
    }

    /// After that call, under the same lock.
    pub(crate) fn after_publishing(&self, host: &Host<Heap>, vpn: Vpn, frame: Frame) {
        if host.mapping(vpn).is_none() {
            self.frames.clear_mapped(frame);
        }
    }

    /// Steps something to its end.
    pub(crate) fn drive(&self, mut step: impl FnMut(&mut Host<Heap>, &mut Glue, Nanos) -> Progress) {
        loop {
            let token = self.steps.token();
            match self.with(&mut step) {
                Progress::Done => return,
                Progress::Again => {}
                Progress::Wait => {
                    self.network.kick(self.node);
                    self.steps.wait(token, Some(Duration::from_micros(100)));
                }
            }
        }
    }

    /// The interrupt thread's body: hears what the card says until it is stopped.
    pub(crate) fn listen(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let token = self.interrupt.token();
            notice::hear(self);
            // Events taken may be what a step waits for, even without a notice.
            self.steps.notify();
            let due = self.with(|host, _, _| host.next_deadline());
            let now = self.network.now();
            let limit = (due != Nanos::MAX).then(|| Duration::from_nanos(due.0.saturating_sub(now.0)));
            self.interrupt.wait(token, limit);
        }
    }

    fn set_peer(&self, peer: NodeId, up: bool) {
        if let Some(known) = self.peers_up.get(peer.index()) {
            known.store(up, Ordering::Release);
        }
        self.steps.notify();
    }

    /// Waits until the links to all peers are up; false after `limit`.
    pub(crate) fn wait_for_peers(&self, limit: Duration) -> bool {
        let end = std::time::Instant::now() + limit;
        let missing = || {
            let others = self
                .peers_up
                .iter()
                .enumerate()
                .filter(|(peer, _)| *peer != self.node);
            others.filter(|(_, up)| !up.load(Ordering::Acquire)).count()
        };
        loop {
            let token = self.steps.token();
            if missing() == 0 {
                return true;
            }
            if std::time::Instant::now() >= end {
                return false;
            }
            self.network.kick(self.node);
            self.steps.wait(token, Some(Duration::from_millis(1)));
        }
    }

    /// Ends the driver's threads.
    pub(crate) fn shut_down(&self) {
        self.stop.store(true, Ordering::Release);
        self.interrupt.notify();
        self.work.iter().for_each(EventCount::notify);
        self.ports.iter().for_each(EventCount::notify);
        self.steps.notify();
    }

    pub(crate) fn set_sleeping(&self) {
        self.with(|_, glue, _| {
            glue.shared
                .store_release(netvm_abi::shared_map::status_page::SLEEPING, 1)
        });
    }
}

pub(crate) fn frame_of(ppn: Ppn) -> Frame {
    Frame(u32::try_from(ppn.0).unwrap_or(u32::MAX))
}

pub(crate) fn ppn_of(frame: Frame) -> Ppn {
    Ppn(u64::from(frame.0))
}

impl System for HostSide {
    type Storage = Heap;
    type Platform = Glue;

    fn call<R>(&self, call: impl FnOnce(&mut Host<Heap>, &mut Glue, Nanos) -> R) -> Option<R> {
        Some(self.with(call))
    }

    fn page_gone(&self, gone: PageGone) {
        let frame = frame_of(gone.ppn);
        if gone.dirty {
            self.frames.mark_dirty(frame);
        }
        if gone.referenced {
            self.frames.mark_referenced(frame);
        }
        // Last: a reader that sees the frame unmapped also sees its marks.
        if !gone.still_readable {
            self.frames.clear_mapped(frame);
        }
    }

    fn stop_card(&self) {
        self.network.halt(self.node);
        self.with(|host, glue, now| host.card_stopped(glue, true, now));
        self.ports.iter().for_each(EventCount::notify);
        self.interrupt.notify();
        self.steps.notify();
    }
}

impl Handler for HostSide {
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
    }

    fn peer_down(&self, peer: NodeId) {
        self.set_peer(peer, false);
    }

    fn progress(&self) {
        self.steps.notify();
    }
}

impl PageEvents for HostSide {
    fn resident(&self, key: PageKey, frame: Frame, writable: bool) {
        let Some(vpn) = self.places.vpn(key) else { return };
        self.with(|host, glue, _| {
            self.before_publishing(frame);
            // A page that is not mapped now (a full row, say) is mapped when the card misses it.
            if let Ok(ticket) = host.map_begin(vpn)
                && let Ok(mapped) = host.map_commit(
                    glue,
                    ticket,
                    Resident {
                        ppn: ppn_of(frame),
                        frame: 0,
                        writable,
                    },
                )
                && let Some(gone) = mapped.displaced
            {
                self.gone_for(frame, gone);
            }
            self.after_publishing(host, vpn, frame);
        });
    }

    fn unmap(&self, key: PageKey, frame: Frame) {
        // The flag is set and cleared while the page cannot be evicted; a page that was never the card's needs no call.
        if !self.frames.is_mapped(frame) {
            return;
        }
        let Some(vpn) = self.places.vpn(key) else {
            return;
        };
        let begun = self.with(|host, _, _| host.unmap_begin(vpn, 1, UnmapKind::Remove));
        unmap::finish(self, begun, || {
            // A late DMA ends when its card runs.
            self.network.kick(self.node);
            std::thread::yield_now();
        });
    }

    fn take_referenced(&self, key: PageKey, frame: Frame) -> bool {
        if !self.frames.is_mapped(frame) {
            return false;
        }
        let Some(vpn) = self.places.vpn(key) else {
            return false;
        };
        let used = self.with(|host, glue, _| host.take_use(glue, vpn, Clear::Referenced));
        used.is_some_and(|used| used.referenced)
    }

    fn region_removed(&self, region: RegionId) {
        self.places.remove(region);
    }
}
