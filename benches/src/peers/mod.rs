//! NetVM beside UCX and libfabric, in turns between the same two processors: `docs/evaluation/peers*`.
//!
//! - [`tools`] runs their programs, and reads what they print ([`crate::beside`]);
//! - [`client`] and [`server`] are NetVM's two processes; [`pinned`] is memory that is locked, for comparison;
//! - [`suite`] takes the turns, [`rows`] says what is compared with what, [`page`] shows it.

pub mod client;
pub mod page;
pub mod pinned;
pub mod rows;
pub mod server;
pub mod suite;
pub mod tools;
