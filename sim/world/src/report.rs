//! What a run comes to.

use crate::bodies::Bodies;
use crate::check::Promise;
use crate::effort::CoreStep;
use crate::faults::Coverage;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A run in which every promise held and everything finished.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Honest nodes.
    pub nodes: u16,
    /// Windowed messages sent.
    pub messages: u64,
    /// Events of the world.
    pub events: u64,
    /// Virtual time that passed, in nanoseconds.
    pub virtual_nanos: u64,
    /// What the NICs counted, and the host cores and their kernels (`host_...`): the sum over all
    /// nodes, each since it was last started.
    pub counters: BTreeMap<String, u64>,
    /// Which faults fired in which protocol states.
    pub coverage: Coverage,
    /// Which bodies of the conformance suite ran.
    pub bodies: Bodies,
    /// The longest step of each kind, in accesses.
    pub longest: BTreeMap<CoreStep, u32>,
}

/// A run in which something did not hold.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Honest nodes.
    pub nodes: u16,
    /// The crash point, where the run was of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub point: Option<String>,
    /// The promise whose checker complained; nothing when an app or the liveness phase did.
    pub promise: Option<Promise>,
    /// What happened.
    pub what: String,
    /// Virtual time of it, in nanoseconds since the start.
    pub virtual_nanos: u64,
    /// The last events before it, oldest first.
    pub last_events: Vec<String>,
    /// What had been counted, as in a [`Report`]. Empty when the world panicked.
    pub counters: BTreeMap<String, u64>,
    /// The command that plays the run again.
    pub replay: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.last_events.iter().rev().take(40).rev() {
            writeln!(f, "  {line}")?;
        }
        match &self.point {
            Some(point) => write!(f, "{point}: ")?,
            None => write!(f, "seed {}: ", self.seed)?,
        }
        match self.promise {
            Some(promise) => writeln!(f, "{promise} broken: {}", self.what)?,
            None => writeln!(f, "{}", self.what)?,
        }
        write!(f, "replay: {}", self.replay)
    }
}

impl std::error::Error for Failure {}
