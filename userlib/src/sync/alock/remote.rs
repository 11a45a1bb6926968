//! The members that reach the lock through their NIC.
//!
//! All that a remote member changes elsewhere it changes by atomics, also where a plain write would do: an
//! atomic is answered with its own status, whatever became of other operations of the port, and
//! hears of no earlier failure. A swap whose old value is ignored *is* a write: it takes effect when the NIC stores the
//! word, or, if the value was there already, when the NIC read it. So it does no harm that processors store the victim
//! in between.

use super::super::OUT_OF_REACH;
use super::super::peers::look_by;
use super::super::rights::Rights;
use super::layout::{EXPORTED, LINE, MemberId, descriptor, lock};
use super::local::{Waiting, lost};
use super::machine::{Acquire, Class, NOBODY, Release, Step, WAITING};
use crate::atomic::PendingAtomic;
use crate::backend::Refusal;
use crate::error::{Error, Result};
use crate::export::Export;
use crate::import::{RemoteSegment, import};
use crate::notify::OwnNotification;
use crate::port::{Port, PortInner};
use crate::region::{Region, RegionSlice, Word64};
use crate::timeout::Timeout;
use netvm_abi::atomic::Atomic;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::Opcode;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::{Nanos, PAGE_SIZE, Status};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a sleeper waits for its notification before it looks around.
const SLEEP: Duration = Duration::from_millis(20);

/// What a remote leader sees of the lock.
#[derive(Clone, Copy, Debug)]
struct Line {
    remote_tail: u64,
    local_tail: u64,
    victim: u64,
}

/// A remote handle.
pub(super) struct Remote {
    port: Arc<PortInner>,
    lock: RemoteSegment,
    limit: u64,
    id: MemberId,
    /// The own descriptor's name; none once the handle cannot go on, so that others notice.
    segment: Option<Export>,
    number: OwnNotification,
    budget: Word64,
    next: Word64,
    memory: Region,
    /// Where the lock is read to.
    line: RegionSlice,
    /// Other members' descriptors, once they were needed; in an order of their own, because the end of an import is seen
    /// from outside.
    peers: BTreeMap<MemberId, RemoteSegment>,
    /// The member that was woken last.
    woken: Option<RemoteSegment>,
    /// The member before this one.
    predecessor: u64,
    /// A victim under way.
    yields: Option<PendingAtomic>,
    /// As the last look at the lock showed it.
    victim: u64,
    /// Why the handle cannot go on.
    stuck: Option<Error>,
    /// The lock may not know that it is lost.
    unheard: bool,
}

impl Remote {
    /// A handle of another node's lock, which it reads once: until the deadline.
    pub(super) fn new(port: &Port, lock: RemoteSegment, deadline: Nanos) -> Result<Self> {
        let inner = Arc::clone(&port.inner);
        let needed = Modes::READ | Modes::ATOMIC;
        if !lock.modes().contains(needed) {
            return Err(Error::ModeRefused {
                needed,
                granted: lock.modes(),
            });
        }
        let number = OwnNotification::take(&inner, None)?;
        let id = MemberId::new(
            inner.node_id(),
            port.id(),
            number.id(),
            inner.backend.generation(),
        );
        let memory = port.alloc(PAGE_SIZE.into())?;
        let wrong = Error::Import {
            node: lock.node(),
            port: lock.port(),
            name: lock.name().into(),
            reason: Refusal::Unsupported("what is exported under that name is no asymmetric lock"),
        };
        if lock.len() != EXPORTED {
            return Err(wrong);
        }
        let mut bytes = [0; (EXPORTED - lock::BUDGETS) as usize];
        look_by(&lock, lock::BUDGETS, &mut bytes, deadline)?;
        let (limit, rights) = match (bytes.first_chunk(), bytes.last_chunk()) {
            (Some(budgets), Some(list)) => (u64::from_le_bytes(*budgets) >> 32, Rights::from_bytes(list)),
            _ => return Err(wrong),
        };
        if limit == 0 {
            return Err(wrong);
        }
        let access = rights
            .members(Modes::ATOMIC, Modes::empty())
            .notify_own(number.id().0..=number.id().0);
        let segment = port.export(&id.name(), &memory, ..LINE, access)?;
        Ok(Self {
            port: inner,
            lock,
            limit,
            id,
            segment: Some(segment),
            number,
            budget: memory.word64(descriptor::BUDGET)?,
            next: memory.word64(descriptor::NEXT)?,
            line: memory.slice(LINE..2 * LINE)?,
            memory,
            peers: BTreeMap::new(),
            woken: None,
            predecessor: NOBODY,
            yields: None,
            victim: NOBODY,
            stuck: None,
            unheard: false,
        })
    }

