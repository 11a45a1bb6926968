//! Times, as ratios against something real taken in the same run (thesis 3.4). Not part of an ordinary test run: they mean
//! something only on a quiet machine, optimised: `cargo test --release -p netvm-emulator --test speed -- --ignored --nocapture`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netvm::{Access, Port, PortConfig, Timeout};
use netvm_abi::{NodeId, PortId};
use netvm_emulator::Emulator;

const PATIENCE: Timeout = Timeout::After(Duration::from_secs(20));

/// One hop of a cache line from a core to the other, half of a round trip.
fn bare_hop(rounds: u64) -> Duration {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let mut took = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                while ping.0.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                pong.0.store(round, Ordering::Release);
            }
        });
        let start = Instant::now();
        for round in 1..=rounds {
            ping.0.store(round, Ordering::Release);
            while pong.0.load(Ordering::Acquire) != round {
                std::hint::spin_loop();
            }
        }
        took = start.elapsed() / (2 * rounds as u32);
    });
    took
}

/// Processor time of this thread: what a busy machine takes away does not count.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// One sending thread, one spinning reader, which answers through a bare cache line: against the same with bare lines both ways.
#[test]
#[ignore = "measures"]
fn small_write_one_way() {
    #[repr(align(128))]
    struct Line(AtomicU64);
    const ROUNDS: u64 = 100_000;
    let emulator = Emulator::new(2).unwrap();
    let receiver = Port::open(&emulator.node(1), PortConfig::number(3)).unwrap();
    let inbox = receiver.alloc(4096).unwrap();
    let _export = receiver.export("word", &inbox, .., Access::everyone()).unwrap();
    let sender = Port::open(&emulator.node(0), PortConfig::default()).unwrap();
    let remote = sender.import(NodeId(1), PortId(3), "word", PATIENCE).unwrap();
    let word = inbox.word64(0).unwrap();
    word.store(0).unwrap();
    for _ in 0..5 {
        let answer = Line(AtomicU64::new(0));
        let mut took = Duration::ZERO;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while word.load().unwrap() != round {
                        std::hint::spin_loop();
                    }
                    answer.0.store(round, Ordering::Release);
                }
            });
            let start = Instant::now();
            for round in 1..=ROUNDS {
                remote.write(0, &round.to_ne_bytes()[..]).post().unwrap();
                while answer.0.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
            }
            took = start.elapsed() / ROUNDS as u32;
        });
        let hop = bare_hop(ROUNDS);
        println!(
            "8 B write and answer: {took:?}; bare, there and back: {:?}; ratio {:.2}",
            2 * hop,
            took.as_secs_f64() / (2.0 * hop.as_secs_f64())
        );
    }
}

#[test]
#[ignore = "measures"]
fn small_writes_of_one_thread() {
    const ROUNDS: u32 = 300_000;
    let emulator = Emulator::new(2).unwrap();
    let receiver = Port::open(&emulator.node(1), PortConfig::number(3)).unwrap();
    let inbox = receiver.alloc(4096).unwrap();
    let _export = receiver
        .export("word", &inbox, .., Access::everyone().notify(1..=9))
        .unwrap();
    let sender = Port::open(&emulator.node(0), PortConfig::default()).unwrap();
    let remote = sender.import(NodeId(1), PortId(3), "word", PATIENCE).unwrap();
    for _ in 0..5 {
        let start = cpu_time();
        for round in 0..ROUNDS {
            remote
                .write(0, &u64::from(round).to_ne_bytes()[..])
                .post()
                .unwrap();
        }
        println!(
            "8 B write, one thread alone: {:?} of processor time",
            (cpu_time() - start) / ROUNDS
        );
    }
}

