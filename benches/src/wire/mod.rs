//! A wire that loses frames, in modelled worlds: page and plot of `docs/evaluation/wire*`.

pub mod page;
pub mod plot;
