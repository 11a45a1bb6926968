//! The provider for libfabric beside libfabric's own and Open MPI's: `docs/evaluation/mpi*`.
//!
//! - [`programs`] builds the provider and two programs in C ([`measure.c`](measure.c), [`registration.c`](registration.c)), and runs them;
//! - [`suite`] takes the turns, [`rows`] says what is compared with what, [`page`] shows it.

pub mod page;
pub mod programs;
pub mod rows;
pub mod suite;
