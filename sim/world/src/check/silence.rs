//! Pages that do not come hold up what lies behind them in their port's queue, each for as long as its driver waits for it.
//! Promise P2's time grows by as much: it is slots x (page in + copy), and such a page-in takes its whole deadline.

use crate::faults::FaultKind;
use crate::seen::Seen;
use netvm_abi::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// When pages of which nodes have not come.
pub(super) struct Silence {
    /// How long one of them holds up its port.
    each: Nanos,
    /// As far back as anything is asked about.
    memory: Nanos,
    struck: BTreeMap<u16, VecDeque<Nanos>>,
}

impl Silence {
    /// Each holds up its port for as long as this. One that came longer ago than `memory` delays nothing any more.
    pub(super) const fn new(each: Nanos, memory: Nanos) -> Self {
        Self {
            each,
            memory,
            struck: BTreeMap::new(),
        }
    }

    pub(super) fn see(&mut self, now: Nanos, fact: &Seen) {
        if let Seen::Fault {
            node,
            kind: FaultKind::VmStuck,
        } = fact
        {
            let struck = self.struck.entry(node.0).or_default();
            struck.push_back(now);
            while struck.front().is_some_and(|first| first.after(self.memory) < now) {
                struck.pop_front();
            }
        }
    }

    /// How much later a message may end at a node that it reached at this time. A page that is waited for already then counts, too.
    pub(super) fn delay(&self, node: u16, since: Nanos) -> Nanos {
        let struck = self.struck.get(&node).into_iter().flatten();
        let count = struck.filter(|at| at.after(self.each) >= since).count();
        Nanos(self.each.0 * count as u64)
    }
}
