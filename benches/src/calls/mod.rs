//! Remote calls between two processes: page and plot of `docs/evaluation/calls*`.

pub mod page;
pub mod plot;
