//! The user library's boundary ([`netvm::backend`]) on emulated nodes.

use std::any::Any;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use netvm::backend::{
    Backend, ExportSpec, ImportRequest, MappedWords, Memory, OpenRequest, PortBackend, Refusal, View, Width,
    Words,
};
use netvm::mapped::Mapped;
use netvm_abi::bar::{BarMap, port};
use netvm_abi::control::Grant;
use netvm_abi::port_area::AREA_WORDS;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::{
    CapabilitySlot, ExportId, Generation, Geometry, Nanos, NodeId, PortId, SegmentId, Status, Token,
    VirtAddr, WordIndex,
};
use netvm_host::exports::Allow;
use netvm_host::imports::ImportSpec;
use netvm_host::ports::OpenPort;
use netvm_host_platform::System;

use crate::emulator::{Inner, NodeParts};
use crate::memory::WordSpace;
use crate::refusal;
use crate::vm::{PAGE_SIZE, RegionId};
use crate::worker;

/// Pages that one step of a control call deals with while it holds the driver's lock.
const STEP_PAGES: u32 = 256;

/// Spins after which a waiter naps: it waits for a page, say, and the threads that bring the page need the processor.
const PATIENCE: u32 = 2048;
const NAP: Duration = Duration::from_micros(20);

/// One node, as the library sees it.
pub(crate) struct NodeBackend {
    pub(crate) inner: Arc<Inner>,
    pub(crate) node: usize,
}

impl NodeBackend {
    fn parts(&self) -> &Arc<NodeParts> {
        self.inner.node(self.node)
    }
}

impl Backend for NodeBackend {
    fn name(&self) -> &'static str {
        "emulator"
    }

    fn node(&self) -> NodeId {
        NodeId(self.node as u16)
    }

    fn geometry(&self) -> Geometry {
        self.parts().geometry
    }

    fn inline_limit(&self) -> usize {
        self.inner.inline_limit
    }

    fn open(&self, request: &OpenRequest) -> Result<Arc<dyn PortBackend>, Refusal> {
        let parts = Arc::clone(self.parts());
        let open = parts
            .host
            .with(|host, glue, _| host.port_open(glue, request.port));
        let open = open.map_err(refusal::port)?;
        let closed = Arc::new(AtomicBool::new(false));
        parts.open_ports().insert(open.port, (open, Arc::clone(&closed)));
        let port = Arc::new(Port {
            inner: Arc::clone(&self.inner),
            parts,
            open,
            closed,
            imports: Mutex::default(),
        });
        let (serving, closed, number) = (Arc::clone(&port.parts), Arc::clone(&port.closed), open.port);
        let worker = std::thread::Builder::new().name(format!("netvm-paging-{number}"));
        let started = worker.spawn(move || worker::run(&serving.host, &serving.pager, number, &closed));
        match started {
            Ok(thread) => {
                self.inner.keep(thread);
                Ok(port)
            }
            Err(error) => {
                port.close();
                Err(refusal::io("paging worker", &error))
            }
        }
    }
}

/// One open port.
struct Port {
    inner: Arc<Inner>,
    parts: Arc<NodeParts>,
    open: OpenPort,
    closed: Arc<AtomicBool>,
    /// What was imported, to be released by its grant.
    imports: Mutex<HashMap<(NodeId, CapabilitySlot, u64), Token>>,
}

impl Port {
    fn words(space: &Arc<WordSpace>, start: WordIndex, len: u32) -> Words {
        let part = space.part(start, len);
        let owner: Arc<dyn Any + Send + Sync> = space.clone();
        let first = NonNull::from(part).cast();
        // SAFETY: the words live as long as `owner`, are atomics for every user, and can be written.
        Words::Mapped(unsafe { MappedWords::new(first, part.len(), owner) })
    }

    fn still_open(&self) -> Result<(), Refusal> {
        if self.closed.load(Ordering::Acquire) {
            Err(Refusal::Status(Status::NoSuchPort))
        } else {
            Ok(())
        }
    }

