//! Nodes in processes of their own: this program, started again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use netvm::{Access, NodeId, Port, PortConfig, PortId};
use netvm_process::SoftNode;

const PATIENCE: Duration = Duration::from_secs(20);
const SCENE: &str = "NETVM_SCENE";
const PAGES: u64 = 64;

/// Another process, which plays a scene, and says each line that it reached.
struct Player {
    child: Child,
    out: BufReader<ChildStdout>,
    input: Option<ChildStdin>,
}

impl Player {
    fn start(scene: &str, name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "play", "--nocapture", "--test-threads", "1"]);
        command.env(SCENE, scene).env("NETVM_NAME", name);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            out: BufReader::new(child.stdout.take().unwrap()),
            input: child.stdin.take(),
            child,
        }
    }

    /// Waits for a line that begins so, and gives what follows.
    fn hear(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        while self.out.read_line(&mut line).unwrap() != 0 {
            if let Some(at) = line.find(wanted) {
                return line[at + wanted.len()..].trim().to_owned();
            }
            line.clear();
        }
        panic!("the other process ended before it said '{wanted}'");
    }

    /// Lets it go on.
    fn tell(&mut self) {
        self.input.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// In a scene: waits until the test lets it go on, or has ended.
fn wait_for_test() {
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

/// A name that no other test uses at the same time.
fn name(what: &str) -> String {
    format!("{what}-{}", std::process::id())
}

/// A node whose port 7 exports `PAGES` pages, which others may write, read, change and signal.
fn serve(name: &str) -> (SoftNode, Port, netvm::Region, netvm::Export) {
    let node = SoftNode::builder().name(name).start().unwrap();
    let port = Port::open(&node.node(), PortConfig::number(7)).unwrap();
    let memory = port.alloc(PAGES * 4096).unwrap();
    let export = port
        .export("memory", &memory, .., Access::everyone().notify(1..=9))
        .unwrap();
    (node, port, memory, export)
}

/// Not a test: what the other processes do.
#[test]
fn play() {
    let Ok(scene) = std::env::var(SCENE) else { return };
    let name = std::env::var("NETVM_NAME").unwrap();
    if scene == "kills" {
        return fifty_kills();
    }
    let (node, port, memory, _export) = serve(&name);
    println!("\nready {}", node.number());
    match scene.as_str() {
        "echo" => loop {
            // Each signal's page comes back one higher, to the process that says where.
            let arrived = port.notification(1).unwrap();
            match arrived.wait(PATIENCE) {
                Ok(_) => arrived.ack().unwrap(),
                Err(_) => return,
            }
            let mut bytes = vec![0; 4096];
            memory.read_into(0, &mut bytes).unwrap();
            if bytes[0] == 0xFF {
                println!("\ndone");
                return;
            }
            bytes.iter_mut().for_each(|byte| *byte += 1);
            memory.write_from(4096, &bytes).unwrap();
            memory.word64(8192).unwrap().store(u64::from(bytes[0])).unwrap();
        },
        "idle" => {
            wait_for_test();
            // What is due after the traffic: an acknowledgement, a last look at the peer.
            while !node.is_quiet() {
                std::thread::yield_now();
            }
            let before = switches();
            std::thread::sleep(Duration::from_secs(1));
            println!("\nswitches {}", switches() - before);
            wait_for_test();
        }
        "serve" => wait_for_test(),
        "compute" => {
            // It calls nothing of NetVM until the test has ended.
            let mut sum = 0u64;
            let end = Instant::now() + Duration::from_secs(2);
            while Instant::now() < end {
                sum = sum.wrapping_mul(31).wrapping_add(7);
            }
            println!("\nsum {sum}");
            wait_for_test();
        }
        other => panic!("no scene {other}"),
    }
}

/// Voluntary context switches of all threads of this process.
fn switches() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|line| line.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.flatten().map(of).sum()
}

fn join(player: &mut Player, name: &str) -> (SoftNode, NodeId, Port) {
    player.hear("ready ");
    let node = SoftNode::builder().start().unwrap();
    let peer = node.connect(name, PATIENCE).unwrap();
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    (node, peer, port)
}

fn load(remote: &netvm::RemoteSegment, at: u64) -> u64 {
    let mut bytes = [0; 8];
    remote.read(at, &mut bytes[..]).call().unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn two_processes_write_read_signal_and_count_in_each_others_memory() {
    let name = name("echo");
    let mut player = Player::start("echo", &name);
    let (_node, peer, port) = join(&mut player, &name);
    let remote = port.import(peer, PortId(7), "memory", PATIENCE).unwrap();
    for round in 1..=50u8 {
        remote.write(0, &[round; 4096][..]).notify(1).post().unwrap();
        let end = Instant::now() + PATIENCE;
        // A word that the other process' processor stores is there for a remote read.
        while load(&remote, 8192) != u64::from(round + 1) {
            assert!(Instant::now() < end, "no answer in round {round}");
        }
        let mut bytes = vec![0; 4096];
        remote.read(4096, &mut bytes[..]).call().unwrap();
        assert!(bytes.iter().all(|byte| *byte == round + 1));
        let before = remote.word64(16384).unwrap().fetch_add(3).unwrap();
        assert_eq!(before, u64::from(round - 1) * 3);
    }
    remote.write(0, &[0xFF; 8][..]).notify(1).post().unwrap();
    player.hear("done");
    player.end();
}

#[test]
fn a_target_that_computes_serves_reads_and_writes() {
    let name = name("compute");
    let mut player = Player::start("compute", &name);
    let (_node, peer, port) = join(&mut player, &name);
    let remote = port.import(peer, PortId(7), "memory", PATIENCE).unwrap();
    for round in 0..200u64 {
        let at = round % PAGES * 4096;
        remote.write(at, &round.to_le_bytes()[..]).post().unwrap();
        port.flush_remote(peer).unwrap();
        assert_eq!(load(&remote, at), round);
    }
    player.end();
}

#[test]
fn an_idle_node_wakes_for_nothing() {
    let name = name("idle");
    let mut player = Player::start("idle", &name);
    let (_node, peer, port) = join(&mut player, &name);
    let remote = port.import(peer, PortId(7), "memory", PATIENCE).unwrap();
    remote.write(0, &[1; 100][..]).notify(1).post().unwrap();
    port.flush_remote(peer).unwrap();
    player.tell();
    let count: u64 = player.hear("switches ").parse().unwrap();
    // The thread that counts sleeps once.
    assert!(count <= 3, "{count} context switches in an idle second");
    player.end();
}

/// How long it takes until a process hears that its peer was killed.
fn hears_of_a_kill(node: &SoftNode, round: u32) -> Duration {
    let name = name(&format!("killed{round}"));
    let mut player = Player::start("serve", &name);
    player.hear("ready ");
    let peer = node.connect(&name, PATIENCE).unwrap();
    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
    let remote = port.import(peer, PortId(7), "memory", PATIENCE).unwrap();
    let source = port.alloc(PAGES * 4096).unwrap();
    // Killed in the middle of traffic, at a moment that differs from round to round.
    let moment = Instant::now() + Duration::from_micros(u64::from(round) * 97 % 5000);
    while Instant::now() < moment {
        remote.write(0, source.whole()).post().unwrap();
    }
    player.kill();
    let dead = Instant::now();
    let lost = loop {
        match remote.read(0, &mut [0u8; 8][..]).call() {
            Ok(_) => assert!(dead.elapsed() < PATIENCE, "a dead process answers"),
            Err(error) => break error,
        }
    };
    let elapsed = dead.elapsed();
    let text = format!("{lost:?}");
    assert!(text.contains("LinkLost") || text.contains("Revoked"), "{text}");
    while node.is_up(peer) {
        assert!(dead.elapsed() < PATIENCE, "the driver does not hear of it");
        std::thread::yield_now();
    }
    elapsed
}

fn threads_and_maps() -> (usize, usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let rings = maps.lines().filter(|line| line.contains("netvm-ring")).count();
    (count("/proc/self/task"), count("/proc/self/fd"), rings)
}

/// In a process of its own, whose threads and descriptors are no other test's.
fn fifty_kills() {
    let node = SoftNode::builder().start().unwrap();
    hears_of_a_kill(&node, 0);
    let shm = || std::fs::read_dir("/dev/shm").map_or(0, Iterator::count);
    let before = (threads_and_maps(), shm());
    let mut slowest = Duration::ZERO;
    for round in 1..=50 {
        slowest = slowest.max(hears_of_a_kill(&node, round));
    }
    println!("\nslowest {}", slowest.as_micros());
    let end = Instant::now() + PATIENCE;
    // Paging workers of closed ports may still be on their way out, of the first round as well.
    let is_more = |now: ((usize, usize, usize), usize)| {
        now.0.0 > before.0.0 || now.0.1 > before.0.1 || now.0.2 > before.0.2 || now.1 > before.1
    };
    while is_more((threads_and_maps(), shm())) {
        assert!(
            Instant::now() < end,
            "left behind: {:?}, before {before:?}",
            (threads_and_maps(), shm())
        );
        std::thread::yield_now();
    }
    println!("\nnothing left");
}

#[test]
fn fifty_kills_are_heard_of_at_once_and_leave_nothing() {
    let mut player = Player::start("kills", "");
    let slowest: u64 = player.hear("slowest ").parse().unwrap();
    println!("slowest of 50: {slowest} us");
    assert!(slowest < 100_000, "{slowest} us");
    player.hear("nothing left");
    player.end();
}
