//! Which processor a process runs on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread, and those that it starts from now on, on one of the processors that it may have: the one of this number.
/// Where there are not so many it stays where it is.
pub(crate) fn stay_on(number: usize) {
    let Ok(may) = sched_getaffinity(None) else {
        return;
    };
    let mut has = (0..CpuSet::MAX_CPU).filter(|cpu| may.is_set(*cpu));
    if let Some(cpu) = has.nth(number) {
        let mut one = CpuSet::new();
        one.set(cpu);
        // Without it the numbers are noisier, and as true.
        let _ = sched_setaffinity(None, &one);
    }
}
