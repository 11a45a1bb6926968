//! One set of programs against every back end: what NetVM's user library promises, checked through
//! its public API alone.
//!
//! A back end implements [`Cluster`] and runs each of [`ALL`]:
//!
//! ```
//! use netvm_conformance::{ALL, Cluster, Env, Trouble};
//! use std::sync::Arc;
//!
//! fn suite(cluster: &Arc<dyn Cluster>) {
//!     for case in ALL {
//!         match case.run(&Env::new(Arc::clone(cluster), 1, 42)) {
//!             Ok(()) | Err(Trouble::Skipped(_)) => {}
//!             Err(trouble) => panic!("{}: {trouble}", case.name),
//!         }
//!     }
//! }
//! ```
//!
//! Bodies can be run again and again, several at a time on one cluster (see [`Env`]). They panic
//! never; what is wrong comes back as a [`Trouble`]. Where a back end injects faults that make
//! operations fail, everything but [`Trouble::Wrong`] is a fair end.

mod cases;
mod cluster;
mod env;
mod outcome;
mod pattern;
mod raw;
mod side;
mod threads;

pub use cases::{ALL, Case, Needs};
pub use cluster::{Body, Cluster, Running};
pub use env::{Env, PORTS_PER_CASE};
pub use outcome::{Outcome, Trouble};
pub use threads::{Nodes, Threads, run_all};
