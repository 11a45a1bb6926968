//! What can be seen from outside: captures, counters, clear errors.

use std::time::Duration;

use netvm::{Access, Port, PortConfig, Timeout};
use netvm_abi::frame::decode;
use netvm_abi::wire::Kind;
use netvm_abi::{NodeId, PortId};
use netvm_emulator::Emulator;
use pcap_file::pcap::PcapReader;

const PATIENCE: Timeout = Timeout::After(Duration::from_secs(20));

#[test]
fn a_capture_holds_every_message_as_a_valid_frame() {
    let file = std::env::temp_dir().join(format!("netvm-capture-{}.pcap", std::process::id()));
    let sent = {
        let emulator = Emulator::builder().pcap(&file).mtu(1500).start().unwrap();
        let receiver = Port::open(&emulator.node(1), PortConfig::number(2)).unwrap();
        let inbox = receiver.alloc(8192).unwrap();
        let _export = receiver
            .export("inbox", &inbox, .., Access::everyone().notify(1..=9))
            .unwrap();
        let sender = Port::open(&emulator.node(0), PortConfig::default()).unwrap();
        let source = sender.alloc(8192).unwrap();
        source.write_from(0, &[0xAB; 8192]).unwrap();
        let remote = sender.import(NodeId(1), PortId(2), "inbox", PATIENCE).unwrap();
        remote.write(0, source.whole()).notify(3).post().unwrap();
        remote.write(100, &[0xCD; 16][..]).post().unwrap();
        sender.flush_remote(NodeId(1)).unwrap();
        drop((remote, sender, source));
        drop((receiver, inbox));
        emulator.stats(0).unwrap().frames_sent + emulator.stats(1).unwrap().frames_sent
    };
    let mut reader = PcapReader::new(std::fs::File::open(&file).unwrap()).unwrap();
    let (mut frames, mut bulk, mut notified) = (0, 0, 0);
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let frame = decode(&packet.data).expect("a NetVM frame");
        assert!(
            packet.data.len() <= 14 + 1500,
            "longer than the MTU: {}",
            packet.data.len()
        );
        frames += 1;
        if frame.header.kind == Kind::Write {
            assert_eq!(
                (frame.header.source, frame.header.destination),
                (NodeId(0), NodeId(1))
            );
            bulk += frame.payload.iter().filter(|byte| **byte == 0xAB).count();
            notified += u32::from(frame.header.notification.0 == 3);
        }
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!((bulk, notified), (8192, 1));
    assert!(frames >= sent, "{frames} frames captured, {sent} sent before");
}

#[test]
fn two_nodes_use_the_smaller_mtu_of_theirs() {
    let emulator = Emulator::builder()
        .mtu_of(0, 9000)
        .mtu_of(1, 1500)
        .start()
        .unwrap();
    let receiver = Port::open(&emulator.node(1), PortConfig::number(2)).unwrap();
    let inbox = receiver.alloc(4096).unwrap();
    inbox.word64(0).unwrap().store(1).unwrap();
    let _export = receiver.export("inbox", &inbox, .., Access::everyone()).unwrap();
    let sender = Port::open(&emulator.node(0), PortConfig::default()).unwrap();
    let source = sender.alloc(4096).unwrap();
    source.write_from(0, &[9; 4096]).unwrap();
    let remote = sender.import(NodeId(1), PortId(2), "inbox", PATIENCE).unwrap();
    let before = emulator.stats(1).unwrap();
    remote.write(0, source.whole()).post().unwrap();
    sender.flush_remote(NodeId(1)).unwrap();
    let after = emulator.stats(1).unwrap();
    assert_eq!(
        after.zero_copy + after.bounced - before.zero_copy - before.bounced,
        3,
        "{after:#?}"
    );
}

