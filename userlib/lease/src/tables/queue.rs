//! A bounded queue of many producers and many consumers.
//!
//! Two words count what was put in and what was taken out, and a ring has the items. Producers have the ring and their word by a lease, consumers have
//! theirs. A producer writes an item behind the last, waits until it has landed, and raises its word. A consumer reads the first item and raises
//! its own. The place of an item is written again only after that.

use super::{HEAD, Turn, create, land, mark, open, word};
use crate::{Client, Error, Manager, Result};
use netvm::{Export, RemoteSegment};
use std::time::Duration;

/// Marks a queue, with its version.
const MARK: u64 = 0x4C51_0001;
/// Bytes before the consumers' word, in the queue.
const TAKEN: u64 = HEAD;
/// Bytes before the producers' word.
const PUT: u64 = HEAD + 64;
/// Bytes before the ring, in the producers' part.
const RING: u64 = 64;

/// The shape of a [`Queue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct QueueConfig {
    items: u64,
    item_bytes: u32,
}

impl Default for QueueConfig {
    /// 256 items of up to 56 bytes.
    fn default() -> Self {
        Self {
            items: 256,
            item_bytes: 56,
        }
    }
}

impl QueueConfig {
    /// How many items it has room for: 1 to 2^20.
    pub const fn items(mut self, items: u64) -> Self {
        self.items = items;
        self
    }

    /// The longest item, in bytes: up to 4,096.
    pub const fn item_bytes(mut self, bytes: u32) -> Self {
        self.item_bytes = bytes;
        self
    }

