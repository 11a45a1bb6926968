//! NetVM's emulator: real threads, real memory and real page faults in one process, the default back end where there is no card.
//!
//! ```no_run
//! let emulator = netvm_emulator::Emulator::new(2)?;
//! let (a, b) = (emulator.node(0), emulator.node(1));
//! # let _ = (a, b);
//! # Ok::<(), netvm_emulator::EmulatorError>(())
//! ```
//!
//! Each node runs the same NIC core and the same host core as the hardware, with
//! - a small VM system ([`vm`]): a limited number of frames, a swap file, a pager on userfaultfd;
//! - a card (`network`, `dma`, on `netvm-soft`) that the posting thread runs inline, or a thread of its own; DMA is `memcpy`, at
//!   once or late and out of order;
//! - a driver (`netvm-process`): an interrupt thread, a paging worker for each port;
//! - wires in memory (`wire`) that hand buffers over, and can be captured (`capture`).
//!
//! # Rules that keep it from locking up
//! Locks are taken in the order pager, host core; the card takes neither, and no thread waits for the card's lock. Pager, card and
//! the holder of one of these locks never touch the application's mapping of a region (that could fault, and the pager would wait
//! for itself), and never print or log (the application may hold standard output's lock while it faults).
//!
//! # What the emulator cannot show
//! - **fork.** Regions are not inherited (`MADV_DONTFORK`), as device memory is not; copy-on-write between parent and child, and
//!   what it does to a page that the card may write, is left to simulator and rig.
//! - **`madvise` on anonymous memory.** Regions are shared memory underneath. `MADV_DONTNEED` keeps a resident page's contents
//!   (anonymous memory would read zeros) while a page that was swapped out reads zeros; `MADV_FREE`, `MADV_COLD` and
//!   `MADV_PAGEOUT` do not do what they do on anonymous memory. The card's mapping goes in each case.
//! - **Acknowledged page events.** userfaultfd lets `madvise`, `munmap` and `mremap` go on when their event is read, not when it
//!   was handled. Memory stays reachable through the alias meanwhile, so no DMA goes astray, but the kernel's order, in which an
//!   invalidation waits for the card, is the rig's to show.
//! - **Reads by the application** do not count as use for the pager's LRU: user space cannot see the processor's accessed bits.
//! - **KSM, the shared zero page, transparent huge pages, NUMA migration**: none of them exists here. A page that was never written is
//!   treated as the zero page is: the card may not write it before the host has taken a write fault.
//! - **Memory that is not from `port.alloc`** (`adopt`): the pager cannot watch it, so it is refused.
//! - **System calls on exported memory.** Where userfaultfd serves only faults of user code (an ordinary user with
//!   `vm.unprivileged_userfaultfd` at 0), a `read(2)` into a page that is not resident fails with EFAULT: copy in user space.

mod capture;
mod dma;
mod emulator;
mod error;
pub mod fatal;
mod memory;
mod network;
mod places;
mod probe;
mod stats;
pub mod vm;
mod wire;

pub use dma::DmaMode;
pub use emulator::{Builder, Emulator, MAX_NODES, NicMode};
pub use error::EmulatorError;
pub use netvm_memory::copy;
pub use probe::{Check, probe};
pub use stats::NodeStats;
