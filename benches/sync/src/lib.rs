//! What synchronization and channels cost: the shipped cores and library in modelled worlds. Nothing fails, nothing is
//! left to chance, and what a card does takes the instructions that were counted for it ([`netvm_world::timing`]).
//!
//! | module | what is measured |
//! |---|---|
//! | [`operations`] | each operation alone: round trips, messages, instructions, latency |
//! | [`crowd`] | many clients on one lock: fairness, goodput, retries |
//! | [`locality`] | kinds of locks, over locality, locks and nodes: throughput |
//! | [`hot`] | one word that many add to: throughput and latency |
//! | [`pressure`] | a shared queue with more senders than it can serve: fairness, longest wait |
//! | [`stream`] | channels beside plain writes, over message sizes |
//! | [`suite`] | all of it, in a size that is asked for; [`verdict`]: what has to hold of it |
//!
//! Every world is watched by the checkers of the promises, as those of a seed are.

pub mod crowd;
pub mod hot;
pub mod locality;
pub mod operations;
pub mod pressure;
pub mod stream;
pub mod suite;
pub mod verdict;

pub use netvm_world::stand::Trouble;
