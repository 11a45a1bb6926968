//! The host driver of a node: the host core, what it asks of the kernel, and its paging workers.

use crate::effort::{CoreStep, Meter};
use crate::faults::FaultKind;
use crate::heap::Heap;
use crate::kernel;
use crate::node::Node;
use crate::seen::{Buffer, Place, Seen, Stored};
use crate::sim::{Event, Sim};
use crate::vm::{Change, FaultResult, PAGE};
use crate::words::{Actor, Side, Space, View};
use netvm_abi::bounce::BounceUse;
use netvm_abi::control::Grant;
use netvm_abi::{BounceId, Incarnation, Nanos, NodeId, PortId, Status, Token, Vpn};
use netvm_host::Host;
use netvm_host::attach::HostConfig;
use netvm_host::host::{CardFailure, CardState};
use netvm_host::platform::{Access, CopyEnd, CopyJob, Direction, PageGone, Platform, Resident};
use netvm_host_platform::System;
use netvm_host_platform::notice::{self, Handler};
use netvm_host_platform::paging::{Ended, Pager, Turn, Worker};
use std::collections::BTreeMap;
use std::rc::Weak;

/// The driver of one node.
pub(crate) struct Driver {
    pub(crate) host: Host<Heap>,
    /// The host core's tables, by the type of their entries, in bytes.
    pub(crate) tables: Vec<(&'static str, u64)>,
    pub(crate) platform: HostPlatform,
    /// Imports that have ended and have not been fetched.
    pub(crate) imported: BTreeMap<Token, Result<Grant, Status>>,
    workers: BTreeMap<PortId, Entry>,
    deadline: Nanos,
}

/// A port's paging worker: one for each port that has ever needed one.
#[derive(Default)]
struct Entry {
    /// It has an event posted.
    due: bool,
    worker: Worker<Resident>,
    /// Since when it tries to get the page that is wanted now.
    since: Option<Nanos>,
}

/// The host core's surroundings.
pub(crate) struct HostPlatform {
    sim: Weak<Sim>,
    node: NodeId,
    bar: View,
    shared: View,
    meter: Meter,
}

impl Platform for HostPlatform {
    type Bar = View;
    type Shared = View;

    fn bar(&self) -> &View {
        &self.bar
    }

    fn shared(&self) -> &View {
        &self.shared
    }

    fn secret(&mut self) -> u64 {
        self.sim.upgrade().map_or(0, |sim| sim.dice.borrow_mut().word())
    }

