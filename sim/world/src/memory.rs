//! A region of an app's memory: every access goes through the modelled page table and may fault.

use crate::coroutine::Park;
use crate::faults::FaultKind;
use crate::kernel;
use crate::node::Node;
use crate::process;
use crate::seen::Seen;
use crate::sim::Sim;
use crate::solo::Solo;
use crate::vm::{Change, FaultResult, PAGE, ProcessId};
use netvm::backend::{Memory, View, Width};
use netvm_abi::{Nanos, NodeId, PortId, SegmentId, Status, VirtAddr};
use std::rc::Weak;

/// A registered region.
pub(crate) struct Region {
    pub(crate) sim: Solo<Weak<Sim>>,
    pub(crate) node: NodeId,
    pub(crate) life: u32,
    pub(crate) process: ProcessId,
    pub(crate) port: PortId,
    pub(crate) generation: u32,
    pub(crate) segment: SegmentId,
    pub(crate) first: u64,
    pub(crate) pages: u64,
}

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    Load,
    Store,
    /// It loads, and then perhaps stores.
    Both,
}

/// How often an app's own fault is tried before it gets the equivalent of a SIGBUS.
const TRIES: u32 = 100_000;

impl Region {
    /// Runs `access` on each page of a range, the page present and, for a write, writable.
    fn each_page(
        &self,
        offset: u64,
        len: usize,
        touch: Touch,
        mut access: impl FnMut(&mut [u8; PAGE], std::ops::Range<usize>, usize),
    ) -> Result<(), Status> {
        let sim = self.sim.upgrade().ok_or(Status::NoSuchPort)?;
        let node = sim.node(self.node).clone();
        let write = touch != Touch::Load;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let start = (at % PAGE as u64) as usize;
            let count = (PAGE - start).min(len - done);
            let page = self.first + at / PAGE as u64;
            let ppn = self.present(&sim, &node, page, write)?;
            let mut vm = node.vm.borrow_mut();
            let bytes = vm.frames().write(ppn).ok_or(Status::BusError)?;
            let range = start..start + count;
            let (node, process, at) = (self.node, self.process, page * PAGE as u64 + start as u64);
            if touch != Touch::Store {
                let bytes = bytes[range.clone()].into();
                sim.see(Seen::AppLoaded {
                    node,
                    process,
                    at,
                    bytes,
                });
            }
            access(bytes, range.clone(), done);
            if write {
                let bytes = bytes[range].into();
                sim.see(Seen::AppStored {
                    node,
                    process,
                    at,
                    bytes,
                });
            }
            vm.touch(self.process, page, write);
            done += count;
        }
        Ok(())
    }

    /// In a modelled world: an access to a word takes a while. It is made at the end of that.
    fn pay(&self) {
        if let Some(sim) = self.sim.upgrade()
            && let Some(model) = &sim.model
            && sim.parker.inside()
        {
            sim.parker.park(Park::Until(sim.now().after(model.word)));
        }
    }

    /// Apps that spin on this memory see what was stored.
    fn stored(&self) {
        if let Some(sim) = self.sim.upgrade() {
            process::stir(&sim, sim.node(self.node), self.port);
        }
    }

    fn present(&self, sim: &Sim, node: &Node, page: u64, write: bool) -> Result<netvm_abi::Ppn, Status> {
        for attempt in 0..TRIES {
            if node.life.get() != self.life {
                return Err(Status::Unmapped);
            }
            let now = sim.now();
            // A processor uses a present entry without asking the kernel, also while it changes.
            if let Some((ppn, writable)) = node.vm.borrow().present(self.process, page)
                && (writable || !write)
            {
                return Ok(ppn);
            }
            let slow = attempt == 0 && sim.fires(FaultKind::VmSlow, self.node);
            let result = {
                let mut log = sim.log.borrow_mut();
                node.vm
                    .borrow_mut()
                    .fault(now, self.process, page, write, slow, &mut log)
            };
            let wait = match result {
                FaultResult::Present { ppn, .. } => return Ok(ppn),
                FaultResult::WaitUntil(until) => until,
                FaultResult::NeedsBreak => {
                    let waiter = process::running(sim).map(|(app, _)| app);
                    kernel::change(sim, node, self.process, Change::Break { page }, waiter);
                    now.after(Nanos(3_000))
                }
                FaultResult::Changing => now.after(Nanos(1_000)),
                FaultResult::NoFrame => {
                    kernel::reclaim(sim, node, 1);
                    now.after(Nanos(5_000))
                }
                FaultResult::BadAddress => return Err(Status::Unmapped),
            };
            if !sim.parker.inside() {
                return Err(Status::Unmapped);
            }
            sim.parker.park(Park::Until(wait));
        }
        Err(Status::NoMemory)
    }
}

fn load(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    value[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(value)
}

impl Memory for Region {
    fn segment(&self) -> SegmentId {
        self.segment
    }

    fn address(&self) -> VirtAddr {
        VirtAddr(self.first * PAGE as u64)
    }

    fn size(&self) -> u64 {
        self.pages * PAGE as u64
    }

    fn view(&self) -> View {
        View::Indirect
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        self.each_page(offset, into.len(), Touch::Load, |page, range, done| {
            into[done..done + range.len()].copy_from_slice(&page[range]);
        })
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Status> {
        self.each_page(offset, from.len(), Touch::Store, |page, range, done| {
            let part = &from[done..done + range.len()];
            page[range].copy_from_slice(part);
        })
    }

    fn load(&self, offset: u64, width: Width) -> Result<u64, Status> {
        self.pay();
        let mut value = 0;
        self.each_page(offset, width.bytes() as usize, Touch::Load, |page, range, _| {
            value = load(&page[range])
        })?;
        Ok(value)
    }

    fn store(&self, offset: u64, width: Width, value: u64) -> Result<(), Status> {
        self.pay();
        let bytes = value.to_le_bytes();
        self.each_page(offset, width.bytes() as usize, Touch::Store, |page, range, _| {
            let len = range.len();
            page[range].copy_from_slice(&bytes[..len]);
        })?;
        self.stored();
        Ok(())
    }

    fn compare_swap(&self, offset: u64, width: Width, expected: u64, new: u64) -> Result<u64, Status> {
        self.pay();
        let bytes = new.to_le_bytes();
        let mut old = 0;
        self.each_page(offset, width.bytes() as usize, Touch::Both, |page, range, _| {
            let len = range.len();
            old = load(&page[range.clone()]);
            if old == expected {
                page[range].copy_from_slice(&bytes[..len]);
            }
        })?;
        self.stored();
        Ok(old)
    }

    fn free(&self) {
        let Some(sim) = self.sim.upgrade() else { return };
        let node = sim.node(self.node).clone();
        let same = node.life.get() == self.life
            && process::open_port(&node, self.port).is_some_and(|open| open.generation.0 == self.generation);
        if !same {
            return;
        }
        let waiter = process::running(&sim).map(|(app, _)| app);
        let range = (self.first, self.pages);
        let job = kernel::unregister(&sim, &node, self.port, self.segment, range, waiter);
        wait_for(&sim, &node, self.life, job);
    }
}

/// Parks the running app until a job of the kernel is over. Code that cannot park leaves it running.
pub(crate) fn wait_for(sim: &Sim, node: &Node, life: u32, job: Option<u64>) {
    let Some(job) = job else { return };
    while sim.parker.inside()
        && !std::thread::panicking()
        && node.life.get() == life
        && node.jobs.borrow().running(job)
    {
        sim.parker
            .park(Park::Until(sim.now().after(Nanos::from_micros(30))));
    }
}
