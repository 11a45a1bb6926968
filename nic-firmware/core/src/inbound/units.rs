//! Units of atomics: all atomics on one page take the same unit, and a unit carries out one at a time.
//!
//! Each port has [`UNITS`] units of its own; which one a page takes follows from its number, so nothing is searched,
//! pages that share one wait for each other, and a port's missing pages keep no other port waiting (promise P5).

use super::{Inbound, Slot};
use crate::env::Env;
use crate::queue::Fifo;
use netvm_abi::atomic::{Atomic, AtomicResult, Operand};
use netvm_abi::descriptor::Opcode;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, Vpn};

/// Units of a port.
pub(crate) const UNITS: u16 = 16;

/// The atomics of some pages of a port: the one at work, and those that wait.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    taken: bool,
    waiting: Fifo,
    /// The one at work.
    atomic: Atomic,
    /// Its DMA.
    dma: u8,
    /// Its answer, while the operand is written back.
    result: AtomicResult,
}

impl Unit {
    /// No atomic is in it.
    pub(crate) const FREE: Self = Self {
        taken: false,
        waiting: Fifo::new(),
        atomic: Atomic {
            opcode: Opcode::FetchAdd,
            wide: false,
            operand: 0,
            compare: 0,
        },
        dma: 0,
        result: AtomicResult { value: 0, second: 0 },
    };

    /// Whether an atomic is in it, or waits for it.
    pub(crate) const fn is_taken(&self) -> bool {
        self.taken || !self.waiting.is_empty()
    }

    /// An atomic goes to work.
    #[inline]
    pub(crate) const fn begin(&mut self, atomic: Atomic) {
        self.atomic = atomic;
    }

    /// The one at work.
    #[inline]
    pub(crate) const fn atomic(&self) -> &Atomic {
        &self.atomic
    }

    /// The slot of the DMA that moves its operand.
    #[inline]
    pub(crate) const fn moves_in(&mut self, dma: u8) {
        self.dma = dma;
    }

    /// The same, to look up what has been fetched.
    #[inline]
    pub(crate) const fn moved_in(&self) -> u8 {
        self.dma
    }

    /// Carries it out on the operand. Gives the answer, and whether the operand is to be written back.
    #[inline]
    pub(crate) fn apply(&mut self, operand: &mut Operand) -> (AtomicResult, bool) {
        let (mut result, changed) = self.atomic.apply(operand);
        if mutant::is(Mutant::AtomicAnswersNew) && self.atomic.opcode == Opcode::FetchAdd {
            result.value = result.value.wrapping_add(self.atomic.operand);
        }
        self.result = result;
        (result, changed)
    }

    /// Its answer.
    #[inline]
    pub(crate) const fn result(&self) -> AtomicResult {
        self.result
    }
}

/// Number of the unit that a page takes.
fn unit_of(vpn: Vpn) -> usize {
    usize::from(vpn.port().0) * usize::from(UNITS) + (vpn.page_number() % u64::from(UNITS)) as usize
}

impl Unit {
    /// Lets the atomic in a slot have its unit. Returns false where it has to wait for it.
    #[inline(always)]
    pub(crate) fn enter<S: Storage>(&mut self, env: &mut Env<S>, at: BounceId, slot: &mut Slot) -> bool {
        if slot.in_unit {
            return true;
        }
        if self.taken && !mutant::is(Mutant::UnitAdmitsAll) {
            self.waiting.push(&mut env.lines, at.0);
            env.counters.atomics_queued += 1;
            return false;
        }
        self.taken = true;
        slot.in_unit = true;
        true
    }
}

/// The operation in a slot lets go of its unit, if it has one. Gives the next one, to which the unit is to be
/// [handed over](Inbound::hand_over).
#[inline(always)]
pub(crate) fn leave<S: Storage>(env: &Env<S>, slot: &mut Slot, unit: Option<&mut Unit>) -> Option<BounceId> {
    slot.tries_no_more();
    if !core::mem::take(&mut slot.in_unit) {
        return None;
    }
    let unit = unit?;
    let next = unit.waiting.pop(&env.lines);
    unit.taken = next.is_some();
    next.map(BounceId)
}

impl<S: Storage> Inbound<S> {
    /// The message in a slot, and the unit that its page takes; no unit where there is no such port.
    #[inline(always)]
    pub(crate) fn with_unit(&mut self, at: BounceId) -> Option<(&mut Slot, Option<&mut Unit>)> {
        let slot = self.slots.get_mut(at.index())?;
        let unit = self.units.get_mut(unit_of(slot.page()));
        Some((slot, unit))
    }

    /// An operation lets go of its unit, if it has one.
    pub(crate) fn leave_unit(&mut self, env: &mut Env<S>, at: BounceId) {
        if let Some((slot, unit)) = self.with_unit(at)
            && let Some(next) = leave(env, slot, unit)
        {
            self.hand_over(env, next);
        }
    }

    /// The operation gets the unit that another one has let go of, and is put in line for the next pass: so nothing here
    /// recurses.
    #[cold]
    pub(crate) fn hand_over(&mut self, env: &mut Env<S>, next: BounceId) {
        self.ready.push(&mut env.lines, next.0);
        if let Some(slot) = self.slots.get_mut(next.index()) {
            slot.in_unit = true;
        }
    }

    /// Whether an atomic has got its unit and waits for the next pass.
    #[inline]
    pub(crate) const fn any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the first of them.
    pub(crate) fn next_ready(&mut self, env: &Env<S>) -> Option<BounceId> {
        self.ready.pop(&env.lines).map(BounceId)
    }
}
