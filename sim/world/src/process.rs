//! Processes and their apps: who owns which port, who runs, who sleeps, who has died.

use crate::coroutine::{App, Park, Turn};
use crate::kernel;
use crate::node::Node;
use crate::seen::{ExportFact, Seen};
use crate::sim::{Event, Sim};
use crate::vm::{Change, ProcessId};
use netvm_abi::{ExportId, Nanos, NodeId, PortId, SegmentId};
use netvm_host::ports::OpenPort;
use std::collections::BTreeMap;
use std::rc::Rc;

/// An app, never used twice in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AppId(pub(crate) usize);

/// An open port of a node.
pub(crate) struct PortState {
    pub(crate) process: ProcessId,
    pub(crate) open: OpenPort,
    /// The event count that callers block on.
    pub(crate) events: u32,
    waiters: Vec<AppId>,
    /// Exports as the app asked for them, with the segment that they lie in.
    exports: Vec<(ExportId, SegmentId, Rc<ExportFact>)>,
}

/// The open ports of a node.
pub(crate) type Ports = BTreeMap<PortId, PortState>;

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
    /// An app that was interrupted between two accesses; nobody else of the process runs before it.
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
            sim.after(Nanos(500), Event::App { app: id, turn });
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
    match result {
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
    let Some(state) = apps.processes.get_mut(&process) else {
        return;
    };
    state.apps.retain(|&app| app != id);
    if !state.apps.is_empty() {
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
    let turn = sim.apps.borrow().slots.get(app.0).map(|slot| slot.turn);
    if let Some(turn) = turn {
        sim.after(Nanos(20), Event::App { app, turn });
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
    let (node, list) = (state.node, std::mem::take(&mut state.apps));
    for app in list {
        if let Some(mut app) = apps.slots[app.0].app.take() {
            app.kill();
        }
    }
    drop(apps);
    sim.note(node, "process killed", &[("process", u64::from(process.0))]);
    if clean {
        kernel::exit(sim, sim.node(node), process);
    }
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

// ---- ports ----

/// A port is open.
pub(crate) fn port_opened(sim: &Sim, node: &Node, process: ProcessId, open: OpenPort) {
    let state = PortState {
        process,
        open,
        events: 0,
        waiters: Vec::new(),
        exports: Vec::new(),
    };
    node.ports.borrow_mut().insert(open.port, state);
    sim.see(Seen::PortOpened {
        node: node.id,
        port: open.port,
        process,
    });
    sim.note(
        node.id,
        "port open",
        &[
            ("port", u64::from(open.port.0)),
            ("process", u64::from(process.0)),
        ],
    );
}

/// The driver has finished closing a port.
pub(crate) fn port_closed(sim: &Sim, node: &Node, port: PortId) {
    let Some(state) = node.ports.borrow_mut().remove(&port) else {
        return;
    };
    // Its queue memory belongs to nobody now, and to an honest app perhaps next.
    node.hostile.borrow_mut().remove(&port);
    for (.., fact) in state.exports {
        sim.see(Seen::Unexported {
            node: node.id,
            port,
            fact,
        });
    }
    sim.see(Seen::PortClosed { node: node.id, port });
    sim.note(node.id, "port closed", &[("port", u64::from(port.0))]);
    for app in state.waiters {
        wake(sim, app);
    }
}

/// The process that owns a port.
pub(crate) fn owner(node: &Node, port: PortId) -> Option<ProcessId> {
    node.ports.borrow().get(&port).map(|state| state.process)
}

/// The open port behind a number.
pub(crate) fn open_port(node: &Node, port: PortId) -> Option<OpenPort> {
    node.ports.borrow().get(&port).map(|state| state.open)
}

/// The ports of a process.
pub(crate) fn ports_of(node: &Node, process: ProcessId) -> Vec<PortId> {
    node.ports
        .borrow()
        .iter()
        .filter(|(_, state)| state.process == process)
        .map(|(&port, _)| port)
        .collect()
}

/// The event count of a port.
pub(crate) fn events(node: &Node, port: PortId) -> u32 {
    node.ports.borrow().get(&port).map_or(0, |state| state.events)
}

/// Something happened that callers of a port may wait for.
pub(crate) fn port_event(sim: &Sim, node: &Node, port: PortId) {
    let waiters = {
        let mut ports = node.ports.borrow_mut();
        let Some(state) = ports.get_mut(&port) else { return };
        state.events = state.events.wrapping_add(1);
        std::mem::take(&mut state.waiters)
    };
    for app in waiters {
        wake(sim, app);
    }
}

/// The same for all ports of a node.
pub(crate) fn all_ports_event(sim: &Sim, node: &Node) {
    let ports: Vec<PortId> = node.ports.borrow().keys().copied().collect();
    for port in ports {
        port_event(sim, node, port);
    }
}

/// Blocks the running app until an event of its port or a time. Some time passes in any case: a
/// caller that asks again and again must not stop the world's clock.
pub(crate) fn block(sim: &Sim, node: &Node, port: PortId, token: u32, deadline: Nanos) {
    let Some((app, _)) = running(sim) else { return };
    let waits = {
        let mut ports = node.ports.borrow_mut();
        match ports.get_mut(&port) {
            Some(state) if state.events == token => {
                state.waiters.push(app);
                true
            }
            _ => false,
        }
    };
    if !waits {
        sim.parker.park(Park::Until(sim.now().after(Nanos(300))));
        return;
    }
    // Far enough not to be a busy loop, near enough for a run to notice that nobody comes.
    let far = sim.now().after(Nanos::from_millis(20));
    node.activity.waiting.set(node.activity.waiting.get() + 1);
    sim.parker
        .park(Park::Until(deadline.min(far).max(sim.now().after(Nanos(100)))));
    node.activity
        .waiting
        .set(node.activity.waiting.get().saturating_sub(1));
    if let Some(state) = node.ports.borrow_mut().get_mut(&port) {
        state.waiters.retain(|&waiter| waiter != app);
    }
}

// ---- exports, as their owners know them ----

/// An export exists.
pub(crate) fn exported(
    sim: &Sim,
    node: &Node,
    port: PortId,
    export: (ExportId, SegmentId),
    fact: ExportFact,
) {
    let fact = Rc::new(fact);
    if let Some(state) = node.ports.borrow_mut().get_mut(&port) {
        state.exports.push((export.0, export.1, fact.clone()));
    }
    sim.see(Seen::Exported {
        node: node.id,
        port,
        fact,
    });
}

/// The withdrawal of an export has returned.
pub(crate) fn export_gone(sim: &Sim, node: &Node, port: PortId, export: ExportId) {
    forget(sim, node, port, |entry| entry.0 == export);
}

/// A segment is gone, its exports with it.
pub(crate) fn segment_gone(sim: &Sim, node: &Node, port: PortId, segment: SegmentId) {
    forget(sim, node, port, |entry| entry.1 == segment);
}

fn forget(
    sim: &Sim,
    node: &Node,
    port: PortId,
    which: impl Fn(&(ExportId, SegmentId, Rc<ExportFact>)) -> bool,
) {
    let mut facts = Vec::new();
    if let Some(state) = node.ports.borrow_mut().get_mut(&port) {
        state.exports.retain(|entry| {
            let goes = which(entry);
            if goes {
                facts.push(entry.2.clone());
            }
            !goes
        });
    }
    for fact in facts {
        sim.see(Seen::Unexported {
            node: node.id,
            port,
            fact,
        });
    }
}
