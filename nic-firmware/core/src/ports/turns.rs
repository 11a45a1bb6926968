//! Whose turn it is: the open ports, those first that were served longest ago.
//!
//! A *round* looks at each open port once, from the first to the last. A port that its turn has served (a command of it
//! got what it needs) goes to the end; one that found no credit, read slot or staging buffer keeps its place. Each call
//! begins at the front again as soon as a round is complete, so what has come back before the call is offered first to
//! the port that waits for it longest.
//!
//! **What a port waits for (promise P5).** A port that lacks something stands behind ports that were served before it. Each
//! of them that takes what it waits for goes behind it by that. So before it gets its turn each other port has at most
//! one, of [`PIPELINE`](crate::pipeline::PIPELINE) commands. This holds for as many ports as one call looks at; with more,
//! what comes back in the middle of a round goes to the ports that the round has not reached.
//!
//! To begin each round where the last one ended would not do: if buffers come back one by one, and all ports lack one,
//! then each round ends where it began, and the port there takes them all.
//!
//! A turn, an opening and a closing cost the same however many ports there are (promise P7).

use netvm_abi::PortId;
use netvm_abi::mutant::{self, Mutant};

/// Port numbers that there can be: the most that a geometry admits.
const PORTS: usize = 1024;
/// No port.
const NOWHERE: u16 = u16::MAX;

/// A port's place in the line.
#[derive(Clone, Copy, Debug)]
struct Place {
    open: bool,
    next: u16,
    previous: u16,
}

/// The ports that are open, and whose turn it is.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    /// By port.
    places: [Place; PORTS],
    first: u16,
    last: u16,
    count: u32,
    /// The port that this round looks at next; none: the round is over.
    next: u16,
    /// Looks that are left of this round.
    left: u32,
    /// A round has begun in the middle of a call.
    wrapped: bool,
    /// Ports polled in a row that had nothing to do.
    quiet: u32,
}

impl Turns {
    pub(super) const fn new() -> Self {
        let closed = Place {
            open: false,
            next: NOWHERE,
            previous: NOWHERE,
        };
        Self {
            places: [closed; PORTS],
            first: NOWHERE,
            last: NOWHERE,
            count: 0,
            next: NOWHERE,
            left: 0,
            wrapped: false,
            quiet: 0,
        }
    }

    /// A port is open from now on, or closed.
    pub(super) fn set(&mut self, port: PortId, open: bool) {
        self.quiet = 0;
        let Some(place) = self.places.get_mut(port.index()) else {
            return;
        };
        if open == place.open {
            return;
        }
        place.open = open;
        if open {
            self.append(port.0);
            self.count += 1;
        } else {
            self.remove(port.0);
            self.count -= 1;
        }
    }

    /// Puts a port at the end of the line.
    fn append(&mut self, port: u16) {
        let before = core::mem::replace(&mut self.last, port);
        if let Some(place) = self.places.get_mut(usize::from(port)) {
            (place.previous, place.next) = (before, NOWHERE);
        }
        match self.places.get_mut(usize::from(before)) {
            Some(place) => place.next = port,
            None => self.first = port,
        }
    }

    /// Takes a port out of the line.
    fn remove(&mut self, port: u16) {
        let Some(&Place { next, previous, .. }) = self.places.get(usize::from(port)) else {
            return;
        };
        match self.places.get_mut(usize::from(previous)) {
            Some(place) => place.next = next,
            None => self.first = next,
        }
        match self.places.get_mut(usize::from(next)) {
            Some(place) => place.previous = previous,
            None => self.last = previous,
        }
        if self.next == port {
            self.next = next;
        }
    }

    /// The open ports behind this one, in turn; all of them, if it is none or closed.
    pub(super) fn ports_after(&self, port: Option<PortId>) -> impl Iterator<Item = PortId> {
        let follow = |port: u16| self.places.get(usize::from(port)).map(|place| (port, place.next));
        let place = port.and_then(|port| self.places.get(port.index()));
        let first = place
            .filter(|place| place.open)
            .map_or(self.first, |place| place.next);
        core::iter::successors(follow(first), move |&(_, next)| follow(next)).map(|(port, _)| PortId(port))
    }

