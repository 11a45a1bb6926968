//! What a connection sends: over TCP, from then on by its stream, and over TCP again if it goes back.

use std::io::{self, Error};
use std::os::fd::RawFd;
use std::task::{Context, Poll, ready};

use netvm_net::Writer;
use zerocopy::IntoBytes;

use crate::greeting::{Nonce, Word};
use crate::{errno, real};

/// The writing half.
pub(crate) struct Writing {
    /// Bytes of the program that went over TCP before the stream.
    sent: u64,
    stream: Option<To>,
    /// Bytes of the program that went by the stream.
    by_stream: u64,
    /// The stream of a connection that has gone back. Its end would be the connection's for an other end that does not know of that.
    left: Option<Writer>,
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
            by_stream: 0,
            left: None,
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
            by_stream: 0,
            left: None,
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
        let Some(half) = &mut stream.half else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let sent = half.poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = sent {
            self.by_stream += count as u64;
        }
        sent
    }

    /// What is written from now on goes over TCP again. How many bytes have gone by the stream.
    pub(crate) fn go_back(&mut self, fd: RawFd, context: &Context<'_>) -> Poll<io::Result<u64>> {
        if let Some(stream) = &mut self.stream {
            // The other end has to know what came before.
            ready!(stream.say(context))?;
            self.left = stream.half.take();
            self.stream = None;
            if self.shut {
                // SAFETY: it takes numbers.
                unsafe { real::shutdown(fd, libc::SHUT_WR) };
            }
        }
        Poll::Ready(Ok(self.by_stream))
    }

    /// The other end knows that the connection has gone back.
    pub(crate) fn let_go(&mut self) {
        self.left = None;
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
