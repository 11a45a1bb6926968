//! NetVM beside UCX and libfabric, in turns between the same two processors: `docs/evaluation/peers*`.
//!
//! - [`tools`] runs their programs, and reads what they print;
//! - [`client`] and [`server`] are NetVM's two processes; [`pinned`] is memory that is locked, for comparison;
//! - [`suite`] takes the turns, [`rows`] says what is compared with what, [`page`] and [`plot`] show it.

pub mod client;
pub mod page;
pub mod pinned;
pub mod plot;
pub mod rows;
pub mod server;
pub mod suite;
pub mod tools;
