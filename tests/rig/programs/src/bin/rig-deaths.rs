//! Members of a lock, of a semaphore and of an asymmetric lock that are killed: run it on two hosts at the same time, with
//! the same arguments.
//!
//! Node 0 is home to all three. On each host members come, take part, and are killed as they hold, wait or do neither;
//! and one stays, gets the lock again and again, and checks that no other process is inside.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use netvm::sync::alock::AsymmetricLock;
use netvm::sync::{Lock, Semaphore};
use netvm::{Access, Error, Node, NodeId, Port, PortConfig, RemoteSegment, device};
use netvm_rig::meeting::{self, PATIENCE, Side, Trouble};
use netvm_rig::storm::Mix;

const HOME: u16 = 60;
const MEETING: u16 = 61;
/// How often the surviving process takes part afterwards.
const AFTER: u64 = 50;
/// What a process says that is to be killed: it takes part now, or holds what it is to die with.
const READY: &str = "ready";
/// Notifications: each has done its last; the other has heard of it.
const DONE: u32 = 1;
const HEARD: u32 = 2;

/// Ends with 0 if no two were inside at a time and those left went on.
#[derive(Parser)]
#[command(
    name = "rig-deaths",
    about = "Members of locks and semaphores that are killed"
)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// How many are killed on each host.
    #[arg(long, default_value_t = 40)]
    rounds: u64,
    /// Decides when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a process that is killed does.
#[derive(Clone, Copy, Subcommand)]
enum Role {
    /// Takes part in the lock and the semaphore.
    #[command(hide = true)]
    Member,
    /// Gets the lock, and stays inside.
    #[command(hide = true)]
    Inside,
    /// Gets the asymmetric lock, and keeps it.
    #[command(hide = true)]
    Holder,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.role {
        Some(Role::Member) => member(),
        Some(Role::Inside) => inside(),
        Some(Role::Holder) => holder(),
        None => survive(&arguments),
    };
    meeting::end("rig-deaths", done)
}

/// What all take part in.
struct Shared {
    lock: Lock,
    tokens: Semaphore,
    /// Three words: the process inside, how often one was, and how often one was told of a death.
    table: RemoteSegment,
}

impl Shared {
    fn join(port: &Port) -> netvm::Result<Self> {
        let (node, home) = (NodeId(0), HOME.into());
        Ok(Self {
            lock: Lock::join(port, node, home, "lock", PATIENCE)?,
            tokens: Semaphore::join(port, node, home, "tokens", PATIENCE)?,
            table: port.import(node, home, "table", PATIENCE)?,
        })
    }

    /// Is inside of the lock once, and does something there. Returns whether the guard reported a death.
    fn enter(&mut self, me: u64, there: impl FnOnce()) -> Result<bool, Trouble> {
        let guard = self.lock.acquire()?;
        let died = guard.owner_died();
        let [before, count, deaths] = words(&self.table)?;
        if before != 0 && !died {
            return Err(format!(
                "process {me} gets the lock; process {before} is inside, and is not said to have died"
            )
            .into());
        }
        self.table.write(0, &me.to_le_bytes()).post()?;
        if died {
            self.table.write(16, &(deaths + 1).to_le_bytes()).post()?;
        }
        there();
        let [inside, still, _] = words(&self.table)?;
        if (inside, still) != (me, count) {
            return Err(format!(
                "process {me} has the lock; process {inside} came in, entry {still} instead of {count}"
            )
            .into());
        }
        let mut next = [0; 16];
        next[8..].copy_from_slice(&(count + 1).to_le_bytes());
        self.table.write(0, &next).post()?;
        match guard.release() {
            // A message to a participant that had died.
            Ok(()) | Err(Error::Failed(_)) => Ok(died),
            Err(error) => Err(error.into()),
        }
    }
}

/// The table, after all that was written to it.
fn words(table: &RemoteSegment) -> netvm::Result<[u64; 3]> {
    let mut bytes = [0; 24];
    table.read(0, &mut bytes).ordered().call()?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok([words[0], words[1], words[2]].map(u64::from_le_bytes))
}

/// Takes part until it is killed.
fn member() -> Result<String, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let port = Port::open(&node, PortConfig::default())?;
    let mut shared = Shared::join(&port)?;
    println!("{READY}");
    loop {
        shared.enter(std::process::id().into(), || {})?;
        shared.tokens.wait()?;
        shared.tokens.signal()?;
    }
}

/// Says that it is inside of the lock, and stays there until it is killed.
fn inside() -> Result<String, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let port = Port::open(&node, PortConfig::default())?;
    let mut shared = Shared::join(&port)?;
    shared.enter(std::process::id().into(), || {
        println!("{READY}");
        loop {
            std::thread::park();
        }
    })?;
    Err("it left the lock alive".into())
}

