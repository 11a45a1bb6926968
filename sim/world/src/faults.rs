//! Which faults a run throws, and how often each fired in which protocol state.
//!
//! The rates are themselves drawn from the seed (swarm testing): a run in which everything fails
//! all the time finds less than many runs in which a few things do.

use crate::dice::Dice;
use serde::Serialize;

macro_rules! kinds {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// How the table calls it.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }
        }
    };
}

kinds! {
    /// What the simulator does to NetVM.
    FaultKind {
        /// A frame overtakes earlier ones of its link.
        LinkReorder = "link: reorder",
        /// A link stands still for a while.
        LinkPause = "link: pause",
        /// A link loses everything for longer than the gap deadline.
        LinkCut = "link: cut",
        /// A frame is lost; others of its link, and those of the other direction, arrive.
        FrameLost = "frame: lost",
        /// A bit of a frame flips on its way, and the frame's checksum gives it away.
        FrameSpoilt = "frame: bit flip",
        /// A frame arrives twice.
        FrameTwice = "frame: duplicated",
        /// A frame takes up to twice the gap deadline: everything else of its link overtakes it.
        FrameLate = "frame: very late",
        /// The sequence numbers of a link wrap: cards are started so that this comes early.
        SeqWraps = "link: sequence wraps",
        /// The counts of a port's commands wrap: in a quarter of the worlds they begin shortly before that.
        CountsWrap = "port: counts wrap",
        /// A DMA takes much longer than its size says, so that later ones finish before it.
        DmaLate = "dma: late",
        /// A DMA completion is reported twice.
        DmaTwice = "dma: reported twice",
        /// The bus refuses a DMA: it moves nothing, and its end says so.
        DmaFails = "dma: fails",
        /// A DMA moves in two parts, the later bytes first perhaps, and others look between them.
        DmaParts = "dma: in parts",
        /// A store stays in its side's store buffer until the next barrier.
        StoreLate = "bus: store held back",
        /// A store across the bus, and those behind it, land later; only a read across the bus waits for them.
        BusLag = "bus: stores lag behind",
        /// The host writes a page out or drops it.
        VmEvict = "vm: evict",
        /// An app discards a range of its memory (`MADV_DONTNEED`).
        VmDiscard = "vm: discard",
        /// The address space is copied, so that pages become copy-on-write.
        VmFork = "vm: fork",
        /// The host write-protects a page.
        VmProtect = "vm: write-protect",
        /// No frame is free and none can be freed for a while.
        VmNoMemory = "vm: out of memory",
        /// A page cannot be read back.
        VmRefuse = "vm: refuse",
        /// A page-in takes very long.
        VmSlow = "vm: slow page-in",
        /// A page does not come before its message has failed, as behind a file whose server is silent.
        VmStuck = "vm: page does not come",
        /// A mapping attempt loses its race against an invalidation.
        VmRace = "vm: lost race",
        /// A process dies without running a destructor.
        ProcessDies = "process: dies",
        /// A process is told to finish, and ends, while the faults go on.
        Parting = "process: ends in faults",
        /// A node restarts: card, driver and all processes are new.
        NodeRestarts = "node: restarts",
        /// A card stops stepping for a while, locks held.
        CardPauses = "card: pauses",
        /// A card is held up between two accesses of a pass; everything else goes on.
        CardSwitches = "card: held up",
        /// A step of a kernel is held up between two accesses; what does not need the host core goes on.
        KernelSwitches = "kernel: held up",
        /// A card stops for good and answers reads with all ones.
        CardHangs = "card: hangs",
        /// A death, a hang or a restart in the middle of a step: at an access to a shared word.
        AtAccess = "fault: at an access",
        /// Descriptors of arbitrary or mutated bytes.
        HostileDescriptor = "hostile: descriptor",
        /// Queue memory that changes between the card's loads.
        HostileQueue = "hostile: changing queue",
        /// Frames of arbitrary or mutated bytes.
        HostileFrame = "hostile: frame",
        /// A genuine frame played again.
        HostileReplay = "hostile: replay",
        /// An export is withdrawn while it is written to.
        Revoke = "app: revoke",
    }
}

