//! Times, each as a ratio to something real that is measured in the same run.
//!
//! The machine may be busy with other things: everything is measured in short batches, and the fastest counts.

use super::cases::{Reckoned, probe_whole};
use super::pair::Pair;
use crate::layout::table::Table;
use crate::layout::{Layout, Shipped};
use anyhow::{Context as _, Result, ensure};
use netvm::{Access, Port, PortConfig, RemoteSegment, Timeout, copy};
use netvm_abi::page_lock::Used;
use netvm_abi::page_table::{HashKey, PageEntry};
use netvm_abi::{PAGE_SIZE, PortId, Ppn, SegmentId, Vpn};
use netvm_emulator::Emulator;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munlock, munmap};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use serde::Serialize;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// All times.
#[derive(Clone, Debug, Serialize)]
pub struct Ratios {
    /// `mlock` and `munlock` of a resident page, in ns.
    pub mlock_ns: f64,
    /// Lock and dirty unlock of the same page by the NIC, in ns.
    pub lock_ns: f64,
    /// A cache line from one core to another, in ns.
    pub hop_ns: f64,
    /// An 8 B write through the emulator, posted on one core, seen on another, in ns.
    pub write_ns: f64,
    /// 8 B writes through the emulator, posted back to back by a thread that shares one processor with both cards, in
    /// ns a write.
    pub posted_ns: f64,
    /// `memcpy` between the same amounts of memory, in MiB/s.
    pub memcpy: f64,
    /// A bulk write through the emulator, in MiB/s.
    pub bulk: f64,
    /// The two copies of a page that a bulk write must make, through one staging buffer, in ns.
    pub copies_ns: f64,
    /// [`probe_whole`], in ns.
    pub whole_ns: f64,
    /// Time of `export` by size in bytes, in us.
    pub export_us: Vec<(u64, f64)>,
}

/// A ratio and what it should be.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// What it is.
    pub text: &'static str,
    /// The ratio.
    pub value: f64,
    /// What it should be.
    pub target: &'static str,
    /// Whether it is.
    pub holds: bool,
}

impl Ratios {
    /// As ratios. What a page of a bulk write is reckoned to take is its two copies, and its counted
    /// instructions at the rate at which the cards' own are carried out.
    #[must_use]
    pub fn ratios(&self, reckoned: &Reckoned) -> Vec<Ratio> {
        let page = f64::from(PAGE_SIZE) / MIB as f64 / self.bulk * 1e9;
        let instruction = self.whole_ns / reckoned.whole;
        let reckoned = (self.copies_ns + reckoned.page * instruction) / page;
        let lock = self.lock_ns / self.mlock_ns;
        let hops = self.write_ns / self.hop_ns;
        let bulk = self.bulk / self.memcpy;
        let first = self.export_us.first().map_or(f64::NAN, |size| size.1);
        let last = self.export_us.last().map_or(f64::NAN, |size| size.1);
        let ratio = |text, value, target, holds| Ratio {
            text,
            value,
            target,
            holds,
        };
        vec![
            ratio(
                "lock + dirty unlock / mlock + munlock of a resident page",
                lock,
                "<= 0.05",
                lock <= 0.05,
            ),
            ratio("8 B write, one way / cache-line hop", hops, "<= 3", hops <= 3.0),
            ratio("bulk write / memcpy", bulk, ">= 0.6", bulk >= 0.6),
            ratio(
                "bulk write / its two copies and counted instructions",
                reckoned,
                ">= 0.9",
                reckoned >= 0.9,
            ),
            ratio(
                "export of 64 GiB / of 1 MiB",
                last / first,
                "<= 2",
                last / first <= 2.0,
            ),
        ]
    }
}

/// Measures everything.
///
/// # Errors
/// The emulator does not start here, or something failed in it.
pub fn measure() -> Result<Ratios> {
    let (hop_ns, write_ns) = write_against_hops()?;
    let (memcpy, bulk, copies_ns) = bulk_against_copies()?;
    Ok(Ratios {
        mlock_ns: mlock_time()?,
        lock_ns: lock_time()?,
        hop_ns,
        write_ns,
        posted_ns: posted_time()?,
        memcpy,
        bulk,
        copies_ns,
        whole_ns: whole_time()?,
        export_us: export_times()?,
    })
}

