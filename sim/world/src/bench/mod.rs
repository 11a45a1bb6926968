//! Measurements of the shipped cores and library in modelled worlds: nothing fails, nothing is left to chance, and
//! what a card does takes the instructions that were counted for it ([`crate::timing`]).
//!
//! | module | what is measured |
//! |---|---|
//! | [`operations`] | each operation alone: round trips, messages, instructions, latency |
//! | [`crowd`] | many clients on one lock: fairness, goodput, retries |
//!
//! Every world is watched by the checkers of the promises, as those of a seed are.

pub mod crowd;
pub mod operations;
mod stand;
pub mod verdict;

pub use stand::Trouble;
