//! Sets of `epoll` with connections that have moved.
//!
//! The program's set stays the kernel's, with all descriptors that are none of ours. In it is one more, an *inner* set: of
//! TCP sockets whose connections may move, and of an event for what comes by streams. A connection that turns out to stay with TCP goes back
//! to the program's set.
//!
//! What may have changed is queued, and looked at by the next call: so a call costs what has happened, and not what is waited
//! for. **No change is lost between a look and a sleep**: a thread counts itself as a sleeper and then looks at the queue; what queues
//! something looks at the count afterwards. With a full barrier between the two steps of each, one of them sees what the other has done.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Instant;

use libc::{c_int, epoll_event, sigset_t};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::errno;
use crate::process::{Entry, enter, note_polled, process, take_polled};
use crate::real;
use crate::socket::Socket;
use crate::wait::{Habit, Patience, asleep};
use crate::watch::Watcher;

const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
/// What the kernel tells of whether it is wanted or not.
const ERR: u32 = libc::EPOLLERR as u32;
/// What a program may want to hear of.
const WANTED: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP) as u32;

/// The event in an inner set. Descriptors are less.
const EVENT: u64 = u64::MAX;
/// How many events of an inner set are taken at once.
const INNER: usize = 64;
/// So many calls that have found something go by without a look at the kernel's part of a set.
const PASSED: u32 = 8;
/// So many looks of a spinning thread, too.
const LOOKS: u32 = 8;

/// A connection in a set.
pub(crate) struct Interest {
    fd: RawFd,
    me: Weak<Self>,
    socket: Weak<Socket>,
    set: Weak<Epoll>,
    events: AtomicU32,
    data: AtomicU64,
    queued: AtomicBool,
    /// It was told of once, and is to be told of no more.
    disarmed: AtomicBool,
    /// The call that has told of it last: a call tells of each once.
    told_by: AtomicU32,
    /// What the inner set has of it.
    inner: AtomicU32,
}

/// A set.
pub(crate) struct Epoll {
    fd: RawFd,
    inner: OwnedFd,
    event: OwnedFd,
    signalled: AtomicBool,
    sleepers: AtomicUsize,
    calls: AtomicU32,
    habit: Habit,
    interests: Mutex<HashMap<RawFd, Arc<Interest>>>,
    ready: Mutex<VecDeque<Arc<Interest>>>,
}

impl Interest {
    /// Something may have changed.
    pub(crate) fn queue(&self) {
        let (Some(me), Some(set)) = (self.me.upgrade(), self.set.upgrade()) else {
            return;
        };
        if !self.queued.swap(true, Ordering::AcqRel) {
            set.ready.lock().push_back(me);
        }
        fence(Ordering::SeqCst);
        if set.sleepers.load(Ordering::Acquire) > 0 {
            set.signal();
        }
    }

    /// Whether it tells of changes only, and not of what there is.
    pub(crate) fn is_edge(&self) -> bool {
        self.events.load(Ordering::Acquire) & EDGE != 0
    }

    /// What TCP is to tell of; 0: of nothing.
    fn of_tcp(&self, socket: &Socket) -> u32 {
        let events = self.events.load(Ordering::Acquire);
        if self.disarmed.load(Ordering::Acquire) || !socket.awaits_tcp() {
            0
        } else if socket.has_moved() {
            events & (libc::EPOLLIN as u32 | EDGE)
        } else {
            events & (WANTED | EDGE) | ERR
        }
    }
}

