//! The host driver of a node: the host core, what it asks of the kernel, and its paging workers.

use crate::faults::FaultKind;
use crate::heap::Heap;
use crate::kernel;
use crate::node::Node;
use crate::seen::{Place, Seen, Stored, digest};
use crate::sim::{Event, Sim};
use crate::vm::{Change, FaultResult, PAGE};
use crate::words::{Side, Space, View};
use netvm_abi::bounce::BounceUse;
use netvm_abi::control::Grant;
use netvm_abi::{BounceId, Nanos, PortId, Status, Token, Vpn};
use netvm_host::Host;
use netvm_host::attach::HostConfig;
use netvm_host::events::Notice;
use netvm_host::paging::WorkStep;
use netvm_host::platform::{Access, CopyEnd, CopyJob, Direction, PageGone, Platform, Resident};
use std::collections::BTreeMap;
use std::rc::Weak;

/// The driver of one node.
pub(crate) struct Driver {
    pub(crate) host: Host<Heap>,
    pub(crate) platform: HostPlatform,
    /// Imports that have ended and have not been fetched.
    pub(crate) imported: BTreeMap<Token, Result<Grant, Status>>,
    workers: BTreeMap<PortId, Worker>,
    deadline: Nanos,
}

/// A paging worker: one for each port that has ever needed one.
#[derive(Default)]
struct Worker {
    /// It has an event posted.
    due: bool,
    step: Option<WorkStep>,
    /// A page that was found present, not yet told to the core.
    found: Option<Result<Resident, Status>>,
    /// Since when it tries to get this page.
    since: Nanos,
}

/// The host core's surroundings.
pub(crate) struct HostPlatform {
    sim: Weak<Sim>,
    node: netvm_abi::NodeId,
    bar: View,
    shared: View,
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
        into.fill(0);
        let Some(sim) = self.sim.upgrade() else { return };
        let bus = sim.node(self.node).bus.borrow();
        let Some(page) = bus.bounce.get(&bounce) else {
            return;
        };
        for (word, bytes) in into.iter_mut().zip(page.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }

