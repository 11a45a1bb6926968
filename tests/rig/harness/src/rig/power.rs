//! A host that sleeps or shuts down, and a bus that reports errors, while ports are open: the card uses no memory of the host
//! meanwhile, processes are told, and traffic goes on.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netvm_abi::bar::header::{DRIVER_HERE, DRIVER_READY};

use super::machines::SLOT;
use super::rack::Rack;
use super::scenarios::as_user;
use super::trouble::through;
use super::unplug::{BACK, said, says, works};

/// A kernel that tests its sleep (`pm_test`) counts 5 s of its processor's time, which pass sooner or later on a busy machine. The
/// card is silent for this at least.
const WATCH: Duration = Duration::from_millis(500);
/// What is done at once takes so long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Puts all devices to sleep and wakes them again, in a moment, without waiting for it. The log goes on meanwhile.
const SLEEP: &str = "echo N > /sys/module/printk/parameters/console_suspend; echo devices > /sys/power/pm_test; \
                     rm -f /tmp/slept; (sleep 1; echo freeze > /sys/power/state; echo $? > /tmp/slept) > /dev/null 2>&1 &";
/// What a kernel says last when it wakes. Its serial lines lose what is sent before.
const UP: &str = "PM: suspend exit";
/// How it went.
const AWAKE: &str = "for i in $(seq 500); do test -s /tmp/slept && break; sleep 0.1; done; cat /tmp/slept";
/// What a sender may be told of another card that is withdrawn. One with nothing under way loses only its import: the card
/// that lets go says farewell to its links. Or it comes between: the server's port is closed before that, and opened again
/// after the link is up.
const TOLD: [&str; 5] = [
    "CardGone",
    "LinkLost",
    "StaleIncarnation",
    "CapabilityRefused",
    "NoSuchPort",
];
/// What a driver says that has its card let go.
const WITHDRAWN: &str = "the card is withdrawn";
/// Before it attaches to it again.
const AGAIN: &str = "the card is looked for again";
/// Of a card that it cannot silence.
const KEPT_AWAKE: &str = "the machine must not sleep";
/// Of a card that its predecessor has not silenced.
pub(super) const IN_USE: &str = "still uses the memory of an earlier driver";
/// Errors of a bus: a completion that did not come, and one after which the slot is reset.
const ERRORS: [&str; 2] = ["COMP_TIME", "MALF_TLP"];

/// The host goes to sleep and wakes while a process writes to one of its exports.
pub(super) fn sleep(rack: &mut Rack) -> Result<String> {
    works(rack)?;
    let slept = through(rack, &TOLD, |rack| {
        rack.hosts[1].look(SLEEP)?;
        let limit = Instant::now() + rack.allowed(PATIENCE);
        while uses_memory(rack, 1)? {
            ensure!(
                Instant::now() < limit,
                "the card uses the memory of a host that sleeps"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        // Until the driver looks for it again, which it says before it does.
        let (began, limit) = (Instant::now(), Instant::now() + rack.allowed(PATIENCE));
        while !uses_memory(rack, 1)? {
            ensure!(Instant::now() < limit, "the card does not come back");
            std::thread::sleep(Duration::from_millis(5));
        }
        let silent = began.elapsed();
        let awake = said(&rack.hosts[1], AGAIN) > 0;
        ensure!(
            awake && silent > WATCH,
            "the card uses the memory of a host that sleeps, after {silent:?}"
        );
        says(rack, 1, UP, 1)?;
        let slept = rack.hosts[1].look(AWAKE)?;
        ensure!(slept.trim() == "0", "the host did not sleep: {slept}");
        says(rack, 1, BACK, 1)
    })?;
    // A card that hangs may go on at any moment.
    rack.hang_card(1)?;
    rack.hosts[1].look(SLEEP)?;
    says(rack, 1, UP, 2)?;
    let refused = rack.hosts[1].look(AWAKE)?;
    ensure!(
        refused.trim() == "1",
        "the host sleeps beside a card that hangs: {refused}"
    );
    says(rack, 1, KEPT_AWAKE, 1)?;
    rack.resume_card(1)?;
    says(rack, 1, BACK, 2)?;
    works(rack)?;
    Ok(format!("{slept}; awake beside a card that hangs"))
}

/// The host shuts down with a port open, and boots again.
pub(super) fn reboot(rack: &mut Rack) -> Result<String> {
    works(rack)?;
    let host = &mut rack.hosts[0];
    host.begin(&as_user("rig-life hold"))?;
    host.look(
        "for i in $(seq 100); do netvm stat --device /dev/netvm0 --json | grep -q '\"port\":43' && exit 0; sleep 0.1; done; exit 1",
    )?;
    ensure!(uses_memory(rack, 0)?, "the card does not use its host's memory");
    rack.reboot(0, |rack| {
        ensure!(
            !uses_memory(rack, 0)?,
            "the card still uses the memory of a kernel that has ended"
        );
        Ok(())
    })?;
    rack.hosts[0].load()?;
    works(rack)?;
    ensure!(
        said(&rack.hosts[0], IN_USE) == 0,
        "the next kernel's driver finds a card that was not silenced"
    );
    Ok("with a port open; the card had let go when the kernel ended".to_owned())
}

/// Errors of the slot while a process writes to an export: one that loses a word, one that resets the slot.
pub(super) fn bus_error(rack: &mut Rack) -> Result<String> {
    works(rack)?;
    let mut told = Vec::new();
    for (round, error) in ERRORS.into_iter().enumerate() {
        told.push(through(rack, &TOLD, |rack| {
            rack.hosts[1].monitor(&format!("pcie_aer_inject_error {SLOT} {error}"))?;
            says(rack, 1, WITHDRAWN, round + 1)?;
            says(rack, 1, BACK, round + 1)
        })?);
    }
    works(rack)?;
    Ok(told.join("; "))
}

/// Whether a card has been told of its host's memory, and has not let go of it.
pub(super) fn uses_memory(rack: &Rack, node: usize) -> Result<bool> {
    Ok(rack.nic_word(node, DRIVER_READY)? == DRIVER_HERE)
}
