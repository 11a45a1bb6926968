//! Pages that do not come in time (promise P2).
//!
//! Behind a page may be a file whose server is silent. Its worker waits, and with it wait the slot of a peer's window and
//! what lies behind it in the port's queue. So a port's worker that has not moved for [`page_deadline`] loses the page-in that
//! it has in hand: the slot ends with [`Status::TimedOut`], and the worker comes back to find that its work is over. What lies
//! behind that and is as old ends after another deadline without a move. A port whose worker moves is slow, and waits.
//!
//! *A copy under way is not ended.* It would go on, out of a bounce page that may hold another message by then. Its page was
//! there a moment before.
//!
//! A process may be stopped for longer than any deadline, and its driver with it. So one look counts for at most a part of the
//! deadline (`LOOKS`), as in [`crate::watch`].
//!
//! The parts are equally long for all ports, so a line of ports does what a heap would: nothing loops over them (promise P7).
//!
//! [`page_deadline`]: crate::attach::HostConfig::page_deadline

use super::Host;
use crate::platform::Platform;
use crate::watch::LOOKS;
use netvm_abi::storage::Storage;
use netvm_abi::{Nanos, PortId, Status};

/// Pieces of work that one look ends.
const SLICE: u32 = 16;

impl<S: Storage> Host<S> {
    /// A look at a port's worker is due after this.
    const fn page_look(&self) -> Nanos {
        match self.config.page_deadline {
            Nanos::MAX => Nanos::MAX,
            deadline => Nanos(deadline.0 / LOOKS),
        }
    }

    /// A port has work for its worker, or in its hands.
    pub(crate) fn has_page_work(&mut self, port: PortId, now: Nanos) {
        let index = u32::from(port.0);
        if let Some(entry) = self.ports.get_mut(port.index())
            && !entry.awaited.is_listed()
        {
            (entry.looked_at, entry.looks) = (now, 0);
            self.awaited.push_back(&mut self.ports, index);
        }
    }

    /// A port's worker has moved: it has taken a piece of work, or put one down.
    pub(crate) fn worker_moves(&mut self, port: PortId) {
        let Some(entry) = self.ports.get_mut(port.index()) else {
            return;
        };
        entry.looks = 0;
        if entry.queue.is_empty() && entry.paging.is_empty() {
            self.awaited.remove(&mut self.ports, u32::from(port.0));
        }
    }

    /// When the next worker must be looked at.
    pub(crate) fn pages_due(&self) -> Nanos {
        let first = self
            .awaited
            .first()
            .and_then(|port| self.ports.get(port as usize));
        first.map_or(Nanos::MAX, |port| port.looked_at.after(self.page_look()))
    }

    /// Looks at the worker that was looked at first; true while there is more to do.
    pub(crate) fn look_at_workers<P: Platform>(&mut self, platform: &mut P, now: Nanos) -> bool {
        if self.pages_due() > now {
            return false;
        }
        let Some(index) = self.awaited.first() else {
            return false;
        };
        let port = PortId(index as u16);
        let Some(entry) = self.ports.get_mut(port.index()) else {
            return false;
        };
        // The first of these looks may come right after the worker has moved.
        if u64::from(entry.looks) < LOOKS {
            entry.looks += 1;
            self.looked_at(index, now);
            return self.pages_due() <= now;
        }
        for _ in 0..SLICE {
            let Some(work) = self.take_overdue(port, now) else {
                self.looked_at(index, now);
                self.worker_moves(port);
                return self.pages_due() <= now;
            };
            self.counters.pages_overdue += 1;
            // The data may be there, and only the mapping is not.
            let copied = self.work.get(work as usize).is_some_and(|work| work.copied);
            if copied {
                self.counters.bounce_unmapped += 1;
                self.answer(platform, work, Status::Ok, now);
            } else {
                self.count_failed(work);
                self.answer(platform, work, Status::TimedOut, now);
            }
        }
        true
    }

    /// A port's worker has been looked at: the next look at it is after those at all others.
    fn looked_at(&mut self, index: u32, now: Nanos) {
        if let Some(entry) = self.ports.get_mut(index as usize) {
            entry.looked_at = now;
        }
        self.awaited.remove(&mut self.ports, index);
        self.awaited.push_back(&mut self.ports, index);
    }

    /// Takes what the port's worker pages in out of its hands, or the first piece of work that lies behind for too long.
    fn take_overdue(&mut self, port: PortId, now: Nanos) -> Option<u32> {
        let paged_in = self.ports.get(port.index())?.paging.first();
        if let Some(work) = paged_in {
            self.put_down(work);
            return Some(work);
        }
        let entry = self.ports.get_mut(port.index())?;
        let first = entry.queue.first()?;
        let since = self.work.get(first as usize)?.since;
        if since.after(self.config.page_deadline) > now {
            return None;
        }
        entry.queue.pop_front(&mut self.work)
    }
}
