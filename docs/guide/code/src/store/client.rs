//! A client: it looks keys up by one read, and writes under a lock.

use std::time::Duration;

use netvm::sync::Lock;
use netvm::{NodeId, Port, PortConfig, RemoteArray};
use netvm_process::SoftNode;

use super::{BUCKET_BYTES, Bucket, Found, PORT, Slot, StoreError, TABLE, WRITERS};

/// How long a server may take to be there.
const PATIENCE: Duration = Duration::from_secs(5);
/// Reads of a torn bucket, before the lock is taken to wait for its writer.
const LOOKS: usize = 8;

/// A connection to a store.
pub struct Client {
    table: RemoteArray<Bucket>,
    slots: RemoteArray<Slot>,
    writers: Lock,
    port: Port,
    server: NodeId,
    torn: u64,
}

impl Client {
    /// Connects to the server of a name, or `udp://HOST:PORT`.
    ///
    /// # Errors
    /// [`StoreError::Link`], [`StoreError::Netvm`].
    pub fn connect(node: &SoftNode, name: &str) -> Result<Self, StoreError> {
        let server = node.connect(name, PATIENCE)?;
        let port = Port::open(&node.node(), PortConfig::default())?;
        let remote = port.import(server, PORT.into(), TABLE, PATIENCE)?;
        let buckets = remote.len() / BUCKET_BYTES;
        Ok(Self {
            table: remote.array(0, buckets)?,
            slots: remote.array(0, buckets * super::SLOTS as u64)?,
            writers: Lock::join(&port, server, PORT.into(), WRITERS, PATIENCE)?,
            port,
            server,
            torn: 0,
        })
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`StoreError::Netvm`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let bucket = self.table.at(Bucket::of(key, self.table.len()))?;
        for _ in 0..LOOKS {
            match bucket.read()?.find(key) {
                Found::Value(value) => return Ok(Some(value)),
                Found::Nothing => return Ok(None),
                Found::Torn => self.torn += 1,
            }
        }
        // A writer is at work again and again, or has died at it. Under the lock none is at work: what is torn now is a
        // dead writer's, and was never there.
        let held = self.writers.acquire()?;
        let found = bucket.read()?.find(key);
        held.release()?;
        match found {
            Found::Value(value) => Ok(Some(value)),
            Found::Nothing | Found::Torn => Ok(None),
        }
    }

    /// Sets the value of a key. When this returns, each `get` that begins later finds it.
    ///
    /// # Errors
    /// [`StoreError::Size`], [`StoreError::Full`], [`StoreError::Netvm`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.change(key, &Slot::new(key, value)?)
    }

    /// Takes a key out.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn remove(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.change(key, &Slot::empty())
    }

    fn change(&mut self, key: &[u8], slot: &Slot) -> Result<(), StoreError> {
        let number = Bucket::of(key, self.table.len());
        let held = self.writers.acquire()?;
        let bucket = self.table.at(number)?.read()?;
        let removal = slot.pair().is_none();
        let place = match bucket.slot_of(key) {
            None if removal => return Ok(held.release()?),
            None => bucket.free_slot(),
            place => place,
        };
        let Some(place) = place else {
            held.release()?;
            return Err(StoreError::Full);
        };
        let target = self.slots.at(number * super::SLOTS as u64 + place as u64)?;
        target.write(slot).post()?;
        self.port.flush_remote(self.server)?;
        Ok(held.release()?)
    }

    /// How often a bucket was torn when it was read.
    #[must_use]
    pub const fn torn(&self) -> u64 {
        self.torn
    }
}
