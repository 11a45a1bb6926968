//! A card's device cannot be made, when the card knows of the driver's memory already.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::power::{IN_USE, uses_memory};
use super::rack::Rack;
use super::unplug::{said, says, works};

/// What the driver says then.
const REFUSED: &str = "the device cannot be made (errno 17)";
/// Where it cannot get its memory back.
const KEPT: &str = "kept for ever";
/// The card lets go within its deadline; a busy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Another device has the name.
pub(super) fn run(rack: &mut Rack) -> Result<String> {
    works(rack)?;
    const ROUNDS: usize = 3;
    for round in 1..=ROUNDS {
        let host = &mut rack.hosts[0];
        host.run("rmmod netvm && insmod /lib/taken.ko")?;
        host.load()?;
        says(rack, 0, REFUSED, round)?;
        let limit = Instant::now() + rack.allowed(PATIENCE);
        while uses_memory(rack, 0)? {
            ensure!(
                Instant::now() < limit,
                "the card uses the memory of a driver that has failed"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        // The driver waits for nothing but its end.
        let host = &mut rack.hosts[0];
        host.run("rmmod netvm && rmmod taken")?;
        host.load()?;
        works(rack)?;
    }
    for word in [IN_USE, KEPT] {
        ensure!(said(&rack.hosts[0], word) == 0, "the host says '{word}'");
    }
    Ok(format!(
        "{ROUNDS} times: the card lets go, and the next driver has it"
    ))
}
