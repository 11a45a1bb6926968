//! What a node's driver stands on: a card, and memory that the card's page table speaks of.

use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use netvm::backend::Refusal;
use netvm_abi::{Nanos, PortId};
use netvm_host::platform::PageGone;
use netvm_host::ports::OpenPort;

use crate::driver::HostSide;

/// A node's card, as its driver reaches it, and what becomes of pages that leave the card's table.
pub trait Machine: Send + Sync + 'static {
    /// The time on the clock that the card has too.
    fn now(&self) -> Nanos;

    /// Something waits for the card: wakes its thread, or runs it.
    fn kick(&self);

    /// The same from within the driver, by a thread that does not come to run the card again soon: the paging workers, the interrupt
    /// thread, a call that registers memory.
    fn kick_in_passing(&self) {
        self.kick();
    }

    /// After so many looks a waiter runs the card itself; `None` where a thread does that.
    fn spins_per_run(&self) -> Option<u32>;

    /// Counts what the card has served, as far as threads that wait run it. Waiters take more patience from it.
    fn served(&self) -> u32 {
        0
    }

    /// The calling thread is going to block, and runs the card no more.
    fn rest(&self) {}

    /// A port is going to be closed by its program: returns when what it has posted has landed, or after a while.
    fn linger(&self, port: PortId) {
        let _ = port;
    }

    /// Stops the card's access to memory, for ever.
    fn halt(&self);

    /// Puts what the card did to a page into the machine's records. Called under the core's lock.
    fn page_gone(&self, gone: PageGone);

    /// Whether this process is the one that opened the node, and no child of it by `fork`.
    fn is_ours(&self) -> bool {
        true
    }
}

/// Memory of a port.
#[derive(Clone, Debug)]
pub struct Area {
    /// Its first byte.
    pub start: NonNull<u8>,
    /// Keeps it.
    pub owner: Arc<dyn std::any::Any + Send + Sync>,
    /// The program may unmap, protect or cut it at any time, `owner` or not. Then the handler of
    /// [`netvm_memory::guard`] is in place.
    pub may_vanish: bool,
}

/// What gives ports their memory, and pages of it to the card.
pub trait Memory<M: Machine>: Send + Sync + 'static {
    /// New memory, of whole pages.
    ///
    /// # Errors
    /// The reason.
    fn alloc(&self, host: &HostSide<M>, port: OpenPort, len: u64) -> Result<Area, Refusal>;

    /// Memory that the process has.
    ///
    /// # Safety
    /// As [`netvm::backend::PortBackend::adopt`].
    ///
    /// # Errors
    /// The reason.
    unsafe fn adopt(
        &self,
        host: &HostSide<M>,
        port: PortId,
        start: NonNull<u8>,
        len: u64,
    ) -> Result<Area, Refusal>;

    /// All memory that the process has, or can have.
    ///
    /// # Safety
    /// As [`netvm::backend::PortBackend::adopt_all`].
    ///
    /// # Errors
    /// The reason.
    unsafe fn adopt_all(&self) -> Result<(Area, u64), Refusal> {
        Err(Refusal::Unsupported(
            "this back end cannot watch page events of memory that is not from `alloc`",
        ))
    }

    /// Serves a port's paging work until it is closed.
    fn serve(&self, host: &HostSide<M>, port: OpenPort, closed: &AtomicBool);

    /// Serves as much of a port's paging work as waits for nothing. False: something is left for the thread that serves the port.
    fn serve_at_once(&self, host: &HostSide<M>, port: PortId) -> bool {
        let _ = (host, port);
        false
    }
}

/// What a node belongs to: it keeps the threads, and ends them with its last user.
pub trait Whole: Send + Sync + 'static {
    /// Remembers a thread, to be joined at the end.
    fn keep(&self, thread: JoinHandle<()>);
}

/// The threads of a whole, to be joined at its end.
#[derive(Debug, Default)]
pub struct Threads(Mutex<Vec<JoinHandle<()>>>);

impl Threads {
    /// Starts a thread.
    ///
    /// # Errors
    /// The system's reason.
    pub fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.keep(std::thread::Builder::new().name(name.into()).spawn(body)?);
        Ok(())
    }

    /// Remembers a thread.
    pub fn keep(&self, thread: JoinHandle<()>) {
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended need no joining.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Waits until all have ended. One of them may be the caller.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let me = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != me) {
            let _ = thread.join();
        }
    }
}

// SAFETY: the pointer is used by the holder of `owner` through copies and atomics only.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}