/// Says that it holds the asymmetric lock, and holds it until it is killed.
fn holder() -> Result<String, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let port = Port::open(&node, PortConfig::default())?;
    let mut lock = AsymmetricLock::join(&port, NodeId(0), HOME.into(), "asymmetric", PATIENCE)?;
    let _guard = lock.acquire()?;
    println!("{READY}");
    loop {
        std::thread::park();
    }
}

/// Starts a process that is to be killed, and waits until it says that it has come so far.
fn start(role: &str) -> Result<Child, Trouble> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg(role).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    if line.trim() == READY {
        return Ok(child);
    }
    child.kill()?;
    let status = child.wait()?;
    Err(format!("a '{role}' that is to be killed ended by itself, with {status}").into())
}

/// Starts members, and kills them: each third inside of the lock, the others whatever they do. The number of the former.
fn kill(rounds: u64, mix: &mut Mix) -> Result<u64, Trouble> {
    let mut inside = 0;
    for round in 0..rounds {
        let stays = round % 3 == 0;
        let mut child = start(if stays { "inside" } else { "member" })?;
        if stays {
            inside += 1;
        } else {
            std::thread::sleep(Duration::from_millis(mix.below(100)));
        }
        if let Some(status) = child.try_wait()? {
            return Err(format!("a member ended by itself, with {status}").into());
        }
        child.kill()?;
        child.wait()?;
    }
    Ok(inside)
}

/// Gives the asymmetric lock to a process that is killed. The next to ask for it is told.
fn lose(node: &Node) -> Result<(), Trouble> {
    let mut child = start("holder")?;
    child.kill()?;
    child.wait()?;
    let port = Port::open(node, PortConfig::default())?;
    let mut lock = AsymmetricLock::join(&port, NodeId(0), HOME.into(), "asymmetric", PATIENCE)?;
    match lock.acquire() {
        Err(Error::LockLost { .. }) => Ok(()),
        other => Err(format!("the asymmetric lock of a killed process: {:?}", other.map(drop)).into()),
    }
}

/// Lives, and sees to it that others do not.
fn survive(arguments: &Arguments) -> Result<String, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let is_home = node.id() == NodeId(0);
    let home = Port::open(&node, PortConfig::number(HOME))?;
    let objects = if is_home {
        let table = home.alloc(4096)?;
        Some((
            Lock::create(&home, "lock", Access::everyone())?,
            Semaphore::create(&home, "tokens", 1, Access::everyone())?,
            AsymmetricLock::create(&home, "asymmetric", Access::everyone())?,
            home.export("table", &table, .., Access::everyone())?,
        ))
    } else {
        None
    };
    let port = Port::open(&node, PortConfig::default())?;
    let mut shared = Shared::join(&port)?;
    let mut mix = Mix::new(arguments.seed + u64::from(node.id().0));
    let over = AtomicBool::new(false);
    let (mut entries, mut told, mut tokens, mut left) = (0u64, 0u64, 0u64, AFTER);
    let (mut longest, mut spoken) = (Duration::ZERO, Instant::now());
    let inside = std::thread::scope(|scope| -> Result<u64, Trouble> {
        let killer = scope.spawn(|| {
            let killed = kill(arguments.rounds, &mut mix);
            over.store(true, Ordering::Release);
            killed
        });
        while left > 0 {
            left -= u64::from(over.load(Ordering::Acquire));
            let began = Instant::now();
            told += u64::from(shared.enter(std::process::id().into(), || {})?);
            longest = longest.max(began.elapsed());
            entries += 1;
            if spoken.elapsed() > Duration::from_secs(2) {
                spoken = Instant::now();
                eprintln!(
                    "{entries} entries, {told} told, {tokens} tokens, {left} left, {longest:?} at most"
                );
            }
            // Killed processes take tokens with them: the home adds new ones, the other host misses them.
            if is_home {
                shared.tokens.signal()?;
            } else {
                tokens += u64::from(shared.tokens.try_wait_for(Duration::from_millis(1)).is_ok());
            }
        }
        killer.join().map_err(|_| "the killer panicked")?
    })?;
    let side = Side::meet(&node, MEETING, 4096)?;
    let [_, _, deaths] = words(&shared.table)?;
    if !is_home {
        lose(&node)?;
    }
    drop(shared);
    side.tell(DONE)?;
    side.hear(DONE)?;
    drop(objects);
    side.tell(HEARD)?;
    side.hear(HEARD)?;
    let taken = if is_home {
        format!("; {deaths} deaths told in all")
    } else {
        "; the asymmetric lock was lost, and said so".to_owned()
    };
    Ok(format!(
        "{} killed, {inside} of them inside; {entries} entries and {tokens} tokens of the process that stayed, \
         {told} told of a death, {} ms at most{taken}",
        arguments.rounds,
        longest.as_millis()
    ))
}
