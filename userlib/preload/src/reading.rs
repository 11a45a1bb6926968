//! What comes for a connection: over TCP, after so many bytes by its stream, and over TCP again if it goes back.

use std::collections::VecDeque;
use std::io::{self, Error};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use netvm_net::Reader;

use crate::greeting::Word;
use crate::network;
use crate::rest::Rest;
use crate::{errno, real};

/// How many bytes are put aside at once.
const DRAINED: usize = 64 << 10;

/// The reading half.
pub(crate) struct Reading {
    /// Bytes that the program has had over TCP.
    received: u64,
    stream: Option<From>,
    /// What the program has looked at and not read.
    peeked: VecDeque<u8>,
    /// What came by the stream, and is read before all else because the connection has gone back.
    rest: Option<Arc<Rest>>,
    shut: bool,
}

/// The stream of a connection that has moved.
struct From {
    half: Reader,
    /// How many bytes come over TCP before it, once the other end has said so.
    before: Option<u64>,
    word: [u8; Word::BYTES],
    have: usize,
    /// Nothing more comes over TCP.
    tcp_over: bool,
    /// Bytes of the program that came by it.
    taken: u64,
    /// So many come by it, and what follows comes over TCP again. Nothing: it does not go back.
    until: Option<u64>,
    /// It stays after that until the other end lets go of it.
    to_its_end: bool,
}

/// Stands for a stream whose other end can say no more where it goes back: it is read to its end.
pub(crate) const TO_ITS_END: u64 = u64::MAX;

/// What TCP has for a socket that does not block.
pub(crate) fn from_tcp(fd: RawFd, into: &mut [u8], flags: i32) -> Poll<io::Result<usize>> {
    let (at, len) = (into.as_mut_ptr().cast(), into.len());
    // SAFETY: the bytes are the caller's, and no address is asked for.
    let got = unsafe {
        let (address, address_len) = (core::ptr::null_mut(), core::ptr::null_mut());
        real::recvfrom(fd, at, len, flags | libc::MSG_DONTWAIT, address, address_len)
    };
    match usize::try_from(got) {
        Ok(got) => Poll::Ready(Ok(got)),
        Err(_) if errno::last() == libc::EAGAIN => Poll::Pending,
        Err(_) => Poll::Ready(Err(Error::last_os_error())),
    }
}

/// Whether TCP has something, or has ended.
fn tcp_has(fd: RawFd) -> bool {
    let mut one = libc::pollfd {
        fd,
        events: libc::POLLIN | libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: it is one.
    unsafe { real::poll(&raw mut one, 1, 0) > 0 }
}

/// How many bytes TCP has.
fn tcp_bytes(fd: RawFd) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: there is room for a number.
    let asked = unsafe { real::ioctl(fd, libc::FIONREAD, (&raw mut count).expose_provenance()) };
    if asked == 0 {
        usize::try_from(count).unwrap_or(0)
    } else {
        0
    }
}

impl Reading {
    pub(crate) const fn new() -> Self {
        Self {
            received: 0,
            stream: None,
            peeked: VecDeque::new(),
            rest: None,
            shut: false,
        }
    }

    /// The connection has moved. `before`: what the other end has said, if it has.
    pub(crate) fn move_to(&mut self, half: Reader, before: Option<u64>) {
        self.stream = Some(From {
            half,
            before,
            word: [0; Word::BYTES],
            have: 0,
            tcp_over: false,
            taken: 0,
            until: None,
            to_its_end: false,
        });
    }

    /// The connection goes back to TCP: so many bytes come by the stream in all. `to_its_end`: the stream stays until the other end lets go of
    /// it, which it does when it knows as much.
    pub(crate) fn go_back(&mut self, fd: RawFd, until: u64, to_its_end: bool) {
        if let Some(stream) = &mut self.stream {
            stream.until = Some(until);
            stream.to_its_end |= to_its_end;
        }
        if self.shut {
            // SAFETY: it takes numbers.
            unsafe { real::shutdown(fd, libc::SHUT_RD) };
        }
    }

    /// Whether all that comes is TCP's, and the stream is not needed any more.
    pub(crate) fn is_back(&mut self, context: &Context<'_>) -> bool {
        self.is_turn_of_tcp(context) && self.stream.is_none()
    }

    /// Whether all that comes is TCP's.
    pub(crate) fn is_turn_of_tcp(&mut self, context: &Context<'_>) -> bool {
        if self.rest.as_ref().is_some_and(|rest| rest.len() == 0) {
            self.rest = None;
        }
        self.stream(context).is_none() && self.rest.is_none() && self.peeked.is_empty()
    }

    /// The stream, if there is one that has not brought all that it brings.
    fn stream(&mut self, context: &Context<'_>) -> Option<&mut From> {
        if let Some(stream) = &mut self.stream
            && stream.is_behind(context)
        {
            let ended = !stream.to_its_end
                || matches!(stream.half.poll_readable(context), Poll::Ready(Ok(0) | Err(_)));
            if ended {
                self.stream = None;
            }
            return None;
        }
        self.stream.as_mut()
    }

