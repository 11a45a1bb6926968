//! Address ranges and what they belong to: the range half of import and export maps (thesis 4.1.2).

use netvm_abi::VirtAddr;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Ranges of several address spaces `K`, which may overlap within one. Finds the nearest in O(log n)
/// where they do not; entries whose object has gone are skipped.
#[derive(Debug)]
pub(crate) struct RangeMap<K, V> {
    ranges: BTreeMap<(K, VirtAddr, u64), (u64, V)>,
    next: u64,
}

impl<K, V> Default for RangeMap<K, V> {
    fn default() -> Self {
        Self {
            ranges: BTreeMap::new(),
            next: 0,
        }
    }
}

/// Names an entry for its removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeKey {
    start: VirtAddr,
    unique: u64,
}

impl<K: Ord + Copy, T> RangeMap<K, Weak<T>> {
    pub(crate) fn insert(&mut self, space: K, start: VirtAddr, len: u64, value: Weak<T>) -> RangeKey {
        self.next += 1;
        self.ranges.insert((space, start, self.next), (len, value));
        RangeKey {
            start,
            unique: self.next,
        }
    }

    pub(crate) fn remove(&mut self, space: K, key: RangeKey) {
        self.ranges.remove(&(space, key.start, key.unique));
    }

    /// A range that holds `address`, and its start.
    pub(crate) fn find(&self, space: K, address: VirtAddr) -> Option<(VirtAddr, Arc<T>)> {
        let from = (space, VirtAddr(0), 0);
        let to = (space, address, u64::MAX);
        let mut below = self.ranges.range(from..=to).rev();
        below.find_map(|(&(_, start, _), (len, value))| {
            let inside = address.0.wrapping_sub(start.0) < *len;
            let value = if inside { value.upgrade() } else { None };
            value.map(|value| (start, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_holds_an_address_and_only_in_its_space() {
        let mut map = RangeMap::<u8, Weak<&str>>::default();
        let (low, high, inner) = (Arc::new("low"), Arc::new("high"), Arc::new("inner"));
        map.insert(1, VirtAddr(0x1000), 0x1000, Arc::downgrade(&low));
        map.insert(1, VirtAddr(0x8000), 0x4000, Arc::downgrade(&high));
        let key = map.insert(1, VirtAddr(0x9000), 0x10, Arc::downgrade(&inner));
        let name = |map: &RangeMap<u8, Weak<&'static str>>, space, at| {
            map.find(space, VirtAddr(at))
                .map(|(start, value)| (start.0, *value))
        };
        assert_eq!(name(&map, 1, 0xFFF), None);
        assert_eq!(name(&map, 1, 0x1000), Some((0x1000, "low")));
        assert_eq!(name(&map, 1, 0x1FFF), Some((0x1000, "low")));
        assert_eq!(name(&map, 1, 0x2000), None);
        assert_eq!(name(&map, 2, 0x1000), None);
        assert_eq!(name(&map, 1, 0x9008), Some((0x9000, "inner")));
        assert_eq!(name(&map, 1, 0x9010), Some((0x8000, "high")));
        map.remove(1, key);
        assert_eq!(name(&map, 1, 0x9008), Some((0x8000, "high")));
        drop(high);
        assert_eq!(name(&map, 1, 0x9008), None);
    }
}
