//! DMA engines of one card: set-up time, bandwidth, several transfers in flight, completions that
//! come late and out of order.

use crate::dice::Dice;
use crate::faults::{FaultKind, Faults, StateSet};
use netvm_abi::Nanos;

/// Speed of the engines of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DmaSpeed {
    /// Transfers that run side by side.
    pub(crate) engines: usize,
    /// Before the first byte moves.
    pub(crate) setup: Nanos,
    /// Bytes in a microsecond, each engine.
    pub(crate) bytes_per_micro: u64,
}

impl DmaSpeed {
    /// A speed drawn for a run: two to four engines, 0.2 to 1.5 us, 2 to 8 GB/s.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        Self {
            engines: dice.within(2, 4) as usize,
            setup: Nanos(dice.within(200, 1_500)),
            bytes_per_micro: dice.within(2_000, 8_000),
        }
    }
}

/// When a transfer happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// When its bytes move (each word once; a real engine spreads them out, the worst case is that
    /// it moves them at the very end or the very start).
    pub(crate) moves: Nanos,
    /// When its completion is reported.
    pub(crate) done: Nanos,
    /// When its completion is reported again, if a fault says so.
    pub(crate) again: Option<Nanos>,
}

/// The engines of a card.
pub(crate) struct Engines {
    speed: DmaSpeed,
    free: Vec<Nanos>,
}

impl Engines {
    /// Idle engines.
    pub(crate) fn new(speed: DmaSpeed) -> Self {
        Self {
            speed,
            free: vec![Nanos(0); speed.engines],
        }
    }

    /// Starts a transfer of `len` bytes on the engine that is free first.
    pub(crate) fn start(
        &mut self,
        now: Nanos,
        len: u32,
        states: StateSet,
        faults: &mut Faults,
        dice: &mut Dice,
    ) -> Schedule {
        let first = (0..self.free.len()).min_by_key(|&n| self.free[n]).unwrap_or(0);
        let begins = self.free[first].max(now);
        let takes = Nanos(self.speed.setup.0 + u64::from(len) * 1_000 / self.speed.bytes_per_micro);
        let mut done = begins.after(takes);
        self.free[first] = done;
        if faults.fires(FaultKind::DmaLate, states, dice) {
            // The engine goes on; only this transfer hangs on the bus.
            done = done.after(dice.span(Nanos::from_micros(2), Nanos::from_micros(200)));
        }
        let moves = dice.span(now, done);
        let again = faults
            .fires(FaultKind::DmaTwice, states, dice)
            .then(|| done.after(dice.span(Nanos(1), Nanos::from_micros(50))));
        Schedule { moves, done, again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_run_side_by_side_and_finish_out_of_order() {
        let speed = DmaSpeed {
            engines: 2,
            setup: Nanos(500),
            bytes_per_micro: 4_000,
        };
        let mut engines = Engines::new(speed);
        let (mut faults, mut dice) = (Faults::none(), Dice::new(2));
        let mut start = |len| engines.start(Nanos(100), len, StateSet::default(), &mut faults, &mut dice);
        let (long, short, third) = (start(4_000), start(8), start(8));
        assert_eq!(long.done, Nanos(1_600));
        assert_eq!(short.done, Nanos(602));
        assert!(short.done < long.done, "the second one finishes first");
        assert_eq!(third.done, Nanos(1_104), "the third waits for a free engine");
        for one in [long, short, third] {
            assert!(one.moves >= Nanos(100) && one.moves <= one.done);
        }
    }

    #[test]
    fn a_late_transfer_does_not_hold_up_its_engine() {
        let speed = DmaSpeed {
            engines: 1,
            setup: Nanos(500),
            bytes_per_micro: 4_000,
        };
        let mut engines = Engines::new(speed);
        let (mut faults, mut dice) = (Faults::none(), Dice::new(2));
        faults.set(FaultKind::DmaLate, 1_000_000);
        faults.set(FaultKind::DmaTwice, 1_000_000);
        let late = engines.start(Nanos(0), 8, StateSet::default(), &mut faults, &mut dice);
        faults.stop();
        let next = engines.start(Nanos(0), 8, StateSet::default(), &mut faults, &mut dice);
        assert!(next.done < late.done);
        assert!(late.again.is_some_and(|again| again > late.done) && next.again.is_none());
    }
}
