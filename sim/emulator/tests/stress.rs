//! Everything at once: writes and reads in both directions, applications that touch pages at random, pagers with room for a
//! fraction of them, late DMA, regions that come and go, processes that die. Each thread owns some words and checks them against a
//! model; a DMA that goes astray, a lost dirty bit or a page copied out too early shows as a wrong word, or ends the process with a
//! P1 report.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm::{Access, Port, PortConfig, Region, RemoteSegment, Timeout};
use netvm_abi::{Nanos, NodeId, PortId};
use netvm_emulator::{Builder, DmaMode, Emulator, NicMode};
use rand::{Rng, SeedableRng, rngs::SmallRng};

const PATIENCE: Timeout = Timeout::After(Duration::from_secs(30));
const PAGES: u64 = 48;
const LANES: u64 = 2;

/// A word that only one lane writes: two lanes a direction, one word of every page each.
fn word(page: u64, from: u64, lane: u64) -> u64 {
    page * 4096 + 8 * (from * LANES + lane)
}

/// A word of the local application's.
fn local_word(page: u64) -> u64 {
    page * 4096 + 2048
}

struct Side {
    port: Port,
    region: Region,
    _export: netvm::Export,
}

fn side(emulator: &Emulator, node: usize) -> Side {
    let port = Port::open(&emulator.node(node), PortConfig::number(5)).unwrap();
    let region = port.alloc(PAGES * 4096).unwrap();
    let segment = port
        .export("shared", &region, .., Access::everyone().notify(1..=100))
        .unwrap();
    Side {
        port,
        region,
        _export: segment,
    }
}

/// Writes and reads back its words of the other node's region.
fn lane(port: &Port, remote: &RemoteSegment, from: u64, lane: u64, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed ^ (from << 8) ^ (lane << 16));
    let mut model = vec![0u64; PAGES as usize];
    let scratch = port.alloc(4096).unwrap();
    for round in 1..=250u64 {
        let page = random.random_range(0..PAGES);
        if random.random_bool(0.6) {
            remote
                .write(word(page, from, lane), &round.to_ne_bytes()[..])
                .post()
                .unwrap();
            model[page as usize] = round;
            // Data of different writes lands in any order: the same word again only behind a flush.
            port.flush_remote(remote.node()).unwrap();
        } else {
            remote
                .read(word(page, from, lane), scratch.slice(0..8).unwrap())
                .fenced()
                .post()
                .unwrap();
            let got = scratch.word64(0).unwrap().load().unwrap();
            assert_eq!(
                got, model[page as usize],
                "node {from}, lane {lane}, page {page}, round {round}"
            );
        }
    }
}

/// Touches its own words of the local region until told to stop.
fn application(region: &Region, stop: &AtomicBool, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut model = vec![0u64; PAGES as usize];
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let page = random.random_range(0..PAGES);
        let mine = region.word64(local_word(page)).unwrap();
        assert_eq!(
            mine.load().unwrap(),
            model[page as usize],
            "page {page}, round {round}"
        );
        if random.random_bool(0.5) {
            mine.store(round).unwrap();
            model[page as usize] = round;
        }
    }
}

/// Processes that open a port, do a little and die, or let go of it in good order.
fn passers_by(emulator: &Emulator, stop: &AtomicBool, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    while !stop.load(Ordering::Relaxed) {
        let node = random.random_range(0..2usize);
        let port = Port::open(&emulator.node(node), PortConfig::default()).unwrap();
        let region = port.alloc(4 * 4096).unwrap();
        let remote = port
            .import(NodeId(1 - node as u16), PortId(5), "shared", PATIENCE)
            .unwrap();
        for page in 0..4u64 {
            region.word64(page * 4096).unwrap().store(page).unwrap();
            remote
                .read(
                    page * 4096 + 1024,
                    region.slice(page * 4096..page * 4096 + 512).unwrap(),
                )
                .post()
                .unwrap();
        }
        if random.random_bool(0.5) {
            // In the middle of its reads.
            assert!(emulator.kill(node, port.id()));
        } else {
            port.flush().unwrap();
        }
    }
}

fn run(name: &str, builder: Builder, seed: u64) {
    let emulator = builder.start().unwrap();
    let sides = [side(&emulator, 0), side(&emulator, 1)];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (emulator, stop) = (&emulator, &stop);
        let mut lanes = Vec::new();
        for (from, side) in sides.iter().enumerate() {
            let remote = side
                .port
                .import(NodeId(1 - from as u16), PortId(5), "shared", PATIENCE)
                .unwrap();
            for lane_number in 0..LANES {
                let (port, remote) = (&side.port, remote.clone());
                lanes.push(scope.spawn(move || lane(port, &remote, from as u64, lane_number, seed)));
            }
            let region = &side.region;
            scope.spawn(move || application(region, stop, seed + from as u64));
        }
        scope.spawn(move || passers_by(emulator, stop, seed));
        let ends: Vec<_> = lanes
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect();
        stop.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok), "{name}, seed {seed}");
    });
    for node in 0..2 {
        let stats = emulator.stats(node).unwrap();
        assert!(
            stats.pager.max_resident <= stats.resident_limit,
            "{name}: {stats:#?}"
        );
        assert!(
            stats.evictions > 0 && stats.bounced > 0 && stats.zero_copy > 0,
            "{name}: {stats:#?}"
        );
        assert_eq!((stats.dropped, stats.retransmitted), (0, 0), "{name}: {stats:#?}");
    }
}

fn late(seed: u64) -> DmaMode {
    DmaMode::Late {
        seed,
        up_to: Nanos(100_000),
    }
}

#[test]
fn inline_cards() {
    for seed in 0..3 {
        run("inline", Emulator::builder().resident_pages(24), seed);
        run(
            "inline, late",
            Emulator::builder().resident_pages(24).dma(late(seed)),
            seed,
        );
    }
}

#[test]
fn cards_with_threads() {
    for seed in 0..2 {
        run(
            "threaded",
            Emulator::builder().nic(NicMode::Threaded).resident_pages(24),
            seed,
        );
        run(
            "threaded, late",
            Emulator::builder()
                .nic(NicMode::Threaded)
                .resident_pages(24)
                .dma(late(seed)),
            seed,
        );
    }
}
