//! Which port numbers are taken, in a map of bits: to find a free one, or to know whether any is taken, looks at no port
//! (promise P7).

use netvm_abi::PortId;

/// Port numbers in a word of the map.
const BITS: u16 = u64::BITS as u16;
/// Words of the map: enough for the most ports that a geometry admits.
const WORDS: usize = 1024 / u64::BITS as usize;

/// The port numbers of a node.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// A bit for each number, set while a port has it. Numbers that the node has not got are set for good.
    taken: [u64; WORDS],
    /// How many ports have one.
    count: u16,
}

impl Numbers {
    /// Of a node with so many ports, all free.
    pub(crate) fn new(ports: u16) -> Self {
        let mut numbers = Self {
            taken: [u64::MAX; WORDS],
            count: 0,
        };
        for port in 0..ports {
            if let Some((word, bit)) = numbers.at(PortId(port)) {
                *word &= !bit;
            }
        }
        numbers
    }

    fn at(&mut self, port: PortId) -> Option<(&mut u64, u64)> {
        let word = self.taken.get_mut(usize::from(port.0 / BITS))?;
        Some((word, 1 << (port.0 % BITS)))
    }

    /// A port has this number from now on.
    pub(crate) fn take(&mut self, port: PortId) {
        if let Some((word, bit)) = self.at(port)
            && *word & bit == 0
        {
            *word |= bit;
            self.count += 1;
        }
    }

    /// A number that a port has had is free again.
    pub(crate) fn give(&mut self, port: PortId) {
        if let Some((word, bit)) = self.at(port)
            && *word & bit != 0
        {
            *word &= !bit;
            self.count -= 1;
        }
    }

    /// Whether no port has a number.
    pub(crate) const fn all_free(&self) -> bool {
        self.count == 0
    }

    /// The lowest free number from `first` on.
    pub(crate) fn lowest_free(&self, first: u16) -> Option<PortId> {
        let mut below = u64::MAX.checked_shl(u32::from(first % BITS)).unwrap_or(0);
        let words = self.taken.iter().enumerate().skip(usize::from(first / BITS));
        for (index, word) in words {
            let free = !word & core::mem::replace(&mut below, u64::MAX);
            if free != 0 {
                return Some(PortId(index as u16 * BITS + free.trailing_zeros() as u16));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    proptest::proptest! {
        #[test]
        fn the_map_knows_what_a_set_knows(
            ports in proptest::sample::select(std::vec![2u16, 63, 64, 65, 128, 1000, 1024]),
            steps in proptest::collection::vec((0u16..1024, proptest::bool::weighted(0.7)), 0..3000),
            first in 0u16..1100,
        ) {
            let mut numbers = Numbers::new(ports);
            let mut free: BTreeSet<u16> = (0..ports).collect();
            for (port, take) in steps {
                let port = port % ports;
                if take {
                    numbers.take(PortId(port));
                    free.remove(&port);
                } else {
                    numbers.give(PortId(port));
                    free.insert(port);
                }
            }
            proptest::prop_assert_eq!(numbers.lowest_free(first).map(|port| port.0), free.range(first..).next().copied());
            proptest::prop_assert_eq!(numbers.all_free(), free.len() == usize::from(ports));
        }
    }
}
