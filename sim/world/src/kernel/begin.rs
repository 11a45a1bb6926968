//! How each kind of job begins: by system calls, page events, and the end of a process.

use super::{Work, post};
use crate::driver::Driver;
use crate::effort::CoreStep;
use crate::node::Node;
use crate::process::{self, AppId};
use crate::seen::{Ending, Seen};
use crate::sim::Sim;
use crate::vm::{Change, ProcessId};
use netvm_abi::{ExportId, PortId, SegmentId, Vpn};
use netvm_host::unmap::UnmapKind;

/// Starts a change, unless part of the range is being changed already.
pub(crate) fn change(
    sim: &Sim,
    node: &Node,
    process: ProcessId,
    change: Change,
    waiter: Option<AppId>,
) -> Option<u64> {
    if !node.vm.borrow_mut().begin(process, change) {
        return None;
    }
    let (first, pages) = change.range();
    let kind = match change {
        Change::Clean { .. } | Change::Fork { .. } => UnmapKind::WriteProtect,
        _ => UnmapKind::Remove,
    };
    let ports = process::ports_of(node, process);
    let unmaps = {
        let Some(mut slot) = node.try_driver(sim) else {
            // The driver is in the middle of something: the change is not begun after all.
            node.vm.borrow_mut().abandon(process, change);
            return None;
        };
        slot.as_mut().map_or_else(Vec::new, |driver| {
            ports
                .iter()
                .map(|&port| driver.host.unmap_begin(Vpn::new(port, first), pages, kind))
                .collect()
        })
    };
    node.activity.unmapping.set(node.activity.unmapping.get() + 1);
    sim.note(
        node.id,
        label(change),
        &[
            ("process", u64::from(process.0)),
            ("page", first),
            ("pages", pages.min(1 << 19)),
        ],
    );
    Some(post(
        sim,
        node,
        Work::Change {
            process,
            change,
            unmaps,
            cleared: 0,
        },
        waiter,
    ))
}

/// Starts to close a port.
pub(crate) fn close(sim: &Sim, node: &Node, port: PortId, waiter: Option<AppId>) -> Option<u64> {
    let open = process::open_port(node, port)?;
    let close = {
        let mut slot = node.driver(sim);
        let driver = slot.as_mut()?;
        // The card may close it before this step is over.
        ends(sim, node, port, Ending::Port);
        let begin = |driver: &mut Driver| driver.host.port_close_begin(&mut driver.platform, open);
        driver.step(sim, CoreStep::Call, begin).ok()?
    };
    sim.note(node.id, "close port", &[("port", u64::from(port.0))]);
    Some(post(sim, node, Work::Close { port, close }, waiter))
}

/// Starts to unregister a segment of `pages` pages from `first` on.
pub(crate) fn unregister(
    sim: &Sim,
    node: &Node,
    port: PortId,
    segment: SegmentId,
    (first, pages): (u64, u64),
    waiter: Option<AppId>,
) -> Option<u64> {
    let process = process::owner(node, port)?;
    let unregister = {
        let mut slot = node.driver(sim);
        let driver = slot.as_mut()?;
        driver.host.unregister_begin(port, segment).ok()?
    };
    ends(sim, node, port, Ending::Region);
    Some(post(
        sim,
        node,
        Work::Unregister {
            process,
            port,
            segment,
            unregister,
            first,
            pages,
        },
        waiter,
    ))
}

/// Starts to withdraw an export.
pub(crate) fn unexport(
    sim: &Sim,
    node: &Node,
    port: PortId,
    export: ExportId,
    waiter: Option<AppId>,
) -> Option<u64> {
    let unexport = {
        let mut slot = node.driver(sim);
        let driver = slot.as_mut()?;
        driver.host.unexport_begin(port, export).ok()?
    };
    ends(sim, node, port, Ending::Export);
    Some(post(
        sim,
        node,
        Work::Unexport {
            port,
            export,
            unexport,
        },
        waiter,
    ))
}

/// Starts the exit of a process whose apps are dead.
pub(crate) fn exit(sim: &Sim, node: &Node, process: ProcessId) {
    let mut ports = Vec::new();
    {
        let mut slot = node.driver(sim);
        if let Some(driver) = slot.as_mut() {
            for port in process::ports_of(node, process) {
                let Some(open) = process::open_port(node, port) else {
                    continue;
                };
                ends(sim, node, port, Ending::Port);
                if let Ok(close) = driver.host.port_close_begin(&mut driver.platform, open) {
                    ports.push((port, close));
                }
            }
        }
    }
    sim.note(
        node.id,
        "exit",
        &[("process", u64::from(process.0)), ("ports", ports.len() as u64)],
    );
    post(sim, node, Work::Exit { process, ports }, None);
}

/// Notes that something of a port begins to end.
fn ends(sim: &Sim, node: &Node, port: PortId, what: Ending) {
    let node = node.id;
    sim.see(Seen::Ends { node, port, what });
}

const fn label(change: Change) -> &'static str {
    match change {
        Change::Evict { .. } => "evict",
        Change::Clean { .. } => "clean",
        Change::Break { .. } => "break sharing",
        Change::Discard { .. } => "discard",
        Change::Fork { .. } => "fork",
        Change::Exit => "drop memory",
    }
}
