//! The user library's boundary ([`netvm::backend`]) on nodes of this process.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use netvm::backend::{
    Backend, ExportSpec, ImportRequest, MappedWords, OpenRequest, PortBackend, Refusal, Words,
};
use netvm_abi::bar::{BarMap, port};
use netvm_abi::control::Grant;
use netvm_abi::lease::{LeaseId, LeaseSpec};
use netvm_abi::port_area::AREA_WORDS;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::{
    CapabilitySlot, ExportId, Generation, Geometry, Nanos, NodeId, PortId, Status, Token, VirtAddr, WordIndex,
};
use netvm_host::exports::Allow;
use netvm_host::imports::ImportSpec;
use netvm_host::ports::OpenPort;
use netvm_host::revoke::Revoke;
use netvm_soft::PAGE_BYTES;
use netvm_soft::memory::WordSpace;

use crate::machine::{Area, Machine, Memory, Whole};
use crate::node::NodeParts;
use crate::patience::Patience;
use crate::refusal;
use crate::segment::{Segment, address_of};

/// Leases taken back under one hold of the driver's lock.
const RECALLED_AT_ONCE: usize = 64;
/// Spins between two chances for another thread on the same processor.
const SPINS_PER_YIELD: u32 = 512;
const NAP: Duration = Duration::from_micros(20);

/// One node, as the library sees it.
pub struct NodeBackend<M: Machine, R> {
    /// What the node belongs to.
    pub whole: Arc<dyn Whole>,
    /// The node.
    pub parts: Arc<NodeParts<M, R>>,
    /// The back end's name.
    pub name: &'static str,
    /// Writes of up to so many bytes travel in their descriptor.
    pub inline_limit: usize,
}

impl<M: Machine, R: Memory<M>> Backend for NodeBackend<M, R> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn node(&self) -> NodeId {
        self.parts.card.node
    }

    fn geometry(&self) -> Geometry {
        self.parts.card.geometry
    }

    fn inline_limit(&self) -> usize {
        self.inline_limit
    }

    fn open(&self, request: &OpenRequest) -> Result<Arc<dyn PortBackend>, Refusal> {
        let parts = Arc::clone(&self.parts);
        if !parts.host.machine.is_ours() {
            return Err(FORKED);
        }
        let open = parts
            .host
            .with(|host, glue, _| host.port_open(glue, request.port));
        let open = open.map_err(refusal::port)?;
        let closed = Arc::new(AtomicBool::new(false));
        parts.open_ports().insert(open.port, (open, Arc::clone(&closed)));
        let port = Arc::new(Port {
            whole: Arc::clone(&self.whole),
            parts,
            open,
            closed,
            imports: Mutex::default(),
            patience: Patience::default(),
        });
        let (serving, closed) = (Arc::clone(&port.parts), Arc::clone(&port.closed));
        let worker = std::thread::Builder::new().name(format!("netvm-paging-{}", open.port));
        let started = worker.spawn(move || serving.memory.serve(&serving.host, open, &closed));
        match started {
            Ok(thread) => {
                self.whole.keep(thread);
                Ok(port)
            }
            Err(error) => {
                port.close();
                Err(refusal::io(
                    "a thread for the paging of a port (`ulimit -u` and `ulimit -v` limit threads)",
                    &error,
                ))
            }
        }
    }
}

const FORKED: Refusal =
    Refusal::Unsupported("a child of fork has no part in its parent's node: open a node of its own");

/// One open port.
struct Port<M: Machine, R> {
    whole: Arc<dyn Whole>,
    parts: Arc<NodeParts<M, R>>,
    open: OpenPort,
    closed: Arc<AtomicBool>,
    /// What was imported, to be released by its grant.
    imports: Mutex<HashMap<(NodeId, CapabilitySlot, u64), Token>>,
    patience: Patience,
}

impl<M: Machine, R: Memory<M>> Port<M, R> {
    fn words(space: &Arc<WordSpace>, start: WordIndex, len: u32) -> Words {
        let part = space.part(start, len);
        let owner: Arc<dyn Any + Send + Sync> = space.clone();
        let first = NonNull::from(part).cast();
        // SAFETY: the words live as long as `owner`, are atomics for every user, and can be written.
        Words::Mapped(unsafe { MappedWords::new(first, part.len(), owner) })
    }

    fn still_open(&self) -> Result<(), Refusal> {
        if !self.parts.host.machine.is_ours() {
            Err(FORKED)
        } else if self.closed.load(Ordering::Acquire) {
            Err(Refusal::Status(Status::NoSuchPort))
        } else {
            Ok(())
        }
    }

