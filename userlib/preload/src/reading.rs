//! What comes for a connection: over TCP, and after so many bytes by its stream.

use std::collections::VecDeque;
use std::io::{self, Error};
use std::os::fd::RawFd;
use std::task::{Context, Poll};

use netvm_net::Reader;

use crate::greeting::Word;
use crate::network;
use crate::{errno, real};

/// The reading half.
pub(crate) struct Reading {
    /// Bytes that the program has had over TCP.
    received: u64,
    stream: Option<From>,
    /// What the program has looked at and not read.
    peeked: VecDeque<u8>,
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
}

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
        });
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
        self.fetch(fd, context, into)
    }

    fn fetch(&mut self, fd: RawFd, context: &Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.shut {
            return Poll::Ready(Ok(0));
        }
        let Some(stream) = &mut self.stream else {
            let got = from_tcp(fd, into, 0);
            if let Poll::Ready(Ok(count)) = got {
                self.received += count as u64;
            }
            return got;
        };
        let broken = stream.hear(context).err();
        let left = stream.left(self.received);
        if left == Some(0) {
            return stream.half.poll_read(context, into);
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
        if self.stream.is_none() {
            return from_tcp(fd, into, libc::MSG_PEEK);
        }
        while self.peeked.len() < into.len() {
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
        if self.shut {
            return Poll::Ready(Ok(0));
        }
        let Some(stream) = &mut self.stream else {
            return Poll::Pending;
        };
        let broken = stream.hear(context).err();
        match stream.left(self.received) {
            Some(0) => stream.half.poll_readable(context),
            // A read says what it is.
            _ if !stream.tcp_over && tcp_has(fd) => Poll::Ready(Ok(1)),
            left => stream.end(broken, left),
        }
    }

    /// How many bytes can be read at once.
    pub(crate) fn available(&mut self, fd: RawFd, context: &Context<'_>) -> usize {
        let tcp = tcp_bytes(fd);
        let Some(stream) = &mut self.stream else {
            return tcp;
        };
        // A reset is told by a read.
        let _ = stream.hear(context);
        let further = match stream.left(self.received) {
            Some(0) => match stream.half.poll_readable(context) {
                Poll::Ready(Ok(count)) => count,
                _ => 0,
            },
            left => tcp.min(left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX))),
        };
        self.peeked.len() + further
    }

    /// The program reads no more.
    pub(crate) fn shut(&mut self) {
        self.shut = true;
        self.peeked = VecDeque::new();
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
