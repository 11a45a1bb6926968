//! The lock's home, and the members that reach it with their processor.
//!
//! # Order between processors and NICs
//!
//! - *Into a queue*: a descriptor is made ready before the swap that makes it known (the compare-and-swap
//!   releases), and linked after it (it acquires).
//! - *Peterson's game* is the one place where a store must be seen before a later load of another word is made: the
//!   leader that yields stores the victim, then loads the other tail; if both leaders' loads passed their stores, both
//!   would see an empty queue. Release and acquire do not forbid that, nor do sequentially consistent *accesses* on
//!   every machine; a full fence between the two does. The own tail was swapped before the victim was stored (which
//!   releases), so a load that sees the victim is followed by loads that see the tail. The remote leader's side of it:
//!   its NIC commands are answered, or ordered behind one another at the lock's own NIC.
//! - *Out again*: the tail is cleared, and a budget passed, by a release; they are loaded with acquire. So what
//!   was written under the lock comes first.
//! - *Sleep*: the sleeper says so, fences, and looks once more; the passing holder stores the budget, fences, and looks
//!   whether the other sleeps. One of the two sees the other. Even if not, a sleep is short.

use super::super::protocol::Machine;
use super::super::rights::Rights;
use super::layout::{EXPORTED, LINE, MemberId, RIGHTS, budgets, descriptor, lock};
use super::machine::{Acquire, Class, NOBODY, Release, Step, WAITING, Want};
use super::{AsymmetricConfig, AsymmetricHandle, Way};
use crate::backend::Refusal;
use crate::error::{Error, Result};
use crate::export::Export;
use crate::port::{Port, PortInner};
use crate::region::{Region, Word64};
use crate::timeout::Timeout;
use netvm_abi::control::Modes;
use netvm_abi::{NodeId, NotificationId, PAGE_SIZE, PortId, Status};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Numbers of the handles that a lock has room for at its home: the lock and their descriptors are one page.
const HANDLES: Range<u64> = EXPORTED / LINE..PAGE_SIZE as u64 / LINE;
/// First sleep of a waiter; each later one is twice as long.
const FIRST_SLEEP: u64 = 5_000;
/// Longest sleep, in nanoseconds. No member wakes a leader that waits for the other class.
const LONGEST_SLEEP: u64 = 500_000;
/// How long to wait before asking, for the first time, whether those of the other class live.
const FIRST_LOOK: u64 = 20_000_000;
/// Longest time between two such questions.
const LONGEST_LOOK: u64 = 320_000_000;

/// A lock that this process is the home of. Threads of this process that share it make [handles](Self::handle); other
/// processes [join](Self::join). See the [module](crate::sync::alock) for what it promises.
///
/// Cheap to clone. It goes when the last clone and handle have gone, and then fails for all that joined.
///
/// # Example
/// ```no_run
/// use netvm::sync::alock::AsymmetricLock;
/// use netvm::{Access, Port, Timeout};
///
/// fn home(port: &Port) -> netvm::Result<()> {
///     let lock = AsymmetricLock::create(port, "counter", Access::everyone())?;
///     let mut mine = lock.handle()?;
///     let guard = mine.acquire()?; // no message
///     // ... change what it guards ...
///     guard.release()
/// }
///
/// fn elsewhere(port: &Port) -> netvm::Result<()> {
///     let mut mine = AsymmetricLock::join(port, 0.into(), 7.into(), "counter", Timeout::Never)?;
///     let _guard = mine.acquire()?;
///     // ... the guard gives it back ...
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct AsymmetricLock {
    home: Arc<Home>,
}

struct Home {
    port: Arc<PortInner>,
    // In this order they go: the name first.
    _export: Export,
    memory: Region,
    limit: u64,
    own_tail: Word64,
    other_tail: Word64,
    victim: Word64,
    lost: Word64,
}

impl AsymmetricLock {
    /// Makes a lock that has its home at this port, under this name. `config` is the access list that names the
    /// participants, as for [`Lock::create`](crate::sync::Lock::create), or an [`AsymmetricConfig`] of it.
    ///
    /// # Errors
    /// As [`Port::alloc`] and [`Port::export`].
    pub fn create(port: &Port, name: &str, config: impl Into<AsymmetricConfig>) -> Result<Self> {
        let config = config.into();
        let memory = port.alloc(PAGE_SIZE.into())?;
        memory
            .word64(lock::BUDGETS)?
            .store(budgets(config.local, config.remote))?;
        Rights::of(&config.access)?.store(&memory, RIGHTS)?;
        let segment = port.export(name, &memory, ..EXPORTED, config.access)?;
        let home = Home {
            port: Arc::clone(&port.inner),
            _export: segment,
            limit: config.local.into(),
            own_tail: memory.word64(lock::LOCAL_TAIL)?,
            other_tail: memory.word64(lock::REMOTE_TAIL)?,
            victim: memory.word64(lock::VICTIM)?,
            lost: memory.word64(lock::LOST)?,
            memory,
        };
        Ok(Self { home: Arc::new(home) })
    }

