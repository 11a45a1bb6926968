//! Swap: copies of pages, each counted by the entries that name it.

use super::PAGE;
use std::collections::BTreeMap;

struct Slot {
    bytes: Box<[u8; PAGE]>,
    uses: u32,
}

/// The swap space of one host.
#[derive(Default)]
pub(super) struct Swap {
    slots: BTreeMap<u64, Slot>,
    last: u64,
}

impl Swap {
    /// Stores a copy, named once.
    pub(super) fn store(&mut self, bytes: &[u8; PAGE]) -> u64 {
        self.last += 1;
        self.slots.insert(
            self.last,
            Slot {
                bytes: Box::new(*bytes),
                uses: 1,
            },
        );
        self.last
    }

    /// One more entry names the copy.
    pub(super) fn add_use(&mut self, slot: u64) {
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.uses += 1;
        }
    }

    /// One entry less names it.
    pub(super) fn drop_use(&mut self, slot: u64) {
        if let Some(kept) = self.slots.get_mut(&slot) {
            kept.uses -= 1;
            if kept.uses == 0 {
                self.slots.remove(&slot);
            }
        }
    }

    /// Bytes of all copies.
    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * (PAGE + size_of::<(u64, Slot)>())
    }

    /// The bytes of a copy.
    pub(super) fn read(&self, slot: u64) -> Option<&[u8; PAGE]> {
        self.slots.get(&slot).map(|slot| &*slot.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_lives_while_it_is_named() {
        let mut swap = Swap::default();
        let slot = swap.store(&[3; PAGE]);
        swap.add_use(slot);
        swap.drop_use(slot);
        assert_eq!(swap.read(slot), Some(&[3; PAGE]));
        swap.drop_use(slot);
        assert_eq!((swap.read(slot), swap.slots.len()), (None, 0));
    }
}
