//! The table of connections.

use crate::conn::Conn;
use crate::core::large::Large;
use crate::wire::Id;
use std::sync::Arc;

/// Rows that are made at once.
const ROWS: usize = 256;

/// What the network alone knows of an end of a connection.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) conn: Option<Arc<Conn>>,
    generation: u32,
    pub(crate) peer: u32,
    /// The other end.
    pub(crate) to: Id,
    /// What the other end takes before its program reads.
    pub(crate) window: u32,
    /// Up to which byte something has come.
    pub(crate) received: u32,
    pub(crate) flags: Flags,
    pub(crate) large: Option<Box<Large>>,
}

/// What has happened to an end.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags {
    /// The other end has not answered yet.
    pub(crate) opening: bool,
    /// It was told that no more bytes come.
    pub(crate) end_sent: bool,
    /// It has said so.
    pub(crate) end_heard: bool,
    pub(crate) reader_gone: bool,
    pub(crate) writer_gone: bool,
    /// The writer waits for room at the peer.
    pub(crate) starved: bool,
    /// It was woken for room, and has not come yet.
    pub(crate) promised: bool,
    /// Its last write was a large one.
    pub(crate) bulk: bool,
}

/// The table. It grows by a few rows at a time, and no row moves.
#[derive(Default)]
pub(crate) struct Slots {
    rows: Vec<Box<[Slot]>>,
    free: Vec<u32>,
    len: usize,
}

impl Slots {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Makes an end.
    pub(crate) fn insert(&mut self, peer: usize, conn: impl FnOnce(Id) -> Conn) -> Arc<Conn> {
        let index = self.free.pop().unwrap_or_else(|| {
            let first = (self.rows.len() * ROWS) as u32;
            self.rows.push((0..ROWS).map(|_| Slot::default()).collect());
            self.free.extend((first + 1..first + ROWS as u32).rev());
            first
        });
        let slot = &mut self.rows[index as usize / ROWS][index as usize % ROWS];
        let generation = slot.generation.wrapping_add(1);
        let conn = Arc::new(conn(Id::new(index, generation)));
        *slot = Slot {
            conn: Some(Arc::clone(&conn)),
            generation,
            peer: peer as u32,
            ..Slot::default()
        };
        self.len += 1;
        conn
    }

    /// The end of this name, if it is there still.
    pub(crate) fn get(&mut self, id: Id) -> Option<&mut Slot> {
        let slot = self.at(id.slot.get())?;
        (slot.conn.is_some() && slot.generation == id.generation.get()).then_some(slot)
    }

    /// Whatever end has this row.
    pub(crate) fn at(&mut self, index: u32) -> Option<&mut Slot> {
        self.rows
            .get_mut(index as usize / ROWS)?
            .get_mut(index as usize % ROWS)
    }

    /// Takes an end out of the table.
    pub(crate) fn remove(&mut self, id: Id) -> Option<Slot> {
        let generation = id.generation.get();
        let slot = self.get(id)?;
        let gone = std::mem::replace(
            slot,
            Slot {
                generation,
                ..Slot::default()
            },
        );
        self.free.push(id.slot.get());
        self.len -= 1;
        Some(gone)
    }

    /// Takes out all ends of a peer.
    pub(crate) fn take_all_of(&mut self, peer: u32) -> Vec<Arc<Conn>> {
        let of_peer = |(conn, of): (&Arc<Conn>, u32)| (of == peer).then(|| Arc::clone(conn));
        let gone: Vec<_> = self.all().filter_map(of_peer).collect();
        for conn in &gone {
            self.remove(conn.id);
        }
        gone
    }

    /// All ends, and their peers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Arc<Conn>, u32)> {
        let slots = self.rows.iter().flat_map(|row| row.iter());
        slots.filter_map(|slot| slot.conn.as_ref().map(|conn| (conn, slot.peer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm::{NodeId, PortId};

    fn conn(id: Id) -> Conn {
        Conn::new(id, (NodeId(0), PortId(0)), 0, false)
    }

    #[test]
    fn a_row_is_small() {
        assert!(size_of::<Slot>() <= 64, "{}", size_of::<Slot>());
    }

    #[test]
    fn a_name_is_of_one_end_alone() {
        let mut slots = Slots::default();
        let first = slots.insert(0, conn).id;
        let others: Vec<Id> = (0..600).map(|_| slots.insert(1, conn).id).collect();
        assert_eq!(slots.len(), 601);
        assert!(slots.get(first).is_some());
        assert!(slots.remove(first).is_some());
        assert!(slots.get(first).is_none() && slots.remove(first).is_none());
        let again = slots.insert(2, conn).id;
        assert_eq!(again.slot, first.slot);
        assert!(slots.get(first).is_none() && slots.get(again).is_some());
        assert_eq!(slots.take_all_of(1).len(), 600);
        assert_eq!(slots.len(), 1);
        assert!(others.iter().all(|id| slots.get(*id).is_none()));
        assert!(slots.get(Id::new(u32::MAX, 1)).is_none());
    }
}