#[test]
fn counters_move_when_things_happen() {
    let emulator = Emulator::builder().resident_pages(8).start().unwrap();
    let receiver = Port::open(&emulator.node(1), PortConfig::number(2)).unwrap();
    let inbox = receiver.alloc(32 * 4096).unwrap();
    let _export = receiver
        .export("inbox", &inbox, .., Access::everyone().notify(1..=2000))
        .unwrap();
    let sender = Port::open(&emulator.node(0), PortConfig::default()).unwrap();
    let remote = sender.import(NodeId(1), PortId(2), "inbox", PATIENCE).unwrap();
    for page in 0..32u64 {
        remote.write(page * 4096, &[1; 64][..]).notify(1).post().unwrap();
        // Once it has landed, its page is mapped: the next one hits.
        sender.flush_remote(NodeId(1)).unwrap();
        remote
            .write(page * 4096 + 64, &[2; 64][..])
            .notify(1024 + page as u32)
            .post()
            .unwrap();
        sender.flush_remote(NodeId(1)).unwrap();
    }
    let stats = emulator.stats(1).unwrap();
    assert!(
        stats.zero_copy > 0
            && stats.zero_copy + stats.bounced == 64
            && stats.bounced >= 32
            && stats.notifications == 64,
        "{stats:#?}"
    );
    assert!(
        stats.evictions >= 24 && stats.pager.swap_writes > 0 && stats.pager.nic_page_ins >= 32,
        "{stats:#?}"
    );
    assert!(
        stats.mapped_pages <= 8 && stats.frames_sent > 0 && stats.bytes_sent > 0,
        "{stats:#?}"
    );
    assert!(
        stats.dma_page_bytes == 64 * stats.zero_copy && stats.bounce_bytes >= 64 * 4096,
        "{stats:#?}"
    );
    assert_eq!((stats.dropped, stats.retransmitted), (0, 0));
    assert_eq!(emulator.bounce_bytes(1), stats.bounce_bytes);
    assert!(emulator.stats(2).is_none());
}

#[test]
fn senseless_numbers_are_refused_in_words() {
    let refusal = |builder: netvm_emulator::Builder| {
        let error = builder.start().expect_err("refused");
        assert!(!error.is_unsupported_here(), "{error}");
        error.to_string()
    };
    assert!(refusal(Emulator::builder().nodes(0)).contains("1 to 64"));
    assert!(refusal(Emulator::builder().nodes(65)).contains("65"));
    assert!(refusal(Emulator::builder().resident_pages(1)).contains("at least 8"));
    assert!(refusal(Emulator::builder().mtu(100)).contains("100"));
    assert!(refusal(Emulator::builder().pcap("/does/not/exist")).contains("/does/not/exist"));
    assert!(refusal(Emulator::builder().swap_directory("/does/not/exist")).contains("swap file"));
}

#[test]
fn a_node_reaches_itself() {
    let emulator = Emulator::new(1).unwrap();
    let port = Port::open(&emulator.node(0), PortConfig::number(2)).unwrap();
    let region = port.alloc(8192).unwrap();
    let _export = port.export("own", &region, .., Access::everyone()).unwrap();
    let remote = port.import(NodeId(0), PortId(2), "own", PATIENCE).unwrap();
    region.word64(0).unwrap().store(77).unwrap();
    remote.write(4096, region.slice(0..8).unwrap()).post().unwrap();
    port.flush_remote(NodeId(0)).unwrap();
    assert_eq!(region.word64(4096).unwrap().load().unwrap(), 77);
}

#[test]
fn sixty_four_gibibytes_are_exported_at_once() {
    let emulator = Emulator::builder().resident_pages(64).start().unwrap();
    let receiver = Port::open(&emulator.node(1), PortConfig::number(2)).unwrap();
    let vast = receiver.alloc(64 << 30).unwrap();
    let _export = receiver.export("vast", &vast, .., Access::everyone()).unwrap();
    let sender = Port::open(&emulator.node(0), PortConfig::default()).unwrap();
    let remote = sender.import(NodeId(1), PortId(2), "vast", PATIENCE).unwrap();
    for step in 0..200u64 {
        remote
            .write(step * (300 << 20), &step.to_ne_bytes()[..])
            .post()
            .unwrap();
    }
    sender.flush_remote(NodeId(1)).unwrap();
    for step in 0..200u64 {
        assert_eq!(vast.word64(step * (300 << 20)).unwrap().load().unwrap(), step);
    }
    assert!(emulator.stats(1).unwrap().pager.max_resident <= 64);
}
