//! An open port.

use super::calls::{Calls, system};
use super::map::Mapping;
use super::memory::Segment;
use crate::backend::{ExportSpec, ImportRequest, MappedWords, Memory, PortBackend, Refusal, Words};
use crate::mapped::Mapped;
use netvm_abi::bar::port::BLOCK_WORDS;
use netvm_abi::control::{Grant, Modes};
use netvm_abi::ioctl::{
    ANY_NODE, ANY_PORT, Adopt, AllowEntry, Export, Import, LeaseLeft, LeaseName, Lend, NO_TIMEOUT,
    RECALL_ENTRIES, Recall, Register, Unexport, Unimport, Wait,
};
use netvm_abi::lease::{LeaseId, LeaseSpec};
use netvm_abi::port_area::{AREA_WORDS, ERROR_WRITE, NOTIFICATION_WRITE, PORT_EVENTS, PORT_STATE};
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::words::SharedWords;
use netvm_abi::{
    CapabilitySlot, ExportId, Generation, Nanos, NodeId, NotificationId, PAGE_SIZE, PortId, SegmentId,
    Status, VirtAddr,
};
use netvm_memory::guard;
use parking_lot::RwLock;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often a waiter spins before it gives the processor away.
const SPINS: u32 = 256;
/// ... and before it sleeps a little, in which a card that shares the processor can work.
const YIELDS: u32 = 64;

/// A port.
pub(super) struct Port {
    /// The open file; nothing once the port is closed. Calls under way keep it for as long as they take.
    calls: RwLock<Option<Arc<Calls>>>,
    port: PortId,
    generation: Generation,
    block: Arc<Mapping>,
    area: Arc<Mapping>,
    status: Arc<Mapping>,
    /// The area's words, to wait on.
    news: Words,
    /// Readable when they have changed.
    descriptor: Arc<OwnedFd>,
    ours: Weak<Self>,
}

/// A call that a signal may end before it has done anything.
fn uninterrupted(mut call: impl FnMut() -> Result<(), Refusal>) -> Result<(), Refusal> {
    loop {
        match call() {
            Err(Refusal::System { errno, .. }) if errno == rustix::io::Errno::INTR.raw_os_error() => {}
            ended => return ended,
        }
    }
}

fn words(mapping: &Arc<Mapping>) -> Words {
    let (start, len) = mapping.words();
    // SAFETY: mapped for as long as the owner; only the block is stored to. All accesses in this process are atomics.
    Words::Mapped(unsafe { MappedWords::new(start, len, mapping.clone()) })
}

impl Port {
    /// Maps the words of a port that has been registered.
    pub(super) fn new(
        (calls, descriptor): (Calls, OwnedFd),
        register: &Register,
        status_bytes: usize,
    ) -> Result<Arc<Self>, Refusal> {
        let map = |offset, len, write| Mapping::device(&calls, offset, len, write).map(Arc::new);
        let block = map(register.block_offset, BLOCK_WORDS as usize * 4, true)?;
        let area = map(register.area_offset, AREA_WORDS as usize * 4, false)?;
        let status = map(register.status_offset, status_bytes, false)?;
        Ok(Arc::new_cyclic(|ours| Self {
            calls: RwLock::new(Some(Arc::new(calls))),
            port: PortId(register.port),
            generation: Generation(register.generation),
            news: words(&area),
            descriptor: Arc::new(descriptor),
            block,
            area,
            status,
            ours: ours.clone(),
        }))
    }

    /// The open file.
    pub(super) fn calls(&self) -> Result<Arc<Calls>, Refusal> {
        self.calls
            .read()
            .clone()
            .ok_or(Refusal::Status(Status::NoSuchPort))
    }

    /// Registers whole pages.
    fn segment(&self, first: u64, len: u64) -> Result<SegmentId, Refusal> {
        let mut adopt = Adopt {
            address: first,
            len,
            ..Adopt::default()
        };
        self.calls()?.adopt(&mut adopt)?;
        Ok(SegmentId(adopt.segment))
    }
}

impl PortBackend for Port {
    fn port(&self) -> PortId {
        self.port
    }

    fn generation(&self) -> Generation {
        self.generation
    }