fn ctl(set: RawFd, op: c_int, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: the event is there for the call.
    match unsafe { real::epoll_ctl(set, op, fd, &raw mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Epoll {
    /// The library's part in a set of the program.
    ///
    /// # Errors
    /// `fd` is no set, or there are no descriptors left.
    pub(crate) fn of(fd: RawFd) -> io::Result<Arc<Self>> {
        let _making = process().making.lock();
        if let Some(known) = crate::process::epoll(fd) {
            return Ok(known);
        }
        let set = Arc::new(Self {
            fd,
            inner: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            signalled: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            calls: AtomicU32::new(1),
            habit: Habit::new(),
            interests: Mutex::default(),
            ready: Mutex::default(),
        });
        let inner = set.inner.as_raw_fd();
        ctl(
            inner,
            libc::EPOLL_CTL_ADD,
            set.event.as_raw_fd(),
            libc::EPOLLIN as u32,
            EVENT,
        )?;
        ctl(fd, libc::EPOLL_CTL_ADD, inner, libc::EPOLLIN as u32, set.token())?;
        enter(fd, Entry::Epoll(Arc::clone(&set)));
        Ok(set)
    }

    /// What the program's set says of the inner one. No program has this address.
    fn token(&self) -> u64 {
        core::ptr::from_ref(self).addr() as u64
    }

    fn signal(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            // The count has room.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// The program adds a connection.
    ///
    /// # Errors
    /// `EEXIST`.
    pub(crate) fn add(
        self: &Arc<Self>,
        fd: RawFd,
        socket: &Arc<Socket>,
        event: epoll_event,
    ) -> io::Result<()> {
        let interest = Arc::new_cyclic(|me| Interest {
            fd,
            me: Weak::clone(me),
            socket: Arc::downgrade(socket),
            set: Arc::downgrade(self),
            events: AtomicU32::new(event.events),
            data: AtomicU64::new(event.u64),
            queued: AtomicBool::new(false),
            disarmed: AtomicBool::new(false),
            told_by: AtomicU32::new(0),
            inner: AtomicU32::new(0),
        });
        {
            let mut interests = self.interests.lock();
            if interests.contains_key(&fd) {
                return Err(io::Error::from_raw_os_error(libc::EEXIST));
            }
            interests.insert(fd, Arc::clone(&interest));
        }
        socket.watchers().add(Watcher::Epoll(Weak::clone(&interest.me)));
        self.adjust(&interest, socket);
        interest.queue();
        Ok(())
    }

    /// The program changes what it wants to hear of a connection.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(crate) fn change(&self, fd: RawFd, socket: &Socket, event: epoll_event) -> io::Result<()> {
        let interest = self.interest(fd)?;
        interest.events.store(event.events, Ordering::Release);
        interest.data.store(event.u64, Ordering::Release);
        interest.disarmed.store(false, Ordering::Release);
        self.adjust(&interest, socket);
        interest.queue();
        Ok(())
    }

    /// The program takes a connection out, or closes it.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(crate) fn remove(&self, fd: RawFd) -> io::Result<()> {
        let removed = self.interests.lock().remove(&fd);
        let Some(interest) = removed else {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        };
        self.ready.lock().retain(|other| !Arc::ptr_eq(other, &interest));
        if let Some(socket) = interest.socket.upgrade() {
            socket.watchers().remove_interest(&interest.me);
        }
        if interest.inner.load(Ordering::Acquire) != 0 {
            // The descriptor may be closed already.
            let _ = ctl(self.inner.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        Ok(())
    }

    fn interest(&self, fd: RawFd) -> io::Result<Arc<Interest>> {
        let known = self.interests.lock().get(&fd).cloned();
        known.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// The inner set has of a connection what is to be heard over TCP.
    fn adjust(&self, interest: &Interest, socket: &Socket) {
        let wanted = interest.of_tcp(socket);
        let op = match (interest.inner.swap(wanted, Ordering::AcqRel), wanted) {
            (before, now) if before == now => return,
            (0, _) => libc::EPOLL_CTL_ADD,
            (_, 0) => libc::EPOLL_CTL_DEL,
            _ => libc::EPOLL_CTL_MOD,
        };
        // It was closed meanwhile, at worst.
        let _ = ctl(
            self.inner.as_raw_fd(),
            op,
            interest.fd,
            wanted,
            interest.fd as u64,
        );
    }

    /// A connection stays with TCP: its socket goes back to the program's set.
    fn give_back(&self, interest: &Interest) {
        if self.remove(interest.fd).is_err() {
            return;
        }
        let event = epoll_event {
            events: match interest.disarmed.load(Ordering::Acquire) {
                true => ONCE,
                false => interest.events.load(Ordering::Acquire),
            },
            u64: interest.data.load(Ordering::Acquire),
        };
        if ctl(self.fd, libc::EPOLL_CTL_ADD, interest.fd, event.events, event.u64).is_ok() {
            note_polled(self.fd, interest.fd, Some(event));
        }
    }

    /// Tells of the connections that are queued. `again`: those that are to be queued when the call ends, because what there is is told of
    /// them, or the call has told of them before.
    fn collect(&self, call: u32, into: &mut [epoll_event], again: &mut Vec<Arc<Interest>>) -> usize {
        let mut found = 0;
        let most = self.ready.lock().len();
        for _ in 0..most {
            if found == into.len() {
                break;
            }
            let Some(interest) = self.ready.lock().pop_front() else {
                break;
            };
            interest.queued.swap(false, Ordering::AcqRel);
            if interest.told_by.load(Ordering::Acquire) == call {
                again.push(interest);
                continue;
            }
            let Some(socket) = interest.socket.upgrade() else {
                continue;
            };
            let wanted = interest.events.load(Ordering::Acquire);
            let events = socket.events(interest.fd, wanted & WANTED);
            if socket.is_plain() {
                self.give_back(&interest);
                continue;
            }
            if events == 0 || interest.disarmed.load(Ordering::Acquire) {
                self.adjust(&interest, &socket);
                continue;
            }
            into[found] = epoll_event {
                events,
                u64: interest.data.load(Ordering::Acquire),
            };
            found += 1;
            interest.told_by.store(call, Ordering::Release);
            self.adjust(&interest, &socket);
            if wanted & ONCE != 0 {
                interest.disarmed.store(true, Ordering::Release);
                self.adjust(&interest, &socket);
            } else if wanted & EDGE == 0 && socket.brings_more() {
                again.push(interest);
            }
        }
        if found == into.len() && self.sleepers.load(Ordering::Acquire) > 0 && !self.ready.lock().is_empty() {
            self.signal();
        }
        found
    }

    /// Takes the inner set's event out of those that the kernel has told, and queues what it stands for.
    fn sift(&self, told: &mut [epoll_event]) -> usize {
        let token = self.token();
        let Some(at) = told.iter().position(|event| event.u64 == token) else {
            return told.len();
        };
        told[at..].rotate_left(1);
        let mut events = [epoll_event { events: 0, u64: 0 }; INNER];
        let inner = self.inner.as_raw_fd();
        // SAFETY: there is room for so many.
        let count =
            unsafe { real::epoll_pwait(inner, events.as_mut_ptr(), INNER as c_int, 0, core::ptr::null()) };
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            if event.u64 == EVENT {
                let mut count = [0; 8];
                // The mark last: what was signalled before it goes is found by the look that follows, and what is after it writes again.
                let _ = rustix::io::read(&self.event, &mut count);
                self.signalled.swap(false, Ordering::AcqRel);
            } else if let Ok(interest) = self.interest(event.u64 as RawFd) {
                interest.queue();
            }
        }
        told.len() - 1
    }

    /// What the kernel tells of the program's set.
    ///
    /// # Errors
    /// The kernel's, such as `EINTR`.
    fn kernel(
        &self,
        into: &mut [epoll_event],
        timeout: c_int,
        mask: *const sigset_t,
    ) -> Result<usize, c_int> {
        let most = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: there is room for so many; the mask is none, or the program's.
        let count = unsafe { real::epoll_pwait(self.fd, into.as_mut_ptr(), most, timeout, mask) };
        match usize::try_from(count) {
            Ok(count) => Ok(self.sift(&mut into[..count])),
            Err(_) => Err(errno::last()),
        }
    }

    /// Waits, as `epoll_pwait` does.
    ///
    /// # Errors
    /// The kernel's, such as `EINTR`.
    pub(crate) fn wait(
        &self,
        into: &mut [epoll_event],
        patience: Patience,
        mask: *const sigset_t,
    ) -> Result<usize, c_int> {
        if let Some(open) = process().network.known() {
            open.net.progress();
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut again = Vec::new();
        let mut began = None;
        let found = loop {
            let mut found = self.collect(call, into, &mut again);
            if found < into.len() && (found == 0 || call.is_multiple_of(PASSED)) {
                match self.kernel(&mut into[found..], 0, core::ptr::null()) {
                    Ok(more) => found += more,
                    Err(errno) if found == 0 => return Err(errno),
                    // It fails again, and is told then.
                    Err(_) => {}
                }
                if found < into.len() {
                    found += self.collect(call, &mut into[found..], &mut again);
                }
            }
            if found > 0 || patience.is_over() {
                break found;
            }
            if began.is_none() {
                began = Some(Instant::now());
                if self.spin() {
                    continue;
                }
            }
            found = self.sleep(into, patience, mask)?;
            if found > 0 {
                break found;
            }
        };
        if let Some(began) = began {
            self.habit.learn(began);
        }
        for interest in again {
            interest.queue();
        }
        Ok(found)
    }

    /// Looks for a moment. `true`: there is something.
    fn spin(&self) -> bool {
        let mut looks = 0_u32;
        let look = || {
            looks += 1;
            let kernel =
                looks.is_multiple_of(LOOKS) && crate::socket::tcp_events(self.fd, libc::EPOLLIN as u32) != 0;
            (kernel || !self.ready.lock().is_empty()).then_some(())
        };
        self.habit.spin(look).is_some()
    }

    fn sleep(
        &self,
        into: &mut [epoll_event],
        patience: Patience,
        mask: *const sigset_t,
    ) -> Result<usize, c_int> {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        let told = asleep(|| {
            fence(Ordering::SeqCst);
            let timeout = match patience.left() {
                _ if !self.ready.lock().is_empty() => 0,
                None => -1,
                Some(left) => {
                    let millis = left
                        .tv_sec
                        .saturating_mul(1000)
                        .saturating_add((left.tv_nsec + 999_999) / 1_000_000);
                    c_int::try_from(millis).unwrap_or(c_int::MAX)
                }
            };
            self.kernel(into, timeout, mask)
        });
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
        told
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        for (_, interest) in self.interests.get_mut().drain() {
            if let Some(socket) = interest.socket.upgrade() {
                socket.watchers().remove_interest(&interest.me);
            }
        }
    }
}

/// A socket that is in sets of the kernel has become a connection that may move: it is taken over there.
pub(crate) fn adopt(fd: RawFd, socket: &Arc<Socket>) {
    for (set, event) in take_polled(fd) {
        // A set that is gone, or that it was taken out of by other means, has it no longer.
        if ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0).is_err() {
            continue;
        }
        let added = Epoll::of(set).and_then(|set| set.add(fd, socket, event));
        if added.is_err() {
            let _ = ctl(set, libc::EPOLL_CTL_ADD, fd, event.events, event.u64);
        }
    }
}

/// A connection stays with TCP: its socket goes back to the program's sets.
pub(crate) fn give_back(fd: RawFd, socket: &Socket) {
    for interest in socket.watchers().interests() {
        if interest.fd == fd
            && let Some(set) = interest.set.upgrade()
        {
            set.give_back(&interest);
        }
    }
}

/// A descriptor of a connection is closed: it is in no set any more.
pub(crate) fn closed(fd: RawFd, socket: &Socket) {
    for interest in socket.watchers().interests() {
        if interest.fd == fd
            && let Some(set) = interest.set.upgrade()
        {
            let _ = set.remove(fd);
        }
    }
}
