//! The side that writes and reads.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use netvm::{Node, NodeId, Port, PortConfig, PortId, Region};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, RngCore as _, SeedableRng as _};

use crate::life::{End, Report, Trouble, digest, hash, millis};
use crate::{Common, LANDED, NAME};

/// Most bytes in front of what is sent and of what comes back: their pages are no pages of the other side.
const SKEW: u64 = 4096;
/// Longest piece, in bytes.
const LONGEST: u64 = 64 << 10;
/// The exporter may come later, or anew.
const IMPORT: Duration = Duration::from_secs(20);
/// How often it is looked whether a pause is over.
const LOOK: Duration = Duration::from_millis(20);

/// What it is told.
#[derive(Args)]
pub(crate) struct Drive {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The node that serves.
    #[arg(long)]
    to: u16,
    /// Decides contents, pieces and their order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Signal after each round, which has the server say its memory's digest.
    #[arg(long)]
    notify: bool,
    /// After each round, says what it took, makes this file, and goes on when it has gone.
    #[arg(long)]
    pause: Option<PathBuf>,
}

impl Drive {
    /// Round after round until the end has come.
    pub(crate) fn drive(&self, node: &Node, end: &End, report: &mut Report) -> Result<(), Trouble> {
        let port = Port::open(node, PortConfig::default())?;
        let (to, len) = (NodeId(self.to), self.common.kib << 10);
        let memory = [port.alloc(len + SKEW)?, port.alloc(len + SKEW)?];
        let remote = port.import(to, PortId(self.common.port), NAME, IMPORT)?;
        while !end.is_over(report) {
            let mut random = SmallRng::seed_from_u64(self.seed ^ (report.rounds << 32) ^ report.lives);
            let [from, back] = &memory;
            let [from_at, back_at] = [random.random_range(0..SKEW), random.random_range(0..SKEW)];
            let sent = fill(from, from_at, len, &mut random)?;

            let began = Instant::now();
            for (at, count) in pieces(len, &mut random) {
                let source = from.slice(from_at + at..from_at + at + count)?;
                remote.write(at, source).post()?;
                report.operations += 1;
            }
            port.flush_remote(to)?;
            let write_ms = millis(began.elapsed());
            report.write_ms += write_ms;

            let began = Instant::now();
            for (at, count) in pieces(len, &mut random) {
                let target = back.slice(back_at + at..back_at + at + count)?;
                remote.read(at, target).post()?;
                report.operations += 1;
            }
            port.flush_reads()?;
            let read_ms = millis(began.elapsed());
            report.read_ms += read_ms;

            let came = digest(back, back_at, len)?;
            if came != sent {
                return Err(Trouble::Bytes(format!(
                    "round {}: {sent} was written, and {came} came back",
                    report.rounds
                )));
            }
            if self.notify {
                remote.notify(LANDED)?;
                port.flush()?;
            }
            report.bytes += 2 * len;
            if let Some(file) = &self.pause {
                println!("{{\"write_ms\":{write_ms},\"read_ms\":{read_ms},\"digest\":\"{came}\"}}");
                pause(file)?;
            }
            report.round(came);
        }
        Ok(())
    }
}

/// Writes a file, and waits until the test removes it.
fn pause(file: &Path) -> Result<(), Trouble> {
    std::fs::write(file, "").map_err(|error| Trouble::Pause(file.to_owned(), error))?;
    while file.exists() {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Fills a region with random bytes; their digest.
fn fill(region: &Region, offset: u64, len: u64, random: &mut SmallRng) -> Result<String, Trouble> {
    hash(offset, len, |at, part| {
        random.fill_bytes(part);
        region.write_from(at, part)
    })
}

/// Cuts `len` bytes into offset and length of pieces, in random order: most of any length, some of a few bytes.
fn pieces(len: u64, random: &mut SmallRng) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < len {
        let longest = if random.random_ratio(1, 8) { 16 } else { LONGEST };
        let count = random.random_range(1..=longest).min(len - at);
        pieces.push((at, count));
        at += count;
    }
    pieces.shuffle(random);
    pieces
}
