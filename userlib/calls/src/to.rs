//! Calls, as they are made.

use crate::argument::Argument;
use crate::config::WhenFull;
use crate::core::{Call, Core, PLAIN, Sending};
use crate::endpoint::wait_until;
use crate::error::{Error, Result};
use crate::function::{BufferFunction, Function, Id};
use crate::link::Peer;
use crate::notice::{Reply, Synchronizer, Waiter};
use crate::record::{Body, Where};
use crate::registry::Registry;
use netvm::{Export, OpId, RegionSlice, RemoteSegment, Timeout};
use std::ops::Range;

/// Bytes that go with a call, one of three ways.
#[derive(Debug)]
pub enum Payload<'a> {
    /// With the call, in one piece: for what fits a chunk.
    Inline(&'a [u8]),
    /// Written to where it belongs, in an export of the called endpoint's port, before the function runs. The call waits one
    /// round trip, so it cannot be made from a function.
    Write {
        /// The bytes.
        from: &'a [u8],
        /// Where they go: imported by the calling endpoint's port.
        to: &'a RemoteSegment,
        /// From this byte of it on.
        offset: u64,
    },
    /// The same from a region of the calling endpoint's port, from where it is.
    Transfer {
        /// The bytes.
        from: &'a RegionSlice,
        /// Where they go.
        to: &'a RemoteSegment,
        /// From this byte of it on.
        offset: u64,
    },
    /// Read by the called endpoint before the function runs: from an export of the calling endpoint's port, which the other
    /// may read, and which stays until the call is consumed.
    Read {
        /// The export.
        from: &'a Export,
        /// Which bytes of it.
        range: Range<u64>,
    },
}

/// Calls over a link: from [`Calls::to`](crate::Calls::to) or [`Context::to`](crate::Context::to).
#[must_use = "nothing is called yet"]
pub struct To<'c> {
    core: &'c mut Core,
    registry: Option<&'c mut Registry>,
    peer: Peer,
    consumed: Option<Synchronizer>,
    sent: Option<Synchronizer>,
    when_full: Option<WhenFull>,
}

impl<'c> To<'c> {
    pub(crate) const fn new(core: &'c mut Core, registry: Option<&'c mut Registry>, peer: Peer) -> Self {
        Self {
            core,
            registry,
            peer,
            consumed: None,
            sent: None,
            when_full: None,
        }
    }

    /// Counts down when the call has left: its place here may be used again. It has not arrived yet.
    pub fn sent(mut self, counter: &Synchronizer) -> Self {
        self.sent = Some(counter.clone());
        self
    }

    /// Counts down when the function has run.
    pub fn consumed(mut self, counter: &Synchronizer) -> Self {
        self.consumed = Some(counter.clone());
        self
    }

