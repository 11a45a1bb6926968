//! An endpoint: a port that calls, and is called.

use crate::argument::Argument;
use crate::config::CallsConfig;
use crate::connect::link_of;
use crate::context::Buffer;
use crate::core::{CallFailure, CallsStats, Core};
use crate::error::{End, Error, Result};
use crate::function::{BufferFunction, Function, Id};
use crate::group::{Group, Groups};
use crate::layout::{encode_table, page};
use crate::link::{Address, Peer, Phase};
use crate::notice::{Reply, Synchronizer};
use crate::receive::Caller;
use crate::record::{Audience, Body, Where, status};
use crate::registry::Registry;
use crate::to::To;
use netvm::{Nanos, NodeId, Port, SharedReceiver, Timeout};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

/// How often a farewell is said, where it was held back.
const FAREWELLS: u32 = 64;
/// How long an endpoint that leaves waits until its last words have landed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// An endpoint: calls functions of others, and runs those that others call. It belongs to one thread, as its port does; a
/// program with several threads opens a port and an endpoint for each.
///
/// Everything happens in its own calls: functions run, answers come and batches leave in [`progress`](Self::progress), in
/// calls that wait, and where a call finds no room. Dropping it says farewell on every link.
pub struct Calls {
    registry: Registry,
    core: Core,
}

impl Calls {
    /// Makes an endpoint of a port, under a name that its peers use, too. The port should do nothing else that can fail
    /// without waiting for it: its failures are heard here.
    ///
    /// # Errors
    /// [`Error::Configuration`]; the library's, as [`SharedReceiver::open`].
    pub fn open(port: Port, name: &str, registry: Registry, config: CallsConfig) -> Result<Self> {
        config.check()?;
        let door = SharedReceiver::open(&port, name, config.door.clone())?;
        let table = encode_table(registry.ids());
        let core = Core {
            queue: port.notifications(),
            config,
            slots: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            unsent: Vec::new(),
            door,
            name: name.to_owned(),
            table,
            last_serial: 0,
            failures: VecDeque::new(),
            accepted: VecDeque::new(),
            ended: VecDeque::new(),
            groups: Groups::default(),
            stats: CallsStats::default(),
            next_tick: Nanos(0),
            in_function: false,
            scratch: Vec::new(),
            port,
        };
        Ok(Self { registry, core })
    }

    /// Its port, to allocate, export and import with. A failed write or read of the program's own holds signals back, until
    /// the endpoint has heard of it; wait for such operations ([`netvm::Write::begin`], [`netvm::Port::flush_remote`]).
    pub const fn port(&self) -> &Port {
        &self.core.port
    }

    /// Where it is.
    #[must_use]
    pub fn here(&self) -> Address {
        self.core.here()
    }

    /// What it has done.
    #[must_use]
    pub const fn stats(&self) -> CallsStats {
        self.core.stats
    }

    /// Makes a link to the endpoint of the same name there, and waits until it is up. The other endpoint has to make
    /// progress meanwhile.
    ///
    /// # Errors
    /// [`Error::NotCalls`], [`Error::TooManyLinks`], [`Error::Ended`] when the other side does not answer in time; the
    /// library's.
    pub fn connect(&mut self, to: Address) -> Result<Peer> {
        let peer = self.begin_connect(to)?;
        let waited = self.wait_until(Timeout::Never, |core| match core.find(peer) {
            Ok(at) => core.link(at).is_none_or(|link| link.is_ready()),
            Err(_) => true,
        });
        waited?;
        match self.core.find(peer) {
            Ok(_) => Ok(peer),
            Err(Error::Ended(End::Foreign(why))) => Err(Error::NotCalls {
                node: to.node,
                port: to.port,
                why,
            }),
            Err(error) => Err(error),
        }
    }

    /// As [`connect`](Self::connect), and does not wait until it is up: calls are queued until then.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), as far as that is known.
    pub fn begin_connect(&mut self, to: Address) -> Result<Peer> {
        let at = self.core.open(to)?;
        Ok(self.core.peer(at))
    }

