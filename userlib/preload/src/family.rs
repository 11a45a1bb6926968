//! Connections that a parent and its children of `fork` have together.
//!
//! The kernel's sockets are of all processes that have them, and a stream is of one. At a `fork` a child gets a channel to its parent. The child
//! that uses a connection whose stream the parent has asks there for it, and the connection goes back to TCP. One that never does so
//! changes nothing. While the child has the channel, the parent keeps the connection, whatever its program closes: as the kernel does.

use std::io::{Error, IoSlice, IoSliceMut, Result};
use std::mem::{MaybeUninit, forget};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::greeting::Nonce;
use crate::process::{is_this_process, process};
use crate::rest::Rest;
use crate::socket::Socket;

/// Connections that a child has, too: the parent's program closes one of two descriptors.
struct Kept(Mutex<Vec<Arc<Socket>>>);

impl Kept {
    fn new(sockets: Vec<Arc<Socket>>) -> Self {
        for socket in &sockets {
            socket.add_name();
        }
        Self(Mutex::new(sockets))
    }

    fn find(&self, nonce: &Nonce) -> Option<Arc<Socket>> {
        let sockets = self.0.lock();
        sockets.iter().find(|socket| socket.nonce() == *nonce).cloned()
    }

    /// The child has this one no longer.
    fn let_go(&self, nonce: &Nonce) {
        let mut sockets = self.0.lock();
        let at = sockets.iter().position(|socket| socket.nonce() == *nonce);
        let socket = at.map(|at| sockets.swap_remove(at));
        drop(sockets);
        // Without the lock: what is let go of makes calls.
        if let Some(socket) = socket {
            socket.remove_name();
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for socket in self.0.get_mut() {
            socket.remove_name();
        }
    }
}

/// A child's channel, made before the `fork`.
pub(crate) struct Channel {
    parents: OwnedFd,
    childs: OwnedFd,
    kept: Kept,
}

impl Channel {
    /// Nothing: there are no such connections, or no descriptors left.
    pub(crate) fn new(sockets: Vec<Arc<Socket>>) -> Option<Self> {
        if sockets.is_empty() {
            return None;
        }
        let (parents, childs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .ok()?;
        Some(Self {
            parents,
            childs,
            kept: Kept::new(sockets),
        })
    }

    /// The child's end. What else there is, is the parent's: nothing of it is let go of here.
    pub(crate) fn in_child(self) -> Parent {
        forget(self.kept);
        drop(self.parents);
        Parent(AtomicI32::new(self.childs.into_raw_fd()))
    }
}

/// The channel to the parent, if there is one: a descriptor, or -1.
pub(crate) struct Parent(AtomicI32);

/// What is said of a request.
const GIVEN: u8 = 1;
const KEPT: u8 = 0;

impl Parent {
    pub(crate) const fn none() -> Self {
        Self(AtomicI32::new(-1))
    }

    /// The program closes these descriptors: of whatever is opened with their numbers later, the library knows nothing. A child of `vfork`
    /// closes its own.
    pub(crate) fn forget(&self, fds: RangeInclusive<RawFd>) {
        let channel = self.0.load(Ordering::Relaxed);
        if channel >= 0 && fds.contains(&channel) && is_this_process() {
            self.0.store(-1, Ordering::Release);
        }
    }

    /// The program has closed a connection that it has not asked for. The parent need not keep it any more.
    pub(crate) fn let_go(&self, nonce: &Nonce) {
        let channel = self.0.load(Ordering::Acquire);
        if channel >= 0 {
            // SAFETY: it is let go of before the program closes it. If there is no room for it the parent keeps the connection longer.
            let _ = send(
                unsafe { BorrowedFd::borrow_raw(channel) },
                nonce,
                None,
                SendFlags::DONTWAIT,
            );
        }
    }

