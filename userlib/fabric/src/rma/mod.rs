//! One-sided operations: `fi_rma(3)` and `fi_atomic(3)`, by the domain's port.
//!
//! A key is a name: the helper imports it at its first use, and the operation that came first is told to come again (`-FI_EAGAIN`).
//! A read ends when its bytes are here. A write ends when it has landed, at every completion level but `FI_INJECT_COMPLETE`: only
//! then is it known whether the other side has allowed it. One flush serves all writes to a node that were posted before.

mod keys;
mod op;
mod scratch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use netvm::{Error, Failure, NodeId, OpId, Pending, Status};
use parking_lot::Mutex;

use crate::domain::Domain;
use crate::ep::Endpoint;
use crate::fi::{Answer, Errno};
use crate::info::QUEUE;
use keys::Keys;
pub(crate) use keys::Target;
pub(crate) use op::{Op, What};
use scratch::Place;
pub(crate) use scratch::Scratch;

/// One-sided operations of a domain.
#[derive(Default)]
pub(crate) struct Rma {
    state: Mutex<State>,
    /// Operations that have not ended, so that nothing is locked where there are none.
    under_way: AtomicUsize,
}

#[derive(Default)]
struct State {
    keys: Keys,
    /// What is not posted to the end, or waits for its own answers, as it was begun.
    active: Vec<Op>,
    /// How many were begun.
    begun: u64,
    /// Writes that were posted, by node.
    landing: HashMap<NodeId, Landing>,
    /// Places of operations that have failed, which the card may still read, and how many had been begun by then.
    leaving: Vec<(u64, Place)>,
    /// What waits until its key was looked up anew.
    anew: Vec<(Target, Op)>,
    /// An atomic with an order has failed, and answers to others are to come. Its key names other memory by now, perhaps: then it begins anew,
    /// and none that was begun after it may be posted before.
    amiss: bool,
}

/// Writes to a node that were posted.
#[derive(Default)]
struct Landing {
    waiting: Vec<Op>,
    flushing: Option<(Pending, Vec<Op>)>,
}

impl Landing {
    fn ops(&mut self) -> impl Iterator<Item = &mut Op> {
        let flushing = self.flushing.iter_mut().flat_map(|(_, ops)| ops.iter_mut());
        self.waiting.iter_mut().chain(flushing)
    }
}

/// What libfabric says to an error of the library.
pub(crate) const fn errno_of(error: &Error) -> Errno {
    match error {
        Error::OutOfRange { .. } | Error::ModeRefused { .. } => Errno::ACCES,
        Error::Misaligned { .. } => Errno::INVAL,
        Error::NoRoom { .. } => Errno::AGAIN,
        Error::TimedOut => Errno::TIMEDOUT,
        other => match other.status() {
            Some(status) => errno_of_status(status),
            None => Errno::IO,
        },
    }
}

/// What libfabric says to a status.
pub(crate) const fn errno_of_status(status: Status) -> Errno {
    match status {
        Status::Ok => Errno(0),
        Status::CapabilityRefused
        | Status::Revoked
        | Status::Expired
        | Status::NoSuchExport
        | Status::NoSuchPort => Errno::KEYREJECTED,
        Status::OutOfRange | Status::ModeRefused | Status::NotAllowed | Status::ReadOnly => Errno::ACCES,
        Status::Unmapped | Status::BusError | Status::LocalAddress => Errno::FAULT,
        Status::LinkLost | Status::StaleIncarnation | Status::CardGone => Errno::CONNRESET,
        Status::NoSuchNode => Errno::HOSTUNREACH,
        Status::NoMemory | Status::TableFull | Status::QueueFull | Status::NoPlace => Errno::NOMEM,
        Status::TimedOut => Errno::TIMEDOUT,
        Status::Unsupported => Errno::OPNOTSUPP,
        _ => Errno::IO,
    }
}

impl Rma {
    /// Whether operations are under way.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// Begins an operation on what a key names at an endpoint's domain.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: there is no room, or the key has to be imported first.
    pub(crate) fn begin(&self, domain: &Arc<Domain>, target: &Target, make: impl FnOnce() -> Op) -> Answer {
        let mut state = self.state.lock();
        // What waits for the same key goes first.
        state.look_up_anew(domain, &self.under_way);
        if self.under_way.load(Ordering::Relaxed) >= QUEUE {
            state.progress(domain, &self.under_way);
            if self.under_way.load(Ordering::Relaxed) >= QUEUE {
                return Err(Errno::AGAIN);
            }
        }
        let segment = state.keys.find(domain, target)?;
        let mut op = make();
        state.begun += 1;
        op.name(*target, state.begun);
        match segment {
            Ok(aim) => op.aim(aim),
            // The operation was taken, and fails.
            Err(errno) => op.fail(errno, Status::Ok),
        }
        self.under_way.fetch_add(1, Ordering::AcqRel);
        state.active.push(op);
        state.progress(domain, &self.under_way);
        Ok(())
    }