    /// A link to an endpoint, if there is one: made here, or there.
    #[must_use]
    pub fn link_to(&self, to: Address) -> Option<Peer> {
        self.core.link_to(to)
    }

    /// Where a link leads.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn address_of(&self, peer: Peer) -> Result<Address> {
        let at = self.core.find(peer)?;
        let link = self.core.slots.get(at).and_then(|slot| slot.link.as_ref());
        link.map(|link| link.to).ok_or(Error::Ended(End::Closed))
    }

    /// The next link that another endpoint has made.
    pub fn take_accepted(&mut self) -> Option<Peer> {
        self.core.accepted.pop_front()
    }

    /// The next link that has ended, and why.
    pub fn take_ended(&mut self) -> Option<(Peer, End)> {
        self.core.ended.pop_front()
    }

    /// The next call that has failed and that no [`Reply`] waits for.
    pub fn take_failure(&mut self) -> Option<CallFailure> {
        self.core.failures.pop_front()
    }

    /// Calls over a link.
    #[inline]
    pub const fn to(&mut self, peer: Peer) -> To<'_> {
        To::new(&mut self.core, Some(&mut self.registry), peer)
    }

    /// Calls a function: [`To::call`] without counters.
    ///
    /// # Errors
    /// As [`To::call`].
    #[inline]
    pub fn call<A: Argument, R: Argument>(
        &mut self,
        peer: Peer,
        function: &Function<A, R>,
        argument: &A,
    ) -> Result<()> {
        self.to(peer).call(function, argument)
    }

    /// Calls a function and waits for its result.
    ///
    /// # Errors
    /// As [`To::call_return`]; [`Error::Failed`]; [`Error::TimedOut`].
    pub fn ask<A: Argument, R: Argument>(
        &mut self,
        peer: Peer,
        function: &Function<A, R>,
        argument: &A,
        timeout: impl Into<Timeout>,
    ) -> Result<R> {
        let mut reply = self.to(peer).call_return(function, argument)?;
        self.wait(&mut reply, timeout)
    }

    /// Does what there is to do, and does not wait for more: runs functions, takes answers, sends what is due, looks after
    /// links. Whether there was something.
    ///
    /// # Errors
    /// The library's, when the port has ended.
    pub fn progress(&mut self) -> Result<bool> {
        progress(&mut self.core, &mut self.registry)
    }

    /// Sends all that is packed or queued, as far as there is room.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub fn flush(&mut self) -> Result<()> {
        self.core.flush_due(true)
    }

    /// Makes progress for so long, or until something has come.
    ///
    /// # Errors
    /// As [`progress`](Self::progress); [`Error::TimedOut`] when nothing has come.
    pub fn serve(&mut self, timeout: impl Into<Timeout>) -> Result<()> {
        let seen = (
            self.core.stats.received,
            self.core.accepted.len(),
            self.core.ended.len(),
        );
        self.wait_until(timeout, |core| {
            (core.stats.received, core.accepted.len(), core.ended.len()) != seen
        })
    }

    /// Waits for a result, and makes progress meanwhile.
    ///
    /// # Errors
    /// [`Error::Failed`]; [`Error::TimedOut`]: it may still come.
    pub fn wait<R: Argument>(&mut self, reply: &mut Reply<R>, timeout: impl Into<Timeout>) -> Result<R> {
        self.wait_until(timeout, |_| reply.is_ready())?;
        reply.take()
    }

    /// Waits until all calls that a counter was given to have got as far as asked, and makes progress meanwhile. How many of
    /// them have failed: [`Synchronizer::failed`].
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn wait_for(&mut self, counter: &Synchronizer, timeout: impl Into<Timeout>) -> Result<()> {
        self.wait_until(timeout, |_| counter.is_done())
    }

    /// Makes progress until something holds that functions bring about.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn run_until(&mut self, timeout: impl Into<Timeout>, mut holds: impl FnMut() -> bool) -> Result<()> {
        self.wait_until(timeout, |_| holds())
    }

    fn wait_until(
        &mut self,
        timeout: impl Into<Timeout>,
        holds: impl FnMut(&mut Core) -> bool,
    ) -> Result<()> {
        wait_until(&mut self.core, &mut self.registry, timeout.into(), holds)
    }

    /// Joins a group: the same name and members at each of them. Its links are made as broadcasts need them.
    ///
    /// # Errors
    /// [`Error::NoGroup`] if this endpoint is none of the members.
    pub fn join(&mut self, name: &str, members: &[Address]) -> Result<Group> {
        self.core.join(name, members)
    }

    /// Calls a function at every member of a group, at this one first: by a tree over nodes, then a loop over the members of
    /// each. The counter is done when all have run it.
    ///
    /// # Errors
    /// [`Error::NoGroup`]; [`Error::Unknown`] if this endpoint does not offer the function itself.
    pub fn broadcast<A: Argument, R: Argument>(
        &mut self,
        group: Group,
        function: &Function<A, R>,
        argument: &A,
        counter: Option<&Synchronizer>,
    ) -> Result<()> {
        self.spread(group, (function.id(), function.name()), argument, None, counter)
    }

    /// As [`broadcast`](Self::broadcast), with a buffer that goes with the calls.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn broadcast_buffer<A: Argument, R: Argument>(
        &mut self,
        group: Group,
        function: &BufferFunction<A, R>,
        argument: &A,
        buffer: &[u8],
        counter: Option<&Synchronizer>,
    ) -> Result<()> {
        self.spread(
            group,
            (function.id(), function.name()),
            argument,
            Some(buffer),
            counter,
        )
    }

    fn spread<A: Argument>(
        &mut self,
        group: Group,
        function: (Id, &'static str),
        argument: &A,
        buffer: Option<&[u8]>,
        counter: Option<&Synchronizer>,
    ) -> Result<()> {
        let Address { node, port } = self.here();
        let name = function.1;
        let slot = self
            .registry
            .slot(function.0)
            .ok_or(Error::Unknown { name, node, port })?;
        let mut bytes = Vec::new();
        argument.put(&mut bytes);
        let body = Body {
            audience: Some(Audience {
                group: group.id,
                root: 0,
            }),
            argument: &bytes,
            buffer: buffer.map_or(Where::Nowhere, Where::Here),
        };
        let place = self.core.begin_broadcast(group, &body, function, counter)?;
        let caller = Caller {
            at: usize::MAX,
            from: self.here(),
            number: 0,
        };
        let mut result = Vec::new();
        let buffer = buffer.map(Buffer::Bytes);
        let ended = self
            .core
            .invoke(&mut self.registry, slot, caller, &bytes, buffer, &mut result);
        self.core.passed(place, u64::from(ended != status::DONE));
        Ok(())
    }

    /// Ends a link: waits until all that was called over it has left, and says farewell.
    ///
    /// # Errors
    /// [`Error::Ended`] if it had; [`Error::TimedOut`] when it does not get rid of its calls in time: it has ended all the
    /// same.
    pub fn close(&mut self, peer: Peer, timeout: impl Into<Timeout>) -> Result<()> {
        self.core.find(peer)?;
        let left = self.wait_until(timeout, |core| {
            let link = core.find(peer).ok().and_then(|at| core.link(at));
            link.is_none_or(|link| !link.out.has_unsent())
        });
        let at = self.core.find(peer)?;
        if left.is_ok() {
            self.core.part(&[at]);
        }
        self.core.end(at, End::Closed);
        left
    }
}