    fn block_words(&self) -> Words {
        words(&self.block)
    }

    fn area_words(&self) -> Words {
        words(&self.area)
    }

    fn status_words(&self) -> Words {
        words(&self.status)
    }

    fn close(&self) {
        let Some(mut calls) = self.calls.write().take() else {
            return;
        };
        // The file is closed when nothing refers to it: no mapping, and no thread in a call.
        for mapping in [&self.block, &self.area, &self.status] {
            mapping.retire();
        }
        loop {
            match Arc::try_unwrap(calls) {
                Ok(last) => return drop(last),
                Err(shared) => calls = shared,
            }
            calls.nudge();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn alloc(&self, len: u64) -> Result<Arc<dyn Memory>, Refusal> {
        let bytes = usize::try_from(len).map_err(|_| Status::NoMemory)?;
        let mapping = Arc::new(Mapping::anonymous(bytes)?);
        let start = mapping.start();
        let segment = self.segment(start.as_ptr().expose_provenance() as u64, len)?;
        Ok(Arc::new(Segment {
            port: self.ours.clone(),
            segment,
            // SAFETY: `owner` keeps it, mapped for both; no reference to it is ever made.
            memory: unsafe { Mapped::new(start, len) },
            owner: Some(mapping),
        }))
    }

    unsafe fn adopt(&self, start: NonNull<u8>, len: u64) -> Result<Arc<dyn Memory>, Refusal> {
        let page = u64::from(PAGE_SIZE);
        let address = start.as_ptr().expose_provenance() as u64;
        let first = address / page * page;
        let whole = address
            .checked_add(len)
            .and_then(|end| end.checked_next_multiple_of(page))
            .map(|end| end - first)
            .ok_or(Status::OutOfRange)?;
        let segment = self.segment(first, whole)?;
        // Where the guard is not known on this processor, memory that is gone ends the process by a signal, as it does
        // for any access of the program's own.
        let memory = match guard::install() {
            // SAFETY: the caller's promise, and the guard is in place.
            Ok(()) => unsafe { Mapped::vanishing(start, len) },
            // SAFETY: the caller's promise.
            Err(_) => unsafe { Mapped::new(start, len) },
        };
        Ok(Arc::new(Segment {
            port: self.ours.clone(),
            segment,
            memory,
            owner: None,
        }))
    }

    fn export(&self, spec: &ExportSpec<'_>) -> Result<ExportId, Refusal> {
        let entry = |node: Option<NodeId>, port: Option<PortId>, modes: Modes| AllowEntry {
            node: node.map_or(ANY_NODE, |node| node.0),
            port: port.map_or(ANY_PORT, |port| port.0),
            modes: modes.bits(),
            reserved: 0,
        };
        let allow: Vec<_> = spec
            .admit
            .iter()
            .map(|admission| entry(admission.node, admission.port, admission.modes))
            .collect();
        let mut export = Export {
            name: *spec.name.bytes(),
            address: spec.start.0,
            len: spec.len,
            segment: spec.segment.0,
            modes: u32::from(spec.modes.bits()),
            notify_first: spec.notify_first.0,
            notify_last: spec.notify_last.0,
            allow: allow.as_ptr().expose_provenance() as u64,
            allow_count: allow.len() as u32,
            queue: spec.queue.word(),
            ..Export::default()
        };
        self.calls()?.export(&mut export)?;
        Ok(ExportId(export.export))
    }

    fn unexport(&self, export: ExportId) -> Result<(), Refusal> {
        let mut unexport = Unexport {
            export: export.0,
            ..Unexport::default()
        };
        self.calls()?.unexport(&mut unexport)
    }

    fn import(&self, request: &ImportRequest<'_>, _deadline: Nanos) -> Result<Grant, Refusal> {
        // Asked once: the library repeats it. The driver does not wait long for an answer.
        let mut import = Import {
            name: *request.name.bytes(),
            node: request.node.0,
            port: request.port.0,
            modes: u32::from(request.modes.bits()),
            timeout: 0,
            ..Import::default()
        };
        self.calls()?.import(&mut import)?;
        Ok(Grant {
            start: VirtAddr(import.address),
            len: import.len,
            capability: CapabilitySlot(import.capability),
            secret: import.secret,
            modes: Modes::from_bits_truncate(import.modes as u16),
            notify_first: NotificationId(import.notify_first),
            notify_last: NotificationId(import.notify_last),
            queue: QueueShape::from_word(import.queue),
        })
    }

    fn release(&self, exporter: NodeId, grant: &Grant) {
        let Ok(calls) = self.calls() else { return };
        let mut unimport = Unimport {
            secret: grant.secret,
            capability: grant.capability.0,
            node: exporter.0,
            ..Unimport::default()
        };
        // Revoked meanwhile, perhaps.
        let _ = calls.unimport(&mut unimport);
    }

    fn lend(&self, spec: &LeaseSpec) -> Result<(LeaseId, Grant), Refusal> {
        let mut lend = Lend {
            address: spec.start.0,
            len: spec.len,
            duration: spec.duration.0,
            longest: spec.longest.0,
            export: spec.export.0,
            modes: u32::from(spec.modes.bits()),
            node: spec.node.0,
            port: spec.port.0,
            ..Lend::default()
        };
        let calls = self.calls()?;
        uninterrupted(|| calls.lend(&mut lend))?;
        let lease = LeaseId {
            slot: CapabilitySlot(lend.capability),
            generation: Generation(lend.generation),
        };
        let grant = Grant {
            start: spec.start,
            len: spec.len,
            capability: lease.slot,
            secret: lend.secret,
            modes: spec.modes,
            notify_first: NotificationId(lend.notify_first),
            notify_last: NotificationId(lend.notify_last),
            queue: QueueShape::NONE,
        };
        Ok((lease, grant))
    }

    fn lease_left(&self, lease: LeaseId) -> Result<Nanos, Refusal> {
        let mut left = LeaseLeft {
            capability: lease.slot.0,
            generation: lease.generation.0,
            ..LeaseLeft::default()
        };
        let calls = self.calls()?;
        uninterrupted(|| calls.lease_left(&mut left))?;
        Ok(Nanos(left.left))
    }

    fn recall(&self, leases: &[LeaseId]) -> Result<(), Refusal> {
        let calls = self.calls()?;
        let names: Vec<_> = leases
            .iter()
            .map(|lease| LeaseName {
                capability: lease.slot.0,
                generation: lease.generation.0,
            })
            .collect();
        for some in names.chunks(RECALL_ENTRIES) {
            let mut recall = Recall {
                leases: some.as_ptr().expose_provenance() as u64,
                count: some.len() as u32,
                ..Recall::default()
            };
            calls.recall(&mut recall)?;
        }
        Ok(())
    }

    fn now(&self) -> Nanos {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
        Nanos(tv_sec as u64 * 1_000_000_000 + tv_nsec as u64)
    }

    fn doorbell(&self) {
        if let Ok(calls) = self.calls() {
            calls.wake();
        }
    }

    fn wait_token(&self) -> u32 {
        self.news.load_acquire(PORT_EVENTS)
    }

    fn block(&self, token: u32, deadline: Nanos) {
        let Ok(calls) = self.calls() else { return };
        let mut wait = Wait {
            notifications: self.news.load_acquire(NOTIFICATION_WRITE),
            errors: self.news.load_acquire(ERROR_WRITE),
            state: self.news.load_acquire(PORT_STATE),
            events: token,
            timeout: match deadline {
                Nanos::MAX => NO_TIMEOUT,
                deadline => deadline.0.saturating_sub(self.now().0),
            },
            ..Wait::default()
        };
        // Whatever it was that ended it: the caller looks.
        let _ = calls.wait(&mut wait);
    }

    fn wake(&self) {
        if let Ok(calls) = self.calls() {
            calls.nudge();
        }
    }

    fn descriptor(&self) -> Result<Arc<OwnedFd>, Refusal> {
        Ok(Arc::clone(&self.descriptor))
    }

    fn relax(&self, spins: u32) {
        if spins < SPINS {
            std::hint::spin_loop();
        } else if spins < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<(), Refusal> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body);
        thread.map(drop).map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
            system("a thread", errno)
        })
    }
}
