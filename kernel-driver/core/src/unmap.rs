//! Unmapping pages and ranges (thesis 4.4, promise P1).
//!
//! Order of calls, for each page event of the host: `unmap_begin`, then `unmap_step` until it is
//! done (waiting *outside* the lock in between), then the platform changes its own page tables, then
//! `unmap_end`. A page in the range cannot be mapped between begin and end, and a
//! [`MapTicket`](crate::shadow::MapTicket) from before the end is void. Reclaim that finds a page in
//! use may call `unmap_restore` instead of going on.
//!
//! A step zaps what is mapped in the range, makes *one* full barrier, then looks at the locks of
//! what is zapped. Unmaps may overlap: the first to reach a slot takes it out and tells its sink; the other finds it
//! gone. So `gone` marks the host's page, whichever unmap asked.

use crate::watch::CardWait;
use netvm_abi::{Nanos, PortId, Vpn};

/// What happens to the entries of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmapKind {
    /// They go.
    Remove,
    /// Those with write permission come back without it (a full unmap in between).
    WriteProtect,
}

/// An unmap under way.
#[derive(Debug)]
#[must_use = "an unmap ends with `unmap_end` or `unmap_restore`"]
pub struct Unmap {
    pub(crate) range: Range,
    pub(crate) kind: UnmapKind,
    /// When it first had to wait for a lock, in the card's time.
    pub(crate) waiting_since: Option<CardWait>,
    /// The same, whatever was zapped since: for the counters.
    pub(crate) waited_since: Option<Nanos>,
    /// The range was scanned, and nothing has come back since this many revivals.
    pub(crate) scanned: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) port: PortId,
    /// First page number.
    pub(crate) first: u64,
    /// Number of pages.
    pub(crate) pages: u64,
}

impl Range {
    pub(crate) const fn covers(&self, vpn: Vpn) -> bool {
        vpn.port().0 == self.port.0
            && vpn.page_number() >= self.first
            && vpn.page_number() - self.first < self.pages
    }

    pub(crate) const fn vpn(&self) -> Vpn {
        Vpn::new(self.port, self.first)
    }
}

/// How far an unmap has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an unmap that is not done must go on"]
pub enum UnmapStep {
    /// No NIC access to the range happens or is in flight (promise P1).
    Done,
    /// The budget is used up: step again.
    Again,
    /// The NIC holds a page: step again in a few microseconds, without the lock in between.
    InUse,
    /// The card is dead and may still do DMA: stop it, say `card_stopped`, then step again.
    CardDead,
}
