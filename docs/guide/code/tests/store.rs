//! The tutorial's store: a server that may keep little of its file in memory, clients that read and write it, one that is killed.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netvm::{Access, Port, PortConfig};
use netvm_guide::store::{BUCKET_BYTES, Client, Server, Slot, StoreError};
use netvm_process::SoftNode;
use rustix::mm::Advice;
use support::name;
use zerocopy::IntoBytes;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// 16 MiB.
const BUCKETS: u64 = 4 << 10;
/// What the test touches of them, nearly one page each.
const KEYS: u64 = 500;

/// What the kernel calls it.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Says what a process of this program does that is no test.
const SCENE: &str = "NETVM_GUIDE_SCENE";
const NODE: &str = "NETVM_GUIDE_NODE";
const FILE: &str = "NETVM_GUIDE_FILE";

/// Not a test: what the other processes do.
#[test]
fn play() {
    match std::env::var(SCENE).as_deref() {
        Ok("server") => serve(false),
        Ok("short of memory") => serve(true),
        Ok("writer") => write_for_ever(),
        _ => {}
    }
}

/// Serves until its input ends. Short of memory, it takes all pages of the file out of memory meanwhile, again and again, as the
/// kernel does with those that it needs for something else.
fn serve(short_of_memory: bool) {
    let node = SoftNode::builder()
        .name(std::env::var(NODE).unwrap())
        .start()
        .unwrap();
    let path = PathBuf::from(std::env::var(FILE).unwrap());
    let server = Server::start(&node.node(), &path, BUCKETS).unwrap();
    println!("\nready");
    let over = AtomicBool::new(!short_of_memory);
    let mut most = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            over.store(true, Ordering::Relaxed);
        });
        while !over.load(Ordering::Relaxed) {
            most = most.max(resident(&path));
            server.sync().unwrap();
            let start = server.map().as_mut_ptr().cast();
            // SAFETY: the mapping stays, and no byte of it changes by that.
            unsafe { rustix::mm::madvise(start, server.map().len(), Advice::LinuxPageOut) }.unwrap();
        }
    });
    println!("\nmost {most}");
    println!("major {}", major_faults());
}

/// KiB of a file's mapping that this process has in memory.
fn resident(path: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let of_file = smaps
        .lines()
        .skip_while(|line| !line.ends_with(path.to_str().unwrap()));
    let mut sizes = of_file.filter_map(|line| line.strip_prefix("Rss:"));
    let size = sizes.next().expect("the file is mapped");
    size.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Page faults that waited for the disk.
fn major_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name of the program may hold spaces; the fields after it hold none.
    let fields = stat.rsplit(')').next().unwrap();
    fields.split_whitespace().nth(9).unwrap().parse().unwrap()
}

fn write_for_ever() {
    let node = SoftNode::builder().start().unwrap();
    let mut client = Client::connect(&node, &std::env::var(NODE).unwrap()).unwrap();
    for turn in 0.. {
        client.put(b"shared", &[turn as u8; 400]).unwrap();
        if turn == 0 {
            println!("\nready");
        }
    }
}

/// A process of this program, which ends with this value.
struct Player(Child);

impl Player {
    /// Starts it, and waits until it is ready.
    fn start(scene: &str, node: &str, file: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "play", "--nocapture"])
            .envs([(SCENE, scene), (NODE, node)])
            .env(FILE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut player = Self(command.spawn().unwrap());
        player.line("ready");
        player
    }

    /// The rest of the next line that begins so.
    fn line(&mut self, begin: &str) -> String {
        let output = self.0.stdout.as_mut().unwrap();
        // One byte at a time: the next call goes on where this one ends.
        let mut reader = BufReader::with_capacity(1, output);
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.trim_end().strip_prefix(begin) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("no line begins with {begin}");
    }

    fn number(&mut self, begin: &str) -> u64 {
        self.line(begin).parse().unwrap()
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file on a disk, gone when dropped.
struct Disk(PathBuf);

impl Disk {
    fn new(name: &str) -> Self {
        // Pages of a file in memory (tmpfs) have no disk to go to.
        let on_disk = |folder: &&str| rustix::fs::statfs(*folder).is_ok_and(|at| at.f_type != TMPFS);
        let folders = [env!("CARGO_TARGET_TMPDIR"), "/var/tmp"];
        let folder = folders.into_iter().find(on_disk).expect("a folder on a disk");
        Self(Path::new(folder).join(format!("{}-{name}", std::process::id())))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn client(name: &str) -> Client {
    let node = SoftNode::builder().start().unwrap();
    Client::connect(&node, name).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    vec![number as u8; 1 + number as usize % 480]
}

#[test]
fn a_store_that_does_not_fit_the_memory_loses_nothing() {
    let (name, file) = (name("larger"), Disk::new("larger.store"));
    let mut server = Player::start("short of memory", &name, &file.0);
    let mut client = client(&name);
    for number in 0..KEYS {
        client.put(&key(number), &value(number)).unwrap();
    }
    for number in 0..KEYS {
        assert_eq!(client.get(&key(number)).unwrap(), Some(value(number)), "{number}");
    }
    assert_eq!(client.get(b"no such key").unwrap(), None);
    client.remove(&key(7)).unwrap();
    assert_eq!(client.get(&key(7)).unwrap(), None);
    drop(client);
    server.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let (most, major) = (server.number("most"), server.number("major"));
    let touched = KEYS * BUCKET_BYTES / 1024;
    println!("of {touched} KiB at most {most} were in memory; {major} page faults waited for the disk");
    assert!(
        most < touched / 2,
        "{most} of {touched} KiB were in memory at once"
    );
    // How many did depends on how soon the kernel writes changed pages: one that waits for that is found in the page cache.
    assert!(major > KEYS / 20, "{major} page faults waited for the disk");
}

#[test]
fn readers_beside_writers_see_whole_values() {
    let (name, file) = (name("beside"), Disk::new("beside.store"));
    let _server = Player::start("server", &name, &file.0);
    let mut reader = client(&name);
    reader.put(b"hot", &[0; 480]).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (name, over) = (&name, &over);
            scope.spawn(move || {
                let mut writer = client(name);
                for turn in 0..30_u64 {
                    writer.put(b"hot", &[turn as u8; 480]).unwrap();
                }
                over.store(true, Ordering::Relaxed);
            });
        }
        while !over.load(Ordering::Relaxed) {
            let value = reader.get(b"hot").unwrap().expect("it is there");
            assert!(
                value.len() == 480 && value.iter().all(|byte| *byte == value[0]),
                "{value:?}"
            );
        }
    });
    println!("{} buckets were torn", reader.torn());
}

