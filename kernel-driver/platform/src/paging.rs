//! A port's paging worker: bounced messages, and pages that the card missed (thesis 5.6, promise P2).
//!
//! ```text
//! Idle -> wanted page -> [page in] -> tell -> wanted copy -> [copy] and tell -> ended -> Idle
//!              ^                       |            ^               |
//!              '--------- again -------'            '---- again ----'
//! ```
//!
//! What stands in brackets is the platform's and runs without its lock. [`netvm_host::paging`] decides what comes next.
//!
//! **Publication.** Telling the core of a page may put the page into the card's table. All of that is one critical section
//! of the platform's lock: [`Pager::offer`], [`Pager::prepare`], the core's call, [`Pager::settle`]. The platform takes
//! the same lock before it takes a page away, so a page event comes either before `prepare`, which then tells the core
//! that the look at the page is void, or after `settle`, and finds the entry. `prepare` runs before the entry can be seen
//! by the card, and `settle` before a page event can.
//!
//! **The end of a port.** While a port ends its work is taken back: [`Pager::while_open`] refuses to take or to publish,
//! because the port's number may belong to another by then. A copy that is under way is told in any case, since the end
//! of the port waits for it.

use crate::System;
use netvm_abi::{Nanos, PortId, Status, Vpn};
use netvm_host::Host;
use netvm_host::paging::{WorkId, WorkStep};
use netvm_host::platform::{Access, CopyEnd, CopyJob, PageGone, Resident};

use core::convert::Infallible;

/// The memory of one port's process, as its worker reaches it.
pub trait Pager {
    /// The host.
    type System: System;
    /// A page that was brought in. It is dropped without the lock, before the next one is brought in.
    type Page;
    /// When to come back to a page-in or a copy that has to wait. [`Infallible`] where the worker is a thread, which waits
    /// by itself.
    type Wait;

    /// The host.
    fn system(&self) -> &Self::System;

    /// The port.
    fn port(&self) -> PortId;

    /// Calls the core. `None` once the port is ending: what was paged in for it is taken back.
    fn while_open<R>(
        &self,
        call: impl FnOnce(
            &mut Host<<Self::System as System>::Storage>,
            &mut <Self::System as System>::Platform,
            Nanos,
        ) -> R,
    ) -> Option<R> {
        self.system().call(call)
    }

    /// Makes a page resident, as a fault of the process would.
    ///
    /// # Errors
    /// The outer one: not yet. The inner one: why there will be no page, as [`Host::work_paged`] takes it.
    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Self::Page, Status>, Self::Wait>;

    /// Does the one copy. `page` is what was brought in for it; it may be gone again.
    ///
    /// # Errors
    /// Not yet.
    fn copy(&self, page: Option<&Self::Page>, job: &CopyJob) -> Result<CopyEnd, Self::Wait>;

    /// Where the card finds the page. `None`: the page is there, and the card cannot reach it. Under the lock.
    fn offer(&self, page: &mut Self::Page) -> Option<Resident>;

    /// Before a call of the core that may publish the page, under the same lock.
    fn prepare(&self, page: &mut Self::Page, host: &mut Host<<Self::System as System>::Storage>);

    /// After that call, still under the same lock. `keep`: the page is copied to or from, and may be published after that.
    fn settle(&self, page: &mut Self::Page, host: &Host<<Self::System as System>::Storage>, keep: bool);

    /// A page left the card's table while `page` was published. Under the lock.
    fn page_gone(&self, gone: PageGone, page: Option<&Self::Page>) {
        let _ = page;
        self.system().page_gone(gone);
    }
}

/// What a turn of a worker did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn<W> {
    /// Nothing: there is no work, or the port is ending.
    Idle,
    /// A page is there, or will not come. The next turn tells the core.
    PagedIn,
    /// The core was told, and has said what comes next.
    Told,
    /// What was tried has to wait.
    Wait(W),
    /// A piece of work is over.
    Ended(Ended),
}

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The page that was wanted last.
    pub vpn: Option<Vpn>,
    /// What the card was answered.
    pub status: Status,
}

