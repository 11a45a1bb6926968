//! Memory pressure: reclaim by age, and the faults that a host throws by itself.

use super::{change, step};
use crate::faults::FaultKind;
use crate::node::Node;
use crate::process;
use crate::seen::Seen;
use crate::sim::Sim;
use crate::vm::{Change, ProcessId};
use netvm_abi::page_lock::Clear;
use netvm_abi::{Nanos, Vpn};

/// Frees up to `count` frames by approximate LRU: a page is given up when neither the processor nor
/// the card has used it since the last look.
pub(crate) fn reclaim(sim: &Sim, node: &Node, count: usize) {
    let mut started = 0;
    for _ in 0..count * 8 {
        let Some((process, page)) = node.vm.borrow_mut().next_candidate() else {
            return;
        };
        if !young(sim, node, process, page)
            && change(sim, node, process, Change::Evict { page }, None).is_some()
        {
            started += 1;
            if started == count {
                return;
            }
        }
    }
    let next = node.vm.borrow_mut().next_candidate();
    if started == 0
        && let Some((process, page)) = next
    {
        // Everything is in use: a page has to go.
        change(sim, node, process, Change::Evict { page }, None);
    }
}

/// Asks and clears the marks of both sides.
fn young(sim: &Sim, node: &Node, process: ProcessId, page: u64) -> bool {
    let ports = process::ports_of(node, process);
    let (ppn, young) = {
        // A step that is held up may have taken the page out of the card's table, and marks it for the kernel when it ends.
        let Some(mut slot) = node.try_driver(sim) else {
            return true;
        };
        let Some((ppn, _)) = node.vm.borrow().present(process, page) else {
            return true;
        };
        sim.see(Seen::AgeAsked { node: node.id, ppn });
        let mut young = node.vm.borrow_mut().clear_referenced(process, page);
        let Some(driver) = slot.as_mut() else { return young };
        for port in ports {
            let vpn = Vpn::new(port, page);
            let used = driver.host.take_use(&mut driver.platform, vpn, Clear::Referenced);
            young |= used.is_some_and(|used| used.referenced);
        }
        (ppn, young)
    };
    sim.see(Seen::AgeTold {
        node: node.id,
        ppn,
        young,
    });
    young
}

/// The kernel looks around: keeps frames free, and throws the faults of a host.
pub(crate) fn tick(sim: &Sim, node: &Node) {
    let (free, starved) = {
        let vm = node.vm.borrow();
        (vm.free_frames(), vm.processes().is_empty())
    };
    if starved {
        return;
    }
    if free < node.memory_limit / 16 + 1 {
        reclaim(sim, node, 2);
    }
    if sim.fires(FaultKind::VmNoMemory, node.id) {
        let until = sim
            .now()
            .after(sim.span(Nanos::from_micros(200), Nanos::from_millis(6)));
        node.vm.borrow_mut().starve(until);
    }
    let Some((process, page)) = any_page(sim, node) else {
        return;
    };
    if sim.fires(FaultKind::VmEvict, node.id) {
        change(sim, node, process, Change::Evict { page }, None);
    }
    if let Some((process, page)) = any_page(sim, node)
        && sim.fires(FaultKind::VmProtect, node.id)
    {
        change(sim, node, process, Change::Clean { page }, None);
    }
    if sim.fires(FaultKind::VmFork, node.id) && process::may_fork(sim, process) {
        let child = sim.new_process();
        change(sim, node, process, Change::Fork { child }, None);
    }
    if process::is_scratch(sim, process) && sim.fires(FaultKind::VmDiscard, node.id) {
        let pages = 1 + sim.below(3);
        change(sim, node, process, Change::Discard { first: page, pages }, None);
    }
}

fn any_page(sim: &Sim, node: &Node) -> Option<(ProcessId, u64)> {
    let vm = node.vm.borrow();
    let processes = vm.processes();
    let process = *processes.get(sim.below(processes.len() as u64) as usize)?;
    let page = vm.any_present(process, sim.below(1 << 20) as usize)?;
    Some((process, page))
}

/// What the host does while the card is in the middle of a step.
pub(crate) fn interleaved(sim: &Sim, node: &Node) {
    let first = node.jobs.borrow().live.keys().next().copied();
    match (first, sim.below(3)) {
        (Some(job), 0 | 1) => step(sim, node, job),
        (None, 0) => {
            if let Some((process, page)) = any_page(sim, node)
                && sim.fires(FaultKind::VmEvict, node.id)
                && let Some(job) = change(sim, node, process, Change::Evict { page }, None)
            {
                step(sim, node, job);
            }
        }
        _ => crate::driver::poll(sim, node),
    }
}
