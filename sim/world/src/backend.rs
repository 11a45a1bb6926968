//! The library's back end: system calls become calls of the host core, spinning and blocking become
//! parking.

use crate::coroutine::Park;
use crate::effort::CoreStep;
use crate::kernel;
use crate::memory::{Region, wait_for};
use crate::node::Node;
use crate::process;
use crate::seen::{Allowed, ExportFact, Seen};
use crate::sim::Sim;
use crate::solo::Solo;
use crate::timing::CostModel;
use crate::vm::{PAGE, ProcessId};
use crate::words::{NodeWords, Side, Space, View};
use netvm::backend::{Backend, ExportSpec, ImportRequest, Memory, OpenRequest, PortBackend, Refusal, Words};
use netvm_abi::bar::{BarMap, port as block};
use netvm_abi::control::Grant;
use netvm_abi::lease::{LeaseId, LeaseSpec};
use netvm_abi::shared_map::{SharedMap, status_page};
use netvm_abi::words::SharedWords;
use netvm_abi::{
    ExportId, Generation, Geometry, Nanos, NodeId, PortId, Status, Token, VirtAddr, WordIndex, port_area,
};
use netvm_host::Progress;
use netvm_host::exports::{Allow, ExportError};
use netvm_host::imports::{ImportError, ImportSpec};
use netvm_host::ports::{OpenPort, PortError};
use netvm_host::segments::SegmentError;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// One node, as the library of any process on it sees it.
pub(crate) struct SimBackend {
    sim: Solo<Weak<Sim>>,
    node: NodeId,
    inline: usize,
}

impl SimBackend {
    /// The back end of a node of no world: everything is refused.
    pub(crate) fn nowhere(node: NodeId) -> Self {
        Self {
            sim: Solo::new(Weak::new()),
            node,
            inline: 8,
        }
    }

    /// The back end of a node.
    pub(crate) fn new(sim: &Sim, node: NodeId, inline: usize) -> Self {
        Self {
            sim: Solo::new(sim.me.clone()),
            node,
            inline,
        }
    }
}

/// Words that an app reaches: dead ends once the world is over, when killed apps are unwound.
struct AppWords {
    sim: Solo<Weak<Sim>>,
    words: Solo<Weak<NodeWords>>,
    space: Space,
    base: WordIndex,
    len: u32,
}

impl AppWords {
    fn view(&self) -> Option<View> {
        self.sim.upgrade()?;
        Some(View::part(
            &self.words.upgrade()?,
            self.space,
            self.base,
            self.len,
        ))
    }

    /// In a modelled world: this takes the app so long. The library may be inside of a critical section, so no other
    /// app of the process runs meanwhile.
    fn pay(&self, cost: impl FnOnce(&CostModel) -> Nanos) {
        if let Some(sim) = self.sim.upgrade()
            && let Some(model) = &sim.model
            && sim.parker.inside()
        {
            sim.parker.park(Park::Access(sim.now().after(cost(model))));
        }
    }

    /// Now and then the app is interrupted between two accesses.
    fn interrupt(&self) {
        if let Some(sim) = self.sim.upgrade()
            && sim.parker.inside()
            && sim.interrupts_app()
        {
            let at = sim.now().after(sim.span(Nanos(100), Nanos(6_000)));
            sim.parker.park(Park::Access(at));
        }
    }
}

impl SharedWords for AppWords {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.interrupt();
        self.view().map_or(u32::MAX, |view| view.load_acquire(at))
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        self.interrupt();
        if self.space == Space::Bar && at == block::DOORBELL {
            self.pay(|model| model.post);
        }
        if let Some(view) = self.view() {
            view.store_release(at, value);
        }
    }

    fn full_barrier(&self) {
        if let Some(view) = self.view() {
            view.full_barrier();
        }
    }

    fn bus_barrier(&self) {
        if let Some(view) = self.view() {
            view.bus_barrier();
        }
    }
}

/// What was lent, by slot and generation.
type Lent = BTreeMap<(u32, u32), Rc<ExportFact>>;

/// An open port, as the library sees it.
struct SimPort {
    sim: Solo<Weak<Sim>>,
    node: NodeId,
    life: u32,
    process: ProcessId,
    open: OpenPort,
    /// Imports that were granted, by capability, so that a release finds its import.
    imports: Solo<RefCell<BTreeMap<(NodeId, u32), Token>>>,
    /// What was lent and not taken back.
    leases: Solo<RefCell<Lent>>,
}

