//! A connection of the program: a TCP socket, and perhaps a stream that has taken over.

mod back;

use std::io::{self, Error};
use std::net::Shutdown;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use netvm_net::{Address, Stream};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::greeting::{End, First, Hello, Nonce};
use crate::process::process;
use crate::reading::{self, Reading};
use crate::real;
use crate::watch::Watchers;
use crate::writing::{self, Writing};

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// It stays with TCP.
    Plain,
    /// It was accepted, and its first bytes have not come.
    Accepted,
    /// It was connected, and the other end may take it over.
    Greeting,
    /// A hello has come, and a stream is on its way.
    Opening,
    /// It has a stream.
    Moved,
    /// It goes back to TCP: what is written goes there, and what came by the stream is read first.
    Returning,
    /// The process that this one was forked from has it.
    Lost,
}

impl Phase {
    const ALL: [Self; 7] = [
        Self::Plain,
        Self::Accepted,
        Self::Greeting,
        Self::Opening,
        Self::Moved,
        Self::Returning,
        Self::Lost,
    ];
}

/// What there is before a stream.
#[derive(Default)]
struct Before {
    nonce: Nonce,
    /// Where the stream leads to, and how often that was tried.
    to: Option<Address>,
    tries: u32,
    /// It has not left: the program has sent nothing yet.
    hello: Option<Hello>,
    opening: Option<Stream>,
    /// A stream that takes over, and how many bytes come before it.
    arrived: Option<(Stream, u64)>,
    /// The other end's network, once the connection has moved.
    peer: Option<Address>,
    /// The parent was asked for the connection.
    asked: bool,
}

/// A connection.
pub(crate) struct Socket {
    me: Weak<Self>,
    end: End,
    phase: AtomicU8,
    nonblocking: AtomicBool,
    before: Mutex<Before>,
    /// The other end goes back to TCP, and waits for an answer.
    asking: Mutex<Option<back::Talk>>,
    is_asking: AtomicBool,
    reading: Mutex<Reading>,
    writing: Mutex<Writing>,
    watchers: Arc<Watchers>,
    /// Tells the watchers.
    waker: Waker,
    /// Descriptors that name it, here and in children that may ask for it.
    names: AtomicUsize,
}

/// So often a stream is tried.
const TRIES: u32 = 3;

/// What a call on a connection fails with that the parent has kept.
fn lost() -> Error {
    Error::from_raw_os_error(libc::ECONNRESET)
}

/// What the kernel says of a TCP socket, in the bits of `poll`.
pub(crate) fn tcp_events(fd: RawFd, wanted: u32) -> u32 {
    let mut one = libc::pollfd {
        fd,
        events: wanted as i16,
        revents: 0,
    };
    // SAFETY: it is one.
    match unsafe { real::poll(&raw mut one, 1, 0) } {
        1 => u32::from(one.revents.cast_unsigned()),
        _ => 0,
    }
}

/// The first bytes that TCP has, which stay there. Nothing: an error, as the C library says.
fn peek_tcp(fd: RawFd, into: &mut [u8]) -> Option<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: the bytes are there, and no address is asked for.
    let got = unsafe {
        let (address, address_len) = (core::ptr::null_mut(), core::ptr::null_mut());
        real::recvfrom(
            fd,
            into.as_mut_ptr().cast(),
            into.len(),
            flags,
            address,
            address_len,
        )
    };
    usize::try_from(got).ok()
}

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;