/// Does what there is to do.
pub(crate) fn progress(core: &mut Core, registry: &mut Registry) -> Result<bool> {
    let mut did = false;
    while let Some(id) = core.queue.pop() {
        note(core, id.0)?;
    }
    let dirty = std::mem::take(&mut core.dirty);
    let mut rest = dirty.iter();
    while let Some(&at) = rest.next() {
        match core.service(registry, at as usize) {
            Ok(some) => did |= some,
            Err(error) => {
                // What was not looked at is looked at by the next call.
                core.dirty.push(at);
                core.dirty.extend(rest);
                return Err(error);
            }
        }
    }
    core.tick()?;
    core.flush_due(false)?;
    Ok(did)
}

/// A notification has come.
fn note(core: &mut Core, id: u32) -> Result<()> {
    if id == core.door.notification().id().0 {
        return core.greet();
    }
    match link_of(id) {
        Some(index) if core.link(index as usize).is_some() => {
            if !core.dirty.contains(&index) {
                core.dirty.push(index);
            }
        }
        // The program's own, or of a link that has ended.
        _ => {
            if let Ok(notification) = core.port.notification(id) {
                notification.ack_up_to(u32::MAX)?;
            }
        }
    }
    Ok(())
}

/// Makes progress until something holds.
pub(crate) fn wait_until(
    core: &mut Core,
    registry: &mut Registry,
    timeout: Timeout,
    mut holds: impl FnMut(&mut Core) -> bool,
) -> Result<()> {
    if core.in_function {
        return Err(Error::InFunction);
    }
    let mut deadline = None;
    loop {
        let did = progress(core, registry)?;
        if holds(core) {
            return Ok(());
        }
        if did {
            continue;
        }
        // Nothing is gained by waiting for more to pack.
        core.flush_due(true)?;
        let now = core.port.now();
        let deadline = *deadline.get_or_insert_with(|| match timeout {
            Timeout::Now => now,
            Timeout::After(span) => Nanos(
                now.0
                    .saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
            ),
            Timeout::Never => Nanos(u64::MAX),
        });
        if now >= deadline {
            return Err(Error::TimedOut);
        }
        if !core.dirty.is_empty() {
            continue;
        }
        let until = deadline.min(core.next_tick);
        let span = Duration::from_nanos(until.0.saturating_sub(now.0));
        match core.queue.wait(span) {
            Ok(id) => note(core, id.0)?,
            Err(netvm::Error::TimedOut) => {}
            Err(error) => return Err(Error::Library(error)),
        }
    }
}

