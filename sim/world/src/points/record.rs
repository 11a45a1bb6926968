//! Which accesses of a run differ.

use super::{Access, Word};
use crate::faults::StateSet;
use crate::words::{Actor, Touch};
use netvm_abi::NodeId;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// An access that a fault can strike at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Its number in the run; 1 is the first.
    pub access: u64,
    /// Whether a process is there to die.
    pub has_process: bool,
    /// What the host driver or a card does is the same in any body where this number is. Programs have none. Good within one
    /// process.
    pub common: Option<u64>,
}

/// What tells accesses apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    node: NodeId,
    actor: Actor,
    touch: Touch,
    word: Word,
    chain: u64,
    states: StateSet,
}

/// The accesses of a run so far.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    seen: BTreeSet<Kind>,
    spots: Vec<Spot>,
}

impl Recorder {
    /// An access is made.
    pub(super) fn reach(
        &mut self,
        number: u64,
        access: &Access,
        chain: u64,
        states: StateSet,
        has_process: bool,
    ) {
        let kind = Kind {
            node: access.node,
            actor: access.actor,
            touch: access.touch,
            word: access.word,
            chain,
            states,
        };
        if self.seen.insert(kind) {
            let common = (access.actor != Actor::App).then(|| {
                let mut hasher = DefaultHasher::new();
                (kind.node, kind.actor, kind.touch, kind.word.kind).hash(&mut hasher);
                (chain, kind.states).hash(&mut hasher);
                hasher.finish()
            });
            self.spots.push(Spot {
                access: number,
                has_process,
                common,
            });
        }
    }

    /// Those that count, in the order of the run.
    pub(super) fn spots(&self) -> Vec<Spot> {
        self.spots.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_abi::PortId;

    #[test]
    fn place_state_word_and_side_tell_accesses_apart() {
        let mut recorder = Recorder::default();
        let access = Access {
            node: NodeId(1),
            actor: Actor::App,
            touch: Touch::Load,
            word: Word {
                port: Some(PortId(2)),
                kind: "taken",
            },
        };
        let idle = StateSet::default().or_idle();
        let mut number = 0;
        let mut reach = |access: &Access, chain, states| {
            number += 1;
            recorder.reach(number, access, chain, states, true);
            recorder.spots().last().is_some_and(|spot| spot.access == number)
        };
        assert!(reach(&access, 5, idle));
        assert!(!reach(&access, 5, idle), "equal");
        assert!(reach(&access, 6, idle));
        assert!(reach(&access, 5, StateSet::default()));
        for other in [
            Access {
                node: NodeId(0),
                ..access
            },
            Access {
                actor: Actor::Card,
                ..access
            },
            Access {
                touch: Touch::Store,
                ..access
            },
        ] {
            assert!(reach(&other, 5, idle), "{other:?}");
            assert!(!reach(&other, 5, idle));
        }
    }
}
