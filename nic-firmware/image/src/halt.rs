//! The end of this card: it says where, and stands still. Hosts and other cards notice by its heartbeat.

use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering};

/// A test that waits for the machine's end gets it.
static POWER_OFF: AtomicBool = AtomicBool::new(false);

/// A halt switches the machine off from now on: test mode.
pub(crate) fn power_off_on_halt() {
    POWER_OFF.store(true, Ordering::Relaxed);
}

/// Stands still for ever, interrupts masked, so that nothing moves that memory might still see.
pub(crate) fn halt() -> ! {
    crate::cpu::mask_interrupts();
    crate::log::error!("HALTED");
    if POWER_OFF.load(Ordering::Relaxed) {
        crate::board::power_off();
    }
    loop {
        aarch64_cpu::asm::wfe();
    }
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    crate::cpu::mask_interrupts();
    crate::log::error!("PANIC: {info}");
    halt()
}
