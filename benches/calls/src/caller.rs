//! The process that measures.

use crate::functions::{
    CHANNEL, COUNT_8, COUNT_64, COUNT_256, COUNT_1024, EXPECT, NAME, PORT, RAN, RAW, RAW_BYTES, STOP,
};
use crate::place::stay_on;
use crate::report::{Measured, Row, median};
use crate::{Result, text};
use netvm::{NodeId, Port, PortConfig, RemoteSegment, Sender, Timeout};
use netvm_calls::{Address, Aggregation, Calls, CallsConfig, Function, Peer, Registry, Synchronizer};
use netvm_process::SoftNode;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// How long the other process may take to do anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Turns of each row.
    pub turns: u32,
    /// Bytes of arguments that each way sends in a turn, about.
    pub bytes: u64,
    /// The most calls of a way in a turn.
    pub calls: u64,
}

impl Sizes {
    /// For numbers that are kept.
    pub const WHOLE: Self = Self {
        turns: 21,
        bytes: 64 << 20,
        calls: 2_000_000,
    };
    /// A few seconds.
    pub const QUICK: Self = Self {
        turns: 3,
        bytes: 4 << 20,
        calls: 100_000,
    };
}

/// The other process. Ends with its value.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An endpoint with its link, one for each way to pack: an endpoint packs in one way.
struct Way {
    calls: Calls,
    peer: Peer,
}

struct Bench {
    node: SoftNode,
    there: NodeId,
    alone: Way,
    packed: Way,
    overflow: Way,
    port: Port,
    source: netvm::Region,
    raw: RemoteSegment,
    channel: Sender,
}

/// Measures, with `command` as the other process: it is to run [`serve`](crate::serve) under this name.
///
/// # Errors
/// A text that says what went wrong.
pub fn measure(sizes: &Sizes, name: &str, command: &mut Command) -> Result<Measured> {
    let other = Other(command.spawn().map_err(text)?);
    stay_on(0);
    let mut bench = Bench::start(name)?;
    let rows = vec![
        bench.row(sizes, &COUNT_8)?,
        bench.row(sizes, &COUNT_64)?,
        bench.row(sizes, &COUNT_256)?,
        bench.row(sizes, &COUNT_1024)?,
    ];
    let round_trip = bench.round_trip(sizes)?;
    let way = &mut bench.alone;
    way.calls.ask(way.peer, &STOP, &(), PATIENCE).map_err(text)?;
    drop(bench);
    drop(other);
    Ok(Measured::new(rows, round_trip))
}

