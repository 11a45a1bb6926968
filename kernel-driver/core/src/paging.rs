//! Bounced messages and source misses: what a paging worker does (thesis 5.6, promise P2).
//!
//! One worker a port. It drives each piece of work through
//!
//! ```text
//! work_next -> PageIn -> [page in] -> work_paged -> Copy -> [copy] -> work_copied -> Ended
//!                ^                        |  ^                            |
//!                |                        |  '--- evicted: page in again -'
//!                '-- a lost race: again --'------ copied, not yet mapped -'
//! ```
//!
//! Each call is made under the lock, what stands in brackets without it. A worker that holds a
//! [`WorkStep::PageIn`] or [`WorkStep::Copy`] must come back with its result: the slot ends only
//! then, and the NIC is answered exactly once.
//!
//! *A bounced message*: check, page in, check again (capability, mapping, port generation), copy once,
//! map, end the slot. After three lost races the page stays unmapped: the data is there.
//! *A source miss*: page in, map, let the NIC try again. After three lost races, or three tries of the
//! NIC, the bytes are copied to the source bounce page.
//!
//! *Under a lease* a worker copies only while the host is sure that the lease is not over (`host/lease.rs`). Else the card is asked, and the work
//! comes back first in its port's queue.
//!
//! *An atomic* whose operand is not mapped: as a source miss, but the page is wanted for writing. After
//! three lost races, or three tries of the NIC, the worker carries it out: the operand is copied to the
//! bounce page, changed there, and copied back. Meanwhile the NIC does no other atomic on that page.
//!
//! **T**, within which a slot ends once the link and the host work: the worker of a port has at most
//! the slots of its senders before it, so T = slots x (page in + copy), and nothing in it waits for
//! another node. A page-in that takes longer than [`HostConfig::page_deadline`](crate::attach::HostConfig::page_deadline) is
//! taken out of its worker's hands; the worker comes back to find that it is over (`host/overdue.rs`).

use crate::platform::{Access, CopyJob};
use netvm_abi::{BounceId, Generation, Status, Vpn};

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
    /// The work is over, or waits for the card to say whether its lease is. Ask for the next.
    Ended {
        /// How it ended.
        status: Status,
    },
}
