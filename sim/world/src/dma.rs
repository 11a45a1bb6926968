//! DMA engines of one card: set-up time, bandwidth, several transfers in flight, completions that
//! come late and out of order.

use crate::dice::Dice;
use crate::faults::{FaultKind, Faults, StateSet};
use crate::timing::CostModel;
use netvm_abi::Nanos;

/// Speed of the engines of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DmaSpeed {
    /// Transfers that run side by side.
    pub(crate) engines: usize,
    /// Beside its bytes, what a transfer takes that reads host memory.
    pub(crate) read: Nanos,
    /// The same, for one that writes it.
    pub(crate) write: Nanos,
    /// Bytes in a microsecond, each engine.
    pub(crate) bytes_per_micro: u64,
    /// An engine is busy for the bytes alone, and these move at the very end: a bus on which many transfers are under way
    /// at once.
    pub(crate) pipelined: bool,
}

impl DmaSpeed {
    /// A speed drawn for a run: two to four engines, 0.2 to 1.5 us, 2 to 8 GB/s.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let engines = dice.within(2, 4) as usize;
        let setup = Nanos(dice.within(200, 1_500));
        Self {
            engines,
            read: setup,
            write: setup,
            bytes_per_micro: dice.within(2_000, 8_000),
            pipelined: false,
        }
    }

    /// The speed of a modelled world.
    pub(crate) const fn modelled(model: &CostModel) -> Self {
        Self {
            engines: 1,
            read: model.dma_read,
            write: model.dma_write,
            bytes_per_micro: model.dma_bytes_per_micro,
            pipelined: true,
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

    /// Starts a transfer of `len` bytes, from host memory or (`write`) to it, on the engine that is free first.
    pub(crate) fn start(
        &mut self,
        now: Nanos,
        (len, write): (u32, bool),
        states: StateSet,
        faults: &mut Faults,
        dice: &mut Dice,
    ) -> Schedule {
        let first = (0..self.free.len()).min_by_key(|&n| self.free[n]).unwrap_or(0);
        let begins = self.free[first].max(now);
        let setup = if write { self.speed.write } else { self.speed.read };
        let bytes = Nanos(u64::from(len) * 1_000 / self.speed.bytes_per_micro);
        let mut done = begins.after(setup).after(bytes);
        self.free[first] = if self.speed.pipelined {
            begins.after(bytes)
        } else {
            done
        };
        if faults.fires(FaultKind::DmaLate, states, dice) {
            // The engine goes on; only this transfer hangs on the bus.
            done = done.after(dice.span(Nanos::from_micros(2), Nanos::from_micros(200)));
        }
        let moves = if self.speed.pipelined {
            done
        } else {
            dice.span(now, done)
        };
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
            read: Nanos(500),
            write: Nanos(500),
            bytes_per_micro: 4_000,
            pipelined: false,
        };
        let mut engines = Engines::new(speed);
        let (mut faults, mut dice) = (Faults::none(), Dice::new(2));
        let mut start = |len| {
            engines.start(
                Nanos(100),
                (len, true),
                StateSet::default(),
                &mut faults,
                &mut dice,
            )
        };
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
    fn pipelined_transfers_share_the_bus_and_nothing_else() {
        let speed = DmaSpeed {
            engines: 1,
            read: Nanos(500),
            write: Nanos(300),
            bytes_per_micro: 4_000,
            pipelined: true,
        };
        let mut engines = Engines::new(speed);
        let (mut faults, mut dice) = (Faults::none(), Dice::new(2));
        let mut start = |what| engines.start(Nanos(100), what, StateSet::default(), &mut faults, &mut dice);
        let (long, short) = (start((4_000, false)), start((8, true)));
        assert_eq!((long.moves, long.done), (Nanos(1_600), Nanos(1_600)));
        assert_eq!(
            short.done,
            Nanos(1_402),
            "after the bytes before it, not after their latency"
        );
    }

    #[test]
    fn a_late_transfer_does_not_hold_up_its_engine() {
        let speed = DmaSpeed {
            engines: 1,
            read: Nanos(500),
            write: Nanos(500),
            bytes_per_micro: 4_000,
            pipelined: false,
        };
        let mut engines = Engines::new(speed);
        let (mut faults, mut dice) = (Faults::none(), Dice::new(2));
        faults.set(FaultKind::DmaLate, 1_000_000);
        faults.set(FaultKind::DmaTwice, 1_000_000);
        let late = engines.start(Nanos(0), (8, false), StateSet::default(), &mut faults, &mut dice);
        faults.stop();
        let next = engines.start(Nanos(0), (8, false), StateSet::default(), &mut faults, &mut dice);
        assert!(next.done < late.done);
        assert!(late.again.is_some_and(|again| again > late.done) && next.again.is_none());
    }
}