/// The node's; a program that outlives its world sees an ordinary one.
fn geometry(sim: &Weak<Sim>, node: NodeId) -> Geometry {
    sim.upgrade()
        .map(|sim| sim.node(node).geometry)
        .unwrap_or_default()
}

fn gone() -> Refusal {
    Refusal::Status(Status::NoSuchPort)
}

impl Backend for SimBackend {
    fn name(&self) -> &'static str {
        "simulator"
    }

    fn node(&self) -> NodeId {
        self.node
    }

    fn geometry(&self) -> Geometry {
        geometry(&self.sim, self.node)
    }

    fn inline_limit(&self) -> usize {
        self.inline
    }

    fn open(&self, request: &OpenRequest) -> Result<Arc<dyn PortBackend>, Refusal> {
        let sim = self.sim.upgrade().ok_or_else(gone)?;
        let node = sim.node(self.node).clone();
        let (_, process) = process::running(&sim).ok_or_else(gone)?;
        let wanted = request.port;
        let call = move |sim: &Sim, node: &Rc<Node>| {
            let open = {
                let mut slot = node.driver(sim);
                let driver = slot.as_mut().ok_or(PortError::CardGone)?;
                driver.step(sim, CoreStep::Call, |driver| {
                    driver.host.port_open(&mut driver.platform, wanted)
                })
            };
            // It may have found its card dead.
            crate::driver::arm(sim, node);
            let open = open?;
            process::port_opened(sim, node, process, open);
            node.kick(sim, Nanos(200));
            Ok(open)
        };
        let open = kernel::call(&sim, &node, call).unwrap_or(Err(PortError::CardGone));
        let open = open.map_err(|error| {
            Refusal::Status(match error {
                PortError::NoSuchPort => Status::NoSuchPort,
                PortError::InUse => Status::NotAllowed,
                PortError::AllInUse => Status::TableFull,
                PortError::CardGone => Status::CardGone,
            })
        })?;
        Ok(Arc::new(SimPort {
            sim: self.sim.clone(),
            node: self.node,
            life: node.life.get(),
            process,
            open,
            imports: Solo::new(RefCell::default()),
            leases: Solo::new(RefCell::default()),
        }))
    }
}

impl SimPort {
    /// The world and the node, while this port's life of it lasts.
    fn here(&self) -> Option<(Rc<Sim>, Rc<Node>)> {
        let sim = self.sim.upgrade()?;
        let node = sim.node(self.node).clone();
        (node.life.get() == self.life).then_some((sim, node))
    }

    fn live(&self) -> Result<(Rc<Sim>, Rc<Node>), Refusal> {
        let (sim, node) = self.here().ok_or_else(gone)?;
        let open = process::open_port(&node, self.open.port).is_some_and(|open| open == self.open);
        if open { Ok((sim, node)) } else { Err(gone()) }
    }

    fn words(&self, space: Space, base: WordIndex, len: u32) -> Words {
        let words = self
            .here()
            .map_or_else(Weak::new, |(_, node)| Rc::downgrade(&node.words()));
        Words::Hooked(Arc::new(AppWords {
            sim: self.sim.clone(),
            words: Solo::new(words),
            space,
            base,
            len,
        }))
    }

    /// Calls the core until it answers; others run meanwhile.
    fn until<R>(
        &self,
        mut call: impl FnMut(&mut crate::driver::Driver, Nanos) -> Result<Option<R>, Status>,
    ) -> Result<R, Refusal> {
        loop {
            let (sim, node) = self.live()?;
            let now = sim.now();
            let answer = {
                let mut slot = node.driver(&sim);
                let driver = slot.as_mut().ok_or_else(gone)?;
                driver.step(&sim, CoreStep::Call, |driver| call(driver, now))
            };
            crate::driver::nudge(&sim, &node, Nanos(200));
            node.kick(&sim, Nanos(200));
            if let Some(answer) = answer? {
                return Ok(answer);
            }
            self.system_call();
        }
    }