kinds! {
    /// What a node was in the middle of when a fault fired. Several can hold at once.
    ProtocolState {
        /// Nothing of the below.
        Idle = "idle",
        /// A link greeting is under way.
        Greeting = "greeting",
        /// A source DMA is in flight.
        Staging = "staging",
        /// A host page-in for a local source is awaited.
        SourceMiss = "source miss",
        /// Messages sent and not acknowledged.
        InFlight = "in flight",
        /// A DMA into a page of an app is in flight.
        Landing = "landing",
        /// A bounce slot is occupied.
        Bounced = "bounced",
        /// A read has been asked and not answered.
        ReadPending = "read pending",
        /// An app waits at a fence or for a notification.
        Waiting = "app waits",
        /// An unmap waits for a page lock.
        Unmapping = "unmapping",
        /// A stream is in error.
        Poisoned = "poisoned",
    }
}

/// How often each kind fired in each state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Row: [`FaultKind::ALL`]. Column: [`ProtocolState::ALL`].
    pub fired: Vec<Vec<u64>>,
    /// How often each kind fired at all (a firing counts in each state that held).
    pub total: Vec<u64>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            fired: vec![vec![0; ProtocolState::ALL.len()]; FaultKind::ALL.len()],
            total: vec![0; FaultKind::ALL.len()],
        }
    }
}

impl Coverage {
    /// Counts one firing.
    pub(crate) fn count(&mut self, kind: FaultKind, states: StateSet) {
        self.total[kind as usize] += 1;
        for &state in ProtocolState::ALL {
            if states.has(state) {
                self.fired[kind as usize][state as usize] += 1;
            }
        }
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (row, from) in self.fired.iter_mut().zip(&other.fired) {
            for (cell, more) in row.iter_mut().zip(from) {
                *cell += more;
            }
        }
        for (cell, more) in self.total.iter_mut().zip(&other.total) {
            *cell += more;
        }
    }

    /// The kinds that never fired: a list of seeds with such a kind has not tested what it claims.
    #[must_use]
    pub fn never_fired(&self) -> Vec<FaultKind> {
        FaultKind::ALL
            .iter()
            .copied()
            .filter(|&kind| self.total[kind as usize] == 0)
            .collect()
    }

    /// The table as text, one row a kind.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        let _ = write!(out, "{:<24}", "fault \\ state");
        for state in ProtocolState::ALL {
            let _ = write!(out, " {:>12}", state.label());
        }
        let _ = writeln!(out, " {:>9}", "total");
        for kind in FaultKind::ALL {
            let _ = write!(out, "{:<24}", kind.label());
            for state in ProtocolState::ALL {
                let _ = write!(out, " {:>12}", self.fired[*kind as usize][*state as usize]);
            }
            let _ = writeln!(out, " {:>9}", self.total[*kind as usize]);
        }
        out
    }
}

/// The states a node is in, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StateSet(u32);

impl StateSet {
    /// This set with `state` when `holds`.
    pub(crate) fn with(self, state: ProtocolState, holds: bool) -> Self {
        if holds {
            Self(self.0 | 1 << state as u32)
        } else {
            self
        }
    }

    /// This set, or [`ProtocolState::Idle`] when nothing holds.
    pub(crate) fn or_idle(self) -> Self {
        if self.0 == 0 {
            self.with(ProtocolState::Idle, true)
        } else {
            self
        }
    }

    fn has(self, state: ProtocolState) -> bool {
        self.0 & 1 << state as u32 != 0
    }
}

/// The rates of one run, in parts per million of the occasions a kind has.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    rates: Vec<u32>,
    /// False in the liveness phase: nothing fires any more.
    active: bool,
    coverage: Coverage,
}

impl Faults {
    /// No faults at all.
    pub(crate) fn none() -> Self {
        Self {
            rates: vec![0; FaultKind::ALL.len()],
            active: false,
            coverage: Coverage::default(),
        }
    }

