//! The time: Arm's generic timer.

use aarch64_cpu::registers::{
    CNTFRQ_EL0, CNTP_CTL_EL0, CNTP_TVAL_EL0, CNTV_CTL_EL0, CNTV_CVAL_EL0, CNTVCT_EL0,
};
use aarch64_cpu::registers::{Readable, Writeable};
use netvm_abi::Nanos;

const SECOND: u128 = 1_000_000_000;

/// Nanoseconds since the machine was switched on; never runs backwards.
pub(crate) fn now() -> Nanos {
    let frequency = u128::from(CNTFRQ_EL0.get().max(1));
    Nanos((u128::from(CNTVCT_EL0.get()) * SECOND / frequency) as u64)
}

/// Interrupts this core at `deadline`; nothing: not at all. A deadline that has passed interrupts at once.
pub(crate) fn wake_at(deadline: Option<Nanos>) {
    let Some(deadline) = deadline else {
        CNTV_CTL_EL0.write(CNTV_CTL_EL0::ENABLE::CLEAR);
        return;
    };
    let frequency = u128::from(CNTFRQ_EL0.get());
    // Rounded up: a timer that fires a tick early would only make the loop turn once more.
    let ticks = (u128::from(deadline.0) * frequency).div_ceil(SECOND);
    CNTV_CVAL_EL0.set(u64::try_from(ticks).unwrap_or(u64::MAX));
    CNTV_CTL_EL0.write(CNTV_CTL_EL0::ENABLE::SET + CNTV_CTL_EL0::IMASK::CLEAR);
}

/// Interrupts for the watchdog, `millis` from now.
pub(crate) fn watchdog_in(millis: u64) {
    CNTP_TVAL_EL0.set(CNTFRQ_EL0.get() * millis / 1000);
    CNTP_CTL_EL0.write(CNTP_CTL_EL0::ENABLE::SET + CNTP_CTL_EL0::IMASK::CLEAR);
}
