//! ALock: a lock for which processes on its own node need no NIC.
//!
//! A queue lock such as MCS is changed by NICs, and a NIC's read-modify-write is not atomic with a
//! processor's; so processes on its own node must go through the NIC as well. Here the members that reach the lock with
//! their processor and the members that reach it through a NIC stand in two queues, and only the two that lead them
//! meet, by loads and stores (`machine` has the algorithm). With a lock that is mostly used where it lies, most of
//! its users send no message at all.
//!
//! | | local | remote |
//! |---|---|---|
//! | take it when it is free | no command | 2 round trips: swap; then victim and a look, ordered |
//! | wait in the queue | looks at its own descriptor, then sleeps | 1 round trip to stand in line; then the same |
//! | wait for the other class | looks at two words | reads the lock again and again: only a leader does |
//! | give it back | no command | 1 round trip |
//! | pass it on | no command | the same, and 1 more, the next holder does not wait for it |
//!
//! **Order.** What a holder wrote to the lock's node, with its processor or through its port, is there
//! for the next holder: a remote release is ordered behind the port's earlier writes to that node. What it
//! wrote to other nodes is, if the guard was told of them: [`AsymmetricGuard::covers`].
//!
//! **Fairness.** First come, first served in each class. A leader that waits is overtaken by at most as
//! many of the other class as that class's budget says.
//!
//! **No member can leave.** A member in the queue is in the chain through which the lock is passed, so an acquisition
//! cannot be given up, and has no timeout.
//!
//! **Death.** A member that dies while it holds the lock, or waits for it, takes the lock with it: the chain is
//! cut where it stood, and no other member may change its class's tail. It is noticed (a member that has waited for
//! long asks whether those it depends on are alive), and from then on every call on the lock, of the waiters too, ends
//! with [`Error::LockLost`], which names the dead. Then make the lock anew. When its home dies, calls end with the
//! reason that a NIC gives: no such port, link lost.

mod layout;
mod local;
#[doc(hidden)]
pub mod machine;
mod remote;

pub use local::AsymmetricLock;
pub use machine::Class;

use super::protocol::Machine;
use crate::beside::PendingCall;
use crate::error::{Error, Result};
use crate::export::Access;
use crate::fence::Landed;
use crate::port::PortInner;
use local::Local;
use machine::{Release, Step, Want};
use netvm_abi::NodeId;
use remote::Remote;
use std::fmt;
use std::sync::Arc;

/// How to make an [`AsymmetricLock`]: an access list, and where it matters budgets.
#[derive(Clone, Debug)]
#[must_use]
pub struct AsymmetricConfig {
    access: Access,
    local: u32,
    remote: u32,
}

impl From<Access> for AsymmetricConfig {
    fn from(access: Access) -> Self {
        Self {
            access,
            local: 5,
            remote: 5,
        }
    }
}

impl AsymmetricConfig {
    /// `access` names the participants that reach the lock through their NICs: they need to read and do atomics.
    pub fn new(access: Access) -> Self {
        access.into()
    }

    /// How many of each class may follow one another while the other class waits: 5, unless said
    /// otherwise; at least 1. More is faster, because passing on within a class is cheap; less is fairer.
    pub fn budgets(mut self, local: u32, remote: u32) -> Self {
        self.local = local.max(1);
        self.remote = remote.max(1);
        self
    }
}

/// One participant's way to an [`AsymmetricLock`]: from [`AsymmetricLock::handle`] or
/// [`AsymmetricLock::join`]. It has one descriptor, so it takes the lock once at a time; a thread that
/// wants its own makes another.
pub struct AsymmetricHandle {
    way: Way,
    /// A guard lives, or was forgotten.
    holds: bool,
    /// What has to be told at the next occasion.
    owed: Option<Error>,
    /// While an [`OwnedAsymmetricGuard`] has it.
    hold: Option<Hold>,
}

/// What is known of a lock that is held.
#[derive(Debug)]
struct Hold {
    release: Release,
    nodes: Vec<NodeId>,
}

impl Hold {
    fn covers(&mut self, node: NodeId) {
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
    }
}