    /// Something happened that may let a stalled port go on: all ports get another turn.
    pub(super) const fn stir(&mut self) {
        self.quiet = 0;
    }

    /// Whether every open port has been found idle since the last event.
    pub(super) const fn all_quiet(&self) -> bool {
        self.quiet >= self.count
    }

    /// Looks at up to `looks` ports in turn, and gives the first in which `look` finds something to do, with what that
    /// is. Nothing: all of them rest, or all ports have been found idle. When turns `begin`, also those get another
    /// look that were idle at their last one.
    #[inline(always)]
    pub(super) fn next<T>(
        &mut self,
        begin: bool,
        looks: &mut u32,
        mut look: impl FnMut(PortId) -> Option<T>,
    ) -> Option<(PortId, T)> {
        let mut found = None;
        let (mut next, mut left, mut quiet) = (self.next, self.left, self.quiet);
        if begin {
            if quiet >= self.count {
                quiet = 0;
            }
            if left == 0 || self.wrapped {
                (next, left) = (self.first, self.count);
                self.wrapped = false;
            }
        }
        while *looks != 0 && quiet < self.count {
            *looks -= 1;
            if left == 0 || next == NOWHERE {
                (next, left) = (self.first, self.count);
                self.wrapped = true;
            }
            let id = PortId(next);
            let Some(place) = self.places.get(id.index()) else {
                break;
            };
            next = place.next;
            left -= 1;
            if let Some(what) = look(id) {
                found = Some((id, what));
                break;
            }
            quiet += 1;
        }
        (self.next, self.left, self.quiet) = (next, left, quiet);
        found
    }

    /// What the port's turn brought: a command of it was served, and more of them could be.
    #[inline]
    pub(super) fn report(&mut self, port: PortId, served: bool, more: bool) {
        self.quiet = if more { 0 } else { self.quiet + 1 };
        if !served && mutant::is(Mutant::PortForgotten) {
            self.set(port, false);
        }
        if served && self.last != port.0 {
            self.move_to_end(port.0);
        }
    }

