//! Which page goes next: an active and an inactive queue of frames with a second chance, as in thesis 4.2.1.
//!
//! User space cannot read the processor's accessed bits, so an application's *reads* of a resident page are not seen; its write
//! faults and the card's referenced bits are. That makes the order approximate, and the same in kind as the original's.

use super::frames::Frame;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    Active,
    Inactive,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Queue {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
    };
}

/// What the queues must ask about a frame.
pub trait Probe {
    /// Was it used since the last question? Asking clears the mark.
    fn take_referenced(&mut self, frame: Frame) -> bool;
    /// May it be evicted now? A page under a copy may not.
    fn evictable(&mut self, frame: Frame) -> bool;
    /// It has just become inactive.
    fn deactivated(&mut self, frame: Frame);
}

/// The two queues over all frames of a node; no allocation after `new`.
#[derive(Debug)]
pub struct Lru {
    links: Box<[Link]>,
    active: Queue,
    inactive: Queue,
    second_chances: u64,
}

impl Lru {
    /// Empty queues for frames 0 to `frames` - 1.
    #[must_use]
    pub fn new(frames: u32) -> Self {
        let link = Link {
            before: NONE,
            after: NONE,
            place: Place::Nowhere,
        };
        Self {
            links: vec![link; frames as usize].into_boxed_slice(),
            active: Queue::EMPTY,
            inactive: Queue::EMPTY,
            second_chances: 0,
        }
    }

