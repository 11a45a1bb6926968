//! What remote calls cost between two processes, over the software card in shared memory.
//!
//! The program that measures starts itself again as the other process, which runs [`serve`]. Each row measures all ways to
//! call for one size in turn, several times over, beside writes of 4 KiB; ratios are of one turn, and their median counts. Each
//! process has a processor of its own, where there are two: else the scheduler's choice of the day is measured.

mod callee;
mod caller;
mod functions;
mod place;
mod report;

pub use callee::serve;
pub use caller::{Sizes, measure};
pub use report::{Goal, Measured, Row};

/// What a measurement fails with.
pub type Result<T> = std::result::Result<T, String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