    #[inline(never)]
    fn move_to_end(&mut self, port: u16) {
        if !mutant::is(Mutant::ServedPortStaysFirst) {
            self.remove(port);
            self.append(port);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// Turns begin.
    fn begin(turns: &mut Turns) {
        assert_eq!(turns.next(true, &mut 0, |_| Some(())), None);
    }

    /// The port that has the next turn; it is served.
    fn take(turns: &mut Turns) -> Option<PortId> {
        turns.next(false, &mut 1, |_| Some(())).map(|(port, ())| port)
    }

    /// A round of turns in which no port has anything to do.
    fn round(turns: &mut Turns) -> Vec<u16> {
        begin(turns);
        core::iter::from_fn(|| {
            let port = take(turns)?;
            turns.report(port, false, false);
            Some(port.0)
        })
        .collect()
    }

    #[test]
    fn every_open_port_gets_its_turn() {
        let mut turns = Turns::new();
        assert!(turns.all_quiet());
        assert_eq!(take(&mut turns), None);
        for port in [0, 63, 64, 500, 1023] {
            turns.set(PortId(port), true);
            turns.set(PortId(port), true);
        }
        for _ in 0..3 {
            assert!(!turns.all_quiet());
            assert_eq!(round(&mut turns), [0, 63, 64, 500, 1023]);
            assert!(turns.all_quiet());
            turns.stir();
        }
        turns.set(PortId(64), false);
        turns.set(PortId(64), false);
        assert!(!turns.all_quiet());
        assert_eq!(round(&mut turns), [0, 63, 500, 1023]);
        assert!(turns.all_quiet());
    }

    #[test]
    fn ports_that_rest_are_passed_over() {
        let mut turns = Turns::new();
        for port in 0..4 {
            turns.set(PortId(port), true);
        }
        let mut seen = Vec::new();
        let mut look = |port: PortId| {
            seen.push(port.0);
            (port.0 == 2).then_some("busy")
        };
        let mut looks = 16;
        let busy = turns.next(true, &mut looks, &mut look);
        assert_eq!(busy, Some((PortId(2), "busy")));
        turns.report(PortId(2), true, false);
        assert_eq!(
            turns.next(false, &mut looks, &mut look),
            None,
            "no port is looked at twice"
        );
        assert_eq!(seen, [0, 1, 2, 3]);
        assert!(turns.all_quiet());
        assert_eq!(turns.next(true, &mut 2, |_| None::<()>), None);
        assert!(!turns.all_quiet(), "only so many looks");
        assert_eq!(turns.next(false, &mut 2, |_| None::<()>), None);
        assert!(turns.all_quiet());
    }

    #[test]
    fn ports_that_come_and_go_leave_the_others_their_turns() {
        let mut turns = Turns::new();
        let mut open = std::collections::BTreeSet::new();
        let mut random = 1u32;
        for step in 0..20_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let port = (random >> 16) as u16 % 1024;
            let opens = random & 0x80 != 0;
            turns.set(PortId(port), opens);
            if opens {
                open.insert(port);
            } else {
                open.remove(&port);
            }
            if let Some(port) = take(&mut turns) {
                turns.report(port, random & 0x100 != 0, random & 0x200 != 0);
            }
            if step % 97 == 0 {
                turns.stir();
                let mut seen = round(&mut turns);
                seen.sort_unstable();
                seen.dedup();
                assert!(seen.iter().eq(&open), "step {step}");
                assert!(turns.all_quiet());
                let all: Vec<PortId> = turns.ports_after(None).collect();
                for (at, port) in all.iter().enumerate() {
                    assert!(turns.ports_after(Some(*port)).eq(all[at + 1..].iter().copied()));
                }
                let mut all: Vec<u16> = all.iter().map(|port| port.0).collect();
                all.sort_unstable();
                assert!(all.iter().eq(&open), "step {step}");
            }
        }
        for port in open {
            turns.set(PortId(port), false);
        }
        assert!(round(&mut turns).is_empty());
    }

    #[test]
    fn a_port_with_work_gives_all_another_turn() {
        let mut turns = Turns::new();
        for port in [3, 5] {
            turns.set(PortId(port), true);
        }
        let mut seen = Vec::new();
        for more in [false, true, false, false] {
            let port = take(&mut turns).expect("a turn");
            seen.push(port.0);
            turns.report(port, more, more);
        }
        assert_eq!(seen, [3, 5, 3, 5]);
        assert_eq!(take(&mut turns), None);
    }

    /// What comes back one by one, and is never enough for all, goes round.
    #[test]
    fn ports_that_lack_the_same_get_it_in_turn() {
        for ports in 2..=16u16 {
            let mut turns = Turns::new();
            for port in 0..ports {
                turns.set(PortId(port), true);
            }
            let mut served = std::vec![0; usize::from(ports)];
            for _ in 0..10 * ports {
                let mut free = 1;
                turns.stir();
                begin(&mut turns);
                for _ in 0..16 {
                    let Some(port) = take(&mut turns) else { break };
                    let gets = free != 0;
                    free -= i32::from(gets);
                    served[port.index()] += i32::from(gets);
                    turns.report(port, gets, false);
                }
            }
            assert!(
                served.iter().all(|&times| times == 10),
                "{ports} ports: {served:?}"
            );
        }
    }

    /// The same beside ports that always have more, and lack nothing.
    #[test]
    fn ports_that_lack_nothing_do_not_keep_others_from_what_comes_back() {
        for ports in 3..=16u16 {
            let mut turns = Turns::new();
            for port in 0..ports {
                turns.set(PortId(port), true);
            }
            let rich = |port: PortId| port.0.is_multiple_of(3);
            let mut served = std::vec![0; usize::from(ports)];
            for _ in 0..10 * ports {
                let mut free = 1;
                turns.stir();
                begin(&mut turns);
                for _ in 0..16 {
                    let Some(port) = take(&mut turns) else { break };
                    let gets = rich(port) || free != 0;
                    free -= i32::from(gets && !rich(port));
                    served[port.index()] += i32::from(gets);
                    turns.report(port, gets, rich(port));
                }
            }
            let poor = (0..ports).map(PortId).filter(|&port| !rich(port));
            let times: Vec<i32> = poor.map(|port| served[port.index()]).collect();
            assert!(times.iter().all(|&times| times >= 10), "{ports} ports: {times:?}");
        }
    }
}
