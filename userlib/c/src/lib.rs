//! NetVM's library for C and C++: `<netvm/netvm.h>`, `libnetvm.so.0`, `libnetvm.a`.
//!
//! The header is made from this crate (`cargo xtask c-library --header`), the shared library by a linker script that names the
//! symbols and their version (`libnetvm.map`). `netvm(7)` explains the concepts, the pages of section 3 the calls.
//!
//! | question | file |
//! |---|---|
//! | what a handle is, and why one that was closed is no danger | `handle.rs` |
//! | a `fork` | [`netvm_process::life`] |
//! | what becomes of an error, or of a panic | `fault.rs`, `call.rs` |
//! | which `errno` an error is | `errno.rs` |
//! | how arguments are checked | `argument.rs` |
//!
//! Every call returns 0 or a negative `errno`. No panic leaves the library. The table of handles, the mark of this
//! process and the last error of each thread are the only global state: C has no other place for them.

#![allow(
    non_camel_case_types,
    reason = "the names of the types are those of the header"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "one rule for all calls, which the header and netvm(7) say: a pointer is NULL where that is allowed, or points to what the call says"
)]

mod argument;
mod call;
mod errno;
mod fault;
mod handle;
mod hold;

// In the order of the header.
pub mod error;

pub mod node;

pub mod port;

pub mod memory;

pub mod access;

pub mod transfer;

pub mod vector;

pub mod complete;

pub mod pending;

pub mod events;

pub mod atomic;

pub mod number;

pub mod notification;

pub mod channel;

pub mod shared;

pub mod lock;

pub mod alock;

pub mod semaphore;

pub mod queue;

pub mod monitor;

/// Any port, in a line of an access list.
pub const NETVM_ANY: u32 = 0xffff_ffff;
/// A time-out that never ends.
pub const NETVM_FOREVER: i64 = -1;
