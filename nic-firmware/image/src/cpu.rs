//! The core's interrupt mask.

use aarch64_cpu::registers::{DAIF, Readable};
use core::arch::asm;

/// Masks interrupts; whether they were enabled before.
pub(crate) fn mask_interrupts() -> bool {
    let enabled = !DAIF.is_set(DAIF::I);
    // SAFETY: masking breaks nothing; as no `nomem`, memory accesses stay on their side.
    unsafe { asm!("msr daifset, #2", options(nostack, preserves_flags)) };
    enabled
}

/// Lets interrupts in.
pub(crate) fn unmask_interrupts() {
    // SAFETY: the vectors are in place since the first instructions, and handlers keep all registers.
    unsafe { asm!("msr daifclr, #2", options(nostack, preserves_flags)) };
}
