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