    /// Does what is to be done.
    pub(crate) fn progress(&self, domain: &Arc<Domain>) {
        // Another thread that is at it does it.
        if let Some(mut state) = self.state.try_lock() {
            state.progress(domain, &self.under_way);
        }
    }

    /// What the helper has found out about a key.
    fn imported(&self, target: &Target, found: Answer<netvm::RemoteSegment>) {
        self.state.lock().keys.imported(target, found);
    }

    /// An endpoint closes: its operations go on, and their ends are not told.
    pub(crate) fn forget(&self, endpoint: &Arc<Endpoint>) {
        let mut state = self.state.lock();
        let gone = Arc::as_ptr(endpoint);
        let State {
            active,
            landing,
            anew,
            ..
        } = &mut *state;
        for op in active
            .iter_mut()
            .chain(landing.values_mut().flat_map(Landing::ops))
            .chain(anew.iter_mut().map(|(_, op)| op))
        {
            if op.endpoint.as_ptr() == gone {
                op.endpoint = Weak::new();
            }
        }
    }

    /// Lets go of everything.
    pub(crate) fn clear(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        drop(state);
    }
}

impl State {
    fn progress(&mut self, domain: &Arc<Domain>, under_way: &AtomicUsize) {
        self.look_up_anew(domain, under_way);
        self.amiss &= self.active.iter().any(Op::awaits_answers);
        let mut at = 0;
        let mut of_others: Vec<Error> = Vec::new();
        // One of these does not pass another one that is not posted to the end, or that waits for its key.
        let waiting = self.anew.iter().map(|(_, op)| op).filter(|op| op.is_ordered());
        let first_waiting = waiting.map(Op::number).min().unwrap_or(u64::MAX);
        let mut may_post_ordered = !self.amiss;
        while let Some(op) = self.active.get_mut(at) {
            // It would only be refused.
            if op.is_new() && self.keys.is_gone(op.import()) {
                let op = self.active.remove(at);
                may_post_ordered &= !op.is_ordered();
                self.wait_for_key(op);
                continue;
            }
            let waits = op.is_ordered() && (!may_post_ordered || op.number() > first_waiting);
            if op.is_whole() || waits || op.post(domain, &mut of_others) {
                let has_ended = op.has_ended(domain);
                if op.is_ordered() {
                    self.amiss |= op.has_failed();
                    may_post_ordered &= op.is_whole() && !op.has_failed();
                }
                if !has_ended {
                    at += 1;
                    continue;
                }
                let op = self.active.remove(at);
                match op.lands() {
                    Some(node) => self.landing.entry(node).or_default().waiting.push(op),
                    None => self.end(domain, op, under_way),
                }
            } else {
                // No room: what is behind it waits, too, so that it is not passed for ever.
                break;
            }
        }
        for error in of_others {
            self.told_of_others(&error);
        }
        self.flush(domain, under_way);
    }

    /// An operation waits until its key was looked up anew.
    fn wait_for_key(&mut self, op: Op) {
        if let Some(target) = op.target() {
            self.anew.push((target, op));
        }
    }

    /// Aims what waits for its key.
    fn look_up_anew(&mut self, domain: &Arc<Domain>, under_way: &AtomicUsize) {
        for (target, mut op) in std::mem::take(&mut self.anew) {
            match self.keys.find(domain, &target) {
                Err(_) => self.anew.push((target, op)),
                Ok(Ok(aim)) => {
                    op.aim(aim);
                    let place = self.active.partition_point(|other| other.number() < op.number());
                    self.active.insert(place, op);
                }
                Ok(Err(errno)) => {
                    op.fail(errno, Status::Ok);
                    self.end(domain, op, under_way);
                }
            }
        }
    }

    /// A call was told of operations of the port that it was not about.
    fn told_of_others(&mut self, error: &Error) {
        match error {
            Error::Failed(failure) => {
                self.blame(failure);
            }
            _ => self.doubt_all(),
        }
    }

    /// More has failed than the card had room to tell of: each write that has not landed may be one of these.
    fn doubt_all(&mut self) {
        let landing = self.landing.values_mut().flat_map(Landing::ops);
        self.active.iter_mut().chain(landing).for_each(Op::doubt);
    }

