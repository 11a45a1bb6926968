//! Waiting lines of fixed memory: items are numbers, each has one link, so no line can overflow.

/// No item.
const NONE: u32 = u32::MAX;

/// First in, first out. An item may stand in at most one line that shares the links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fifo {
    head: u32,
    tail: u32,
}

impl Fifo {
    /// An empty line.
    pub(crate) const fn new() -> Self {
        Self {
            head: NONE,
            tail: NONE,
        }
    }

    /// Whether no item waits.
    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Puts an item at the end.
    pub(crate) fn push(&mut self, links: &mut [u32], item: u32) {
        let Some(link) = links.get_mut(item as usize) else {
            return;
        };
        *link = NONE;
        match links.get_mut(self.tail as usize) {
            Some(last) if self.head != NONE => *last = item,
            _ => self.head = item,
        }
        self.tail = item;
    }

    /// Takes the item at the front.
    pub(crate) fn pop(&mut self, links: &[u32]) -> Option<u32> {
        if self.head == NONE {
            return None;
        }
        let item = self.head;
        self.head = links.get(item as usize).copied().unwrap_or(NONE);
        Some(item)
    }
}

/// One item's place in a [`DeadlineQueue`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Deadline {
    next: u32,
    at: u64,
    queued: bool,
}

impl Deadline {
    /// Whether the item stands in no queue.
    #[inline]
    pub(crate) const fn is_free(&self) -> bool {
        !self.queued
    }
}

/// Items that all wait equally long: so the order in which they came is the order of their
/// deadlines, and a line does what a heap would.
///
/// Items leave only from the front; the caller that pops one checks whether it still matters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadlineQueue {
    head: u32,
    tail: u32,
    span: u64,
}

impl DeadlineQueue {
    /// An empty queue whose items wait for `span` nanoseconds.
    pub(crate) const fn new(span: u64) -> Self {
        Self {
            head: NONE,
            tail: NONE,
            span,
        }
    }

    /// Queues an item that is [free](Deadline::is_free) from `now` on.
    pub(crate) fn append(&mut self, links: &mut [Deadline], item: u32, now: u64) {
        let earliest = match links.get(self.tail as usize) {
            Some(last) if self.head != NONE => last.at,
            _ => 0,
        };
        let Some(link) = links.get_mut(item as usize) else {
            return;
        };
        debug_assert!(link.is_free(), "an item stands in one queue once");
        *link = Deadline {
            next: NONE,
            at: now.saturating_add(self.span).max(earliest),
            queued: true,
        };
        match links.get_mut(self.tail as usize) {
            Some(last) if self.head != NONE => last.next = item,
            _ => self.head = item,
        }
        self.tail = item;
    }

    /// Takes the first item if it is due.
    pub(crate) fn pop_due(&mut self, links: &mut [Deadline], now: u64) -> Option<u32> {
        let item = self.head;
        let link = links.get_mut(item as usize)?;
        if link.at > now {
            return None;
        }
        link.queued = false;
        self.head = link.next;
        Some(item)
    }

    /// When the first item is due.
    pub(crate) fn next(&self, links: &[Deadline]) -> Option<u64> {
        links.get(self.head as usize).map(|link| link.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_and_reusable() {
        let mut links = [0; 4];
        let mut line = Fifo::new();
        for round in 0..3 {
            assert!(line.is_empty());
            for item in [2, 0, 3] {
                line.push(&mut links, item);
            }
            assert_eq!(line.pop(&links), Some(2));
            line.push(&mut links, 2);
            assert_eq!(line.pop(&links), Some(0), "round {round}");
            assert_eq!(line.pop(&links), Some(3));
            assert_eq!(line.pop(&links), Some(2));
            assert_eq!(line.pop(&links), None);
        }
        line.push(&mut links, 9);
        assert!(line.is_empty(), "an item without a link is not taken");
    }

    #[test]
    fn deadlines_come_in_order_and_once() {
        let mut links = [Deadline::default(); 3];
        let mut queue = DeadlineQueue::new(10);
        queue.append(&mut links, 1, 100);
        queue.append(&mut links, 0, 105);
        assert!(!links[1].is_free() && links[2].is_free());
        assert_eq!(queue.next(&links), Some(110));
        assert_eq!(queue.pop_due(&mut links, 109), None);
        assert_eq!(queue.pop_due(&mut links, 115), Some(1));
        assert!(links[1].is_free());
        queue.append(&mut links, 1, 112);
        assert_eq!(queue.pop_due(&mut links, 115), Some(0));
        assert_eq!(queue.next(&links), Some(122));
        assert_eq!(queue.pop_due(&mut links, 122), Some(1));
        assert_eq!(queue.next(&links), None);
    }
}
