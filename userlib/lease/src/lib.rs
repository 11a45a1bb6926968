//! Leases of remote memory over NetVM: rights that end by themselves.
//!
//! A [`Manager`] has memory and lends it. A [`Client`] asks for a part by its key ([`acquire`](Client::acquire)) or by its size
//! ([`allocate`](Client::allocate)), and uses it by one-sided reads, writes and atomics. When the client dies its rights end with their
//! time, and the memory goes to the next. The card of the memory's node enforces the end by its own clock, also while the manager stands still.
//!
//! ```
//! use netvm::{Port, PortConfig};
//! use netvm_emulator::Emulator;
//! use netvm_lease::{Client, ClientConfig, Manager, ManagerConfig, Wish};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let network = Emulator::new(2)?;
//!
//! // Node 1 has memory, and a thread that lends it.
//! let port = Port::open(&network.node(1), PortConfig::number(7))?;
//! let mut manager = Manager::open(port, "memory", 1 << 20, ManagerConfig::default())?;
//! manager.define(3, 4096)?; // Clients know it as 3.
//! # let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
//! # let stopped = std::sync::Arc::clone(&stop);
//! let serving = std::thread::spawn(move || {
//! #   while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
//!     manager.serve(Duration::from_millis(5))?;
//! #   }
//! #   netvm_lease::Result::Ok(())
//! });
//!
//! // Node 0 has a part of it for a while, and beside no other client.
//! let port = Port::open(&network.node(0), PortConfig::default())?;
//! let config = ClientConfig::default().patience(Duration::from_secs(30));
//! let mut client = Client::connect(port, (1.into(), 7.into()), "memory", config)?;
//! let (a_while, soon) = (Duration::from_secs(30), Duration::from_secs(1));
//! let lease = client.acquire(3, Wish::read_write(a_while).exclusive().waiting(soon))?;
//! lease.write(0, b"mine, for a while").post()?;
//! lease.extend(a_while)?; // One round trip to the card; the manager does nothing for it.
//! client.relinquish(lease)?;
//!
//! // 8 KiB that no other client has.
//! let scratch = client.allocate(8192, Wish::read_write(a_while).exclusive())?;
//! assert_eq!(scratch.len(), 8192);
//! # drop(scratch);
//! # stop.store(true, std::sync::atomic::Ordering::Relaxed);
//! # serving.join().unwrap()?;
//! # Ok(())
//! # }
//! ```
//!
//! | to | see | costs |
//! |---|---|---|
//! | lend memory | [`Manager::open`], [`Manager::define`], [`Manager::serve`] | a call of its driver for each lease |
//! | get a part by its key, or by its size | [`Client::acquire`], [`Client::allocate`], [`Wish`] | a message to the manager and its answer |
//! | keep it longer | [`Lease::extend`] | one round trip to the manager's card |
//! | ... only where it is needed | [`Lease::ensure`] | that, or a look at the clock |
//! | give it back early | [`Client::relinquish`] | a flush, a message and its answer |
//! | take it away | [`Manager::revoke`], [`Manager::revoke_client`] | a call of the manager's driver, which waits for what is under way |
//!
//! Two structures in such memory, a hash table and a bounded queue, are in [`tables`].
//!
//! # What it promises
//!
//! *Time.* A lease lasts for its duration from when it is given, by the clock of the manager's card, and for as long as it is extended, but not past
//! the manager's [longest life](ManagerConfig::longest). A duration of zero, or longer than that, is refused. What a client knows of the end
//! ([`Lease::surely_left`]) is counted from before it asked. So it is never too much, if both clocks run at one speed.
//!
//! *Conflicts.* Any number of *shared* leases of a part go together, of readers and writers alike: what they do beside each other is
//! their affair. An *exclusive* one goes with no other. A wish that conflicts is refused, or [waits](Wish::waiting) in the order of arrival,
//! as it asks. Wishes for room wait in the order of arrival among those of their size.
//!
//! *Memory goes to another only after a revocation has returned*: then nothing is under way any more that the lease before has let
//! through.
//!
//! *Reclaiming.* The manager learns of a lease that is over when that is due, without a request having to come: it asks its card, because
//! the client may have extended it. If another waits for the part it has it then. Otherwise the manager is lazy. What is over, or was
//! given back, stays in the card's table, and is revoked when its memory goes to another, or is needed for an allocation. It is revoked at once when
//! another waits for room, or less than an eighth of the pool is free, and in any case when 256 have come together. One revocation, and
//! one wait, serves all of these. So a client that has given a lease back must not use it, and one whose lease is over cannot.
//!
//! *Stale messages.* A lease is named by its slot in the card's table and the use of that slot, so a relinquishment or an extension that
//! comes late changes nothing. A client that connects is a new one, also at a port that was another's before.
//!
//! *Who may ask.* Every port that reaches the manager's. Keys are names, and no secrets: a part is kept from others by an exclusive lease.
//! An allocation holds [zeros](ManagerConfig::clears), and nothing that another client left.
//!
//! *Failures.* A client that dies while it waits may be granted what it waited for; that ends by itself, too. When the manager's process
//! ends its memory is gone, and so are its leases. While it stands still leases can be used and extended, and end.
//!
//! # Coming from Patronus
//!
//! | Patronus | here |
//! |---|---|
//! | `allocate`, `acquire` | [`Client::allocate`], [`Client::acquire`] |
//! | read or read/write, shared or exclusive | [`Wish`] |
//! | a conflict delays the grant | [`Wish::waiting`]; without, it is refused |
//! | `extend`: a compare-and-swap on a header by the client | [`Lease::extend`]: one operation at the card, which knows the longest life |
//! | clients extend by themselves, doubling | [`Lease::ensure`] |
//! | clients read the manager's clock, and add half a round trip | not needed: the card says how much is left |
//! | `revoke` by the client | [`Client::relinquish`] |
//! | `revoke` by the manager, or 0 units that forbid extensions | [`Manager::revoke`]: an extension comes before it at the card, or is refused |
//! | expiry: the manager polls a heap and unbinds | the card ends the lease; [`Manager::serve`] sleeps until one is due |
//! | predefined longest lifetime | [`ManagerConfig::longest`], which the card knows |
//! | slab allocator | powers of two from 64 bytes on, which merge again |
//! | 32 B headers before buffers, with a window of their own | not needed: the terms stand in the card's lease table |
//! | contiguous header and buffer, so that one window does | not needed: there is no header |
//! | pool of memory windows, because one takes 100 us to make | not needed: a capability is an entry of a table that is there |
//! | unbinding and binding merged into one rebind | one revocation for up to 256 leases; a grant is a row and a doorbell |
//! | lazy unbinding | as above (*Reclaiming*) |
//! | spare queue pairs, virtual queue pair numbers | not needed: an illegal access is told to its sender alone, and ends no connection |
//! | filter by start time | slot and generation, at the manager and at the card |
//! | memory is registered once, and pinned | neither |
//! | one-sided structures whose clients may die | [`tables`] |

#![forbid(unsafe_code)]

mod book;
mod client;
mod config;
mod error;
mod lease;
mod manager;
mod pool;
mod stats;
pub mod tables;
mod wire;

pub use client::Client;
pub use config::{ClientConfig, ManagerConfig, Wish};
pub use error::{Error, Refusal, Result};
pub use lease::Lease;
pub use manager::Manager;
pub use stats::ManagerStats;