    /// An operation of the port has failed, and a call that was about another one was told. Says whether it is under way.
    fn blame(&mut self, failure: &Failure) -> bool {
        let (mut found, mut gone) = (false, None);
        let landing = self.landing.get_mut(&failure.node);
        let ops = self
            .active
            .iter_mut()
            .chain(landing.into_iter().flat_map(Landing::ops));
        // With a link goes all that had not landed: one record stands for it.
        let with_all = op::is_of_a_link(failure.status);
        for op in ops {
            if op.is(failure.op) || (with_all && op.lands() == Some(failure.node)) {
                op.fail(errno_of_status(failure.status), failure.status);
                found = true;
                gone = op.import().filter(|_| op::is_stale(failure.status));
            } else if failure.others > 0 && op.lands() == Some(failure.node) {
                op.doubt();
            }
        }
        // What begins from now on looks it up.
        if let Some(gone) = gone {
            self.keys.forget(gone);
        }
        if !found {
            crate::log::trace(|| format!("one that had ended before: {failure}"));
        }
        found
    }

    /// One flush for all writes to a node that were posted.
    fn flush(&mut self, domain: &Arc<Domain>, under_way: &AtomicUsize) {
        let nodes: Vec<NodeId> = self.landing.keys().copied().collect();
        for node in nodes {
            let Some(landing) = self.landing.get_mut(&node) else {
                continue;
            };
            if let Some((flush, _)) = &mut landing.flushing {
                let Some(end) = flush.end() else { continue };
                if let Err(error) = end {
                    self.flush_failed(node, &error);
                }
                let ended = self
                    .landing
                    .get_mut(&node)
                    .and_then(|landing| landing.flushing.take());
                for op in ended.map(|(_, ops)| ops).unwrap_or_default() {
                    self.end(domain, op, under_way);
                }
            }
            let Some(landing) = self.landing.get_mut(&node) else {
                continue;
            };
            if landing.waiting.is_empty() {
                self.landing.remove(&node);
                continue;
            }
            match domain.memory.begin_flush_remote(node) {
                Ok(flush) => landing.flushing = Some((flush, std::mem::take(&mut landing.waiting))),
                Err(Error::NoRoom { .. }) => {}
                Err(error @ (Error::Failed(_) | Error::FailuresLost { .. })) => self.told_of_others(&error),
                Err(error) => {
                    let ops = std::mem::take(&mut landing.waiting);
                    for mut op in ops {
                        op.fail(errno_of(&error), Status::Ok);
                        self.end(domain, op, under_way);
                    }
                }
            }
        }
    }

    /// A flush says that something before it has failed, or has failed itself.
    fn flush_failed(&mut self, node: NodeId, error: &Error) {
        // A flush names one of what has failed. It may be a part of one that has begun anew since.
        let told = match error {
            Error::Failed(failure) => self.blame(failure),
            Error::FailuresLost { .. } => {
                self.doubt_all();
                true
            }
            _ => {
                let (errno, status) = (errno_of(error), error.status().unwrap_or(Status::Ok));
                self.flushed(node).for_each(|op| op.fail(errno, status));
                true
            }
        };
        if !told {
            self.flushed(node).for_each(Op::doubt);
        }
    }

    /// What the flush to a node is for.
    fn flushed(&mut self, node: NodeId) -> impl Iterator<Item = &mut Op> {
        let landing = self.landing.get_mut(&node);
        let flushing = landing.and_then(|landing| landing.flushing.as_mut());
        flushing.into_iter().flat_map(|(_, ops)| ops.iter_mut())
    }

    /// Gives back the places from which an operation that ends was written.
    fn give_places_back(&mut self, domain: &Domain, op: &mut Op) {
        let (places, landed) = op.take_sources();
        if !landed {
            let begun = self.begun;
            self.leaving
                .extend(places.into_iter().map(|place| (begun, place)));
            return;
        }
        places.into_iter().for_each(|place| domain.scratch.give(place));
        if op.is_new() {
            return;
        }
        // The card reads in the order of the port's commands: what was posted before one that has ended well has been read.
        let before = |(begun, _): &mut (u64, Place)| *begun < op.number();
        let read = self.leaving.extract_if(.., before);
        read.for_each(|(_, place)| domain.scratch.give(place));
    }

    fn end(&mut self, domain: &Domain, mut op: Op, under_way: &AtomicUsize) {
        self.give_places_back(domain, &mut op);
        let (import, is_gone) = (op.import(), op.key_is_gone());
        let anew = op.begin_anew();
        // Memory of another length has another key, too.
        if let Some(import) = import.filter(|_| is_gone || anew) {
            self.keys.forget(import);
        }
        if anew {
            self.wait_for_key(op);
            return;
        }
        op.tell();
        if under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.keys.forget_all_gone();
        }
    }
}

/// Numbers of the calls that an operation was posted by.
type Calls = Vec<OpId>;
