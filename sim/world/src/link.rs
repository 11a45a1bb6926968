//! The fabric: one link for each ordered pair of nodes, with latency, bandwidth, reordering and pauses. A cut takes
//! all frames of both directions for a while. Single frames are lost, spoilt, repeated or very late in one direction,
//! while everything else goes on: the thesis assumes of its network that this does not happen (3.1.4).

use crate::dice::Dice;
use crate::faults::{FaultKind, Faults, StateSet};
use crate::timing::CostModel;
use netvm_abi::{Nanos, NodeId};
use std::collections::BTreeMap;

/// Speed of the links of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkSpeed {
    /// From the last bit sent to the first bit received.
    pub(crate) latency: Nanos,
    /// The same from a card to itself.
    pub(crate) loopback: Nanos,
    /// Bytes in a microsecond.
    pub(crate) bytes_per_micro: u64,
    /// The latency varies, by an eighth.
    pub(crate) jitter: bool,
}

impl LinkSpeed {
    /// A speed drawn for a run: 1 to 12.5 GB/s, 0.3 to 10 us, or a hundred times as far.
    pub(crate) fn draw(dice: &mut Dice, far: bool) -> Self {
        let near = dice.within(300, 10_000);
        let latency = Nanos(if far { 100 * near } else { near });
        Self {
            latency,
            loopback: latency,
            bytes_per_micro: dice.within(1_000, 12_500),
            jitter: true,
        }
    }

    /// The speed of a modelled world.
    pub(crate) const fn modelled(model: &CostModel) -> Self {
        Self {
            latency: model.link,
            loopback: model.loopback,
            bytes_per_micro: model.link_bytes_per_micro,
            jitter: false,
        }
    }
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrives then.
    Arrives(Nanos),
    /// It arrives twice.
    Twice(Nanos, Nanos),
    /// It arrives long after those that left later.
    Late(Nanos),
    /// The link was cut.
    Cut,
    /// It alone is lost.
    Lost,
    /// One of its bits flips.
    Spoilt,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// Arrival of the last frame that kept its place.
    last: Nanos,
    paused_until: Nanos,
    cut_until: Nanos,
}

/// All links.
pub(crate) struct Fabric {
    speed: LinkSpeed,
    /// When each node's transmitter is free.
    free: Vec<Nanos>,
    links: BTreeMap<(NodeId, NodeId), Link>,
    /// How long a cut lasts: longer than the nodes' gap deadline, or it would only be a pause.
    cut: Nanos,
    loss: Option<Loss>,
    switch: Option<Switch>,
}

/// A switch in the middle of all ways: frames to one node leave it one after the other.
struct Switch {
    /// Bytes that it keeps for each node.
    bytes: u64,
    /// When its way to each node is free.
    free: Vec<Nanos>,
}

/// Frames are lost at random: of all kinds, in all directions, each alone.
struct Loss {
    /// How many of a million.
    rate: u32,
    /// Of its own: a loss changes no other draw.
    dice: Dice,
}

impl Fabric {
    /// Links among `nodes` nodes.
    pub(crate) fn new(nodes: usize, speed: LinkSpeed, cut: Nanos) -> Self {
        Self {
            speed,
            free: vec![Nanos(0); nodes],
            links: BTreeMap::new(),
            cut,
            loss: None,
            switch: None,
        }
    }

    /// From now on there is a switch, and what finds so many bytes before it there is lost.
    pub(crate) fn set_switch(&mut self, bytes: u64) {
        let free = vec![Nanos(0); self.free.len()];
        self.switch = Some(Switch { bytes, free });
    }

    /// Whether there is a switch.
    pub(crate) const fn has_switch(&self) -> bool {
        self.switch.is_some()
    }

    /// A frame of `len` bytes to a node is at the switch. When it is there, if there is room.
    pub(crate) fn leaves_switch(&mut self, now: Nanos, to: NodeId, len: usize) -> Option<Nanos> {
        let rate = self.speed.bytes_per_micro;
        let switch = self.switch.as_mut()?;
        let free = switch.free.get_mut(to.index())?;
        let waiting = Nanos(free.0.saturating_sub(now.0));
        if waiting.0 * rate / 1_000 > switch.bytes {
            return None;
        }
        // What finds nothing before it goes on as it comes.
        let leaves = now.after(waiting);
        *free = leaves.after(Nanos(len as u64 * 1_000 / rate + 1));
        Some(leaves)
    }

    /// From now on, `rate` of a million frames between nodes are lost. The seed says which.
    pub(crate) fn lose(&mut self, rate: u32, seed: u64) {
        let dice = Dice::new(seed);
        self.loss = Some(Loss { rate, dice });
    }