    pub(super) const fn port(&self) -> &Arc<PortInner> {
        &self.port
    }

    /// The member that waits behind this one, once it has linked itself.
    pub(super) fn next(&self) -> Result<u64> {
        self.next.load()
    }

    pub(super) fn acquire(&mut self) -> Result<Release> {
        if let Some(error) = self.stuck {
            return Err(error);
        }
        self.port.alive()?;
        let mut machine = Acquire::new(Class::Remote, self.id.0, self.limit);
        let mut waiting = Waiting::default();
        super::run(&mut machine, |step| {
            self.carry_out(step, &mut waiting).map_err(|error| match step {
                // Not in the queue yet: the handle is as it was.
                Step::Reset | Step::SwapTail(_) if was_refused(&error) => error,
                _ => self.fail(error),
            })
        })
    }

    pub(super) fn release(&mut self, mut machine: Release) -> Result<()> {
        let mut waiting = Waiting::default();
        super::run(&mut machine, |step| self.carry_out(step, &mut waiting)).map_err(|error| self.fail(error))
    }

    pub(super) fn abandon(&mut self) -> Error {
        let error = self.lose(self.id);
        self.fail(error)
    }

    /// The handle cannot go on. It leaves, so that the members that depend on it notice. Gives the error to return.
    fn fail(&mut self, error: Error) -> Error {
        self.yields = None;
        if !matches!(error, Error::LockLost { .. }) {
            // Members that wait already are told sooner so, where the lock can be reached.
            self.lose(self.id);
        }
        if self.unheard {
            // The member behind this one goes by its name. If another handle of this port had the same, and stood in line
            // behind that one, each would wait for the other.
            self.number.keep();
        }
        self.stuck = Some(error);
        self.segment = None;
        error
    }

    /// Makes the lock lost for all members, if it can be reached.
    fn lose(&mut self, member: MemberId) -> Error {
        let told = self.on_lock(Opcode::CompareSwap, lock::LOST, member.0, NOBODY);
        match told.and_then(|atomic| atomic.call().map(|result| result.value)) {
            Ok(NOBODY) => lost(member),
            Ok(before) => lost(MemberId(before)),
            Err(_) => {
                self.unheard = true;
                lost(member)
            }
        }
    }

