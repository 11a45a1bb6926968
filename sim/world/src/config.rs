//! What a run is told beside its seed.

use netvm_abi::Nanos;

/// Which faults a run throws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultLevel {
    /// None.
    Off,
    /// Those that no correct program notices: eviction, fork, write-protection, reordering, pauses,
    /// late DMA. Every operation must succeed.
    Benign,
    /// All, at rates drawn from the seed. Operations may fail with errors.
    All,
}

/// Configuration of a run. A run is a function of its seed and of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Honest nodes, at least 2: the apps talk to other nodes. The hostile one comes on top.
    pub nodes: u16,
    /// Messages that the run carries at least.
    pub messages: u64,
    /// Very many nodes that say little ([`crate`]'s `sparse`): only frames are lost, and no other fault is thrown.
    pub sparse: bool,
    /// Long ways between nodes, of 30 us to 1 ms, and cards and drivers with the time spans that are shipped: what a library waits for
    /// is under way when its time runs out.
    pub far: bool,
    /// Which faults it throws.
    pub faults: FaultLevel,
    /// How long a message may take from its arrival to its end (promise P2's T).
    pub deadline: Nanos,
    /// How long everything may take to finish once the faults have stopped.
    pub patience: Nanos,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: 4,
            messages: 10_000,
            sparse: false,
            far: false,
            faults: FaultLevel::All,
            deadline: Nanos::from_millis(100),
            patience: Nanos::from_millis(4_000),
        }
    }
}

impl Config {
    /// The usual one, [`far`](Self::far) apart, with the time for that.
    #[must_use]
    pub fn far() -> Self {
        Self {
            far: true,
            deadline: Nanos::from_millis(60_000),
            patience: Nanos::from_millis(200_000),
            ..Self::default()
        }
    }

    /// The command that plays a run of this configuration again (promise P8).
    #[must_use]
    pub fn replay(&self, seed: u64) -> String {
        let (nodes, messages) = (self.nodes, self.messages);
        let messages = if messages == Self::default().messages {
            String::new()
        } else {
            format!(" --messages {messages}")
        };
        let kind = match (self.sparse, self.far) {
            (true, _) => " --sparse",
            (false, true) => " --far",
            (false, false) => "",
        };
        format!(
            "cargo run --release --bin netvm -- sim --seed {seed} --nodes {nodes}{messages}{kind} --trace"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_names_all_that_makes_the_run() {
        assert!(
            Config::default()
                .replay(7)
                .ends_with(" sim --seed 7 --nodes 4 --trace")
        );
        let config = Config {
            messages: 300,
            ..Config::default()
        };
        assert!(
            config
                .replay(7)
                .ends_with(" sim --seed 7 --nodes 4 --messages 300 --trace")
        );
    }
}