#[test]
#[ignore = "measures"]
fn bulk() {
    const BYTES: u64 = 64 << 20;
    let emulator = Emulator::builder().resident_pages(40_000).start().unwrap();
    let receiver = Port::open(&emulator.node(1), PortConfig::number(3)).unwrap();
    let inbox = receiver.alloc(BYTES).unwrap();
    let _export = receiver
        .export("bulk", &inbox, .., Access::everyone().notify(1..=9))
        .unwrap();
    let sender = Port::open(&emulator.node(0), PortConfig::default()).unwrap();
    let source = sender.alloc(BYTES).unwrap();
    let remote = sender.import(NodeId(1), PortId(3), "bulk", PATIENCE).unwrap();
    for page in 0..BYTES / 4096 {
        source.word64(page * 4096).unwrap().store(page).unwrap();
        inbox.word64(page * 4096).unwrap().store(1).unwrap();
    }
    let from = vec![1u8; BYTES as usize];
    let mut to = vec![2u8; BYTES as usize];
    for round in 0..20 {
        let start = cpu_time();
        for mib in 0..BYTES >> 20 {
            let slice = source.slice(mib << 20..(mib + 1) << 20).unwrap();
            remote.write(mib << 20, slice).post().unwrap();
        }
        sender.flush_remote(NodeId(1)).unwrap();
        let took = cpu_time() - start;
        let start = cpu_time();
        to.copy_from_slice(&from);
        std::hint::black_box(&to);
        let memcpy = cpu_time() - start;
        println!(
            "round {round}: bulk {:.0} MiB/s, memcpy {:.0} MiB/s, ratio {:.2}",
            64.0 / took.as_secs_f64(),
            64.0 / memcpy.as_secs_f64(),
            memcpy.as_secs_f64() / took.as_secs_f64()
        );
    }
    let stats = emulator.stats(1).unwrap();
    println!("zero copy {}, bounced {}", stats.zero_copy, stats.bounced);
    let busy = |counters: &std::collections::BTreeMap<String, u64>| {
        format!(
            "{:?}",
            counters
                .iter()
                .filter(|(_, value)| **value > 0)
                .collect::<Vec<_>>()
        )
    };
    println!("{} {} {:?}", busy(&stats.nic), busy(&stats.host), stats.pager);
    println!("{}", busy(&emulator.stats(0).unwrap().nic));
}

#[test]
#[ignore = "measures"]
fn stream_into_a_quarter_of_its_size() {
    const MIB: u64 = 1 << 20;
    const BYTES: u64 = 256 * MIB;
    let pages = |bytes: u64| u32::try_from(bytes / 4096).unwrap();
    let emulator = Emulator::builder()
        .resident_pages_of(0, pages(BYTES) + 4096)
        .resident_pages_of(1, pages(BYTES / 4))
        .start()
        .unwrap();
    let receiver = Port::open(&emulator.node(1), PortConfig::number(3)).unwrap();
    let inbox = receiver.alloc(BYTES).unwrap();
    let _export = receiver
        .export("inbox", &inbox, .., Access::everyone().notify(1..=9))
        .unwrap();
    let sender = Port::open(&emulator.node(0), PortConfig::default()).unwrap();
    let source = sender.alloc(BYTES).unwrap();
    for page in 0..BYTES / 4096 {
        source.word64(page * 4096).unwrap().store(page).unwrap();
    }
    let remote = sender.import(NodeId(1), PortId(3), "inbox", PATIENCE).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let arrived = receiver.notification(1).unwrap();
            let mut sum = 0u64;
            for mib in 0..BYTES / MIB {
                arrived.wait(PATIENCE).unwrap();
                arrived.ack().unwrap();
                for page in 0..MIB / 4096 {
                    sum += inbox.word64(mib * MIB + page * 4096).unwrap().load().unwrap();
                }
            }
            let pages = BYTES / 4096;
            assert_eq!(sum, pages * (pages - 1) / 2);
        });
        for mib in 0..BYTES / MIB {
            let slice = source.slice(mib * MIB..(mib + 1) * MIB).unwrap();
            remote.write(mib * MIB, slice).notify(1).post().unwrap();
        }
        sender.flush_remote(NodeId(1)).unwrap();
    });
    let took = start.elapsed();
    let stats = emulator.stats(1).unwrap();
    println!(
        "256 MiB into 64 MiB: {:.0} MiB/s; zero copy {}, bounced {}, evictions {}",
        256.0 / took.as_secs_f64(),
        stats.zero_copy,
        stats.bounced,
        stats.evictions
    );
}