    /// When the last frame handed over by `from` has left it.
    pub(crate) fn sent_at(&self, from: NodeId) -> Nanos {
        self.free[from.index()]
    }

    /// Sends a frame of `len` bytes.
    pub(crate) fn send(
        &mut self,
        now: Nanos,
        (from, to): (NodeId, NodeId),
        len: usize,
        states: StateSet,
        faults: &mut Faults,
        dice: &mut Dice,
    ) -> Fate {
        let wire = Nanos(len as u64 * 1_000 / self.speed.bytes_per_micro + 1);
        let sent = self.free[from.index()].max(now).after(wire);
        self.free[from.index()] = sent;
        // A card's way to itself does not leave it.
        let outside = from != to;
        if outside && faults.fires(FaultKind::LinkCut, states, dice) {
            let until = now.after(self.cut);
            self.link(from, to).cut_until = until;
            self.link(to, from).cut_until = until;
        }
        if outside && faults.fires(FaultKind::LinkPause, states, dice) {
            let pause = dice.span(Nanos::from_micros(20), Nanos::from_micros(800));
            self.link(from, to).paused_until = now.after(pause);
        }
        let alone = if outside {
            single(states, faults, dice)
        } else {
            None
        };
        let reorder = faults.fires(FaultKind::LinkReorder, states, dice);
        let latency = if outside {
            self.speed.latency
        } else {
            self.speed.loopback
        };
        let jitter = if self.speed.jitter {
            Nanos(dice.below(latency.0 / 8 + 1))
        } else {
            Nanos(0)
        };
        let late = match alone {
            Some(FaultKind::FrameLate) => dice.span(Nanos::from_millis(1), LATE),
            Some(FaultKind::FrameTwice) => dice.span(Nanos(100), Nanos::from_millis(1)),
            _ if reorder => dice.span(Nanos(500), Nanos::from_micros(60)),
            _ => Nanos(0),
        };
        let lost = outside && self.loss.as_mut().is_some_and(Loss::strikes);
        let link = self.link(from, to);
        if now < link.cut_until {
            return Fate::Cut;
        }
        if lost {
            return Fate::Lost;
        }
        let arrival = sent.after(latency).after(jitter).max(link.paused_until);
        match alone {
            Some(FaultKind::FrameLost) => return Fate::Lost,
            Some(FaultKind::FrameSpoilt) => return Fate::Spoilt,
            Some(FaultKind::FrameLate) => return Fate::Late(arrival.after(late)),
            None if reorder => return Fate::Arrives(arrival.after(late)),
            _ => {}
        }
        link.last = arrival.max(link.last.after(Nanos(1)));
        match alone {
            Some(_) => Fate::Twice(link.last, link.last.after(late)),
            None => Fate::Arrives(link.last),
        }
    }

    /// Cuts the link between two nodes until this time.
    pub(crate) fn cut_between(&mut self, one: NodeId, other: NodeId, until: Nanos) {
        self.link(one, other).cut_until = until;
        self.link(other, one).cut_until = until;
    }

    /// Mends every cut and ends every pause: the liveness phase.
    pub(crate) fn mend(&mut self) {
        for link in self.links.values_mut() {
            link.cut_until = Nanos(0);
            link.paused_until = Nanos(0);
        }
    }

    fn link(&mut self, from: NodeId, to: NodeId) -> &mut Link {
        self.links.entry((from, to)).or_default()
    }
}

impl Loss {
    fn strikes(&mut self) -> bool {
        self.dice.below(1_000_000) < u64::from(self.rate)
    }
}

/// The longest delay of a single frame: twice the gap deadline of the cards.
const LATE: Nanos = Nanos::from_millis(30);