    /// A handle for a thread of this process. There is room for 61 at a time.
    ///
    /// # Errors
    /// [`Error::Refused`] when all are taken; [`Error::PortClosed`], [`Error::PortEnded`], [`Error::Memory`].
    pub fn handle(&self) -> Result<AsymmetricHandle> {
        let home = &self.home;
        home.port.alive()?;
        for id in HANDLES {
            if home.word(id, descriptor::TAKEN)?.compare_swap(0, 1)? != 0 {
                continue;
            }
            return Ok(AsymmetricHandle::new(Way::Local(Local {
                id,
                taken: home.word(id, descriptor::TAKEN)?,
                budget: home.word(id, descriptor::BUDGET)?,
                next: home.word(id, descriptor::NEXT)?,
                asleep: home.word(id, descriptor::ASLEEP)?,
                stuck: false,
                home: Arc::clone(home),
            })));
        }
        Err(Error::Refused {
            what: "make another handle of this lock",
            reason: Refusal::Status(Status::TableFull),
        })
    }

    /// A handle for a process that reaches the lock through its NIC, on whatever node. It takes one of
    /// the port's notification numbers, by which it is woken.
    ///
    /// # Errors
    /// As [`Port::import`], [`Port::alloc`] and [`Port::export`] (of a name of the library's own);
    /// [`Error::Import`] when something else has that name; [`Error::Failed`] when what was imported cannot be
    /// read; [`Error::ModeRefused`] when it may not.
    pub fn join(
        port: &Port,
        node: NodeId,
        exporter: PortId,
        name: &str,
        timeout: impl Into<Timeout>,
    ) -> Result<AsymmetricHandle> {
        let timeout = timeout.into();
        let deadline = timeout.deadline_of_trips(port.now());
        let segment = port.import_with(node, exporter, name, Modes::READ | Modes::ATOMIC, timeout)?;
        let remote = super::Remote::new(port, segment, deadline)?;
        Ok(AsymmetricHandle::new(Way::Remote(Box::new(remote))))
    }
}

impl fmt::Debug for AsymmetricLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsymmetricLock({:?})", self.home.memory)
    }
}

impl Home {
    fn word(&self, id: u64, offset: u64) -> Result<Word64> {
        self.memory.word64(id.saturating_mul(LINE).saturating_add(offset))
    }

    /// Ends with an error if the lock is lost.
    fn check(&self) -> Result<()> {
        self.port.alive()?;
        match self.lost.load()? {
            0 => Ok(()),
            member => Err(lost(MemberId(member))),
        }
    }

    /// Makes the lock lost for all members, if it is not yet: a member that leaves a lost lock is not the reason. (It
    /// leaves after it has told why, so a member that finds it gone finds that here.) Two that die may be found at
    /// once: either's reason is good.
    fn lose(&self, member: MemberId) -> Error {
        let lose = || match self.lost.load()? {
            0 => self.lost.store(member.0).map(|()| member),
            earlier => Ok(MemberId(earlier)),
        };
        lose().map_or_else(|error| error, lost)
    }
}

/// The error of a lock that was lost with this member.
pub(super) const fn lost(member: MemberId) -> Error {
    Error::LockLost {
        node: member.node(),
        port: member.port(),
    }
}

/// A local handle.
pub(super) struct Local {
    home: Arc<Home>,
    id: u64,
    taken: Word64,
    budget: Word64,
    next: Word64,
    asleep: Word64,
    /// A call has failed halfway: the descriptor may still be in the chain.
    stuck: bool,
}

impl Local {
    pub(super) fn port(&self) -> &Arc<PortInner> {
        &self.home.port
    }

    /// The member that waits behind this one, once it has linked itself.
    pub(super) fn next(&self) -> Result<u64> {
        self.next.load()
    }

    pub(super) fn acquire(&mut self) -> Result<Release> {
        self.home.check()?;
        let mut machine = Acquire::new(Class::Local, self.id, self.home.limit);
        self.run(&mut machine)
    }

    pub(super) fn release(&mut self, mut machine: Release) -> Result<()> {
        self.run(&mut machine)
    }

    fn run<R>(&mut self, machine: &mut impl Machine<Want = Want<R>, Answer = u64>) -> Result<R> {
        let mut waiting = Waiting::default();
        super::run(machine, |step| self.carry_out(step, &mut waiting)).map_err(|error| self.fail(error))
    }

    pub(super) fn abandon(&mut self) -> Error {
        self.fail(Error::Released)
    }

    /// This handle cannot go on, so no member of its class can. Gives the error to return.
    fn fail(&mut self, error: Error) -> Error {
        self.stuck = true;
        if matches!(error, Error::LockLost { .. }) {
            return error;
        }
        let port = &self.home.port;
        let me = MemberId::new(
            port.node_id(),
            port.port(),
            NotificationId::NONE,
            port.backend.generation(),
        );
        let lost = self.home.lose(me);
        port.backend.wake();
        match error {
            Error::Released => lost,
            error => error,
        }
    }

