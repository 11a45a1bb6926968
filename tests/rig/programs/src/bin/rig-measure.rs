//! What `cargo xtask rig measure` measures. Run it on both hosts at the same time with the same arguments; node 1 exports.
//!
//! `share`: how much of what arrives lands in place while the exporter's control group allows less memory than is exported.
//! `misses`: how long a write takes that finds a page not mapped, beside one that finds it mapped, and beside a page fault of
//! the exporter's own. `export`: how long it takes to export memory that was never touched (node 1 alone does it).

use std::ffi::c_void;
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::{Parser, Subcommand};
use netvm::{Access, NodeId, PortId, Region, RemoteSegment, device};
use netvm_rig::meeting::{self, PATIENCE, Side, Trouble};
use netvm_rig::memory;
use netvm_rig::storm::Mix;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
use serde_json::{Map, Value, json};

/// Ends with 0 if it could be measured. Prints one line of JSON.
#[derive(Parser)]
#[command(name = "rig-measure", about = "Misses, exports, and what lands in place")]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// The control group that this program runs in.
    #[arg(long, global = true, default_value = "/sys/fs/cgroup")]
    cgroup: PathBuf,
}

#[derive(Clone, Copy, Subcommand)]
enum What {
    /// How much lands in place.
    Share {
        /// How much is exported, in MiB.
        #[arg(long, default_value_t = 8)]
        mib: u64,
        /// Pages that are written while it counts.
        #[arg(long, default_value_t = 4096)]
        writes: u64,
    },
    /// How long a miss takes.
    Misses,
    /// How long an export takes.
    Export,
}

const PORT: u16 = 11;
const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Notifications: node 0 has done its part; node 1 has done its.
const DONE: u32 = 1;
const READY: u32 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match arguments.what {
        What::Share { mib, writes } => share(mib * MIB, writes, &arguments),
        What::Misses => misses(),
        What::Export => export(),
    };
    meeting::end("rig-measure", ended)
}

fn share(bytes: u64, writes: u64, arguments: &Arguments) -> Result<Value, Trouble> {
    let node = meeting::node(device::FIRST.as_ref())?;
    let side = Side::meet(&node, PORT, bytes)?;
    if node.id() != NodeId(1) {
        let source = side.port.alloc(PAGE)?;
        source.write_from(0, &[1; PAGE as usize])?;
        let mut mix = Mix::new(7);
        for page in 0..bytes / PAGE {
            side.remote.write(page * PAGE, source.whole()).post()?;
        }
        // As often again before it counts: then it is as it stays.
        for _ in 0..2 {
            for write in 1..=writes {
                // Half of them to an eighth of the memory, as programs do.
                let pages = bytes / PAGE / if mix.below(2) == 0 { 8 } else { 1 };
                side.remote
                    .write(mix.below(pages) * PAGE, source.whole())
                    .post()?;
                if write % 64 == 0 {
                    side.port.flush_remote(side.peer)?;
                }
            }
            side.tell(DONE)?;
            side.hear(READY)?;
        }
        return Ok(json!({"node": 0}));
    }
    memory::watched(&arguments.cgroup, || -> Result<Value, Trouble> {
        side.hear(DONE)?;
        let before = landed()?;
        side.tell(READY)?;
        side.hear(DONE)?;
        let after = landed()?;
        side.tell(READY)?;
        Ok(json!({"node": 1, "in_place": after.0 - before.0, "bounced": after.1 - before.1}))
    })?
}

/// Messages that this node's card has put in place, and that its driver has copied.
fn landed() -> Result<(u64, u64), Trouble> {
    // A card writes its counters down once a second.
    std::thread::sleep(std::time::Duration::from_millis(1300));
    let counters = device::counters(device::FIRST).map_err(|refusal| format!("counters: {refusal:?}"))?;
    let of = |all: &[(String, u64)], name: &str| {
        let found = all.iter().find(|(is, _)| is == name);
        found.map(|(_, count)| *count).ok_or(format!("no {name}"))
    };
    Ok((of(&counters.card, "zero_copy")?, of(&counters.driver, "bounced")?))
}

/// Pages that are measured, and how far apart they are: no neighbour is brought in with one.
const PROBES: u64 = 64;
const APART: u64 = 32 * PAGE;
const LENGTH: u64 = PROBES * APART;

/// Why a page is not mapped.
#[derive(Clone, Copy)]
enum Miss {
    /// It was never touched.
    Untouched,
    /// It is in the page cache (minor fault).
    Cached,
    /// It was swapped out (major fault).
    Swapped,
}

const MISSES: [(Miss, &str); 3] = [
    (Miss::Untouched, "untouched"),
    (Miss::Cached, "cached"),
    (Miss::Swapped, "swapped"),
];

/// Memory that is taken out of the page table.
struct Probed {
    start: NonNull<c_void>,
    of_file: bool,
}

