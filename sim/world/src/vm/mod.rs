//! The host's virtual memory, modelled: processes, address spaces at fixed addresses, frames with
//! real bytes, swap, copy-on-write.
//!
//! The model makes no calls. A change that takes a page away from the card happens in two steps with the driver's
//! invalidation in between: [`HostVm::begin`] claims the pages, the caller has the driver invalidate them,
//! [`HostVm::finish`] applies the change. That is the order in which a real kernel calls its notifiers.

mod change;
mod fault;
mod frames;
mod space;
mod swap;

pub(crate) use change::Change;
pub(crate) use fault::FaultResult;
pub(crate) use frames::{Frames, PAGE, ZERO_PAGE};
pub(crate) use space::{Pte, Space};

use crate::seen::{Log, Seen};
use netvm_abi::{Nanos, NodeId, Ppn};
use std::collections::{BTreeMap, VecDeque};
use swap::Swap;

/// A process, never used twice in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessId(pub(crate) u32);

/// The memory of one host.
pub(crate) struct HostVm {
    node: NodeId,
    frames: Frames,
    spaces: BTreeMap<ProcessId, Space>,
    /// Present pages, oldest first: the reclaim list. May hold pages that are gone by now.
    list: VecDeque<(ProcessId, u64)>,
    swap: Swap,
    /// No frame is given out before this time.
    starved_until: Nanos,
    /// Page-outs that had to write.
    pub(crate) written_back: u64,
    /// Frames taken from a page by reclaim.
    pub(crate) evictions: u64,
}

impl HostVm {
    /// Bytes of frames, of copies in swap, and of page tables.
    pub(crate) fn bytes(&self) -> [u64; 3] {
        let tables: usize = self.spaces.values().map(Space::bytes).sum();
        [self.frames.bytes(), self.swap.bytes(), tables].map(|bytes| bytes as u64)
    }

    /// A host with `frames` page frames, the first of them numbered `first`.
    pub(crate) fn new(node: NodeId, first: Ppn, frames: usize) -> Self {
        Self {
            node,
            frames: Frames::new(first, frames),
            spaces: BTreeMap::new(),
            list: VecDeque::new(),
            swap: Swap::default(),
            starved_until: Nanos(0),
            written_back: 0,
            evictions: 0,
        }
    }

    /// The frames, for callers that move bytes by physical address.
    pub(crate) fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }

    /// Starts an empty address space.
    pub(crate) fn create(&mut self, process: ProcessId) {
        self.spaces.insert(process, Space::default());
    }

    /// The address space of a process, while it has one.
    pub(crate) fn space(&self, process: ProcessId) -> Option<&Space> {
        self.spaces.get(&process)
    }

    /// Makes `pages` pages from `first` on usable; they read as zero until written.
    pub(crate) fn map_region(&mut self, process: ProcessId, first: u64, pages: u64) -> bool {
        self.spaces
            .get_mut(&process)
            .is_some_and(|space| space.add_region(first, pages))
    }

    /// Where a page is, if it is present.
    pub(crate) fn present(&self, process: ProcessId, page: u64) -> Option<(Ppn, bool)> {
        match self.spaces.get(&process)?.pte(page) {
            Pte::Present { ppn, writable, .. } => Some((ppn, writable)),
            _ => None,
        }
    }

    /// Whether a change of this page is under way.
    pub(crate) fn changing(&self, process: ProcessId, page: u64) -> bool {
        self.spaces.get(&process).is_some_and(|space| space.claimed(page))
    }

    /// Sets the accessed bit, and the dirty bit for a write, as a processor's access does.
    pub(crate) fn touch(&mut self, process: ProcessId, page: u64, write: bool) {
        if let Some(Pte::Present {
            referenced, dirty, ..
        }) = self
            .spaces
            .get_mut(&process)
            .and_then(|space| space.pte_mut(page))
        {
            *referenced = true;
            *dirty |= write;
        }
    }

    /// The driver says that the card wrote this page.
    pub(crate) fn mark_dirty(&mut self, process: ProcessId, page: u64) {
        if let Some(Pte::Present { dirty, .. }) = self
            .spaces
            .get_mut(&process)
            .and_then(|space| space.pte_mut(page))
        {
            *dirty = true;
        }
    }

    /// Clears the accessed bit and says what it was.
    pub(crate) fn clear_referenced(&mut self, process: ProcessId, page: u64) -> bool {
        match self
            .spaces
            .get_mut(&process)
            .and_then(|space| space.pte_mut(page))
        {
            Some(Pte::Present { referenced, .. }) => std::mem::take(referenced),
            _ => false,
        }
    }

    /// The next page that reclaim looks at, moved to the young end of its list; the caller asks both
    /// the accessed bit and the driver before it evicts.
    pub(crate) fn next_candidate(&mut self) -> Option<(ProcessId, u64)> {
        for _ in 0..self.list.len() {
            let (process, page) = self.list.pop_front()?;
            let space = self.spaces.get(&process);
            let takes = match space.map_or(Pte::Empty, |space| space.pte(page)) {
                Pte::Present { ppn, .. } if ppn != ZERO_PAGE => !self.changing(process, page),
                // It has a frame, and will be there: forgotten now, it could never be taken again.
                Pte::Loading { .. } => false,
                _ => continue,
            };
            self.list.push_back((process, page));
            if takes {
                return Some((process, page));
            }
        }
        None
    }

    /// Any present page of a process that is not being changed, picked by `pick`.
    pub(crate) fn any_present(&self, process: ProcessId, pick: usize) -> Option<u64> {
        let space = self.spaces.get(&process)?;
        let pages: Vec<u64> = space
            .present_pages()
            .filter(|&page| !space.claimed(page))
            .collect();
        pages.get(pick.checked_rem(pages.len())?).copied()
    }

    /// Any living process with memory.
    pub(crate) fn processes(&self) -> Vec<ProcessId> {
        self.spaces.keys().copied().collect()
    }

    /// No frame is given out before `until`.
    pub(crate) fn starve(&mut self, until: Nanos) {
        self.starved_until = until;
    }

    /// Free frames.
    pub(crate) fn free_frames(&self) -> usize {
        self.frames.free()
    }

    /// Takes a frame for a page, if there is one.
    fn take_frame(&mut self, now: Nanos, process: ProcessId, page: u64, log: &mut Log) -> Option<Ppn> {
        if now < self.starved_until {
            return None;
        }
        let ppn = self.frames.take()?;
        // What an earlier stay of the page has left there.
        self.list.retain(|&listed| listed != (process, page));
        self.list.push_back((process, page));
        log.see(Seen::FrameGiven { node: self.node, ppn });
        Some(ppn)
    }

    /// Drops one use of a frame; the last one frees it.
    fn drop_frame(&mut self, ppn: Ppn, log: &mut Log) {
        if self.frames.drop_use(ppn) {
            log.see(Seen::FrameTaken { node: self.node, ppn });
        }
    }
}
