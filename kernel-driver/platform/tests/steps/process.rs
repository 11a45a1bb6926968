//! The memory of a port's process: page-ins and copies end as a test says, at once or after some tries.

use crate::desk::{Desk, Did};
use netvm_abi::{Nanos, PortId, Status, Vpn};
use netvm_host::Host;
use netvm_host::platform::{Access, CopyEnd, CopyJob, Resident};
use netvm_host::ports::OpenPort;
use netvm_host::unmap::UnmapKind;
use netvm_host_platform::System as _;
use netvm_host_platform::paging::Pager;
use netvm_kit::Heap;
use netvm_kit::host::{Fake, frame_of};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;

/// The memory of a port's process.
pub(super) struct Memory<'a> {
    pub(super) desk: &'a Desk,
    pub(super) port: PortId,
    /// What page-ins give.
    pub(super) result: Result<Option<Resident>, Status>,
    /// How many page-ins still meet a page event.
    pub(super) races: Cell<u32>,
    /// How copies end; `Done` after that.
    pub(super) ends: RefCell<Vec<CopyEnd>>,
    /// The port ends when this is done.
    pub(super) ends_at: Cell<Option<Did>>,
    pub(super) ending: Cell<bool>,
}

/// A page, which must be let go without the lock.
pub(super) struct Page<'a> {
    pub(super) desk: &'a Desk,
    pub(super) resident: Option<Resident>,
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        self.desk.note(false, Did::Let);
    }
}

impl<'a> Memory<'a> {
    pub(super) fn new(desk: &'a Desk, port: OpenPort) -> Self {
        Self {
            desk,
            port: port.port,
            result: Ok(Some(Resident {
                ppn: netvm_abi::Ppn(900),
                frame: frame_of(900),
                writable: true,
            })),
            races: Cell::new(0),
            ends: RefCell::default(),
            ends_at: Cell::new(None),
            ending: Cell::new(false),
        }
    }

    fn note(&self, locked: bool, did: Did) {
        self.desk.note(locked, did);
        if self.ends_at.get() == Some(did) {
            self.ending.set(true);
        }
    }
}

impl<'a> Pager for Memory<'a> {
    type System = Desk;
    type Page = Page<'a>;
    type Wait = Infallible;

    fn system(&self) -> &Desk {
        self.desk
    }

    fn port(&self) -> PortId {
        self.port
    }

    fn while_open<R>(&self, call: impl FnOnce(&mut Host<Heap>, &mut Fake, Nanos) -> R) -> Option<R> {
        if self.ending.get() {
            return None;
        }
        self.desk.call(call)
    }

    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Page<'a>, Status>, Infallible> {
        self.note(false, Did::PageIn(vpn, access));
        if let Some(left) = self.races.get().checked_sub(1) {
            self.races.set(left);
            self.desk.with(|stand| {
                let _ = stand.unmap(vpn, 1, UnmapKind::Remove);
            });
        }
        Ok(self.result.map(|resident| Page {
            desk: self.desk,
            resident,
        }))
    }

    fn copy(&self, page: Option<&Page<'a>>, job: &CopyJob) -> Result<CopyEnd, Infallible> {
        assert!(page.is_some());
        self.note(false, Did::Copy(job.direction));
        Ok(self.ends.borrow_mut().pop().unwrap_or(CopyEnd::Done))
    }

    fn offer(&self, page: &mut Page<'a>) -> Option<Resident> {
        self.note(true, Did::Offer);
        page.resident
    }

    fn prepare(&self, _: &mut Page<'a>, _: &mut Host<Heap>) {
        self.note(true, Did::Prepare);
    }

    fn settle(&self, _: &mut Page<'a>, _: &Host<Heap>, keep: bool) {
        self.note(true, Did::Settle { keep });
    }
}

/// As [`Memory`], but everything takes three tries.
pub(super) struct Slow<'a> {
    pub(super) memory: Memory<'a>,
    pub(super) tries: Cell<u32>,
}

impl Slow<'_> {
    fn in_time(&self) -> Result<(), Nanos> {
        self.tries.set(self.tries.get() + 1);
        if self.tries.get().is_multiple_of(3) {
            Ok(())
        } else {
            Err(Nanos(u64::from(self.tries.get())))
        }
    }
}

impl<'a> Pager for Slow<'a> {
    type System = Desk;
    type Page = Page<'a>;
    type Wait = Nanos;

    fn system(&self) -> &Desk {
        self.memory.desk
    }
    fn port(&self) -> PortId {
        self.memory.port
    }
    fn page_in(&self, vpn: Vpn, access: Access) -> Result<Result<Page<'a>, Status>, Nanos> {
        self.in_time()?;
        let Ok(result) = self.memory.page_in(vpn, access);
        Ok(result)
    }
    fn copy(&self, page: Option<&Page<'a>>, job: &CopyJob) -> Result<CopyEnd, Nanos> {
        self.in_time()?;
        let Ok(end) = self.memory.copy(page, job);
        Ok(end)
    }
    fn offer(&self, page: &mut Page<'a>) -> Option<Resident> {
        self.memory.offer(page)
    }
    fn prepare(&self, page: &mut Page<'a>, host: &mut Host<Heap>) {
        self.memory.prepare(page, host);
    }
    fn settle(&self, page: &mut Page<'a>, host: &Host<Heap>, keep: bool) {
        self.memory.settle(page, host, keep);
    }
}
