//! Processes whose card is taken away under them: one waits, one sends, one maps and unmaps, one keeps its file for long.
//! Each must hear of it, and none may hang or be killed for touching what it has mapped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use netvm::abi::bar::port::BLOCK_WORDS;
use netvm::abi::ioctl::ANY_PORT;
use netvm::abi::port_area::PORT_STATE;
use netvm::abi::{Status, WordIndex};
use netvm::{Access, Port, PortConfig, device};
use netvm_rig::meeting::{self, Trouble};
use netvm_rig::raw::Device;
use rustix::io::Errno;

/// Runs all roles until the card has gone, and the last one until `--over` is there. Prints one line of JSON.
#[derive(Parser)]
#[command(name = "rig-unplug", about = "Ports whose card is taken away")]
struct Arguments {
    /// Made when all roles are at work; `DIR/over` ends the one that keeps its file.
    dir: PathBuf,
    /// Send nothing.
    #[arg(long)]
    silent: bool,
    /// Be one of them.
    #[arg(long, hide = true)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Waits in the driver.
    Wait,
    /// Sends to itself.
    Send,
    /// Maps NIC memory, touches it, unmaps it.
    Map,
    /// Keeps its file and its mappings until it is told to end.
    Keep,
}

const ROLES: [Role; 4] = [Role::Wait, Role::Send, Role::Map, Role::Keep];
const FILE: &str = device::FIRST;
const PAGE: u64 = 4096;
const WORDS_OF_A_PAGE: u32 = 1024;
/// All that is waited for comes within this.
const LIMIT: Duration = Duration::from_secs(120);
/// A close has nothing to wait for when the card has gone.
const SOON: Duration = Duration::from_secs(20);
/// One wait in the driver, in nanoseconds: longer than the whole scenario may take.
const LONG: u64 = 600_000_000_000;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.role {
        Some(role) => be(role, &arguments.dir),
        None => all(&arguments.dir, arguments.silent),
    };
    meeting::end("rig-unplug", done)
}

