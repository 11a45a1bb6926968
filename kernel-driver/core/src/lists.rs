//! Doubly linked lists threaded through a table, and an index of a table in sorted order: the two
//! containers of a core that must not allocate.

use core::cmp::Ordering;
use core::ops::{Deref, DerefMut};

const NIL: u32 = u32::MAX;

/// A table entry's place in one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    prev: u32,
    next: u32,
    listed: bool,
}

impl Links {
    pub(crate) const NONE: Self = Self {
        prev: NIL,
        next: NIL,
        listed: false,
    };

    pub(crate) const fn is_listed(&self) -> bool {
        self.listed
    }
}

/// A table entry that can be in the list `WHICH`; an entry may be in several kinds of lists, and in
/// at most one of each kind.
pub(crate) trait Linked<const WHICH: usize> {
    fn links(&self) -> &Links;
    fn links_mut(&mut self) -> &mut Links;
}

/// Says which field of an entry is its place in which kind of list: `linked!(Entry: 0 => peer, 1 => free)`.
macro_rules! linked {
    ($entry:ty: $($which:literal => $field:ident),+) => {$(
        impl $crate::lists::Linked<$which> for $entry {
            fn links(&self) -> &Links {
                &self.$field
            }
            fn links_mut(&mut self) -> &mut Links {
                &mut self.$field
            }
        }
    )+};
}
pub(crate) use linked;

/// Head of a list. Every operation is O(1); an index outside of the table changes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<const WHICH: usize> {
    head: u32,
    tail: u32,
    len: u32,
}

impl<const WHICH: usize> List<WHICH> {
    pub(crate) const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
        len: 0,
    };

    /// Every entry of a table, none of which is in a list: the free ones at the beginning.
    pub(crate) fn of_all<T: Linked<WHICH>>(table: &mut [T]) -> Self {
        let mut list = Self::EMPTY;
        for index in 0..table.len() {
            list.push_back(table, index as u32);
        }
        list
    }

    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) const fn first(&self) -> Option<u32> {
        if self.head == NIL { None } else { Some(self.head) }
    }

    pub(crate) fn after<T: Linked<WHICH>>(table: &[T], index: u32) -> Option<u32> {
        let next = table.get(index as usize)?.links().next;
        if next == NIL { None } else { Some(next) }
    }

    pub(crate) fn push_back<T: Linked<WHICH>>(&mut self, table: &mut [T], index: u32) {
        let Some(entry) = table.get_mut(index as usize) else {
            return;
        };
        if entry.links().listed {
            return;
        }
        *entry.links_mut() = Links {
            prev: self.tail,
            next: NIL,
            listed: true,
        };
        match table.get_mut(self.tail as usize) {
            Some(tail) => tail.links_mut().next = index,
            None => self.head = index,
        }
        self.tail = index;
        self.len += 1;
    }

    pub(crate) fn push_front<T: Linked<WHICH>>(&mut self, table: &mut [T], index: u32) {
        let Some(entry) = table.get_mut(index as usize) else {
            return;
        };
        if entry.links().listed {
            return;
        }
        *entry.links_mut() = Links {
            prev: NIL,
            next: self.head,
            listed: true,
        };
        match table.get_mut(self.head as usize) {
            Some(head) => head.links_mut().prev = index,
            None => self.tail = index,
        }
        self.head = index;
        self.len += 1;
    }

    pub(crate) fn remove<T: Linked<WHICH>>(&mut self, table: &mut [T], index: u32) -> bool {
        let Some(entry) = table.get_mut(index as usize) else {
            return false;
        };
        let Links { prev, next, listed } = *entry.links();
        if !listed {
            return false;
        }
        *entry.links_mut() = Links::NONE;
        match table.get_mut(prev as usize) {
            Some(entry) => entry.links_mut().next = next,
            None => self.head = next,
        }
        match table.get_mut(next as usize) {
            Some(entry) => entry.links_mut().prev = prev,
            None => self.tail = prev,
        }
        self.len -= 1;
        true
    }

    pub(crate) fn pop_front<T: Linked<WHICH>>(&mut self, table: &mut [T]) -> Option<u32> {
        let first = self.first()?;
        self.remove(table, first).then_some(first)
    }
}

