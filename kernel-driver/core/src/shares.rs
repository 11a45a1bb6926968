//! A table that ports share. Half of its entries are divided among all port numbers, open or not: each port can have its
//! share whatever the others hold. The other half goes to the ports that ask first.
//!
//! The invariant is `free >= reserved`, where `reserved` is what the shares of all ports still lack. An entry inside a share
//! takes one from both sides. An entry beyond a share is given only while `free > reserved`. An entry that comes back adds
//! one to `free`, and at most one to `reserved`. So a port below its share always finds a free entry.

use netvm_abi::PortId;
use netvm_abi::storage::{MakeTable, Storage};

/// How the entries of one table are divided.
pub(crate) struct Shares<S: Storage> {
    /// Entries of each port.
    held: S::Table<u32>,
    /// Entries that each port can have in any case.
    share: u32,
    free: u32,
    /// Free entries that belong to shares.
    reserved: u32,
}

impl<S: MakeTable> Shares<S> {
    /// For a table of `entries` and `ports` port numbers, number 0 included, which has no share.
    pub(crate) fn new(tables: &mut S, entries: u32, ports: u16) -> Self {
        let users = u32::from(ports.saturating_sub(1)).max(1);
        let share = entries / 2 / users;
        Self {
            held: tables.table(usize::from(ports), |_| 0),
            share,
            free: entries,
            reserved: share * users,
        }
    }
}

impl<S: Storage> Shares<S> {
    /// A port takes an entry. False: it has its share, and all that is not reserved for others is taken.
    pub(crate) fn take(&mut self, port: PortId) -> bool {
        let Some(held) = self.held.get_mut(port.index()).filter(|_| port != PortId::DRIVER) else {
            return false;
        };
        if *held < self.share {
            self.reserved = self.reserved.saturating_sub(1);
        } else if self.free <= self.reserved {
            return false;
        }
        *held += 1;
        self.free = self.free.saturating_sub(1);
        true
    }

    /// Entries that ports have.
    pub(crate) fn held(&self) -> u32 {
        self.held.iter().sum()
    }

    /// A port gives an entry back.
    pub(crate) fn give(&mut self, port: PortId) {
        let Some(held) = self.held.get_mut(port.index()).filter(|held| **held > 0) else {
            return;
        };
        *held -= 1;
        self.free += 1;
        if *held < self.share {
            self.reserved += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_kit::Heap;
    use std::vec::Vec;

    #[test]
    fn a_greedy_port_leaves_each_other_one_its_share() {
        for (entries, ports) in [(1024, 64), (16, 8), (16, 4), (5, 8), (1, 2), (65_535, 64)] {
            let mut shares = Shares::new(&mut Heap::default(), entries, ports);
            let users = u32::from(ports) - 1;
            let share = entries / 2 / users;
            let mut taken = 0;
            while shares.take(PortId(1)) {
                taken += 1;
            }
            assert_eq!(
                taken,
                entries - share * (users - 1),
                "{entries} entries, {ports} ports"
            );
            for port in 2..ports {
                for _ in 0..share {
                    assert!(shares.take(PortId(port)), "port {port} of {ports}");
                }
                assert!(!shares.take(PortId(port)), "all is taken");
            }
            assert!(!shares.take(PortId(ports)), "no such port");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_share_can_be_had_at_any_time(
            entries in 1u32..64,
            ops in proptest::collection::vec((0u16..6, proptest::bool::ANY), 0..300),
        ) {
            let mut shares = Shares::new(&mut Heap::default(), entries, 6);
            let mut held = [0u32; 6];
            for (port, takes) in ops {
                let mine = &mut held[usize::from(port)];
                if takes && shares.take(PortId(port)) {
                    *mine += 1;
                } else if !takes && *mine > 0 {
                    shares.give(PortId(port));
                    *mine -= 1;
                }
                let sum: u32 = held.iter().sum();
                proptest::prop_assert!(sum <= entries);
                proptest::prop_assert_eq!(shares.free, entries - sum);
                let lacking: Vec<u32> = held[1..].iter().map(|held| shares.share.saturating_sub(*held)).collect();
                proptest::prop_assert!(shares.free >= lacking.iter().sum());
            }
        }
    }
}
