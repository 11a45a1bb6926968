//! The kernel's part of a node: reclaim, fork, exit, and everything else that must first take pages
//! away from the card. Each is a job that runs in steps, because the card may hold a page: here the
//! steps, in [`begin`] how the jobs begin, in [`pressure`] the demand for pages, in [`held`] how steps are held up.

mod begin;
mod held;
mod pressure;

use crate::driver::{Desk, Driver};
use crate::effort::CoreStep;
use crate::node::Node;
use crate::process::{self, AppId};
use crate::seen::Seen;
use crate::sim::{Event, Sim};
use crate::vm::{Change, ProcessId};
use netvm_abi::{ExportId, Nanos, PortId, SegmentId};
use netvm_host::Progress;
use netvm_host::exports::Unexport;
use netvm_host::platform::PageGone;
use netvm_host::ports::PortClose;
use netvm_host::segments::Unregister;
use netvm_host::unmap::Unmap;
use netvm_host_platform::unmap;
use std::collections::BTreeMap;

pub(crate) use begin::{change, close, exit, unexport, unregister};
pub(crate) use held::{HeldStep, Step as KernelStep, call, finish, held_up, resume, run};
pub(crate) use pressure::{interleaved, reclaim, tick};

/// The jobs of a node.
#[derive(Default)]
pub(crate) struct Jobs {
    next: u64,
    live: BTreeMap<u64, Job>,
    /// The one whose step is under way, which is not among them.
    stepping: Option<u64>,
}

impl Jobs {
    /// Whether a job is still under way.
    pub(crate) fn running(&self, job: u64) -> bool {
        self.live.contains_key(&job) || self.stepping == Some(job)
    }

    /// What is under way, for a report.
    pub(crate) fn describe(&self) -> String {
        let names: Vec<&str> = self.live.values().map(|job| job.work.name()).collect();
        names.join(", ")
    }

    /// How many are under way.
    pub(crate) fn count(&self) -> usize {
        self.live.len() + usize::from(self.stepping.is_some())
    }
}

struct Job {
    work: Work,
    waiter: Option<AppId>,
    /// Counts steps; an event for an earlier one is void.
    turn: u64,
}

enum Work {
    /// A change of a process' memory; its unmaps, one for each port of the process.
    Change {
        process: ProcessId,
        change: Change,
        unmaps: Vec<Unmap>,
        cleared: usize,
    },
    /// A port is closed.
    Close { port: PortId, close: PortClose },
    /// A segment goes.
    Unregister {
        process: ProcessId,
        port: PortId,
        segment: SegmentId,
        unregister: Unregister,
        first: u64,
        pages: u64,
    },
    /// A name goes.
    Unexport {
        port: PortId,
        export: ExportId,
        unexport: Unexport,
    },
    /// A process goes: its ports, then its memory.
    Exit {
        process: ProcessId,
        ports: Vec<(PortId, PortClose)>,
    },
}

impl Work {
    const fn name(&self) -> &'static str {
        match self {
            Self::Change { .. } => "change",
            Self::Close { .. } => "close",
            Self::Unregister { .. } => "unregister",
            Self::Unexport { .. } => "unexport",
            Self::Exit { .. } => "exit",
        }
    }
}

enum Step {
    Again(Nanos),
    Done,
}

/// Pages of a budgeted step: small, so that others get in between.
const BUDGET: u32 = 3;

fn post(sim: &Sim, node: &Node, work: Work, waiter: Option<AppId>) -> u64 {
    let mut jobs = node.jobs.borrow_mut();
    jobs.next += 1;
    let job = jobs.next;
    let turn = 0;
    jobs.live.insert(job, Job { work, waiter, turn });
    drop(jobs);
    let after = sim.span(Nanos(50), Nanos(500));
    goes_on(sim, node, after, job, turn);
    job
}

fn goes_on(sim: &Sim, node: &Node, after: Nanos, job: u64, turn: u64) {
    sim.after(
        after,
        Event::Job {
            node: node.id,
            life: node.life.get(),
            job,
            turn,
        },
    );
}

