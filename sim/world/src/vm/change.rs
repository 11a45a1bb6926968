//! Changes that take a page, or a permission, away from the card.

use super::fault::fresh;
use super::{HostVm, ProcessId, Pte, Space, ZERO_PAGE};
use crate::seen::{Log, Seen};
use netvm_abi::{Nanos, Ppn};

/// A change of a range of pages of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Reclaim takes the frame; a dirty page is written to swap first.
    Evict {
        /// The page.
        page: u64,
    },
    /// The page is cleaned where it is: written to swap and write-protected, to learn of the next write.
    Clean {
        /// The page.
        page: u64,
    },
    /// The page gets a frame of its own, because it is about to be written.
    Break {
        /// The page.
        page: u64,
    },
    /// The app throws a range away; it reads as zero afterwards.
    Discard {
        /// The first page.
        first: u64,
        /// How many.
        pages: u64,
    },
    /// The address space is copied for a child: every page becomes copy-on-write.
    Fork {
        /// The child.
        child: ProcessId,
    },
    /// The process is gone.
    Exit,
}

/// All page numbers of an address space.
const EVERYTHING: (u64, u64) = (0, 1 << 48);

impl Change {
    /// First page and number of pages.
    pub(crate) const fn range(self) -> (u64, u64) {
        match self {
            Self::Evict { page } | Self::Clean { page } | Self::Break { page } => (page, 1),
            Self::Discard { first, pages } => (first, pages),
            Self::Fork { .. } | Self::Exit => EVERYTHING,
        }
    }
}

impl HostVm {
    /// Claims the pages of a change. False: part of them is being changed already, or the process
    /// is gone. On true the caller has the driver invalidate the range, then calls
    /// [`HostVm::finish`].
    pub(crate) fn begin(&mut self, process: ProcessId, change: Change) -> bool {
        let (first, pages) = change.range();
        self.spaces
            .get_mut(&process)
            .is_some_and(|space| space.claim(first, pages))
    }

    /// Gives up a change that was begun and not applied.
    pub(crate) fn abandon(&mut self, process: ProcessId, change: Change) {
        let (first, pages) = change.range();
        if let Some(space) = self.spaces.get_mut(&process) {
            space.release(first, pages);
        }
    }

    /// Applies a change after its invalidation. False: a break found no frame; the page stays as it
    /// was and the fault is asked again.
    pub(crate) fn finish(&mut self, now: Nanos, process: ProcessId, change: Change, log: &mut Log) -> bool {
        let (first, pages) = change.range();
        let Some(space) = self.spaces.get_mut(&process) else {
            return false;
        };
        space.release(first, pages);
        let entries = space.entries_in(first, pages);
        let keeps = matches!(change, Change::Clean { .. } | Change::Fork { .. });
        for &(page, pte) in &entries {
            let Pte::Present { ppn, .. } = pte else { continue };
            log.see(if keeps {
                Seen::Protected {
                    node: self.node,
                    process,
                    page,
                }
            } else {
                Seen::Invalidated {
                    node: self.node,
                    process,
                    page,
                    ppn,
                }
            });
        }
        match change {
            Change::Evict { page } => self.evict(process, page, log),
            Change::Clean { page } => self.clean(process, page, log),
            Change::Break { page } => return self.break_sharing(now, process, page, log),
            Change::Discard { .. } => {
                self.discard(process, first, pages, log);
                log.see(Seen::Discarded {
                    node: self.node,
                    process,
                    first,
                    pages,
                });
            }
            Change::Fork { child } => self.fork(process, child, &entries, log),
            Change::Exit => {
                self.discard(process, first, pages, log);
                self.spaces.remove(&process);
            }
        }
        true
    }

    fn evict(&mut self, process: ProcessId, page: u64, log: &mut Log) {
        let Some(Pte::Present { ppn, dirty, slot, .. }) = self.space(process).map(|space| space.pte(page))
        else {
            return;
        };
        if ppn == ZERO_PAGE {
            self.set(process, page, Pte::Empty, log);
            return;
        }
        let slot = match slot {
            Some(slot) if !dirty => {
                let same = self
                    .frames
                    .read(ppn)
                    .zip(self.swap.read(slot))
                    .is_some_and(|(a, b)| a == b);
                log.see(Seen::DroppedClean {
                    node: self.node,
                    ppn,
                    same,
                });
                slot
            }
            stale => self.write_back(ppn, stale, log),
        };
        self.set(process, page, Pte::Swapped { slot }, log);
        self.evictions += 1;
        self.drop_frame(ppn, log);
    }