impl Bench {
    fn start(name: &str) -> Result<Self> {
        let node = SoftNode::builder().start().map_err(text)?;
        let deadline = Instant::now() + PATIENCE;
        // The other process may not be up yet.
        let there = loop {
            match node.connect(name, PATIENCE) {
                Ok(there) => break there,
                Err(error) if Instant::now() > deadline => return Err(text(error)),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let open = |aggregation| -> Result<Way> {
            let port = Port::open(&node.node(), PortConfig::default()).map_err(text)?;
            let config = CallsConfig::default().aggregation(aggregation);
            let mut calls = Calls::open(port, NAME, Registry::new(), config).map_err(text)?;
            let to = Address::new(there, PORT);
            let peer = calls.connect(to).map_err(text)?;
            Ok(Way { calls, peer })
        };
        let port = Port::open(&node.node(), PortConfig::default()).map_err(text)?;
        let source = port.alloc(RAW_BYTES).map_err(text)?;
        source.write_from(0, &vec![1; RAW_BYTES as usize]).map_err(text)?;
        Ok(Self {
            alone: open(Aggregation::None)?,
            packed: open(Aggregation::default())?,
            overflow: open(Aggregation::Overflow { bytes: 16 << 10 })?,
            raw: port.import(there, PORT.into(), RAW, PATIENCE).map_err(text)?,
            channel: Sender::join(&port, there, PORT.into(), CHANNEL, PATIENCE).map_err(text)?,
            source,
            port,
            there,
            node,
        })
    }

    fn row<const N: usize>(&mut self, sizes: &Sizes, function: &Function<[u8; N]>) -> Result<Row> {
        let count = (sizes.bytes / N as u64).min(sizes.calls);
        let few = count / 4;
        let mut turns: Vec<Row> = Vec::new();
        // The first turn warms up.
        for turn in 0..=sizes.turns {
            let batches = self.packed.calls.stats().batches;
            let packed = self.packed.rate(function, count)?;
            let batches = self.packed.calls.stats().batches - batches;
            let raw_page = self.raw_rate(4096, (count * N as u64 / 4096).max(1000))?;
            let row = Row {
                bytes: N as u64,
                packed: packed * N as f64 / 1e6,
                write: self.alone.rate(function, few)? * N as f64 / 1e6,
                overflow: self.overflow.rate(function, few)? * N as f64 / 1e6,
                raw: self.raw_rate(N as u64, few)? * N as f64 / 1e6,
                send: self.send_rate::<N>(few)? * N as f64 / 1e6,
                raw_page: raw_page * 4096.0 / 1e6,
                million_calls: packed / 1e6,
                calls_per_write: count as f64 / batches.max(1) as f64,
                ..Row::default()
            };
            if turn > 0 {
                turns.push(row);
            }
        }
        let of = |value: fn(&Row) -> f64| median(turns.iter().map(value).collect());
        Ok(Row {
            bytes: N as u64,
            send: of(|row| row.send),
            write: of(|row| row.write),
            packed: of(|row| row.packed),
            overflow: of(|row| row.overflow),
            raw: of(|row| row.raw),
            raw_page: of(|row| row.raw_page),
            million_calls: of(|row| row.million_calls),
            gain: of(|row| row.packed / row.write),
            of_raw_page: of(|row| row.packed / row.raw_page),
            overflow_of_raw: of(|row| row.overflow / row.raw),
            calls_per_write: of(|row| row.calls_per_write),
        })
    }

    /// Plain writes a second of so many bytes, until all have landed.
    fn raw_rate(&self, bytes: u64, count: u64) -> Result<f64> {
        let slots = RAW_BYTES / bytes;
        let slices = (0..slots.min(64)).map(|slot| self.source.slice(slot * bytes..(slot + 1) * bytes));
        let slices: Vec<_> = slices.collect::<netvm::Result<_>>().map_err(text)?;
        let began = Instant::now();
        for (number, slice) in (0..count).zip(slices.iter().cycle()) {
            let at = number % slots.min(64) * bytes;
            self.raw.write(at, slice).post().map_err(text)?;
        }
        self.port.flush_remote(self.there).map_err(text)?;
        Ok(count as f64 / began.elapsed().as_secs_f64())
    }

    /// Messages of a channel a second.
    fn send_rate<const N: usize>(&mut self, count: u64) -> Result<f64> {
        let way = &mut self.alone;
        way.calls.call(way.peer, &EXPECT, &count).map_err(text)?;
        let message = [3; N];
        let began = Instant::now();
        for _ in 0..count {
            self.channel.send(&message, PATIENCE).map_err(text)?;
        }
        // It answers when it has received all.
        way.calls.ask(way.peer, &RAN, &(), PATIENCE).map_err(text)?;
        Ok(count as f64 / began.elapsed().as_secs_f64())
    }

    /// A call and its result: the median, in nanoseconds.
    fn round_trip(&mut self, sizes: &Sizes) -> Result<f64> {
        let way = &mut self.alone;
        let mut times = Vec::new();
        for _ in 0..sizes.turns * 500 {
            let began = Instant::now();
            way.calls.ask(way.peer, &RAN, &(), PATIENCE).map_err(text)?;
            times.push(began.elapsed().as_nanos() as f64);
        }
        debug_assert!(self.node.is_up(self.there));
        Ok(median(times))
    }
}

impl Way {
    /// Calls a second, until all have run.
    fn rate<const N: usize>(&mut self, function: &Function<[u8; N]>, count: u64) -> Result<f64> {
        let before = self.calls.ask(self.peer, &RAN, &(), PATIENCE).map_err(text)?;
        let argument = [7; N];
        let done = Synchronizer::new();
        let began = Instant::now();
        for _ in 1..count {
            self.calls.call(self.peer, function, &argument).map_err(text)?;
        }
        let last = self.calls.to(self.peer).consumed(&done);
        last.call(function, &argument).map_err(text)?;
        self.calls
            .wait_for(&done, Timeout::After(PATIENCE))
            .map_err(text)?;
        let took = began.elapsed().as_secs_f64();
        let ran = self.calls.ask(self.peer, &RAN, &(), PATIENCE).map_err(text)? - before;
        if ran != count {
            return Err(format!("{ran} of {count} calls have run"));
        }
        Ok(count as f64 / took)
    }
}
