//! Writes, reads and notifications through the user library on emulated nodes, in every mode.

use std::time::Duration;

use netvm::{Access, Port, PortConfig, Region, RemoteSegment, Timeout};
use netvm_abi::{Nanos, NodeId, PortId};
use netvm_emulator::{DmaMode, Emulator, NicMode};
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};

const PATIENCE: Timeout = Timeout::After(Duration::from_secs(20));

/// A receiver with an exported region on node 1, and a sender on node 0 that has imported it.
struct Pair {
    emulator: Emulator,
    receiver: Port,
    inbox: Region,
    _export: netvm::Export,
    sender: Port,
    source: Region,
    remote: RemoteSegment,
}

fn pair(emulator: Emulator, pages: u64) -> Pair {
    let receiver = Port::open(&emulator.node(1), PortConfig::number(7)).unwrap();
    let inbox = receiver.alloc(pages * 4096).unwrap();
    let segment = receiver
        .export("inbox", &inbox, .., Access::everyone().notify(1..=2000))
        .unwrap();
    let sender = Port::open(&emulator.node(0), PortConfig::default()).unwrap();
    let source = sender.alloc(pages * 4096).unwrap();
    let remote = sender.import(NodeId(1), PortId(7), "inbox", PATIENCE).unwrap();
    Pair {
        emulator,
        receiver,
        inbox,
        _export: segment,
        sender,
        source,
        remote,
    }
}

fn modes() -> Vec<(&'static str, netvm_emulator::Builder)> {
    let late = |seed| DmaMode::Late {
        seed,
        up_to: Nanos(50_000),
    };
    vec![
        ("inline", Emulator::builder()),
        ("inline, small MTU", Emulator::builder().mtu(1500)),
        ("inline, late", Emulator::builder().dma(late(1))),
        ("inline, tiny", Emulator::builder().resident_pages(16)),
        (
            "inline, late, tiny",
            Emulator::builder().dma(late(2)).resident_pages(16),
        ),
        ("threaded", Emulator::builder().nic(NicMode::Threaded)),
        (
            "threaded, late, tiny",
            Emulator::builder()
                .nic(NicMode::Threaded)
                .dma(late(3))
                .resident_pages(16),
        ),
    ]
}

#[test]
fn a_written_word_arrives_with_its_notification() {
    for (name, builder) in modes() {
        let pair = pair(builder.start().unwrap(), 4);
        pair.remote
            .write(16, &b"hello, node 1"[..])
            .notify(5)
            .post()
            .unwrap();
        let arrived = pair.receiver.notification(5).unwrap();
        arrived
            .wait(PATIENCE)
            .unwrap_or_else(|error| panic!("{name}: {error}\n{:#?}", pair.emulator.stats(1)));
        arrived.ack().unwrap();
        let mut text = [0; 13];
        pair.inbox.read_into(16, &mut text).unwrap();
        assert_eq!(&text, b"hello, node 1", "{name}");
    }
}

#[test]
fn bulk_data_survives_bounces_and_evictions() {
    const PAGES: u64 = 64;
    for (name, builder) in modes() {
        let pair = pair(builder.start().unwrap(), PAGES);
        let mut random = SmallRng::seed_from_u64(7);
        let mut sent = vec![0u8; (PAGES * 4096) as usize];
        random.fill_bytes(&mut sent);
        pair.source.write_from(0, &sent).unwrap();
        let mut model = vec![0u8; sent.len()];
        let done = pair.receiver.notification(9).unwrap();
        for round in 0..40 {
            let from = random.random_range(0..sent.len());
            let len = random.random_range(1..=(sent.len() - from).min(20_000));
            let to = random.random_range(0..=sent.len() - len);
            let slice = pair.source.slice(from as u64..(from + len) as u64).unwrap();
            pair.remote.write(to as u64, slice).notify(9).post().unwrap();
            model[to..to + len].copy_from_slice(&sent[from..from + len]);
            done.wait(PATIENCE).unwrap_or_else(|error| {
                panic!(
                    "{name}, round {round}: {error}\n{:#?}\n{:#?}",
                    pair.emulator.stats(0),
                    pair.emulator.stats(1)
                )
            });
            done.ack().unwrap();
        }
        let mut got = vec![0; model.len()];
        pair.inbox.read_into(0, &mut got).unwrap();
        assert!(
            got == model,
            "{name}: first difference at {:?}",
            got.iter().zip(&model).position(|(a, b)| a != b)
        );
        // And back, by reads.
        let slice = pair.source.slice(..).unwrap();
        pair.remote
            .read(0, slice)
            .fenced()
            .post()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        pair.source.read_into(0, &mut got).unwrap();
        assert!(got == model, "{name}: read back");
        let stats = pair.emulator.stats(1).unwrap();
        assert!(
            stats.bounced > 0 && stats.dropped == 0 && stats.retransmitted == 0,
            "{name}: {stats:#?}"
        );
        if name.contains("tiny") {
            assert!(
                stats.evictions > 0 && stats.pager.max_resident <= 16,
                "{name}: {stats:#?}"
            );
        } else {
            assert!(stats.zero_copy > 0, "{name}: {stats:#?}");
        }
    }
}

