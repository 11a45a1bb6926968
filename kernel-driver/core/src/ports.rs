//! Port numbers, their generations, and the clean-up after a process (promise P6).
//!
//! A port's life: free, open, closing, free again with the next generation. Closing is driven by
//! `port_close_begin`, then `port_close_step` until done; a process that died at any instruction is
//! cleaned up the same way. Until the last step: its queued work is refused, its imports released, its
//! segments ended (exports gone, grants revoked, pages unmapped), the NIC has dropped its commands and
//! no worker has work of it in its hands. A platform whose worker may wait for a page without end takes that work back
//! ([`Host::work_abandon`](crate::Host::work_abandon)).

use crate::lists::{Links, List, linked};
use crate::tally::WorkTally;
use crate::watch::CardWait;
use netvm_abi::{Generation, Incarnation, Nanos, PortId};

/// An open port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPort {
    /// Its number.
    pub port: PortId,
    /// Distinguishes it from earlier owners of the number.
    pub generation: Generation,
}

/// Why a port cannot be opened or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortError {
    /// The number is out of range, or 0, which is the driver's; or the port is not open in this
    /// generation.
    NoSuchPort,
    /// Another process has it, or its last owner is not cleaned up yet.
    InUse,
    /// All ports are in use.
    AllInUse,
    /// The card is dead.
    CardGone,
}

/// The closing of a port, driven by [`Host::port_close_step`](crate::Host::port_close_step).
#[derive(Debug)]
#[must_use = "a port is closed by steps"]
pub struct PortClose {
    pub(crate) port: OpenPort,
}

impl PortClose {
    /// The port.
    #[must_use]
    pub const fn port(&self) -> PortId {
        self.port.port
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Open,
    Closing,
}

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) state: State,
    pub(crate) generation: Generation,
    /// Work that no worker has taken.
    pub(crate) queue: List<0>,
    /// Work in workers' hands.
    pub(crate) in_hand: u32,
    /// The part of it for which a worker pages in.
    pub(crate) paging: List<0>,
    pub(crate) imports: List<0>,
    pub(crate) tally: WorkTally,
    /// The NIC has nothing of it any more.
    pub(crate) nic_closed: bool,
    /// When only the NIC was left to wait for.
    pub(crate) waiting_since: Option<CardWait>,
    /// When its worker was last looked at ([`Host::look_at_workers`](crate::Host::look_at_workers)).
    pub(crate) looked_at: Nanos,
    /// Looks since the worker has moved.
    pub(crate) looks: u8,
    /// Its place among the ports that wait for the NIC.
    waiting: Links,
    /// Its place among the ports that wait for their workers.
    pub(crate) awaited: Links,
}

linked!(Port: 0 => waiting, 1 => awaited);

impl Port {
    /// One that is free, of a card that says this incarnation.
    ///
    /// Others remember which lives of a port have ended, and know a participant by the lower half of its port's generation.
    /// A node that restarts forgets how often its ports have been open. So each start of it counts from elsewhere, and a
    /// living port does not have the generation of a dead one: in all but one of 2^16 cases.
    pub(crate) fn new(start: Incarnation) -> Self {
        Self {
            state: State::Free,
            // An odd factor mixes into the upper half of the product, which is the lower one then.
            generation: Generation(start.0.wrapping_mul(0x9E37_79B1).rotate_left(16)),
            queue: List::EMPTY,
            in_hand: 0,
            paging: List::EMPTY,
            imports: List::EMPTY,
            tally: WorkTally::default(),
            nic_closed: true,
            waiting_since: None,
            looked_at: Nanos(0),
            looks: 0,
            waiting: Links::NONE,
            awaited: Links::NONE,
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.state == State::Free
    }
}
