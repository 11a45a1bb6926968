//! Node 1: takes each MiB as its notification comes, and meanwhile reads pages at random, so that its pager has
//! reason to bring pages in and take others away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm::{Port, Region, Timeout};

use super::source::MIB;

/// The notification that each MiB carries.
pub const ARRIVED: u32 = 1;

/// A MiB that does not come for so long does not come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for each MiB in turn and digests it as it stands in memory.
///
/// # Errors
/// What the library says, or that nothing came for 20 s.
pub fn receive(
    port: &Port,
    memory: &Region,
    mibs: u64,
    stop: &AtomicBool,
    taken: &mut dyn FnMut(u64),
) -> Result<blake3::Hash, String> {
    let arrived = port.notification(ARRIVED).map_err(|error| error.to_string())?;
    let mut digest = blake3::Hasher::new();
    let mut buffer = vec![0; MIB as usize];
    for mib in 0..mibs {
        wait(&arrived, mib, stop)?;
        arrived.ack().map_err(|error| error.to_string())?;
        memory.read_into(mib * MIB, &mut buffer).map_err(|error| error.to_string())?;
        digest.update(&buffer);
        taken(mib + 1);
    }
    Ok(digest.finalize())
}

fn wait(arrived: &netvm::Notification, mib: u64, stop: &AtomicBool) -> Result<(), String> {
    let mut waited = Duration::ZERO;
    let step = Duration::from_millis(500);
    while waited < PATIENCE {
        match arrived.wait(Timeout::After(step)) {
            Ok(_) => return Ok(()),
            Err(netvm::Error::TimedOut { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
        if stop.load(Ordering::Acquire) {
            return Err("the sender stopped".to_owned());
        }
        waited += step;
    }
    Err(format!("MiB {mib} did not arrive within {} s", PATIENCE.as_secs()))
}

/// Reads words at random until told to stop. Returns how many.
pub fn touch(memory: &Region, stop: &AtomicBool) -> Result<u64, String> {
    // Any sequence that jumps about will do; this one is Marsaglia's xorshift.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut touched = 0;
    let mut word = [0; 8];
    while !stop.load(Ordering::Acquire) {
        for _ in 0..16 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let offset = state % (memory.len() / 8) * 8;
            memory.read_into(offset, &mut word).map_err(|error| error.to_string())?;
            touched += 1;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(touched)
}