/// The used entries of a table in sorted order: found in O(log n), inserted by shifting four-byte
/// indices (4 KiB for 1024 entries, a few hundred nanoseconds).
pub(crate) struct Sorted<T> {
    order: T,
    len: usize,
}

impl<T: DerefMut<Target = [u32]>> Sorted<T> {
    pub(crate) const fn new(order: T) -> Self {
        Self { order, len: 0 }
    }

    pub(crate) fn insert(&mut self, at: usize, index: u32) -> bool {
        if at > self.len || self.len >= self.order.len() {
            return false;
        }
        self.order.copy_within(at..self.len, at + 1);
        if let Some(place) = self.order.get_mut(at) {
            *place = index;
        }
        self.len += 1;
        true
    }

    pub(crate) fn remove(&mut self, at: usize) {
        if at < self.len {
            self.order.copy_within(at + 1..self.len, at);
            self.len -= 1;
        }
    }
}

impl<T: Deref<Target = [u32]>> Sorted<T> {
    fn used(&self) -> &[u32] {
        self.order.get(..self.len).unwrap_or(&[])
    }

    pub(crate) fn get(&self, at: usize) -> Option<u32> {
        self.used().get(at).copied()
    }

    /// Where an entry is, or where it belongs; `compare` tells how an entry stands to it.
    pub(crate) fn search(&self, mut compare: impl FnMut(u32) -> Ordering) -> Result<usize, usize> {
        self.used().binary_search_by(|&index| compare(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::vec;
    use std::vec::Vec;

    struct Entry {
        links: Links,
    }
    linked!(Entry: 0 => links);

    proptest::proptest! {
        #[test]
        fn list_behaves_like_a_deque(ops in proptest::collection::vec((0u8..4, 0u32..9), 0..200)) {
            let mut table: Vec<_> = (0..8).map(|_| Entry { links: Links::NONE }).collect();
            let mut list = List::<0>::EMPTY;
            let mut model = VecDeque::new();
            for (op, index) in ops {
                match op {
                    0 => {
                        list.push_back(&mut table, index);
                        if index < 8 && !model.contains(&index) {
                            model.push_back(index);
                        }
                    }
                    3 => {
                        list.push_front(&mut table, index);
                        if index < 8 && !model.contains(&index) {
                            model.push_front(index);
                        }
                    }
                    1 => {
                        let was = model.contains(&index);
                        assert_eq!(list.remove(&mut table, index), was);
                        model.retain(|&i| i != index);
                    }
                    _ => assert_eq!(list.pop_front(&mut table), model.pop_front()),
                }
                let mut seen = vec![];
                let mut at = list.first();
                while let Some(i) = at {
                    seen.push(i);
                    at = List::<0>::after(&table, i);
                }
                assert_eq!(seen, Vec::from(model.clone()));
                assert_eq!(list.len() as usize, model.len());
                assert_eq!(list.is_empty(), model.is_empty());
            }
        }

        #[test]
        fn sorted_stays_sorted(keys in proptest::collection::vec(0u32..50, 0..40)) {
            let mut sorted = Sorted::new(vec![0u32; 32]);
            let mut model = std::collections::BTreeSet::new();
            for key in keys {
                match sorted.search(|i| i.cmp(&key)) {
                    Ok(at) => {
                        assert!(model.remove(&key));
                        sorted.remove(at);
                    }
                    Err(at) => {
                        if sorted.insert(at, key) {
                            model.insert(key);
                        } else {
                            assert_eq!(model.len(), 32);
                        }
                    }
                }
                assert_eq!(sorted.used(), model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