    /// Asks for a connection, of which this process has a descriptor. What is to be read before what TCP has.
    ///
    /// # Errors
    /// There is no parent any more, or it cannot give the connection.
    pub(crate) fn ask(&self, nonce: Nonce, fd: RawFd, patience: Duration) -> Result<Option<Rest>> {
        let channel = self.0.load(Ordering::Acquire);
        if channel < 0 {
            return Err(Error::other("its parent cannot be asked"));
        }
        // SAFETY: both are open: the channel is let go of before the program closes it, and the connection is what the program calls.
        let (channel, fd) = unsafe { (BorrowedFd::borrow_raw(channel), BorrowedFd::borrow_raw(fd)) };
        let gone = |_| Error::other("its parent has ended");
        send(channel, &nonce, Some(fd), SendFlags::empty()).map_err(gone)?;
        // The parent waits so long itself, and says so.
        if !wait(channel, patience + Duration::from_secs(1))? {
            return Err(Error::other("its parent does not answer"));
        }
        let mut answer = [KEPT];
        match receive(channel, &mut answer).map_err(gone)? {
            (1, rest) if answer == [GIVEN] => Ok(rest.map(Rest::given)),
            (1, _) => Err(Error::other("the other end cannot be asked")),
            _ => Err(Error::other("its parent has ended")),
        }
    }
}

/// A child, as the parent has it.
struct Child {
    channel: OwnedFd,
    kept: Kept,
}

/// The children of a process that may ask. A thread of the library's own answers, since the program's may be busy.
#[derive(Default)]
pub(crate) struct Children {
    list: Mutex<Vec<Arc<Child>>>,
    /// Written to when a child is added. `None`: there can be no thread, and no child is answered.
    event: OnceLock<Option<OwnedFd>>,
}

impl Children {
    /// A child was made.
    pub(crate) fn add(&'static self, channel: Channel) {
        let Some(event) = self.event.get_or_init(|| self.start().ok()) else {
            return;
        };
        let Channel { parents, kept, .. } = channel;
        let channel = parents;
        self.list.lock().push(Arc::new(Child { channel, kept }));
        // The count has room.
        let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
    }

    /// The connections that are kept for children.
    pub(crate) fn sockets(&self) -> Vec<Arc<Socket>> {
        // Another thread has the list for some instructions, or a signal's handler ends the process on that thread.
        let Some(list) = self.list.try_lock() else {
            return Vec::new();
        };
        let kept = list.iter().filter_map(|child| child.kept.0.try_lock());
        kept.flat_map(|sockets| sockets.clone()).collect()
    }

    /// Starts the thread that answers. It takes no signal of the program's.
    fn start(&'static self) -> Result<OwnedFd> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        // SAFETY: all noughts are a set.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { core::mem::zeroed() };
        // SAFETY: there is room for both.
        unsafe {
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        }
        let thread = std::thread::Builder::new().name("netvm-family".to_owned());
        let started = thread.spawn(|| {
            if let Some(event) = self.event.wait() {
                self.answer(event);
            }
        });
        // SAFETY: it was had from the same call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut()) };
        started.map(|_| event)
    }

    /// Answers children, as long as the process lives.
    fn answer(&self, event: &OwnedFd) {
        loop {
            let children = self.list.lock().clone();
            let channels = children.iter().map(|child| child.channel.as_fd());
            let mut fds: Vec<_> = std::iter::once(event.as_fd())
                .chain(channels)
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            if poll(&mut fds, None).is_err() {
                continue;
            }
            let is_told: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if is_told[0] {
                let _ = rustix::io::read(event, &mut [0; 8]);
            }
            for (child, is_told) in children.iter().zip(&is_told[1..]) {
                if *is_told && !child.serve() {
                    self.list.lock().retain(|other| !Arc::ptr_eq(other, child));
                }
            }
            // Without the lock: what is let go of makes calls.
            drop(children);
        }
    }
}

impl Child {
    /// Answers a request. `false`: the child has ended, or runs another program.
    fn serve(&self) -> bool {
        let mut nonce = Nonce::default();
        let fd = match receive(self.channel.as_fd(), &mut nonce) {
            Ok((1.., Some(fd))) => fd,
            Ok((1.., None)) => {
                self.kept.let_go(&nonce);
                return true;
            }
            Ok((0, _)) | Err(_) => return false,
        };
        let given = match self.kept.find(&nonce) {
            Some(socket) => socket.give_back(fd.as_raw_fd()),
            None => Err(Error::other("the connection is not known")),
        };
        let sent = match given {
            Ok(rest) => send(
                self.channel.as_fd(),
                &[GIVEN],
                rest.as_ref().map(|rest| rest.as_fd()),
                SendFlags::DONTWAIT,
            ),
            Err(why) => {
                process().network.tell_kept(&why);
                send(self.channel.as_fd(), &[KEPT], None, SendFlags::DONTWAIT)
            }
        };
        sent.is_ok()
    }
}

/// Sends a message, with a descriptor if there is one.
fn send(channel: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>, flags: SendFlags) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.into_iter().collect();
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    sendmsg(
        channel,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        flags | SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives a message: how many bytes, and a descriptor if there is one. Nothing: the other process is gone.
fn receive(channel: BorrowedFd<'_>, into: &mut [u8]) -> Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        channel,
        &mut [IoSliceMut::new(into)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((received.bytes, fd))
}

/// Waits until something has come. `false`: not in this time.
fn wait(channel: BorrowedFd<'_>, patience: Duration) -> Result<bool> {
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(Error::other)?;
        match poll(&mut [PollFd::new(&channel, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
