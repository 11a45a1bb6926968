//! `cargo xtask rig shell`: the machines run until Ctrl-C; `rig console` gives a person a shell on a host, `rig run` runs
//! one command there.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use super::lane::Lane;
use super::machines::Bus;
use super::machines::{LANES, Places};
use super::parts;
use super::rack::Rack;
use crate::cargo::target;

/// Ctrl-].
const LEAVE: u8 = 0x1D;

/// Options of `cargo xtask rig shell`.
#[derive(Args)]
pub struct ShellOptions {
    /// On the kernel with lock, memory and sleep checks.
    #[arg(long)]
    debug_kernel: bool,
    /// Processors of a host.
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    processors: u8,
}

/// Options of `cargo xtask rig console`.
#[derive(Args)]
pub struct ConsoleOptions {
    /// The host: 0 or 1.
    #[arg(value_parser = clap::value_parser!(u8).range(0..2))]
    host: u8,
}

/// Options of `cargo xtask rig run`.
#[derive(Args)]
pub struct RunOptions {
    /// The host: 0 or 1.
    #[arg(value_parser = clap::value_parser!(u8).range(0..2))]
    host: u8,
    /// A line for the host's shell.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
    /// It must end within this many seconds.
    #[arg(long, default_value_t = 600)]
    limit: u64,
}

/// Names the folder of the machines that run.
fn sign() -> PathBuf {
    target().join("rig/running")
}

/// `cargo xtask rig shell`.
pub(crate) fn shell(options: &ShellOptions) -> Result<bool> {
    let interrupted = super::interrupts()?;
    let Some(parts) = parts::ready(options.debug_kernel)? else {
        return Ok(false);
    };
    let logs = target().join("rig/logs/shell");
    let mut rack = Rack::start(&parts, &logs, 1, options.processors, Bus::Plain, &interrupted)?;
    for host in &mut rack.hosts {
        // For `rig run`.
        host.share();
    }
    let folder = rack.folder().to_owned();
    std::fs::write(sign(), folder.display().to_string())?;
    println!("Two hosts and two cards run.\n");
    for host in 0..2 {
        println!("  a shell on host {host}:  cargo xtask rig console {host}   (Ctrl-] leaves it)");
    }
    println!("  one command:        cargo xtask rig run 0 'dmesg | tail'");
    println!("  the wire's capture: {}", logs.join("wire.pcap").display());
    for log in rack.logs() {
        println!("  {}", log.display());
    }
    println!("\nCtrl-C ends them all.");
    let watched = watch(&mut rack, &interrupted);
    let _ = std::fs::remove_file(sign());
    watched
}

fn watch(rack: &mut Rack, interrupted: &Arc<AtomicBool>) -> Result<bool> {
    while !interrupted.load(Ordering::Relaxed) {
        if !rack.is_running() {
            eprintln!("a machine has ended by itself");
            rack.is_sound()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(true)
}

/// The files of a host that runs.
fn running(host: u8) -> Result<Places> {
    let Ok(folder) = std::fs::read_to_string(sign()) else {
        bail!("no machine runs here: start them with `cargo xtask rig shell`");
    };
    Ok(Places {
        run: PathBuf::from(folder),
        logs: target().join("rig/logs/shell"),
        node: usize::from(host),
    })
}

/// `cargo xtask rig run`: exits as the command does.
pub(crate) fn run(options: &RunOptions) -> Result<bool> {
    let places = running(options.host)?;
    let [_, lane] = LANES;
    let limit = Duration::from_secs(options.limit);
    let transcript = places.logs.join(format!("host-{}.run.log", options.host));
    let interrupted = super::interrupts()?;
    let mut lane = Lane::connect(
        &places.lane(lane),
        &transcript,
        &interrupted,
        Instant::now() + limit,
    )?;
    let reply = lane.try_run(&options.command.join(" "), limit)?;
    print!("{}", reply.text);
    if reply.status != 0 {
        eprintln!("status {}", reply.status);
    }
    Ok(reply.status == 0)
}

/// `cargo xtask rig console`.
pub(crate) fn console(options: &ConsoleOptions) -> Result<bool> {
    let path = running(options.host)?.console();
    let mut host = UnixStream::connect(&path).with_context(|| format!("connecting to {}", path.display()))?;
    let keyboard = std::io::stdin();
    let cooked = tcgetattr(&keyboard).context("this is no terminal; `cargo xtask rig run` needs none")?;
    let mut raw = cooked.clone();
    raw.make_raw();
    eprintln!("host {}; Ctrl-] leaves it to itself", options.host);
    tcsetattr(&keyboard, OptionalActions::Now, &raw)?;
    let result = talk(&mut host);
    tcsetattr(&keyboard, OptionalActions::Now, &cooked)?;
    eprintln!();
    result.map(|()| true)
}

fn talk(host: &mut UnixStream) -> Result<()> {
    let mut shown = host.try_clone()?;
    // Ends with the connection, or with this program.
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = shown.read(&mut bytes) {
            let mut screen = std::io::stdout().lock();
            let text = bytes.get(..count).unwrap_or_default();
            if screen.write_all(text).and_then(|()| screen.flush()).is_err() {
                break;
            }
        }
    });
    // The shell's first prompt is lost.
    host.write_all(b"\n")?;
    let mut keyboard = std::io::stdin().lock();
    let mut key = [0];
    while keyboard.read(&mut key)? == 1 && key != [LEAVE] {
        if host.write_all(&key).is_err() {
            eprintln!("\r\nthe host is gone\r");
            break;
        }
    }
    Ok(())
}