/// The owner of the memory writes a slot as fast as it can. What a reader gets is one of its values, or known to be none.
#[test]
fn a_slot_that_changes_while_it_is_read_is_found_torn() {
    let [one, two] = [(), ()].map(|()| SoftNode::builder().start().unwrap());
    let owner = Port::open(&one.node(), PortConfig::number(7)).unwrap();
    let memory = owner.alloc(BUCKET_BYTES).unwrap();
    let _export = owner.export("slot", &memory, .., Access::everyone()).unwrap();
    let to = two.connect(&format!("#{}", one.number()), PATIENCE).unwrap();
    let port = Port::open(&two.node(), PortConfig::default()).unwrap();
    let remote = port.import(to, 7.into(), "slot", PATIENCE).unwrap();
    let slots: netvm::RemoteArray<Slot> = remote.array(0, 8).unwrap();
    let over = AtomicBool::new(false);
    let mut torn = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0_u64.. {
                let slot = Slot::new(b"hot", &[turn as u8; 480]).unwrap();
                memory.write_from(0, slot.as_bytes()).unwrap();
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let begin = Instant::now();
        while torn < 10 && begin.elapsed() < PATIENCE {
            let slot = slots.at(0).unwrap().read().unwrap();
            torn += u32::from(slot.is_torn());
            if let Some((key, value)) = slot.pair() {
                assert!(key == b"hot" && value.iter().all(|byte| *byte == value[0]));
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(torn, 10, "slots were torn");
}

#[test]
fn a_writer_that_is_killed_holds_up_no_other() {
    let (name, file) = (name("killed"), Disk::new("killed.store"));
    let _server = Player::start("server", &name, &file.0);
    let mut client = client(&name);
    for turn in 0..2_u8 {
        let mut writer = Player::start("writer", &name, &file.0);
        writer.0.kill().unwrap();
        client.put(b"mine", &[turn; 99]).unwrap();
        assert_eq!(client.get(b"mine").unwrap(), Some(vec![turn; 99]));
        let value = client.get(b"shared").unwrap();
        assert!(value.is_none_or(|value| value.iter().all(|byte| *byte == value[0])));
    }
}

#[test]
fn a_full_bucket_and_another_size_are_refused() {
    let (name, file) = (name("full"), Disk::new("full.store"));
    let node = SoftNode::builder().name(&name).start().unwrap();
    let server = Server::start(&node.node(), &file.0, 1).unwrap();
    let mut client = client(&name);
    for number in 0..8 {
        client.put(&key(number), b"value").unwrap();
    }
    assert!(matches!(client.put(&key(8), b"value"), Err(StoreError::Full)));
    client.put(&key(3), b"another").unwrap();
    client.remove(&key(4)).unwrap();
    client.put(&key(8), b"value").unwrap();
    server.sync().unwrap();
    let other = Server::start(&SoftNode::builder().start().unwrap().node(), &file.0, 2);
    assert!(matches!(other, Err(StoreError::Buckets { has: 1, buckets: 2 })));
}

/// The program, over shared memory and over UDP.
#[test]
fn the_program_does_what_the_tutorial_says() {
    let file = Disk::new("program.store");
    let name = name("program");
    let kv = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kv"))
            .args(args)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), text.trim().to_owned())
    };
    let path = file.0.to_str().unwrap().to_owned();
    let udp = support::free_port();
    for (choice, server) in [
        (format!("soft:{name}"), name.clone()),
        (format!("soft://{udp}"), format!("udp://{udp}")),
    ] {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_kv"));
        serve.args(["serve", &choice, &path, "16"]).stdout(Stdio::piped());
        let mut serving = Player(serve.spawn().unwrap());
        serving.line("serving");
        assert_eq!(kv(&["put", &server, "colour", "green"]), (true, String::new()));
        assert_eq!(kv(&["get", &server, "colour"]), (true, "green".into()));
        assert_eq!(kv(&["remove", &server, "colour"]), (true, String::new()));
        assert_eq!(kv(&["get", &server, "colour"]), (false, String::new()));
    }
    assert!(!kv(&["put", &name, "colour"]).0);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 16 << 20);
}