    /// Rates drawn from the seed. Each kind is off in one run of four, ordinary in most, and ten
    /// times as frequent in the rest.
    pub(crate) fn swarm(dice: &mut Dice) -> Self {
        let mut faults = Self::none();
        faults.active = true;
        for &kind in FaultKind::ALL.iter().filter(|&&kind| kind != FaultKind::AtAccess) {
            let factor = match dice.below(8) {
                0 | 1 => 0,
                2..=6 => 1,
                _ => 10,
            };
            faults.rates[kind as usize] = (usual_rate(kind) * factor).min(400_000);
        }
        // In one run of eight the wires are bad: up to three frames of ten are lost, each way.
        if dice.below(8) == 0 {
            faults.rates[FaultKind::FrameLost as usize] = dice.within(1_000, 300_000) as u32;
        }
        faults
    }

    /// Rates drawn from the seed, of the kinds only that no correct program notices.
    pub(crate) fn benign(dice: &mut Dice) -> Self {
        let mut faults = Self::swarm(dice);
        for &kind in FaultKind::ALL {
            if !is_benign(kind) {
                faults.rates[kind as usize] = 0;
            }
        }
        faults
    }

    /// Whether any may fire that a correct program notices.
    pub(crate) fn lose_messages(&self) -> bool {
        let rate = |kind: FaultKind| self.rates[kind as usize];
        FaultKind::ALL
            .iter()
            .any(|&kind| !is_benign(kind) && rate(kind) > 0)
    }

    /// Whether `kind` fires now, in `states`; counted when it does.
    pub(crate) fn fires(&mut self, kind: FaultKind, states: StateSet, dice: &mut Dice) -> bool {
        let fires = self.rolls(kind, dice);
        if fires {
            self.count(kind, states);
        }
        fires
    }

    /// Whether `kind` may fire at all.
    pub(crate) fn may_fire(&self, kind: FaultKind) -> bool {
        self.active && self.rates[kind as usize] > 0
    }

    /// Whether `kind` fires now; the caller counts it.
    pub(crate) fn rolls(&self, kind: FaultKind, dice: &mut Dice) -> bool {
        self.active && dice.chance(self.rates[kind as usize])
    }

    /// Counts a firing in these states.
    pub(crate) fn count(&mut self, kind: FaultKind, states: StateSet) {
        self.coverage.count(kind, states.or_idle());
    }

    /// Sets the rate of one kind.
    #[cfg(test)]
    pub(crate) fn set(&mut self, kind: FaultKind, parts: u32) {
        self.active = true;
        self.rates[kind as usize] = parts;
    }

    /// Ends the safety phase.
    pub(crate) fn stop(&mut self) {
        self.active = false;
    }

    /// Whether faults may still fire.
    pub(crate) fn active(&self) -> bool {
        self.active
    }

    /// What fired so far.
    pub(crate) fn coverage(&self) -> &Coverage {
        &self.coverage
    }
}

impl FaultKind {
    /// Whether it may make an operation fail, or a card seem dead, beside what the wire loses.
    pub(crate) const fn is_cause(self) -> bool {
        matches!(
            self,
            Self::VmRefuse
                | Self::DmaFails
                | Self::VmNoMemory
                | Self::VmSlow
                | Self::VmStuck
                | Self::VmDiscard
                | Self::ProcessDies
                | Self::NodeRestarts
                | Self::CardPauses
                | Self::CardHangs
                | Self::Revoke
        )
    }
}

/// Whether a correct program does not notice it.
const fn is_benign(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::LinkReorder
            | FaultKind::LinkPause
            | FaultKind::FrameLost
            | FaultKind::FrameSpoilt
            | FaultKind::FrameLate
            | FaultKind::FrameTwice
            | FaultKind::DmaLate
            | FaultKind::DmaTwice
            | FaultKind::DmaParts
            | FaultKind::StoreLate
            | FaultKind::BusLag
            | FaultKind::VmEvict
            | FaultKind::VmFork
            | FaultKind::VmProtect
            | FaultKind::VmSlow
            | FaultKind::VmRace
            | FaultKind::CardPauses
            | FaultKind::CardSwitches
            | FaultKind::KernelSwitches
            | FaultKind::HostileFrame
            | FaultKind::HostileReplay
    )
}