    fn carry_out(&self, step: Step, waiting: &mut Waiting) -> Result<u64> {
        let home = &*self.home;
        match step {
            Step::Reset => {
                self.budget.store(WAITING)?;
                self.next.store(NOBODY)?;
            }
            Step::SwapTail(own) => {
                let mut before = home.own_tail.load()?;
                loop {
                    let found = home.own_tail.compare_swap(before, own)?;
                    if found == before {
                        return Ok(before);
                    }
                    before = found;
                }
            }
            Step::ClearTail { expected } => return home.own_tail.compare_swap(expected, NOBODY),
            Step::Link { predecessor, own } => home.word(predecessor, descriptor::NEXT)?.store(own)?,
            Step::OwnBudget => {
                let budget = self.budget.load()?;
                if budget == WAITING {
                    self.sleep(waiting)?;
                }
                return Ok(budget);
            }
            Step::OwnNext => {
                let next = self.next.load()?;
                if next == NOBODY {
                    // It is about to come: its owner has swapped, and stores the link next.
                    home.check()?;
                    if !waiting.relax(&home.port) {
                        let backend = &home.port.backend;
                        backend.block(backend.wait_token(), waiting.until(&home.port));
                    }
                }
                return Ok(next);
            }
            Step::Yield(class) => {
                home.victim.store(class.code())?;
                // Peterson: the victim before the other tail. See the top.
                fence(Ordering::SeqCst);
                waiting.begin();
            }
            Step::OtherTail => return home.other_tail.load(),
            Step::Victim => {
                let victim = home.victim.load()?;
                if victim == Class::Local.code() {
                    self.wait_for_remote(waiting)?;
                }
                return Ok(victim);
            }
            Step::Pass { successor, budget } => {
                home.word(successor, descriptor::BUDGET)?.store(budget)?;
                // Sleep: see the top.
                fence(Ordering::SeqCst);
                if home.word(successor, descriptor::ASLEEP)?.load()? != 0 {
                    home.port.backend.wake();
                }
            }
        }
        Ok(0)
    }

    /// Passes some time until the own budget may have come.
    fn sleep(&self, waiting: &mut Waiting) -> Result<()> {
        let home = &*self.home;
        home.check()?;
        if waiting.relax(&home.port) {
            return Ok(());
        }
        let backend = &home.port.backend;
        self.asleep.store(1)?;
        fence(Ordering::SeqCst);
        let token = backend.wait_token();
        if self.budget.load()? == WAITING {
            backend.block(token, waiting.until(&home.port));
        }
        self.asleep.store(0)
    }

    /// Passes some time until the other class may have left. If that takes long, asks whether it can.
    fn wait_for_remote(&self, waiting: &mut Waiting) -> Result<()> {
        let home = &*self.home;
        home.check()?;
        if waiting.relax(&home.port) {
            return Ok(());
        }
        let backend = &home.port.backend;
        let token = backend.wait_token();
        backend.block(token, waiting.until(&home.port));
        if !waiting.should_look(&home.port) {
            return Ok(());
        }
        // The last of the queue answers for all of it: each member looks after the one before it.
        let last = home.other_tail.load()?;
        if last == NOBODY || !super::remote::is_gone(&home.port, MemberId(last)) {
            return Ok(());
        }
        if home.other_tail.load()? == last {
            return Err(home.lose(MemberId(last)));
        }
        Ok(())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // A descriptor that may still be in the chain stays taken.
        if !self.stuck {
            let _ = self.taken.store(0);
        }
    }
}

/// How long a call has waited, and how it does so: it spins, sleeps ever longer, and now and then looks
/// after those it waits for.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    spins: u32,
    sleep: u64,
    look: u64,
    look_at: u64,
}

impl Waiting {
    /// From now on it waits for the other class, for as long as a few hold the lock. No member wakes a leader: so it
    /// must not sleep as long as it slept in the queue, where it would have been woken.
    pub(super) const fn begin(&mut self) {
        self.spins = 0;
        self.sleep = 0;
    }

    /// Spins once, if it is not time to sleep.
    pub(super) fn relax(&mut self, port: &PortInner) -> bool {
        if self.spins >= port.config.spins {
            return false;
        }
        port.backend.relax(self.spins);
        self.spins += 1;
        true
    }

    /// When the next sleep ends.
    pub(super) fn until(&mut self, port: &PortInner) -> netvm_abi::Nanos {
        self.sleep = (self.sleep * 2).clamp(FIRST_SLEEP, LONGEST_SLEEP);
        port.backend.now().after(netvm_abi::Nanos(self.sleep))
    }

    /// Whether it is time to ask if the others live.
    pub(super) fn should_look(&mut self, port: &PortInner) -> bool {
        let now = port.backend.now().0;
        if self.look == 0 {
            self.look = FIRST_LOOK;
            self.look_at = now.saturating_add(FIRST_LOOK);
        }
        if now < self.look_at {
            return false;
        }
        self.look = (self.look * 2).min(LONGEST_LOOK);
        self.look_at = now.saturating_add(self.look);
        true
    }
}
