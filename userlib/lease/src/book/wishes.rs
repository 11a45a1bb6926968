//! Wishes that wait: by their client, by the end of their patience, and those for room by their size. They are served in the order in which
//! they came.

use super::Client;
use crate::wire::Terms;
use netvm::{Nanos, NodeId, PortId};
use std::collections::{BTreeMap, BTreeSet};

/// What a wish is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// The part of this key.
    Part(u64),
    /// A part of this size.
    Room(u64),
}

/// A wish of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) client: Client,
    pub(super) number: u32,
    pub(super) terms: Terms,
    pub(super) what: For,
}

/// Those that wait.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// By the order in which they came, with the end of their patience.
    all: BTreeMap<u64, (Wish, Nanos)>,
    patience: BTreeSet<(Nanos, u64)>,
    of: BTreeMap<(NodeId, PortId), u64>,
    room: BTreeSet<(u64, u64)>,
    next: u64,
}

impl Wishes {
    /// A wish waits until then. Its client has no other one.
    pub(super) fn add(&mut self, wish: Wish, until: Nanos) -> u64 {
        let seq = self.next;
        self.next += 1;
        self.all.insert(seq, (wish, until));
        self.patience.insert((until, seq));
        self.of.insert((wish.client.node, wish.client.port), seq);
        if let For::Room(size) = wish.what {
            self.room.insert((size, seq));
        }
        seq
    }

    pub(super) fn get(&self, seq: u64) -> Option<Wish> {
        self.all.get(&seq).map(|(wish, _)| *wish)
    }

    pub(super) fn take(&mut self, seq: u64) -> Option<Wish> {
        let (wish, until) = self.all.remove(&seq)?;
        self.patience.remove(&(until, seq));
        self.of.remove(&(wish.client.node, wish.client.port));
        if let For::Room(size) = wish.what {
            self.room.remove(&(size, seq));
        }
        Some(wish)
    }

    /// The one of a client, in whichever life.
    pub(super) fn take_of(&mut self, client: Client) -> Option<(u64, Wish)> {
        let seq = *self.of.get(&(client.node, client.port))?;
        Some((seq, self.take(seq)?))
    }

    /// One that has waited for long enough.
    pub(super) fn take_if_over(&mut self, now: Nanos) -> Option<(u64, Wish)> {
        let &(_, seq) = self.patience.first().filter(|(until, _)| *until <= now)?;
        Some((seq, self.take(seq)?))
    }

    /// When the next one has waited for long enough.
    pub(super) fn first(&self) -> Option<Nanos> {
        self.patience.first().map(|(until, _)| *until)
    }

    /// The first one for room of the least size from this one on.
    pub(super) fn hungry(&self, from: u64) -> Option<(u64, u64, Wish)> {
        let &(size, seq) = self.room.range((from, 0)..).next()?;
        Some((size, seq, self.get(seq)?))
    }

    /// Whether another waits for room of this size that came before this one.
    pub(super) fn is_before(&self, size: u64, wish: &Wish) -> bool {
        let first = self.hungry(size).filter(|(least, ..)| *least == size);
        first.is_some_and(|(.., first)| first != *wish)
    }
}
