//! One user takes all he can have of a card and its driver; another one still gets his share. Runs on one host.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use netvm::{Access, Error, Port, PortConfig, device};
use netvm_rig::meeting::{self, Trouble};
use rustix::mm::{MapFlags, ProtFlags};

/// Prints one line of JSON.
#[derive(Parser)]
#[command(name = "rig-quota", about = "What one user can take")]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Take ports, segments, exports and imports until each is refused, and keep them while this file is there.
    Take {
        /// Removed by the test that watches.
        file: PathBuf,
    },
    /// Do a little of everything, beside one that takes all.
    Share,
    /// Have the driver watch so much memory that it has to stop watching some; what that costs this control group.
    Watch {
        /// The control group of this process.
        #[arg(long)]
        cgroup: PathBuf,
        /// Pieces of 2 MiB.
        #[arg(long, default_value_t = 12_000)]
        pieces: u64,
    },
}

const PAGE: u64 = 4096;
const PIECE: u64 = 2 << 20;
/// Mapped at a time: page tables are the process' own, and cost more.
const WINDOW: u64 = 64;
const SOON: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let done = match Arguments::parse().role {
        Role::Take { file } => take(&file),
        Role::Share => share(),
        Role::Watch { cgroup, pieces } => watch(&cgroup, pieces),
    };
    meeting::end("rig-quota", done)
}

/// Does something until it is refused; what was made, and why there is no more.
fn until_refused<T>(mut make: impl FnMut(usize) -> netvm::Result<T>) -> (Vec<T>, Error) {
    let mut made = Vec::new();
    loop {
        match make(made.len()) {
            Ok(one) => made.push(one),
            Err(error) => return (made, error),
        }
    }
}

/// A node may hold half of an exporter's capabilities, and its ports share that: here they are of one exporter.
const fn imports_left(imports: usize) -> bool {
    imports < 400
}

fn take(file: &Path) -> Result<String, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let (ports, no_port) = until_refused(|_| Port::open(&node, PortConfig::default()));
    let Some(port) = ports.first() else {
        return Err(format!("no port at all: {no_port}").into());
    };
    let own = port.alloc(PAGE)?;
    let export = port.export("first", &own, .., Access::everyone())?;
    let mut counts = vec![ports.len()];
    let mut kept = Vec::new();
    // Each port takes all that it gets.
    let (mut segments, mut exports, mut imports) = (0, 0, 0);
    for taker in &ports {
        let more = until_refused(|_| taker.alloc(PAGE));
        segments += more.0.len();
        if let Some(region) = more.0.first().or((taker.id() == port.id()).then_some(&own)) {
            let named =
                until_refused(|number| taker.export(&format!("e{number}"), region, .., Access::everyone()));
            exports += named.0.len();
            kept.push(named.0);
        }
        let bound = until_refused(|_| {
            if imports_left(imports) {
                imports += 1;
                taker.import(node.id(), port.id(), "first", Duration::ZERO)
            } else {
                Err(Error::TimedOut)
            }
        });
        kept.push(Vec::new());
        std::mem::forget((more.0, bound.0));
    }
    counts.extend([segments, exports, imports]);
    std::fs::write(file, format!("{counts:?}"))?;
    while file.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(export);
    Ok(format!(
        r#"{{"ports":{},"segments":{segments},"exports":{exports},"imports":{imports},"why":"{no_port}"}}"#,
        counts[0]
    ))
}

fn share() -> Result<String, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let port = Port::open(&node, PortConfig::default())?;
    let mut rounds = 0;
    for number in 0..4 {
        let region = port.alloc(PAGE)?;
        let name = format!("mine {number}");
        let export = port.export(&name, &region, .., Access::everyone())?;
        let remote = port.import(node.id(), port.id(), &name, SOON)?;
        remote.write(0, &[number as u8; 64]).post()?;
        port.flush_remote(node.id())?;
        let mut found = [0xFF; 64];
        region.read_into(0, &mut found)?;
        if found != [number as u8; 64] {
            return Err("what was written is not there".into());
        }
        rounds += 1;
        std::mem::forget((export, remote, region));
    }
    Ok(format!(r#"{{"rounds":{rounds}}}"#))
}

/// Kernel memory of a control group, in bytes.
fn kernel_memory(group: &Path) -> Result<u64, Trouble> {
    let text = std::fs::read_to_string(group.join("memory.stat"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("slab_unreclaimable "));
    Ok(line
        .ok_or("memory.stat has no slab_unreclaimable")?
        .trim()
        .parse()?)
}

fn watch(group: &Path, pieces: u64) -> Result<String, Trouble> {
    let node = meeting::node(Path::new(device::FIRST))?;
    let port = Port::open(&node, PortConfig::default())?;
    let own = port.alloc(PAGE)?;
    let _export = port.export("own", &own, .., Access::everyone())?;
    let remote = port.import(node.id(), port.id(), "own", SOON)?;
    let place = |at: *mut core::ffi::c_void, bytes: u64, access, flags| {
        // SAFETY: at a place of the kernel's choice, or over what this program has reserved there.
        unsafe {
            rustix::mm::mmap_anonymous(
                at,
                bytes as usize,
                access,
                MapFlags::PRIVATE | MapFlags::NORESERVE | flags,
            )
        }
    };
    // Address space that nothing else gets; nothing of it is there.
    let start = place(
        std::ptr::null_mut(),
        pieces * PIECE,
        ProtFlags::empty(),
        MapFlags::empty(),
    )?;
    let first = std::ptr::NonNull::new(start.cast::<u8>()).ok_or("address 0")?;
    // SAFETY: reserved for as long as the process lives.
    let all = unsafe { port.adopt(first, pieces * PIECE)? };
    let before = kernel_memory(group)?;
    let (began, mut most) = (Instant::now(), 0);
    for window in 0..pieces.div_ceil(WINDOW) {
        let at = start.wrapping_byte_add((window * WINDOW * PIECE) as usize);
        let count = WINDOW.min(pieces - window * WINDOW);
        place(
            at,
            count * PIECE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::FIXED,
        )?;
        for piece in 0..count {
            let offset = (window * WINDOW + piece) * PIECE;
            // A page of its own: the kernel's DMA checks count how often one page, such as the zero page, is mapped.
            // SAFETY: mapped for writing just above, and reached by nothing else now.
            unsafe { first.as_ptr().wrapping_add(offset as usize).write_volatile(1) };
            remote.write(0, &all.slice(offset..offset + 512)?).post()?;
        }
        port.flush_remote(node.id())?;
        place(at, count * PIECE, ProtFlags::empty(), MapFlags::FIXED)?;
        most = most.max(kernel_memory(group)?.saturating_sub(before));
    }
    Ok(format!(
        r#"{{"pieces":{pieces},"charged":{most},"ms":{}}}"#,
        began.elapsed().as_millis()
    ))
}
