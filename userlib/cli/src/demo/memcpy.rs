//! What copying costs on this machine, measured beside the demo so that its speed can be judged.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::source::MIB;

/// Larger than the caches, as the demo's data is.
const BUFFER: usize = 64 * MIB as usize;
const AT_LEAST: Duration = Duration::from_millis(150);

/// MiB that one thread copies per second between two buffers that are in memory.
pub(crate) fn mib_per_s() -> f64 {
    let from = vec![1_u8; BUFFER];
    let mut to = vec![2_u8; BUFFER];
    let started = Instant::now();
    let mut copied = 0_u64;
    while started.elapsed() < AT_LEAST {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        copied += BUFFER as u64;
    }
    copied as f64 / MIB as f64 / started.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_copy_takes_time() {
        let speed = super::mib_per_s();
        assert!(speed > 10.0 && speed < 10_000_000.0, "{speed} MiB/s");
    }
}
