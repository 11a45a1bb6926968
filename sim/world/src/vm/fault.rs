//! Page faults: of apps, and of the driver on behalf of the card.

use super::{HostVm, ProcessId, Pte, ZERO_PAGE};
use crate::seen::{Log, Seen};
use netvm_abi::{Nanos, Ppn};

/// What a fault came to. Everything but the first and last is a reason to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultResult {
    /// The page is present with the permission asked for.
    Present {
        /// Its frame.
        ppn: Ppn,
        /// Whether it may be written.
        writable: bool,
    },
    /// It comes from swap by then.
    WaitUntil(Nanos),
    /// Its frame must change (copy-on-write, zero page): ask for [`super::Change::Break`] first.
    NeedsBreak,
    /// A change of the page is under way.
    Changing,
    /// No frame is free: evict something.
    NoFrame,
    /// There is no such page, or no such process any more.
    BadAddress,
}

/// Reading a page from swap.
const PAGE_IN: (Nanos, Nanos) = (Nanos(8_000), Nanos(60_000));

impl HostVm {
    /// Brings a page in, for writing if `write`; asked again until it says present or refused.
    /// `slow` stretches the reading from swap.
    pub(crate) fn fault(
        &mut self,
        now: Nanos,
        process: ProcessId,
        page: u64,
        write: bool,
        slow: bool,
        log: &mut Log,
    ) -> FaultResult {
        let Some(space) = self.spaces.get(&process) else {
            return FaultResult::BadAddress;
        };
        if !space.contains(page) {
            return FaultResult::BadAddress;
        }
        if space.claimed(page) {
            return FaultResult::Changing;
        }
        match space.pte(page) {
            Pte::Present { ppn, writable, .. } if !write || writable => {
                FaultResult::Present { ppn, writable }
            }
            Pte::Present { ppn, .. } if ppn == ZERO_PAGE || self.frames.uses(ppn) > 1 => {
                FaultResult::NeedsBreak
            }
            Pte::Present { ppn, dirty, slot, .. } => {
                // The last user of a shared or cleaned page: it may be written where it is.
                let pte = Pte::Present {
                    ppn,
                    writable: true,
                    dirty,
                    referenced: true,
                    slot,
                };
                self.set(process, page, pte, log);
                FaultResult::Present { ppn, writable: true }
            }
            Pte::Empty if !write => {
                let pte = Pte::Present {
                    ppn: ZERO_PAGE,
                    writable: false,
                    dirty: false,
                    referenced: true,
                    slot: None,
                };
                self.set(process, page, pte, log);
                FaultResult::Present {
                    ppn: ZERO_PAGE,
                    writable: false,
                }
            }
            Pte::Empty => {
                let Some(ppn) = self.take_frame(now, process, page, log) else {
                    return FaultResult::NoFrame;
                };
                if let Some(bytes) = self.frames.write(ppn) {
                    bytes.fill(0);
                }
                self.set(process, page, fresh(ppn), log);
                FaultResult::Present { ppn, writable: true }
            }
            Pte::Swapped { slot } => {
                let Some(ppn) = self.take_frame(now, process, page, log) else {
                    return FaultResult::NoFrame;
                };
                let (short, long) = PAGE_IN;
                let takes = if slow {
                    Nanos(long.0 * 20)
                } else {
                    Nanos(short.0 + slot % 7 * long.0 / 7)
                };
                let until = now.after(takes);
                self.set(process, page, Pte::Loading { ppn, slot, until }, log);
                FaultResult::WaitUntil(until)
            }
            Pte::Loading { until, .. } if now < until => FaultResult::WaitUntil(until),
            Pte::Loading { ppn, slot, .. } => {
                self.load(ppn, slot);
                let pte = Pte::Present {
                    ppn,
                    writable: true,
                    dirty: false,
                    referenced: true,
                    slot: Some(slot),
                };
                self.set(process, page, pte, log);
                FaultResult::Present { ppn, writable: true }
            }
        }
    }

    fn load(&mut self, ppn: Ppn, slot: u64) {
        if let (Some(to), Some(from)) = (self.frames.write(ppn), self.swap.read(slot)) {
            *to = *from;
        }
    }

    /// Stores an entry and tells the checkers what the card may do with the page from now on.
    pub(super) fn set(&mut self, process: ProcessId, page: u64, pte: Pte, log: &mut Log) {
        let Some(space) = self.spaces.get_mut(&process) else {
            return;
        };
        space.set(page, pte);
        if let Pte::Present { ppn, writable, .. } = pte {
            log.see(Seen::Permission {
                node: self.node,
                process,
                page,
                ppn,
                writable,
            });
        }
    }
}

/// A page just made for writing: nothing of it is in swap.
pub(super) const fn fresh(ppn: Ppn) -> Pte {
    Pte::Present {
        ppn,
        writable: true,
        dirty: true,
        referenced: true,
        slot: None,
    }
}
