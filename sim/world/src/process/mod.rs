//! Processes and their apps: running, asleep or dead; in [`ports`], the owners of ports.

mod overslept;
mod ports;

pub(crate) use overslept::{Overslept, acts, found};
pub(crate) use ports::{
    Ports, all_ports_event, block, events, export_gone, exported, lease_gone, lent, open_port, owner,
    port_closed, port_event, port_opened, ports_of, recalls, segment_gone, spin, stir,
};

use crate::coroutine::{App, Park, Turn};
use crate::kernel;
use crate::node::Node;
use crate::sim::{Event, Sim};
use crate::vm::{Change, ProcessId};
use netvm_abi::{Nanos, NodeId};
use std::collections::BTreeMap;

/// An app, never used twice in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AppId(pub(crate) usize);

/// A process.
pub(crate) struct Process {
    pub(crate) node: NodeId,
    /// What it does: an index into the workload's roles. Nothing once its body has returned.
    pub(crate) role: Option<usize>,
    /// Its memory may be thrown away under it.
    scratch: bool,
    /// A body runs in it; a forked child has none.
    apps: Vec<AppId>,
    /// Next free page number for new memory. The same in each process: no randomisation.
    pub(crate) next_page: u64,
    /// An app that was interrupted between two accesses; no other app of the process runs before it.
    held_by: Option<AppId>,
    dead: bool,
}

struct Slot {
    app: Option<App>,
    process: ProcessId,
    node: NodeId,
    /// Counts turns; an event for an earlier one is void.
    turn: u64,
}

/// All apps and processes of a world.
#[derive(Default)]
pub(crate) struct Apps {
    slots: Vec<Slot>,
    processes: BTreeMap<ProcessId, Process>,
    running: Option<AppId>,
    /// Those that were killed, as they stood.
    killed: Vec<App>,
    /// Roles whose process has ended or was killed, for the workload.
    pub(crate) ended: Vec<(usize, Ended)>,
}

/// How a role's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its body returned.
    Finished,
    /// It was killed, and its exit is complete.
    Killed,
}

/// First page of a process' memory.
const FIRST_PAGE: u64 = 0x10_0000;

/// Starts a process with one app that runs `body`.
pub(crate) fn start(
    sim: &Sim,
    node: NodeId,
    role: Option<usize>,
    scratch: bool,
    body: Box<dyn FnOnce()>,
) -> Result<ProcessId, String> {
    let process = sim.new_process();
    sim.node(node).vm.borrow_mut().create(process);
    let state = Process {
        node,
        role,
        scratch,
        apps: Vec::new(),
        next_page: FIRST_PAGE,
        held_by: None,
        dead: false,
    };
    sim.apps.borrow_mut().processes.insert(process, state);
    let role = role.map(|role| ("role", role as u64));
    let fields: Vec<_> = [Some(("process", u64::from(process.0))), role]
        .into_iter()
        .flatten()
        .collect();
    sim.note(node, "process starts", &fields);
    spawn(sim, process, body)?;
    Ok(process)
}

/// Adds an app to a process.
pub(crate) fn spawn(sim: &Sim, process: ProcessId, body: Box<dyn FnOnce()>) -> Result<AppId, &'static str> {
    let app = App::new(&sim.pool, &sim.parker, body).map_err(|_| "no memory for a stack")?;
    let mut apps = sim.apps.borrow_mut();
    let id = AppId(apps.slots.len());
    let Some(state) = apps.processes.get_mut(&process) else {
        return Err("the process is gone");
    };
    state.apps.push(id);
    let node = state.node;
    apps.slots.push(Slot {
        app: Some(app),
        process,
        node,
        turn: 0,
    });
    drop(apps);
    sim.after(Nanos(100), Event::App { app: id, turn: 0 });
    Ok(id)
}

/// The app that runs now.
pub(crate) fn running(sim: &Sim) -> Option<(AppId, ProcessId)> {
    let apps = sim.apps.borrow();
    let app = apps.running?;
    Some((app, apps.slots[app.0].process))
}

