//! Processes that end at any instruction: their peers hear of it, and nothing is left behind. And processes that end well: what
//! they posted arrives.
//!
//! 50 processes are killed; with `cargo xtask test --long`, 1,000 over each kind of link.

mod support;

use std::time::{Duration, Instant};

use netvm::abi::PAGE_SIZE;
use netvm::{Access, NodeId, Port, PortConfig, PortId, RemoteSegment};
use netvm_kit::length::is_long;
use netvm_process::{SoftBuilder, SoftNode};
use netvm_relay::{Faults, Relay};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use support::{Held, PATIENCE, Player, scene, status, told, until, wait_for_test};

/// Node numbers of this program: those from 64 on, which no other test has.
const NODES: u16 = 160;
const FIRST: u16 = 64;
/// Victims over UDP at a time: the death of one is found out by silence, which takes seconds.
const AT_ONCE: u16 = 10;
const SERVED: PortId = PortId(7);
const BYTES: u64 = 4 << 20;

fn builder(number: u16, udp: bool) -> SoftBuilder {
    let builder = SoftNode::builder().nodes(NODES).number(number);
    if udp { builder.udp("127.0.0.1:0") } else { builder }
}

/// Not a test: what the other processes do.
#[test]
fn play() {
    match scene().as_deref() {
        None => {}
        Some("victim") => victim(),
        Some("survivor") => survivor(),
        Some("leaver") => leaver(),
        Some("quitter") => quitter(),
        Some("served") => {
            let server = Server::start(told("NETVM_NUMBER").parse().unwrap(), false);
            println!("\nready {}", server.node.number());
            wait_for_test();
            println!("\nsignals {}", server.port.notification(1).unwrap().pending());
            wait_for_test();
        }
        Some(other) => panic!("no scene {other}"),
    }
}

/// Makes a link and then uses everything, until it is killed.
fn victim() {
    let number: u16 = told("NETVM_NUMBER").parse().unwrap();
    let name = told("NETVM_PEER");
    let node = builder(number, name.starts_with("udp://")).start().unwrap();
    let port = Port::open(&node.node(), PortConfig::number(SERVED.0)).unwrap();
    let memory = port.alloc(1 << 16).unwrap();
    let access = || Access::everyone().notify(1..=9);
    let _export = port.export("victim", &memory, .., access()).unwrap();
    let peer = node.connect(&name, PATIENCE).unwrap();
    let remote = port.import(peer, SERVED, "memory", PATIENCE).unwrap();
    println!("\nready");
    let mut random = SmallRng::seed_from_u64(u64::from(number));
    let source = port.alloc(1 << 20).unwrap();
    let mut back = vec![0; 9000];
    loop {
        let at = random.random_range(0..100) * 4096;
        match random.random_range(0..8) {
            0 => remote.write(at, source.whole()).post().map(drop),
            1 => remote.write(at, &[7; 100][..]).notify(3).post().map(drop),
            2 => remote.write(at, &back[..]).post().map(drop),
            3 => remote.read(at, &mut back[..]).ordered().call(),
            4 => remote.word64(at).and_then(|word| word.fetch_add(1)).map(drop),
            5 => remote.notify(4).map(drop),
            6 => {
                let other = Port::open(&node.node(), PortConfig::default()).unwrap();
                let more = other.alloc(1 << 14).unwrap();
                other.export("more", &more, .., access()).map(drop)
            }
            _ => port.flush_remote(peer),
        }
        .unwrap();
    }
}

/// What the test's own side serves.
struct Server {
    node: SoftNode,
    port: Port,
    memory: netvm::Region,
    _export: netvm::Export,
}

impl Server {
    fn start(number: u16, udp: bool) -> Self {
        let node = builder(number, udp).start().unwrap();
        let port = Port::open(&node.node(), PortConfig::number(SERVED.0)).unwrap();
        let memory = port.alloc(BYTES).unwrap();
        let access = Access::everyone().notify(1..=9);
        let _export = port.export("memory", &memory, .., access).unwrap();
        Self {
            node,
            port,
            memory,
            _export,
        }
    }

    fn name(&self) -> String {
        match self.node.udp_address() {
            Some(address) => format!("udp://{address}"),
            None => format!("#{}", self.node.number()),
        }
    }

