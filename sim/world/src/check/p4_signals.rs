//! P4: an app reads each signal. The count that apps read is the shadow of the card's own; each signal reaches it, in order.

use super::p4_order::{Key, forget_port};
use super::{Checker, Ledger, News, Promise, Verdict};
use crate::seen::Seen;
use netvm_abi::Nanos;
use std::collections::BTreeMap;

/// Knows the counts that have no shadow yet.
#[derive(Default)]
pub(super) struct Signals(BTreeMap<Key, u32>);

impl Signals {
    fn missing(key: Key, count: u32) -> Verdict {
        Err(format!(
            "node {}: signal {count} of notification {} of port {} does not stand where its app reads it",
            key.0, key.2, key.1
        ))
    }
}

impl Checker for Signals {
    fn promise(&self) -> Promise {
        Promise::P4
    }

    fn see(&mut self, _now: Nanos, fact: &Seen, _news: &[News], _ledger: &Ledger) -> Verdict {
        match *fact {
            // Counts that go to zero are a new owner's.
            Seen::Signalled {
                node,
                port,
                id,
                count,
            } if count != 0 => {
                let key = (node, port, id);
                if let Some(before) = self.0.insert(key, count) {
                    return Self::missing(key, before);
                }
            }
            Seen::Shadowed {
                node,
                port,
                id,
                count,
            } => {
                let key = (node, port, id);
                if self.0.remove(&key) != Some(count) {
                    return Err(format!(
                        "node {node}: the app of port {port} reads {count} signals of notification {id}, which the card has not counted"
                    ));
                }
            }
            Seen::PortOpened { node, port, .. } => forget_port(&mut self.0, node, port),
            Seen::Restarted { node } | Seen::CardDead { node } => self.0.retain(|key, _| key.0 != node),
            _ => {}
        }
        Ok(())
    }

    fn settled(&mut self, _ledger: &Ledger) -> Verdict {
        match self.0.first_key_value() {
            Some((&key, &count)) => Self::missing(key, count),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NODE, PORT, caught, feed};
    use super::*;
    use netvm_abi::NotificationId;

    fn signalled(count: u32) -> Seen {
        Seen::Signalled {
            node: NODE,
            port: PORT,
            id: NotificationId(3),
            count,
        }
    }

    fn shadowed(count: u32) -> Seen {
        Seen::Shadowed {
            node: NODE,
            port: PORT,
            id: NotificationId(3),
            count,
        }
    }

    #[test]
    fn each_signal_reaches_its_shadow() {
        let good = [signalled(1), shadowed(1), signalled(2), shadowed(2)];
        assert_eq!(feed(&mut Signals::default(), &good), Ok(()));
        caught(
            feed(&mut Signals::default(), &[signalled(1), signalled(2)]),
            "signal 1 of notification 3",
        );
        for bad in [&[signalled(1), shadowed(2)][..], &[shadowed(1)]] {
            caught(
                feed(&mut Signals::default(), bad),
                "which the card has not counted",
            );
        }
        let mut last = Signals::default();
        assert_eq!(feed(&mut last, &[signalled(1)]), Ok(()));
        caught(last.settled(&Ledger::default()), "where its app reads it");
    }
}