/// Gives an app its turn.
pub(crate) fn run(sim: &Sim, id: AppId, turn: u64) {
    let (mut app, process, node) = {
        let mut apps = sim.apps.borrow_mut();
        let Some(slot) = apps.slots.get(id.0) else { return };
        if slot.turn != turn || slot.app.is_none() {
            return;
        }
        let (process, node) = (slot.process, slot.node);
        let held = apps.processes.get(&process).and_then(|process| process.held_by);
        if held.is_some_and(|holder| holder != id) {
            drop(apps);
            let again = sim.model.map_or(Nanos(500), |model| model.poll);
            sim.after(again, Event::App { app: id, turn });
            return;
        }
        if let Some(state) = apps.processes.get_mut(&process) {
            state.held_by = None;
        }
        apps.running = Some(id);
        let slot = &mut apps.slots[id.0];
        slot.turn += 1;
        let Some(app) = slot.app.take() else { return };
        (app, process, node)
    };
    let result = app.run(&sim.parker);
    sim.node(node).words().drain(crate::words::Side::Host);
    let mut apps = sim.apps.borrow_mut();
    apps.running = None;
    let is_dead = apps.processes.get(&process).is_none_or(|process| process.dead);
    match result {
        // It was killed as it ran. It may hold a lock, so it goes first in the end.
        Turn::Parked(_) if is_dead => apps.killed.insert(0, app),
        Turn::Parked(why) => {
            let slot = &mut apps.slots[id.0];
            slot.app = Some(app);
            let turn = slot.turn;
            let at = match why {
                Park::Until(at) => at,
                Park::Access(at) => {
                    if let Some(state) = apps.processes.get_mut(&process) {
                        state.held_by = Some(id);
                    }
                    at
                }
            };
            drop(apps);
            sim.at(at, Event::App { app: id, turn });
        }
        Turn::Finished => finished(sim, apps, id, process),
        Turn::Panicked(text) => {
            drop(apps);
            sim.complain(format!("an app of node {node} panicked: {text}"));
        }
    }
}

fn finished(sim: &Sim, mut apps: std::cell::RefMut<'_, Apps>, id: AppId, process: ProcessId) {
    overslept::acted(sim, id);
    let Some(state) = apps.processes.get_mut(&process) else {
        return;
    };
    state.apps.retain(|&app| app != id);
    if !state.apps.is_empty() || state.dead {
        return;
    }
    // The process returns from main: what it left open, the kernel closes. Its role has ended here,
    // and must not end once more when the exit is complete: two lives of a role would share what is
    // meant for one.
    state.dead = true;
    let (node, role) = (state.node, state.role.take());
    apps.ended.extend(role.map(|role| (role, Ended::Finished)));
    drop(apps);
    sim.note(node, "process ends", &[("process", u64::from(process.0))]);
    kernel::exit(sim, sim.node(node), process);
}

/// Lets a parked app go on at once.
pub(crate) fn wake(sim: &Sim, app: AppId) {
    wake_after(sim, app, Nanos(20));
}

/// Lets a parked app go on after a span, unless it does so by itself.
fn wake_after(sim: &Sim, app: AppId, span: Nanos) {
    let turn = sim.apps.borrow().slots.get(app.0).map(|slot| slot.turn);
    if let Some(turn) = turn {
        sim.after(span, Event::App { app, turn });
    }
}

/// Kills a process at whatever instruction its apps stand. The kernel cleans up a little later.
pub(crate) fn kill(sim: &Sim, process: ProcessId, clean: bool) {
    let mut apps = sim.apps.borrow_mut();
    let Some(state) = apps.processes.get_mut(&process) else {
        return;
    };
    if std::mem::replace(&mut state.dead, true) {
        return;
    }
    let (node, mut list) = (state.node, std::mem::take(&mut state.apps));
    // `bury` unwinds them in this order: the app that may hold a lock goes first.
    let held = state.held_by;
    list.sort_by_key(|app| Some(*app) != held);
    for app in list {
        let killed = apps.slots[app.0].app.take();
        apps.killed.extend(killed);
    }
    drop(apps);
    sim.note(node, "process killed", &[("process", u64::from(process.0))]);
    if clean {
        kernel::exit(sim, sim.node(node), process);
    }
}

/// Gives back what the apps own, killed and living. The world is over: from now on they find none.
pub(crate) fn bury(sim: &Sim) {
    sim.close();
    let (held, slots, killed) = {
        let mut apps = sim.apps.borrow_mut();
        let held: Vec<AppId> = apps
            .processes
            .values()
            .filter_map(|process| process.held_by)
            .collect();
        (
            held,
            std::mem::take(&mut apps.slots),
            std::mem::take(&mut apps.killed),
        )
    };
    // An app that was interrupted between two accesses may hold a lock of its process, so it goes before the others of that
    // process (`kill` has put the killed ones in order). No other parked app holds one.
    let is_held = |index: &usize| held.contains(&AppId(*index));
    let mut living: Vec<_> = slots.into_iter().map(|slot| slot.app).enumerate().collect();
    living.sort_by_key(|(index, _)| !is_held(index));
    for mut app in killed
        .into_iter()
        .chain(living.into_iter().filter_map(|(_, app)| app))
    {
        app.unwind();
    }
}

/// Where the stacks of all apps lie, killed and living.
pub(crate) fn stacks(sim: &Sim) -> Vec<std::ops::Range<usize>> {
    let apps = sim.apps.borrow();
    let living = apps.slots.iter().filter_map(|slot| slot.app.as_ref());
    living
        .chain(&apps.killed)
        .map(App::stack)
        .chain(sim.pool.places())
        .collect()
}