    /// Starts a victim, and kills it at an instruction that differs from round to round: half of them on their way to a link,
    /// half in the middle of traffic. Returns how long it took until this side heard of it, if there was a link.
    fn kill_one(&self, number: u16, round: u64) -> Option<Duration> {
        let mut random = SmallRng::seed_from_u64(round);
        let name = self.name();
        let number_text = number.to_string();
        let mut victim = Player::start("victim", &[("NETVM_NUMBER", &number_text), ("NETVM_PEER", &name)]);
        let victim_id = NodeId(number);
        let remote = if round.is_multiple_of(2) {
            std::thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
            None
        } else {
            victim.hear("ready");
            let remote = self.port.import(victim_id, SERVED, "victim", PATIENCE).unwrap();
            std::thread::sleep(Duration::from_micros(random.random_range(0..5_000)));
            Some(remote)
        };
        let was_up = self.node.is_up(victim_id);
        victim.kill();
        let dead = Instant::now();
        if let Some(remote) = remote {
            self.hear_by_call(&remote, dead);
        }
        // Over UDP nothing tells of a peer with which nothing is outstanding.
        if self.node.udp_address().is_none() || remote_is_owed(round) {
            until("the driver hears of a death", || !self.node.is_up(victim_id));
        }
        (was_up || remote_is_owed(round)).then(|| dead.elapsed())
    }

    /// A call to a dead peer fails.
    fn hear_by_call(&self, remote: &RemoteSegment, dead: Instant) {
        loop {
            let error = match remote.read(0, &mut [0u8; 8][..]).call() {
                Ok(()) => {
                    // What it had answered before.
                    assert!(dead.elapsed() < PATIENCE, "a dead process answers");
                    continue;
                }
                Err(error) => format!("{error:?}"),
            };
            assert!(error.contains("LinkLost") || error.contains("Revoked"), "{error}");
            return;
        }
    }
}

/// Whether this side asked the victim of a round for something.
const fn remote_is_owed(round: u64) -> bool {
    !round.is_multiple_of(2)
}

/// KiB that a set of kills may leave: the rings of two links, or 5 for each of 1,000 kills. Less is not told from what the allocator
/// keeps.
const MORE: u64 = 4096;
/// So many sets of kills are tried until one leaves no more.
const SETS: u32 = 5;

/// In a process of its own, whose threads and descriptors are no other test's: kills, and counts what is left.
fn survivor() {
    let udp = told("NETVM_UDP") == "1";
    let rounds: u64 = told("NETVM_ROUNDS").parse().unwrap();
    let server = Server::start(FIRST + u16::from(udp) * 32, udp);
    let first = FIRST + u16::from(udp) * 32 + 1;
    let at_once = if udp { AT_ONCE } else { 1 };
    let batch = |batch: u64| {
        let mut slowest = Duration::ZERO;
        std::thread::scope(|scope| {
            let rounds = (0..at_once).map(|at| {
                let server = &server;
                scope.spawn(move || server.kill_one(first + at, batch * u64::from(at_once) + u64::from(at)))
            });
            let rounds: Vec<_> = rounds.collect();
            for round in rounds {
                slowest = slowest.max(round.join().unwrap().unwrap_or_default());
            }
        });
        slowest
    };
    // The first ones make what stays: threads' stacks, buffers in stock.
    let batches = rounds / u64::from(at_once);
    let warm = (batches / 5).clamp(1, 20);
    for at in 0..warm {
        batch(at);
    }
    let settled = |wanted: &Held| {
        until("what the dead had is let go", || Held::now().is_within(wanted, 8));
    };
    let alone = Held::now();
    let mut slowest = Duration::ZERO;
    let mut grown = u64::MAX;
    // Where more deaths than before are under way at once, more windows and buffers are used for the first time. What the dead hold
    // grows with each set of them.
    for _ in 0..SETS {
        let before = status("VmRSS");
        slowest = (warm..batches).map(&batch).fold(slowest, Duration::max);
        settled(&alone);
        grown = grown.min(status("VmRSS").saturating_sub(before));
        if grown < MORE {
            break;
        }
    }
    println!("\nslowest {}", slowest.as_micros());
    println!("\nheld {:?} KiB-more {grown}", Held::now());
    println!("\ngrown {grown}");
}