/// What happens to one frame alone, if anything.
fn single(states: StateSet, faults: &mut Faults, dice: &mut Dice) -> Option<FaultKind> {
    [
        FaultKind::FrameLost,
        FaultKind::FrameSpoilt,
        FaultKind::FrameLate,
        FaultKind::FrameTwice,
    ]
    .into_iter()
    .find(|&kind| faults.fires(kind, states, dice))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AB: (NodeId, NodeId) = (NodeId(0), NodeId(1));

    fn fabric() -> Fabric {
        let speed = LinkSpeed {
            latency: Nanos(1_000),
            loopback: Nanos(1_000),
            bytes_per_micro: 1_000,
            jitter: true,
        };
        Fabric::new(2, speed, Nanos::from_millis(50))
    }

    fn send(fabric: &mut Fabric, now: u64, len: usize, faults: &mut Faults) -> Fate {
        fabric.send(
            Nanos(now),
            AB,
            len,
            StateSet::default(),
            faults,
            &mut Dice::new(5),
        )
    }

    #[test]
    fn bandwidth_and_latency_add_up_and_order_is_kept() {
        let (mut fabric, mut faults) = (fabric(), Faults::none());
        let Fate::Arrives(first) = send(&mut fabric, 0, 4_096, &mut faults) else {
            panic!()
        };
        let Fate::Arrives(second) = send(&mut fabric, 0, 64, &mut faults) else {
            panic!()
        };
        assert!(first.0 >= 5_096 && first.0 < 5_300, "{first}");
        assert!(second > first);
    }

    #[test]
    fn a_reordered_frame_is_overtaken() {
        let (mut fabric, mut faults) = (fabric(), Faults::none());
        faults.set(FaultKind::LinkReorder, 1_000_000);
        let Fate::Arrives(late) = send(&mut fabric, 0, 64, &mut faults) else {
            panic!()
        };
        faults.set(FaultKind::LinkReorder, 0);
        let Fate::Arrives(next) = send(&mut fabric, 0, 64, &mut faults) else {
            panic!()
        };
        assert!(next < late);
    }

    #[test]
    fn a_cut_loses_both_directions_until_mended() {
        let (mut fabric, mut faults) = (fabric(), Faults::none());
        faults.set(FaultKind::LinkCut, 1_000_000);
        assert_eq!(send(&mut fabric, 10, 64, &mut faults), Fate::Cut);
        faults.stop();
        let back = (NodeId(1), NodeId(0));
        let mut dice = Dice::new(1);
        assert_eq!(
            fabric.send(Nanos(20), back, 64, StateSet::default(), &mut faults, &mut dice),
            Fate::Cut
        );
        fabric.mend();
        assert!(matches!(send(&mut fabric, 30, 64, &mut faults), Fate::Arrives(_)));
    }

    #[test]
    fn as_many_frames_are_lost_as_the_rate_says_but_none_at_home() {
        let (mut fabric, mut faults, mut dice) = (fabric(), Faults::none(), Dice::new(1));
        fabric.lose(50_000, 7);
        let mut lost = |link| {
            let fates = (0..20_000)
                .map(|now| fabric.send(Nanos(now), link, 64, StateSet::default(), &mut faults, &mut dice));
            fates.filter(|fate| *fate == Fate::Lost).count()
        };
        assert!((900..1_100).contains(&lost(AB)));
        assert!((900..1_100).contains(&lost((NodeId(1), NodeId(0)))));
        assert_eq!(lost((NodeId(0), NodeId(0))), 0);
    }

    #[test]
    fn frames_to_one_node_queue_in_the_switch_and_the_last_are_lost() {
        let mut fabric = fabric();
        assert!(!fabric.has_switch());
        fabric.set_switch(2_500);
        let mut leaves = |now, to| fabric.leaves_switch(Nanos(now), NodeId(to), 1_000);
        for after in [500, 1_501, 2_502] {
            assert_eq!(leaves(500, 0), Some(Nanos(after)));
        }
        assert_eq!(leaves(500, 0), None, "3,003 bytes are before it");
        assert_eq!(leaves(500, 1), Some(Nanos(500)), "another way");
        assert_eq!(leaves(2_000, 0), Some(Nanos(3_503)), "there is room again");
    }

    #[test]
    fn a_single_frame_fails_alone_and_in_one_direction() {
        for kind in [
            FaultKind::FrameLost,
            FaultKind::FrameSpoilt,
            FaultKind::FrameLate,
            FaultKind::FrameTwice,
        ] {
            let (mut fabric, mut faults) = (fabric(), Faults::none());
            faults.set(kind, 1_000_000);
            let fate = send(&mut fabric, 10, 64, &mut faults);
            match kind {
                FaultKind::FrameLost => assert_eq!(fate, Fate::Lost),
                FaultKind::FrameSpoilt => assert_eq!(fate, Fate::Spoilt),
                FaultKind::FrameLate => assert!(matches!(fate, Fate::Late(at) if at.0 > 1_000_000)),
                _ => assert!(matches!(fate, Fate::Twice(first, second) if first < second)),
            }
            faults.set(kind, 0);
            let Fate::Arrives(next) = send(&mut fabric, 20, 64, &mut faults) else {
                panic!("{kind:?} touches another frame");
            };
            assert!(next.0 < 10_000, "{kind:?} holds another frame up");
        }
    }
}