fn all(dir: &Path, silent: bool) -> Result<String, Trouble> {
    let roles: Vec<Role> = ROLES
        .into_iter()
        .filter(|role| !silent || *role != Role::Send)
        .collect();
    std::fs::create_dir_all(dir)?;
    let mut children: Vec<(Role, Child)> = Vec::new();
    for &role in &roles {
        let name = role.to_possible_value().ok_or("a role without a name")?;
        let child = Command::new(std::env::current_exe()?)
            .arg(dir)
            .args(["--role", name.get_name()])
            .spawn()?;
        children.push((role, child));
    }
    for &role in &roles {
        there(&sign(dir, role))?;
    }
    std::fs::write(dir.join("ready"), "")?;
    for (role, child) in &mut children {
        if *role == Role::Keep {
            std::fs::write(dir.join("gone"), "")?;
        }
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("{role:?}: {status}").into());
        }
    }
    Ok(format!(r#"{{"roles":{}}}"#, roles.len()))
}

fn sign(dir: &Path, role: Role) -> PathBuf {
    dir.join(format!("{role:?}"))
}

/// Waits for a file.
fn there(path: &Path) -> Result<(), Trouble> {
    let end = Instant::now() + LIMIT;
    while !path.exists() {
        if Instant::now() > end {
            return Err(format!("{} does not come", path.display()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn be(role: Role, dir: &Path) -> Result<String, Trouble> {
    let at_work = || std::fs::write(sign(dir, role), "");
    match role {
        Role::Wait => wait(at_work)?,
        Role::Send => send(at_work)?,
        Role::Map => map(at_work)?,
        Role::Keep => keep(at_work, &dir.join("over"))?,
    }
    Ok(format!("{role:?} is done"))
}

/// Lets go of something, which must not take long.
fn close<T>(what: T) -> Result<(), Trouble> {
    let began = Instant::now();
    drop(what);
    match began.elapsed() {
        time if time > SOON => Err(format!("a close took {time:?}").into()),
        _ => Ok(()),
    }
}

/// The state of a port whose card has gone.
fn is_gone(state: u32) -> Result<bool, Trouble> {
    match state {
        0 => Ok(false),
        state if state == u32::from(Status::CardGone.code()) => Ok(true),
        state => Err(format!("the port's state is {state}").into()),
    }
}

fn wait(at_work: impl Fn() -> std::io::Result<()>) -> Result<(), Trouble> {
    let device = Device::open(Path::new(FILE))?;
    let register = device.register(ANY_PORT)?;
    let area = device.area(&register)?;
    at_work()?;
    let end = Instant::now() + LIMIT;
    while !is_gone(area.load(PORT_STATE))? {
        let waited = device.wait(LONG);
        if Instant::now() > end {
            return Err(format!("a wait does not end: {waited:?}").into());
        }
    }
    match device.wait(LONG) {
        Err(Errno::NODEV) | Ok(()) => {}
        other => return Err(format!("a wait without a card: {other:?}").into()),
    }
    close((area, device))
}

fn send(at_work: impl Fn() -> std::io::Result<()>) -> Result<(), Trouble> {
    let node = meeting::node(Path::new(FILE))?;
    let owner = Port::open(&node, PortConfig::default())?;
    let region = owner.alloc(64 * PAGE)?;
    let name = owner.export("unplugged", &region, .., Access::everyone())?;
    let sender = Port::open(&node, PortConfig::default())?;
    let source = sender.alloc(64 * PAGE)?;
    let remote = sender.import(node.id(), owner.id(), "unplugged", LIMIT)?;
    let end = Instant::now() + LIMIT;
    let mut rounds = 0_u64;
    let error = loop {
        let at = rounds % 60 * PAGE + 100;
        let posted = remote.write(at, &source.slice(at..at + 3 * PAGE)?).post();
        if let Err(error) = posted.map(drop).and_then(|()| sender.flush_remote(node.id())) {
            break error;
        }
        rounds += 1;
        if rounds == 50 {
            at_work()?;
        }
        if Instant::now() > end {
            return Err("the card stays".into());
        }
    };
    // A card that is asked to let go ends its links first.
    let gone = [Status::CardGone, Status::LinkLost, Status::StaleIncarnation];
    if !error.status().is_some_and(|status| gone.contains(&status)) {
        return Err(format!("a sender is told '{error}' after {rounds} rounds").into());
    }
    close((remote, source, sender, name, region, owner))
}

fn map(at_work: impl Fn() -> std::io::Result<()>) -> Result<(), Trouble> {
    let device = Device::open(Path::new(FILE))?;
    let register = device.register(ANY_PORT)?;
    let area = device.area(&register)?;
    let kept = device.block(&register)?;
    let end = Instant::now() + LIMIT;
    let mut rounds = 0_u64;
    loop {
        match device.block(&register) {
            Ok(again) => {
                // The doorbell as it was: 0, for nothing is posted.
                again.touch();
                kept.touch();
            }
            Err(Errno::NODEV) => break,
            Err(errno) => return Err(format!("a mapping: {errno}").into()),
        }
        rounds += 1;
        if rounds == 50 {
            at_work()?;
        }
        if Instant::now() > end {
            return Err("the card stays".into());
        }
    }
    // What is mapped may be touched all the same, wherever.
    for word in 0..BLOCK_WORDS {
        kept.store(WordIndex(word), word);
    }
    // The driver says so when it has taken NIC memory away.
    let end = Instant::now() + SOON;
    while !is_gone(area.load(PORT_STATE))? {
        if Instant::now() > end {
            return Err("NIC memory cannot be mapped, but the port's state is good".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // Soon after that, the same page of the kernel is behind each page of the mapping, and no memory of the card.
    const MARK: u32 = 0xC0FF_EE00;
    let marked = || {
        kept.store(WordIndex(0), MARK);
        (1..BLOCK_WORDS / WORDS_OF_A_PAGE).all(|page| kept.load(WordIndex(page * WORDS_OF_A_PAGE)) == MARK)
    };
    while !marked() {
        if Instant::now() > end {
            return Err("NIC memory is still mapped".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    close((kept, area, device))
}

fn keep(at_work: impl Fn() -> std::io::Result<()>, over: &Path) -> Result<(), Trouble> {
    let device = Device::open(Path::new(FILE))?;
    let register = device.register(ANY_PORT)?;
    let area = device.area(&register)?;
    let block = device.block(&register)?;
    let memory = vec![1_u8; 2 * PAGE as usize];
    let page = (memory.as_ptr().addr() as u64).next_multiple_of(PAGE);
    device.adopt(page, PAGE)?;
    at_work()?;
    there(over)?;
    if !is_gone(area.load(PORT_STATE))? {
        return Err("the card has gone, but the port's state is good".into());
    }
    block.touch();
    match device.adopt(page, PAGE) {
        Err(Errno::NODEV) => {}
        other => return Err(format!("a call without a card: {other:?}").into()),
    }
    close((block, area, device))
}
