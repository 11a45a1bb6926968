//! What a wire that loses frames costs: the shipped cores and library in modelled worlds ([`netvm_world::timing`]), with
//! the deadlines that are shipped. Frames are lost at random, with a seed, or one by its name; nothing else fails.
//!
//! | module | what is measured |
//! |---|---|
//! | [`goodput`] | one port streams writes to one node while frames of both directions are lost at random |
//! | [`completion`] | one operation with one lost frame: in the middle of a stream, and at its tail |
//! | [`incast`] | many nodes stream to one through a switch that has little room, and another one writes little |
//! | [`suite`] | all of it, in a size that is asked for; [`verdict`]: the goals, and which of them must be reached |
//!
//! Every world is watched by the checkers of the promises, as those of a seed are.

pub mod completion;
pub mod goodput;
pub mod incast;
pub mod suite;
pub mod verdict;

use netvm_abi::Nanos;
use netvm_world::timing::CostModel;

pub use netvm_world::stand::Trouble;

/// What a round trip takes beside the links, in nanoseconds, about: cards and library. With it a world is made that has
/// a wanted round trip; what it has, is measured.
const BESIDE_LINKS: u64 = 1_350;

/// The model with links so long that a round trip takes this.
pub(crate) fn with_round_trip(model: &CostModel, round_trip: Nanos) -> CostModel {
    CostModel {
        link: Nanos(round_trip.0.saturating_sub(BESIDE_LINKS) / 2),
        ..*model
    }
}