impl Socket {
    fn new(end: End, phase: Phase, nonblocking: bool) -> Arc<Self> {
        let watchers = Arc::new(Watchers::default());
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            end,
            phase: AtomicU8::new(phase as u8),
            nonblocking: AtomicBool::new(nonblocking),
            before: Mutex::default(),
            asking: Mutex::default(),
            is_asking: AtomicBool::new(false),
            reading: Mutex::new(Reading::new()),
            writing: Mutex::new(Writing::new()),
            waker: Waker::from(Arc::clone(&watchers)),
            watchers,
            names: AtomicUsize::new(0),
        })
    }

    /// One that a listener with the library has accepted.
    pub(crate) fn accepted(nonblocking: bool) -> Arc<Self> {
        Self::new(End::Accepted, Phase::Accepted, nonblocking)
    }

    /// One that was connected, or is being, to a listener with the library. Nothing: it stays with TCP.
    pub(crate) fn greeting(nonblocking: bool) -> Option<Arc<Self>> {
        let address = process().network.address()?;
        let mut nonce = Nonce::default();
        rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty()).ok()?;
        let socket = Self::new(End::Connected, Phase::Greeting, nonblocking);
        *socket.before.lock() = Before {
            nonce,
            hello: Some(Hello::new(address, nonce)),
            ..Before::default()
        };
        process()
            .network
            .know((nonce, socket.end), Weak::clone(&socket.me));
        Some(socket)
    }

    fn phase(&self) -> Phase {
        let phase = self.phase.load(Ordering::Acquire);
        Phase::ALL.get(usize::from(phase)).copied().unwrap_or(Phase::Lost)
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    pub(crate) fn watchers(&self) -> &Arc<Watchers> {
        &self.watchers
    }

    fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.phase() == Phase::Plain
    }

    pub(crate) fn has_moved(&self) -> bool {
        self.phase() == Phase::Moved
    }

    /// Whether what can be read is not only what the kernel says.
    pub(crate) fn brings_more(&self) -> bool {
        matches!(self.phase(), Phase::Moved | Phase::Returning)
    }

    /// Whether something may still come over TCP, or go.
    pub(crate) fn awaits_tcp(&self) -> bool {
        match self.phase() {
            Phase::Moved => self.reading.lock().awaits_tcp(),
            Phase::Lost => false,
            _ => true,
        }
    }

    /// Goes on with what is under way, without waiting.
    pub(crate) fn advance(&self, fd: RawFd) -> Phase {
        let phase = self.phase();
        match phase {
            Phase::Plain => phase,
            Phase::Moved if !self.is_asking.load(Ordering::Acquire) => phase,
            Phase::Moved | Phase::Returning => self.go_on_back(fd),
            Phase::Lost => self.ask_parent(fd),
            Phase::Accepted | Phase::Greeting | Phase::Opening => {
                let mut before = self.before.lock();
                match self.phase() {
                    Phase::Accepted => self.look_at_first(fd, &mut before),
                    Phase::Greeting => self.greet(&mut before),
                    _ => {}
                }
                if self.phase() == Phase::Opening {
                    self.look_at_opening(&mut before);
                }
                self.phase()
            }
        }
    }

    fn look_at_first(&self, fd: RawFd, before: &mut Before) {
        let mut first = [0; Hello::BYTES];
        let got = match peek_tcp(fd, &mut first) {
            Some(0) => return self.set_phase(Phase::Plain),
            Some(got) => got,
            None if crate::errno::last() == libc::EAGAIN => return,
            None => return self.set_phase(Phase::Plain),
        };
        match Hello::read(&first[..got]) {
            First::Few => {}
            First::Program => self.set_phase(Phase::Plain),
            First::Hello(address, nonce) => {
                // It is there: it was looked at.
                let _ = reading::from_tcp(fd, &mut first, 0);
                before.nonce = nonce;
                process().network.know((nonce, self.end), Weak::clone(&self.me));
                self.begin(address, before);
            }
        }
    }

    /// Begins a stream to the network that a hello has named.
    fn begin(&self, to: Address, before: &mut Before) {
        let network = &process().network;
        before.to = Some(to);
        before.tries += 1;
        match network.open().map(|open| open.begin(to)) {
            Some(Ok(stream)) => {
                before.opening = Some(stream);
                self.set_phase(Phase::Opening);
            }
            Some(Err(why)) => {
                network.count_stayed(&why);
                self.set_phase(Phase::Plain);
            }
            None => self.set_phase(Phase::Plain),
        }
    }

    fn greet(&self, before: &mut Before) {
        if let Some((stream, bytes)) = before.arrived.take() {
            self.move_to(stream, before, Some(bytes));
        }
    }

    /// Sends the hello, if it is to be sent yet: before the first bytes of the program, and with them. So an end that closes without having
    /// read finds nothing that the program has not sent, which would make the kernel reset the connection. `false`: TCP takes nothing yet.
    fn say_hello(&self, fd: RawFd) -> bool {
        let mut before = self.before.lock();
        let Some(hello) = before.hello else {
            return true;
        };
        let events = tcp_events(fd, OUT);
        if events & (ERR | HUP) != 0 {
            // The program is to hear of it.
            self.set_phase(Phase::Plain);
            return true;
        }
        if events & OUT == 0 {
            return false;
        }
        // A socket that was just connected has room for a few bytes, and takes all of them.
        match writing::to_tcp(fd, hello.as_bytes(), libc::MSG_NOSIGNAL | libc::MSG_MORE) {
            Poll::Ready(Ok(_)) => before.hello = None,
            Poll::Ready(Err(_)) => self.set_phase(Phase::Plain),
            Poll::Pending => return false,
        }
        true
    }

    fn look_at_opening(&self, before: &mut Before) {
        let (Some(stream), Some(open)) = (&before.opening, process().network.known()) else {
            return;
        };
        match open.net.poll_connected(stream, &mut self.context()) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                if let Some(stream) = before.opening.take() {
                    self.move_to(stream, before, None);
                }
            }
            Poll::Ready(Err(why)) => {
                before.opening = None;
                match before.to {
                    // The node may have the number of one that has just ended.
                    Some(to) if before.tries < TRIES => self.begin(to, before),
                    _ => {
                        process().network.count_stayed(&why);
                        self.set_phase(Phase::Plain);
                    }
                }
            }
        }
    }

    fn move_to(&self, stream: Stream, before: &mut Before, bytes: Option<u64>) {
        before.peer = Some(stream.peer_address());
        let (reader, writer) = stream.split();
        // Between the two what is read still comes over TCP, which has all that was sent there.
        self.writing.lock().move_to(writer, before.nonce);
        self.reading.lock().move_to(reader, bytes);
        self.set_phase(Phase::Moved);
        process().network.count_moved();
        // What they wait for comes in another way from now on.
        self.watchers.tell();
    }

    /// A stream takes over, as soon as the program calls. One that is not awaited comes back. Called on any thread.
    pub(crate) fn arrive(&self, stream: Stream, bytes: u64) -> Option<Stream> {
        {
            // Its thread may be looking at it: then this one waits for some instructions.
            let mut before = self.before.lock();
            if self.phase() != Phase::Greeting || before.arrived.is_some() {
                return Some(stream);
            }
            before.arrived = Some((stream, bytes));
        }
        self.watchers.tell();
        None
    }

    /// Reads what has come; nothing: no more comes.
    pub(crate) fn read(&self, fd: RawFd, into: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.advance(fd) {
            Phase::Lost => Poll::Ready(Err(lost())),
            Phase::Accepted => Poll::Pending,
            _ => {
                let read = self.reading.lock().read(fd, &self.context(), into);
                self.look_on(&read);
                read
            }
        }
    }

    /// Copies bytes that stay where they are.
    pub(crate) fn peek(&self, fd: RawFd, into: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.advance(fd) {
            Phase::Lost => Poll::Ready(Err(lost())),
            Phase::Accepted => Poll::Pending,
            _ => self.reading.lock().peek(fd, &self.context(), into),
        }
    }

    /// Sends what there is room for.
    pub(crate) fn write(&self, fd: RawFd, bytes: &[u8], flags: i32) -> Poll<io::Result<usize>> {
        match self.advance(fd) {
            Phase::Lost => Poll::Ready(Err(lost())),
            Phase::Greeting if !self.say_hello(fd) => Poll::Pending,
            _ => self.writing.lock().write(fd, &self.context(), bytes, flags),
        }
    }

    /// A set that tells of changes only, and not of what there is, has to hear of what comes next, also where not all was read.
    fn look_on(&self, read: &Poll<io::Result<usize>>) {
        if !matches!(read, Poll::Ready(Ok(count)) if *count > 0) || !self.brings_more() {
            return;
        }
        for interest in self.watchers.interests() {
            if interest.is_edge() {
                interest.queue();
            }
        }
    }

    /// How many bytes can be read at once.
    pub(crate) fn readable_bytes(&self, fd: RawFd) -> Option<usize> {
        match self.advance(fd) {
            Phase::Lost | Phase::Accepted => Some(0),
            Phase::Plain => None,
            _ => Some(self.reading.lock().available(fd, &self.context())),
        }
    }

    /// What can be done with it at once, in the bits of `poll` and `epoll`. Errors and ends are told whether they are wanted or not.
    pub(crate) fn events(&self, fd: RawFd, wanted: u32) -> u32 {
        match self.advance(fd) {
            Phase::Lost => IN | OUT | ERR | HUP,
            Phase::Moved => self.stream_events(fd, wanted),
            Phase::Returning => self.returning_events(fd, wanted),
            Phase::Accepted => tcp_events(fd, wanted & OUT),
            Phase::Plain | Phase::Greeting | Phase::Opening => tcp_events(fd, wanted & (IN | OUT | RDHUP)),
        }
    }

    fn stream_events(&self, fd: RawFd, wanted: u32) -> u32 {
        let context = self.context();
        let mut events = 0;
        match self.reading.lock().readable(fd, &context) {
            Poll::Pending => {}
            Poll::Ready(Ok(0)) => events |= IN | RDHUP,
            Poll::Ready(Ok(_)) => events |= IN,
            Poll::Ready(Err(_)) => events |= IN | RDHUP | ERR | HUP,
        }
        if wanted & OUT != 0 {
            match self.writing.lock().writable(&context) {
                Some(Poll::Ready(Ok(()))) => events |= OUT,
                Some(Poll::Ready(Err(_))) if events & RDHUP != 0 => events |= OUT | HUP,
                Some(Poll::Ready(Err(_))) => events |= OUT,
                Some(Poll::Pending) | None => {}
            }
        }
        events & (wanted | ERR | HUP)
    }

    fn returning_events(&self, fd: RawFd, wanted: u32) -> u32 {
        let mut reading = self.reading.lock();
        let mut events = match reading.readable(fd, &self.context()) {
            Poll::Pending => 0,
            Poll::Ready(Ok(0)) => IN | RDHUP,
            Poll::Ready(Ok(_)) => IN,
            Poll::Ready(Err(_)) => IN | RDHUP | ERR | HUP,
        };
        // It is TCP's turn when nothing else comes before.
        let by_tcp = if reading.is_turn_of_tcp(&self.context()) {
            IN | OUT | RDHUP
        } else {
            OUT
        };
        drop(reading);
        events |= tcp_events(fd, wanted & by_tcp);
        events & (wanted | ERR | HUP)
    }

    /// Closes a direction of the stream, or of both. `false`: TCP is to do that.
    pub(crate) fn shutdown(&self, fd: RawFd, how: Shutdown) -> bool {
        self.advance(fd);
        let mut writing = self.writing.lock();
        let moved = writing.has_moved();
        if how != Shutdown::Read {
            writing.shut();
        }
        drop(writing);
        if moved && how != Shutdown::Write {
            self.reading.lock().shut();
        }
        if moved {
            self.watchers.tell();
        }
        moved
    }

    /// A descriptor names it, or a child has one that does.
    pub(crate) fn add_name(&self) {
        self.names.fetch_add(1, Ordering::AcqRel);
    }

    /// One fewer does. Tells whether it was the last.
    pub(crate) fn remove_name(&self) -> bool {
        self.names.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether the other end may not know of the stream yet. It would take the end of TCP for the end of the connection.
    pub(crate) fn lingers(&self) -> bool {
        self.has_moved() && self.reading.lock().awaits_word(&self.context())
    }

    /// The process ends: what was written goes out, and the other end hears that no more comes.
    pub(crate) fn end(&self) {
        if let Some(mut writing) = self.writing.try_lock() {
            writing.shut();
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let is_lost = self.phase() == Phase::Lost;
        let Before { nonce, asked, .. } = self.before.get_mut();
        if is_lost && !*asked {
            process().parent.let_go(nonce);
        } else if *nonce != Nonce::default() {
            process().network.forget(&(*nonce, self.end));
        }
    }
}