/// The shortest time of `rounds` rounds, in ns a round.
fn fastest(batches: u32, rounds: u32, mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..batches {
        let start = Instant::now();
        for _ in 0..rounds {
            round()?;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(rounds));
    }
    Ok(best)
}

fn mlock_time() -> Result<f64> {
    const PAGE: usize = 4096;
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: a new anonymous mapping, used for nothing but being locked, and unmapped below.
    let page = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    }
    .context("mapping a page")?;
    let time = fastest(20, 1000, || {
        // SAFETY: the page mapped above.
        unsafe {
            mlock(page, PAGE).context("mlock")?;
            munlock(page, PAGE).context("munlock")
        }
    });
    // SAFETY: it is out of use.
    unsafe { munmap(page, PAGE) }.context("unmapping a page")?;
    time
}

fn lock_time() -> Result<f64> {
    let mut table = Table::<Shipped>::new(4096, 4096, HashKey([3, 5]));
    let vpn = Vpn::new(PortId(1), 0x7_F000_1234);
    let entry = PageEntry {
        vpn,
        ppn: Ppn(77),
        segment: SegmentId(1),
        writable: true,
    };
    table.insert(entry, &mut ChaCha8Rng::seed_from_u64(1));
    let (layout, bar) = (&table.layout, &*table.bar);
    fastest(20, 100_000, || {
        let held = layout
            .lock(black_box(bar), black_box(vpn), true)
            .ok()
            .context("the page is not found")?;
        layout.unlock(bar, held.slot, Used::Written);
        Ok(())
    })
}

/// One value on a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    fn await_value(&self, value: u64) {
        while self.0.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    }
}

const END: u64 = u64::MAX;

/// Times `ping`, answered by another thread: `see` waits there for a value, then the answer goes back on a line.
fn round_trip(
    batches: u32,
    rounds: u32,
    mut ping: impl FnMut(u64) -> Result<()>,
    see: impl Fn() -> Result<u64> + Sync,
) -> Result<f64> {
    let answer = Line::default();
    std::thread::scope(|scope| {
        let responder = scope.spawn(|| -> Result<()> {
            let mut last = 0;
            while last != END {
                let value = see()?;
                if value == last {
                    std::hint::spin_loop();
                    continue;
                }
                last = value;
                answer.0.store(value, Ordering::Release);
            }
            Ok(())
        });
        let mut value = 0;
        let time = fastest(batches, rounds, || {
            value += 1;
            ping(value)?;
            answer.await_value(value);
            Ok(())
        });
        ping(END)?;
        responder
            .join()
            .map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        time
    })
}

/// A cache-line hop, and an 8 B write one way: the same round trip with a write in the place of its first hop.
fn write_against_hops() -> Result<(f64, f64)> {
    let line = Line::default();
    let bare = round_trip(
        200,
        500,
        |value| {
            line.0.store(value, Ordering::Release);
            Ok(())
        },
        || Ok(line.0.load(Ordering::Acquire)),
    )?;
    let hop = bare / 2.0;
    let network = Link::new(4096, 4096)?;
    let word = network.memory.word64(0)?;
    let through = round_trip(
        200,
        500,
        |value| {
            network.remote.write(0, &value.to_ne_bytes()).post()?;
            Ok(())
        },
        || Ok(word.load()?),
    )?;
    Ok((hop, through - hop))
}

/// Writes of a word, one behind the other, until the last has landed: the thread that posts, both cards and the emulator's
/// own thread on one processor.
fn posted_time() -> Result<f64> {
    const WRITES: u64 = 4096;
    let posting = || -> Result<f64> {
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        // Threads that this one starts stay there, too.
        sched_setaffinity(None, &one).context("staying on one processor")?;
        let network = Link::new(4096, 4096)?;
        let word = network.memory.word64(0)?;
        let mut value = 0u64;
        let batch = fastest(100, 1, || {
            for _ in 0..WRITES {
                value += 1;
                network.remote.write(0, &value.to_ne_bytes()).post()?;
            }
            network.sender.flush_remote(1.into())?;
            ensure!(word.load()? == value, "the last write has not landed");
            Ok(())
        })?;
        Ok(batch / WRITES as f64)
    };
    let thread = std::thread::spawn(posting);
    thread
        .join()
        .map_err(|_| anyhow::anyhow!("the writer panicked"))?
}

