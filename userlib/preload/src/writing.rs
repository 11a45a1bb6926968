//! What a connection sends: over TCP, and from then on by its stream.

use std::io::{self, Error};
use std::os::fd::RawFd;
use std::task::{Context, Poll};

use netvm_net::Writer;
use zerocopy::IntoBytes;

use crate::greeting::{Nonce, Word};
use crate::{errno, real};

/// The writing half.
pub(crate) struct Writing {
    /// Bytes of the program that went over TCP.
    sent: u64,
    stream: Option<To>,
    shut: bool,
}

/// The stream of a connection that has moved.
struct To {
    half: Option<Writer>,
    word: Word,
    said: usize,
}

/// What TCP takes of a socket that does not block.
pub(crate) fn to_tcp(fd: RawFd, bytes: &[u8], flags: i32) -> Poll<io::Result<usize>> {
    let (at, len) = (bytes.as_ptr().cast(), bytes.len());
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: the bytes are the caller's, and no address is given.
    let sent = unsafe { real::sendto(fd, at, len, flags, core::ptr::null(), 0) };
    match usize::try_from(sent) {
        Ok(sent) => Poll::Ready(Ok(sent)),
        Err(_) if errno::last() == libc::EAGAIN => Poll::Pending,
        Err(_) => Poll::Ready(Err(Error::last_os_error())),
    }
}

impl Writing {
    pub(crate) const fn new() -> Self {
        Self {
            sent: 0,
            stream: None,
            shut: false,
        }
    }

    /// The connection moves: what is written from now on goes by the stream.
    pub(crate) fn move_to(&mut self, half: Writer, nonce: Nonce) {
        let mut to = To {
            half: Some(half),
            word: Word::new(nonce, self.sent),
            said: 0,
        };
        // The stream is new, so there is room; the waker is left by the next write, if not.
        let said = to.say(&Context::from_waker(std::task::Waker::noop()));
        if self.shut && said.is_ready() {
            to.half = None;
        }
        self.stream = Some(to);
    }

    /// What a child of `fork` has of it, before it has moved.
    pub(crate) const fn in_child(&self) -> Self {
        Self {
            sent: self.sent,
            stream: None,
            shut: self.shut,
        }
    }

    pub(crate) const fn has_moved(&self) -> bool {
        self.stream.is_some()
    }

    /// Sends what there is room for. If there is none, and it goes by the stream, the waker is called when there is.
    pub(crate) fn write(
        &mut self,
        fd: RawFd,
        context: &Context<'_>,
        bytes: &[u8],
        flags: i32,
    ) -> Poll<io::Result<usize>> {
        let Some(stream) = &mut self.stream else {
            let sent = to_tcp(fd, bytes, flags);
            if let Poll::Ready(Ok(count)) = sent {
                self.sent += count as u64;
            }
            return sent;
        };
        match stream.say(context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
        match &mut stream.half {
            Some(half) => half.poll_write(context, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Whether the stream takes bytes. Nothing if the connection has not moved.
    pub(crate) fn writable(&mut self, context: &Context<'_>) -> Option<Poll<io::Result<()>>> {
        let stream = self.stream.as_mut()?;
        Some(match stream.say(context) {
            Poll::Ready(Ok(())) => match &mut stream.half {
                Some(half) => half.poll_writable(context),
                None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            },
            other => other,
        })
    }

    /// The program sends no more.
    pub(crate) fn shut(&mut self) {
        self.shut = true;
        if let Some(stream) = &mut self.stream {
            // Dropped, it ends behind what was written.
            stream.half = None;
        }
    }
}

impl To {
    /// Says how many bytes have gone over TCP, before the first byte of the program.
    fn say(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        while let Some(half) = &mut self.half
            && self.said < Word::BYTES
        {
            match half.poll_write(context, &self.word.as_bytes()[self.said..]) {
                Poll::Ready(Ok(count)) => self.said += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }
}