    /// Takes all that comes before TCP's, so that other processes can read it, too. It is over when that has come, or when it is known that no
    /// more does.
    pub(crate) fn drain(&mut self, fd: RawFd, context: &Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.peeked.is_empty() {
                let peeked: Vec<u8> = self.peeked.drain(..).collect();
                self.put_aside(&peeked)?;
            }
            // Dropped with bytes unread, the stream would end for the other end, too.
            if self.shut || self.stream(context).is_none() {
                return Poll::Ready(Ok(()));
            }
            let mut bytes = vec![0; DRAINED];
            match self.fetch(fd, context, &mut bytes) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) if count > 0 => self.put_aside(&bytes[..count])?,
                // What TCP says from now on is how the connection is.
                Poll::Ready(_) => self.stream = None,
            }
        }
    }

    fn put_aside(&mut self, bytes: &[u8]) -> io::Result<()> {
        let rest = match &self.rest {
            Some(rest) => rest,
            None => self.rest.insert(Arc::new(Rest::new()?)),
        };
        rest.append(bytes)
    }

    /// What is to be read first.
    pub(crate) fn rest(&self) -> Option<Arc<Rest>> {
        self.rest.clone()
    }

    /// Another process, or this one before a `fork`, has left this to be read first.
    pub(crate) fn give_rest(&mut self, rest: Option<Arc<Rest>>) {
        self.rest = rest;
    }

    /// Whether the other end has not said yet where its bytes are: it may not know of the stream.
    pub(crate) fn awaits_word(&mut self, context: &Context<'_>) -> bool {
        self.stream
            .as_mut()
            .is_some_and(|stream| stream.hear(context).is_ok() && stream.before.is_none())
    }

    /// Whether something may still come over TCP.
    pub(crate) fn awaits_tcp(&self) -> bool {
        match &self.stream {
            None => true,
            Some(stream) => !stream.tcp_over && stream.left(self.received) != Some(0),
        }
    }

    /// Reads what has come; nothing: no more comes. If neither is known yet the waker is called when something comes by the
    /// stream.
    pub(crate) fn read(
        &mut self,
        fd: RawFd,
        context: &Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if !self.peeked.is_empty() {
            let count = into.len().min(self.peeked.len());
            for (place, byte) in into.iter_mut().zip(self.peeked.drain(..count)) {
                *place = byte;
            }
            return Poll::Ready(Ok(count));
        }
        if let Some(rest) = &self.rest {
            match rest.read(into) {
                0 if !into.is_empty() => self.rest = None,
                count => return Poll::Ready(Ok(count)),
            }
        }
        self.fetch(fd, context, into)
    }

    fn fetch(&mut self, fd: RawFd, context: &Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.shut {
            return Poll::Ready(Ok(0));
        }
        let received = self.received;
        let Some(stream) = self.stream(context) else {
            let got = from_tcp(fd, into, 0);
            if let Poll::Ready(Ok(count)) = got {
                self.received += count as u64;
            }
            return got;
        };
        let broken = stream.hear(context).err();
        let left = stream.left(received);
        if left == Some(0) {
            return match (stream.take(context, into), stream.until) {
                (Poll::Ready(Ok(0)), Some(TO_ITS_END)) if !into.is_empty() => {
                    self.stream = None;
                    from_tcp(fd, into, 0)
                }
                // It has ended before it had brought all.
                (Poll::Ready(Ok(0)), Some(_)) if !into.is_empty() => {
                    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
                }
                (got, _) => got,
            };
        }
        if !stream.tcp_over {
            let most = left.map_or(into.len(), |left| {
                into.len().min(usize::try_from(left).unwrap_or(usize::MAX))
            });
            match from_tcp(fd, &mut into[..most], 0) {
                Poll::Pending => {}
                Poll::Ready(Ok(0)) => stream.tcp_over = true,
                Poll::Ready(Ok(count)) => {
                    self.received += count as u64;
                    return Poll::Ready(Ok(count));
                }
                failed @ Poll::Ready(Err(_)) => return failed,
            }
        }
        stream.end(broken, left)
    }

    /// Copies bytes that stay where they are.
    pub(crate) fn peek(
        &mut self,
        fd: RawFd,
        context: &Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.peeked.is_empty() {
            if let Some(rest) = &self.rest {
                match rest.peek(into) {
                    0 if !into.is_empty() => self.rest = None,
                    count => return Poll::Ready(Ok(count)),
                }
            }
            if self.stream(context).is_none() {
                return from_tcp(fd, into, libc::MSG_PEEK);
            }
        }
        while self.peeked.len() < into.len() && self.stream(context).is_some() {
            let mut more = vec![0; into.len() - self.peeked.len()];
            match self.fetch(fd, context, &mut more) {
                Poll::Ready(Ok(count)) if count > 0 => self.peeked.extend(&more[..count]),
                other if self.peeked.is_empty() => return other,
                _ => break,
            }
        }
        let count = into.len().min(self.peeked.len());
        for (place, byte) in into.iter_mut().zip(&self.peeked) {
            *place = *byte;
        }
        Poll::Ready(Ok(count))
    }

    /// How many bytes can be read at once by the stream; 0: no more comes. Nothing: neither is known, or it is for TCP to say.
    pub(crate) fn readable(&mut self, fd: RawFd, context: &Context<'_>) -> Poll<io::Result<usize>> {
        if !self.peeked.is_empty() {
            return Poll::Ready(Ok(self.peeked.len()));
        }
        if let Some(rest) = self.rest.as_ref().map(|rest| rest.len())
            && rest > 0
        {
            return Poll::Ready(Ok(rest));
        }
        if self.shut {
            return Poll::Ready(Ok(0));
        }
        let received = self.received;
        let Some(stream) = self.stream(context) else {
            return Poll::Pending;
        };
        let broken = stream.hear(context).err();
        match stream.left(received) {
            Some(0) => stream.has(context),
            // A read says what it is.
            _ if !stream.tcp_over && tcp_has(fd) => Poll::Ready(Ok(1)),
            left => stream.end(broken, left),
        }
    }

    /// How many bytes can be read at once.
    pub(crate) fn available(&mut self, fd: RawFd, context: &Context<'_>) -> usize {
        let tcp = tcp_bytes(fd);
        let first = self.peeked.len() + self.rest.as_ref().map_or(0, |rest| rest.len());
        let received = self.received;
        let Some(stream) = self.stream(context) else {
            return first + tcp;
        };
        // A reset is told by a read.
        let _ = stream.hear(context);
        let further = match stream.left(received) {
            Some(0) => match stream.has(context) {
                Poll::Ready(Ok(count)) => count,
                _ => 0,
            },
            left => tcp.min(left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX))),
        };
        first + further
    }

    /// The program reads no more.
    pub(crate) fn shut(&mut self) {
        self.shut = true;
        self.peeked = VecDeque::new();
        self.rest = None;
    }
}

