//! What is tried on the rig. Each scenario has machines of its own, freshly booted, with the module loaded.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::files;
use super::hostile;
use super::kill;
use super::life;
use super::machines::Bus;
use super::power;
use super::pressure;
use super::quota;
use super::rack::Rack;
use super::sharing;
use super::silent;
use super::storm;
use super::taken;
use super::traffic;
use super::trouble;
use super::unplug;
use super::wire::Faults;

/// One thing that must hold.
pub(crate) struct Scenario {
    /// As `--only` takes it.
    pub(crate) name: &'static str,
    /// One line for a person.
    pub(crate) about: &'static str,
    /// What the wire does to frames.
    pub(super) wire: Faults,
    /// Of each host.
    pub(super) processors: u8,
    /// Between each host and its card.
    pub(super) bus: Bus,
    /// Does it, and says in one line what was seen.
    pub(super) run: fn(&mut Rack) -> Result<String>,
}

/// A wire that only carries.
const CLEAN: Faults = Faults {
    lost: 0,
    held: 0,
    longest: Duration::ZERO,
    delay: Duration::ZERO,
};

/// A wire that also holds frames back, so that later ones overtake them.
const UNRULY: Faults = Faults {
    held: 50_000,
    longest: Duration::from_millis(1),
    ..CLEAN
};

/// What a host says of a case in which it has no part (`tests/rig/programs/src/spread.rs`).
const NOT_HERE: &str = "no part of it runs on this machine";

/// Cases that the rig's two machines cannot run, and why.
const CANNOT_RUN: [(&str, &str); 4] = [
    ("allow_list", "three machines"),
    ("no_death", "processes started in turn"),
    ("deaths_in_a_crowd", "three machines"),
    ("restarted_node", "a node that starts anew"),
];

/// For the whole suite.
const CONFORMANCE: Duration = Duration::from_secs(600);

/// Those that `--loss` runs if none is named: every operation, pages that go under it, and much of it.
pub(super) const WITH_LOSS: [&str; 3] = ["conformance", "storm", "transfer"];