/// In which call each living app stands, for a report. The run must be over.
pub(crate) fn whereabouts(sim: &Sim) -> Vec<(NodeId, ProcessId, String)> {
    let count = sim.apps.borrow().slots.len();
    let mut all = Vec::new();
    for index in 0..count {
        let (mut app, node, process) = {
            let mut apps = sim.apps.borrow_mut();
            let slot = &mut apps.slots[index];
            let Some(app) = slot.app.take() else { continue };
            (app, slot.node, slot.process)
        };
        all.push((node, process, app.whereabouts(&sim.parker)));
        sim.apps.borrow_mut().slots[index].app = Some(app);
    }
    all
}

/// Processes of a node that have no body any more, or never had one, and are not gone: what is left
/// of them.
pub(crate) fn remains(sim: &Sim, node: NodeId) -> Vec<(ProcessId, &'static str)> {
    let apps = sim.apps.borrow();
    let space = sim.node(node).vm.borrow().processes();
    space
        .into_iter()
        .filter_map(|process| match apps.processes.get(&process) {
            None => Some((process, "memory without a process")),
            Some(state) if state.dead => Some((process, "dead, exit not complete")),
            Some(state) if state.apps.is_empty() => Some((process, "a forked child")),
            Some(_) => None,
        })
        .collect()
}

/// Whether a process has apps that run.
pub(crate) fn alive(sim: &Sim, process: ProcessId) -> bool {
    sim.apps
        .borrow()
        .processes
        .get(&process)
        .is_some_and(|state| !state.dead)
}

/// Whether anything of a process is left.
pub(crate) fn known(sim: &Sim, process: ProcessId) -> bool {
    sim.apps.borrow().processes.contains_key(&process)
}

/// The exit of a process is complete.
pub(crate) fn gone(sim: &Sim, process: ProcessId) {
    let mut apps = sim.apps.borrow_mut();
    let Some(state) = apps.processes.remove(&process) else {
        return;
    };
    apps.ended.extend(state.role.map(|role| (role, Ended::Killed)));
}

/// Forgets the processes of a node that went down; their roles count as killed.
pub(crate) fn node_down(sim: &Sim, node: NodeId) {
    let all: Vec<ProcessId> = sim
        .apps
        .borrow()
        .processes
        .iter()
        .filter(|(_, state)| state.node == node)
        .map(|(&process, _)| process)
        .collect();
    for process in all {
        kill(sim, process, false);
        gone(sim, process);
    }
}

/// A process with a body that can be killed, picked by `pick`.
pub(crate) fn victim(sim: &Sim, node: NodeId, pick: u64) -> Option<ProcessId> {
    let apps = sim.apps.borrow();
    let candidates: Vec<ProcessId> = apps
        .processes
        .iter()
        .filter(|(_, state)| state.node == node && !state.dead && !state.apps.is_empty())
        .map(|(&process, _)| process)
        .collect();
    candidates
        .get(pick.checked_rem(candidates.len() as u64)? as usize)
        .copied()
}

/// Whether a process may be forked: it is one with a body, and alive.
pub(crate) fn may_fork(sim: &Sim, process: ProcessId) -> bool {
    sim.apps
        .borrow()
        .processes
        .get(&process)
        .is_some_and(|state| !state.dead && !state.apps.is_empty())
}

/// Whether a process' memory may be thrown away under it.
pub(crate) fn is_scratch(sim: &Sim, process: ProcessId) -> bool {
    sim.apps
        .borrow()
        .processes
        .get(&process)
        .is_some_and(|state| state.scratch && !state.dead)
}

/// A forked child has its memory; it does nothing, and exits after a while.
pub(crate) fn child_born(sim: &Sim, node: &Node, child: ProcessId, lives: Nanos) {
    let state = Process {
        node: node.id,
        role: None,
        scratch: false,
        apps: Vec::new(),
        next_page: FIRST_PAGE,
        held_by: None,
        dead: false,
    };
    sim.apps.borrow_mut().processes.insert(child, state);
    sim.after(
        lives,
        Event::ChildExits {
            node: node.id,
            life: node.life.get(),
            child,
        },
    );
}

/// A forked child exits.
pub(crate) fn child_exits(sim: &Sim, node: &Node, child: ProcessId) {
    if kernel::change(sim, node, child, Change::Exit, None).is_some() {
        sim.apps.borrow_mut().processes.remove(&child);
    } else if node.vm.borrow().space(child).is_some() {
        sim.after(
            Nanos(5_000),
            Event::ChildExits {
                node: node.id,
                life: node.life.get(),
                child,
            },
        );
    }
}

/// Takes `pages` page numbers of a process, and leaves one unused behind them.
pub(crate) fn take_pages(sim: &Sim, process: ProcessId, pages: u64) -> Option<u64> {
    let mut apps = sim.apps.borrow_mut();
    let state = apps.processes.get_mut(&process)?;
    let first = state.next_page;
    state.next_page += pages + 1;
    Some(first)
}

// ---- exports, as their owners know them ----