    fn load_bounce(&mut self, bounce: BounceId, into: &mut [u32]) {
        self.meter.count();
        into.fill(0);
        let Some(sim) = self.sim.upgrade() else { return };
        sim.see(Seen::BufferRead {
            node: self.node,
            buffer: Buffer::Bounce(bounce),
        });
        let bus = sim.node(self.node).bus.borrow();
        let Some(page) = bus.bounce.get(&bounce) else {
            return;
        };
        for (word, bytes) in into.iter_mut().zip(page.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }

    fn store_bounce(&mut self, bounce: BounceId, from: &[u32]) {
        self.meter.count();
        let Some(sim) = self.sim.upgrade() else { return };
        let mut bus = sim.node(self.node).bus.borrow_mut();
        let page = bus.bounce.entry(bounce).or_insert_with(|| Box::new([0; PAGE]));
        for (bytes, word) in page.chunks_exact_mut(4).zip(from) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn wake_nic(&mut self) {
        self.meter.count();
        if let Some(sim) = self.sim.upgrade() {
            let node = sim.node(self.node);
            // The call is a posted store itself, behind those that it is made for.
            node.words().call(Side::Host);
            node.kick(&sim, Nanos(200));
        }
    }
}

/// How long a page-in is tried before the host says that it has no memory.
const PATIENCE: Nanos = Nanos::from_millis(4);
/// How long a page does not come: three times the deadline of drawn worlds.
const SILENCE: Nanos = Nanos::from_millis(60);

/// How long a page that does not come holds up its port: the driver gives it up after a deadline and one look, of which there
/// are eight in a deadline.
pub(crate) const fn silence(config: &HostConfig) -> Nanos {
    let given_up = config.page_deadline.0.saturating_add(config.page_deadline.0 / 8);
    if given_up < SILENCE.0 {
        Nanos(given_up)
    } else {
        SILENCE
    }
}

impl Driver {
    /// Attaches to a card that is up.
    pub(crate) fn attach(sim: &Sim, node: &Node, config: &HostConfig) -> Result<Self, String> {
        let words = node.words();
        let meter = Meter::default();
        let mut platform = HostPlatform {
            sim: sim.me.clone(),
            node: node.id,
            bar: View::whole(&words, Actor::Driver, Space::Bar).counted(&meter),
            shared: View::whole(&words, Actor::Driver, Space::Shared).counted(&meter),
            meter: meter.clone(),
        };
        let mut heap = Heap {
            meter,
            ..Heap::default()
        };
        let host = Host::attach(&mut platform, &mut heap, config, sim.now())
            .map_err(|error| format!("node {}: {error:?}", node.id))?;
        Ok(Self {
            host,
            tables: heap.made,
            platform,
            imported: BTreeMap::new(),
            workers: BTreeMap::new(),
            deadline: Nanos::MAX,
        })
    }

    /// A step of the core. What follows the death of a card goes through all that it leaves, and is not measured.
    pub(crate) fn step<R>(&mut self, sim: &Sim, step: CoreStep, act: impl FnOnce(&mut Self) -> R) -> R {
        self.platform.meter.take();
        let result = act(self);
        let work = self.platform.meter.take();
        if self.host.card() == CardState::Alive {
            sim.step_ended(self.platform.node, step, work);
        }
        result
    }
}

/// Has the driver look soon.
pub(crate) fn nudge(sim: &Sim, node: &Node, span: Nanos) {
    sim.after(
        span,
        Event::Driver {
            node: node.id,
            life: node.life.get(),
        },
    );
}

/// The driver takes what the card has told it.
pub(crate) fn poll(sim: &Sim, node: &Node) {
    let mut notices = Vec::new();
    {
        let Some(mut slot) = node.try_driver(sim) else {
            return;
        };
        let Some(driver) = slot.as_mut() else { return };
        let now = sim.now();
        let next = |driver: &mut Driver| {
            driver.step(sim, CoreStep::Poll, |driver| {
                driver.host.poll(&mut driver.platform, now)
            })
        };
        while let Some(notice) = next(driver) {
            notices.push(notice);
        }
    }
    arm(sim, node);
    for notice in notices {
        notice::take(&Desk { sim, node }, notice);
    }
}

/// Sees to it that the driver looks when its host core says so.
pub(crate) fn arm(sim: &Sim, node: &Node) {
    let Some(mut slot) = node.try_driver(sim) else {
        return;
    };
    let Some(driver) = slot.as_mut() else { return };
    let now = sim.now();
    let deadline = driver.step(sim, CoreStep::Deadline, |driver| driver.host.next_deadline());
    if deadline != Nanos::MAX && (deadline < driver.deadline || driver.deadline <= now) {
        driver.deadline = deadline;
        sim.at(
            deadline.max(now.after(Nanos(1))),
            Event::Driver {
                node: node.id,
                life: node.life.get(),
            },
        );
    }
}

/// The host of a node, as the common steps of all platforms use it.
pub(crate) struct Desk<'a> {
    pub(crate) sim: &'a Sim,
    pub(crate) node: &'a Node,
}

impl System for Desk<'_> {
    type Storage = Heap;
    type Platform = HostPlatform;

    fn call<R>(&self, call: impl FnOnce(&mut Host<Heap>, &mut HostPlatform, Nanos) -> R) -> Option<R> {
        let mut slot = self.node.driver(self.sim);
        let driver = slot.as_mut()?;
        let now = self.sim.now();
        Some(driver.step(self.sim, CoreStep::Call, |driver| {
            call(&mut driver.host, &mut driver.platform, now)
        }))
    }

    fn page_gone(&self, gone: PageGone) {
        kernel::mark(self.node, &[gone]);
    }

    fn stop_card(&self) {
        stop_card(self.sim, self.node);
    }
}

impl Handler for Desk<'_> {
    fn work(&self, port: PortId) {
        let Self { sim, node } = self;
        node.activity.bounced.set(node.activity.bounced.get() + 1);
        sim.note(node.id, "paging work", &[("port", u64::from(port.0))]);
        wake_worker(sim, node, port, sim.span(Nanos(300), Nanos(3_000)));
    }

    fn imported(&self, port: PortId, import: Token, result: Result<Grant, Status>) {
        let Self { sim, node } = self;
        sim.note(
            node.id,
            "imported",
            &[
                ("port", u64::from(port.0)),
                ("status", result.err().map_or(0, |status| status as u64)),
            ],
        );
        if let Some(driver) = node.driver(sim).as_mut() {
            driver.imported.insert(import, result);
        }
        crate::process::port_event(sim, node, port);
    }

    fn peer_up(&self, peer: NodeId, incarnation: Incarnation) {
        let about = [("peer", u64::from(peer.0)), ("life", u64::from(incarnation.0))];
        self.sim.note(self.node.id, "peer up", &about);
    }

    fn peer_down(&self, peer: NodeId) {
        self.sim
            .note(self.node.id, "peer down", &[("peer", u64::from(peer.0))]);
    }

    fn card_dead(&self, cause: CardFailure) {
        self.sim.note(self.node.id, "card dead", &[("why", cause as u64)]);
    }