/// All scenarios, cheap ones first.
pub(crate) static SCENARIOS: [Scenario; 30] = [
    Scenario {
        name: "boots",
        about: "both kernels boot, the module finds its card, the device is there; module and card start anew",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: boots,
    },
    Scenario {
        name: "taken",
        about: "the device cannot be made: the driver takes its memory back from the card, and the next one has it",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: taken::run,
    },
    Scenario {
        name: "conformance",
        about: "the suite of the emulator and the simulator, through the kernel, without a right to lock memory",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: conformance,
    },
    Scenario {
        name: "reorder",
        about: "the same suite while every fifth frame is overtaken by later ones",
        wire: Faults {
            held: 200_000,
            longest: Duration::from_millis(5),
            ..CLEAN
        },
        processors: 2,
        bus: Bus::Plain,
        run: reorder,
    },
    Scenario {
        name: "notify",
        about: "notifications by spin, by wait (the process sleeps) and by handler, over a wire that reorders",
        wire: Faults {
            held: 200_000,
            longest: Duration::from_millis(5),
            ..CLEAN
        },
        processors: 2,
        bus: Bus::Plain,
        run: sharing::notify,
    },
    Scenario {
        name: "shared",
        about: "a mapping of two processes under two names; a read-only export and a read-only mapping refuse writes",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: sharing::shared,
    },
    Scenario {
        name: "pressure",
        about: "more memory exported than its owner may keep, dirtied at both ends; then idle, and pressed out",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: pressure::stream,
    },
    Scenario {
        name: "keep",
        about: "pages that only a card uses stay longer than idle ones, with the classic LRU and with MGLRU",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: pressure::keep,
    },
    Scenario {
        name: "storm",
        about: "every kind of page event in memory that is being written and read: each word lands where it belongs",
        wire: UNRULY,
        // With two, they wait for each other's locks most of the time, and little happens.
        processors: 1,
        bus: Bus::Plain,
        run: storm::with_slow_card,
    },
    Scenario {
        name: "storm-smp",
        about: "the same, shorter, on hosts with two processors and a card at full speed",
        wire: UNRULY,
        processors: 2,
        bus: Bus::Plain,
        run: storm::with_two_processors,
    },
    Scenario {
        name: "life",
        about: "a port ends with its file, its mappings, its process, its address space, in any order; and for want of memory",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: life::run,
    },
    Scenario {
        name: "kill",
        about: "exporters and senders killed in mid-transfer, 100 of each; nothing is left of them, and the module goes",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: kill::run,
    },
    Scenario {
        name: "deaths",
        about: "members of locks and semaphores killed as they hold and wait, 40 on each host: the others get on, and are told",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: kill::members,
    },
    Scenario {
        name: "hostile",
        about: "processes that scribble over all they can map and call, and hide their pages: an honest one loses nothing",
        wire: CLEAN,
        processors: 1,
        bus: Bus::Plain,
        run: hostile::run,
    },
    Scenario {
        name: "crowd",
        about: "the same on two processors, where they meet in the driver, however long that takes here",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: hostile::crowd,
    },
    Scenario {
        name: "fuse",
        about: "a file's server is silent: the ports that wait for it end all the same, and others do not notice",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: silent::run,
    },
    Scenario {
        name: "files",
        about: "files of ext4, squashfs and tmpfs as memory, read-only and shared; the card is reset under them",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: files::run,
    },
    Scenario {
        name: "quota",
        about: "one user takes all he can of a card: others get their share, and his group is charged",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: quota::run,
    },
    Scenario {
        name: "transfer",
        about: "64 MiB there and back, in pieces of any length at any alignment; once more, almost without a bounce",
        wire: CLEAN,
        // Where two wait for each other's lock, an emulated processor leaves the emulator at each look: a page that is
        // fetched takes milliseconds then. All else runs with two.
        processors: 1,
        bus: Bus::Plain,
        run: traffic::transfer,
    },
    Scenario {
        name: "loss",
        about: "frames are lost in mid-traffic: they are sent again, and no program hears of it",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: trouble::loss,
    },
    Scenario {
        name: "cut",
        about: "the wire is cut for so long that the link is lost: a clear error and not a hang, then traffic goes on",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: trouble::cut,
    },
    Scenario {
        name: "reset",
        about: "a card is reset in mid-traffic: a clear error, and traffic goes on with its new incarnation",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: trouble::reset,
    },
    Scenario {
        name: "hang",
        about: "a card hangs for good: clear errors on both hosts, until it is reset",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: trouble::hang,
    },
    Scenario {
        name: "sleepy",
        about: "a driver thread without a turn declares no card dead; a card that was, and goes on, comes back without a reset",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: unplug::sleepy,
    },
    Scenario {
        name: "unplug",
        about: "a card is removed under processes that wait, send and map: all end, the module goes, the card comes back",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: unplug::unplug,
    },
    Scenario {
        name: "sleep",
        about: "a host sleeps in mid-traffic: its card uses none of its memory meanwhile; a card that hangs keeps it awake",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: power::sleep,
    },
    Scenario {
        name: "reboot",
        about: "a host shuts down while ports are open: its card has let go before the next kernel has the memory",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Plain,
        run: power::reboot,
    },
    Scenario {
        name: "bus-error",
        about: "the bus reports errors in mid-traffic, some with a reset of the slot: clear errors, then traffic goes on",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Slot,
        run: power::bus_error,
    },
    Scenario {
        name: "iommu",
        about: "the same behind an IOMMU that passes addresses on, with the DMA layer's checks: nothing stays mapped",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Identity,
        run: unplug::behind_an_iommu,
    },
    Scenario {
        name: "translated",
        about: "a card is removed behind an IOMMU that translates, which this card cannot follow: ports end, nothing stays mapped",
        wire: CLEAN,
        processors: 2,
        bus: Bus::Translated,
        run: unplug::translated,
    },
];

fn boots(rack: &mut Rack) -> Result<String> {
    for node in [0, 1] {
        let host = &mut rack.hosts[node];
        let modules = host.run("cat /proc/modules")?;
        ensure!(modules.contains("netvm "), "the module is not loaded: {modules}");
        host.device()?;
        host.run("netvm doctor")?;
        // A device that was not given to the driver may be any other one's, and a deadline has to be one.
        host.run("rmmod netvm && for d in /sys/bus/pci/devices/*; do echo > $d/driver_override; done")?;
        host.run("insmod /lib/netvm.ko && sleep 0.5 && ! test -e /dev/netvm0 && rmmod netvm")?;
        for bad in [
            "deadline_ms=0",
            "deadline_ms=10001",
            "heartbeat_ms=9",
            "heartbeat_ms=600001",
            "page_ms=99",
            "page_ms=3600001",
        ] {
            host.run(&format!(
                "! insmod /lib/netvm.ko {bad} 2> /dev/null && dmesg | grep -q 'netvm: {bad}: from'"
            ))?;
        }
        host.load()?;
        host.device()?;
        // The card lets go of the driver's memory and begins anew, for the next driver.
        for _ in 0..3 {
            host.run("rmmod netvm && ! test -e /dev/netvm0")?;
            host.load()?;
            host.device()?;
        }
        let kept = host.run("dmesg | grep 'kept for ever' || true")?;
        ensure!(kept.trim().is_empty(), "memory of a driver that went: {kept}");
        host.unpinned()?;
        // NIC memory outlives a card here: the module may not take an old header for the next card's.
        host.run("rmmod netvm")?;
        rack.end_card(node)?;
        rack.start_card(node)?;
        let host = &mut rack.hosts[node];
        host.load()?;
        host.device()?;
    }
    // They are as good as new.
    let pong = rack.both(&as_user("rig-conformance --only ping_pong"), CONFORMANCE)?;
    ensure!(
        pong.iter().all(|text| text.contains("1 passed, 0 failed")),
        "{pong:?}"
    );
    let log = rack.hosts[0].log();
    let lines = log.lines().filter(|line| line.contains("netvm")).count();
    Ok(format!(
        "2 hosts, 2 cards; {lines} lines of the module in the log of host 0"
    ))
}