    fn imports(&self) -> std::sync::MutexGuard<'_, HashMap<(NodeId, CapabilitySlot, u64), Token>> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, area: Area, len: u64) -> Result<Arc<dyn netvm::backend::Memory>, Refusal> {
        // The card knows whole pages.
        let address = address_of(area.start).0;
        let first = address & !(PAGE_BYTES as u64 - 1);
        let pages = (address - first + len).next_multiple_of(PAGE_BYTES as u64);
        let segment = self
            .parts
            .host
            .with(|host, _, _| host.register(self.open.port, VirtAddr(first), pages))
            .map_err(refusal::segment)?;
        let node = (&self.parts, &self.whole);
        Ok(Arc::new(Segment::new(node, (self.open, segment), area, len)))
    }

    fn wait_for_import(&self, token: Token, deadline: Nanos) -> Result<Grant, Status> {
        let host = &self.parts.host;
        loop {
            let step = host.steps.token();
            if let Some(Some(result)) = host.imports().get(&token).copied() {
                return result;
            }
            let now = host.machine.now();
            if now >= deadline {
                return Err(Status::TimedOut);
            }
            if self.closed.load(Ordering::Acquire) {
                return Err(Status::NoSuchPort);
            }
            let limit = Duration::from_nanos(deadline.0 - now.0).min(Duration::from_millis(5));
            host.steps.wait(step, Some(limit));
        }
    }
}

impl<M: Machine, R: Memory<M>> PortBackend for Port<M, R> {
    fn port(&self) -> PortId {
        self.open.port
    }

    fn generation(&self) -> Generation {
        self.open.generation
    }

    fn block_words(&self) -> Words {
        let start = BarMap::new(&self.parts.card.geometry).port(self.open.port);
        Self::words(&self.parts.card.bar, start, port::BLOCK_WORDS)
    }

    fn area_words(&self) -> Words {
        let start = SharedMap::new(&self.parts.card.geometry).port_area(self.open.port);
        Self::words(&self.parts.card.shared, start, AREA_WORDS)
    }

    fn status_words(&self) -> Words {
        let end = SharedMap::new(&self.parts.card.geometry).nic_events;
        Self::words(&self.parts.card.shared, WordIndex(0), end.0)
    }

    fn close(&self) {
        if !self.parts.host.machine.is_ours() {
            return;
        }
        if self.parts.is_open(self.open) {
            self.parts.host.machine.linger(self.open.port);
        }
        self.parts.close_port(self.open.port, Some(self.open.generation));
    }

    fn alloc(&self, len: u64) -> Result<Arc<dyn netvm::backend::Memory>, Refusal> {
        self.still_open()?;
        let area = self.parts.memory.alloc(&self.parts.host, self.open, len)?;
        self.register(area, len)
    }

    unsafe fn adopt(&self, start: NonNull<u8>, len: u64) -> Result<Arc<dyn netvm::backend::Memory>, Refusal> {
        self.still_open()?;
        // SAFETY: the caller's promises are the same.
        let area = unsafe {
            self.parts
                .memory
                .adopt(&self.parts.host, self.open.port, start, len)
        }?;
        self.register(area, len)
    }

    unsafe fn adopt_all(&self) -> Result<Arc<dyn netvm::backend::Memory>, Refusal> {
        self.still_open()?;
        // SAFETY: the caller's promises are the same.
        let (area, len) = unsafe { self.parts.memory.adopt_all() }?;
        self.register(area, len)
    }

    fn export(&self, spec: &ExportSpec<'_>) -> Result<ExportId, Refusal> {
        let allow = |admission: &netvm::backend::Admission| Allow {
            node: admission.node,
            port: admission.port,
            modes: admission.modes,
        };
        let allow: Vec<Allow> = spec.admit.iter().map(allow).collect();
        let spec = netvm_host::exports::ExportSpec {
            name: spec.name,
            start: spec.start,
            len: spec.len,
            modes: spec.modes,
            notify_first: spec.notify_first,
            notify_last: spec.notify_last,
            queue: spec.queue,
            allow: &allow,
        };
        self.parts
            .host
            .with(|host, _, _| host.export(self.open.port, &spec))
            .map_err(refusal::export)
    }

    fn unexport(&self, export: ExportId) -> Result<(), Refusal> {
        let host = &self.parts.host;
        let begun = host.with(|core, _, _| core.unexport_begin(self.open.port, export));
        let mut unexport = begun.map_err(refusal::export)?;
        host.drive(|core, glue, now| core.unexport_step(glue, &mut unexport, now));
        Ok(())
    }

