//! A connection goes back to TCP, since a parent and its child go on with it: the stream is of one process, and TCP's socket of both.
//!
//! A child asks its parent at its first call ([`Socket::ask_parent`]). The parent asks the other end ([`Socket::give_back`]), which does the
//! same with its direction at its own next call ([`Socket::go_on_back`]).

use std::io::{self, Error};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use netvm_net::Stream;
use zerocopy::{FromBytes, IntoBytes};

use super::{Before, Phase, Socket};
use crate::greeting::{Back, Nonce};
use crate::process::process;
use crate::reading::TO_ITS_END;
use crate::rest::Rest;
use crate::wait::{Patience, until};

/// How long a parent waits for the other end, whose program may be busy with something else.
const PATIENCE: Duration = Duration::from_secs(30);

/// A stream on which the two ends say that the connection goes back: one message each way.
pub(super) struct Talk {
    stream: Stream,
    /// How many bytes come from the other end by the connection's stream, at the end that was asked.
    bytes: u64,
    says: Option<Back>,
    said: usize,
    hears: [u8; Back::BYTES],
    heard: usize,
}

impl Talk {
    const fn new(stream: Stream, bytes: u64) -> Self {
        Self {
            stream,
            bytes,
            says: None,
            said: 0,
            hears: [0; Back::BYTES],
            heard: 0,
        }
    }

    /// Says what there is to say.
    fn say(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let Some(says) = &self.says else {
            return Poll::Ready(Ok(()));
        };
        while self.said < Back::BYTES {
            self.said += ready!(self.stream.poll_write(context, &says.as_bytes()[self.said..]))?;
        }
        Poll::Ready(Ok(()))
    }

    /// What the other end says. Nothing: the connection is closed there, or the process has ended.
    fn hear(&mut self, context: &Context<'_>) -> Poll<Option<Back>> {
        while self.heard < Back::BYTES {
            match ready!(self.stream.poll_read(context, &mut self.hears[self.heard..])) {
                Ok(0) | Err(_) => return Poll::Ready(None),
                Ok(count) => self.heard += count,
            }
        }
        Poll::Ready(Back::read_from_bytes(&self.hears).ok())
    }
}

impl Socket {
    /// What becomes of it in a child of `fork`. Nothing: it stays with TCP. No lock is waited for: a thread may have it that the child
    /// does not have.
    pub(crate) fn in_child(&self) -> Option<Arc<Self>> {
        let before = self.before.try_lock();
        let writing = self.writing.try_lock();
        let phase = match self.phase() {
            Phase::Plain => return None,
            Phase::Accepted if before.is_some() && writing.is_some() => Phase::Accepted,
            _ => Phase::Lost,
        };
        let child = Self::new(self.end, phase, self.is_nonblocking());
        if let Some(writing) = writing {
            *child.writing.lock() = writing.in_child();
        }
        if let Some(before) = before {
            child.before.lock().nonce = before.nonce;
        }
        Some(child)
    }

