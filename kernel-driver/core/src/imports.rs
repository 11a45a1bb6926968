//! What this node's ports import (thesis 4.1.3).
//!
//! An import asks the exporter's driver, again and again until it answers or the deadline passes: a
//! request may be dropped where no answer can be sent, and an export or a link that does not exist
//! yet may come. Requests carry the import's token, so that one asked twice is granted once.
//!
//! States: pending, live, revoked (the exporter took it back, or its node is gone), failed (until
//! the platform has heard of it), free. The platform hears of each change once, through
//! [`Host::poll`](crate::Host::poll).

use crate::lists::{Links, List, linked};
use crate::shares::Shares;
use netvm_abi::control::{Grant, Modes, Name};
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::{Nanos, NodeId, PortId, Status, Token};

/// What to import.
#[derive(Clone, Copy, Debug)]
pub struct ImportSpec {
    /// The exporting node; this node itself too.
    pub node: NodeId,
    /// The exporting port.
    pub port: PortId,
    /// The export's name.
    pub name: Name,
    /// The modes wanted; the grant has those of them that are allowed, and is refused if none is.
    pub modes: Modes,
    /// When it must have succeeded.
    pub deadline: Nanos,
    /// Whether it waits (until the deadline) for a port or export that does not exist yet, and for a
    /// link that is not up; otherwise it fails at once.
    pub wait: bool,
}

/// Why an import cannot be begun or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportError {
    /// The importing port is not open.
    NoSuchPort,
    /// No such node.
    NoSuchNode,
    /// The table is full, except for the shares of other ports.
    TableFull,
    /// The port has no such import.
    NoSuchImport,
    /// The card is dead.
    CardGone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Pending,
    Live(Grant),
    /// The port has let go of it, and no message could tell the exporter yet.
    Leaving(Grant),
    Revoked,
    Failed(Status),
}

#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) state: State,
    pub(crate) generation: u16,
    pub(crate) port: PortId,
    pub(crate) spec: Option<ImportSpec>,
    pub(crate) next_try: Nanos,
    pub(crate) asked: bool,
    /// The platform has heard how it went.
    pub(crate) told: bool,
    of_port: Links,
    of_peer: Links,
    /// Of the free, pending or news list.
    of_state: Links,
}

linked!(Import: 0 => of_port, 1 => of_peer, 2 => of_state);

pub(crate) struct Imports<S: Storage> {
    pub(crate) table: S::Table<Import>,
    pub(crate) free: List<2>,
    pub(crate) shares: Shares<S>,
    pub(crate) pending: List<2>,
    pub(crate) leaving: List<2>,
    pub(crate) news: List<2>,
    /// No pending import has anything to do before.
    pub(crate) next_due: Nanos,
    /// Pending imports that the present look at them, which goes on in slices, has not reached.
    pub(crate) unseen: u32,
}

impl<S: MakeTable> Imports<S> {
    pub(crate) fn new(tables: &mut S, entries: u32, ports: u16) -> Self {
        let mut table = tables.table(entries as usize, |_| Import {
            state: State::Free,
            generation: 1,
            port: PortId(0),
            spec: None,
            next_try: Nanos(0),
            asked: false,
            told: false,
            of_port: Links::NONE,
            of_peer: Links::NONE,
            of_state: Links::NONE,
        });
        let free = List::of_all(&mut table);
        Self {
            table,
            free,
            shares: Shares::new(tables, entries, ports),
            pending: List::EMPTY,
            leaving: List::EMPTY,
            news: List::EMPTY,
            next_due: Nanos::MAX,
            unseen: 0,
        }
    }
}

impl<S: Storage> Imports<S> {
    pub(crate) fn entry(&mut self, token: Token) -> Option<(u32, &mut Import)> {
        let index = token.0 & 0xFFFF;
        let entry = self.table.get_mut(index as usize)?;
        let same = u32::from(entry.generation) == token.0 >> 16;
        (same && entry.state != State::Free).then_some((index, entry))
    }

    pub(crate) fn token(&self, index: u32) -> Token {
        let generation = self.table.get(index as usize).map_or(0, |entry| entry.generation);
        Token(index | (u32::from(generation) << 16))
    }

    /// When a pending import has something to do.
    pub(crate) const fn due(&self) -> Nanos {
        if self.unseen > 0 { Nanos(0) } else { self.next_due }
    }
}