impl Core {
    /// Tells the other side that this was all.
    fn say_farewell(&mut self, at: usize) {
        let Some(link) = self.link(at) else { return };
        let Phase::Ready(remote) = &link.phase else { return };
        if link.broken.is_some() {
            return;
        }
        let (inbox, id) = (remote.inbox.clone(), remote.description.arrived + 1);
        let word = (link.out.writer.sent() + 1).to_le_bytes();
        // Ordered, and held back by a failure that nothing has heard of: so it says that all before it has landed.
        let _ = self.post(at, || {
            inbox.write(page::FAREWELL, &word).ordered().notify(id).post()
        });
    }

    /// Says farewell on these links, and waits until it has landed with all that was sent: their imports end, and would take it along.
    ///
    /// A farewell is held back behind a failure of another link to the same node, of one whose other side left earlier for example. That
    /// is heard of here, and it is said again.
    fn part(&mut self, links: &[usize]) {
        let mut by_node: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for &at in links {
            if let Some(link) = self.link(at) {
                by_node.entry(link.to.node.0).or_default().push(at);
            }
        }
        for (node, links) in by_node {
            for _ in 0..FAREWELLS {
                for &at in &links {
                    self.say_farewell(at);
                }
                let landed = self.port.flush_remote_for(NodeId(node), LAST_WORDS);
                if !landed.is_err_and(|error| self.heard(&error)) {
                    break;
                }
            }
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // Unwinding must not wait for room in the command queue; the others find out by themselves.
        if std::thread::panicking() {
            return;
        }
        let _ = self.core.flush_due(true);
        let links: Vec<_> = (0..self.core.slots.len())
            .filter(|&at| self.core.link(at).is_some_and(|link| link.is_ready()))
            .collect();
        self.core.part(&links);
        for at in 0..self.core.slots.len() {
            self.core.end(at, End::Closed);
        }
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls")
            .field("name", &self.core.name)
            .field("here", &self.here())
            .field("functions", &self.registry)
            .field("stats", &self.core.stats)
            .finish_non_exhaustive()
    }
}