impl Probed {
    fn new(of_file: bool) -> Result<Self, Trouble> {
        let (access, len) = (ProtFlags::READ | ProtFlags::WRITE, LENGTH as usize);
        // SAFETY: new memory, at an address of the kernel's choice.
        let start = unsafe {
            if of_file {
                let file = memfd_create("probed", MemfdFlags::CLOEXEC)?;
                ftruncate(&file, LENGTH)?;
                mmap(null_mut(), len, access, MapFlags::SHARED, &file, 0)
            } else {
                mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE)
            }
        }?;
        let start = NonNull::new(start).ok_or("mapped at 0")?;
        Ok(Self { start, of_file })
    }

    fn word(&self, probe: u64) -> &AtomicU64 {
        // SAFETY: inside of the memory, aligned; reached by atomics only, and never unmapped.
        unsafe {
            self.start
                .byte_add((probe * APART) as usize)
                .cast::<AtomicU64>()
                .as_ref()
        }
    }

    /// Takes all of it out of the page table.
    fn take_out(&self, miss: Miss) -> Result<(), Trouble> {
        let advise = |advice| {
            // SAFETY: contents may go, the memory stays.
            unsafe { madvise(self.start.as_ptr(), LENGTH as usize, advice) }
        };
        if !matches!(miss, Miss::Untouched) {
            (0..PROBES).for_each(|probe| self.word(probe).store(1, Ordering::Relaxed));
        }
        match miss {
            Miss::Untouched | Miss::Cached => advise(Advice::LinuxDontNeed)?,
            Miss::Swapped => {
                // What the look before last used stays once.
                advise(Advice::LinuxPageOut)?;
                advise(Advice::LinuxPageOut)?;
            }
        }
        let left = memory::resident(self.start.as_ptr().addr() as u64, LENGTH)?;
        if left > 0 {
            return Err(format!("{left} bytes stay mapped").into());
        }
        Ok(())
    }
}

fn misses() -> Result<Value, Trouble> {
    let node = meeting::node(device::FIRST.as_ref())?;
    let side = Side::meet(&node, PORT, PAGE)?;
    let mut seen = Map::new();
    if node.id() != NodeId(1) {
        let source = side.port.alloc(PAGE)?;
        source.write_from(0, &[1; PAGE as usize])?;
        let import = |name| side.port.import(side.peer, PortId(PORT), name, PATIENCE);
        let (private, file) = (import("private")?, import("file")?);
        for (miss, name) in MISSES {
            let to = if matches!(miss, Miss::Cached) {
                &file
            } else {
                &private
            };
            side.hear(READY)?;
            let missed = writes(&side, to, &source)?;
            let hit = writes(&side, to, &source)?;
            side.tell(DONE)?;
            seen.insert(name.to_owned(), json!({"missed_ns": missed, "hit_ns": hit}));
        }
        return Ok(Value::Object(seen));
    }
    let (private, file) = (Probed::new(false)?, Probed::new(true)?);
    let mut exports = Vec::new();
    for (probed, name) in [(&private, "private"), (&file, "file")] {
        // SAFETY: reached by atomics only, and never unmapped.
        let region = unsafe { side.port.adopt(probed.start.cast(), LENGTH) }?;
        let segment = side.port.export(name, &region, .., Access::everyone())?;
        exports.push((region, segment));
    }
    for (miss, name) in MISSES {
        let probed = if matches!(miss, Miss::Cached) {
            &file
        } else {
            &private
        };
        debug_assert_eq!(probed.of_file, matches!(miss, Miss::Cached));
        probed.take_out(miss)?;
        side.tell(READY)?;
        side.hear(DONE)?;
        probed.take_out(miss)?;
        let mut times = Vec::new();
        for probe in 0..PROBES {
            let began = Instant::now();
            probed.word(probe).store(2, Ordering::Relaxed);
            times.push(began.elapsed().as_nanos() as u64);
        }
        seen.insert(name.to_owned(), json!({"fault_ns": middle(times)}));
    }
    Ok(Value::Object(seen))
}

/// Writes a word to each page that is measured, and waits for it. The middle one of the times, in nanoseconds.
fn writes(side: &Side, to: &RemoteSegment, source: &Region) -> Result<u64, Trouble> {
    let mut times = Vec::new();
    for probe in 0..PROBES {
        let word = source.slice(0..8)?;
        let began = Instant::now();
        to.write(probe * APART, &word).post()?;
        side.port.flush_remote(side.peer)?;
        times.push(began.elapsed().as_nanos() as u64);
    }
    Ok(middle(times))
}

fn middle(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn export() -> Result<Value, Trouble> {
    let node = meeting::node(device::FIRST.as_ref())?;
    if node.id() != NodeId(1) {
        return Ok(json!({"node": 0}));
    }
    let port = netvm::Port::open(&node, netvm::PortConfig::number(PORT))?;
    let mut seen = Map::new();
    // The first time, code and tables are new.
    for gib in [1_u64, 64, 1, 64] {
        let len = gib << 30;
        // SAFETY: new memory, at an address of the kernel's choice, which is never touched.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(
                null_mut(),
                len as usize,
                access,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or("mapped at 0")?;
        let began = Instant::now();
        // SAFETY: no reference to it exists.
        let region = unsafe { port.adopt(start, len) }?;
        let segment = port.export(&format!("{gib}"), &region, .., Access::everyone())?;
        let exported = began.elapsed();
        let began = Instant::now();
        drop(segment);
        drop(region);
        let times = json!({"export_us": exported.as_micros() as u64, "unexport_us": began.elapsed().as_micros() as u64});
        seen.insert(format!("gib_{gib}"), times);
    }
    Ok(Value::Object(seen))
}
