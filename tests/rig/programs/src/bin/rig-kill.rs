//! Processes that are killed at any instruction: run it on two hosts at the same time, with the same arguments.
//!
//! On node 1 exporters are killed, one after the other, on node 0 processes that write and read there. Then both sides do
//! more transfers than there are window slots and credits: if a killed process had kept one, these would not end.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use netvm::{Access, NodeId, Port, PortConfig, device};
use netvm_rig::meeting::{self, Side, Trouble, check, fill};
use netvm_rig::storm::Mix;

/// Where the exporter of the moment is found, and where all is said to be over.
const PORT: u16 = 50;
const MEETING: u16 = 51;
const NAME: &str = "mortal";
const BYTES: u64 = 1 << 20;
const LONGEST: u64 = 20_000;
/// Transfers after the end: more than a window.
const AFTER: u64 = 400;
const PAGE: u64 = 4096;
const DONE: u32 = 1;

/// Ends with 0 if nothing of the killed processes is left, as far as it can see.
#[derive(Parser)]
#[command(
    name = "rig-kill",
    about = "Exporters and senders that are killed in the midst of it"
)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// How many are killed on each host.
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    /// Decides when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a process that is killed does.
#[derive(Clone, Copy, Subcommand)]
enum Role {
    /// Exports memory, and uses it.
    #[command(hide = true)]
    Export,
    /// Writes to it and reads from it.
    #[command(hide = true)]
    Send,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.role {
        Some(Role::Export) => export(),
        Some(Role::Send) => send(),
        None => kill(&arguments),
    };
    meeting::end("rig-kill", done)
}

/// Exports until it is killed.
fn export() -> Result<String, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let port = Port::open(&node, PortConfig::number(PORT))?;
    let memory = port.alloc(BYTES)?;
    let _range = port.export(NAME, &memory, .., Access::everyone().notify(1..=895))?;
    let mut mix = Mix::new(u64::from(std::process::id()));
    loop {
        let at = mix.below(BYTES / 8) * 8;
        memory.write_from(at, &at.to_le_bytes())?;
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Writes and reads until it is killed. Its peers are killed as well, so anything may fail.
fn send() -> Result<String, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let port = Port::open(&node, PortConfig::default())?;
    let memory = port.alloc(LONGEST)?;
    let mut mix = Mix::new(u64::from(std::process::id()));
    loop {
        let Ok(range) = port.import(NodeId(1), PORT.into(), NAME, Duration::from_secs(5)) else {
            continue;
        };
        let mut failed = false;
        while !failed {
            let len = 1 + mix.below(LONGEST);
            let at = mix.below(BYTES - len);
            let slice = memory.slice(..len)?;
            failed = match mix.below(4) {
                0 => range.read(at, &slice).post().is_err(),
                1 => range.write(at, &slice).notify(7).post().is_err(),
                _ => range.write(at, &slice).post().is_err(),
            };
            failed |= mix.below(16) == 0 && port.flush_remote(NodeId(1)).is_err();
        }
    }
}

/// Starts them, and kills them.
fn kill(arguments: &Arguments) -> Result<String, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let role = if node.id() == NodeId(1) { "export" } else { "send" };
    let mut mix = Mix::new(arguments.seed + u64::from(node.id().0));
    let began = Instant::now();
    for _ in 0..arguments.rounds {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(role)
            .stdout(Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_millis(20 + mix.below(120)));
        if let Some(status) = child.try_wait()? {
            return Err(format!("'{role}' ended by itself, with {status}").into());
        }
        child.kill()?;
        child.wait()?;
    }
    let took = began.elapsed();
    let side = Side::meet(&node, MEETING, BYTES)?;
    let mut bytes = vec![0; PAGE as usize];
    let source = side.port.alloc(BYTES)?;
    for round in 0..AFTER {
        let at = round % (BYTES / PAGE) * PAGE;
        fill(round, at, &mut bytes);
        source.write_from(at, &bytes)?;
        side.remote.write(at, &source.slice(at..at + PAGE)?).post()?;
        if round % 64 == 63 {
            side.port.flush_remote(side.peer)?;
        }
    }
    side.tell(DONE)?;
    side.hear(DONE)?;
    for round in AFTER - BYTES / PAGE..AFTER {
        let at = round % (BYTES / PAGE) * PAGE;
        side.memory.read_into(at, &mut bytes)?;
        check(round, at, &bytes, "after the killing")?;
    }
    // The other one reads what it was told of, too.
    side.tell(DONE)?;
    side.hear(DONE)?;
    Ok(format!(
        "{} killed in {} ms as they did '{role}'; {AFTER} transfers afterwards",
        arguments.rounds,
        took.as_millis()
    ))
}
