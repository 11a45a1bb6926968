//! What the host core asks of the platform it runs on: the kernel module, the emulator's pager, the
//! simulator.
//!
//! The core is a set of state machines without threads, clocks or memory of its own. One lock of
//! the platform (a spinlock in the kernel) protects a whole [`Host`](crate::Host): the platform
//! takes it around each call and never holds it across an allocation, a page fault, a copy or a
//! wait. Everything that takes time is done by the platform *between* two calls:
//!
//! | the platform does | between |
//! |---|---|
//! | pages in, copies a bounce page | `work_next` / `work_paged` / `work_copied` ([`crate::paging`]) |
//! | waits for a page lock | `unmap_begin` / `unmap_step` ([`crate::unmap`]) |
//! | waits for the NIC's answer | `*_begin` / `*_step`, after `poll` ([`crate::events`]) |
//!
//! `kernel-driver/platform` has the first two rows as steps that all platforms share.
//!
//! [`Platform`] is what the core calls while the lock is held; none of its methods may call back
//! into the core, block or fault.

use netvm_abi::atomic::{Atomic, AtomicResult};
use netvm_abi::words::SharedWords;
use netvm_abi::{BounceId, ByteLen, PageOffset, Ppn, Status, Vpn};

/// The card and the few things of the host that the core may use under the lock.
pub trait Platform {
    /// NIC memory, seen through the BAR ([`netvm_abi::bar`]).
    type Bar: SharedWords + ?Sized;
    /// The driver's memory, which the NIC writes ([`netvm_abi::shared_map`]).
    type Shared: SharedWords + ?Sized;

    /// NIC memory.
    fn bar(&self) -> &Self::Bar;

    /// The driver's memory. The NIC's stores and DMAs appear in it in the order in which it made
    /// them.
    fn shared(&self) -> &Self::Shared;

    /// 64 bits of a cryptographically secure generator: secrets of capabilities.
    fn secret(&mut self) -> u64;

    /// Copies the first words of a bounce page (a control message), each word once.
    fn load_bounce(&mut self, bounce: BounceId, into: &mut [u32]);

    /// Copies words to the start of a bounce page that the NIC has given to the host.
    fn store_bounce(&mut self, bounce: BounceId, from: &[u32]);

    /// Whether the platform carries out atomics in place ([`Direction::Apply`]).
    fn applies_atomics(&self) -> bool {
        false
    }

    /// Wakes a NIC whose `SLEEPING` word is set. Waking one that is awake does no harm.
    fn wake_nic(&mut self);
}

/// How a page is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read by the NIC, or copied from.
    Read,
    /// To be written by the NIC, or copied to: the platform takes a *write* fault, so that a page
    /// that is shared, merged or the zero page is replaced by one of the process' own (promise P3).
    Write,
}

/// A resident page, as the platform found or made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Where it is.
    pub ppn: Ppn,
    /// What the host itself knows it by: the NIC's name for a page says nothing to it. The core keeps
    /// this with the entry and gives it back in [`PageGone`].
    pub frame: u64,
    /// Whether the host's own page-table entry is writable at this moment (promise P3).
    pub writable: bool,
}

/// A page that is out of the NIC's table, and what the NIC did to it since it was last asked. The
/// platform marks its own structures (dirty, referenced) before it returns from the call that
/// reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageGone {
    /// Its port and virtual page number.
    pub vpn: Vpn,
    /// The physical page that it had.
    pub ppn: Ppn,
    /// As in [`Resident`].
    pub frame: u64,
    /// The NIC wrote it.
    pub dirty: bool,
    /// The NIC read or wrote it.
    pub referenced: bool,
    /// Only the marks are news: the entry is back, without write permission
    /// ([`UnmapKind::WriteProtect`]) or in the other row of the page.
    ///
    /// [`UnmapKind::WriteProtect`]: crate::unmap::UnmapKind::WriteProtect
    pub still_readable: bool,
    /// The card is dead and may still use the page: keep a reference for ever, and log it.
    pub leaked: bool,
}

/// Which way a bounce page is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the bounce page (from its first byte on) into the application's page.
    IntoPage,
    /// From the application's page into the bounce page (from its first byte on).
    OutOfPage,
    /// Neither: this atomic, of 1, 2, 4 or 8 bytes and aligned to as many, is carried out in the application's page by one
    /// read-modify-write of the processor ([`CopyEnd::Applied`]). Only where
    /// [`applies_atomics`](Platform::applies_atomics) says so.
    Apply(Atomic),
}

/// The one copy of a bounce (thesis 5.6). The platform does it without the lock, as the process
/// would: through its address space, faulting where it must. An aligned 1-, 2-, 4- or 8-byte copy is
/// a single store (promise P4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyJob {
    /// The bounce page.
    pub bounce: BounceId,
    /// The application's page.
    pub vpn: Vpn,
    /// First byte in that page.
    pub offset: PageOffset,
    /// Number of bytes; with the offset never beyond the page. May be 0.
    pub len: ByteLen,
    /// Which way.
    pub direction: Direction,
}

/// How a copy went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// All bytes are copied.
    Done,
    /// The atomic of [`Direction::Apply`] is carried out.
    Applied(AtomicResult),
    /// The page was evicted meanwhile and nothing was copied: page in again. For platforms that
    /// cannot fault while they copy.
    Evicted,
    /// It cannot be copied: [`Status::Unmapped`], [`Status::ReadOnly`], [`Status::BusError`],
    /// [`Status::NoMemory`] or [`Status::NoSuchPort`].
    Failed(Status),
}