    /// What the call does for which there is no room, other than the endpoint's calls do.
    pub const fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = Some(when_full);
        self
    }

    /// Calls a function.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Signature`], [`Error::TooLong`], [`Error::Full`], [`Error::Ended`]; the library's, where
    /// the port has ended. The call was not made then (but one whose link ends while it waits for room may have been). What it fails with later is told by its counter and by
    /// [`Calls::take_failure`](crate::Calls::take_failure).
    #[inline]
    pub fn call<A: Argument, R: Argument>(mut self, function: &Function<A, R>, argument: &A) -> Result<()> {
        let waiter = self.consumed.take().map(Waiter::Consumed);
        self.make(function.id(), function.name(), PLAIN, waiter, |to| {
            argument.put(to)
        })
    }

    /// Calls a function, whose result comes back.
    ///
    /// # Errors
    /// As [`call`](Self::call); [`Error::Full`] also when too many calls of the link wait for a result.
    pub fn call_return<A: Argument, R: Argument>(
        self,
        function: &Function<A, R>,
        argument: &A,
    ) -> Result<Reply<R>> {
        let reply = Reply::new();
        let waiter = Some(Waiter::Reply(reply.cell.clone()));
        self.make(function.id(), function.name(), PLAIN, waiter, |to| {
            argument.put(to)
        })?;
        Ok(reply)
    }

    /// Calls a function with a buffer.
    ///
    /// # Errors
    /// As [`call`](Self::call); [`Error::InFunction`] for a buffer that is written first; the library's, when it cannot be
    /// written: then nothing is called.
    pub fn call_buffer<A: Argument, R: Argument>(
        mut self,
        function: &BufferFunction<A, R>,
        argument: &A,
        payload: Payload<'_>,
    ) -> Result<()> {
        let waiter = self.consumed.take().map(Waiter::Consumed);
        self.with_buffer(function.id(), function.name(), argument, payload, waiter)
    }

    /// As [`call_buffer`](Self::call_buffer), and its result comes back.
    ///
    /// # Errors
    /// As [`call_buffer`](Self::call_buffer) and [`call_return`](Self::call_return).
    pub fn call_buffer_return<A: Argument, R: Argument>(
        self,
        function: &BufferFunction<A, R>,
        argument: &A,
        payload: Payload<'_>,
    ) -> Result<Reply<R>> {
        let reply = Reply::new();
        let waiter = Some(Waiter::Reply(reply.cell.clone()));
        self.with_buffer(function.id(), function.name(), argument, payload, waiter)?;
        Ok(reply)
    }

    fn with_buffer<A: Argument>(
        mut self,
        id: Id,
        name: &'static str,
        argument: &A,
        payload: Payload<'_>,
        waiter: Option<Waiter>,
    ) -> Result<()> {
        let buffer = match &payload {
            Payload::Inline(bytes) => Where::Here(bytes),
            Payload::Write { from, to, offset } => {
                self.write(|| to.write(*offset, *from).post(), to)?;
                at(to, *offset, from.len() as u64)
            }
            Payload::Transfer { from, to, offset } => {
                self.write(|| to.write(*offset, *from).post(), to)?;
                at(to, *offset, from.len())
            }
            Payload::Read { from, range } => {
                let len = range.end.saturating_sub(range.start);
                if range.end > from.len() || range.start > range.end {
                    return Err(Error::Library(netvm::Error::OutOfRange {
                        offset: range.start,
                        len,
                        size: from.len(),
                    }));
                }
                Where::There {
                    offset: range.start,
                    len,
                    name: from.name(),
                }
            }
        };
        let body = Body { buffer, ..PLAIN };
        self.make(id, name, body, waiter, |to| argument.put(to))
    }

    /// Writes a buffer, and waits until it has landed: so what fails of it is this call's, and suppresses nothing else's.
    fn write(&mut self, post: impl Fn() -> netvm::Result<OpId>, to: &RemoteSegment) -> Result<()> {
        if self.registry.is_none() {
            return Err(Error::InFunction);
        }
        let at = self.core.find(self.peer)?;
        let link = self.core.link(at).map(|link| link.to);
        if link.is_none_or(|link| (link.node, link.port) != (to.node(), to.port())) {
            return Err(Error::Configuration(
                "a buffer that is written first goes to an export of the port that is called",
            ));
        }
        let op = loop {
            match post() {
                Ok(op) => break op,
                Err(error) if self.core.heard(&error) => {}
                Err(error) => return Err(Error::Library(error)),
            }
        };
        loop {
            match self.core.port.flush_remote(to.node()) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    let is_own = matches!(error, netvm::Error::Failed(failure) if failure.op == op);
                    if !self.core.heard(&error) || is_own {
                        return Err(Error::Library(error));
                    }
                }
            }
        }
    }

    #[inline]
    fn make(
        self,
        id: Id,
        name: &'static str,
        body: Body<'_>,
        waiter: Option<Waiter>,
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Result<()> {
        let at = self.core.find(self.peer)?;
        let when_full = self.when_full.unwrap_or(self.core.config.when_full);
        let call = Call {
            id,
            name,
            body,
            waiter,
            sent: self.sent,
            when_full,
        };
        let sending = self.core.call(at, call, put)?;
        match (sending, self.registry) {
            (Sending::Queued, Some(registry)) if when_full == WhenFull::Wait => {
                let peer = self.peer;
                let core = self.core;
                // A link that comes up keeps what it is given: there is no receiver yet that could be behind.
                wait_until(core, registry, Timeout::Never, |core| {
                    let link = core.find(peer).ok().and_then(|at| core.link(at));
                    link.is_none_or(|link| link.out.queue.is_empty() || !link.is_ready())
                })?;
                core.find(peer).map(drop)
            }
            _ => Ok(()),
        }
    }
}

fn at(to: &RemoteSegment, offset: u64, len: u64) -> Where<'static> {
    let address = to.address().0.wrapping_add(offset);
    Where::At { address, len }
}