/// Kills so many processes, and says how long it took at most until their peer knew.
fn kill(udp: bool, rounds: u64) -> Duration {
    let rounds_text = rounds.to_string();
    let udp_text = u8::from(udp).to_string();
    let mut survivor = Player::start(
        "survivor",
        &[
            ("NETVM_UDP", &udp_text),
            ("NETVM_ROUNDS", &rounds_text),
            // Where threads meet at the allocator it makes a heap for each, which is no memory of the dead.
            ("MALLOC_ARENA_MAX", "1"),
        ],
    );
    let slowest = Duration::from_micros(survivor.hear("slowest ").parse().unwrap());
    let held = survivor.hear("held ");
    let grown: u64 = survivor.hear("grown ").parse().unwrap();
    println!("{rounds} kills: heard of after {slowest:?} at most; {held}");
    assert!(grown < MORE, "{grown} KiB more");
    survivor.end();
    slowest
}

#[test]
fn a_kill_at_any_instruction_leaves_nothing() {
    let slowest = kill(false, if is_long() { 1000 } else { 40 });
    assert!(slowest < Duration::from_millis(100), "{slowest:?}");
}

#[test]
fn a_kill_at_any_instruction_leaves_nothing_over_udp() {
    let slowest = kill(true, if is_long() { 1000 } else { 20 });
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
}

const LEFT: u64 = 3000;
/// As many writes as fit a queue, to a page each.
const PAGES: u64 = 60;

/// Posts much and ends, without waiting for more of it than that the other side has received it.
fn leaver() {
    let how = told("NETVM_HOW");
    let name = told("NETVM_PEER");
    let number: u16 = told("NETVM_NUMBER").parse().unwrap();
    let node = builder(number, name.starts_with("udp://")).start().unwrap();
    let peer = node.connect(&name, PATIENCE).unwrap();
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    let remote = port.import(peer, SERVED, "memory", PATIENCE).unwrap();
    let source = port.alloc(1 << 20).unwrap();
    source.write_from(0, &vec![5; 1 << 20]).unwrap();
    remote.write(1 << 20, source.whole()).post().unwrap();
    remote.write(2 << 20, source.whole()).post().unwrap();
    // The last ones need nothing of this process' memory, so no region's end waits for them.
    for at in 0..LEFT {
        remote.write(at * 8, &(at + 1).to_le_bytes()[..]).post().unwrap();
    }
    remote.notify(1).unwrap();
    match how.as_str() {
        "drops" => {}
        "exits" => std::process::exit(0),
        "forgets" => std::mem::forget((node, port, remote, source)),
        "dies" => {
            port.flush_received(peer).unwrap();
            // SAFETY: it ends this process, and touches no memory.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        other => panic!("no way to end: {other}"),
    }
}

fn leave(server: &Server, name: &str, how: &str, number: u16) {
    server.memory.write_from(0, &vec![0; 3 << 20]).unwrap();
    let number = number.to_string();
    let told = [
        ("NETVM_HOW", how),
        ("NETVM_PEER", name),
        ("NETVM_NUMBER", &number),
    ];
    let leaver = Player::start("leaver", &told);
    match how {
        "dies" => leaver.dies(),
        _ => leaver.end(),
    }
    // It is gone. What is in the ring or in the socket is still received.
    let arrived = server.port.notification(1).unwrap();
    let all = arrived.wait(Duration::from_secs(5));
    assert!(all.is_ok(), "{how}: the last signal does not come: {all:?}");
    arrived.ack().unwrap();
    let mut bytes = vec![0; 3 << 20];
    server.memory.read_into(0, &mut bytes).unwrap();
    for at in 0..LEFT as usize {
        let word = u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
        assert_eq!(word, at as u64 + 1, "{how}");
    }
    assert!(bytes[1 << 20..].iter().all(|byte| *byte == 5), "{how}");
}

/// The peer takes nothing until the port is being closed.
#[test]
fn what_was_posted_before_a_port_is_closed_arrives() {
    close_what_was_posted(FIRST + 30, NODES);
}

/// What has left is kept until it has been received, and the peer takes as much.
#[test]
fn what_was_posted_before_a_port_is_closed_arrives_where_links_share_windows() {
    close_what_was_posted(FIRST + 60, 4);
}

fn close_what_was_posted(first: u16, windows: u16) {
    let number = first.to_string();
    let mut server = Player::start("served", &[("NETVM_NUMBER", &number)]);
    let name = format!("#{}", server.hear("ready "));
    let node = builder(first + 1, false).windows(windows).start().unwrap();
    let peer = node.connect(&name, PATIENCE).unwrap();
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    let remote = port.import(peer, SERVED, "memory", PATIENCE).unwrap();
    server.signal(libc::SIGSTOP);
    // More than its window takes, and less than the port's queue.
    for at in 0..90u64 {
        remote.write(at * 8, &(at + 1).to_le_bytes()[..]).post().unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            server.signal(libc::SIGCONT);
        });
        drop((port, remote));
    });
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    let remote = port.import(peer, SERVED, "memory", PATIENCE).unwrap();
    until("all of it arrives", || {
        let mut last = [0; 8];
        remote.read(89 * 8, &mut last[..]).call().unwrap();
        u64::from_le_bytes(last) == 90
    });
    server.end();
}