    fn shape(self, first: u64) -> Result<Shape> {
        let item = u64::from(self.item_bytes).next_multiple_of(8);
        let good = (1..=1 << 20).contains(&self.items) && (8..=4096).contains(&item);
        let shape = Shape {
            first,
            items: self.items,
            item,
        };
        good.then_some(shape)
            .ok_or(Error::BadPool("a queue has 1 to 2^20 items of 1 to 4,096 bytes"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// The key of the head. The consumers' part has the one after it, the producers' part the next.
    first: u64,
    items: u64,
    item: u64,
}

impl Shape {
    /// Bytes of an item with its length.
    const fn place(&self) -> u64 {
        8 + self.item
    }

    /// Where the item of this number is in the producers' part.
    const fn at(&self, number: u64) -> u64 {
        RING + number % self.items * self.place()
    }

    /// Bytes of the producers' part.
    const fn ring(&self) -> u64 {
        RING + self.items * self.place()
    }
}

/// One of the two words: a count in 48 bits, and the mark of its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count(u64);

impl Count {
    const ALL: u64 = (1 << 48) - 1;

    /// Items so far.
    const fn items(self) -> u64 {
        self.0 & Self::ALL
    }

    /// Items since another count.
    const fn since(self, other: Self) -> u64 {
        self.0.wrapping_sub(other.0) & Self::ALL
    }

    /// One item more.
    const fn next(self, mark: u16) -> Self {
        Self((self.0.wrapping_add(1) & Self::ALL) | (mark as u64) << 48)
    }
}

/// A queue in a manager's memory. Clients can open it while this lives.
#[derive(Debug)]
pub struct Queue {
    _export: Export,
}

impl Queue {
    /// Makes an empty queue, under this name. It takes three keys, from `first` on.
    ///
    /// # Errors
    /// [`Error::BadPool`] for a shape that cannot be, keys that are taken, or too little room; as [`Port::export`](netvm::Port::export).
    pub fn create(manager: &mut Manager, name: &str, first: u64, config: QueueConfig) -> Result<Self> {
        let shape = config.shape(first)?;
        let head = [MARK, first, shape.items, shape.item, 0, 0, 0, 0];
        let _export = create(manager, name, first, &[HEAD, 64, shape.ring()], head)?;
        Ok(Self { _export })
    }
}

/// A client's use of a [`Queue`].
#[derive(Debug)]
pub struct QueueClient {
    client: Client,
    view: RemoteSegment,
    shape: Shape,
    turn: Turn,
}

impl QueueClient {
    /// Opens the queue of this name at the manager that the client is connected to.
    ///
    /// # Errors
    /// [`Error::NoStructure`] if that name is of something else; as [`Port::import`](netvm::Port::import).
    pub fn open(client: Client, name: &str) -> Result<Self> {
        let (view, [_, first, items, item, ..]) = open(&client, client.manager(), name, MARK)?;
        let config = QueueConfig {
            items,
            item_bytes: u32::try_from(item).unwrap_or(0),
        };
        let shape = config.shape(first).map_err(|_| Error::NoStructure)?;
        if view.len() < PUT + shape.ring() {
            return Err(Error::NoStructure);
        }
        Ok(Self {
            client,
            view,
            shape,
            turn: Turn::default(),
        })
    }

    /// How long it may hold an end of the queue: 10 ms if not set. When it dies meanwhile, others wait for so long.
    pub const fn holds(&mut self, span: Duration) {
        self.turn.holds = span;
    }

    /// How long it waits for an end of the queue that others have: 5 s if not set.
    pub const fn waits(&mut self, span: Duration) {
        self.turn.waits = span;
    }

    /// The client that it uses.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Puts an item in. `false`: the queue is full.
    ///
    /// # Errors
    /// [`Error::BadValue`] for one that is too long. Else as [`Client::acquire`]; see the [module](crate::tables)'s text for an expired lease.
    pub fn push(&mut self, item: &[u8]) -> Result<bool> {
        let (shape, view) = (self.shape, &self.view);
        if item.len() as u64 > shape.item {
            return Err(Error::BadValue { limit: shape.item });
        }
        self.turn.with(&mut self.client, shape.first + 2, |port, lease| {
            let put = Count(word(0, lease)?);
            let taken = Count(word(TAKEN, view)?);
            if put.since(taken) >= shape.items {
                return Ok(false);
            }
            let mut bytes = (item.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(item);
            land(port, lease, shape.at(put.items()), &bytes)?;
            // From here on it is in the queue.
            land(port, lease, 0, &put.next(mark(lease)).0.to_le_bytes())?;
            Ok(true)
        })
    }

    /// Takes the first item out, if there is one. A client that dies in this call may take the item with it, or leave it.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn pop(&mut self) -> Result<Option<Vec<u8>>> {
        let (shape, view) = (self.shape, &self.view);
        self.turn.with(&mut self.client, shape.first + 1, |port, lease| {
            let taken = Count(word(0, lease)?);
            let put = Count(word(PUT, view)?);
            if put.since(taken) == 0 {
                return Ok(None);
            }
            let mut bytes = vec![0; shape.place() as usize];
            view.read(PUT + shape.at(taken.items()), &mut bytes).call()?;
            land(port, lease, 0, &taken.next(mark(lease)).0.to_le_bytes())?;
            let len = bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
            // What another client wrote there is not trusted.
            let len = len.min(shape.item) as usize;
            bytes.drain(..8);
            bytes.truncate(len);
            Ok(Some(bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_round_beside_their_marks() {
        let last = Count(Count::ALL | 5 << 48);
        let next = last.next(9);
        assert_eq!((next, next.items(), next.since(last)), (Count(9 << 48), 0, 1));
        assert_eq!(next.next(1).since(last), 2);
    }

    #[test]
    fn places_of_items_go_round() {
        let shape = QueueConfig::default().items(3).item_bytes(5).shape(1).unwrap();
        assert_eq!((shape.place(), shape.ring()), (16, 64 + 48));
        assert_eq!([0, 2, 3, 7].map(|number| shape.at(number)), [64, 96, 64, 80]);
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let good = QueueConfig::default();
        for bad in [
            good.items(0),
            good.items(1 << 21),
            good.item_bytes(0),
            good.item_bytes(4097),
        ] {
            assert!(matches!(bad.shape(7), Err(Error::BadPool(_))), "{bad:?}");
        }
    }
}