/// Parts per million of its occasions (a frame, a DMA, a word access, a tick of the host VM).
const fn usual_rate(kind: FaultKind) -> u32 {
    match kind {
        FaultKind::LinkReorder => 30_000,
        FaultKind::LinkPause => 400,
        FaultKind::FrameLost | FaultKind::FrameSpoilt | FaultKind::FrameLate => 200,
        FaultKind::FrameTwice => 5_000,
        FaultKind::DmaLate => 20_000,
        FaultKind::DmaTwice => 5_000,
        FaultKind::DmaFails => 300,
        FaultKind::DmaParts => 30_000,
        FaultKind::StoreLate => 20_000,
        FaultKind::BusLag => 30_000,
        // Asked once in some hundred accesses of a card.
        FaultKind::CardSwitches => 100_000,
        // Asked once in some ten accesses of a kernel's step.
        FaultKind::KernelSwitches => 100_000,
        // The rest is asked once a tick of a node's host (20 us).
        FaultKind::VmEvict => 200_000,
        FaultKind::VmDiscard => 3_000,
        FaultKind::VmFork => 2_000,
        FaultKind::VmProtect => 40_000,
        FaultKind::VmNoMemory => 1_000,
        FaultKind::VmRefuse => 500,
        FaultKind::VmSlow => 20_000,
        FaultKind::VmStuck => 200,
        FaultKind::VmRace => 20_000,
        FaultKind::CardPauses => 2_000,
        FaultKind::HostileDescriptor => 20_000,
        FaultKind::HostileQueue => 10_000,
        FaultKind::HostileFrame => 20_000,
        FaultKind::HostileReplay => 10_000,
        FaultKind::Revoke => 1_000,
        FaultKind::ProcessDies => 200,
        FaultKind::LinkCut => 15,
        // Not thrown: they happen, and are counted.
        FaultKind::SeqWraps | FaultKind::CountsWrap | FaultKind::Parting | FaultKind::AtAccess => 0,
        FaultKind::NodeRestarts => 30,
        FaultKind::CardHangs => 15,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firing_counts_in_each_state_that_held_and_once_in_total() {
        let mut faults = Faults::none();
        let mut dice = Dice::new(1);
        assert!(!faults.fires(FaultKind::VmEvict, StateSet::default(), &mut dice));
        faults.set(FaultKind::VmEvict, 1_000_000);
        let states = StateSet::default()
            .with(ProtocolState::Landing, true)
            .with(ProtocolState::Bounced, true);
        assert!(faults.fires(FaultKind::VmEvict, states, &mut dice));
        assert!(faults.fires(FaultKind::VmEvict, StateSet::default(), &mut dice));
        let row = &faults.coverage().fired[FaultKind::VmEvict as usize];
        assert_eq!(row[ProtocolState::Landing as usize], 1);
        assert_eq!(row[ProtocolState::Bounced as usize], 1);
        assert_eq!(row[ProtocolState::Idle as usize], 1);
        assert_eq!(faults.coverage().total[FaultKind::VmEvict as usize], 2);
        assert!(!faults.coverage().never_fired().contains(&FaultKind::VmEvict));
        assert!(faults.coverage().never_fired().contains(&FaultKind::Revoke));
        assert!(faults.coverage().table().contains("vm: evict"));
    }

    #[test]
    fn nothing_fires_in_the_liveness_phase() {
        let mut faults = Faults::swarm(&mut Dice::new(3));
        faults.set(FaultKind::LinkPause, 1_000_000);
        faults.stop();
        assert!(!faults.fires(FaultKind::LinkPause, StateSet::default(), &mut Dice::new(1)));
    }
}