    /// How many frames are queued.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.active.len + self.inactive.len
    }

    /// True when no frame is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How often a referenced frame was spared.
    #[must_use]
    pub fn second_chances(&self) -> u64 {
        self.second_chances
    }

    /// A page has come in: its frame is the youngest active one.
    pub fn insert(&mut self, frame: Frame) {
        self.remove(frame);
        self.push(frame.0, Place::Active);
    }

    /// The frame's page has gone.
    pub fn remove(&mut self, frame: Frame) {
        self.unlink(frame.0);
    }

    /// The page was used: an inactive frame becomes the youngest active one.
    pub fn activate(&mut self, frame: Frame) {
        if self.link(frame.0).place == Place::Inactive {
            self.unlink(frame.0);
            self.push(frame.0, Place::Active);
        }
    }

    /// Chooses a frame to evict and leaves it queued. Every frame that is passed over because it was referenced becomes active
    /// again; after one look at every frame the oldest evictable one is taken, referenced or not. `None` if none is evictable.
    pub fn victim(&mut self, probe: &mut impl Probe) -> Option<Frame> {
        let mut looks = self.len();
        while looks > 0 {
            looks -= 1;
            self.balance(probe);
            let oldest = self.inactive.head;
            if oldest == NONE {
                break;
            }
            let frame = Frame(oldest);
            if !probe.evictable(frame) {
                self.unlink(oldest);
                self.push(oldest, Place::Active);
            } else if probe.take_referenced(frame) {
                self.second_chances += 1;
                self.unlink(oldest);
                self.push(oldest, Place::Active);
            } else {
                return Some(frame);
            }
        }
        self.oldest_evictable(probe)
    }

    /// Keeps at least a third of the frames inactive, deactivating from the old end; a referenced one stays active once more.
    fn balance(&mut self, probe: &mut impl Probe) {
        let mut looks = self.active.len;
        while looks > 0 && self.inactive.len < self.len().div_ceil(3) {
            looks -= 1;
            let oldest = self.active.head;
            if oldest == NONE {
                return;
            }
            self.unlink(oldest);
            if probe.take_referenced(Frame(oldest)) {
                self.second_chances += 1;
                self.push(oldest, Place::Active);
            } else {
                self.push(oldest, Place::Inactive);
                probe.deactivated(Frame(oldest));
            }
        }
    }

    fn oldest_evictable(&self, probe: &mut impl Probe) -> Option<Frame> {
        for queue in [self.inactive, self.active] {
            let mut at = queue.head;
            while at != NONE {
                if probe.evictable(Frame(at)) {
                    return Some(Frame(at));
                }
                at = self.link(at).after;
            }
        }
        None
    }

    fn link(&self, index: u32) -> Link {
        self.links.get(index as usize).copied().unwrap_or(Link {
            before: NONE,
            after: NONE,
            place: Place::Nowhere,
        })
    }

    fn change(&mut self, index: u32, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(index as usize) {
            change(link);
        }
    }

    fn queue(&mut self, place: Place) -> Option<&mut Queue> {
        match place {
            Place::Active => Some(&mut self.active),
            Place::Inactive => Some(&mut self.inactive),
            Place::Nowhere => None,
        }
    }

    fn push(&mut self, index: u32, place: Place) {
        if index as usize >= self.links.len() {
            return;
        }
        let Some(queue) = self.queue(place) else { return };
        let tail = queue.tail;
        queue.tail = index;
        queue.len += 1;
        if tail == NONE {
            queue.head = index;
        }
        self.change(tail, |link| link.after = index);
        self.change(index, |link| {
            *link = Link {
                before: tail,
                after: NONE,
                place,
            }
        });
    }

    fn unlink(&mut self, index: u32) {
        let Link { before, after, place } = self.link(index);
        let Some(queue) = self.queue(place) else { return };
        queue.len -= 1;
        if before == NONE {
            queue.head = after;
        }
        if after == NONE {
            queue.tail = before;
        }
        self.change(before, |link| link.after = after);
        self.change(after, |link| link.before = before);
        self.change(index, |link| {
            *link = Link {
                before: NONE,
                after: NONE,
                place: Place::Nowhere,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    use proptest::prelude::*;

    #[derive(Default)]
    struct Marks {
        referenced: HashSet<u32>,
        held: HashSet<u32>,
        deactivated: Vec<u32>,
    }

    impl Probe for Marks {
        fn take_referenced(&mut self, frame: Frame) -> bool {
            self.referenced.remove(&frame.0)
        }
        fn evictable(&mut self, frame: Frame) -> bool {
            !self.held.contains(&frame.0)
        }
        fn deactivated(&mut self, frame: Frame) {
            self.deactivated.push(frame.0);
        }
    }

    fn full(frames: u32) -> Lru {
        let mut lru = Lru::new(frames);
        (0..frames).for_each(|frame| lru.insert(Frame(frame)));
        lru
    }

    #[test]
    fn without_references_the_oldest_goes_first() {
        let mut lru = full(6);
        let mut marks = Marks::default();
        for expected in 0..6 {
            let victim = lru.victim(&mut marks).unwrap();
            assert_eq!(victim, Frame(expected));
            lru.remove(victim);
        }
        assert_eq!(lru.victim(&mut marks), None);
    }

    #[test]
    fn a_referenced_frame_outlives_younger_ones() {
        let mut lru = full(6);
        let mut marks = Marks::default();
        marks.referenced.extend([0, 2]);
        let mut order = Vec::new();
        while let Some(victim) = lru.victim(&mut marks) {
            lru.remove(victim);
            order.push(victim.0);
        }
        assert_eq!(order.len(), 6);
        let place = |frame| order.iter().position(|other| *other == frame);
        assert!(place(0) > place(1) && place(2) > place(3), "{order:?}");
        assert_eq!(lru.second_chances(), 2);
    }

    #[test]
    fn a_page_used_while_inactive_is_young_again() {
        let mut lru = full(6);
        let mut marks = Marks::default();
        let first = lru.victim(&mut marks).unwrap();
        assert_eq!(marks.deactivated, [0, 1]);
        lru.activate(first);
        assert_eq!(lru.victim(&mut marks), Some(Frame(1)));
    }

    proptest! {
        /// Whatever happens, a victim is queued and not held, one is found whenever there is one, and nothing is lost.
        #[test]
        fn a_victim_is_found_exactly_when_there_is_one(steps in proptest::collection::vec((0u8..6, 0u32..12), 1..300)) {
            let mut lru = Lru::new(12);
            let mut marks = Marks::default();
            let mut queued = HashSet::new();
            for (what, frame) in steps {
                match what {
                    0 => { lru.insert(Frame(frame)); queued.insert(frame); }
                    1 => { lru.remove(Frame(frame)); queued.remove(&frame); }
                    2 => { marks.referenced.insert(frame); }
                    3 => { if !marks.held.remove(&frame) { marks.held.insert(frame); } }
                    4 => lru.activate(Frame(frame)),
                    _ => {
                        let possible = queued.iter().any(|frame| !marks.held.contains(frame));
                        match lru.victim(&mut marks) {
                            Some(Frame(victim)) => {
                                prop_assert!(queued.contains(&victim) && !marks.held.contains(&victim));
                                if frame % 2 == 0 { lru.remove(Frame(victim)); queued.remove(&victim); }
                            }
                            None => prop_assert!(!possible),
                        }
                    }
                }
                prop_assert_eq!(lru.len() as usize, queued.len());
            }
        }
    }
}