    fn progress(&self) {
        kernel::progress(self.sim, self.node);
    }
}

/// Stops the bus mastering of a dead card; then nothing of it can be in flight. A reset follows.
pub(crate) fn stop_card(sim: &Sim, node: &Node) {
    if node.resetting.replace(true) {
        return;
    }
    // The card may only have seemed dead: a reset silences it all the same.
    node.card_gone.set(true);
    node.words().cut_off();
    for dma in node.bus.borrow_mut().stop() {
        sim.see(Seen::DmaAborted { node: node.id, dma });
    }
    sim.see(Seen::CardDead { node: node.id });
    if let Some(driver) = node.driver(sim).as_mut() {
        driver.host.card_stopped(&mut driver.platform, true, sim.now());
    }
    nudge(sim, node, Nanos(500));
    crate::process::all_ports_event(sim, node);
    kernel::progress(sim, node);
    let pause = sim.span(Nanos::from_micros(200), Nanos::from_millis(2));
    sim.after(
        pause,
        Event::Reset {
            node: node.id,
            life: node.life.get(),
            tries: 0,
        },
    );
}

/// Has a port's worker go on after `span`.
fn wake_worker(sim: &Sim, node: &Node, port: PortId, span: Nanos) {
    let mut slot = node.driver(sim);
    let Some(driver) = slot.as_mut() else { return };
    let worker = driver.workers.entry(port).or_default();
    if !std::mem::replace(&mut worker.due, true) {
        sim.after(
            span,
            Event::Worker {
                node: node.id,
                life: node.life.get(),
                port,
            },
        );
    }
}

/// A port's worker goes on.
pub(crate) fn work(sim: &Sim, node: &Node, port: PortId) {
    let mut worker = {
        let mut slot = node.driver(sim);
        let Some(driver) = slot.as_mut() else { return };
        let Some(entry) = driver.workers.get_mut(&port) else {
            return;
        };
        entry.due = false;
        // Back in its place before any other event.
        std::mem::take(&mut entry.worker)
    };
    let memory = Memory {
        desk: Desk { sim, node },
        port,
    };
    let turn = worker.turn(&memory);
    with_entry(sim, node, port, |entry| entry.worker = worker);
    let pause = match turn {
        Turn::Idle => None,
        Turn::PagedIn => Some(sim.span(Nanos(50), Nanos(2_500))),
        Turn::Told => {
            with_entry(sim, node, port, |entry| entry.since = Some(sim.now()));
            Some(sim.span(Nanos(100), Nanos(1_500)))
        }
        Turn::Wait(span) => Some(span),
        Turn::Ended(Ended { status, .. }) => {
            with_entry(sim, node, port, |entry| entry.since = None);
            sim.note(
                node.id,
                "miss answered",
                &[("port", u64::from(port.0)), ("status", status as u64)],
            );
            Some(Nanos(50))
        }
    };
    match pause {
        Some(span) => wake_worker(sim, node, port, span),
        None => {
            node.activity.bounced.set(0);
            node.activity.source_misses.set(0);
        }
    }
    kernel::progress(sim, node);
}

fn with_entry<T: Default>(sim: &Sim, node: &Node, port: PortId, f: impl FnOnce(&mut Entry) -> T) -> T {
    let mut slot = node.driver(sim);
    slot.as_mut()
        .and_then(|driver| driver.workers.get_mut(&port).map(f))
        .unwrap_or_default()
}

/// A port's memory, as its worker reaches it.
struct Memory<'a> {
    desk: Desk<'a>,
    port: PortId,
}

impl Memory<'_> {
    /// Since when the worker tries to get the page that is wanted now.
    fn since(&self) -> Nanos {
        let Desk { sim, node } = self.desk;
        let now = sim.now();
        with_entry(sim, node, self.port, |entry| *entry.since.get_or_insert(now))
    }
}

impl<'a> Pager for Memory<'a> {
    type System = Desk<'a>;
    type Page = Resident;
    type Wait = Nanos;

    fn system(&self) -> &Desk<'a> {
        &self.desk
    }

    fn port(&self) -> PortId {
        self.port
    }

    /// What it finds is told to the core a little later, as on a real machine: the page may be gone again by then.
    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Resident, Status>, Nanos> {
        let Desk { sim, node } = self.desk;
        if sim.fires(FaultKind::VmStuck, node.id) {
            return Err(SILENCE);
        }
        let found = resident(sim, node, vpn, access == Access::Write, self.since())?;
        if found.is_ok()
            && sim.fires(FaultKind::VmRace, node.id)
            && let Some(process) = crate::process::owner(node, vpn.port())
        {
            kernel::change(
                sim,
                node,
                process,
                Change::Evict {
                    page: vpn.page_number(),
                },
                None,
            );
        }
        Ok(found)
    }

    fn copy(&self, _: Option<&Resident>, job: &CopyJob) -> Result<CopyEnd, Nanos> {
        copy(self.desk.sim, self.desk.node, self.since(), job)
    }

    fn offer(&self, page: &mut Resident) -> Option<Resident> {
        Some(*page)
    }

    /// The driver hears of a page event when it begins: the core knows by itself that a page is gone.
    fn prepare(&self, _: &mut Resident, _: &mut Host<Heap>) {}

    fn settle(&self, _: &mut Resident, _: &Host<Heap>, _: bool) {}
}