#[test]
fn flush_remote_says_that_everything_has_landed() {
    for (name, builder) in modes() {
        let pair = pair(builder.start().unwrap(), 32);
        for page in 0..32u64 {
            pair.remote
                .write(page * 4096, &page.to_ne_bytes()[..])
                .post()
                .unwrap();
        }
        pair.sender
            .flush_remote(NodeId(1))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for page in 0..32u64 {
            assert_eq!(
                pair.inbox.word64(page * 4096).unwrap().load().unwrap(),
                page,
                "{name}"
            );
        }
    }
}

#[test]
fn both_directions_at_once_from_several_threads() {
    for (name, builder) in modes() {
        let emulator = builder.nodes(3).start().unwrap();
        let ports: Vec<Port> = (0..3)
            .map(|node| Port::open(&emulator.node(node), PortConfig::number(4)).unwrap())
            .collect();
        let regions: Vec<Region> = ports.iter().map(|port| port.alloc(96 * 4096).unwrap()).collect();
        let _exports: Vec<_> = ports
            .iter()
            .zip(&regions)
            .map(|(port, region)| {
                port.export("all", region, .., Access::everyone().notify(1..=9))
                    .unwrap()
            })
            .collect();
        std::thread::scope(|scope| {
            for from in 0..3usize {
                for to in 0..3usize {
                    if from == to {
                        continue;
                    }
                    let (ports, name) = (&ports, name);
                    scope.spawn(move || {
                        let remote = ports[from]
                            .import(NodeId(to as u16), PortId(4), "all", PATIENCE)
                            .unwrap();
                        for round in 0..60u64 {
                            if round == 30 {
                                // Data lands in any order: what is written twice needs a flush between.
                                ports[from].flush_remote(NodeId(to as u16)).unwrap();
                            }
                            let bytes = vec![(round as u8) ^ (from as u8); 5000];
                            let at = (from as u64 * 32 + round % 30) * 4096;
                            remote
                                .write(at, &bytes[..])
                                .post()
                                .unwrap_or_else(|error| panic!("{name}: {error}"));
                        }
                        remote.notify(1 + from as u32).unwrap();
                        ports[from]
                            .flush_remote(NodeId(to as u16))
                            .unwrap_or_else(|error| panic!("{name}: {error}"));
                    });
                }
            }
        });
        for (to, port) in ports.iter().enumerate() {
            for from in (0..3usize).filter(|from| *from != to) {
                port.notification(1 + from as u32)
                    .unwrap()
                    .wait(PATIENCE)
                    .unwrap();
                let mut got = vec![0; 3192];
                regions[to]
                    .read_into((from as u64 * 32 + 5) * 4096 + 904, &mut got)
                    .unwrap();
                assert!(
                    got.iter().all(|byte| *byte == 35 ^ from as u8),
                    "{name}: {from} -> {to}: {:?}",
                    &got[..8]
                );
            }
        }
    }
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    for (name, builder) in modes() {
        let pair = pair(builder.start().unwrap(), 8);
        pair.remote.write(0, &[1; 64][..]).post().unwrap();
        pair.sender.flush_remote(NodeId(1)).unwrap();
        assert!(pair.emulator.kill(1, PortId(7)), "{name}");
        assert!(!pair.emulator.kill(1, PortId(7)), "{name}: killed twice");
        assert_eq!(pair.emulator.stats(1).unwrap().mapped_pages, 0, "{name}");
        // The number is free for a new process; writes under the old capability fail at the sender.
        let again = Port::open(&pair.emulator.node(1), PortConfig::number(7)).unwrap();
        pair.remote.write(0, &[2; 64][..]).post().unwrap();
        assert!(pair.sender.flush_remote(NodeId(1)).is_err(), "{name}");
        // The dead process' handle does not close its heir's port, and the heir's closes it.
        drop(pair.receiver);
        assert!(again.alloc(4096).is_ok(), "{name}");
        drop(again);
        drop(Port::open(&pair.emulator.node(1), PortConfig::number(7)).unwrap());
        let mut bytes = [0; 64];
        pair.inbox.read_into(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 64], "{name}: the dead process' memory was written");
    }
}

#[test]
fn adopted_memory_is_refused_with_a_reason() {
    let emulator = Emulator::new(1).unwrap();
    let port = Port::open(&emulator.node(0), PortConfig::default()).unwrap();
    let mut memory = vec![0u8; 8192];
    // SAFETY: refused before anything happens to the memory.
    let refused = unsafe { port.adopt(std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap(), 8192) };
    assert!(refused.unwrap_err().to_string().contains("alloc"));
}
