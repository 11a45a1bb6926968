//! Remote calls over NetVM: functions sent to data.
//!
//! An *endpoint* ([`Calls`]) is a port with functions. It calls functions of other endpoints by one-sided writes into rings
//! in their memory: no system call, nothing pinned, and one write for many calls.
//!
//! ```no_run
//! use netvm::{Port, PortConfig, Timeout};
//! use netvm_calls::{Address, Calls, CallsConfig, Function, Registry};
//!
//! /// Adds to an account, and returns what is there then.
//! const DEPOSIT: Function<(u64, u64), u64> = Function::new("bank.deposit");
//!
//! fn bank(port: Port) -> netvm_calls::Result<()> {
//!     let mut accounts = vec![0; 100];
//!     let mut functions = Registry::new();
//!     functions.add(&DEPOSIT, move |_, (account, amount)| {
//!         let balance: &mut u64 = &mut accounts[account as usize]; // A panic is told to the caller.
//!         *balance += amount;
//!         *balance
//!     })?;
//!     let mut calls = Calls::open(port, "bank", functions, CallsConfig::default())?;
//!     loop {
//!         calls.serve(Timeout::Never)?;
//!     }
//! }
//!
//! fn customer(port: Port, bank: Address) -> netvm_calls::Result<()> {
//!     let mut calls = Calls::open(port, "bank", Registry::new(), CallsConfig::default())?;
//!     let bank = calls.connect(bank)?;
//!     calls.call(bank, &DEPOSIT, &(7, 100))?; // Packed with others; its result is thrown away.
//!     println!("{}", calls.ask(bank, &DEPOSIT, &(7, 1), Timeout::Never)?);
//!     Ok(())
//! }
//! ```
//!
//! # What it promises
//!
//! - *Each call runs once*, in the order in which its link's caller made it, whatever frames the network loses. Links are not
//!   ordered among each other.
//! - *A call that cannot run ends in an error for its caller alone*: a function that is unknown or of another version and an
//!   argument that is too long before anything is sent; a panic, an argument that is no value, a buffer that cannot be had
//!   after that, with the reason ([`Ended`]). Other calls go on, also those of the same link.
//! - *When a side dies*, the other's calls that are under way fail with [`Ended::Link`]: they may have run or not. A new link
//!   to the same port is another one, and runs nothing twice.
//! - *A function never waits*, and no call is lost for want of room: it waits, is queued, or is refused ([`WhenFull`]).
//!
//! # How a caller hears of it
//!
//! | it wants | by |
//! |---|---|
//! | a result | [`To::call_return`], [`Calls::ask`] |
//! | to know that calls have left, or have run | [`To::sent`], [`To::consumed`] with a [`Synchronizer`] |
//! | failures of calls that return nothing | [`Calls::take_failure`] |
//! | links that were made there, or have ended | [`Calls::take_accepted`], [`Calls::take_ended`] |
//!
//! # What it costs
//!
//! A call is 8 bytes and its argument; a batch is 8 bytes, one write and one signal. Calls are packed by default
//! ([`Aggregation`]), up to 16 KiB and for 50 us at most while the endpoint is busy; an endpoint that waits sends all it has.
//! A link has an inbox of 1 MiB of addresses at each side by default, of which memory is used as it is written: 128 KiB while
//! the receiver keeps up. An endpoint has up to 447 links, and its names are the port's: see [`Calls::port`].
//!
//! The program may have operations of its own on the port ([`Calls::port`]). After each that fails, calls to the same node wait for one flush. A
//! program whose operations fail again and again keeps them waiting: it gives those a port of their own.
//!
//! A call that is lost to sight is looked after by its caller: after 5 ms without news it looks whether the other side is still there,
//! then less often, up to each 500 ms.
//!
//! # Coming from Seriema
//!
//! | Seriema | here |
//! |---|---|
//! | thread, `RDMAMessenger` | endpoint ([`Calls`]), link ([`Peer`]); both directions |
//! | `RDMAMessengerGlobal` | [`Calls::begin_connect`]: calls are queued until the link is up |
//! | `call(dest, func, sync)` | [`To::call`] |
//! | `call_buffer`, inline; written first; read by the callee | [`To::call_buffer`] with [`Payload::Inline`]; [`Payload::Write`] or [`Payload::Transfer`]; [`Payload::Read`] |
//! | `call_return` | [`To::call_return`] |
//! | `broadcast`, `broadcast_buffer` | [`Calls::join`], [`Calls::broadcast`], [`Calls::broadcast_buffer`] |
//! | `Synchronizer` on sent, on consumed | [`To::sent`], [`To::consumed`] |
//! | `RDMAAggregator`, trad and ovfl | [`Aggregation::Packed`], [`Aggregation::Overflow`] |
//! | a call that returns `false`, `Retry`, `RetryAsync` | [`WhenFull::Fail`], [`WhenFull::Wait`], [`WhenFull::Queue`] |
//! | P, the maximum of chunks, chunk size | none: chunks are not asked for; [`CallsConfig::chunks`], [`CallsConfig::chunk_bytes`] |
//! | function address, registered id, type id | [`Function::new`]: a name, and a hash of the types |
//! | service thread, DTutils, registered memory | none: nothing is pinned or allocated on the way |
//!
//! # Coming from UCX active messages
//!
//! | UCX | here |
//! |---|---|
//! | `ucp_worker`, `ucp_ep` | [`Calls`], [`Peer`] |
//! | `ucp_worker_set_am_recv_handler` with an id | [`Registry::add`] with a name |
//! | `ucp_am_send_nbx`, header and payload | [`To::call`]; [`To::call_buffer`]: argument and buffer |
//! | eager; rendezvous | [`Payload::Inline`]; [`Payload::Read`] |
//! | `UCP_AM_SEND_FLAG_REPLY` and a reply endpoint | [`Context::caller`], [`To::call_return`] |
//! | `ucp_worker_progress` | [`Calls::progress`], [`Calls::serve`] |
//! | `UCS_INPROGRESS` and a request | [`Synchronizer`], [`Reply`] |
//! | `ucp_ep_close_nbx`, error handler | [`Calls::close`], [`Calls::take_ended`] |

#![forbid(unsafe_code)]

mod argument;
mod config;
mod connect;
mod context;
mod core;
mod endpoint;
mod error;
mod function;
mod group;
mod layout;
mod leave;
mod link;
mod notice;
mod receive;
mod record;
mod registry;
#[doc(hidden)]
pub mod ring;
mod to;
mod watch;

pub use crate::core::{CallFailure, CallsStats};
pub use argument::{Argument, Plain};
#[cfg(feature = "serde")]
pub use argument::{Described, Packed};
pub use config::{Aggregation, CallsConfig, WhenFull};
pub use context::{Buffer, Context};
pub use endpoint::Calls;
pub use error::{End, Ended, Error, Result};
pub use function::{BufferFunction, Function, hash as signature};
pub use group::Group;
pub use link::{Address, Peer};
pub use notice::{Reply, Synchronizer};
pub use registry::Registry;
pub use to::{Payload, To};
