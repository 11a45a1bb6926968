//! What every host platform does with the host core in the same way: unmapping a range, serving a port's paging work,
//! acting on what the card says.
//!
//! The kernel module, the emulator and the simulator each implement [`System`], and beside it [`Pager`] and [`Handler`].
//! The three procedures are sequences of steps. Each step takes the platform's lock as often as it needs, and holds none
//! when it returns. So a platform with threads loops over the steps ([`unmap::finish`], [`paging::serve_one`],
//! [`notice::hear`]), and the simulator lets virtual time pass between them.
//!
//! [`Pager`]: paging::Pager
//! [`Handler`]: notice::Handler
#![no_std]
#![forbid(unsafe_code)]

pub mod notice;
pub mod page_wait;
pub mod paging;
pub mod unmap;

use netvm_abi::Nanos;
use netvm_abi::storage::Storage;
use netvm_host::platform::PageGone;
use netvm_host::{Host, Platform};

/// A host core behind its platform's lock, and what the platform does when the core has spoken.
pub trait System {
    /// Where the core's tables are.
    type Storage: Storage;
    /// What the core reaches under the lock.
    type Platform: Platform;

    /// Calls the core under the lock, with the time at that moment. `None`: no core is attached, so no page is mapped and
    /// no work waits. The caller holds no lock that stands behind this one.
    fn call<R>(
        &self,
        call: impl FnOnce(&mut Host<Self::Storage>, &mut Self::Platform, Nanos) -> R,
    ) -> Option<R>;

    /// Puts what the card did to a page into the platform's own records. Called under the lock, from inside of
    /// [`call`](Self::call): must not call the core, block or fault.
    fn page_gone(&self, gone: PageGone);

    /// Stops the DMA of a card that the core has found dead, says [`Host::card_stopped`], and wakes what waits for the
    /// card. Called without the lock, perhaps by several threads at once; must not sleep.
    fn stop_card(&self);
}
