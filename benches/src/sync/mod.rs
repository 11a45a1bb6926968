//! Synchronization and channels in modelled worlds: the pages and plots of `docs/evaluation/sync*`.

pub mod page;
pub mod plot;