/// One attempt to have a page present. `Err`: ask again after this.
fn resident(
    sim: &Sim,
    node: &Node,
    vpn: Vpn,
    write: bool,
    since: Nanos,
) -> Result<Result<Resident, Status>, Nanos> {
    let Some(process) = crate::process::owner(node, vpn.port()) else {
        return Ok(Err(Status::NoSuchPort));
    };
    if sim.fires(FaultKind::VmRefuse, node.id) {
        return Ok(Err(Status::BusError));
    }
    let now = sim.now();
    let slow = sim.fires(FaultKind::VmSlow, node.id);
    let result = {
        let mut log = sim.log.borrow_mut();
        node.vm
            .borrow_mut()
            .fault(now, process, vpn.page_number(), write, slow, &mut log)
    };
    match result {
        FaultResult::Present { ppn, writable } => Ok(Ok(Resident {
            ppn,
            frame: 0,
            writable,
        })),
        FaultResult::WaitUntil(until) => Err(Nanos(until.0.saturating_sub(now.0).max(1))),
        FaultResult::BadAddress => Ok(Err(Status::Unmapped)),
        FaultResult::NeedsBreak => {
            kernel::change(
                sim,
                node,
                process,
                Change::Break {
                    page: vpn.page_number(),
                },
                None,
            );
            Err(sim.span(Nanos(500), Nanos(2_000)))
        }
        FaultResult::Changing => Err(sim.span(Nanos(300), Nanos(1_500))),
        FaultResult::NoFrame => {
            if since.after(PATIENCE) < now {
                return Ok(Err(Status::NoMemory));
            }
            kernel::reclaim(sim, node, 2);
            Err(sim.span(Nanos(2_000), Nanos(20_000)))
        }
    }
}

/// One attempt at the one copy of a bounce. `Err`: ask again after this.
fn copy(sim: &Sim, node: &Node, since: Nanos, job: &CopyJob) -> Result<CopyEnd, Nanos> {
    let into_page = job.direction == Direction::IntoPage;
    let page = match resident(sim, node, job.vpn, into_page, since)? {
        Ok(page) => page,
        Err(status) => return Ok(CopyEnd::Failed(status)),
    };
    let Some(process) = crate::process::owner(node, job.vpn.port()) else {
        return Ok(CopyEnd::Failed(Status::NoSuchPort));
    };
    let start = usize::from(job.offset.0);
    let range = start..start + job.len.0 as usize;
    let mut vm = node.vm.borrow_mut();
    let mut bus = node.bus.borrow_mut();
    let bounce = bus
        .bounce
        .entry(job.bounce)
        .or_insert_with(|| Box::new([0; PAGE]));
    let from_bounce = bounce.get_mut(..range.len());
    let in_page = vm.frames().write(page.ppn).and_then(|bytes| bytes.get_mut(range));
    let (Some(bounce), Some(bytes)) = (from_bounce, in_page) else {
        return Ok(CopyEnd::Failed(Status::BusError));
    };
    let place = Place {
        port: job.vpn.port(),
        page: job.vpn.page_number(),
        offset: u32::from(job.offset.0),
        len: job.len.0,
    };
    if into_page {
        bytes.copy_from_slice(bounce);
        sim.see(Seen::HostCopied {
            node: node.id,
            bounce: job.bounce,
            ppn: page.ppn,
            place,
            bytes: (&*bounce).into(),
            stored: match BounceUse::from_id(&node.geometry, job.bounce) {
                Some(BounceUse::Reply(_)) => Stored::Answer,
                _ => Stored::Message,
            },
        });
    } else {
        bounce.copy_from_slice(bytes);
        sim.see(Seen::BounceFilled {
            node: node.id,
            bounce: job.bounce,
            from: Some((page.ppn, place)),
            bytes: (&*bytes).into(),
        });
    }
    vm.touch(process, job.vpn.page_number(), into_page);
    drop((vm, bus));
    sim.note(
        node.id,
        if into_page {
            "copy into page"
        } else {
            "copy out of page"
        },
        &[
            ("bounce", u64::from(job.bounce.0)),
            ("port", u64::from(job.vpn.port().0)),
            ("page", job.vpn.page_number()),
            ("offset", u64::from(job.offset.0)),
            ("len", u64::from(job.len.0)),
        ],
    );
    Ok(CopyEnd::Done)
}
