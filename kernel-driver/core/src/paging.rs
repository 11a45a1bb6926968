//! Bounced messages and source misses: a state machine that a paging worker drives, one worker a
//! port.
//!
//! ```text
//! work_next -> PageIn -> (platform pages in) -> work_paged -> Copy -> (platform copies)
//!           -> work_copied -> PageIn again (a lost race) | Ended
//! ```
//!
//! Each call is made under the lock, what stands in brackets without it. A worker that has a
//! [`WorkStep::PageIn`] or [`WorkStep::Copy`] in hand must come back with its result: the slot
//! ends only then.
use crate::attach::Host;
use crate::platform::{Access, CopyEnd, CopyJob, PageGone, Platform, Resident};
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, Generation, Nanos, PortId, Status, Vpn};

/// A piece of work in a worker's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkId {
    /// The bounce page that it belongs to.
    pub bounce: BounceId,
    /// Use of that page.
    pub generation: Generation,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkStep {
    /// Page in, then `work_paged`.
    PageIn {
        /// The work.
        id: WorkId,
        /// The page.
        vpn: Vpn,
        /// How it is wanted.
        access: Access,
    },
    /// Copy, then `work_copied`.
    Copy {
        /// The work.
        id: WorkId,
        /// What to copy.
        job: CopyJob,
    },
    /// The NIC has its answer. Ask for the next.
    Ended {
        /// How it ended.
        status: Status,
    },
}

impl<S: Storage> Host<S> {
    /// Takes a port's next piece of work, if it has any. Work that must be refused is answered on the
    /// way.
    pub fn work_next<P: Platform>(&mut self, platform: &mut P, port: PortId, now: Nanos) -> Option<WorkStep> {
        let _ = (platform.bar(), port, now);
        None
    }

    /// The page was paged in, or why not: [`Status::Unmapped`], [`Status::ReadOnly`],
    /// [`Status::NoMemory`], [`Status::BusError`] or [`Status::NoSuchPort`]. A page that was
    /// displaced from the NIC's table on the way is told to `gone`.
    pub fn work_paged<P: Platform>(
        &mut self,
        platform: &mut P,
        id: WorkId,
        result: Result<Resident, Status>,
        now: Nanos,
        gone: &mut impl FnMut(PageGone),
    ) -> WorkStep {
        let _ = (platform.bar(), id, result, now, gone);
        WorkStep::Ended { status: Status::Ok }
    }

    /// The copy has ended. A page that was displaced from the NIC's table on the way is told to
    /// `gone`.
    pub fn work_copied<P: Platform>(
        &mut self,
        platform: &mut P,
        id: WorkId,
        end: CopyEnd,
        now: Nanos,
        gone: &mut impl FnMut(PageGone),
    ) -> WorkStep {
        let _ = (platform.bar(), id, end, now, gone);
        WorkStep::Ended { status: Status::Ok }
    }
}
