//! The core against a modelled board: links of two nodes or more, and hosts that a test drives.

mod answers;
mod append;
mod atomic;
mod behind;
mod congestion;
mod counters;
mod dma;
mod geometry;
mod greedy;
mod lease;
mod link;
mod loss;
#[cfg(netvm_mutant)]
mod mutants;
mod order;
mod port;
mod progress;
mod reached;
mod read;
mod received;
mod refuse;
mod refused;
mod shares;
mod straight;
mod tables;
mod values;
mod windows;
mod write;