    fn clean(&mut self, process: ProcessId, page: u64, log: &mut Log) {
        let Some(Pte::Present {
            ppn,
            dirty,
            referenced,
            slot,
            ..
        }) = self.space(process).map(|space| space.pte(page))
        else {
            return;
        };
        if ppn == ZERO_PAGE {
            return;
        }
        let slot = if dirty || slot.is_none() {
            Some(self.write_back(ppn, slot, log))
        } else {
            slot
        };
        let pte = Pte::Present {
            ppn,
            writable: false,
            dirty: false,
            referenced,
            slot,
        };
        self.set(process, page, pte, log);
    }

    /// Copies a frame to swap, in place of the entry's `stale` copy.
    fn write_back(&mut self, ppn: Ppn, stale: Option<u64>, log: &mut Log) -> u64 {
        self.drop_slot(stale);
        let slot = self.frames.read(ppn).map_or(0, |bytes| self.swap.store(bytes));
        self.written_back += 1;
        log.see(Seen::WrittenBack { node: self.node, ppn });
        slot
    }

    fn drop_slot(&mut self, slot: Option<u64>) {
        if let Some(slot) = slot {
            self.swap.drop_use(slot);
        }
    }

    fn break_sharing(&mut self, now: Nanos, process: ProcessId, page: u64, log: &mut Log) -> bool {
        let Some(pte) = self.space(process).map(|space| space.pte(page)) else {
            return true;
        };
        let Pte::Present { ppn: old, slot, .. } = pte else {
            return true;
        };
        let Some(ppn) = self.take_frame(now, process, page, log) else {
            // The invalidation is over and the entry stands: the card may have the page again.
            self.set(process, page, pte, log);
            return false;
        };
        let bytes = self.frames.read(old).copied();
        if let (Some(to), Some(from)) = (self.frames.write(ppn), bytes) {
            *to = from;
        }
        self.drop_slot(slot);
        self.set(process, page, fresh(ppn), log);
        if old != ZERO_PAGE {
            self.drop_frame(old, log);
        }
        true
    }

    fn discard(&mut self, process: ProcessId, first: u64, pages: u64, log: &mut Log) {
        let Some(space) = self.spaces.get_mut(&process) else {
            return;
        };
        for pte in space.remove_region_entries(first, pages) {
            match pte {
                Pte::Present { ppn, slot, .. } => {
                    self.drop_slot(slot);
                    if ppn != ZERO_PAGE {
                        self.drop_frame(ppn, log);
                    }
                }
                Pte::Loading { ppn, slot, .. } => {
                    self.drop_slot(Some(slot));
                    self.drop_frame(ppn, log);
                }
                Pte::Swapped { slot } => self.drop_slot(Some(slot)),
                Pte::Empty => {}
            }
        }
    }

    fn fork(&mut self, process: ProcessId, child: ProcessId, entries: &[(u64, Pte)], log: &mut Log) {
        let mut copy = Space::default();
        for &(page, pte) in entries {
            match pte {
                Pte::Present {
                    ppn,
                    dirty,
                    referenced,
                    slot,
                    ..
                } => {
                    let shared = Pte::Present {
                        ppn,
                        writable: false,
                        dirty,
                        referenced,
                        slot,
                    };
                    if ppn != ZERO_PAGE {
                        self.frames.add_use(ppn);
                    }
                    if let Some(slot) = slot {
                        self.swap.add_use(slot);
                    }
                    self.set(process, page, shared, log);
                    copy.set(page, shared);
                }
                // A page under way stays the parent's alone; the child would fault it again.
                Pte::Swapped { slot } | Pte::Loading { slot, .. } => {
                    self.swap.add_use(slot);
                    copy.set(page, Pte::Swapped { slot });
                }
                Pte::Empty => {}
            }
        }
        self.spaces.insert(child, copy);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FaultResult, PAGE};
    use super::*;
    use netvm_abi::NodeId;

    const P: ProcessId = ProcessId(1);
    const NOW: Nanos = Nanos(1_000);

    fn host(frames: usize) -> (HostVm, Log) {
        let mut vm = HostVm::new(NodeId(0), Ppn(100), frames);
        vm.create(P);
        assert!(vm.map_region(P, 10, 8));
        (vm, Log::default())
    }

    fn present(vm: &mut HostVm, page: u64, write: bool, log: &mut Log) -> Ppn {
        let mut now = NOW;
        loop {
            match vm.fault(now, P, page, write, false, log) {
                FaultResult::Present { ppn, .. } => return ppn,
                FaultResult::WaitUntil(until) => now = until,
                FaultResult::NeedsBreak => apply(vm, Change::Break { page }, log),
                other => panic!("{other:?}"),
            }
        }
    }