    fn store_bounce(&mut self, bounce: BounceId, from: &[u32]) {
        let Some(sim) = self.sim.upgrade() else { return };
        let mut bus = sim.node(self.node).bus.borrow_mut();
        let page = bus.bounce.entry(bounce).or_insert_with(|| Box::new([0; PAGE]));
        for (bytes, word) in page.chunks_exact_mut(4).zip(from) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn wake_nic(&mut self) {
        if let Some(sim) = self.sim.upgrade() {
            let node = sim.node(self.node);
            // The call is a posted store itself, behind those that it is made for.
            node.words().push(Side::Host);
            node.kick(&sim, Nanos(200));
        }
    }
}

/// How long a page-in is tried before the host says that it has no memory.
const PATIENCE: Nanos = Nanos::from_millis(4);

impl Driver {
    /// Attaches to a card that is up.
    pub(crate) fn attach(sim: &Sim, node: &Node, config: &HostConfig) -> Result<Self, String> {
        let words = node.words();
        let mut platform = HostPlatform {
            sim: sim.me.clone(),
            node: node.id,
            bar: View::whole(&words, Side::Host, Space::Bar),
            shared: View::whole(&words, Side::Host, Space::Shared),
        };
        let host = Host::attach(&mut platform, &mut Heap, config, sim.now())
            .map_err(|error| format!("node {}: {error:?}", node.id))?;
        Ok(Self {
            host,
            platform,
            imported: BTreeMap::new(),
            workers: BTreeMap::new(),
            deadline: Nanos::MAX,
        })
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
        let Ok(mut slot) = node.driver.try_borrow_mut() else {
            return;
        };
        let Some(driver) = slot.as_mut() else { return };
        let now = sim.now();
        while let Some(notice) = driver.host.poll(&mut driver.platform, now) {
            notices.push(notice);
        }
    }
    arm(sim, node);
    for notice in notices {
        take(sim, node, notice);
    }
}

/// Sees to it that the driver looks when its host core says so.
pub(crate) fn arm(sim: &Sim, node: &Node) {
    let Ok(mut slot) = node.driver.try_borrow_mut() else {
        return;
    };
    let Some(driver) = slot.as_mut() else { return };
    let now = sim.now();
    let deadline = driver.host.next_deadline();
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

fn take(sim: &Sim, node: &Node, notice: Notice) {
    match notice {
        Notice::Work(port) => {
            node.activity.bounced.set(node.activity.bounced.get() + 1);
            sim.note(node.id, "paging work", &[("port", u64::from(port.0))]);
            wake_worker(sim, node, port, sim.span(Nanos(300), Nanos(3_000)));
        }
        Notice::Imported { port, import, result } => {
            sim.note(
                node.id,
                "imported",
                &[
                    ("port", u64::from(port.0)),
                    ("status", result.err().map_or(0, |status| status as u64)),
                ],
            );
            if let Some(driver) = node.driver.borrow_mut().as_mut() {
                driver.imported.insert(import, result);
            }
            crate::process::port_event(sim, node, port);
        }
        Notice::ImportRevoked { port, import } => {
            if let Some(driver) = node.driver.borrow_mut().as_mut() {
                // A release that finds no slot to be sent in is not needed any more.
                let _ = driver
                    .host
                    .unimport(&mut driver.platform, port, import, sim.now());
            }
        }
        Notice::Progress => kernel::progress(sim, node),
        Notice::PeerUp { peer, incarnation } => {
            sim.note(
                node.id,
                "peer up",
                &[("peer", u64::from(peer.0)), ("life", u64::from(incarnation.0))],
            );
        }
        Notice::PeerDown { peer } => sim.note(node.id, "peer down", &[("peer", u64::from(peer.0))]),
        Notice::CardDead(why) => {
            sim.note(node.id, "card dead", &[("why", why as u64)]);
            stop_card(sim, node);
        }
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
    if let Some(driver) = node.driver.borrow_mut().as_mut() {
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
    let mut slot = node.driver.borrow_mut();
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

/// What a worker does between two calls of the core.
enum Between {
    /// Go on after this.
    After(Nanos),
    /// There is no more work.
    Idle,
}

/// A port's worker goes on.
pub(crate) fn work(sim: &Sim, node: &Node, port: PortId) {
    {
        let mut slot = node.driver.borrow_mut();
        let Some(driver) = slot.as_mut() else { return };
        let Some(worker) = driver.workers.get_mut(&port) else {
            return;
        };
        worker.due = false;
    }
    match turn(sim, node, port) {
        Between::After(span) => wake_worker(sim, node, port, span),
        Between::Idle => {
            node.activity.bounced.set(0);
            node.activity.source_misses.set(0);
        }
    }
    kernel::progress(sim, node);
}

fn turn(sim: &Sim, node: &Node, port: PortId) -> Between {
    let step = {
        let mut slot = node.driver.borrow_mut();
        let Some(driver) = slot.as_mut() else {
            return Between::Idle;
        };
        let worker = driver.workers.entry(port).or_default();
        match worker.step {
            Some(step) => step,
            None => {
                let Some(step) = driver.host.work_next(&mut driver.platform, port, sim.now()) else {
                    return Between::Idle;
                };
                worker.since = sim.now();
                worker.step = Some(step);
                step
            }
        }
    };
    match step {
        WorkStep::PageIn { id, vpn, access } => {
            let found = with_worker(node, port, |worker| worker.found.take());
            match found {
                Some(result) => {
                    let next = told(sim, node, |driver, now, gone| {
                        driver
                            .host
                            .work_paged(&mut driver.platform, id, result.map(Some), now, &mut |page| {
                                gone(page)
                            })
                    });
                    set_step(sim, node, port, next);
                    Between::After(sim.span(Nanos(100), Nanos(1_500)))
                }
                None => page_in(sim, node, port, vpn, access == Access::Write),
            }
        }
        WorkStep::Copy { id, job } => match copy(sim, node, port, &job) {
            Ok(end) => {
                let next = told(sim, node, |driver, now, gone| {
                    driver
                        .host
                        .work_copied(&mut driver.platform, id, end, now, &mut |page| gone(page))
                });
                set_step(sim, node, port, next);
                Between::After(sim.span(Nanos(100), Nanos(1_500)))
            }
            Err(wait) => Between::After(wait),
        },
        WorkStep::Ended { status } => {
            sim.note(
                node.id,
                "miss answered",
                &[("port", u64::from(port.0)), ("status", status as u64)],
            );
            with_worker(node, port, |worker| worker.step = None);
            Between::After(Nanos(50))
        }
    }
}

fn with_worker<T: Default>(node: &Node, port: PortId, f: impl FnOnce(&mut Worker) -> T) -> T {
    let mut slot = node.driver.borrow_mut();
    slot.as_mut()
        .and_then(|driver| driver.workers.get_mut(&port).map(f))
        .unwrap_or_default()
}

fn set_step(sim: &Sim, node: &Node, port: PortId, step: Option<WorkStep>) {
    with_worker(node, port, |worker| {
        worker.step = step;
        worker.since = sim.now();
    });
}

/// Calls the core and marks the pages that it says are gone.
fn told<T>(
    sim: &Sim,
    node: &Node,
    call: impl FnOnce(&mut Driver, Nanos, &mut dyn FnMut(PageGone)) -> T,
) -> Option<T> {
    let mut gone = Vec::new();
    let result = {
        let mut slot = node.driver.borrow_mut();
        let driver = slot.as_mut()?;
        call(driver, sim.now(), &mut |page| gone.push(page))
    };
    kernel::mark(node, &gone);
    Some(result)
}

/// Pages in for a worker. What it finds is told to the core a little later, as on a real machine:
/// the page may be gone again by then.
fn page_in(sim: &Sim, node: &Node, port: PortId, vpn: Vpn, write: bool) -> Between {
    let since = with_worker(node, port, |worker| Some(worker.since)).unwrap_or(sim.now());
    let found = match resident(sim, node, vpn, write, since) {
        Ok(Ok(page)) => {
            if sim.fires(FaultKind::VmRace, node.id)
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
            Ok(page)
        }
        Ok(Err(status)) => Err(status),
        Err(wait) => return Between::After(wait),
    };
    with_worker(node, port, |worker| worker.found = Some(found));
    Between::After(sim.span(Nanos(50), Nanos(2_500)))
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
fn copy(sim: &Sim, node: &Node, port: PortId, job: &CopyJob) -> Result<CopyEnd, Nanos> {
    let into_page = job.direction == Direction::IntoPage;
    let since = with_worker(node, port, |worker| Some(worker.since)).unwrap_or(sim.now());
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
    if into_page {
        bytes.copy_from_slice(bounce);
        let place = Place {
            port: job.vpn.port(),
            page: job.vpn.page_number(),
            offset: u32::from(job.offset.0),
            len: job.len.0,
        };
        sim.see(Seen::HostCopied {
            node: node.id,
            bounce: job.bounce,
            place,
            digest: digest(bounce),
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
