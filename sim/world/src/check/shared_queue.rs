//! P2, of shared queues: each place is given out once until it comes back, and each has one record, also if its
//! message could not be put there; or the receiver would wait at it for ever.

use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::Seen;
use netvm_abi::Nanos;
use std::collections::BTreeSet;

/// Knows which ports are open.
#[derive(Default)]
pub(super) struct SharedQueue {
    open: BTreeSet<(u16, u16)>,
}

impl Checker for SharedQueue {
    fn promise(&self) -> Promise {
        Promise::P2
    }

    fn see(&mut self, _now: Nanos, fact: &Seen, news: &[News], _ledger: &Ledger) -> Verdict {
        match *fact {
            Seen::PortOpened { node, port, .. } => {
                self.open.insert((node.0, port.0));
            }
            Seen::PortClosed { node, port } => {
                self.open.remove(&(node.0, port.0));
            }
            Seen::Restarted { node } | Seen::CardDead { node } => self.open.retain(|key| key.0 != node.0),
            _ => {}
        }
        for item in news {
            if let News::BadPlace {
                port: (node, port),
                at,
                why,
            } = *item
            {
                return Err(format!(
                    "node {node}: the place at {at:#x} of the shared queue of port {port}: {why}"
                ));
            }
        }
        Ok(())
    }

    fn settled(&mut self, ledger: &Ledger) -> Verdict {
        ledger
            .lost_place(|node, port| self.open.contains(&(node, port)))
            .map_or(Ok(()), Err)
    }
}