    fn lend(&self, spec: &LeaseSpec) -> Result<(LeaseId, Grant), Refusal> {
        self.still_open()?;
        let host = &self.parts.host;
        let lent = host.until(|core, glue, now| core.lend(glue, self.open.port, spec, now))?;
        Ok((lent.lease, lent.grant))
    }

    fn lease_left(&self, lease: LeaseId) -> Result<Nanos, Refusal> {
        self.still_open()?;
        let (host, port) = (&self.parts.host, self.open.port);
        let question = host.with(|core, _, _| core.lease_left_begin(port, lease));
        let left = host.until(|core, glue, now| core.lease_left_step(glue, port, &question, now))?;
        Ok(left)
    }

    fn recall(&self, leases: &[LeaseId]) -> Result<(), Refusal> {
        let (host, port) = (&self.parts.host, self.open.port);
        let mut ending: Vec<Revoke> = Vec::with_capacity(leases.len());
        for some in leases.chunks(RECALLED_AT_ONCE) {
            host.with(|core, glue, now| {
                let begin = |lease: &LeaseId| core.recall_begin(glue, port, *lease, now);
                ending.extend(some.iter().filter_map(begin));
            });
        }
        while let Some(mut last) = ending.pop() {
            host.drive(|core, glue, now| core.revoke_step(glue, &mut last, now));
        }
        Ok(())
    }

    fn import(&self, request: &ImportRequest<'_>, deadline: Nanos) -> Result<Grant, Refusal> {
        self.still_open()?;
        let spec = ImportSpec {
            node: request.node,
            port: request.port,
            name: *request.name,
            modes: request.modes,
            deadline,
            wait: false,
        };
        let host = &self.parts.host;
        let begun = host.with(|core, glue, now| {
            let token = core.import(glue, self.open.port, &spec, now)?;
            // Under the core's lock: its answer cannot be taken before a caller waits for it.
            host.imports().insert(token, None);
            Ok(token)
        });
        let token = begun.map_err(refusal::import)?;
        // A link that is still coming up makes it ask again later: the driver has a new time to wake.
        host.interrupt.notify();
        let result = self.wait_for_import(token, deadline);
        host.imports().remove(&token);
        match result {
            Ok(grant) => {
                self.imports()
                    .insert((request.node, grant.capability, grant.secret), token);
                Ok(grant)
            }
            Err(status) => {
                let _ = host.with(|core, glue, now| core.unimport(glue, self.open.port, token, now));
                Err(Refusal::Status(status))
            }
        }
    }

    fn release(&self, exporter: NodeId, grant: &Grant) {
        let token = self.imports().remove(&(exporter, grant.capability, grant.secret));
        if let Some(token) = token {
            let _ = self
                .parts
                .host
                .with(|core, glue, now| core.unimport(glue, self.open.port, token, now));
        }
    }

    fn now(&self) -> Nanos {
        self.parts.host.machine.now()
    }

    #[inline]
    fn doorbell(&self) {
        self.parts.host.machine.kick();
    }

    fn wait_token(&self) -> u32 {
        self.parts.port_events(self.open.port).token()
    }

    fn block(&self, token: u32, deadline: Nanos) {
        let now = self.now();
        let limit = (deadline != Nanos::MAX).then(|| Duration::from_nanos(deadline.0.saturating_sub(now.0)));
        self.parts.host.machine.rest();
        self.parts.port_events(self.open.port).wait(token, limit);
    }

    fn wake(&self) {
        self.parts.port_events(self.open.port).notify();
    }

    fn descriptor(&self) -> Result<Arc<OwnedFd>, Refusal> {
        self.still_open()?;
        let descriptor = self.parts.port_events(self.open.port).descriptor();
        descriptor.map_err(|errno| Refusal::System {
            what: "an eventfd (`ulimit -n` limits descriptors)",
            errno: errno.raw_os_error(),
        })
    }

    fn relax(&self, spins: u32) {
        let machine = &self.parts.host.machine;
        let naps = self.patience.is_over(spins, || machine.served());
        let runs = machine
            .spins_per_run()
            .is_some_and(|each| naps || spins % each == each - 1);
        if runs {
            machine.kick();
        }
        if naps {
            std::thread::sleep(NAP);
        } else if spins % SPINS_PER_YIELD == SPINS_PER_YIELD - 1 {
            std::thread::yield_now();
        } else if !runs {
            std::hint::spin_loop();
        }
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<(), Refusal> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body);
        thread.map(drop).map_err(|error| refusal::io("thread", &error))
    }
}