enum Way {
    Local(Local),
    Remote(Box<Remote>),
}

/// Runs a machine to its end. `carry_out` does a step and gives its answer.
fn run<R>(
    machine: &mut impl Machine<Want = Want<R>, Answer = u64>,
    mut carry_out: impl FnMut(Step) -> Result<u64>,
) -> Result<R> {
    loop {
        match machine.want() {
            Want::Step(step) => machine.answer(carry_out(step)?),
            Want::Ended(end) => return Ok(end),
        }
    }
}

impl AsymmetricHandle {
    const fn new(way: Way) -> Self {
        Self {
            way,
            holds: false,
            owed: None,
            hold: None,
        }
    }

    /// How it reaches the lock.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self.way {
            Way::Local(_) => Class::Local,
            Way::Remote(_) => Class::Remote,
        }
    }

    /// Takes the lock; waits for it as long as it takes, spinning a little and then asleep.
    ///
    /// # Errors
    /// [`Error::LockLost`] when a member has died; [`Error::Failed`] when the lock's home cannot be
    /// reached, or for an earlier operation of the port (then the call can be repeated);
    /// [`Error::PortClosed`], [`Error::PortEnded`]; [`Error::Memory`].
    pub fn acquire(&mut self) -> Result<AsymmetricGuard<'_>> {
        if let Some(owed) = self.owed.take() {
            return Err(owed);
        }
        if self.holds {
            // A guard was forgotten: the lock is held for ever.
            return Err(self.abandon());
        }
        let release = match &mut self.way {
            Way::Local(local) => local.acquire(),
            Way::Remote(remote) => remote.acquire(),
        }?;
        self.holds = true;
        Ok(AsymmetricGuard {
            handle: self,
            hold: Some(Hold {
                release,
                nodes: Vec::new(),
            }),
        })
    }

    /// Begins what [`acquire`](Self::acquire) does, and does not wait for it. It stands in its class' queue as `acquire` does, and what it
    /// ends with owns the handle: [`OwnedAsymmetricGuard::release`] gives it back. After an error the handle is gone.
    ///
    /// Dropped before its end, it keeps its place, and hands the lock on when its turn has come.
    pub fn begin_acquire(self) -> PendingCall<OwnedAsymmetricGuard> {
        let port = Arc::clone(match &self.way {
            Way::Local(local) => local.port(),
            Way::Remote(remote) => remote.port(),
        });
        let acquire = move || self.own().map_err(|(_, error)| error);
        PendingCall::begin_or_fail(&port, "netvm-lock", acquire, drop)
    }

    /// Takes the lock, and goes into its guard. For the library for C, whose handles cannot borrow.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), with the handle.
    #[doc(hidden)]
    #[expect(clippy::result_large_err, reason = "what it gives otherwise is as large")]
    pub fn own(mut self) -> std::result::Result<OwnedAsymmetricGuard, (Self, Error)> {
        // The guard ends without letting go.
        let taken = self.acquire().map(|mut guard| guard.hold.take());
        match taken {
            Ok(hold) => {
                self.hold = hold;
                Ok(OwnedAsymmetricGuard { handle: self })
            }
            Err(error) => Err((self, error)),
        }
    }

    fn port(&self) -> &PortInner {
        match &self.way {
            Way::Local(local) => local.port(),
            Way::Remote(remote) => remote.port(),
        }
    }

    /// Gives the lock back. Reports nothing of the program's own operations: gives what is to be told of them.
    fn release(&mut self, hold: Option<Hold>) -> Result<Vec<Landed>> {
        let Some(Hold { release, nodes }) = hold else {
            return Ok(Vec::new());
        };
        let (mut landed, mut ended) = (Vec::new(), Ok(()));
        for node in nodes {
            let flushed = self.port().check_node(node).and_then(|()| self.port().land(node));
            ended = ended.and(flushed.map(|flush| landed.push(flush)));
        }
        let released = match &mut self.way {
            Way::Local(local) => local.release(release),
            Way::Remote(remote) => remote.release(release),
        };
        self.holds = false;
        released.and(ended).map(|()| landed)
    }

    /// Whether a member of the same class waits behind, and has linked itself.
    fn is_asked_for(&self) -> Result<bool> {
        let next = match &self.way {
            Way::Local(local) => local.next()?,
            Way::Remote(remote) => remote.next()?,
        };
        Ok(next != machine::NOBODY)
    }

    /// Gives up a lock that this handle holds and cannot give back.
    fn abandon(&mut self) -> Error {
        match &mut self.way {
            Way::Local(local) => local.abandon(),
            Way::Remote(remote) => remote.abandon(),
        }
    }
}

