//! The process that measures.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use netvm::NodeId;
use netvm_net::{Address, Net, NetConfig, Stream, Way};
use netvm_process::SoftNode;

use super::{Bandwidth, PATIENCE, PORT, Ready, Report, SERVICE, SMALL, Sizes, Wish};
use crate::failure::Failure;
use crate::output;
use crate::process::{resident_bytes, resident_bytes_in_use};

fn wrong(error: io::Error) -> Failure {
    Failure::Wrong(error.to_string())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Measures everything.
pub(super) fn measure(node: &SoftNode, ready: &Ready, sizes: &Sizes) -> Result<Report, Failure> {
    node.connect(&format!("#{}", ready.node), PATIENCE)
        .map_err(|error| Failure::Wrong(error.to_string()))?;
    measured(node, ready, sizes).map_err(wrong)
}

fn measured(node: &SoftNode, ready: &Ready, sizes: &Sizes) -> io::Result<Report> {
    let net = Net::open(&node.node(), NetConfig::default().peers(1))?;
    let address = Address::new(NodeId(ready.node), PORT, SERVICE);
    let connect = || net.connect_timeout(address, PATIENCE);
    let tcp = || -> io::Result<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", ready.tcp))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for repeat in 0..sizes.repeats {
        output::tell(&format!("round trips, {} of {}", repeat + 1, sizes.repeats));
        let mine = round_trip(connect()?, sizes.trips)?;
        let other = round_trip(tcp()?, sizes.trips)?;
        ours.push(mine);
        theirs.push(other);
        ratios.push(mine / other);
    }
    output::tell(&format!("{} connections", sizes.connections));
    let (mut one, mut many, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    let mut idle = (0.0, 0.0);
    for repeat in 0..sizes.repeats.div_ceil(2) {
        let (single, _) = throughput(connect()?, &connect, 1, sizes.messages)?;
        let (all, memory) = throughput(connect()?, &connect, sizes.connections, sizes.messages)?;
        one.push(single);
        many.push(all);
        shares.push(all / single);
        if repeat == 0 {
            // Later ones find memory that was freed.
            idle = memory;
        }
    }
    output::tell("bandwidth");
    let mut bandwidth = Vec::new();
    for (name, way) in [
        ("message", Way::Message),
        ("write", Way::Write),
        ("read", Way::Read),
        ("auto", Way::Auto),
    ] {
        let before = net.stats()?;
        let mut stream = connect()?;
        stream.set_way(way);
        let rate = sink(stream, sizes.bytes)?;
        let after = net.stats()?;
        bandwidth.push(Bandwidth {
            way: name,
            megabytes_per_second: rate / 1e6,
            writes: after.by_write - before.by_write,
            reads: after.by_read - before.by_read,
        });
    }
    bandwidth.push(Bandwidth {
        way: "TCP",
        megabytes_per_second: sink(tcp()?, sizes.bytes)? / 1e6,
        writes: 0,
        reads: 0,
    });
    Ok(Report {
        ok: false,
        missed: Vec::new(),
        quick: false,
        round_trip_us: median(ours),
        tcp_round_trip_us: median(theirs),
        latency_ratio: median(ratios),
        connections: sizes.connections,
        one_per_second: median(one),
        many_per_second: median(many),
        throughput_ratio: median(shares),
        idle_bytes_client: idle.0,
        idle_bytes_server: idle.1,
        bandwidth,
    })
}

/// How long a small message takes there and back, in microseconds: the median.
fn round_trip(mut stream: impl Read + Write, trips: u32) -> io::Result<f64> {
    stream.write_all(&[Wish::Echo as u8])?;
    let mut message = [7; SMALL];
    let mut times = Vec::with_capacity(trips as usize);
    for number in 0..trips {
        let began = Instant::now();
        message[0] = number as u8;
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
        if message[0] != number as u8 {
            return Err(io::Error::other("another answer than was sent"));
        }
    }
    Ok(median(times))
}

/// Small messages a second over so many connections in turn, and the memory of each while idle, here and there.
fn throughput(
    mut control: Stream,
    connect: &dyn Fn() -> io::Result<Stream>,
    connections: u32,
    messages: u32,
) -> io::Result<(f64, (f64, f64))> {
    control.write_all(&[Wish::Many as u8])?;
    control.write_all(&connections.to_le_bytes())?;
    control.read_exact(&mut [0])?;
    let mut streams = Vec::with_capacity(connections as usize);
    let before = resident_bytes_in_use().unwrap_or(0);
    for _ in 0..connections {
        streams.push(connect()?);
    }
    let mine = resident_bytes().unwrap_or(0).saturating_sub(before);
    let mut theirs = [0; 8];
    control.read_exact(&mut theirs)?;
    let each = |bytes: u64| bytes as f64 / f64::from(connections);
    let memory = (each(mine), each(u64::from_le_bytes(theirs)));
    let messages = messages.next_multiple_of(connections);
    let bytes = u64::from(messages) * SMALL as u64;
    control.write_all(&bytes.to_le_bytes())?;
    let message = [7; SMALL];
    let began = Instant::now();
    for _ in 0..messages / connections {
        for stream in &mut streams {
            stream.write_all(&message)?;
        }
    }
    control.read_exact(&mut [0])?;
    Ok((f64::from(messages) / began.elapsed().as_secs_f64(), memory))
}

/// Bytes a second, in writes of 1 MiB.
fn sink(mut stream: impl Read + Write, bytes: u64) -> io::Result<f64> {
    stream.write_all(&[Wish::Sink as u8])?;
    stream.write_all(&bytes.to_le_bytes())?;
    let block: Vec<u8> = (0..1 << 20).map(|at| at as u8).collect();
    let began = Instant::now();
    for _ in 0..bytes >> 20 {
        stream.write_all(&block)?;
    }
    stream.read_exact(&mut [0])?;
    Ok(bytes as f64 / began.elapsed().as_secs_f64())
}
