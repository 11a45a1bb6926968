//! Interrupts: the end of a sleep by a timer or a device, and the watchdog.

use crate::board;
use arm_gic::gicv2::GicV2;
use arm_gic::{IntId, InterruptGroup, Trigger};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Time between two looks of the watchdog, in milliseconds; a loop that has not moved between two looks is stuck.
const PERIOD_MILLIS: u64 = 1000;

static PASSES: AtomicU32 = AtomicU32::new(0);
static SEEN: AtomicU32 = AtomicU32::new(0);
static IDLE: AtomicBool = AtomicBool::new(true);

fn gic() -> GicV2<'static> {
    // SAFETY: the board's GIC, mapped as device memory. Interrupts are masked wherever this is called
    // and one core runs, so at no time are there two drivers at work.
    unsafe { GicV2::new(board::GIC_DISTRIBUTOR as *mut _, board::GIC_CPU as *mut _) }
}

/// Switches the interrupt controller and both timers' interrupts on.
pub(crate) fn start() {
    let mut gic = gic();
    gic.setup();
    for timer in [board::SLEEP_TIMER, board::WATCHDOG_TIMER] {
        gic.set_interrupt_priority(timer, 0x80);
        if gic.enable_interrupt(timer, true).is_err() {
            crate::log::error!("the interrupt controller has no {timer:?}");
        }
    }
    crate::clock::watchdog_in(PERIOD_MILLIS);
    crate::cpu::unmask_interrupts();
}

/// Takes a device's interrupt as a message, which is over as it comes.
pub(crate) fn edge(device: IntId) {
    let enabled = crate::cpu::mask_interrupts();
    gic().set_trigger(device, Trigger::Edge);
    if enabled {
        crate::cpu::unmask_interrupts();
    }
}

/// Lets a device's interrupt in, or not. Interrupts are masked.
pub(crate) fn expect(device: IntId, on: bool) {
    let mut gic = gic();
    gic.set_interrupt_priority(device, 0x80);
    if gic.enable_interrupt(device, on).is_err() {
        crate::log::error!("the interrupt controller has no {device:?}");
    }
}

/// The loop has made a pass.
pub(crate) fn passed() {
    IDLE.store(false, Ordering::Relaxed);
    PASSES.fetch_add(1, Ordering::Relaxed);
}

/// Sleeps until an interrupt or the deadline, unless `may_sleep` finds something to do.
///
/// No wake-up is lost: interrupts are masked before the last look. One that comes after it stays
/// pending, and a pending interrupt ends WFI although it is masked (Arm ARM, D1.6.2), at once if it was
/// pending before. Only then is it let in and handled. The timer is armed before WFI and its condition is
/// a level: a deadline that passes in between is pending as well.
pub(crate) fn sleep(deadline: Option<netvm_abi::Nanos>, may_sleep: impl FnOnce() -> bool) {
    crate::cpu::mask_interrupts();
    if may_sleep() {
        IDLE.store(true, Ordering::Relaxed);
        crate::clock::wake_at(deadline);
        // Everything written before is visible before the core stands still.
        aarch64_cpu::asm::barrier::dsb(aarch64_cpu::asm::barrier::SY);
        aarch64_cpu::asm::wfi();
    }
    crate::cpu::unmask_interrupts();
}

/// Entered from the vectors with interrupts masked; `at` is what was interrupted.
#[unsafe(no_mangle)]
extern "C" fn interrupt_arrived(at: u64) {
    let mut gic = gic();
    let group = InterruptGroup::Group0;
    while let Some(id) = gic.get_and_acknowledge_interrupt(group) {
        match id {
            // A level: it stays until the timer is off.
            board::SLEEP_TIMER => crate::clock::wake_at(None),
            board::WATCHDOG_TIMER => watch(at),
            // All that it has to do is to end the sleep. It may be a level that only the loop can end: it is kept out
            // until the loop expects it again. A message that comes meanwhile is kept and comes then.
            other if other.is_spi() => expect(other, false),
            other => unexpected(other),
        }
        gic.end_interrupt(id, group);
    }
}

#[cold]
fn unexpected(id: IntId) {
    crate::log::warning!("interrupt {id:?} that no driver asked for");
}

fn watch(at: u64) {
    let passes = PASSES.load(Ordering::Relaxed);
    let moved = SEEN.swap(passes, Ordering::Relaxed) != passes;
    if !moved && !IDLE.load(Ordering::Relaxed) {
        crate::log::error!("WATCHDOG: the loop has not moved for {PERIOD_MILLIS} ms; it is at {at:#x}");
        crate::halt::halt();
    }
    crate::clock::watchdog_in(PERIOD_MILLIS);
}
