//! Node 1: takes each MiB as its notification comes, and meanwhile touches pages at random, so that its pager has
//! reason to bring pages in and take others away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm::{Port, Region, Timeout, Word64};

use super::source::MIB;

/// The notification that each MiB carries.
pub(crate) const ARRIVED: u32 = 1;

/// Bytes that are used together, 16 pages; a divisor of a MiB.
const STRETCH: u64 = 64 << 10;

/// A MiB that has not come after this time is lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// Memory of node 1, as its own application reaches it.
pub(super) trait Inbox: Sync {
    /// Its length in bytes.
    fn len(&self) -> u64;

    /// # Errors
    /// What the library says.
    fn read_into(&self, offset: u64, into: &mut [u8]) -> netvm::Result<()>;

    /// # Errors
    /// What the library says.
    fn write_from(&self, offset: u64, from: &[u8]) -> netvm::Result<()>;

    /// The word at a multiple of 8.
    ///
    /// # Errors
    /// What the library says.
    fn word64(&self, offset: u64) -> netvm::Result<Word64>;
}

impl Inbox for Region {
    fn len(&self) -> u64 {
        Self::len(self)
    }

    fn read_into(&self, offset: u64, into: &mut [u8]) -> netvm::Result<()> {
        Self::read_into(self, offset, into)
    }

    fn write_from(&self, offset: u64, from: &[u8]) -> netvm::Result<()> {
        Self::write_from(self, offset, from)
    }

    fn word64(&self, offset: u64) -> netvm::Result<Word64> {
        Self::word64(self, offset)
    }
}

/// Waits for each MiB in turn and digests it as it stands in memory.
///
/// # Errors
/// What the library says, or that nothing came for 20 s.
pub(crate) fn receive(
    port: &Port,
    memory: &dyn Inbox,
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
        memory
            .read_into(mib * MIB, &mut buffer)
            .map_err(|error| error.to_string())?;
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
            Err(netvm::Error::TimedOut) => {}
            Err(error) => return Err(error.to_string()),
        }
        if stop.load(Ordering::Acquire) {
            return Err("the sender stopped".to_owned());
        }
        waited += step;
    }
    Err(format!(
        "MiB {mib} did not arrive within {} s",
        PATIENCE.as_secs()
    ))
}

/// Uses the whole memory once, a few pages at a time in an order that jumps about, as a program that has run for a while
/// has: most of it is then paged out, what is left in memory lies anywhere, and none of it is what will arrive.
///
/// # Errors
/// What the library says.
pub(crate) fn use_all(memory: &dyn Inbox) -> netvm::Result<()> {
    let stretches = memory.len() / STRETCH;
    for at in 0..stretches {
        let stretch = nth(at, stretches);
        memory.write_from(stretch * STRETCH, &[0xA5; STRETCH as usize])?;
    }
    Ok(())
}

/// The stretch that is used as number `at` of `stretches`. The stride is a prime above any number of stretches that the
/// demo takes: every one once.
fn nth(at: u64, stretches: u64) -> u64 {
    at * 15_485_863 % stretches
}

/// Touches pages at random until told to stop, for writing but without changing what is there.
///
/// # Errors
/// What the library says.
pub(crate) fn touch(memory: &dyn Inbox, stop: &AtomicBool) -> Result<(), String> {
    // Any sequence that jumps about will do; this one is Marsaglia's xorshift.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    while !stop.load(Ordering::Acquire) {
        for _ in 0..4 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let word = memory
                .word64(state % (memory.len() / 8) * 8)
                .map_err(|error| error.to_string())?;
            let value = word.load().map_err(|error| error.to_string())?;
            // Stores what is there, or nothing if the card has just stored something else.
            word.compare_swap(value, value)
                .map_err(|error| error.to_string())?;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::MAX_MIB;

    #[test]
    fn the_stride_meets_every_stretch() {
        const { assert!(15_485_863 > MAX_MIB * MIB / STRETCH && MIB.is_multiple_of(STRETCH)) };
        let mut met = vec![false; 1280];
        for at in 0..1280 {
            met[nth(at, 1280) as usize] = true;
        }
        assert!(met.iter().all(|met| *met));
    }
}
