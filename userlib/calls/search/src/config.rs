//! How a search is made.

use crate::error::{Error, Result};
use netvm_calls::CallsConfig;
use std::time::Duration;

/// How to search: the first member says it to all.
#[derive(Clone, Debug)]
#[must_use]
pub struct SearchConfig {
    pub(crate) simulations: u32,
    pub(crate) exploration: f32,
    pub(crate) window: u32,
    pub(crate) seed: u64,
    pub(crate) member: MemberConfig,
}

impl Default for SearchConfig {
    /// As the paper has it: 16 simulations at a leaf, a constant of 1.0, up to 128 visits under way for each member. The seed 0.
    fn default() -> Self {
        Self {
            simulations: 16,
            exploration: 1.0,
            window: 128,
            seed: 0,
            member: MemberConfig::default(),
        }
    }
}

impl SearchConfig {
    /// Playouts for each visit, at the leaf where it ends: 1 to 65,536.
    pub const fn simulations(mut self, playouts: u32) -> Self {
        self.simulations = playouts;
        self
    }

    /// The constant of UCB: how much it is worth that a move was tried less often than others. From 0.
    pub const fn exploration(mut self, constant: f32) -> Self {
        self.exploration = constant;
        self
    }

    /// The most visits under way at a time, for each member. More keep members busier; fewer know more when they choose, so while
    /// the tree is small there are fewer: 4 for each member, or a 16th of the tree's visits.
    pub const fn window(mut self, visits: u32) -> Self {
        self.window = visits;
        self
    }

    /// Where all randomness begins. Two searches with one seed still differ, as messages come in another order; with one member
    /// they do not.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How this member is made.
    pub fn member(mut self, member: MemberConfig) -> Self {
        self.member = member;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=1 << 16).contains(&self.simulations) {
            return Err(Error::Configuration("a leaf has 1 to 65,536 simulations"));
        }
        if !(self.exploration >= 0.0 && self.exploration.is_finite()) {
            return Err(Error::Configuration(
                "the constant of exploration is a number from 0 on",
            ));
        }
        if self.window == 0 {
            return Err(Error::Configuration(
                "each member has a visit under way, at least",
            ));
        }
        Ok(())
    }
}

/// How to make a member of a search.
#[derive(Clone, Debug)]
#[must_use]
pub struct MemberConfig {
    pub(crate) calls: CallsConfig,
    pub(crate) patience: Duration,
}

impl Default for MemberConfig {
    /// Calls as they are by default; 10 s for all members to come.
    fn default() -> Self {
        Self {
            calls: CallsConfig::default(),
            patience: Duration::from_secs(10),
        }
    }
}

impl MemberConfig {
    /// How calls go: how they are packed, above all. Calls of ports that are no members are refused, or passed over.
    pub fn calls(mut self, calls: CallsConfig) -> Self {
        self.calls = calls;
        self
    }

    /// How long the other members may take to come.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}