    fn imports(&self) -> std::sync::MutexGuard<'_, HashMap<(NodeId, CapabilitySlot, u64), Token>> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_import(&self, token: Token, deadline: Nanos) -> Result<Grant, Status> {
        let host = &self.parts.host;
        loop {
            let step = host.steps.token();
            if let Some(Some(result)) = host.imports().get(&token).copied() {
                return result;
            }
            let now = host.network.now();
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

impl PortBackend for Port {
    fn port(&self) -> PortId {
        self.open.port
    }

    fn generation(&self) -> Generation {
        self.open.generation
    }

    fn block_words(&self) -> Words {
        let start = BarMap::new(&self.parts.geometry).port(self.open.port);
        Self::words(&self.parts.bar, start, port::BLOCK_WORDS)
    }

    fn area_words(&self) -> Words {
        let start = SharedMap::new(&self.parts.geometry).port_area(self.open.port);
        Self::words(&self.parts.shared, start, AREA_WORDS)
    }

    fn status_words(&self) -> Words {
        let end = SharedMap::new(&self.parts.geometry).nic_events;
        Self::words(&self.parts.shared, WordIndex(0), end.0)
    }

    fn close(&self) {
        self.parts.close_port(self.open.port, Some(self.open.generation));
    }

    fn alloc(&self, len: u64) -> Result<Arc<dyn Memory>, Refusal> {
        self.still_open()?;
        let pages = len / PAGE_SIZE as u64;
        let (region, start) = self
            .parts
            .pager
            .add_region(pages)
            .map_err(|error| refusal::emulator(&error))?;
        let address = VirtAddr(start.expose_provenance() as u64);
        let host = &self.parts.host;
        host.places.add(region, self.open.port, address, pages);
        let owner = RegionOwner {
            _inner: Arc::clone(&self.inner),
            parts: Arc::clone(&self.parts),
            region,
        };
        let segment = host
            .with(|host, _, _| host.register(self.open.port, address, len))
            .map_err(refusal::segment)?;
        let start = NonNull::new(start).ok_or(Refusal::Status(Status::NoMemory))?;
        Ok(Arc::new(Segment {
            owner: Arc::new(owner),
            open: self.open,
            segment,
            // SAFETY: `owner` keeps it, mapped for both; no references to it exist.
            memory: unsafe { Mapped::new(start, len) },
            address,
        }))
    }

    unsafe fn adopt(&self, _start: NonNull<u8>, _len: u64) -> Result<Arc<dyn Memory>, Refusal> {
        let text =
            "the emulator exports only memory from `alloc`: it cannot watch page events of other memory";
        Err(Refusal::Unsupported(text))
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
        self.parts.host.network.now()
    }

    #[inline]
    fn doorbell(&self) {
        self.parts.host.network.kick(self.parts.host.node);
    }

    fn wait_token(&self) -> u32 {
        self.parts.port_events(self.open.port).token()
    }

    fn block(&self, token: u32, deadline: Nanos) {
        let now = self.now();
        let limit = (deadline != Nanos::MAX).then(|| Duration::from_nanos(deadline.0.saturating_sub(now.0)));
        self.parts.port_events(self.open.port).wait(token, limit);
    }

    fn wake(&self) {
        self.parts.port_events(self.open.port).notify();
    }

    fn relax(&self, spins: u32) {
        let naps = spins >= PATIENCE;
        // The posting thread runs an inline card; a waiter looks after it only now and then, for late DMAs.
        if naps || spins % 512 == 511 {
            if !self.parts.host.network.is_threaded() {
                self.doorbell();
            }
            if naps {
                std::thread::sleep(NAP);
            } else {
                std::thread::yield_now();
            }
        } else {
            std::hint::spin_loop();
        }
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<(), Refusal> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body);
        thread.map(drop).map_err(|error| refusal::io("thread", &error))
    }
}

/// Keeps a region's memory mapped; gives it back when the last user has gone.
struct RegionOwner {
    parts: Arc<NodeParts>,
    region: RegionId,
    /// Last: the pager outlives the region.
    _inner: Arc<Inner>,
}

impl Drop for RegionOwner {
    fn drop(&mut self) {
        self.parts.pager.remove_region(self.region);
    }
}

/// A registered region.
struct Segment {
    owner: Arc<RegionOwner>,
    open: OpenPort,
    segment: SegmentId,
    /// Kept by `owner`.
    memory: Mapped,
    address: VirtAddr,
}

impl Memory for Segment {
    fn segment(&self) -> SegmentId {
        self.segment
    }

    fn address(&self) -> VirtAddr {
        self.address
    }

    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn view(&self) -> View {
        View::Mapped {
            start: self.memory.start(),
            owner: self.owner.clone(),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        self.memory.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Status> {
        self.memory.write(offset, from)
    }

    fn load(&self, offset: u64, width: Width) -> Result<u64, Status> {
        self.memory.load(offset, width)
    }

    fn store(&self, offset: u64, width: Width, value: u64) -> Result<(), Status> {
        self.memory.store(offset, width, value)
    }

    fn compare_swap(&self, offset: u64, width: Width, expected: u64, new: u64) -> Result<u64, Status> {
        self.memory.compare_swap(offset, width, expected, new)
    }

    fn free(&self) {
        let parts = &self.owner.parts;
        // A closed port has no segments left, and a later owner of its number must not lose one.
        let ours = |(open, _): &(OpenPort, _)| open.generation == self.open.generation;
        if !parts.open_ports().get(&self.open.port).is_some_and(ours) {
            return;
        }
        let host = &parts.host;
        let begun = host.with(|core, _, _| core.unregister_begin(self.open.port, self.segment));
        let Ok(mut unregister) = begun else { return };
        host.drive(|core, glue, now| {
            core.unregister_step(glue, &mut unregister, now, STEP_PAGES, &mut |gone| {
                host.page_gone(gone)
            })
        });
    }
}