    /// A system call takes a while, in which others run.
    fn system_call(&self) {
        if let Some(sim) = self.sim.upgrade()
            && sim.parker.inside()
            && !std::thread::panicking()
        {
            process::acts(&sim);
            let at = sim.now().after(sim.span(Nanos(300), Nanos(2_000)));
            sim.parker.park(Park::Until(at));
        }
    }
}

impl PortBackend for SimPort {
    fn port(&self) -> PortId {
        self.open.port
    }

    fn generation(&self) -> Generation {
        self.open.generation
    }

    fn block_words(&self) -> Words {
        let geometry = geometry(&self.sim, self.node);
        self.words(
            Space::Bar,
            BarMap::new(&geometry).port(self.open.port),
            block::BLOCK_WORDS,
        )
    }

    fn area_words(&self) -> Words {
        let geometry = geometry(&self.sim, self.node);
        self.words(
            Space::Shared,
            SharedMap::new(&geometry).port_area(self.open.port),
            port_area::AREA_WORDS,
        )
    }

    fn status_words(&self) -> Words {
        let geometry = geometry(&self.sim, self.node);
        let len = status_page::peer(NodeId(geometry.nodes)).0;
        self.words(Space::Shared, WordIndex(0), len)
    }

    fn close(&self) {
        let Ok((sim, node)) = self.live() else { return };
        let waiter = process::running(&sim).map(|(app, _)| app);
        let port = self.open.port;
        let call = move |sim: &Sim, node: &Rc<Node>| kernel::close(sim, node, port, waiter);
        let job = kernel::call(&sim, &node, call).flatten();
        wait_for(&sim, &node, self.life, job);
    }

    fn alloc(&self, len: u64) -> Result<Arc<dyn Memory>, Refusal> {
        self.system_call();
        let (sim, node) = self.live()?;
        let pages = len / PAGE as u64;
        let first = process::take_pages(&sim, self.process, pages).ok_or_else(gone)?;
        if !node.vm.borrow_mut().map_region(self.process, first, pages) {
            return Err(Refusal::Status(Status::NoMemory));
        }
        let segment = {
            let mut slot = node.driver(&sim);
            let driver = slot.as_mut().ok_or_else(gone)?;
            driver
                .host
                .register(self.open.port, VirtAddr(first * PAGE as u64), len)
        };
        let segment = segment.map_err(|error| {
            Refusal::Status(match error {
                SegmentError::TableFull => Status::TableFull,
                SegmentError::NoSuchPort | SegmentError::NoSuchSegment => Status::NoSuchPort,
                _ => Status::OutOfRange,
            })
        })?;
        sim.see(Seen::Registered {
            node: self.node,
            port: self.open.port,
            start: first * PAGE as u64,
            len,
        });
        Ok(Arc::new(Region {
            sim: self.sim.clone(),
            node: self.node,
            life: self.life,
            process: self.process,
            port: self.open.port,
            generation: self.open.generation.0,
            segment,
            first,
            pages,
        }))
    }

    unsafe fn adopt(&self, _start: NonNull<u8>, _len: u64) -> Result<Arc<dyn Memory>, Refusal> {
        Err(Refusal::Unsupported(
            "the simulator's memory is a model: allocate with `alloc` instead of adopting",
        ))
    }

    fn export(&self, spec: &ExportSpec<'_>) -> Result<ExportId, Refusal> {
        self.system_call();
        let (sim, node) = self.live()?;
        let allow: Vec<Allow> = spec
            .admit
            .iter()
            .map(|a| Allow {
                node: a.node,
                port: a.port,
                modes: a.modes,
            })
            .collect();
        let host_spec = netvm_host::exports::ExportSpec {
            name: spec.name,
            start: spec.start,
            len: spec.len,
            modes: spec.modes,
            notify_first: spec.notify_first,
            notify_last: spec.notify_last,
            queue: spec.queue,
            allow: &allow,
        };
        let export = {
            let mut slot = node.driver(&sim);
            let driver = slot.as_mut().ok_or_else(gone)?;
            driver.host.export(self.open.port, &host_spec)
        };
        let export = export.map_err(|error| {
            Refusal::Status(match error {
                ExportError::NoSuchPort => Status::NoSuchPort,
                ExportError::NameTaken(_) => Status::NotAllowed,
                ExportError::TooManyAllowed | ExportError::TableFull => Status::TableFull,
                ExportError::NoSuchExport => Status::NoSuchExport,
                ExportError::Empty
                | ExportError::NotRegistered
                | ExportError::BadNotifications
                | ExportError::BadQueue => Status::OutOfRange,
            })
        })?;
        let fact = ExportFact {
            start: spec.start.0,
            end: spec.start.0 + spec.len,
            allowed: spec
                .admit
                .iter()
                .map(|a| Allowed {
                    node: a.node,
                    port: a.port,
                    modes: a.modes & spec.modes,
                    notify: (spec.notify_first, spec.notify_last),
                })
                .collect(),
            queue: spec
                .queue
                .is_some()
                .then(|| (spec.queue.entry_bytes().into(), spec.queue.number.into())),
        };
        process::exported(&sim, &node, self.open.port, (export, spec.segment), fact);
        Ok(export)
    }

