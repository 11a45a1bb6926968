//! Two hosts, their cards, and the wire between these; all of it ends when this ends.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use netvm_abi::WordIndex;

use super::folder::Folder;
use super::lane::Lane;
use super::logs;
use super::machines::{self, Bus, LANES, Places, Speed};
use super::parts::Parts;
use super::reports;
use super::wire::Wire;
use crate::exec;
use crate::image::hosted::memory;
use crate::image::hosted::server::{Bells, CARD, HOST};
use crate::image::memory::nic_memory;
use crate::image::network::Machine;

/// A kernel boots in seconds; with checks, on a busy machine, in a minute. Now and then (one boot in some hundred) an
/// emulated processor loses its timer as it boots, and stands still for ever.
const BOOT: Duration = Duration::from_secs(120);
/// A command that does no work.
pub(super) const SHORT: Duration = Duration::from_secs(60);
/// So many times as long may everything take on the kernel with checks, beside what others do on this machine.
const CHECKED: u32 = 3;
/// Gives QEMU's ivshmem devices to the driver, which takes none by itself.
pub(super) const CLAIM: &str = "for d in /sys/bus/pci/devices/*; do if grep -q 0x1110 $d/device; then echo netvm > $d/driver_override; \
                                echo ${d##*/} > /sys/bus/pci/drivers_probe; fi; done";
/// What a card says when it has booted.
const WAITS: &str = "waits for its driver";
/// A host.
pub(super) struct Host {
    machine: Machine,
    /// One for what is tested, one to look at it meanwhile.
    lanes: Vec<Lane>,
    places: Places,
    /// It runs the kernel with checks.
    checked: bool,
}

/// So many times every time limit holds.
const fn patience(checked: bool) -> u32 {
    if checked { CHECKED } else { 1 }
}

/// Two nodes on a wire.
pub(super) struct Rack {
    pub(super) hosts: [Host; 2],
    cards: [Option<Machine>; 2],
    pub(super) wire: Wire,
    /// What drivers and cards had counted when they were last asked.
    pub(super) counted: [serde_json::Value; 2],
    _bells: BellServer,
    places: [Places; 2],
    _folder: Folder,
    /// Bytes of each host's.
    ram: u64,
    boot: Boot,
}

/// What a host boots with.
struct Boot {
    parts: Parts,
    processors: u8,
    bus: Bus,
    interrupted: Arc<AtomicBool>,
}

impl Rack {
    /// Boots everything, and loads the module on both hosts, which have so many processors. Logs go to `logs`.
    pub(super) fn start(
        parts: &Parts,
        logs: &Path,
        seed: u64,
        processors: u8,
        bus: Bus,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let limit = Instant::now() + BOOT * patience(parts.kernel.debug);
        std::fs::create_dir_all(logs).with_context(|| format!("making {}", logs.display()))?;
        let ram = machines::ram(parts.kernel.debug);
        let folder = Folder::new(2 * (ram + nic_memory()))?;
        let places = [0, 1].map(|node| Places {
            run: folder.path().to_owned(),
            logs: logs.to_owned(),
            node,
        });
        let mut nics = Vec::new();
        for place in &places {
            memory::file(&place.ram(), ram)?;
            nics.push(memory::file(&place.nic(), nic_memory())?);
        }
        let bells = BellServer::start(&places, nics)?;
        let wire = Wire::start(
            places.each_ref().map(Places::wire),
            places.each_ref().map(Places::card_wire),
            &logs.join("wire.pcap"),
            seed,
        )?;
        let [first, second] = &places;
        let cards = [
            Some(Machine::spawn(machines::card(first, ram, Speed::Full))?),
            Some(Machine::spawn(machines::card(second, ram, Speed::Full))?),
        ];
        let boot = Boot {
            parts: parts.clone(),
            processors,
            bus,
            interrupted: Arc::clone(interrupted),
        };
        let [first, second] = [
            Host::start(&boot, first, limit)?,
            Host::start(&boot, second, limit)?,
        ];
        let mut rack = Self {
            hosts: [first, second],
            cards,
            wire,
            counted: Default::default(),
            _bells: bells,
            places,
            _folder: folder,
            ram,
            boot,
        };
        for host in &mut rack.hosts {
            host.greet(limit)?;
        }
        let loaded = rack.hosts.iter_mut().try_for_each(Host::load);
        // What a kernel says of itself explains a failure better than what came of it.
        rack.is_sound()?;
        loaded?;
        Ok(rack)
    }

    /// A time limit, as the hosts' kernel has it.
    pub(super) fn allowed(&self, limit: Duration) -> Duration {
        let [host, _] = &self.hosts;
        host.allowed(limit)
    }

