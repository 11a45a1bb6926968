//! Synchronization between processes on any nodes (thesis 8).
//!
//! The algorithms are step machines without any input or output ([`protocol`]): the library's drivers
//! run them on real words, and `tests/models` runs the same ones in every order there is.

pub mod alock;
pub mod protocol;