/// Something happened that jobs may wait for.
pub(crate) fn progress(sim: &Sim, node: &Node) {
    let waiting: Vec<(u64, u64)> = node
        .jobs
        .borrow()
        .live
        .iter()
        .map(|(&job, state)| (job, state.turn))
        .collect();
    for (job, turn) in waiting {
        goes_on(sim, node, Nanos(50), job, turn);
    }
}

/// A job goes on, unless it has done so since the event was posted.
pub(crate) fn due(sim: &Sim, node: &Node, number: u64, turn: u64) {
    let jobs = node.jobs.borrow();
    let is_due = jobs.live.get(&number).is_some_and(|job| job.turn == turn);
    drop(jobs);
    if is_due {
        step(sim, node, number);
    }
}

/// A job goes on now.
pub(crate) fn step(sim: &Sim, node: &Node, number: u64) {
    let mut jobs = node.jobs.borrow_mut();
    let Some(mut job) = jobs.live.remove(&number) else {
        return;
    };
    jobs.stepping = Some(number);
    drop(jobs);
    job.turn += 1;
    let result = advance(sim, node, &mut job.work);
    node.jobs.borrow_mut().stepping = None;
    // A step may find the card dead, which the driver must hear of.
    crate::driver::arm(sim, node);
    match result {
        Step::Again(span) => {
            let turn = job.turn;
            node.jobs.borrow_mut().live.insert(number, job);
            goes_on(sim, node, span, number, turn);
        }
        Step::Done => {
            if let Some(app) = job.waiter {
                process::wake(sim, app);
            }
        }
    }
}

fn advance(sim: &Sim, node: &Node, work: &mut Work) -> Step {
    match work {
        Work::Change {
            process,
            change,
            unmaps,
            cleared,
        } => {
            let step = clear(sim, node, unmaps, cleared);
            if let Some(wait) = step {
                return Step::Again(wait);
            }
            apply(sim, node, *process, *change, std::mem::take(unmaps));
            Step::Done
        }
        Work::Close { port, close } => close_step(sim, node, *port, close),
        Work::Unregister {
            process,
            port,
            segment,
            unregister,
            first,
            pages,
        } => {
            let (process, port, range) = (*process, *port, (*first, *pages));
            let (progress, gone) = with_driver(sim, node, |driver, now, gone| {
                driver
                    .host
                    .unregister_step(&mut driver.platform, unregister, now, BUDGET, &mut |page| {
                        gone(page)
                    })
            });
            mark(node, &gone);
            match progress {
                Progress::Again => Step::Again(sim.span(Nanos(100), Nanos(500))),
                Progress::Wait => Step::Again(sim.span(Nanos(1_000), Nanos(4_000))),
                Progress::Done => {
                    process::segment_gone(sim, node, port, *segment);
                    let discard = Change::Discard {
                        first: range.0,
                        pages: range.1,
                    };
                    if change(sim, node, process, discard, None).is_none()
                        && node.vm.borrow().space(process).is_some()
                    {
                        // Part of it is being changed: the core is done, the memory follows.
                        return Step::Again(Nanos(2_000));
                    }
                    Step::Done
                }
            }
        }
        Work::Unexport {
            port,
            export,
            unexport,
        } => {
            let (progress, _) = with_driver(sim, node, |driver, now, _| {
                driver.host.unexport_step(&mut driver.platform, unexport, now)
            });
            match progress {
                Progress::Again => Step::Again(sim.span(Nanos(100), Nanos(500))),
                Progress::Wait => Step::Again(sim.span(Nanos(1_000), Nanos(4_000))),
                Progress::Done => {
                    process::export_gone(sim, node, *port, *export);
                    Step::Done
                }
            }
        }
        Work::Exit { process, ports } => {
            let process = *process;
            while let Some((port, close)) = ports.last_mut() {
                let port = *port;
                if let Step::Again(wait) = close_step(sim, node, port, close) {
                    return Step::Again(wait);
                }
                ports.pop();
            }
            // A thread of the process is still in the kernel and closes a port: the process' memory goes after that call.
            if is_closing(node, process) {
                return Step::Again(sim.span(Nanos(500), Nanos(2_000)));
            }
            if node.vm.borrow().space(process).is_some() {
                if !node.vm.borrow_mut().begin(process, Change::Exit) {
                    return Step::Again(sim.span(Nanos(500), Nanos(2_000)));
                }
                let mut log = sim.log.borrow_mut();
                node.vm
                    .borrow_mut()
                    .finish(sim.now(), process, Change::Exit, &mut log);
            }
            sim.see(Seen::Gone {
                node: node.id,
                process,
            });
            sim.note(node.id, "gone", &[("process", u64::from(process.0))]);
            process::gone(sim, process);
            Step::Done
        }
    }
}