#[derive(Debug)]
enum State<P> {
    Idle,
    /// The core wants this. The page is what was brought in for the same piece of work.
    Wanted(WorkStep, Option<P>),
    /// The core has not heard of this yet.
    PagedIn(WorkId, Result<P, Status>),
}

/// A worker's piece of work.
#[derive(Debug)]
pub struct Worker<P> {
    state: State<P>,
    vpn: Option<Vpn>,
}

impl<P> Default for Worker<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P> Worker<P> {
    /// A worker that has nothing in its hands.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Idle,
            vpn: None,
        }
    }

    /// Goes on: takes a piece of work if there is none in hand, then does one thing for it.
    pub fn turn<T: Pager<Page = P>>(&mut self, pager: &T) -> Turn<T::Wait> {
        let (step, page) = match core::mem::replace(&mut self.state, State::Idle) {
            State::PagedIn(id, result) => return self.tell_paged(pager, id, result),
            State::Wanted(step, page) => (step, page),
            State::Idle => {
                let port = pager.port();
                let next = pager.while_open(|host, platform, now| host.work_next(platform, port, now));
                match next.flatten() {
                    Some(step) => (step, None),
                    None => return Turn::Idle,
                }
            }
        };
        match step {
            WorkStep::PageIn { id, vpn, access } => {
                self.vpn = Some(vpn);
                // A worker has one page at a time.
                drop(page);
                match pager.page_in(vpn, access) {
                    Ok(result) => {
                        self.state = State::PagedIn(id, result);
                        Turn::PagedIn
                    }
                    Err(wait) => {
                        self.state = State::Wanted(step, None);
                        Turn::Wait(wait)
                    }
                }
            }
            WorkStep::Copy { id, job } => match pager.copy(page.as_ref(), &job) {
                Ok(end) => self.tell_copied(pager, id, end, page),
                Err(wait) => {
                    self.state = State::Wanted(step, page);
                    Turn::Wait(wait)
                }
            },
            WorkStep::Ended { status } => Turn::Ended(Ended {
                vpn: self.vpn.take(),
                status,
            }),
        }
    }

    fn tell_paged<T: Pager<Page = P>>(
        &mut self,
        pager: &T,
        id: WorkId,
        mut result: Result<P, Status>,
    ) -> Turn<T::Wait> {
        let next = pager.while_open(|host, platform, now| match &mut result {
            Ok(page) => {
                let resident = pager.offer(page);
                pager.prepare(page, host);
                let next = host.work_paged(platform, id, Ok(resident), now, &mut |gone| {
                    pager.page_gone(gone, Some(page));
                });
                pager.settle(page, host, matches!(next, WorkStep::Copy { .. }));
                next
            }
            Err(status) => host.work_paged(platform, id, Err(*status), now, &mut |gone| {
                pager.page_gone(gone, None);
            }),
        });
        self.told(next, result.ok())
    }

    fn tell_copied<T: Pager<Page = P>>(
        &mut self,
        pager: &T,
        id: WorkId,
        end: CopyEnd,
        mut page: Option<P>,
    ) -> Turn<T::Wait> {
        let next = pager.system().call(|host, platform, now| match &mut page {
            Some(page) => {
                pager.prepare(page, host);
                let next = host.work_copied(platform, id, end, now, &mut |gone| {
                    pager.page_gone(gone, Some(page));
                });
                pager.settle(page, host, matches!(next, WorkStep::Copy { .. }));
                next
            }
            None => host.work_copied(platform, id, end, now, &mut |gone| {
                pager.page_gone(gone, None);
            }),
        });
        self.told(next, page)
    }

    fn told<W>(&mut self, next: Option<WorkStep>, page: Option<P>) -> Turn<W> {
        match next {
            Some(step) => {
                self.state = State::Wanted(step, page);
                Turn::Told
            }
            None => Turn::Idle,
        }
    }
}

/// Does one piece of work to its end. `None`: there is none, or the port is ending.
pub fn serve_one<T: Pager<Wait = Infallible>>(pager: &T) -> Option<Ended> {
    let mut worker = Worker::new();
    loop {
        match worker.turn(pager) {
            Turn::Idle => return None,
            Turn::PagedIn | Turn::Told => {}
            Turn::Wait(never) => match never {},
            Turn::Ended(ended) => return Some(ended),
        }
    }
}