impl Drop for AsymmetricHandle {
    fn drop(&mut self) {
        let hold = self.hold.take();
        // A write that has failed is told by the next call to its node.
        let _ = self.release(hold);
        if self.holds {
            // No caller is left to return an error to; the other members are told that the lock is lost.
            let _ = self.abandon();
        }
    }
}

impl fmt::Debug for AsymmetricHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsymmetricHandle({:?})", self.class())
    }
}

/// Holds an [`AsymmetricLock`] until it is dropped or [released](Self::release).
///
/// A panic gives the lock back as any other drop does, and the next holder is not told: a program whose data may be half
/// changed then says so in that data.
#[must_use = "dropping a guard gives the lock back"]
#[derive(Debug)]
pub struct AsymmetricGuard<'a> {
    handle: &'a mut AsymmetricHandle,
    hold: Option<Hold>,
}

impl AsymmetricGuard<'_> {
    /// What the port writes to this node under the guard, too, is to be there for the next holder: the
    /// release waits until it is, one round trip. The lock's own node needs no mention.
    pub fn covers(&mut self, node: NodeId) {
        if let Some(hold) = &mut self.hold {
            hold.covers(node);
        }
    }

    /// Whether a member of the same class waits behind, and has linked itself. Looks at own memory only.
    ///
    /// # Errors
    /// [`Error::Memory`] where the page cannot be had.
    pub fn is_asked_for(&self) -> Result<bool> {
        self.handle.is_asked_for()
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// [`Error::LockLost`], [`Error::PortClosed`], [`Error::PortEnded`], [`Error::Memory`]: no member will get the lock
    /// again. [`Error::Failed`] when something written under the guard has not arrived; the lock is free all the same. What
    /// goes to the node that the release goes to is not waited for: [`flush_remote`](crate::Port::flush_remote) tells of a failure
    /// there.
    pub fn release(mut self) -> Result<()> {
        let landed = self.end()?;
        self.handle.port().tell_all(landed)
    }

    fn end(&mut self) -> Result<Vec<Landed>> {
        let hold = self.hold.take();
        self.handle.release(hold)
    }
}

impl Drop for AsymmetricGuard<'_> {
    fn drop(&mut self) {
        // A write that has failed is told by the next call to its node.
        if let Err(error) = self.end() {
            self.handle.owed = Some(error);
        }
    }
}

/// Holds an [`AsymmetricLock`] until it is dropped or [released](Self::release), and has its handle, too. From
/// [`AsymmetricHandle::begin_acquire`].
#[must_use = "dropping a guard gives the lock back"]
#[derive(Debug)]
pub struct OwnedAsymmetricGuard {
    /// Holds it, and gives it back when it is dropped.
    handle: AsymmetricHandle,
}

impl OwnedAsymmetricGuard {
    /// As [`AsymmetricGuard::covers`].
    pub fn covers(&mut self, node: NodeId) {
        if let Some(hold) = &mut self.handle.hold {
            hold.covers(node);
        }
    }

    /// As [`AsymmetricGuard::is_asked_for`].
    ///
    /// # Errors
    /// As [`AsymmetricGuard::is_asked_for`].
    pub fn is_asked_for(&self) -> Result<bool> {
        self.handle.is_asked_for()
    }

    /// Gives the lock back. Gives the handle, and what [`AsymmetricGuard::release`] tells.
    pub fn release(mut self) -> (AsymmetricHandle, Result<()>) {
        let hold = self.handle.hold.take();
        let released = self.handle.release(hold);
        let told = released.and_then(|landed| self.handle.port().tell_all(landed));
        (self.handle, told)
    }
}
