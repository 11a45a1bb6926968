//! Whether an answer arrives in order: one that has a number of its own, while none that left before it is missing.

use std::collections::BTreeSet;

/// The numbered answers of one node to another.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The link's incarnations: numbers begin anew with each life.
    lives: (u32, u32),
    /// The number after the highest that has left.
    next: Option<u32>,
    /// What has left and has not arrived.
    missing: BTreeSet<u32>,
}

impl Order {
    /// An answer leaves, for the first time or again.
    pub(super) fn leaves(&mut self, lives: (u32, u32), number: u32) {
        if self.lives != lives {
            *self = Self {
                lives,
                ..Self::default()
            };
        }
        let is_new = self.next.is_none_or(|next| number.wrapping_sub(next) as i32 >= 0);
        if is_new {
            self.next = Some(number.wrapping_add(1));
            self.missing.insert(number);
        }
    }

    /// One arrives: whether none that left before it is missing.
    pub(super) fn arrives(&mut self, number: u32) -> bool {
        self.missing.remove(&number);
        let mut missing = self.missing.iter();
        !missing.any(|missing| number.wrapping_sub(*missing) as i32 > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_in_order_when_all_before_it_have_arrived() {
        for first in [1, u32::MAX - 1] {
            let mut order = Order::default();
            let number = |at: u32| first.wrapping_add(at);
            for at in 0..4 {
                order.leaves((7, 8), number(at));
            }
            assert!(order.arrives(number(0)));
            assert!(!order.arrives(number(2)), "1 is missing");
            order.leaves((7, 8), number(1));
            assert!(order.arrives(number(1)));
            assert!(order.arrives(number(2)), "it comes again");
            assert!(order.arrives(number(3)));
            // What has arrived is not missing because it leaves again.
            order.leaves((7, 8), number(2));
            assert!(order.arrives(number(3)));
            order.leaves((7, 9), number(0));
            assert!(order.arrives(number(0)), "another life");
        }
    }
}