/// A step of the host core, and the pages that went in it. Without a driver there is nothing to do.
fn with_driver(
    sim: &Sim,
    node: &Node,
    call: impl FnOnce(&mut Driver, Nanos, &mut dyn FnMut(PageGone)) -> Progress,
) -> (Progress, Vec<PageGone>) {
    let mut gone = Vec::new();
    let progress = match node.driver(sim).as_mut() {
        Some(driver) => driver.step(sim, CoreStep::Call, |driver| {
            call(driver, sim.now(), &mut |page| gone.push(page))
        }),
        None => Progress::Done,
    };
    (progress, gone)
}

/// Whether a call that closes a port of a process is under way.
fn is_closing(node: &Node, process: ProcessId) -> bool {
    let of = |work: &Work| match work {
        Work::Close { port, .. } => process::owner(node, *port) == Some(process),
        _ => false,
    };
    node.jobs.borrow().live.values().any(|job| of(&job.work))
}

fn close_step(sim: &Sim, node: &Node, port: PortId, close: &mut PortClose) -> Step {
    let (progress, gone) = with_driver(sim, node, |driver, now, gone| {
        driver
            .host
            .port_close_step(&mut driver.platform, close, now, BUDGET, &mut |page| gone(page))
    });
    mark(node, &gone);
    match progress {
        Progress::Again => Step::Again(sim.span(Nanos(100), Nanos(500))),
        Progress::Wait => Step::Again(sim.span(Nanos(1_000), Nanos(4_000))),
        Progress::Done => {
            let table = node.driver(sim).as_ref().map(|driver| *driver.host.page_table());
            if let Some(page) = table.and_then(|table| node.still_mapped(&table, port)) {
                sim.see(Seen::StillMapped {
                    node: node.id,
                    port,
                    page,
                });
            }
            process::port_closed(sim, node, port);
            Step::Done
        }
    }
}

/// Goes on unmapping; nothing when all ports are done.
fn clear(sim: &Sim, node: &Node, unmaps: &mut [Unmap], cleared: &mut usize) -> Option<Nanos> {
    let desk = Desk { sim, node };
    while let Some(unmap) = unmaps.get_mut(*cleared) {
        match unmap::step(&desk, unmap) {
            Progress::Done => *cleared += 1,
            Progress::Again => return Some(Nanos(200)),
            Progress::Wait => {
                sim.note(node.id, "unmap waits", &[]);
                return Some(sim.span(Nanos(500), Nanos(3_000)));
            }
        }
    }
    None
}

fn apply(sim: &Sim, node: &Node, process: ProcessId, change: Change, unmaps: Vec<Unmap>) {
    let now = sim.now();
    let done = {
        let mut log = sim.log.borrow_mut();
        node.vm.borrow_mut().finish(now, process, change, &mut log)
    };
    if let Some(driver) = node.driver(sim).as_mut() {
        for unmap in unmaps {
            driver.host.unmap_end(unmap);
        }
    }
    node.activity
        .unmapping
        .set(node.activity.unmapping.get().saturating_sub(1));
    if !done {
        reclaim(sim, node, 1);
    }
    if let Change::Fork { child } = change {
        let lives = sim.span(Nanos::from_micros(20), Nanos::from_millis(1));
        process::child_born(sim, node, child, lives);
    }
}

/// What the card did to pages that are out of its table goes into the kernel's own entries.
pub(crate) fn mark(node: &Node, gone: &[PageGone]) {
    let mut vm = node.vm.borrow_mut();
    for page in gone {
        let Some(process) = process::owner(node, page.vpn.port()) else {
            continue;
        };
        let number = page.vpn.page_number();
        if page.dirty {
            vm.mark_dirty(process, number);
        }
        if page.referenced {
            vm.touch(process, number, false);
        }
    }
}
