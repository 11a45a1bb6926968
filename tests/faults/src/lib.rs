//! One NIC core among enemies: applications that post any words, nodes that send any bytes, queue memory that answers
//! every load differently. The board it sits on checks each DMA against its own books (promise P5), which share no code
//! with the core's checks; [`attack::Attack`] throws cases at it, millions of them from a seed.
//!
//! The same board serves the fuzz targets in `tests/fuzz`, and moves bytes for them ([`bytes`]).
#![forbid(unsafe_code)]

pub mod attack;
pub mod board;
pub mod bytes;
pub mod host;
pub mod landing;
pub mod peers;
pub mod stand;

pub use attack::Attack;
pub use stand::Stand;
