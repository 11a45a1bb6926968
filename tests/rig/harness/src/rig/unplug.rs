//! A card that its driver loses sight of, or that is taken away under the processes that use it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::rack::{CLAIM, Host, Rack};
use super::scenarios::as_user;

/// For one program.
const LIMIT: Duration = Duration::from_secs(120);
/// What is done at once takes so long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Takes every card from its driver, as a hand that pulls it out with notice.
const REMOVE: &str = "for d in /sys/bus/pci/devices/*; do grep -q 0x1110 $d/device && echo 1 > $d/remove; done; \
                      ! test -e /dev/netvm0";
/// And puts it back.
const RESCAN: &str = "echo 1 > /sys/bus/pci/rescan";
/// What a driver says of a card that it takes for dead.
const DEAD: &str = "the card is dead";
/// Of one that it has taken back.
pub(super) const BACK: &str = "attached again";
/// So often the driver's thread gets no turn.
const NAPS: u32 = 20;

/// Waits until the kernel of a host has said something so many times.
pub(super) fn says(rack: &Rack, node: usize, words: &str, times: usize) -> Result<()> {
    let limit = Instant::now() + rack.allowed(PATIENCE);
    while said(&rack.hosts[node], words) < times {
        ensure!(Instant::now() < limit, "the driver does not say '{words}'");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

pub(super) fn said(host: &Host, words: &str) -> usize {
    host.log().lines().filter(|line| line.contains(words)).count()
}

/// A message there and back.
pub(super) fn works(rack: &mut Rack) -> Result<()> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let pong = rack.both(&as_user("rig-conformance --only ping_pong"), LIMIT)?;
    ensure!(
        pong.iter().all(|text| text.contains("1 passed, 0 failed")),
        "{pong:?}"
    );
    Ok(())
}

/// The driver's thread cannot run for longer than its deadlines, again and again, while ports open and close and pages go.
pub(super) fn sleepy(rack: &mut Rack) -> Result<String> {
    works(rack)?;
    let host = &mut rack.hosts[0];
    // It runs on the processor that a process of the highest priority has for itself, again and again.
    host.run(
        "echo -1 > /proc/sys/kernel/sched_rt_runtime_us && \
         for t in /proc/[0-9]*; do grep -q '^netvm-card' $t/comm 2>/dev/null && taskset -p 2 ${t#/proc/}; done; true",
    )?;
    host.begin(&format!(
        "taskset 2 rig-hog {NAPS} & hog=$!; n=0; while kill -0 $hog 2>/dev/null; do taskset 1 rig-life || exit 1; n=$((n+1)); done; \
         wait $hog && echo $n"
    ))?;
    let rounds = host.end(LIMIT * 3)?;
    let rounds = rounds.trim().lines().last().unwrap_or_default().to_owned();
    let dead = said(&rack.hosts[0], DEAD);
    ensure!(
        dead == 0,
        "a card was declared dead because its driver slept: {dead} times"
    );
    // A card that hangs is dead; one that goes on after that is asked to begin anew.
    rack.hosts[0].begin(&as_user("rig-life hold"))?;
    rack.hosts[0].look(
        "for i in $(seq 100); do netvm stat --device /dev/netvm0 --json | grep -q '\"ports\"' && exit 0; sleep 0.1; done; exit 1",
    )?;
    rack.hang_card(0)?;
    says(rack, 0, DEAD, 1)?;
    rack.resume_card(0)?;
    // The port that was open is dead, and keeps the card from being used until it ends.
    rack.hosts[0].look("pkill rig-life; killall rig-life; true")?;
    let _ = rack.hosts[0].end(LIMIT);
    says(rack, 0, BACK, 1)?;
    works(rack)?;
    Ok(format!(
        "{rounds} rounds of ports beside {NAPS} naps of the driver; dead, and back without a reset"
    ))
}

/// The card goes while ports are open, three ways.
pub(super) fn unplug(rack: &mut Rack) -> Result<String> {
    works(rack)?;
    for round in 1..=2 {
        taken_away(rack, round)?;
    }
    // One that does not answer goes as well.
    let kept = || "dmesg | grep -c 'kept for ever' || true".to_owned();
    let before = rack.hosts[0].run(&kept())?;
    ensure!(
        before.trim() == "0",
        "memory of a card that answers is kept: {before}"
    );
    use_and(rack, 3, |rack| {
        rack.hang_card(0)?;
        rack.hosts[0].look(REMOVE).map(drop)
    })?;
    rack.hosts[0].look("touch /tmp/unplug3/over")?;
    rack.hosts[0].end(LIMIT)?;
    rack.hosts[0].run("rmmod netvm")?;
    rack.end_card(0)?;
    rack.start_card(0)?;
    rack.hosts[0].run(RESCAN)?;
    rack.hosts[0].load()?;
    works(rack)?;
    for host in &mut rack.hosts {
        host.unpinned()?;
    }
    Ok("twice with notice, once without an answer: waits, sends, mappings and a kept file end".to_owned())
}

/// The card goes with notice and comes back, before the last file of its first life is closed.
fn taken_away(rack: &mut Rack, round: u32) -> Result<()> {
    use_and(rack, round, |rack| rack.hosts[0].look(REMOVE).map(drop))?;
    let dir = format!("/tmp/unplug{round}");
    // All but one have ended.
    rack.hosts[0].look(&format!(
        "for i in $(seq 500); do test -e {dir}/gone && exit 0; pidof rig-unplug > /dev/null || break; sleep 0.1; done; ps; exit 1"
    ))?;
    rack.hosts[0].look(&format!("{RESCAN}; {CLAIM}"))?;
    rack.hosts[0].look("for i in $(seq 300); do test -c /dev/netvm0 && exit 0; sleep 0.1; done; exit 1")?;
    rack.hosts[0].look(&format!("touch {dir}/over"))?;
    rack.hosts[0].end(LIMIT)?;
    works(rack)?;
    let host = &mut rack.hosts[0];
    host.run("rmmod netvm")?;
    host.load()?;
    works(rack)
}

/// Starts the processes that use a card, and does something to it when all are at work.
fn use_and(rack: &mut Rack, round: u32, what: impl FnOnce(&mut Rack) -> Result<()>) -> Result<()> {
    let dir = format!("/tmp/unplug{round}");
    let host = &mut rack.hosts[0];
    host.device()?;
    host.begin(&as_user(&format!("rig-unplug {dir}")))?;
    host.look(&format!(
        "for i in $(seq 600); do test -e {dir}/ready && exit 0; sleep 0.1; done; exit 1"
    ))?;
    what(rack)
}

/// As [`unplug`]. The DMA layer checks each mapping, and complains of one that is left when a driver lets go of its device.
pub(super) fn behind_an_iommu(rack: &mut Rack) -> Result<String> {
    checks_are_on(rack, "Default domain type: Passthrough")?;
    let done = unplug(rack)?;
    checks_are_on(rack, "Default domain type: Passthrough")?;
    Ok(done)
}

/// The kernel has checked what the driver did, behind such an IOMMU.
fn checks_are_on(rack: &mut Rack, domain: &str) -> Result<()> {
    let host = &mut rack.hosts[0];
    let off = host.look("cat /sys/kernel/debug/dma-api/disabled")?;
    ensure!(off.trim() == "N", "the DMA layer does not check: {off}");
    let errors = host.look("cat /sys/kernel/debug/dma-api/error_count")?;
    ensure!(errors.trim() == "0", "the DMA layer has found errors: {errors}");
    ensure!(said(host, domain) > 0, "the kernel does not say '{domain}'");
    Ok(())
}

/// Ports are open and memory is the card's as it goes. The card takes no address that an IOMMU made, so nothing is sent.
pub(super) fn translated(rack: &mut Rack) -> Result<String> {
    const DOMAIN: &str = "Default domain type: Translated";
    checks_are_on(rack, DOMAIN)?;
    for round in 1..=3 {
        let dir = format!("/tmp/translated{round}");
        let host = &mut rack.hosts[0];
        host.device()?;
        host.begin(&as_user(&format!("rig-unplug --silent {dir}")))?;
        host.look(&format!(
            "for i in $(seq 500); do test -e {dir}/ready && exit 0; sleep 0.1; done; ps; exit 1"
        ))?;
        host.look(REMOVE)?;
        host.look(&format!("{RESCAN}; {CLAIM}"))?;
        host.look(&format!("touch {dir}/over"))?;
        host.end(LIMIT)?;
        host.device()?;
        host.run("rmmod netvm")?;
        host.load()?;
    }
    checks_are_on(rack, DOMAIN)?;
    Ok("three times: waits, mappings and a kept file end".to_owned())
}