const MIB: u64 = 1 << 20;

/// `memcpy` of 32 MiB and a bulk write of as much, in MiB/s, and the two copies that such a write makes of each page, to a
/// buffer and from there, in ns a page.
fn bulk_against_copies() -> Result<(f64, f64, f64)> {
    const PAGE: usize = PAGE_SIZE as usize;
    const SIZE: u64 = 32 * MIB;
    let from = vec![7u8; SIZE as usize];
    let mut to = vec![1u8; SIZE as usize];
    let mut staging = vec![0u8; PAGE];
    let network = Link::new(SIZE, 16_384)?;
    let source = network.sender.alloc(SIZE)?;
    source.write_from(0, &from)?;
    network.memory.write_from(0, &to)?;
    let mut copy = f64::INFINITY;
    let mut write = f64::INFINITY;
    let mut staged = f64::INFINITY;
    // Turn by turn, so that all see the same machine, which is never the same for long. The first write maps the pages.
    for _ in 0..32 {
        copy = copy.min(fastest(1, 1, || {
            black_box(&mut to).copy_from_slice(black_box(&from));
            Ok(())
        })?);
        write = write.min(fastest(1, 1, || {
            network.remote.write(0, &source).post()?;
            network.sender.flush_remote(1.into())?;
            Ok(())
        })?);
        staged = staged.min(fastest(1, 1, || {
            for (source, target) in black_box(&from).chunks_exact(PAGE).zip(to.chunks_exact_mut(PAGE)) {
                // SAFETY: both are a page of their own, and so is the buffer.
                unsafe {
                    copy::copy_out(source.as_ptr(), &mut staging);
                    copy::copy_in(black_box(&staging), target.as_mut_ptr());
                }
            }
            Ok(())
        })?);
    }
    let mut check = vec![0; SIZE as usize];
    network.memory.read_into(0, &mut check)?;
    ensure!(check == from && to == from, "the bytes did not arrive");
    let rate = |ns: f64| SIZE as f64 / MIB as f64 / (ns * 1e-9);
    Ok((rate(copy), rate(write), staged / (SIZE as usize / PAGE) as f64))
}

fn whole_time() -> Result<f64> {
    let mut pair = Pair::linked()?;
    fastest(200, 500, || probe_whole(black_box(&mut pair)))
}

fn export_times() -> Result<Vec<(u64, f64)>> {
    let emulator = Emulator::builder().nodes(1).start()?;
    let port = Port::open(&emulator.node(0), PortConfig::default())?;
    [MIB, 1024 * MIB, 64 * 1024 * MIB]
        .into_iter()
        .map(|size| {
            let region = port
                .alloc(size)
                .with_context(|| format!("a region of {size} bytes"))?;
            let mut best = f64::INFINITY;
            for _ in 0..20 {
                let start = Instant::now();
                let export = port.export("bench", &region, .., Access::everyone())?;
                best = best.min(start.elapsed().as_nanos() as f64 / 1000.0);
                export.unexport()?;
            }
            Ok((size, best))
        })
        .collect()
}

/// Two nodes, an export on node 1, and its import on node 0.
struct Link {
    sender: Port,
    remote: RemoteSegment,
    memory: netvm::Region,
    _receiver: Port,
    _export: netvm::Export,
    _emulator: Emulator,
}

impl Link {
    fn new(size: u64, resident: u32) -> Result<Self> {
        let emulator = Emulator::builder().nodes(2).resident_pages(resident).start()?;
        let receiver = Port::open(&emulator.node(1), PortConfig::number(7))?;
        let memory = receiver.alloc(size)?;
        let export = receiver.export("bench", &memory, .., Access::everyone())?;
        let sender = Port::open(&emulator.node(0), PortConfig::default())?;
        let remote = sender.import(1.into(), 7.into(), "bench", Timeout::Never)?;
        Ok(Self {
            sender,
            remote,
            memory,
            _receiver: receiver,
            _export: export,
            _emulator: emulator,
        })
    }
}