    fn unexport(&self, export: ExportId) -> Result<(), Refusal> {
        self.system_call();
        let (sim, node) = self.live()?;
        let waiter = process::running(&sim).map(|(app, _)| app);
        let job = kernel::unexport(&sim, &node, self.open.port, export, waiter);
        if job.is_none() {
            return Err(Refusal::Status(Status::NoSuchExport));
        }
        wait_for(&sim, &node, self.life, job);
        Ok(())
    }

    fn lend(&self, spec: &LeaseSpec) -> Result<(LeaseId, Grant), Refusal> {
        self.system_call();
        let port = self.open.port;
        let lent = self.until(|driver, now| driver.host.lend(&mut driver.platform, port, spec, now))?;
        let (sim, node) = self.live()?;
        let fact = ExportFact {
            start: spec.start.0,
            end: spec.start.0 + spec.len,
            allowed: vec![Allowed {
                node: Some(spec.node),
                port: Some(spec.port),
                modes: spec.modes,
                notify: (lent.grant.notify_first, lent.grant.notify_last),
            }],
            queue: None,
        };
        let fact = process::lent(&sim, &node, port, spec.export, fact);
        let LeaseId { slot, generation } = lent.lease;
        self.leases.borrow_mut().insert((slot.0, generation.0), fact);
        Ok((lent.lease, lent.grant))
    }

    fn lease_left(&self, lease: LeaseId) -> Result<Nanos, Refusal> {
        self.system_call();
        let port = self.open.port;
        let mut question = None;
        self.until(|driver, now| {
            let question = &*question.get_or_insert_with(|| driver.host.lease_left_begin(port, lease));
            driver
                .host
                .lease_left_step(&mut driver.platform, port, question, now)
        })
    }

    fn recall(&self, leases: &[LeaseId]) -> Result<(), Refusal> {
        self.system_call();
        let port = self.open.port;
        let (sim, node) = self.live()?;
        process::recalls(&sim, &node, port);
        let mut ending = Vec::new();
        self.until(|driver, now| {
            let begin = |lease: &LeaseId| driver.host.recall_begin(&mut driver.platform, port, *lease, now);
            ending.extend(leases.iter().filter_map(begin));
            Ok(Some(()))
        })?;
        // A program that is unwound cannot wait; the barrier comes all the same.
        while let Some(mut last) = ending.pop().filter(|_| !std::thread::panicking()) {
            self.until(|driver, now| {
                let step = driver.host.revoke_step(&mut driver.platform, &mut last, now);
                Ok((step == Progress::Done).then_some(()))
            })?;
        }
        for LeaseId { slot, generation } in leases {
            let fact = self.leases.borrow_mut().remove(&(slot.0, generation.0));
            if let Some(fact) = fact.filter(|_| !std::thread::panicking()) {
                process::lease_gone(&sim, &node, port, &fact);
            }
        }
        Ok(())
    }

