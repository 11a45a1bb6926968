//! A key-value store in one file that is larger than memory. Clients read and write it one-sidedly: the server maps the file,
//! exports it, and sleeps.

mod bucket;
mod client;
mod server;

pub use bucket::{BUCKET_BYTES, Bucket, Found, MOST_BYTES, SLOTS, Slot};
pub use client::Client;
pub use server::Server;

use netvm_process::{OpenError, SoftError};

/// The port of a server.
pub const PORT: u16 = 7;
/// The name of its table.
pub const TABLE: &str = "table";
/// The name of the lock that a client holds while it writes.
pub const WRITERS: &str = "writers";

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The network, or memory.
    #[error(transparent)]
    Netvm(#[from] netvm::Error),
    /// No node of that choice.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No link to the server.
    #[error(transparent)]
    Link(#[from] SoftError),
    /// The file.
    #[error("the store's file: {0}")]
    File(#[from] std::io::Error),
    /// The file was made with another number of buckets.
    #[error("the file has {has} buckets, not {buckets}")]
    Buckets {
        /// What it has.
        has: u64,
        /// What was asked for.
        buckets: u64,
    },
    /// Key and value do not fit a slot, or there is no key.
    #[error(
        "a key of {key} and a value of {value} bytes do not fit: a slot holds {MOST_BYTES}, and a key has at least one"
    )]
    Size {
        /// Bytes of the key.
        key: usize,
        /// Bytes of the value.
        value: usize,
    },
    /// Each slot of the key's bucket has another key.
    #[error("the bucket of this key is full: make the store with more buckets")]
    Full,
}
