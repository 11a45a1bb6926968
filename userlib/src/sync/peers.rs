//! Others' seats: how to reach them, and when to take a participant for dead.
//!
//! That is a grave verdict: a holder of a lock that is taken for dead holds it no longer. So only what their node says
//! counts (no such port, none of that life, nothing exported there any more), or that the node has been out of reach
//! for long; never a failure of something else that this port did.

use super::OUT_OF_REACH;
use super::protocol::SeatId;
use super::seats::{block_of, name_of};
use crate::backend::Refusal;
use crate::channel::look::Look;
use crate::error::{Error, Result};
use crate::import::{ROUND_TRIP, RemoteSegment, import};
use crate::port::PortInner;
use crate::timeout::Timeout;
use netvm_abi::control::Modes;
use netvm_abi::{Nanos, NodeId, PortId, Status};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a port knows of others.
#[derive(Default)]
pub(super) struct Peers(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Their seats: by port, lower half of its generation, and block. In an order of their own, because the end of an import
    /// may take a round trip: the order in which they end is seen from outside, and has to be the same each time.
    seats: BTreeMap<Key, RemoteSegment>,
    /// Nodes that cannot be reached, and since when.
    lost: BTreeMap<NodeId, Nanos>,
    /// What their node has said to be gone: a life of a port does not come again. A table of members may be full of
    /// the dead, and asking for each of them anew, each time, would take longer than it takes for others to come.
    gone: BTreeMap<Key, Error>,
}

type Key = (NodeId, PortId, u16, u16);

/// How many of the dead are remembered.
const REMEMBERED: usize = 1024;

const fn key(id: SeatId) -> Key {
    (id.node(), id.port(), id.generation(), block_of(id.seat()))
}

impl Known {
    fn of(&self, id: SeatId) -> Option<Result<RemoteSegment>> {
        let seats = self.seats.get(&key(id)).cloned().map(Ok);
        seats.or_else(|| self.gone.get(&key(id)).copied().map(Err))
    }

    /// Why a participant could not be reached, if that lasts.
    fn note(&mut self, id: SeatId, error: Error) {
        let lasts = matches!(
            error,
            Error::Import {
                reason: Refusal::Status(Status::NoSuchPort | Status::NoSuchExport),
                ..
            }
        );
        if lasts {
            if self.gone.len() >= REMEMBERED {
                self.gone.clear();
            }
            self.gone.insert(key(id), error);
        }
    }
}

impl Peers {
    /// Another's seats: the block that this one is in. An error: it is gone, or has been out of reach for long; or
    /// [`Error::TimedOut`]: neither is known at the deadline. How long it has been out of reach counts on in the next call.
    pub(super) fn get(&self, port: &Arc<PortInner>, id: SeatId, deadline: Nanos) -> Result<RemoteSegment> {
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(known) = self.0.lock().of(id) {
                return known;
            }
            match introduce(port, id, deadline) {
                Ok(remote) => {
                    let mut peers = self.0.lock();
                    peers.lost.remove(&id.node());
                    // Another thread may have been faster. Then this import ends, which may park: after the lock.
                    let kept = peers
                        .seats
                        .entry(key(id))
                        .or_insert_with(|| remote.clone())
                        .clone();
                    drop(peers);
                    return Ok(kept);
                }
                // Perhaps the two nodes have never met, or lost each other for a moment.
                Err(error) if is_passing(&error) => {
                    let now = port.backend.now();
                    let since = *self.0.lock().lost.entry(id.node()).or_insert(now);
                    let end = since.after(Nanos::from_millis(OUT_OF_REACH.as_millis() as u64));
                    if now >= end {
                        return Err(error);
                    }
                    if now >= deadline {
                        return Err(Error::TimedOut);
                    }
                    port.pause(end.min(deadline).min(now.after(pause)))?;
                    pause = Nanos(pause.0 * 2).min(LONGEST_PAUSE);
                }
                Err(error) => {
                    self.0.lock().note(id, error);
                    return Err(error);
                }
            }
        }
    }

    /// This import was of no use: the next one to need it makes another.
    pub(super) fn forget(&self, id: SeatId) {
        let forgotten = self.0.lock().seats.remove(&key(id));
        // After the lock, because it may park.
        drop(forgotten);
    }
}

/// First pause of a participant that cannot reach another, and the longest.
const FIRST_PAUSE: Nanos = Nanos::from_micros(100);
const LONGEST_PAUSE: Nanos = Nanos::from_millis(20);

/// Imports the block that this seat is in, if its port still has the life that is meant. Asks once, and waits for the answer
/// until the deadline.
fn introduce(port: &Arc<PortInner>, id: SeatId, deadline: Nanos) -> Result<RemoteSegment> {
    let modes = Modes::READ | Modes::WRITE | Modes::NOTIFY;
    let name = name_of(block_of(id.seat()));
    let left = Nanos(deadline.0.saturating_sub(port.backend.now().0));
    let timeout = if left < ROUND_TRIP {
        Timeout::After(Duration::from_nanos(left.0))
    } else {
        Timeout::Now
    };
    let remote = import(port, id.node(), id.port(), &name, modes, timeout)?;
    let gone = |status| Error::Import {
        node: id.node(),
        port: id.port(),
        name: name.as_str().into(),
        reason: Refusal::Status(status),
    };
    let mut head = [0; 8];
    match look_by(&remote, 0, &mut head, deadline) {
        Ok(()) if u64::from_le_bytes(head) as u16 == id.generation() => Ok(remote),
        Ok(()) => Err(gone(Status::NoSuchPort)),
        Err(Error::Failed(failure)) => Err(gone(failure.status)),
        Err(error) => Err(error),
    }
}

/// Reads from others' memory. It fails for its own failure alone: what else of the port has failed is no verdict on the
/// others, and stays where the program is told of it.
pub(super) fn look_at(remote: &RemoteSegment, offset: u64, bytes: &mut [u8]) -> Result<()> {
    remote.read(offset, bytes).aside().call()
}

/// The same until a deadline: [`Error::TimedOut`] if the answer has not come by then. What comes later lands in memory that
/// nothing else uses, and its failure is told to no caller.
pub(super) fn look_by(remote: &RemoteSegment, offset: u64, bytes: &mut [u8], deadline: Nanos) -> Result<()> {
    let port = &remote.inner().port;
    if deadline == Nanos::MAX {
        return look_at(remote, offset, bytes);
    }
    let into = port.alloc(bytes.len() as u64)?;
    let mut look = Look::begin(port, remote, offset, &into.whole())?;
    match port.look_until(deadline, || look.seen())? {
        Some(end) => end.and_then(|()| into.read_into(0, bytes)),
        None => Err(Error::TimedOut),
    }
}

/// How often to look at a seat, each time by a new import: it comes to an end where own memory cannot be had, again and
/// again.
pub(super) const TRIES: u32 = 64;

/// Whether a participant may be there and only out of reach.
const fn is_passing(error: &Error) -> bool {
    matches!(
        error,
        Error::Import {
            reason: Refusal::Status(Status::LinkLost | Status::TimedOut | Status::StaleIncarnation),
            ..
        }
    )
}

/// Whether the error of [`Peers::get`] says that the other is gone; or else, that something is wrong here.
pub(super) const fn is_gone(error: &Error) -> bool {
    is_passing(error)
        || matches!(
            error,
            Error::NoSuchNode { .. }
                | Error::Import {
                    reason: Refusal::Status(
                        Status::NoSuchPort
                            | Status::NoSuchExport
                            | Status::NoSuchNode
                            | Status::CapabilityRefused
                            | Status::Revoked
                    ),
                    ..
                }
        )
}
