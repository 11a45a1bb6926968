//! What the library has in this process: which descriptor is what, and the network. A child of `fork` begins anew.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::{Arc, Once};

use libc::epoll_event;
use parking_lot::lock_api::RawRwLock as _;
use parking_lot::{Mutex, RwLock};
use rustix::process::{Pid, getpid};

use crate::directory::Announced;
use crate::epoll::Epoll;
use crate::family::{Channel, Children, Parent};
use crate::network::Network;
use crate::socket::Socket;

/// Descriptors from here on stay what they are.
const MOST: usize = 1 << 16;

/// What a descriptor is, for the calls that ask in passing.
static KINDS: [AtomicU8; MOST] = [const { AtomicU8::new(0) }; MOST];

/// It has an entry.
const KNOWN: u8 = 1;
/// It is in a set of `epoll`, as the kernel has it.
const POLLED: u8 = 2;

/// What the library knows of a descriptor.
#[derive(Clone)]
pub(crate) enum Entry {
    /// A listener that others find.
    Listener(Arc<Announced>),
    /// A connection that has moved, or may.
    Socket(Arc<Socket>),
    /// A set that has such connections.
    Epoll(Arc<Epoll>),
}

/// Sets that a descriptor is in, as the kernel has them, and what was said there.
type Polled = HashMap<RawFd, Vec<(RawFd, epoll_event)>>;

/// All that the library has.
pub(crate) struct Process {
    /// A child of `vfork` has this process's memory, and closes descriptors of its own.
    number: Pid,
    entries: RwLock<Vec<Option<Entry>>>,
    polled: Mutex<Polled>,
    /// One thread at a time makes the library's part of a set.
    pub(crate) making: Mutex<()>,
    pub(crate) network: Network,
    /// What a child of `fork` asks for connections that it has together with its parent.
    pub(crate) parent: Parent,
    children: Children,
    /// The channel of a child that is being made.
    channel: Mutex<Option<Channel>>,
}

impl Process {
    fn new(entries: Vec<Option<Entry>>, parent: Parent) -> Self {
        Self {
            number: getpid(),
            entries: RwLock::new(entries),
            polled: Mutex::default(),
            making: Mutex::default(),
            network: Network::default(),
            parent,
            children: Children::default(),
            channel: Mutex::default(),
        }
    }
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// What the library has in this process.
pub(crate) fn process() -> &'static Process {
    static FIRST: Once = Once::new();
    let known = PROCESS.load(Ordering::Acquire);
    let known = if known.is_null() {
        FIRST.call_once(|| {
            PROCESS.store(
                Box::into_raw(Box::new(Process::new(Vec::new(), Parent::none()))),
                Ordering::Release,
            );
            // SAFETY: the functions may be called at any time, and this library is never unloaded. Without memory for them a child
            // uses connections that are its parent's, which end with an error there.
            let _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        });
        PROCESS.load(Ordering::Acquire)
    } else {
        known
    };
    // SAFETY: it is made once, and never freed.
    unsafe { &*known }
}

/// No thread changes the entries while the process is copied.
extern "C" fn before_fork() {
    let process = process();
    for entry in process.entries.read().iter().flatten() {
        if let Entry::Listener(announced) = entry {
            announced.share();
        }
    }
    // SAFETY: taken here, and given back by the same thread, in this process or not at all.
    unsafe { process.entries.raw().lock_exclusive() };
    // SAFETY: this thread has the lock.
    let entries = unsafe { &*process.entries.data_ptr() };
    let kept = entries.iter().flatten().filter_map(|entry| match entry {
        Entry::Socket(socket) if socket.is_kept() => Some(Arc::clone(socket)),
        _ => None,
    });
    *process.channel.lock() = Channel::new(kept.collect());
}

extern "C" fn in_parent() {
    let process = process();
    let channel = process.channel.lock().take();
    // SAFETY: this thread has taken it.
    unsafe { process.entries.raw().unlock_exclusive() };
    if let Some(channel) = channel {
        process.children.add(channel);
    }
}

/// The child has the parent's descriptors, and none of its threads: what other threads had locked stays locked. So all but the
/// entries begins anew, and what there was is never touched again, nor freed.
extern "C" fn in_child() {
    let old = process();
    // SAFETY: this thread has the lock, and no other is there.
    let entries = unsafe { &*old.entries.data_ptr() };
    // Several descriptors may be names of one connection.
    let mut sockets = HashMap::new();
    let entries = entries.iter().enumerate().map(|(fd, entry)| {
        let kept = match entry {
            Some(Entry::Listener(announced)) => Some(Entry::Listener(Arc::clone(announced))),
            Some(Entry::Socket(socket)) => {
                let new = || socket.in_child();
                let socket = sockets.entry(Arc::as_ptr(socket)).or_insert_with(new);
                socket.as_ref().map(|socket| {
                    socket.add_name();
                    Entry::Socket(Arc::clone(socket))
                })
            }
            Some(Entry::Epoll(_)) | None => None,
        };
        if let Some(kind) = KINDS.get(fd) {
            kind.store(if kept.is_some() { KNOWN } else { 0 }, Ordering::Release);
        }
        kept
    });
    // It is held between two forks by no thread.
    let channel = old.channel.try_lock().and_then(|mut channel| channel.take());
    let parent = channel.map_or(Parent::none(), Channel::in_child);
    let new = Process::new(entries.collect(), parent);
    PROCESS.store(Box::into_raw(Box::new(new)), Ordering::Release);
}