#[test]
fn what_was_posted_before_a_normal_exit_or_received_before_a_kill_arrives() {
    let server = Server::start(FIRST + 20, false);
    for how in ["drops", "exits", "forgets", "dies"] {
        leave(&server, &server.name(), how, FIRST + 21);
    }
}

/// Posts a write to each of some pages, and exits.
fn quitter() {
    let number = told("NETVM_NUMBER").parse().unwrap();
    let node = builder(number, false).start().unwrap();
    let peer = node.connect(&told("NETVM_PEER"), PATIENCE).unwrap();
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    let remote = port.import(peer, SERVED, "memory", PATIENCE).unwrap();
    println!("\nready");
    wait_for_test();
    for at in 0..PAGES {
        let word = (at + 1).to_le_bytes();
        let write = remote.write(at * u64::from(PAGE_SIZE), &word[..]);
        write.notify(1).post().unwrap();
    }
    println!("\nposted");
    match told("NETVM_HOW").as_str() {
        "exits" => std::process::exit(0),
        // The port before its imports: these have nothing to wait for.
        "closes" => drop((port, remote, node)),
        other => panic!("no way to end: {other}"),
    }
}

/// The peer finds what was posted and the farewell at once, and has to bring a page for each.
#[test]
fn what_was_posted_before_a_normal_exit_arrives_in_memory_that_nothing_has_touched() {
    quit("exits", FIRST + 40);
    quit("closes", FIRST + 50);
}

fn quit(how: &str, first: u16) {
    let number = first.to_string();
    let mut server = Player::start("served", &[("NETVM_NUMBER", &number)]);
    let name = format!("#{}", server.hear("ready "));
    let number = (first + 1).to_string();
    let told = [
        ("NETVM_HOW", how),
        ("NETVM_PEER", &name),
        ("NETVM_NUMBER", &number),
    ];
    let mut quitter = Player::start("quitter", &told);
    quitter.hear("ready");
    server.signal(libc::SIGSTOP);
    quitter.tell();
    quitter.hear("posted");
    std::thread::sleep(Duration::from_millis(200));
    server.signal(libc::SIGCONT);
    quitter.end();
    let node = builder(first + 2, false).start().unwrap();
    let peer = node.connect(&name, PATIENCE).unwrap();
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    let remote = port.import(peer, SERVED, "memory", PATIENCE).unwrap();
    for at in 0..PAGES {
        let mut word = [0; 8];
        remote
            .read(at * u64::from(PAGE_SIZE), &mut word[..])
            .call()
            .unwrap();
        assert_eq!(u64::from_le_bytes(word), at + 1);
    }
    server.tell();
    assert_eq!(server.hear("signals "), PAGES.to_string(), "{how}");
    server.end();
}

#[test]
fn what_was_posted_before_a_normal_exit_or_received_before_a_kill_arrives_over_a_network_that_loses() {
    let server = Server::start(FIRST + 22, true);
    let faults = Faults {
        lost: 50,
        doubled: 10,
        late: 10,
        spoilt: 10,
        ..Faults::default()
    };
    let to = server.node.udp_address().unwrap();
    let relay = Relay::start("127.0.0.1:0".parse().unwrap(), to, faults, 3).unwrap();
    for (at, how) in ["drops", "exits", "forgets", "dies"].into_iter().enumerate() {
        let number = FIRST + 23 + at as u16;
        leave(&server, &format!("udp://{}", relay.address()), how, number);
    }
}
