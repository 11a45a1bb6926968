//! `netvm perf`: rates, and times of single operations.

use std::time::{Duration, Instant};

use netvm::Region;
use serde::Serialize;

use super::spread::Spread;
use super::{Client, SIGNAL, wrong};
use crate::args::{MAX_TRANSFER, Operation, Perf};
use crate::failure::Failure;
use crate::output;

/// One line of the result.
#[derive(Serialize)]
struct Line {
    operation: &'static str,
    /// Bytes of each; 0 where it has none.
    size: u32,
    /// With many on their way.
    per_second: f64,
    /// Of payload, in 10^6 bytes.
    megabytes_per_second: f64,
    /// One at a time, until it is known to have landed.
    microseconds: Spread,
}

#[derive(Serialize)]
struct Report<'a> {
    name: &'a str,
    depth: u32,
    lines: Vec<Line>,
}

/// Runs it.
///
/// # Errors
/// There is no such server, or the link ends.
pub fn run(options: &Perf) -> Result<(), Failure> {
    let client = Client::connect(&options.name, &options.options)?;
    let source = client.port.alloc(u64::from(MAX_TRANSFER)).map_err(wrong)?;
    source
        .write_from(0, &vec![0xA5; MAX_TRANSFER as usize])
        .map_err(wrong)?;
    let mut bench = Bench {
        client: &client,
        source: &source,
        target: vec![0; MAX_TRANSFER as usize],
        depth: options.depth,
        time: Duration::from_millis(options.time),
    };
    let mut lines = Vec::new();
    for what in &options.what {
        match what {
            Operation::Write | Operation::Read => {
                for size in &options.sizes {
                    lines.push(bench.measure(*what, *size)?);
                }
            }
            Operation::Atomic => lines.push(bench.measure(*what, 8)?),
            Operation::Notify => lines.push(bench.measure(*what, 0)?),
        }
    }
    if options.json {
        return output::print_json(&Report {
            name: &options.name,
            depth: options.depth,
            lines,
        });
    }
    let mut text = String::from("             bytes      per second        MB/s     median us        p99\n");
    for line in &lines {
        text += &format!(
            "{:<8} {:>9} {:>15} {:>11.1} {:>13.2} {:>10.2}\n",
            line.operation,
            line.size,
            output::grouped(line.per_second as u64),
            line.megabytes_per_second,
            line.microseconds.median,
            line.microseconds.p99
        );
    }
    output::print(&text)
}

struct Bench<'a> {
    client: &'a Client,
    /// Memory of the port's own, as senders of large data have it: it is not copied to be sent.
    source: &'a Region,
    target: Vec<u8>,
    depth: u32,
    time: Duration,
}

/// Single operations of which the time is taken, at most.
const SINGLES: usize = 100_000;

impl Bench<'_> {
    fn measure(&mut self, what: Operation, size: u32) -> Result<Line, Failure> {
        // Once without a clock: pages are touched, the peer is awake.
        self.single(what, size).map_err(wrong)?;
        let mut times = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < self.time && times.len() < SINGLES {
            let one = Instant::now();
            self.single(what, size).map_err(wrong)?;
            times.push(one.elapsed());
        }
        let begin = Instant::now();
        let mut count = 0u64;
        while begin.elapsed() < self.time {
            self.many(what, size).map_err(wrong)?;
            count += u64::from(self.depth);
        }
        let seconds = begin.elapsed().as_secs_f64();
        Ok(Line {
            operation: match what {
                Operation::Write => "write",
                Operation::Read => "read",
                Operation::Atomic => "atomic",
                Operation::Notify => "notify",
            },
            size,
            per_second: (count as f64 / seconds).round(),
            megabytes_per_second: (count as f64 * f64::from(size) / seconds / 1e5).round() / 10.0,
            microseconds: Spread::of(times),
        })
    }

    /// One, until it is known to have landed.
    fn single(&mut self, what: Operation, size: u32) -> netvm::Result<()> {
        self.post(what, size)?;
        match what {
            Operation::Write | Operation::Notify => self.client.port.flush_remote(self.client.peer),
            Operation::Read | Operation::Atomic => Ok(()),
        }
    }

    /// As many as may be on their way; reads and atomics wait for their answers one after the other.
    fn many(&mut self, what: Operation, size: u32) -> netvm::Result<()> {
        for _ in 0..self.depth {
            self.post(what, size)?;
        }
        self.client.port.flush_remote(self.client.peer)
    }

    fn post(&mut self, what: Operation, size: u32) -> netvm::Result<()> {
        let Client { remote, part, .. } = self.client;
        let words = *part + u64::from(MAX_TRANSFER);
        match what {
            Operation::Write if size <= 128 => {
                let bytes = self.target.get(..size as usize).unwrap_or_default();
                remote.write(*part, bytes).post().map(drop)
            }
            Operation::Write => {
                let source = self.source.slice(0..u64::from(size))?;
                remote.write(*part, source).post().map(drop)
            }
            Operation::Read => {
                let bytes = self.target.get_mut(..size as usize).unwrap_or_default();
                remote.read(*part, bytes).call()
            }
            Operation::Atomic => remote.word64(words)?.fetch_add(1).map(drop),
            Operation::Notify => remote.notify(SIGNAL).map(drop),
        }
    }
}
