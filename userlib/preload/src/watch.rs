//! How threads that wait hear of what happens to a connection: an event of the kernel, and only if they sleep.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Wake;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::epoll::Interest;
use crate::process::process;
use crate::wait::Habit;

const IDLE: u8 = 0;
const ASLEEP: u8 = 1;
const WOKEN: u8 = 2;

/// A thread that may sleep: in a call that names an event beside what else it waits for.
///
/// A thread calls [`begin`](Self::begin), leaves word where it waits, looks once more, and [sleeps](Self::sleep). A wake before the
/// sleep is not lost: it changes the one word that the sleep begins with.
pub(crate) struct Sleeper {
    event: OwnedFd,
    state: AtomicU8,
    pub(crate) habit: Habit,
}

impl Sleeper {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
            state: AtomicU8::new(IDLE),
            habit: Habit::new(),
        })
    }

    pub(crate) fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            // The count has room, and the sleeper takes it back.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// What happened before is known.
    pub(crate) fn begin(&self) {
        self.state.store(IDLE, Ordering::Release);
    }

    /// Runs something that sleeps until the event is readable, or for another reason. Nothing: it was woken before.
    pub(crate) fn sleep<T>(&self, sleep: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        let slept = self
            .state
            .compare_exchange(IDLE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        if slept.is_err() {
            return None;
        }
        let done = sleep(std::os::fd::AsFd::as_fd(&self.event));
        if self.state.swap(IDLE, Ordering::AcqRel) == WOKEN {
            // Whatever has ended the sleep: a thread has written to the event, or is about to.
            let mut count = [0; 8];
            while rustix::io::read(&self.event, &mut count) == Err(Errno::INTR) {}
        }
        Some(done)
    }
}

/// What hears of a connection.
#[derive(Clone)]
pub(crate) enum Watcher {
    /// A thread that waits for it.
    Thread(Arc<Sleeper>),
    /// A set of `epoll` that it is in.
    Epoll(Weak<Interest>),
    /// It was closed, and waits until the other end knows of its stream.
    Closed,
}

/// All that hear of a connection. A stream of the network wakes it.
#[derive(Default)]
pub(crate) struct Watchers {
    count: AtomicUsize,
    list: Mutex<Vec<Watcher>>,
}

impl Watchers {
    pub(crate) fn add(&self, watcher: Watcher) {
        self.list.lock().push(watcher);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove_thread(&self, sleeper: &Arc<Sleeper>) {
        self.retain(|watcher| !matches!(watcher, Watcher::Thread(other) if Arc::ptr_eq(other, sleeper)));
    }

    pub(crate) fn remove_interest(&self, interest: &Weak<Interest>) {
        self.retain(|watcher| !matches!(watcher, Watcher::Epoll(other) if other.ptr_eq(interest)));
    }

    fn retain(&self, keep: impl FnMut(&Watcher) -> bool) {
        let mut list = self.list.lock();
        list.retain(keep);
        self.count.store(list.len(), Ordering::Release);
    }

    /// The sets of `epoll` that it is in.
    pub(crate) fn interests(&self) -> Vec<Arc<Interest>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let list = self.list.lock();
        let interests = list.iter().filter_map(|watcher| match watcher {
            Watcher::Epoll(interest) => interest.upgrade(),
            Watcher::Thread(_) | Watcher::Closed => None,
        });
        interests.collect()
    }

    pub(crate) fn tell(&self) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut closed = false;
        for watcher in &*self.list.lock() {
            match watcher {
                Watcher::Closed => closed = true,
                Watcher::Thread(sleeper) => sleeper.wake(),
                Watcher::Epoll(interest) => {
                    if let Some(interest) = interest.upgrade() {
                        interest.queue();
                    }
                }
            }
        }
        if closed {
            process().network.look_at_closed();
        }
    }
}

impl Wake for Watchers {
    fn wake(self: Arc<Self>) {
        self.tell();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.tell();
    }
}
