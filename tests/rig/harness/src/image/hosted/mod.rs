//! Cards for hosts outside: two machines boot the image as it is, and this process is the host of each, over memory that
//! it shares with them.

pub(crate) mod memory;
pub(crate) mod server;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use netvm_abi::attach::{AttachError, CardHeader};
use netvm_abi::page_table::HashKey;
use netvm_abi::shared_map::status_page;
use netvm_abi::words::SharedWords;
use netvm_abi::{NodeId, PAGE_SIZE};

use super::boots::log_of;
use super::memory::nic_memory;
use super::network::{Machine, idle_share, start};
use memory::{Shared, Window};
use netvm_fw_common::host::{self, page};
use server::Server;

/// Boot word: serve the host.
pub(crate) const SERVE: u32 = 0;
const PATIENCE: Duration = Duration::from_secs(30);
/// Watched with nothing to do.
const WATCH: Duration = Duration::from_secs(1);
const IDLE_LIMIT: f64 = 0.05;

/// Pages of each host: what is written from; what is written to, mapped by the first bounce; a word.
const LOCAL: u64 = 8;
const BULK: u64 = 0;
const WORD: u64 = 1;
const NOTIFICATION: u32 = 5;
/// More than a window, so that credits come back.
const ROUNDS: u32 = 200;

/// What was seen.
pub(super) struct Seen {
    /// The larger share of a processor that a machine took with nothing to do.
    pub(super) idle: f64,
    /// A page and a word, one way, answered by another.
    pub(super) exchange: Duration,
    /// Calls of a card that slept.
    pub(super) rings: u64,
}

/// A host, its card, and the ways between them.
struct Host {
    host: host::Host<Window>,
    shared: Shared,
    server: Server,
    machine: Machine,
    node: NodeId,
    key: HashKey,
    /// Calls of a card that slept.
    rings: u64,
    /// Interrupts of the card.
    rung: u64,
}

