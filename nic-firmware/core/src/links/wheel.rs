//! A timing wheel: one alarm for each link, at any time, in constant work.
//!
//! Three rings of 64 slots: slots of 1 us, of 8 us, and of 512 us. A slot of the first is a tenth of the shortest round
//! trip between two machines, so what is waited for in round trips is not late by one. An alarm stands in the finest
//! ring that reaches it. One further away than all of them reach rings at the end of the last, and is set again by the
//! link that finds itself called early. No alarm rings after its time by more than a slot of its ring.

use netvm_abi::Nanos;

/// No link.
const NONE: u32 = u32::MAX;
/// Slots of a ring: the bits of a word.
const SLOTS: u64 = 64;
/// Rings, from fine to coarse.
const RINGS: usize = 3;
/// Nanoseconds of a slot of each ring, as powers of two.
const WIDTHS: [u32; RINGS] = [10, 13, 19];
/// The last of them.
const COARSEST: (usize, u32) = (RINGS - 1, WIDTHS[RINGS - 1]);

/// A link's place in the wheel.
#[derive(Clone, Copy, Debug)]
pub struct Hand {
    at: u64,
    next: u32,
    previous: u32,
    /// Ring and slot; nowhere: `u8::MAX`.
    slot: u8,
}

impl Hand {
    /// Its alarm is not set.
    pub(crate) const REST: Self = Self {
        at: 0,
        next: NONE,
        previous: NONE,
        slot: u8::MAX,
    };

    /// Whether its alarm rings at this time or before.
    #[inline]
    pub(super) const fn rings_before(&self, at: u64) -> bool {
        self.slot != u8::MAX && self.at <= at
    }
}

/// A ring of slots.
#[derive(Clone, Copy, Debug)]
struct Ring {
    heads: [u32; SLOTS as usize],
    /// A bit for each slot that has an alarm.
    occupied: u64,
    /// Slots before this one are over.
    base: u64,
}

impl Ring {
    const EMPTY: Self = Self {
        heads: [NONE; SLOTS as usize],
        occupied: 0,
        base: 0,
    };

    /// The first slot that has an alarm, counted from the beginning of time.
    fn first(&self) -> Option<u64> {
        let ahead = self.occupied.rotate_right((self.base % SLOTS) as u32);
        (ahead != 0).then(|| self.base + u64::from(ahead.trailing_zeros()))
    }
}

/// The wheel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wheel {
    rings: [Ring; RINGS],
}

impl Wheel {
    pub(super) const fn new() -> Self {
        Self {
            rings: [Ring::EMPTY; RINGS],
        }
    }

    /// Sets a link's alarm, unless it rings at that time or earlier anyway. Gives when it rings.
    pub(super) fn set(&mut self, hands: &mut [Hand], link: u32, now: Nanos, at: Nanos) -> Option<Nanos> {
        let hand = hands.get(link as usize).copied()?;
        if hand.slot != u8::MAX {
            if hand.at <= at.0 {
                return Some(Nanos(hand.at));
            }
            self.unset(hands, link);
        }
        let away = at.0.saturating_sub(now.0);
        let reaches = |&(_, width): &(usize, u32)| away >> width < SLOTS - 1;
        let mut rings = WIDTHS.into_iter().enumerate();
        let (which, width) = rings.find(reaches).unwrap_or(COARSEST);
        let ring = self.rings.get_mut(which)?;
        let current = now.0 >> width;
        if ring.occupied == 0 {
            ring.base = current;
        }
        // The slot at whose beginning its time has come.
        let wanted = (at.0 >> width) + u64::from(at.0 & ((1 << width) - 1) != 0);
        let slot = wanted.clamp(ring.base, ring.base + SLOTS - 1);
        let index = (slot % SLOTS) as usize;
        let next = core::mem::replace(ring.heads.get_mut(index)?, link);
        ring.occupied |= 1 << index;
        let rings = slot << width;
        if let Some(hand) = hands.get_mut(link as usize) {
            *hand = Hand {
                at: rings,
                next,
                previous: NONE,
                slot: (which as u64 * SLOTS + index as u64) as u8,
            };
        }
        if let Some(hand) = hands.get_mut(next as usize) {
            hand.previous = link;
        }
        Some(Nanos(rings))
    }

    fn unset(&mut self, hands: &mut [Hand], link: u32) {
        let Some(hand) = hands.get_mut(link as usize) else {
            return;
        };
        let Hand {
            next, previous, slot, ..
        } = core::mem::replace(hand, Hand::REST);
        if let Some(hand) = hands.get_mut(next as usize) {
            hand.previous = previous;
        }
        if let Some(hand) = hands.get_mut(previous as usize) {
            hand.next = next;
            return;
        }
        let index = u64::from(slot) % SLOTS;
        let Some(ring) = self.rings.get_mut(usize::from(slot) / SLOTS as usize) else {
            return;
        };
        if let Some(head) = ring.heads.get_mut(index as usize) {
            *head = next;
        }
        if next == NONE {
            ring.occupied &= !(1 << index);
        }
    }