fn kind_of(fd: RawFd) -> Option<&'static AtomicU8> {
    KINDS.get(usize::try_from(fd).ok()?)
}

fn is(fd: RawFd, kind: u8) -> bool {
    kind_of(fd).is_some_and(|known| known.load(Ordering::Acquire) & kind != 0)
}

/// What the library knows of a descriptor; mostly nothing.
pub(crate) fn entry(fd: RawFd) -> Option<Entry> {
    if !is(fd, KNOWN) {
        return None;
    }
    process().entries.read().get(fd as usize)?.clone()
}

/// The connection of a descriptor that has moved, or may. One that has turned out to stay with TCP is forgotten.
pub(crate) fn socket(fd: RawFd) -> Option<Arc<Socket>> {
    let Entry::Socket(socket) = entry(fd)? else {
        return None;
    };
    if socket.is_plain() && is_this_process() {
        forget(fd);
        crate::epoll::give_back(fd, &socket);
        return None;
    }
    Some(socket)
}

/// A descriptor is one like others again.
fn forget(fd: RawFd) {
    let mut entries = process().entries.write();
    if let (Some(kind), Some(entry)) = (kind_of(fd), entries.get_mut(fd as usize)) {
        kind.fetch_and(!KNOWN, Ordering::AcqRel);
        *entry = None;
    }
}

/// Whether the calling thread is of this process, and no child of `vfork` that has its memory.
pub(crate) fn is_this_process() -> bool {
    process().number == getpid()
}

/// The set of a descriptor, if the library has a part in it.
pub(crate) fn epoll(fd: RawFd) -> Option<Arc<Epoll>> {
    match entry(fd)? {
        Entry::Epoll(epoll) => Some(epoll),
        _ => None,
    }
}

/// Whether a listener is announced.
pub(crate) fn is_listener(fd: RawFd) -> bool {
    matches!(entry(fd), Some(Entry::Listener(_)))
}

/// From now on a descriptor is this. `false`: there are too many.
pub(crate) fn enter(fd: RawFd, entry: Entry) -> bool {
    let Some(kind) = kind_of(fd).filter(|_| is_this_process()) else {
        return false;
    };
    let old = {
        let mut entries = process().entries.write();
        let at = fd as usize;
        if entries.len() <= at {
            entries.resize(at + 1, None);
        }
        if let Entry::Socket(socket) = &entry {
            socket.add_name();
        }
        let old = entries.get_mut(at).and_then(|place| place.replace(entry));
        kind.fetch_or(KNOWN, Ordering::AcqRel);
        old
    };
    if let Some(Entry::Socket(socket)) = &old {
        socket.remove_name();
    }
    // Without the lock: what is let go of makes calls.
    drop(old);
    true
}

/// The descriptor is nothing any more, and what it was.
pub(crate) fn leave(fd: RawFd) -> Option<Entry> {
    let kind = kind_of(fd)?;
    match kind.load(Ordering::Acquire) {
        0 => None,
        _ if !is_this_process() => None,
        known => {
            if known & POLLED != 0 {
                process().polled.lock().remove(&fd);
            }
            let mut entries = process().entries.write();
            kind.store(0, Ordering::Release);
            entries.get_mut(fd as usize).and_then(Option::take)
        }
    }
}

/// The descriptors of a range that are not nothing.
pub(crate) fn known_between(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    let range = first as usize..=(last as usize).min(MOST - 1);
    let known = |fd: &usize| {
        KINDS
            .get(*fd)
            .is_some_and(|kind| kind.load(Ordering::Acquire) != 0)
    };
    range.filter(known).map(|fd| fd as RawFd)
}

/// Notes what the kernel has of a descriptor in a set: a socket that is connected later moves from there. Nothing: it is in it no
/// longer.
pub(crate) fn note_polled(epfd: RawFd, fd: RawFd, event: Option<epoll_event>) {
    let Some(kind) = kind_of(fd) else {
        return;
    };
    if event.is_none() && kind.load(Ordering::Acquire) & POLLED == 0 {
        return;
    }
    let mut polled = process().polled.lock();
    let sets = polled.entry(fd).or_default();
    sets.retain(|(set, _)| *set != epfd);
    match event {
        Some(event) => {
            sets.push((epfd, event));
            kind.fetch_or(POLLED, Ordering::AcqRel);
        }
        None if sets.is_empty() => {
            polled.remove(&fd);
            kind.fetch_and(!POLLED, Ordering::AcqRel);
        }
        None => {}
    }
}

/// The sets that a descriptor is in, as the kernel has them; they are forgotten.
pub(crate) fn take_polled(fd: RawFd) -> Vec<(RawFd, epoll_event)> {
    if !is(fd, POLLED) {
        return Vec::new();
    }
    let sets = process().polled.lock().remove(&fd);
    if let Some(kind) = kind_of(fd) {
        kind.fetch_and(!POLLED, Ordering::AcqRel);
    }
    sets.unwrap_or_default()
}

/// All connections, for the end of the process, also those that are kept for children. Nothing: another thread changes them, or this one did
/// when a signal came.
pub(crate) fn sockets() -> Vec<Arc<Socket>> {
    let Some(entries) = process().entries.try_read() else {
        return Vec::new();
    };
    let sockets = entries.iter().filter_map(|entry| match entry {
        Some(Entry::Socket(socket)) => Some(Arc::clone(socket)),
        _ => None,
    });
    sockets.chain(process().children.sockets()).collect()
}