    fn on_lock(
        &self,
        opcode: Opcode,
        offset: u64,
        operand: u64,
        compare: u64,
    ) -> Result<crate::AtomicOp<'_>> {
        self.port.alive()?;
        Ok(self.lock.atomic(offset, word(opcode, operand, compare)))
    }

    fn carry_out(&mut self, step: Step, waiting: &mut Waiting) -> Result<u64> {
        match step {
            Step::Reset => {
                self.predecessor = NOBODY;
                // A pass that was seen before its signal came.
                self.number.clear();
                self.budget.store(WAITING)?;
                self.next.store(NOBODY)?;
            }
            Step::SwapTail(own) => {
                let swap = self.on_lock(Opcode::Swap, lock::REMOTE_TAIL, own, 0)?;
                return Ok(swap.call()?.value);
            }
            Step::ClearTail { expected } => {
                // Behind what was written under the lock, on its own node.
                let clear = self.on_lock(Opcode::CompareSwap, lock::REMOTE_TAIL, NOBODY, expected)?;
                let clear = if mutant::is(Mutant::AsymmetricUnordered) {
                    clear
                } else {
                    clear.ordered()
                };
                return Ok(clear.regardless().call()?.value);
            }
            Step::Link { predecessor, own } => {
                self.predecessor = predecessor;
                self.tell(MemberId(predecessor), descriptor::NEXT, own, false)?;
            }
            Step::OwnBudget => {
                let budget = self.budget.load()?;
                if budget == WAITING {
                    self.sleep(waiting)?;
                }
                return Ok(budget);
            }
            Step::OwnNext => {
                let next = self.next.load()?;
                if next == NOBODY && !waiting.relax(&self.port) {
                    self.pause(waiting);
                    if waiting.should_look(&self.port) {
                        self.look_behind()?;
                    }
                }
                return Ok(next);
            }
            Step::Yield(class) => {
                // Not waited for here: the look that follows is ordered behind it.
                let swap = self.on_lock(Opcode::Swap, lock::VICTIM, class.code(), 0)?;
                self.yields = Some(swap.post()?);
                waiting.begin();
            }
            Step::OtherTail => {
                let line = self.look()?;
                if let Some(yields) = self.yields.take() {
                    yields.wait()?;
                }
                self.victim = line.victim;
                return Ok(line.local_tail);
            }
            Step::Victim => {
                if self.victim == Class::Remote.code() && !waiting.relax(&self.port) {
                    self.pause(waiting);
                }
                return Ok(self.victim);
            }
            Step::Pass { successor, budget } => {
                self.tell(MemberId(successor), descriptor::BUDGET, budget, true)?;
            }
        }
        Ok(0)
    }

    fn pause(&self, waiting: &mut Waiting) {
        let backend = &self.port.backend;
        let token = backend.wait_token();
        backend.block(token, waiting.until(&self.port));
    }

    /// Passes some time until the own budget may have come. After a while, looks around.
    fn sleep(&mut self, waiting: &mut Waiting) -> Result<()> {
        if waiting.relax(&self.port) {
            return Ok(());
        }
        match self.number.wait(SLEEP) {
            Ok(_) => {
                self.number.clear();
            }
            Err(Error::TimedOut) => {}
            Err(error) => return Err(error),
        }
        if !waiting.should_look(&self.port) || self.budget.load()? != WAITING {
            return Ok(());
        }
        self.look()?;
        // Each looks after the one before it. A member that has passed the lock on may be gone, but not before that is
        // done.
        let before = MemberId(self.predecessor);
        if is_gone(&self.port, before) && self.budget.load()? == WAITING {
            return Err(self.lose(before));
        }
        Ok(())
    }

    /// A member has swapped itself in behind, and is slow to link itself. The last in line answers for all of them:
    /// each of them looks after the one before it.
    fn look_behind(&mut self) -> Result<()> {
        let last = self.look()?.remote_tail;
        if last != NOBODY
            && is_gone(&self.port, MemberId(last))
            && self.look()?.remote_tail == last
            && self.next.load()? == NOBODY
        {
            return Err(self.lose(MemberId(last)));
        }
        Ok(())
    }

    /// Reads the lock, behind all that the port has sent there. Ends with an error if it is lost.
    fn look(&self) -> Result<Line> {
        let read = self.lock.read(0, self.line.clone()).ordered().fenced();
        read.aside().post()?;
        let mut bytes = [0; LINE as usize];
        self.memory.read_into(self.line.offset(), &mut bytes)?;
        let word = |offset: u64| {
            let at = offset as usize;
            bytes
                .get(at..at + 8)
                .and_then(|bytes| bytes.try_into().ok())
                .map_or(0, u64::from_le_bytes)
        };
        match word(lock::LOST) {
            NOBODY => Ok(Line {
                remote_tail: word(lock::REMOTE_TAIL),
                local_tail: word(lock::LOCAL_TAIL),
                victim: word(lock::VICTIM),
            }),
            member => Err(lost(MemberId(member))),
        }
    }

    /// Stores a word in the descriptor of another member, and wakes its owner if asked. A member that cannot be
    /// told is one that the lock is lost with.
    fn tell(&mut self, member: MemberId, offset: u64, value: u64, wakes: bool) -> Result<()> {
        loop {
            let known = self.peers.get(&member).cloned();
            let fresh = known.is_none();
            let peer = match known {
                Some(peer) => peer,
                None => match self.introduce(member) {
                    Ok(peer) => peer,
                    Err(Error::Import { .. }) => return Err(self.lose(member)),
                    Err(error) => return Err(error),
                },
            };
            let told = peer.atomic(offset, word(Opcode::Swap, value, 0)).post()?;
            if wakes {
                self.wake(&peer, member)?;
                self.woken = Some(peer);
            }
            match told.wait() {
                Ok(_) => return Ok(()),
                // The member has been here before, and has come again under the same name.
                Err(error) if !fresh && was_refused(&error) => {
                    self.peers.remove(&member);
                }
                Err(Error::Failed(_)) => return Err(self.lose(member)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Signals a member. Comes after the word, because notifications come after all that was sent before.
    fn wake(&self, peer: &RemoteSegment, member: MemberId) -> Result<()> {
        loop {
            let signal = peer.write(0, &[]).notify(member.number()).regardless();
            match signal.aside().post() {
                Ok(_) => return Ok(()),
                // Another thread has been told of a failure just now, and nothing was posted.
                Err(Error::StreamFailed { .. }) => {}
                // Its word tells it too, only later.
                Err(Error::Released | Error::NotificationRefused { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn introduce(&mut self, member: MemberId) -> Result<RemoteSegment> {
        let peer = reach(&self.port, member)?;
        self.peers.insert(member, peer.clone());
        Ok(peer)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // A port that is closed takes with it what is under way: the signal has to be there first.
        if let Some(woken) = self.woken.take() {
            let look = woken.atomic(descriptor::TAKEN, word(Opcode::FetchAdd, 0, 0));
            let _ = look.ordered().regardless().call();
        }
        // The name before the number: the next object that is signalled by it is another one.
        self.segment = None;
    }
}

const fn word(opcode: Opcode, operand: u64, compare: u64) -> Atomic {
    Atomic {
        opcode,
        wide: true,
        operand,
        compare,
    }
}

/// Imports a member's descriptor. It was exported before the member named itself anywhere: an answer that there is
/// none is final, only silence may pass.
fn reach(port: &Arc<PortInner>, member: MemberId) -> Result<RemoteSegment> {
    let ask = |timeout| {
        let modes = Modes::ATOMIC | Modes::NOTIFY;
        import(port, member.node(), member.port(), &member.name(), modes, timeout)
    };
    match ask(Timeout::Now) {
        Err(Error::Import {
            reason: Refusal::Status(Status::LinkLost | Status::TimedOut),
            ..
        }) => ask(Timeout::After(OUT_OF_REACH)),
        answer => answer,
    }
}

/// Whether a member has died: its descriptor is no longer exported, or its node does not answer for long.
pub(super) fn is_gone(port: &Arc<PortInner>, member: MemberId) -> bool {
    matches!(
        reach(port, member),
        Err(Error::Import {
            reason: Refusal::Status(
                Status::NoSuchExport
                    | Status::NoSuchPort
                    | Status::NoSuchNode
                    | Status::LinkLost
                    | Status::StaleIncarnation
                    | Status::TimedOut
            ),
            ..
        } | Error::NoSuchNode { .. })
    )
}

/// Whether the operation was certainly not carried out.
fn was_refused(error: &Error) -> bool {
    match error {
        Error::Failed(failure) => !matches!(failure.status, Status::LinkLost | Status::TimedOut),
        Error::PortClosed | Error::PortEnded { .. } => false,
        _ => true,
    }
}