    /// Whether the hosts run the kernel with checks.
    pub(super) fn is_checked(&self) -> bool {
        let [host, _] = &self.hosts;
        host.checked
    }

    /// Runs a command on each host, both at the same time; both must succeed. Gives both outputs.
    pub(super) fn both(&mut self, command: &str, limit: Duration) -> Result<[String; 2]> {
        for host in &mut self.hosts {
            host.begin(command)?;
        }
        let limit = Instant::now() + self.allowed(limit);
        let mut texts = [String::new(), String::new()];
        let mut failures = Vec::new();
        for (host, text) in self.hosts.iter_mut().zip(&mut texts) {
            // Whatever becomes of this one, the other one may say what is wrong.
            match host.end_within(limit.saturating_duration_since(Instant::now())) {
                Ok(said) => *text = said,
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        ensure!(failures.is_empty(), "{}", failures.join("; "));
        Ok(texts)
    }

    /// All ports have ended, no page is pinned, and the module goes. Gives the number of ports that host 0 has opened.
    pub(super) fn unload(&mut self) -> Result<u64> {
        let [here, _] = reports::counters(self)?;
        let [opened, closed] =
            ["ports_opened", "ports_closed"].map(|name| reports::number(&here["driver"], name));
        let (opened, closed) = (opened?, closed?);
        ensure!(opened == closed, "{opened} ports opened, {closed} closed");
        for host in &mut self.hosts {
            host.unpinned()?;
            host.run("rmmod netvm")?;
        }
        Ok(opened)
    }

    /// Ends a card at once, as a reset does; [`Self::start_card`] brings it up again with a new incarnation.
    pub(super) fn end_card(&mut self, node: usize) -> Result<()> {
        *self.cards.get_mut(node).context("no such card")? = None;
        Ok(())
    }

    /// Starts a card that was ended.
    pub(super) fn start_card(&mut self, node: usize) -> Result<()> {
        self.start_card_at(node, Speed::Full)
    }

    /// Gives one host a slow card, starts the other cards anew, too, so that none remembers the earlier one, and loads
    /// the module again.
    pub(super) fn slow_card(&mut self, slow: usize) -> Result<()> {
        for host in &mut self.hosts {
            host.device()?;
            host.run("rmmod netvm")?;
        }
        for node in 0..self.cards.len() {
            let speed = if node == slow { Speed::Slow } else { Speed::Full };
            let log = self.places.get(node).context("no such card")?.card_log();
            self.end_card(node)?;
            let _ = std::fs::remove_file(&log);
            self.start_card_at(node, speed)?;
            // A driver that comes before would see what the card of before has left in NIC memory.
            let limit = Instant::now() + self.allowed(SHORT);
            while !std::fs::read_to_string(&log).unwrap_or_default().contains(WAITS) {
                ensure!(
                    Instant::now() < limit,
                    "card {node} does not come up: {}",
                    log.display()
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        self.hosts.iter_mut().try_for_each(Host::load)
    }

    fn start_card_at(&mut self, node: usize, speed: Speed) -> Result<()> {
        let (Some(card), Some(places)) = (self.cards.get_mut(node), self.places.get(node)) else {
            bail!("no such card");
        };
        // One of before must be gone first: both would answer.
        *card = None;
        *card = Some(Machine::spawn(machines::card(places, self.ram, speed))?);
        Ok(())
    }

    /// Shuts a host down, whatever runs on it, and boots it again; `between` looks at what is left meanwhile. Its card goes
    /// on. The module is not loaded.
    pub(super) fn reboot(&mut self, node: usize, between: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let limit = Instant::now() + self.allowed(SHORT);
        let host = self.hosts.get_mut(node).context("no such host")?;
        host.lane(1)?.begin("reboot -f")?;
        while host.machine.is_running() {
            ensure!(Instant::now() < limit, "host {node} does not shut down");
            std::thread::sleep(Duration::from_millis(20));
        }
        logs::kernel_is_quiet(&host.places.host_log(), host.checked)?;
        let left = between(self);
        let limit = Instant::now() + BOOT * patience(self.boot.parts.kernel.debug);
        let places = self.places.get(node).context("no such host")?;
        let mut host = Host::start(&self.boot, places, limit)?;
        host.greet(limit)?;
        *self.hosts.get_mut(node).context("no such host")? = host;
        // With a host again, which a scenario that fails has, too.
        left
    }

    /// A word of a card's NIC memory, as it is now.
    pub(super) fn nic_word(&self, node: usize, at: WordIndex) -> Result<u32> {
        let nic = File::open(self.places.get(node).context("no such card")?.nic())?;
        let mut word = [0; 4];
        nic.read_exact_at(&mut word, u64::from(at.0) * 4)?;
        Ok(u32::from_le_bytes(word))
    }

    /// Stops a card in mid-step: it neither answers nor ends.
    pub(super) fn hang_card(&mut self, node: usize) -> Result<()> {
        self.signal_card(node, rustix::process::Signal::STOP)
    }

    /// Lets a card that hangs go on where it was stopped.
    pub(super) fn resume_card(&mut self, node: usize) -> Result<()> {
        self.signal_card(node, rustix::process::Signal::CONT)
    }

    fn signal_card(&self, node: usize, signal: rustix::process::Signal) -> Result<()> {
        let card = self
            .cards
            .get(node)
            .and_then(Option::as_ref)
            .context("no such card")?;
        let process = i32::try_from(card.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let process = process.context("a card without a process")?;
        rustix::process::kill_process(process, signal).context("stopping a card, or letting it go on")
    }

    /// Nothing has ended by itself, and no log speaks of trouble.
    pub(super) fn is_sound(&mut self) -> Result<()> {
        for (node, card) in self.cards.iter_mut().enumerate() {
            if let Some(card) = card {
                ensure!(card.is_running(), "card {node} has ended");
            }
        }
        for host in &mut self.hosts {
            let log = host.places.host_log();
            ensure!(
                host.machine.is_running(),
                "host {} has ended: {}",
                host.places.node,
                log.display()
            );
            logs::kernel_is_quiet(&log, host.checked)?;
        }
        for places in &self.places {
            logs::card_is_quiet(&places.card_log())?;
        }
        Ok(())
    }

    /// The checks of a kernel that has some were on to the end: lockdep goes out after what it takes for its own failure.
    pub(super) fn was_checked(&mut self) -> Result<()> {
        for host in self.hosts.iter_mut().filter(|host| host.checked) {
            let state = host.look("grep debug_locks: /proc/lockdep_stats")?;
            ensure!(
                state.split_whitespace().nth(1) == Some("1"),
                "lockdep is off on host {}: {state}",
                host.places.node
            );
        }
        Ok(())
    }

    /// Whether every machine runs.
    pub(super) fn is_running(&mut self) -> bool {
        let cards = self.cards.iter_mut().flatten().all(Machine::is_running);
        cards && self.hosts.iter_mut().all(|host| host.machine.is_running())
    }

    /// Where memories and sockets are.
    pub(super) fn folder(&self) -> &Path {
        self._folder.path()
    }

    /// Every log there is.
    pub(super) fn logs(&self) -> Vec<PathBuf> {
        let of = |places: &Places| {
            let lanes = LANES.map(|lane| places.transcript(lane));
            [vec![places.host_log(), places.card_log()], lanes.to_vec()].concat()
        };
        self.places.iter().flat_map(of).collect()
    }
}

impl Host {
    fn start(boot: &Boot, places: &Places, limit: Instant) -> Result<Self> {
        // A log or a socket of before must not speak for this boot.
        let lanes = LANES.map(|lane| places.lane(lane));
        for old in lanes.iter().chain([&places.host_log()]) {
            let _ = std::fs::remove_file(old);
        }
        let machine = Machine::spawn(machines::host(&boot.parts, places, boot.processors, boot.bus))?;
        let lane = |number| {
            Lane::connect(
                &places.lane(number),
                &places.transcript(number),
                &boot.interrupted,
                limit,
            )
        };
        let [first, second] = LANES;
        Ok(Self {
            machine,
            lanes: vec![lane(first)?, lane(second)?],
            places: places.clone(),
            checked: boot.parts.kernel.debug,
        })
    }

    /// Waits until it takes commands.
    fn greet(&mut self, limit: Instant) -> Result<()> {
        for lane in &mut self.lanes {
            lane.greet(limit)
                .context(self.places.host_log().display().to_string())?;
        }
        Ok(())
    }

    /// Has its QEMU do something.
    pub(super) fn monitor(&self, command: &str) -> Result<()> {
        let mut monitor = UnixStream::connect(self.places.monitor())?;
        writeln!(monitor, "{command}")?;
        // It has taken a line when it says what it makes of it.
        monitor.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut said = Vec::new();
        let mut bytes = [0; 512];
        while !String::from_utf8_lossy(&said)
            .rsplit_once(command)
            .is_some_and(|(_, after)| after.contains("(qemu)"))
        {
            let count = monitor.read(&mut bytes).context("QEMU's monitor is silent")?;
            ensure!(count > 0, "QEMU's monitor has ended");
            said.extend(bytes.get(..count).unwrap_or_default());
        }
        Ok(())
    }

    /// Runs a command that does little and must succeed; its output.
    pub(super) fn run(&mut self, command: &str) -> Result<String> {
        self.begin(command)?;
        self.end(SHORT)
    }

    /// Starts a command.
    pub(super) fn begin(&mut self, command: &str) -> Result<()> {
        self.lane(0)?.begin(command)
    }

    /// The output of the command that [`Self::begin`] started, which must succeed.
    pub(super) fn end(&mut self, limit: Duration) -> Result<String> {
        self.end_within(self.allowed(limit))
    }

    fn end_within(&mut self, limit: Duration) -> Result<String> {
        let node = self.places.node;
        let reply = self
            .lane(0)?
            .end(limit)
            .with_context(|| format!("on host {node}"))?;
        let last = || reply.text.trim().lines().last().unwrap_or_default();
        ensure!(
            reply.status == 0,
            "host {node} ends with {}: {}",
            reply.status,
            last()
        );
        Ok(reply.text)
    }

    /// Runs a command that does little and must succeed, while another one runs; its output.
    pub(super) fn look(&mut self, command: &str) -> Result<String> {
        let (node, limit) = (self.places.node, self.allowed(SHORT));
        let reply = self.lane(1)?.run(command, limit);
        reply.with_context(|| format!("on host {node}"))
    }

    /// What its driver and its card have counted since they started.
    pub(super) fn counters(&mut self) -> Result<serde_json::Value> {
        // A card writes its own down once a second.
        let text = self.look("sleep 1.2; netvm stat --device /dev/netvm0 --json")?;
        serde_json::from_str(text.trim()).with_context(|| format!("no counters: {text}"))
    }

    fn allowed(&self, limit: Duration) -> Duration {
        limit * patience(self.checked)
    }

    fn lane(&mut self, number: usize) -> Result<&mut Lane> {
        self.lanes.get_mut(number).context("a host without this lane")
    }

    /// Leaves the second lane to another program.
    pub(super) fn share(&mut self) {
        self.lanes.truncate(1);
    }

    /// Loads the module, and gives it the card.
    pub(super) fn load(&mut self) -> Result<()> {
        self.run("insmod /lib/netvm.ko")?;
        self.run(CLAIM).map(drop)
    }

    /// Waits until the device is there, and gives it to its group, as the udev rule does.
    pub(super) fn device(&mut self) -> Result<()> {
        self.run(
            "for i in $(seq 300); do test -c /dev/netvm0 && exec chgrp netvm /dev/netvm0; sleep 0.1; done; echo no device; \
             exit 1",
        )
        .map(drop)
    }

    /// Fails if its kernel has ever pinned a page for any user and not let it go.
    pub(super) fn unpinned(&mut self) -> Result<()> {
        let pins = self.run("grep nr_foll_pin /proc/vmstat | cut -d' ' -f2")?;
        let mut counts = pins.split_whitespace();
        ensure!(
            counts.next() == counts.next() && !pins.trim().is_empty(),
            "pages are pinned: {pins}"
        );
        Ok(())
    }

    /// What its kernel has said so far.
    pub(super) fn log(&self) -> String {
        exec::tail(&self.places.host_log(), 1 << 20)
    }
}

/// Gives machines their numbers, NIC memory and bells, whenever one asks: a card that starts anew asks again.
struct BellServer {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BellServer {
    fn start(places: &[Places; 2], nics: Vec<File>) -> Result<Self> {
        let mut doors = Vec::new();
        for (places, nic) in places.iter().zip(nics) {
            let bells = Arc::new((Bells::new()?, nic));
            for (of_card, number) in [(false, HOST), (true, CARD)] {
                let path = places.bells(of_card);
                let door =
                    UnixListener::bind(&path).with_context(|| format!("binding {}", path.display()))?;
                door.set_nonblocking(true)?;
                doors.push((door, number, Arc::clone(&bells)));
            }
        }
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let thread = std::thread::Builder::new()
            .name("bells".to_owned())
            .spawn(move || {
                // A machine takes the end of its connection for the end of its peers.
                let mut machines: Vec<UnixStream> = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    for (door, number, shared) in &doors {
                        let Ok((machine, _)) = door.accept() else {
                            continue;
                        };
                        let told = machine
                            .set_nonblocking(false)
                            .map_err(anyhow::Error::from)
                            .and_then(|()| shared.0.introduce(&machine, *number, &shared.1));
                        match told {
                            Ok(()) => machines.push(machine),
                            Err(error) => eprintln!("a machine did not get its bells: {error:#}"),
                        }
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            })?;
        Ok(Self {
            over,
            thread: Some(thread),
        })
    }
}

impl Drop for BellServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}