    fn import(&self, request: &ImportRequest<'_>, deadline: Nanos) -> Result<Grant, Refusal> {
        self.system_call();
        let (sim, node) = self.live()?;
        let spec = ImportSpec {
            node: request.node,
            port: request.port,
            name: *request.name,
            modes: request.modes,
            deadline,
            wait: false,
        };
        let port = self.open.port;
        let call = move |sim: &Sim, node: &Rc<Node>| {
            let mut slot = node.driver(sim);
            let driver = slot.as_mut()?;
            let now = sim.now();
            Some(driver.step(sim, CoreStep::Call, |driver| {
                driver.host.import(&mut driver.platform, port, &spec, now)
            }))
        };
        let token = kernel::call(&sim, &node, call).flatten().ok_or_else(gone)?;
        let token = token.map_err(|error| {
            Refusal::Status(match error {
                ImportError::NoSuchPort | ImportError::NoSuchImport => Status::NoSuchPort,
                ImportError::NoSuchNode => Status::NoSuchNode,
                ImportError::TableFull => Status::TableFull,
                ImportError::CardGone => Status::CardGone,
            })
        })?;
        crate::driver::nudge(&sim, &node, Nanos(300));
        loop {
            let events = process::events(&node, self.open.port);
            let ended = node
                .driver(&sim)
                .as_mut()
                .and_then(|driver| driver.imported.remove(&token));
            match ended {
                Some(Ok(grant)) => {
                    let key = (request.node, grant.capability.0);
                    self.imports.borrow_mut().insert(key, token);
                    return Ok(grant);
                }
                Some(Err(status)) => return Err(Refusal::Status(status)),
                None => {}
            }
            if sim.now() >= deadline || self.live().is_err() {
                if let Some(driver) = node.driver(&sim).as_mut() {
                    // It may have ended in this very moment; then there is nothing to give up.
                    let _ = driver
                        .host
                        .unimport(&mut driver.platform, self.open.port, token, sim.now());
                }
                return Err(Refusal::Status(Status::TimedOut));
            }
            process::block(&sim, &node, self.open.port, events, deadline);
        }
    }

    fn release(&self, exporter: NodeId, grant: &Grant) {
        let Ok((sim, node)) = self.live() else { return };
        let token = self.imports.borrow_mut().remove(&(exporter, grant.capability.0));
        if let (Some(token), Some(mut slot)) = (token, node.try_driver(&sim))
            && let Some(driver) = slot.as_mut()
        {
            // Best effort, as the interface says.
            let _ = driver
                .host
                .unimport(&mut driver.platform, self.open.port, token, sim.now());
        }
        crate::driver::nudge(&sim, &node, Nanos(300));
    }

    fn now(&self) -> Nanos {
        self.sim.upgrade().map_or(Nanos(0), |sim| sim.now())
    }

    fn doorbell(&self) {
        if let Some((sim, node)) = self.here() {
            process::acts(&sim);
            // The call is a posted store itself, behind those that it is made for.
            node.words().call(Side::Host);
            node.kick(&sim, sim.model.map_or(Nanos(150), |model| model.doorbell));
        }
    }

    fn wait_token(&self) -> u32 {
        self.here()
            .map_or(0, |(_, node)| process::events(&node, self.open.port))
    }

    fn descriptor(&self) -> Result<Arc<OwnedFd>, Refusal> {
        Err(Refusal::Unsupported(
            "no descriptor follows virtual time: await the port's futures instead",
        ))
    }

    fn block(&self, token: u32, deadline: Nanos) {
        match self.live() {
            Ok((sim, node)) => process::block(&sim, &node, self.open.port, token, deadline),
            Err(_) => self.system_call(),
        }
    }

    fn wake(&self) {
        if let Ok((sim, node)) = self.live() {
            process::acts(&sim);
            process::port_event(&sim, &node, self.open.port);
        }
    }

    fn relax(&self, spins: u32) {
        let Some(sim) = self.sim.upgrade() else { return };
        process::acts(&sim);
        let pause = match &sim.model {
            Some(model) => {
                process::spin(&sim, sim.node(self.node), self.open.port);
                model.spin
            }
            None => Nanos(200 << spins.min(8)),
        };
        let at = sim.now().after(pause);
        let activity = &sim.node(self.node).activity.waiting;
        activity.set(activity.get() + 1);
        sim.parker.park(Park::Until(at));
        activity.set(activity.get().saturating_sub(1));
    }

    fn spawn(&self, _name: &str, body: Box<dyn FnOnce() + Send>) -> Result<(), Refusal> {
        let (sim, _) = self.live()?;
        process::acts(&sim);
        process::spawn(&sim, self.process, body)
            .map(|_| ())
            .map_err(|what| Refusal::System { what, errno: 0 })
    }
}
