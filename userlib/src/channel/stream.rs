//! A channel as a stream of bytes, for code that knows `std::io`.
//!
//! Messages become bytes and lose their borders. Each write is a message, or several: small writes want a
//! [`BufWriter`](std::io::BufWriter) around this.

use super::{Receiver, Sender};
use crate::error::{Error, Result};
use crate::timeout::Timeout;
use std::io;

/// The sending end as a [`Write`](io::Write). From [`Sender::into_writer`].
#[derive(Debug)]
pub struct ChannelWriter {
    sender: Sender,
    timeout: Timeout,
}

impl ChannelWriter {
    pub(super) const fn new(sender: Sender, timeout: Timeout) -> Self {
        Self { sender, timeout }
    }

    /// The channel.
    pub fn into_inner(self) -> Sender {
        self.sender
    }

    /// As [`Sender::close`]. Merely dropped, it does not wait.
    ///
    /// # Errors
    /// As [`Sender::close`].
    pub fn close(self) -> Result<()> {
        self.sender.close()
    }
}

impl io::Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = usize::try_from(self.sender.message_bytes()).unwrap_or(usize::MAX);
        let now = bytes.get(..bytes.len().min(most)).unwrap_or_default();
        if now.is_empty() {
            // A channel for empty messages carries no bytes: `write_all` says so.
            return Ok(0);
        }
        self.sender.send(now, self.timeout)?;
        Ok(now.len())
    }

    /// Waits until everything has landed.
    fn flush(&mut self) -> io::Result<()> {
        Ok(self.sender.flush()?)
    }
}

/// The receiving end as a [`Read`](io::Read): ends when the sender has left. From [`Receiver::into_reader`].
#[derive(Debug)]
pub struct ChannelReader {
    receiver: Receiver,
    timeout: Timeout,
    /// What is left of the message that is borrowed: from where on, to where.
    rest: (u64, u64),
}

impl ChannelReader {
    pub(super) const fn new(receiver: Receiver, timeout: Timeout) -> Self {
        Self {
            receiver,
            timeout,
            rest: (0, 0),
        }
    }

    /// The channel. What is left of a message that was read in part is lost.
    pub fn into_inner(self) -> Receiver {
        self.receiver
    }
}

impl ChannelReader {
    #[cfg(feature = "tokio")]
    pub(super) const fn receiver_mut(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// Reads what is there of one message. 0: the sender has left.
    pub(super) fn read_some(&mut self, into: &mut [u8]) -> Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while self.rest.0 == self.rest.1 {
            match self.receiver.take(self.timeout) {
                Ok(len) => self.rest = (0, len),
                Err(Error::ChannelClosed) => return Ok(0),
                Err(error) => return Err(error),
            }
        }
        let (from, to) = self.rest;
        let now = into.len().min(usize::try_from(to - from).unwrap_or(usize::MAX));
        if let Some(into) = into.get_mut(..now) {
            self.receiver.borrowed(to).read_into(from, into)?;
        }
        self.rest.0 += now as u64;
        if self.rest.0 == to {
            // Not kept until the next read, which may be long off. These bytes have been read, so an error is the
            // next read's.
            if let Err(error) = self.receiver.free() {
                self.receiver.say_later(error);
            }
        }
        Ok(now)
    }
}

impl io::Read for ChannelReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_some(into)?)
    }
}
