//! Files as memory of a port: mapped for reading, mapped for writing, and kinds of memory that a card may not have. Runs on
//! one host, whose card sends to itself.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::ptr::NonNull;
use std::time::Duration;

use clap::{Parser, Subcommand};
use netvm::abi::Status;
use netvm::{Access, Error, Export, Port, PortConfig, Region, RemoteSegment, device};
use netvm_rig::meeting::{self, Trouble};
use netvm_rig::raw::Device;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Ends with 0 if each kind of memory is served, or refused, as it should. Prints one line of JSON.
#[derive(Parser)]
#[command(name = "rig-files", about = "Files as memory of a port")]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Map these files for reading: a card sends their bytes, and may write none.
    Read {
        /// The files, of at least 16 pages each.
        files: Vec<PathBuf>,
        /// Then stay until this file exists.
        #[arg(long)]
        until: Option<PathBuf>,
    },
    /// Map these files for writing: what a card writes is in the file.
    Write {
        /// The files, which are made.
        files: Vec<PathBuf>,
        /// Then stay until this file exists.
        #[arg(long)]
        until: Option<PathBuf>,
    },
    /// Huge pages and a card's own memory are refused, in words.
    Refused,
}

const PAGES: u64 = 16;
const PAGE: u64 = 4096;
const BYTES: u64 = PAGES * PAGE;
const SOON: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let done = match Arguments::parse().role {
        Role::Read { files, until } => read(&files, until.as_deref()),
        Role::Write { files, until } => write(&files, until.as_deref()),
        Role::Refused => refused(),
    };
    meeting::end("rig-files", done)
}

/// A port, and memory of its own.
struct Own {
    port: Port,
    region: Region,
    remote: RemoteSegment,
    _export: Export,
}

fn own() -> Result<Own, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let port = Port::open(&node, PortConfig::default())?;
    let region = port.alloc(BYTES)?;
    let export = port.export("own", &region, .., Access::everyone())?;
    let remote = port.import(node.id(), port.id(), "own", SOON)?;
    Ok(Own {
        port,
        region,
        remote,
        _export: export,
    })
}

/// Maps a file and gives it to a port. It stays mapped until the process ends.
fn adopt(port: &Port, file: &File, access: ProtFlags) -> Result<Region, Trouble> {
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

fn stay(until: Option<&Path>) {
    if let Some(until) = until {
        println!("mapped");
        while !until.exists() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn read(files: &[PathBuf], until: Option<&Path>) -> Result<String, Trouble> {
    let own = own()?;
    let node = own.port.node().id();
    let mut kept = Vec::new();
    for path in files {
        let named = |trouble: Trouble| format!("{}: {trouble}", path.display());
        let file = File::open(path)?;
        let mapped = adopt(&own.port, &file, ProtFlags::READ).map_err(named)?;
        let (mut sent, mut meant) = (vec![0; BYTES as usize], vec![0; BYTES as usize]);
        file.read_exact_at(&mut meant, 0)?;
        // Twice: the second time the card has the pages.
        for _ in 0..2 {
            own.region.write_from(0, &vec![0; BYTES as usize])?;
            own.remote.write(0, mapped.whole()).post()?;
            own.port.flush_remote(node)?;
            own.region.read_into(0, &mut sent)?;
            if sent != meant {
                return Err(named("other bytes were sent than the file has".into()).into());
            }
        }
        let name = path.display().to_string();
        let export = own.port.export(&name, &mapped, .., Access::everyone())?;
        let remote = own.port.import(node, own.port.id(), &name, SOON)?;
        for page in [0, 3] {
            let written = remote.write(page * PAGE, &[0xEE; 200]).post();
            match written.and_then(|_| own.port.flush_remote(node)) {
                Err(Error::Failed(failure)) if failure.status == Status::ReadOnly => {}
                other => return Err(named(format!("a write to it: {other:?}").into()).into()),
            }
        }
        // What was refused has cost the card nothing of what it had.
        own.remote.write(0, mapped.whole()).post()?;
        own.port.flush_remote(node)?;
        kept.push((mapped, export, remote));
    }
    stay(until);
    Ok(format!(r#"{{"read":{}}}"#, kept.len()))
}

fn write(files: &[PathBuf], until: Option<&Path>) -> Result<String, Trouble> {
    let own = own()?;
    let node = own.port.node().id();
    let mut kept = Vec::new();
    for (number, path) in (1..).zip(files) {
        let named = |trouble: Trouble| format!("{}: {trouble}", path.display());
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        file.set_len(BYTES)?;
        let mapped = adopt(&own.port, &file, ProtFlags::READ | ProtFlags::WRITE).map_err(named)?;
        let name = path.display().to_string();
        let export = own.port.export(&name, &mapped, .., Access::everyone())?;
        let remote = own.port.import(node, own.port.id(), &name, SOON)?;
        let mut meant = vec![0; BYTES as usize];
        for round in 0..3 {
            meeting::fill(number * 10 + round, 0, &mut meant);
            own.region.write_from(0, &meant)?;
            remote.write(0, own.region.whole()).post()?;
            own.port.flush_remote(node)?;
            // The file system writes it back, and has the pages protected meanwhile.
            file.sync_all()?;
            let mut found = vec![0; BYTES as usize];
            file.read_exact_at(&mut found, 0)?;
            if found != meant {
                return Err(named("the file has other bytes than were written".into()).into());
            }
        }
        kept.push((mapped, export, remote));
    }
    stay(until);
    Ok(format!(r#"{{"written":{}}}"#, kept.len()))
}

fn refused() -> Result<String, Trouble> {
    let device = Device::open(Path::new(device::FIRST))?;
    let register = device.register(netvm::abi::ioctl::ANY_PORT)?;
    let area = device.area(&register)?;
    let huge = 2 << 20;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let pages = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            huge,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::HUGETLB,
        )
    }?;
    let is = |what: &str, start: u64, len: u64, expected: Errno| -> Result<(), Trouble> {
        match device.adopt(start, len) {
            Err(errno) if errno == expected => Ok(()),
            other => Err(format!("{what}: {other:?}, and not {expected:?}").into()),
        }
    };
    is(
        "huge pages",
        pages.expose_provenance() as u64,
        huge as u64,
        Errno::OPNOTSUPP,
    )?;
    is("memory of a card", area.address(), PAGE, Errno::OPNOTSUPP)?;
    is("addresses that no process has", 1 << 59, PAGE, Errno::INVAL)?;
    is("all addresses", 0, 1 << 60, Errno::INVAL)?;
    Ok(r#"{"refused":4}"#.to_owned())
}
