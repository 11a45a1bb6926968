//! Two processes that work together, as most bodies are: each with a port, an export and a way to
//! the other.

use crate::env::{Env, pass, take_signal};
use crate::outcome::{Outcome, Trouble};
use netvm::{Access, Error, Export, NodeId, Port, PortId, Region, RemoteSegment};
use std::ops::Deref;
use std::time::Duration;

/// One of two processes: port 0 of its node, and the same of the other to talk to, the *peer*.
pub(crate) struct Side {
    pub(crate) env: Env,
    port: Port,
    peer: usize,
}

impl Deref for Side {
    type Target = Port;
    fn deref(&self) -> &Port {
        &self.port
    }
}

impl Side {
    /// The peer's node.
    pub(crate) fn peer(&self) -> NodeId {
        self.env.id(self.peer)
    }

    /// A port of the peer.
    pub(crate) fn peer_port(&self, port: u16) -> PortId {
        self.env.port_id(self.peer, port)
    }

    /// Allocates a region and exports it to all.
    pub(crate) fn share(&self, name: &str, len: u64) -> netvm::Result<Shared> {
        share(&self.port, name, len)
    }

    /// As [`share`](Self::share), for one-shot notifications too.
    pub(crate) fn share_with_letters(&self, name: &str, len: u64) -> netvm::Result<Shared> {
        share_with_letters(&self.port, name, len)
    }

    /// Imports what the peer exports under this name, now or later.
    pub(crate) fn import_peer(&self, name: &str) -> netvm::Result<RemoteSegment> {
        self.env.import(&self.port, self.peer, 0, name)
    }

    /// Waits for a signal and acknowledges it.
    pub(crate) fn take_signal(&self, id: u32) -> Outcome {
        take_signal(&self.env, &self.port, id)
    }

    /// Waits until something holds that no notification tells; looks again after each `pace`.
    pub(crate) fn until(&self, pace: Duration, holds: impl Fn() -> netvm::Result<bool>) -> netvm::Result<()> {
        let deadline = self.env.deadline(&self.port);
        while !holds()? {
            pass(&self.port, pace)?;
            deadline.check()?;
        }
        Ok(())
    }

    /// Waits until all that was sent to the peer has landed.
    pub(crate) fn flush_peer(&self) -> Outcome {
        Ok(self.port.flush_remote(self.peer())?)
    }
}

impl Env {
    /// Opens port 0 of a node, for a process that works with one on node `peer`.
    pub(crate) fn side(&self, node: usize, peer: usize) -> netvm::Result<Side> {
        Ok(Side {
            port: self.open(node, 0)?,
            env: self.clone(),
            peer,
        })
    }

    /// Runs one process on node 1 and one here, each with its [`Side`]; ends when both have.
    pub(crate) fn pair(
        &self,
        other: impl FnOnce(Side) -> Outcome + Send + 'static,
        mine: impl FnOnce(Side) -> Outcome,
    ) -> Outcome {
        self.both(|env| other(env.side(1, 0)?), |env| mine(env.side(0, 1)?))
    }

    /// Runs one process on node 1 and one here that open ports as they like; ends when both have.
    pub(crate) fn both(
        &self,
        other: impl FnOnce(&Self) -> Outcome + Send + 'static,
        mine: impl FnOnce(&Self) -> Outcome,
    ) -> Outcome {
        let other = self.spawn(1, "peer", other);
        let mine = mine(self);
        worse(mine, other.join())
    }
}

/// Waits until [`bequeath`] is called, and opens port 0 of node 1, as soon as its last owner's number is free.
pub(crate) fn inherited(env: &Env) -> Outcome<Port> {
    let waiting = env.open(1, 1)?;
    let _will = share(&waiting, WILL, 4096)?;
    take_signal(env, &waiting, 1)?;
    let deadline = env.deadline(&waiting);
    loop {
        match env.open(1, 0) {
            Err(Error::Refused { .. }) => deadline.check()?,
            other => return Ok(other?),
        }
        pass(&waiting, Duration::from_millis(1))?;
    }
}

/// The owner of port 0 of node 1 has died: a waiting process may have it.
pub(crate) fn bequeath(env: &Env, port: &Port) -> Outcome {
    env.import(port, 1, 1, WILL)?.notify(1)?;
    Ok(port.flush_remote(env.id(1))?)
}

const WILL: &str = "will";

/// A region that all may use, for as long as this lives.
pub(crate) struct Shared {
    // In this order they go: the name first.
    pub(crate) segment: Export,
    memory: Region,
}

impl Deref for Shared {
    type Target = Region;
    fn deref(&self) -> &Region {
        &self.memory
    }
}

/// Allocates a region of a port and exports it to all.
pub(crate) fn share(port: &Port, name: &str, len: u64) -> netvm::Result<Shared> {
    let memory = port.alloc(len)?;
    let segment = port.export(name, &memory, .., open_to_all())?;
    Ok(Shared { segment, memory })
}

/// Every port may read, write, do atomics and signal all numbers that the library leaves to programs.
pub(crate) fn open_to_all() -> Access {
    Access::everyone().notify(1..=895)
}

/// As [`share`], and every port may also send one-shot notifications: from a port that takes part in nothing that needs
/// numbers in between.
pub(crate) fn share_with_letters(port: &Port, name: &str, len: u64) -> netvm::Result<Shared> {
    let memory = port.alloc(len)?;
    let segment = port.export(name, &memory, .., Access::everyone().notify(1..=1_000_000))?;
    Ok(Shared { segment, memory })
}

/// The more telling of two ends.
pub(crate) fn worse(one: Outcome, other: Outcome) -> Outcome {
    fn rank(outcome: &Outcome) -> u8 {
        match outcome {
            Err(Trouble::Wrong(_)) => 6,
            Err(Trouble::Unexpected(_)) => 5,
            Err(Trouble::Failed(netvm::Error::TimedOut)) => 3,
            // A peer that waits in vain says less than why it waits in vain.
            Err(Trouble::Failed(_)) => 4,
            Err(Trouble::Killed | Trouble::Skipped(_)) => 2,
            // Whatever else has happened is the reason.
            Err(Trouble::Spoiled(_)) => 1,
            Ok(()) => 0,
        }
    }
    if rank(&other) > rank(&one) { other } else { one }
}