    /// Whether a child of `fork` has to ask for it.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(self.phase(), Phase::Plain | Phase::Accepted)
    }

    /// Which connection it is.
    pub(crate) fn nonce(&self) -> Nonce {
        self.before.lock().nonce
    }

    /// A child asks its parent for a connection, once. The call that needs it waits as long as that takes.
    pub(super) fn ask_parent(&self, fd: RawFd) -> Phase {
        let mut before = self.before.lock();
        if self.phase() == Phase::Lost && !before.asked {
            before.asked = true;
            match process().parent.ask(before.nonce, fd, PATIENCE) {
                Ok(rest) => {
                    self.reading.lock().give_rest(rest.map(Arc::new));
                    self.set_phase(Phase::Returning);
                }
                Err(why) => process().network.tell_lost(&why),
            }
        }
        self.phase()
    }

    /// The other end goes back, and waits for an answer. Called on any thread: the program's next call gives it.
    pub(crate) fn is_asked_back(&self, stream: Stream, bytes: u64) {
        *self.asking.lock() = Some(Talk::new(stream, bytes));
        self.is_asking.store(true, Ordering::Release);
        self.watchers.tell();
    }

    /// Goes on with a connection that goes back, or is to.
    pub(super) fn go_on_back(&self, fd: RawFd) -> Phase {
        if self.is_asking.swap(false, Ordering::AcqRel) {
            self.answer(fd, &mut self.before.lock());
            // What they wait for comes in another way from now on.
            self.watchers.tell();
        }
        if self.phase() == Phase::Returning && self.reading.lock().is_back(&self.context()) {
            self.writing.lock().let_go();
            self.set_phase(Phase::Plain);
        }
        self.phase()
    }

    fn answer(&self, fd: RawFd, before: &mut Before) {
        let Some(mut talk) = self.asking.lock().take() else {
            return;
        };
        // If the connection's stream is broken, the other end finds that out, too. If the one to talk on is, it has ended.
        if self.talk(fd, before, &mut talk).is_pending() {
            *self.asking.lock() = Some(talk);
            self.is_asking.store(true, Ordering::Release);
        }
    }

    fn talk(&self, fd: RawFd, before: &mut Before, talk: &mut Talk) -> Poll<io::Result<()>> {
        if talk.says.is_none() {
            let sent = ready!(self.leave_stream(fd, before))?;
            self.reading.lock().go_back(fd, talk.bytes, true);
            talk.says = Some(Back::new(before.nonce, self.end.other(), sent));
        }
        talk.say(&self.context())
    }

    /// Writes no more to the stream. How many bytes have gone there.
    fn leave_stream(&self, fd: RawFd, _: &mut Before) -> Poll<io::Result<u64>> {
        let sent = ready!(self.writing.lock().go_back(fd, &self.context()))?;
        if self.phase() == Phase::Moved {
            self.set_phase(Phase::Returning);
            process().network.count_returned();
        }
        Poll::Ready(Ok(sent))
    }

    /// Goes back to TCP, so that a child can go on with the connection, and what came by the stream and was not read. `fd`: a descriptor of its
    /// socket, the child's.
    ///
    /// # Errors
    /// The other end cannot be asked, or does not answer in time.
    pub(crate) fn give_back(&self, fd: RawFd) -> io::Result<Option<Arc<Rest>>> {
        let patience = Patience::span(Some(PATIENCE));
        let late = |error: Error| match error.raw_os_error() {
            Some(libc::EAGAIN) => Error::other("the other end does not call"),
            _ => error,
        };
        let phase = until(self, fd, 0, patience, || self.come_to_rest(fd)).map_err(late)?;
        if phase == Phase::Moved {
            self.ask_other_end(fd, patience).map_err(late)?;
        }
        let context = self.context();
        let drained = until(self, fd, libc::POLLIN | libc::POLLRDHUP, patience, || {
            self.reading.lock().drain(fd, &context)
        });
        self.watchers.tell();
        drained.map_err(late)?;
        Ok(self.reading.lock().rest())
    }

    /// Whether it has moved or not is known.
    fn come_to_rest(&self, fd: RawFd) -> Poll<io::Result<Phase>> {
        match self.advance(fd) {
            Phase::Lost => Poll::Ready(Err(super::lost())),
            phase @ (Phase::Plain | Phase::Moved | Phase::Returning) => Poll::Ready(Ok(phase)),
            Phase::Greeting => {
                let before = self.before.lock();
                // The other end knows nothing yet of a connection whose hello has not left.
                if self.phase() == Phase::Greeting && before.hello.is_some() {
                    self.set_phase(Phase::Plain);
                    return Poll::Ready(Ok(Phase::Plain));
                }
                Poll::Pending
            }
            Phase::Accepted | Phase::Opening => Poll::Pending,
        }
    }

    fn ask_other_end(&self, fd: RawFd, patience: Patience) -> io::Result<()> {
        let (network, context) = (&process().network, self.context());
        let (peer, nonce) = {
            let before = self.before.lock();
            (before.peer, before.nonce)
        };
        let (Some(open), Some(peer)) = (network.known(), peer) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let mut talk = Talk::new(open.begin_back(peer)?, 0);
        let connected = until(self, fd, 0, patience, || {
            // Meanwhile the other end may ask the same.
            self.advance(fd);
            open.net.poll_connected(&talk.stream, &mut self.context())
        });
        match connected.as_ref().map_err(Error::kind) {
            // It has the library of before.
            Err(io::ErrorKind::ConnectionRefused) => return connected,
            Err(_) if patience.is_over() => return connected,
            // If it is gone its stream says so, behind what it has sent.
            _ => {}
        }
        let sent = until(self, fd, 0, patience, || {
            self.leave_stream(fd, &mut self.before.lock())
        })?;
        self.watchers.tell();
        talk.says = Some(Back::new(nonce, self.end.other(), sent));
        let answer = until(self, fd, 0, patience, || {
            self.advance(fd);
            match talk.say(&context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Err(_)) => Poll::Ready(Ok(None)),
                Poll::Ready(Ok(())) => talk.hear(&context).map(Ok),
            }
        })?;
        let until = answer.map_or(TO_ITS_END, |back| back.sent.get());
        self.reading.lock().go_back(fd, until, false);
        self.writing.lock().let_go();
        Ok(())
    }
}