    fn apply(vm: &mut HostVm, change: Change, log: &mut Log) {
        assert!(vm.begin(P, change));
        assert!(vm.finish(NOW, P, change, log));
    }

    #[test]
    fn a_page_survives_eviction_dirty_and_clean() {
        let (mut vm, mut log) = host(2);
        let ppn = present(&mut vm, 10, true, &mut log);
        vm.frames().write(ppn).unwrap()[5] = 77;
        apply(&mut vm, Change::Evict { page: 10 }, &mut log);
        assert_eq!((vm.written_back, vm.free_frames()), (1, 2));
        let ppn = present(&mut vm, 10, false, &mut log);
        assert_eq!(vm.frames().read(ppn).unwrap()[5], 77);
        apply(&mut vm, Change::Evict { page: 10 }, &mut log);
        assert_eq!(vm.written_back, 1, "a clean page is not written again");
        let ppn = present(&mut vm, 10, true, &mut log);
        assert_eq!(vm.frames().read(ppn).unwrap()[5], 77);
    }

    #[test]
    fn reading_untouched_memory_maps_the_zero_page_and_writing_breaks_it() {
        let (mut vm, mut log) = host(2);
        assert_eq!(present(&mut vm, 11, false, &mut log), ZERO_PAGE);
        assert_eq!(
            vm.fault(NOW, P, 11, true, false, &mut log),
            FaultResult::NeedsBreak
        );
        let ppn = present(&mut vm, 11, true, &mut log);
        assert_ne!(ppn, ZERO_PAGE);
        assert_eq!(vm.frames().read(ppn), Some(&[0; PAGE]));
    }

    #[test]
    fn fork_shares_until_written() {
        let (mut vm, mut log) = host(3);
        let shared = present(&mut vm, 10, true, &mut log);
        let child = ProcessId(2);
        apply(&mut vm, Change::Fork { child }, &mut log);
        assert_eq!(vm.present(P, 10), Some((shared, false)));
        assert_eq!(vm.present(child, 10), Some((shared, false)));
        let own = present(&mut vm, 10, true, &mut log);
        assert_ne!(own, shared);
        assert_eq!(vm.frames().uses(shared), 1);
        assert!(vm.begin(child, Change::Exit) && vm.finish(NOW, child, Change::Exit, &mut log));
        assert_eq!(vm.free_frames(), 2);
    }

    #[test]
    fn a_claimed_page_cannot_be_faulted_or_claimed_again() {
        let (mut vm, mut log) = host(2);
        present(&mut vm, 10, true, &mut log);
        let change = Change::Clean { page: 10 };
        assert!(vm.begin(P, change) && !vm.begin(P, Change::Exit));
        assert_eq!(vm.fault(NOW, P, 10, true, false, &mut log), FaultResult::Changing);
        assert!(vm.finish(NOW, P, change, &mut log));
        assert_eq!(vm.present(P, 10).map(|(_, writable)| writable), Some(false));
        present(&mut vm, 10, true, &mut log);
        assert_eq!(vm.present(P, 10).map(|(_, writable)| writable), Some(true));
    }

    #[test]
    fn without_a_frame_the_fault_says_so() {
        let (mut vm, mut log) = host(1);
        present(&mut vm, 10, true, &mut log);
        assert_eq!(vm.fault(NOW, P, 11, true, false, &mut log), FaultResult::NoFrame);
        apply(&mut vm, Change::Discard { first: 10, pages: 2 }, &mut log);
        vm.starve(NOW.after(Nanos(5)));
        assert_eq!(vm.fault(NOW, P, 11, true, false, &mut log), FaultResult::NoFrame);
        assert!(matches!(
            vm.fault(NOW.after(Nanos(5)), P, 11, true, false, &mut log),
            FaultResult::Present { .. }
        ));
    }

    #[test]
    fn a_page_that_is_being_read_can_be_taken_later() {
        let (mut vm, mut log) = host(2);
        present(&mut vm, 10, true, &mut log);
        present(&mut vm, 11, true, &mut log);
        apply(&mut vm, Change::Evict { page: 10 }, &mut log);
        let FaultResult::WaitUntil(until) = vm.fault(NOW, P, 10, false, false, &mut log) else {
            panic!("it was written to swap");
        };
        // Reclaim looks around meanwhile.
        assert_eq!(vm.next_candidate(), Some((P, 11)));
        assert_eq!(vm.next_candidate(), Some((P, 11)));
        let there = vm.fault(until, P, 10, false, false, &mut log);
        assert!(matches!(there, FaultResult::Present { .. }));
        let mut candidates = [vm.next_candidate(), vm.next_candidate()];
        candidates.sort();
        assert_eq!(candidates, [Some((P, 10)), Some((P, 11))]);
    }
}