/// Boots both and plays the hosts.
pub(super) fn run() -> Result<Seen> {
    let folder = std::env::temp_dir().join(format!("netvm-hosts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let seen = play(&folder);
    // What is left of it is memory of machines that are gone.
    let _ = std::fs::remove_dir_all(&folder);
    seen.with_context(|| {
        let logs = ["hosted-0", "hosted-1"].map(|name| log_of(name).display().to_string());
        format!("cards for hosts outside; {}", logs.join(", "))
    })
}

fn play(folder: &Path) -> Result<Seen> {
    let limit = Instant::now() + PATIENCE;
    let mut hosts = [
        Host::boot(NodeId(0), 0, folder, limit)?,
        Host::boot(NodeId(1), 0, folder, limit)?,
    ];
    ensure!(
        hosts[0].key != hosts[1].key,
        "both cards drew the same key for their page tables"
    );
    for host in &mut hosts {
        host.open()?;
    }
    linked(&mut hosts, limit)?;
    let began = Instant::now();
    for round in 0..ROUNDS {
        exchange(&mut hosts, round, limit)?;
    }
    let exchange_time = began.elapsed() / ROUNDS;
    let idle = idle_share([&hosts[0].machine, &hosts[1].machine], WATCH)?;
    ensure!(
        idle <= IDLE_LIMIT,
        "a card with nothing to do takes {:.1} % of a processor",
        idle * 100.0
    );
    // Both sleep: only their bells can wake them.
    exchange(&mut hosts, ROUNDS, limit)?;
    for host in &mut hosts {
        host.is_sound()?;
    }
    let rings = hosts.iter().map(|host| host.rings).sum();

    // A node that starts anew, host and card: the other one's card still knows its last life.
    let [stays, goes] = hosts;
    drop(goes);
    let mut hosts = [stays, Host::boot(NodeId(1), 1, folder, limit)?];
    hosts[1].open()?;
    linked(&mut hosts, limit)?;
    for round in 0..ROUNDS / 4 {
        exchange(&mut hosts, round, limit).context("after a restart of node 1")?;
    }
    for host in &mut hosts {
        host.is_sound().context("after a restart of node 1")?;
    }
    Ok(Seen {
        idle,
        exchange: exchange_time,
        rings,
    })
}

/// The card's header, once its firmware is up.
fn header(shared: &Shared, limit: Instant) -> Result<CardHeader> {
    loop {
        match CardHeader::load(shared.bar) {
            Ok(header) => return Ok(header),
            Err(AttachError::NotUp { .. }) if Instant::now() < limit => {}
            Err(error) => bail!("{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn linked(hosts: &mut [Host; 2], limit: Instant) -> Result<()> {
    until(hosts, limit, "the cards do not find each other", |hosts| {
        hosts.iter().all(|host| host.host.is_linked(host.other()))
    })
}

/// Node 0 writes, node 1 answers.
fn exchange(hosts: &mut [Host; 2], round: u32, limit: Instant) -> Result<()> {
    for from in [0, 1] {
        let into = 1 - from;
        let salt = (round * 2 + from as u32) as u8;
        let value = 0x0123_4567_89AB_CDEF ^ (u64::from(round) << 8) ^ from as u64;
        let writer = &mut hosts[from];
        let to = writer.other();
        writer.host.fill(LOCAL, salt);
        let before = hosts[into].host.signals(NOTIFICATION);
        let writer = &mut hosts[from];
        let posted = writer
            .host
            .post_page(to, page(BULK), page(LOCAL), PAGE_SIZE)
            .and_then(|()| writer.host.post_word(to, page(WORD), value, NOTIFICATION));
        posted.map_err(|complaint| anyhow!(complaint))?;
        writer.call()?;
        until(hosts, limit, "no notification", |hosts| {
            hosts[into].host.signals(NOTIFICATION) > before
        })?;
        let reader = &hosts[into].host;
        ensure!(
            reader.signals(NOTIFICATION) == before + 1,
            "more notifications than writes"
        );
        ensure!(reader.holds(BULK, salt), "the page holds other bytes");
        ensure!(reader.word(WORD) == Some(value), "the word holds another value");
        until(hosts, limit, "a write did not complete", |hosts| {
            hosts[from].host.all_done()
        })?;
    }
    Ok(())
}

/// Serves both hosts until `done`.
fn until(
    hosts: &mut [Host; 2],
    limit: Instant,
    complaint: &str,
    done: impl Fn(&[Host; 2]) -> bool,
) -> Result<()> {
    while !done(hosts) {
        if Instant::now() > limit {
            bail!("{complaint}");
        }
        let mut served = false;
        for host in &mut *hosts {
            served |= host.step()?;
        }
        if !served {
            // Two machines want the processors as well.
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ok(())
}

impl Host {
    /// Starts `node` with a card and memory of its own, for the `life`th time.
    fn boot(node: NodeId, life: u32, folder: &Path, limit: Instant) -> Result<Self> {
        let geometry = netvm_fw_common::board::geometry();
        let at = |name: &str| folder.join(format!("{name}-{node}-{life}"));
        let nic = memory::file(&at("nic"), nic_memory())?;
        let ram = memory::file(&at("ram"), memory::RAM)?;
        let mut server = Server::new(&at("bell"))?;
        let (socket, file, size) = (at("bell"), at("ram"), memory::RAM);
        let devices = [
            "-chardev",
            &format!("socket,id=bell,path={}", socket.display()),
            "-device",
            "ivshmem-doorbell,chardev=bell,vectors=1",
            "-object",
            &format!(
                "memory-backend-file,id=ram,mem-path={},share=on,size={size}",
                file.display()
            ),
            "-device",
            "ivshmem-plain,memdev=ram",
            "-device",
            "virtio-rng-pci",
        ];
        let log = log_of(&format!("hosted-{node}"));
        let machine = start(
            SERVE,
            u32::from(node.0),
            &log,
            folder,
            &devices.map(str::to_owned),
        )?;
        server.serve(&nic, limit)?;
        let shared = memory::share(&nic, &ram, &geometry)?;
        let header = header(&shared, limit)?;
        ensure!(
            header.geometry == geometry && header.node == node,
            "the card says that it is another: {header:?}"
        );
        memory::mislead(&shared);
        // A card looks for its driver every 10 ms.
        std::thread::sleep(Duration::from_millis(50));
        ensure!(
            !std::fs::read_to_string(&log)?.contains("the driver is there"),
            "the card believes in memory that is not there"
        );
        memory::tell(&shared);
        Ok(Self {
            host: host::Host::new(shared, geometry, header.key),
            shared,
            server,
            machine,
            node,
            key: header.key,
            rings: 0,
            rung: 0,
        })
    }

    /// Opens the port, lets the other node write, and asks for the links.
    fn open(&mut self) -> Result<()> {
        let nodes = [NodeId(0), NodeId(1)].into_iter();
        self.host.open(nodes).map_err(|complaint| anyhow!(complaint))?;
        self.host.grant(self.other());
        self.host.map(page(LOCAL)).context("no place for a page")?;
        self.call()
    }

    /// What must be true when everything is done.
    fn is_sound(&mut self) -> Result<()> {
        self.step()?;
        let (node, bounces) = (self.node, self.host.bounces);
        ensure!(
            bounces == 2,
            "{bounces} messages bounced at node {node} instead of the first to each page"
        );
        ensure!(self.rung > 0, "the card of node {node} never rang");
        ensure!(self.rings > 0, "the card of node {node} never slept");
        Ok(())
    }

    fn other(&self) -> NodeId {
        NodeId(1 - self.node.0)
    }

    /// Answers the card.
    fn step(&mut self) -> Result<bool> {
        self.rung += self.server.rung();
        let served = self.host.serve().map_err(|complaint| anyhow!(complaint))?;
        if served {
            self.call()?;
        }
        Ok(served)
    }

    /// Calls the card if it sleeps. What was stored for it before is ordered before this look: either the card saw it
    /// before it slept, or this sees that it sleeps.
    fn call(&mut self) -> Result<()> {
        self.shared.words.full_barrier();
        if self.shared.words.load_acquire(status_page::SLEEPING) != 0 {
            self.rings += 1;
            self.server.ring()?;
        }
        Ok(())
    }
}
