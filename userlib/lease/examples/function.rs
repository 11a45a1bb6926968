//! Functions that have memory for 50 ms: `cargo run --release -p netvm-lease --example function`.
//!
//! Node 1 has a megabyte and lends it. On node 0 functions run, as a serverless platform runs them: each is given a picture, has scratch memory
//! for 50 ms, makes a smaller picture there, and puts it where its caller finds it. One of eight dies in the middle, and one stands still for too long.
//! No part of the program looks for these. Their memory comes back by itself, and what the slow one writes after its time is refused. In all they ask for
//! some ten times as much memory as there is.

use netvm::{Port, PortConfig, Status};
use netvm_emulator::Emulator;
use netvm_lease::{Client, ClientConfig, Error, Manager, ManagerConfig, Wish};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const POOL: u64 = 1 << 20;
const WORKERS: u16 = 4;
/// Calls that each worker runs.
const CALLS: u32 = 40;
/// A picture has so many pixels on a side, of a byte each.
const SIDE: usize = 192;
const SMALL: usize = SIDE / 4;
/// What a function has its memory for.
const TIME: Duration = Duration::from_millis(50);
/// How long a function waits for memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a call ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Well,
    Died,
    TooLate,
}

/// How often calls ended in which way.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    well: u32,
    died: u32,
    too_late: u32,
}

fn picture(call: u32) -> Vec<u8> {
    (0..SIDE * SIDE)
        .map(|at| (at as u32).wrapping_mul(call + 1) as u8)
        .collect()
}

/// A quarter as wide and as high: each pixel is the mean of sixteen.
fn smaller(picture: &[u8]) -> Vec<u8> {
    let mean = |at: usize| {
        let (x, y) = (at % SMALL * 4, at / SMALL * 4);
        let rows = (y..y + 4).filter_map(|y| picture.get(y * SIDE + x..y * SIDE + x + 4));
        (rows.flatten().map(|byte| u32::from(*byte)).sum::<u32>() / 16) as u8
    };
    (0..SMALL * SMALL).map(mean).collect()
}

/// A function: its picture goes to the scratch memory, and the smaller one behind it.
fn function(client: &mut Client, call: u32, fate: End) -> Result<End, Error> {
    let scratch = SIDE * SIDE + SMALL * SMALL;
    let lease = client.allocate(
        scratch as u64,
        Wish::read_write(TIME).exclusive().waiting(PATIENCE),
    )?;
    let node = lease.node();
    let end = (|| {
        lease.write(0, &picture(call)).post()?;
        client.port().flush_remote(node)?;
        if fate == End::TooLate {
            thread::sleep(2 * TIME);
        }
        let mut bytes = vec![0; SIDE * SIDE];
        lease.read(0, &mut bytes).call()?;
        let result = smaller(&bytes);
        lease.write((SIDE * SIDE) as u64, &result).post()?;
        client.port().flush_remote(node)?;
        let mut made = vec![0; SMALL * SMALL];
        lease.read((SIDE * SIDE) as u64, &mut made).call()?;
        assert_eq!(
            made,
            smaller(&picture(call)),
            "another function was in this memory"
        );
        netvm::Result::Ok(())
    })();
    match end {
        // It tells nothing and gives nothing back.
        Ok(()) if fate == End::Died => Ok(End::Died),
        Ok(()) => match client.relinquish(lease) {
            Ok(()) => Ok(End::Well),
            Err(Error::Refused(_)) => Ok(End::TooLate),
            Err(error) => Err(error),
        },
        // On a busy machine this may come to any function.
        Err(error)
            if matches!(
                error.status(),
                Some(Status::Expired | Status::CapabilityRefused | Status::Revoked)
            ) =>
        {
            Ok(End::TooLate)
        }
        Err(error) => Err(error.into()),
    }
}

fn work(client: &mut Client, worker: u32) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    for call in 0..CALLS {
        let fate = match (call + worker) % 8 {
            3 => End::Died,
            7 => End::TooLate,
            _ => End::Well,
        };
        match function(client, worker * CALLS + call, fate)? {
            End::Well => counts.well += 1,
            End::Died => counts.died += 1,
            End::TooLate => counts.too_late += 1,
        }
    }
    Ok(counts)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let network = Emulator::new(2)?;
    let port = Port::open(&network.node(1), PortConfig::number(7))?;
    let mut manager = Manager::open(port, "scratch", POOL, ManagerConfig::default().longest(TIME))?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let serving = thread::spawn(move || {
        let mut most = 0;
        while !stopped.load(Ordering::Relaxed) {
            manager.serve(Duration::from_millis(5))?;
            most = most.max(POOL - manager.free());
        }
        netvm_lease::Result::Ok((manager.stats(), most))
    });

    let began = Instant::now();
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let port = Port::open(&network.node(0), PortConfig::number(worker + 1))?;
        let config = ClientConfig::default().patience(PATIENCE);
        let mut client = Client::connect(port, (1.into(), 7.into()), "scratch", config)?;
        workers.push(thread::spawn(move || work(&mut client, worker.into())));
    }
    let mut sum = Counts::default();
    for worker in workers {
        let counts = worker.join().map_err(|_| "a worker has panicked")??;
        sum.well += counts.well;
        sum.died += counts.died;
        sum.too_late += counts.too_late;
    }
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let (stats, most) = serving.join().map_err(|_| "the manager has panicked")??;

    let calls = u32::from(WORKERS) * CALLS;
    println!(
        "{calls} calls in {took:.2?}, with {} KiB of 64 KiB each",
        calls * 64
    );
    println!(
        "{} ended well, {} died with their memory, {} were refused after their 50 ms",
        sum.well, sum.died, sum.too_late
    );
    println!("at most {} of {} KiB were lent at once", most >> 10, POOL >> 10);
    println!(
        "{} leases: {} given back, {} ended by themselves; {} revocations",
        stats.granted, stats.relinquished, stats.ended, stats.revocations
    );
    if sum.well + sum.died + sum.too_late != calls || stats.granted != u64::from(calls) {
        return Err("a call was lost".into());
    }
    Ok(())
}
