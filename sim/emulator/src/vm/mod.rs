//! A small virtual memory system in user space: frames, a swap file, an approximate LRU and a pager on userfaultfd.
//!
//! It plays the operating system of one emulated node. It knows nothing of the network card: what it takes a page away from is
//! told through [`PageEvents`]; a user that wants a page asks [`Pager::fault_in`].
//!
//! Every page of a region exists in at most one *frame*. Frames are numbered; the number is all that the card learns
//! ([`frames`]). A region's memory is one memfd that is mapped twice, linearly: for the application, registered with userfaultfd,
//! and as an alias for card and pager ([`region`]). Taking a page away punches a hole into the memfd, which removes the page from
//! both mappings at once.

mod ahead;
mod events;
mod evict;
pub mod frames;
pub mod lru;
mod maps;
mod page_in;
pub mod pager;
mod pages;
pub mod region;
pub mod swap;
pub mod uffd;
mod watcher;

pub use frames::{DmaTicket, Frame, FrameTable, StaleFrame};
pub use pager::{PageEvents, Pager, PagerConfig, PagerStats, PinnedPage, Resident};
pub use region::RegionMapping;

/// Bytes in a page. The emulator runs only where this is also the machine's page size.
pub const PAGE_SIZE: usize = 4096;

/// A region of one pager: memory that one `alloc` made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// A page by its place in its region; the first is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u64);

/// A page of one pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey {
    /// Its region.
    pub region: RegionId,
    /// Its place there.
    pub page: PageIndex,
}

/// What a page is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// To read it.
    Read,
    /// To write it: the page stops being shared with the zero page.
    Write,
}

/// Why a page cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// The region or the page in it was unmapped or moved.
    #[error("the page is not mapped at its place any more")]
    Gone,
    /// No frame could be freed.
    #[error("no frame can be freed: every resident page is held")]
    NoFrame,
    /// The swap file failed.
    #[error("swap file: {0}")]
    Swap(rustix::io::Errno),
    /// The kernel refused.
    #[error("userfaultfd: {0}")]
    Kernel(rustix::io::Errno),
}
