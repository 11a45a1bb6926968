//! Structures in a manager's memory that clients read and write one-sided, and in which a client may die at any instruction.
//!
//! A writer takes a part of the structure by an exclusive lease. That is its lock, and one that ends: if the client dies, or stands still for
//! too long, the card lets it write no more, and the manager gives the part to the next after the barrier of a revocation. So no write of the one
//! before is under way then. What a writer changes becomes valid by one word that is written last, so it is there as a whole or not at all, and there is
//! nothing to repair. Readers take no lock: they import the structure, and see by that word whether what they have read is of one state.
//!
//! | structure | read | write |
//! |---|---|---|
//! | [`Table`], used by [`TableClient`] | two round trips, three where the client does not know the bucket | a lease, and four round trips |
//! | [`Queue`], used by [`QueueClient`] | a lease, and five round trips | a lease, and five round trips |
//!
//! A call that fails with [`Expired`](netvm::Status::Expired) has changed nothing: the client stood still for longer than it may hold a part. It may
//! call again. After a failure of the link, or no answer, the change may have been made.

mod queue;
mod table;

pub use queue::{Queue, QueueClient, QueueConfig};
pub use table::{Table, TableClient, TableConfig};

use crate::{Client, Error, Lease, Manager, Result, Wish};
use netvm::{Access, Export, Modes, NodeId, Port, PortId, RemoteSegment};
use std::time::Duration;

/// How long a writer may hold a part, and how long it waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    holds: Duration,
    waits: Duration,
}

impl Default for Turn {
    fn default() -> Self {
        Self {
            holds: Duration::from_millis(10),
            waits: Duration::from_secs(5),
        }
    }
}

impl Turn {
    /// Does something with a part that no other client writes meanwhile.
    fn with<T>(
        self,
        client: &mut Client,
        key: u64,
        what: impl FnOnce(&Port, &Lease) -> Result<T>,
    ) -> Result<T> {
        let wish = Wish::read_write(self.holds).exclusive().waiting(self.waits);
        let lease = client.acquire(key, wish)?;
        let done = what(client.port(), &lease);
        // It is done by now, or it is not. A lease that cannot be given back ends by itself.
        let _ = client.relinquish(lease);
        done
    }
}

/// Writes, and returns when it has landed.
fn land(port: &Port, lease: &Lease, at: u64, bytes: &[u8]) -> Result<()> {
    lease.write(at, bytes).post()?;
    Ok(port.flush_remote(lease.node())?)
}

/// Marks what is written under a lease: the words of two writers are hardly ever alike, even if both make the same change.
fn mark(lease: &Lease) -> u16 {
    // By the golden ratio, leases of neighbouring slots lie far apart.
    (lease.token().id().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as u16
}

fn word(at: u64, from: &RemoteSegment) -> Result<u64> {
    let mut bytes = [0; 8];
    from.read(at, &mut bytes).call()?;
    Ok(u64::from_le_bytes(bytes))
}

/// The head of a structure: what it is, and of which shape.
type Head = [u64; 8];
const HEAD: u64 = size_of::<Head>() as u64;

/// Lays a structure's parts down in the manager's memory, with keys from `first` on, and exports them for reading.
fn create(manager: &mut Manager, name: &str, first: u64, sizes: &[u64], head: Head) -> Result<Export> {
    let row = manager.define_row(first, sizes)?;
    let (from, to) = (
        row.first().map_or(0, |part| part.start),
        row.last().map_or(0, |part| part.end),
    );
    manager.memory().write_from(from, &head_bytes(head))?;
    let access = Access::everyone().modes(Modes::READ);
    Ok(manager.port().export(name, manager.memory(), from..to, access)?)
}

/// Imports a structure, and looks at its head.
fn open(client: &Client, manager: (NodeId, PortId), name: &str, what: u64) -> Result<(RemoteSegment, Head)> {
    let view = client
        .port()
        .import(manager.0, manager.1, name, client.patience())?;
    let mut bytes = [0; HEAD as usize];
    if view.len() < HEAD {
        return Err(Error::NoStructure);
    }
    view.read(0, &mut bytes).call()?;
    let mut head = Head::default();
    for (word, from) in head.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*from);
    }
    if head.first() != Some(&what) {
        return Err(Error::NoStructure);
    }
    Ok((view, head))
}

fn head_bytes(head: Head) -> Vec<u8> {
    head.iter().flat_map(|word| word.to_le_bytes()).collect()
}