impl From {
    /// Reads how many bytes come over TCP before the stream's.
    ///
    /// An end that moves says so before all else it says by the stream. If its process has ended in an orderly way, and it has said
    /// nothing, it has not moved: the stream came when the program had closed the connection, or was about to end.
    ///
    /// # Errors
    /// The stream was reset.
    fn hear(&mut self, context: &Context<'_>) -> io::Result<()> {
        while self.before.is_none() {
            match self.half.poll_read(context, &mut self.word[self.have..]) {
                Poll::Pending => break,
                // It has ended without a word.
                Poll::Ready(Ok(0)) => self.before = Some(Word::STAYS),
                Poll::Ready(Ok(count)) => {
                    self.have += count;
                    if self.have == Word::BYTES {
                        self.before = Some(network::word(&self.word).before.get());
                    }
                }
                Poll::Ready(Err(error)) if self.have == 0 && netvm_net::has_left(&error) => {
                    self.before = Some(Word::STAYS);
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether it has brought all that it brings.
    fn is_behind(&mut self, context: &Context<'_>) -> bool {
        self.until.is_some_and(|until| self.taken >= until)
            && self.hear(context).is_ok()
            && self.before.is_some()
    }

    /// Reads what it brings before TCP's turn comes again.
    fn take(&mut self, context: &Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let most = self
            .until
            .map_or(u64::MAX, |until| until.saturating_sub(self.taken));
        let most = into.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let got = self.half.poll_read(context, &mut into[..most]);
        if let Poll::Ready(Ok(count)) = got {
            self.taken += count as u64;
        }
        got
    }

    /// How many bytes it has at once that come before TCP's.
    fn has(&mut self, context: &Context<'_>) -> Poll<io::Result<usize>> {
        let most = self
            .until
            .map_or(u64::MAX, |until| until.saturating_sub(self.taken));
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.half.poll_readable(context).map_ok(|count| count.min(most))
    }

    /// What there is to say where TCP has nothing, and it is not the stream's turn: an end, an error, or nothing yet.
    fn end(&self, broken: Option<Error>, left: Option<u64>) -> Poll<io::Result<usize>> {
        match (broken, left) {
            (Some(error), _) => Poll::Ready(Err(error)),
            // The other end stays with TCP, which has ended.
            (None, Some(Word::STAYS..)) if self.tcp_over => Poll::Ready(Ok(0)),
            // It has ended before it had said all.
            (None, Some(_)) if self.tcp_over => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            _ => Poll::Pending,
        }
    }

    /// How many bytes come over TCP yet; [`Word::STAYS`]: all.
    fn left(&self, received: u64) -> Option<u64> {
        match self.before? {
            Word::STAYS => Some(Word::STAYS),
            before => Some(before.saturating_sub(received)),
        }
    }
}
