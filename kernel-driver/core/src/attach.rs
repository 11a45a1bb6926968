//! Negotiating with a card, watching it, and attaching again after a reset.
//!
//! Order: [`Host::attach`](crate::Host::attach); when the card is found dead: [`Notice::CardDead`], the platform stops
//! its DMA, [`Host::card_stopped`](crate::Host::card_stopped); ports and unmaps end; the card is reset, its firmware comes up,
//! [`Host::reattach`](crate::Host::reattach).
//!
//! [`Notice::CardDead`]: crate::events::Notice::CardDead

use core::fmt;
use netvm_abi::attach::AttachError as CardError;
use netvm_abi::{Geometry, Nanos, NodeId};

/// What the platform chooses: sizes of the tables that the NIC does not know, and deadlines.
#[derive(Clone, Copy, Debug)]
pub struct HostConfig {
    /// The geometry that the card must have; `None`: whatever it has, if it can be served.
    pub geometry: Option<Geometry>,
    /// Segments of all ports, at most 65535. Of these, of exports and of imports, half are divided among the port numbers:
    /// each port can have its part whatever others hold.
    pub segments: u32,
    /// Exports of all ports, at most 65535.
    pub exports: u32,
    /// Imports of all ports, pending ones included, at most 65535.
    pub imports: u32,
    /// Port numbers from 1 to this one are given only to callers that name them: the platform decides which callers
    /// may.
    pub reserved_ports: u16,
    /// Where the counts of a port's commands begin: they wrap at 2^32, and a test need not wait for that.
    pub counts_from: u32,
    /// How long an unmap, a barrier or a port close may wait for the NIC before the card counts as
    /// dead: time in which the card runs ([`crate::watch`]).
    pub nic_deadline: Nanos,
    /// How long the heartbeat may stand still before the card counts as dead: time in which the host
    /// looks, counted from a call where the card sleeps. [`Nanos::MAX`]: for ever, except while
    /// something waits for the card.
    pub heartbeat_deadline: Nanos,
    /// How long a port's worker may page in one page before the message that waits for it fails with
    /// [`Status::TimedOut`](netvm_abi::Status::TimedOut): time in which the host looks. What lies behind it and is as old
    /// fails after as long again. [`Nanos::MAX`]: never.
    pub page_deadline: Nanos,
    /// How long a pending import waits before it asks again.
    pub import_retry: Nanos,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            geometry: None,
            segments: 1024,
            exports: 1024,
            imports: 1024,
            reserved_ports: 0,
            counts_from: 0,
            nic_deadline: Nanos::from_millis(10),
            heartbeat_deadline: Nanos::from_millis(1000),
            page_deadline: Nanos::from_millis(30_000),
            import_retry: Nanos::from_millis(2),
        }
    }
}

/// Why a card cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// It is not up, gone, or not to be served by this driver.
    Card(CardError),
    /// Its geometry is not the configured one.
    Mismatch {
        /// The field.
        name: &'static str,
        /// What the card has.
        card: u32,
        /// What was asked for.
        host: u32,
    },
    /// Re-attach: the card says it is another node.
    OtherNode(NodeId),
    /// The configuration asks for a table with more entries than an id can name.
    Config {
        /// The field.
        name: &'static str,
    },
    /// Re-attach: the card still works, or its DMA has not been stopped, or a port is left.
    NotStopped,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Card(error) => error.fmt(f),
            Self::Mismatch { name, card, host } => {
                write!(f, "the card has '{name}' = {card}, this host asks for {host}")
            }
            Self::OtherNode(node) => write!(f, "the card is node {node} now"),
            Self::Config { name } => write!(f, "'{name}' must be from 1 to 65535"),
            Self::NotStopped => write!(f, "the card was not stopped, or not all ports are closed"),
        }
    }
}

impl core::error::Error for AttachError {}
