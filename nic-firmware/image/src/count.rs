//! Counts instructions: the processor's own event counter, as far as it has one.
//!
//! The event is `INST_RETIRED` (Arm ARM, D13.12.3.2). QEMU offers it only when it counts instructions itself (`-icount`);
//! then it is exact and the same in every run.

use core::arch::asm;

/// The event's number, and its bit in `PMCEID0_EL0`.
const INST_RETIRED: u64 = 0x08;

/// A running counter.
pub(crate) struct Counter {
    /// What two readings with nothing between them differ by.
    overhead: u32,
}

impl Counter {
    /// Starts the counter; nothing where the processor does not count instructions. Interrupts stay masked from now on:
    /// a handler's instructions would be in the count.
    pub(crate) fn start() -> Option<Self> {
        crate::cpu::mask_interrupts();
        let events: u64;
        // SAFETY: reads an identification register.
        unsafe { asm!("mrs {}, pmceid0_el0", out(reg) events, options(nomem, nostack)) };
        if events & (1 << INST_RETIRED) == 0 {
            return None;
        }
        // SAFETY: only this code uses the performance monitor; counting changes nothing but the counter.
        unsafe {
            asm!(
                "msr pmevtyper0_el0, {event}",
                "msr pmcntenset_el0, {one}",
                "msr pmcr_el0, {one}",
                "isb",
                event = in(reg) INST_RETIRED,
                one = in(reg) 1_u64,
                options(nomem, nostack)
            );
        }
        let (before, after): (u64, u64);
        // SAFETY: reads a counter, twice.
        unsafe {
            asm!(
                "isb",
                "mrs {before}, pmevcntr0_el0",
                "isb",
                "mrs {after}, pmevcntr0_el0",
                before = out(reg) before,
                after = out(reg) after,
                options(nostack)
            );
        }
        Some(Self {
            overhead: (after as u32).wrapping_sub(before as u32),
        })
    }

    /// Runs `act` and gives its result and its instructions.
    #[inline]
    pub(crate) fn of<R>(&self, act: impl FnOnce() -> R) -> (R, u32) {
        let before = now();
        let result = act();
        let after = now();
        (result, after.wrapping_sub(before).wrapping_sub(self.overhead))
    }

    /// Counts loops of known length, by one and the same call: their counts must differ by what they differ by.
    ///
    /// # Errors
    /// What was counted and what should have been, where they differ.
    pub(crate) fn calibrate(&self) -> Result<(), (u32, u32)> {
        let shortest = self.turns(1);
        for turns in [1000, 100_000] {
            let (counted, expected) = (self.turns(turns).wrapping_sub(shortest), 2 * (turns as u32 - 1));
            if counted != expected {
                return Err((counted, expected));
            }
        }
        // The call itself is a handful.
        let call = shortest.wrapping_sub(2);
        if call > 16 { Err((call, 16)) } else { Ok(()) }
    }

    /// Not inlined: the code around the loop is the same each time.
    #[inline(never)]
    fn turns(&self, turns: u64) -> u32 {
        self.of(|| turn(turns)).1
    }
}

/// Two instructions a turn.
#[inline(always)]
fn turn(turns: u64) {
    // SAFETY: counts a register down to zero.
    unsafe {
        asm!(
            "2:",
            "subs {left}, {left}, #1",
            "b.ne 2b",
            left = inout(reg) turns => _,
            options(nomem, nostack)
        );
    }
}

#[inline]
fn now() -> u32 {
    let count: u64;
    // SAFETY: reads a counter. As no `nomem`, what is counted stays between two reads as far as it touches memory.
    unsafe { asm!("isb", "mrs {}, pmevcntr0_el0", out(reg) count, options(nostack)) };
    count as u32
}
