//! What an unexpected exception says before the card halts.

use aarch64_cpu::registers::{ELR_EL1, ESR_EL1, FAR_EL1, Readable};

/// Sixteen vectors: four kinds from four origins.
const KINDS: [&str; 4] = ["synchronous exception", "IRQ", "FIQ", "SError"];
const ORIGINS: [&str; 4] = [
    "on the ordinary stack",
    "on the exception stack (an exception while another was handled)",
    "from 64-bit EL0",
    "from 32-bit EL0",
];

/// The exception class (ESR bits 31 to 26) in words: Arm ARM, D19.2.37.
const fn class(code: u64) -> &'static str {
    match code {
        0x00 => "unknown reason",
        0x01 => "trapped WFI or WFE",
        0x07 => "FP or SIMD access while they are off",
        0x0E => "illegal execution state",
        0x15 => "SVC",
        0x16 => "HVC",
        0x18 => "trapped system register",
        0x20 | 0x21 => "instruction abort",
        0x22 => "misaligned PC",
        0x24 | 0x25 => "data abort",
        0x26 => "misaligned SP",
        0x2C => "floating point exception",
        0x2F => "SError",
        0x3C => "BRK instruction",
        _ => "unassigned class",
    }
}

/// Entered from the vectors, on the exception stack.
#[unsafe(no_mangle)]
extern "C" fn exception_report(vector: u64, link: u64, stack: u64) -> ! {
    let esr = ESR_EL1.get();
    let kind = KINDS.get((vector % 4) as usize).copied().unwrap_or("?");
    let origin = ORIGINS.get((vector / 4) as usize).copied().unwrap_or("?");
    crate::log::error!(
        "EXCEPTION: {}, {kind} {origin}: ESR={esr:#010x} ELR={:#x} FAR={:#x} LR={link:#x} SP={stack:#x}",
        class((esr >> 26) & 0x3F),
        ELR_EL1.get(),
        FAR_EL1.get(),
    );
    crate::halt::halt()
}