/// Runs `command` as an ordinary user without the right to lock a page, in a control group `$G` that this user may
/// press.
pub(super) fn as_user(command: &str) -> String {
    format!(
        "export G=/sys/fs/cgroup/app; mkdir -p $G; chown -R app $G; echo 0 > $G/cgroup.procs; ulimit -l 0; \
         exec su app -c '{command}'"
    )
}

fn conformance(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let command = as_user("rig-conformance --cgroup $G");
    let texts = rack.both(&command, CONFORMANCE)?;
    for host in &mut rack.hosts {
        host.unpinned()?;
    }
    let [first, second] = &texts;
    let skipped = agree(first, second)?;
    let cannot_run = CANNOT_RUN.map(|(name, _)| name);
    ensure!(
        skipped.iter().all(|name| cannot_run.contains(&name.as_str())),
        "of the cases that were skipped, {skipped:?}, only these may be: {CANNOT_RUN:?}"
    );
    ensure!(
        skipped.len() == CANNOT_RUN.len(),
        "only {skipped:?} were skipped: shorten the list of those that cannot run, {CANNOT_RUN:?}"
    );
    Ok(first.trim().lines().last().unwrap_or_default().to_owned())
}

/// Both hosts ran the same cases to the same end. Host 0 takes part in each of them, host 1 need not. Gives the cases that both
/// skipped.
fn agree(first: &str, second: &str) -> Result<Vec<String>> {
    let ends = |text: &'_ str| -> Vec<(String, String)> {
        let cases = text.lines().filter_map(|line| line.split_once(" ms  "));
        let named = cases.map(|(case, end)| {
            let name = case.split_whitespace().next().unwrap_or_default();
            (name.to_owned(), end.trim().to_owned())
        });
        named.collect()
    };
    let (first, second) = (ends(first), ends(second));
    ensure!(
        !first.is_empty() && first.len() == second.len(),
        "host 0 ran {} cases, host 1 {}",
        first.len(),
        second.len()
    );
    for (one, other) in first.iter().zip(&second) {
        ensure!(
            one == other || one.0 == other.0 && one.1 == "ok" && other.1.contains(NOT_HERE),
            "host 0 says of {} '{}', host 1 says of {} '{}'",
            one.0,
            one.1,
            other.0,
            other.1
        );
    }
    let skipped = first.into_iter().filter(|(_, end)| end != "ok");
    Ok(skipped.map(|(name, _)| name).collect())
}

fn reorder(rack: &mut Rack) -> Result<String> {
    let suite = conformance(rack)?;
    let overtaken: u64 = rack.wire.carried().iter().map(|way| way.overtaken).sum();
    ensure!(
        overtaken > 100,
        "only {overtaken} frames were overtaken: that tries nothing"
    );
    Ok(format!("{suite}; {overtaken} frames overtaken"))
}

/// The last JSON object of an output.
pub(super) fn report(text: &str) -> Result<Value> {
    let line = text.lines().rev().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("no report: {text}"))?;
    serde_json::from_str(line).with_context(|| format!("no report: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_must_say_the_same_of_a_case() {
        let both = "one     12 ms  ok\ntwo      0 ms  skipped: no\n";
        let more = format!("{both}three    7 ms  ok\n3 passed, 0 failed\n");
        let less = format!("{both}three    0 ms  skipped: {NOT_HERE}\n");
        let skipped = agree(&more, &less).expect("host 1 has no part in it");
        assert_eq!(skipped, ["two"]);
        agree(&less, &more).expect_err("host 0 has a part in each");
        agree(&more, both).expect_err("a case too few");
        agree(both, &both.replace("skipped: no", "ok")).expect_err("two is another");
        agree("", "").expect_err("no case at all");
    }
}