    /// Takes a link whose alarm rings.
    pub(super) fn pop_due(&mut self, hands: &mut [Hand], now: Nanos) -> Option<u32> {
        for (ring, width) in self.rings.iter_mut().zip(WIDTHS) {
            let current = now.0 >> width;
            let first = ring.first();
            ring.base = first.map_or(current, |first| first.min(current).max(ring.base));
            if let Some(slot) = first.filter(|&slot| slot <= current)
                && let Some(&link) = ring.heads.get((slot % SLOTS) as usize)
            {
                self.unset(hands, link);
                return Some(link);
            }
        }
        None
    }

    /// When the next alarm rings.
    pub(super) fn next(&self) -> Option<Nanos> {
        let rings = self.rings.iter().zip(WIDTHS);
        rings
            .filter_map(|(ring, width)| ring.first().map(|slot| Nanos(slot << width)))
            .min()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    #[test]
    fn an_alarm_rings_once_and_not_before_its_time() {
        let mut hands = [Hand::REST; 4];
        let mut wheel = Wheel::new();
        assert_eq!(wheel.next(), None);
        wheel.set(&mut hands, 2, Nanos(1_000), Nanos(20_000));
        let rings = wheel.next().expect("it is set");
        assert!((20_000..20_000 + (1 << WIDTHS[0])).contains(&rings.0));
        assert_eq!(wheel.pop_due(&mut hands, Nanos(rings.0 - 1)), None);
        assert_eq!(wheel.pop_due(&mut hands, rings), Some(2));
        assert_eq!(wheel.pop_due(&mut hands, rings), None);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn an_alarm_is_late_by_less_than_a_slot_of_the_finest_ring_that_reaches_it() {
        for (away, slot) in [
            (300, 10),
            (62_000, 10),
            (70_000, 13),
            (500_000, 13),
            (600_000, 19),
            (30_000_000, 19),
        ] {
            for now in [0, 999, 5_000, 77_777_777] {
                let (mut hands, mut wheel) = ([Hand::REST; 1], Wheel::new());
                let rings = wheel.set(&mut hands, 0, Nanos(now), Nanos(now + away));
                assert_eq!(rings, wheel.next());
                let late = rings.map(|rings| rings.0 - (now + away));
                assert!(
                    late.is_some_and(|late| late < 1 << slot),
                    "{away} at {now}: {late:?}"
                );
            }
        }
    }

    #[test]
    fn an_earlier_alarm_takes_the_place_of_a_later_one() {
        let mut hands = [Hand::REST; 2];
        let mut wheel = Wheel::new();
        wheel.set(&mut hands, 0, Nanos(0), Nanos::from_millis(5));
        wheel.set(&mut hands, 0, Nanos(0), Nanos(100_000));
        wheel.set(&mut hands, 0, Nanos(0), Nanos::from_millis(9));
        let rings = wheel.next().expect("it is set");
        assert!(rings.0 >= 100_000 && rings.0 < 120_000, "{rings}");
        assert_eq!(wheel.pop_due(&mut hands, rings), Some(0));
        assert_eq!(wheel.next(), None);
    }

    /// Against a list: whatever is set comes in time, in the order of slots, however far time jumps.
    #[test]
    fn alarms_come_as_a_list_would_have_them() {
        let mut random = 1u64;
        let mut dice = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut hands = [Hand::REST; 16];
        let mut wheel = Wheel::new();
        let mut wanted: BTreeMap<u32, u64> = BTreeMap::new();
        let mut now = 5u64;
        for _ in 0..20_000 {
            let link = dice(16) as u32;
            let span = 1 << dice(28);
            let at = now + dice(span);
            wheel.set(&mut hands, link, Nanos(now), Nanos(at));
            let earliest = wanted.entry(link).or_insert(at);
            *earliest = at.min(*earliest);
            let span = 1 << dice(24);
            now += dice(span);
            let mut rung = Vec::new();
            while let Some(link) = wheel.pop_due(&mut hands, Nanos(now)) {
                rung.push(link);
            }
            for link in rung {
                let at = wanted.remove(&link).expect("an alarm that was set");
                if at > now {
                    // It rang at the end of a ring, or together with an earlier one: it is set again.
                    wheel.set(&mut hands, link, Nanos(now), Nanos(at));
                    wanted.insert(link, at);
                }
            }
            let late = wanted
                .values()
                .filter(|&&at| at + (1 << WIDTHS[RINGS - 1]) < now)
                .count();
            assert_eq!(late, 0, "at {now}");
            assert_eq!(wheel.next().is_some(), !wanted.is_empty());
        }
    }
}
