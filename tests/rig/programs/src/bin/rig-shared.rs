//! Memory that two processes share, and memory that may only be read. Run it on both hosts at the same time.
//!
//! On node 1 two processes map one file and export it, each on a port of its own; node 0 writes through one name and reads
//! through the other. Then node 1 exports memory that others may only read, and memory that it may only read itself: what
//! node 0 writes there is refused, and changes nothing. And a call with a pointer to nowhere is refused, too.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::ptr::NonNull;

use clap::Parser;
use netvm::abi::ioctl::{STAT, Stat};
use netvm::{
    Access, Error, Modes, Node, NodeId, Port, PortConfig, PortId, Region, RemoteSegment, Status, device,
};
use netvm_rig::meeting::{self, PATIENCE, Trouble};
use rustix::io::Errno;
use rustix::ioctl::Updater;
use rustix::mm::{MapFlags, ProtFlags};

/// Ends with 0 if all is well, 1 if something is wrong, 2 for arguments that make no sense. Prints one line of JSON.
#[derive(Parser)]
#[command(
    name = "rig-shared",
    about = "Memory that two processes share, and memory that may only be read"
)]
struct Arguments {
    /// The card's device.
    #[arg(long, default_value = device::FIRST)]
    device: PathBuf,
    /// Where the shared file is made: a file system in memory.
    #[arg(long, default_value = "/dev/shm")]
    folder: PathBuf,
    /// Be the second process, with this file.
    #[arg(long, hide = true)]
    second: Option<PathBuf>,
}

const FIRST: PortId = PortId(11);
const SECOND: PortId = PortId(12);
const BYTES: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Everything is done.
const DONE: u32 = 1;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = meeting::node(&arguments.device).and_then(|node| match &arguments.second {
        Some(file) => second(&node, file),
        None if node.id() == NodeId(1) => owner(&node, &arguments),
        None => visitor(&node, &arguments),
    });
    meeting::end("rig-shared", ended)
}

/// Maps a file and gives it to a port. It stays mapped until the process ends.
fn adopt(port: &Port, file: &File, writable: bool) -> Result<Region, Trouble> {
    let access = if writable {
        ProtFlags::READ | ProtFlags::WRITE
    } else {
        ProtFlags::READ
    };
    // SAFETY: a new mapping at a place of the kernel's choice.
    let start = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            BYTES as usize,
            access,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    let start = NonNull::new(start.cast()).ok_or("mapped at address 0")?;
    // SAFETY: it is never unmapped, and this program reaches it through the region only.
    Ok(unsafe { port.adopt(start, BYTES) }?)
}

/// Node 1, the first process.
fn owner(node: &Node, arguments: &Arguments) -> Result<String, Trouble> {
    let path = arguments.folder.join("rig-shared");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    file.set_len(BYTES)?;
    let port = Port::open(node, PortConfig::number(FIRST.0))?;
    let shared = adopt(&port, &file, true)?;
    let only_here = port.alloc(BYTES)?;
    only_here.write_from(0, &[7; 64])?;
    let only_read = adopt(&port, &file, false)?;
    let everything = || Access::everyone().notify(1..=9);
    let reading = Access::everyone().modes(Modes::READ);
    let _names = [
        port.export("shared", &shared, .., everything())?,
        port.export("read-only export", &only_here, .., reading)?,
        port.export("read-only mapping", &only_read, .., everything())?,
    ];
    let mut other = Command::new(std::env::current_exe()?)
        .args(["--device".as_ref(), arguments.device.as_os_str()])
        .args(["--second".as_ref(), path.as_os_str()])
        .stdout(Stdio::null())
        .spawn()?;
    let done = port.notification(DONE)?;
    done.wait(PATIENCE)?;
    let mut bytes = vec![0; BYTES as usize];
    shared.read_into(0, &mut bytes)?;
    meeting::check(2, 0, &bytes, "the first process' view")?;
    only_here.read_into(0, &mut bytes[..64])?;
    if bytes[..64] != [7; 64] {
        return Err("memory that others may only read was written".into());
    }
    let ended = other.wait()?;
    let _ = std::fs::remove_file(&path);
    if ended.success() {
        Ok(r#"{"node":1,"processes":2}"#.to_owned())
    } else {
        Err(format!("the second process: {ended}").into())
    }
}

/// Node 1, the second process.
fn second(node: &Node, path: &Path) -> Result<String, Trouble> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let port = Port::open(node, PortConfig::number(SECOND.0))?;
    let shared = adopt(&port, &file, true)?;
    let _name = port.export("shared", &shared, .., Access::everyone().notify(1..=9))?;
    port.notification(DONE)?.wait(PATIENCE)?;
    let mut bytes = vec![0; BYTES as usize];
    shared.read_into(0, &mut bytes)?;
    meeting::check(2, 0, &bytes, "the second process' view")?;
    Ok(String::new())
}

/// Node 0.
fn visitor(node: &Node, arguments: &Arguments) -> Result<String, Trouble> {
    let port = Port::open(node, PortConfig::number(FIRST.0))?;
    let import = |from, name: &str| port.import(NodeId(1), from, name, PATIENCE);
    let (one, two) = (import(FIRST, "shared")?, import(SECOND, "shared")?);
    let buffer = port.alloc(BYTES)?;
    let mut bytes = vec![0; BYTES as usize];
    for (round, to, from) in [(1, &one, &two), (2, &two, &one)] {
        meeting::fill(round, 0, &mut bytes);
        buffer.write_from(0, &bytes)?;
        to.write(0, buffer.whole()).post()?;
        port.flush_remote(NodeId(1))?;
        from.read(0, buffer.whole()).fenced().post()?;
        buffer.read_into(0, &mut bytes)?;
        meeting::check(
            round,
            0,
            &bytes,
            "written through one name, read through the other",
        )?;
    }
    nowhere(&arguments.device)?;
    let refused = [
        refused(&port, &import(FIRST, "read-only export")?)?,
        refused(&port, &import(FIRST, "read-only mapping")?)?,
    ];
    for segment in [&one, &two] {
        segment.write(0, &[]).notify(DONE).post()?;
    }
    port.flush_remote(NodeId(1))?;
    Ok(format!(
        r#"{{"node":0,"refused":["{:?}","{:?}"]}}"#,
        refused[0], refused[1]
    ))
}

/// Asks for counters at the very end of all addresses, where the array's own end does not exist.
fn nowhere(device: &Path) -> Result<(), Trouble> {
    let file = OpenOptions::new().read(true).write(true).open(device)?;
    for counters in [1, u64::MAX - 39, u64::MAX] {
        let mut stat = Stat {
            counters,
            count: 512,
            ..Stat::default()
        };
        // SAFETY: the number is that of the argument; the driver is to find out that the pointer in it is none.
        let called = unsafe { rustix::ioctl::ioctl(&file, Updater::<{ STAT }, Stat>::new(&mut stat)) };
        if called != Err(Errno::FAULT) {
            return Err(format!("counters at {counters:#x}: {called:?}").into());
        }
    }
    Ok(())
}

/// Writes where no process may write; returns the reason for the refusal.
fn refused(port: &Port, segment: &RemoteSegment) -> Result<Status, Trouble> {
    let written = segment.write(3 * PAGE, &[0xEE; 100]).post();
    match written.and_then(|_| port.flush_remote(NodeId(1))) {
        Err(Error::Failed(failure)) => Ok(failure.status),
        Err(Error::ModeRefused { .. }) => Ok(Status::ModeRefused),
        Err(error) => Err(error.into()),
        Ok(()) => Err("a write to memory that may only be read was not refused".into()),
    }
}
