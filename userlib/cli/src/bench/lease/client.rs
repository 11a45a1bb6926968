//! The process that measures.

use std::time::{Duration, Instant};

use netvm::{NodeId, Port, PortConfig, PortId, Region, RemoteSegment};
use netvm_lease::{Client, ClientConfig, Result, Wish};
use netvm_process::SoftNode;

use super::{KEY, LONG, NAME, PART, PATIENCE, PLAIN, PORT, Pair, Ready, Report, SHORT, STRIDE, Sizes};
use crate::failure::Failure;
use crate::output;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Measures everything.
pub(super) fn measure(node: &SoftNode, ready: &Ready, sizes: &Sizes) -> std::result::Result<Report, Failure> {
    node.connect(&format!("#{}", ready.node), PATIENCE)
        .map_err(|error| Failure::Wrong(error.to_string()))?;
    measured(node, ready, sizes).map_err(|error| Failure::Wrong(error.to_string()))
}

/// Operations a second of something that does so many.
fn rate(count: u32, what: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    what()?;
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

/// Measures one beside the other, again and again. Each repetition is in the order one, other, other, one, so that a machine that becomes
/// slower does so for both.
fn side_by_side<T>(
    sizes: &Sizes,
    what: &str,
    state: &mut T,
    one: impl Fn(&mut T) -> Result<f64>,
    other: impl Fn(&mut T) -> Result<f64>,
) -> Result<Pair> {
    output::tell(what);
    let (mut ones, mut others, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // What is used for the first time is slower.
    one(state)?;
    other(state)?;
    for _ in 0..sizes.repeats {
        let first = one(state)?;
        let beside = [other(state)?, other(state)?];
        let last = one(state)?;
        // Times are added, not rates.
        let mean = |a: f64, b: f64| 2.0 / (1.0 / a + 1.0 / b);
        let (mine, theirs) = (mean(first, last), mean(beside[0], beside[1]));
        ones.push(mine);
        others.push(theirs);
        ratios.push(mine / theirs);
    }
    Ok(Pair {
        rate: median(ones),
        beside: median(others),
        ratio: median(ratios),
    })
}

/// Writes of 8 bytes, as fast as they can be posted, until all have landed.
fn writes(port: &Port, to: &RemoteSegment, count: u32) -> Result<f64> {
    rate(count, || {
        for number in 0..u64::from(count) {
            to.write(number * 8 % PART, &number.to_le_bytes()).post()?;
        }
        Ok(port.flush_remote(to.node())?)
    })
}

/// Reads of 8 bytes, as fast as they can be posted, until all have come.
fn reads(port: &Port, from: &RemoteSegment, into: &Region, count: u32) -> Result<f64> {
    rate(count, || {
        for number in 0..u64::from(count) {
            let at = number * 8 % PART;
            from.read(at, into.slice(at..at + 8)?).post()?;
        }
        Ok(port.flush_reads()?)
    })
}

/// Writes of 8 bytes of a port, with one access of another port before each [`STRIDE`] of them. The time of that port's calls does not
/// count; what both cards do for it does.
fn writes_beside(
    port: &Port,
    to: &RemoteSegment,
    count: u32,
    other: impl Fn(u64) -> Result<()>,
) -> Result<f64> {
    let mut took = Duration::ZERO;
    let rounds = count / STRIDE;
    for round in 0..u64::from(rounds) {
        other(round)?;
        let began = Instant::now();
        for number in 0..u64::from(STRIDE) {
            to.write(number * 8 % PART, &round.to_le_bytes()).post()?;
        }
        took += began.elapsed();
    }
    let began = Instant::now();
    port.flush_remote(to.node())?;
    took += began.elapsed();
    Ok(f64::from(rounds * STRIDE) / took.as_secs_f64())
}

/// One write of a port that is told of its failures, and goes on.
fn write_anyway(to: &RemoteSegment, number: u64) -> Result<()> {
    loop {
        match to.write(number * 8 % PART, &number.to_le_bytes()).post() {
            Ok(_) => return Ok(()),
            // Of one before it: nothing was sent now.
            Err(netvm::Error::Failed(_) | netvm::Error::FailuresLost { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// An honest port beside one whose lease is over, and beside one that has a right to what it does.
fn beside_illegal(
    node: &SoftNode,
    (port, lease): (&Port, &RemoteSegment),
    manager: (NodeId, PortId),
    sizes: &Sizes,
) -> Result<(Pair, u64)> {
    let stray = Port::open(&node.node(), PortConfig::default())?;
    let plain = stray.import(manager.0, manager.1, PLAIN, PATIENCE)?;
    let mut stray = Client::connect(stray, manager, NAME, ClientConfig::default().patience(PATIENCE))?;
    let over = stray.acquire(KEY, Wish::read_write(SHORT))?;
    std::thread::sleep(2 * SHORT);
    let count = sizes.operations;
    let pair = side_by_side(
        sizes,
        "writes beside illegal accesses",
        &mut (),
        |()| writes_beside(port, lease, count, |number| write_anyway(&over, number)),
        |()| writes_beside(port, lease, count, |number| write_anyway(&plain, number)),
    )?;
    Ok((pair, stray.port().stats().failures))
}

fn measured(node: &SoftNode, ready: &Ready, sizes: &Sizes) -> Result<Report> {
    let port = Port::open(&node.node(), PortConfig::default())?;
    let manager = (NodeId(ready.node), PORT);
    let plain = port.import(manager.0, manager.1, PLAIN, PATIENCE)?;
    let config = ClientConfig::default().patience(PATIENCE);
    let mut client = Client::connect(port, manager, NAME, config)?;
    let shared = Wish::read_write(LONG);
    let lease = client.acquire(KEY, shared)?;
    let into = client.port().alloc(PART)?;

    let extensions = side_by_side(
        sizes,
        "extensions",
        &mut (),
        |()| {
            rate(sizes.trips, || {
                (0..sizes.trips).try_for_each(|_| lease.extend(LONG).map(drop))
            })
        },
        |()| {
            rate(sizes.trips, || {
                let read = |_| Ok(plain.read(0, &mut [0; 8]).call()?);
                (0..sizes.trips).try_for_each(read)
            })
        },
    )?;
    let count = sizes.operations;
    let writes = side_by_side(
        sizes,
        "writes",
        &mut (),
        |()| writes(client.port(), &lease, count),
        |()| writes(client.port(), &plain, count),
    )?;
    let reads = side_by_side(
        sizes,
        "reads",
        &mut (),
        |()| reads(client.port(), &lease, &into, count),
        |()| reads(client.port(), &plain, &into, count),
    )?;
    let (honest, refused) = beside_illegal(node, (client.port(), &lease), manager, sizes)?;
    let count = sizes.grants;
    let grants = side_by_side(
        sizes,
        "grants",
        &mut client,
        |client| {
            let mut leases = Vec::with_capacity(count as usize);
            let rate = rate(count, || {
                for _ in 0..count {
                    leases.push(client.acquire(KEY, shared)?);
                }
                Ok(())
            });
            leases
                .into_iter()
                .try_for_each(|lease| client.relinquish(lease))?;
            rate
        },
        |client| rate(count, || (0..count).try_for_each(|_| client.echo())),
    )?;
    let turns = side_by_side(
        sizes,
        "grants that are given back",
        &mut client,
        |client| {
            rate(count, || {
                (0..count).try_for_each(|_| {
                    let lease = client.acquire(KEY, shared)?;
                    client.relinquish(lease)
                })
            })
        },
        |client| {
            rate(count, || {
                (0..count).try_for_each(|_| {
                    client.echo()?;
                    client.echo()
                })
            })
        },
    )?;
    client.relinquish(lease)?;
    Ok(Report {
        ok: false,
        missed: Vec::new(),
        quick: false,
        extensions,
        writes,
        reads,
        honest,
        refused,
        grants,
        turns,
    })
}
