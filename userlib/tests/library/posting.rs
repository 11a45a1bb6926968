//! What the library puts into the command queue.

use netvm::{Error, PortConfig, Status, Timeout};
use netvm_abi::bar::port::{DOORBELL, TAKEN_FENCE, WRITE_FENCE};
use netvm_abi::descriptor::{CommandFlags, Opcode};
use netvm_abi::port_area::{PORT_STATE, WRITES_DONE};
use netvm_abi::shared_map::status_page;
use netvm_abi::{NodeId, NotificationId};
use netvm_kit::port::Card;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

#[test]
fn a_zero_copy_write_is_cut_at_the_pages_of_both_sides() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let region = port.alloc(4 * 4096).unwrap();
    let source = region.slice(100..100 + 3 * 4096).unwrap();
    let op = remote.write(50, source).notify(9).ordered().post().unwrap();
    let commands = card.take();
    let mut done = 0;
    for (index, (command, inline)) in commands.iter().enumerate() {
        assert_eq!((command.opcode, command.op), (Opcode::Write, op));
        assert!(inline.is_empty());
        assert_eq!(command.flags, CommandFlags::ORDERED);
        assert_eq!(command.remote.0, 0x7000_0000 + 50 + done);
        assert_eq!(command.local.0, region.address().0 + 100 + done);
        for address in [command.remote, command.local] {
            assert!(u32::from(address.page_offset().0) + command.len.0 <= 4096);
        }
        let last = index == commands.len() - 1;
        assert_eq!(command.notification, NotificationId(if last { 9 } else { 0 }));
        done += u64::from(command.len.0);
    }
    assert_eq!(done, 3 * 4096);
    // Both sides' page ends cut: 3996 50 4046 50 4046 50 ...
    assert_eq!(commands.len(), 7);
    let stats = port.stats();
    assert_eq!((stats.writes, stats.write_messages), (1, 7));
    assert_eq!(stats.zero_copy_bytes, 3 * 4096);
}

#[test]
fn messages_are_no_larger_than_the_path_allows() {
    let card = Card::new();
    card.status.set(status_page::peer_payload(NodeId(1)), 1408);
    card.status.set(status_page::peer_payload(NodeId(2)), 0);
    let (port, near, unknown) = card.open(PortConfig::default());
    let region = port.alloc(2 * 4096).unwrap();
    near.write(0, &region).post().unwrap();
    let lengths: Vec<u32> = card.take().iter().map(|c| c.0.len.0).collect();
    assert_eq!(lengths, [1408, 1408, 1280, 1408, 1408, 1280]);
    // A path that has not been greeted carries the least that any may.
    unknown.read(0, region.slice(0..2048).unwrap()).post().unwrap();
    assert_eq!(
        card.carry_out(Status::Ok)
            .iter()
            .map(|c| c.0.len.0)
            .collect::<Vec<_>>(),
        [512; 4]
    );
}

#[test]
fn small_writes_travel_in_the_descriptor() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let bytes: Vec<u8> = (1..=64).collect();
    remote.write(8, &bytes).post().unwrap();
    // Across a page there: two messages, the bytes divided.
    remote.write(4096 - 3, &bytes[..7]).notify(1).post().unwrap();
    // An aligned word whose source crosses a page: one message, or it would arrive in pieces.
    let region = port.alloc(2 * 4096).unwrap();
    region.write_from(4092, &bytes[..8]).unwrap();
    remote
        .write(16, region.slice(4092..4100).unwrap())
        .post()
        .unwrap();
    remote.write(0, &[]).notify(3).post().unwrap();
    let commands = card.take();
    assert_eq!(commands.len(), 5);
    assert!(commands.iter().all(|c| c.0.flags == CommandFlags::INLINE));
    assert_eq!(commands[0].1, bytes);
    assert_eq!((&*commands[1].1, commands[1].0.notification.0), (&bytes[..3], 0));
    assert_eq!((&*commands[2].1, commands[2].0.notification.0), (&bytes[3..7], 1));
    assert_eq!(commands[2].0.remote.0, 0x7000_0000 + 4096);
    assert_eq!(commands[3].1, bytes[..8]);
    assert_eq!((commands[4].0.len.0, commands[4].0.notification.0), (0, 3));
    assert_eq!(port.stats().inline_bytes, 64 + 7 + 8);
    // One more than the limit does not fit.
    remote.write(0, &[1; 65]).post().unwrap();
    assert!(card.take()[0].0.flags.is_empty());
    assert_eq!(port.stats().staged_bytes, 65);
}

#[test]
fn staged_bytes_stand_where_the_card_finds_them() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default().staging_bytes(32 << 10));
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    let arrived = std::sync::Arc::new(std::sync::Mutex::new(vec![0u8; 200_000]));
    let memory = std::sync::Arc::clone(&arrived);
    // The staging region is the first that is allocated.
    let staging = port.alloc(8).unwrap().address().0 + 4096 + 4096;
    let serve = move |card: &Card| {
        let commands = card.carry_out(Status::Ok);
        for (command, _) in commands.iter().filter(|command| command.0.opcode.is_write()) {
            let mut memory = memory.lock().unwrap();
            let to = (command.remote.0 - 0x7000_0000) as usize;
            // As long as the remote page: a chunk keeps its page offset.
            assert_eq!(command.remote.page_offset(), command.local.page_offset());
            assert!(command.local.0 >= staging && command.local.0 < staging + (32 << 10));
            memory[to..to + command.len.index()].fill(1);
        }
    };
    card.relax_with(serve.clone());
    remote.write(999, &bytes).notify(4).fenced().post().unwrap();
    serve(&card);
    let memory = arrived.lock().unwrap();
    assert!(memory[..999].iter().chain(&memory[100_999..]).all(|&b| b == 0));
    assert!(memory[999..100_999].iter().all(|&b| b == 1));
    let stats = port.stats();
    assert_eq!(
        (stats.writes, stats.staged_bytes, stats.zero_copy_bytes),
        (1, 100_000, 0)
    );
}

#[test]
fn a_full_queue_waits_for_the_card() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    for number in 0..64u32 {
        remote.write(0, &number.to_le_bytes()).post().unwrap();
    }
    assert_eq!(port.stats().queue_full, 0);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let taken = std::sync::Arc::clone(&seen);
    card.relax_with(move |card| {
        assert_eq!(card.block.get(TAKEN_FENCE), 32);
        taken.lock().unwrap().extend(card.take());
    });
    remote.write(0, &[7; 4]).post().unwrap();
    assert_eq!(port.stats().queue_full, 1);
    assert_eq!(card.block.get(DOORBELL), 65);
    assert_eq!(seen.lock().unwrap().len(), 64);
    assert_eq!(card.take().len(), 1);
    card.leave_alone();
}

#[test]
fn a_fence_asks_for_the_exact_count_and_lets_sources_go() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let region = port.alloc(4096).unwrap();
    for _ in 0..5 {
        remote.write(0, &region).post().unwrap();
    }
    drop(region);
    assert_eq!(card.freed.load(Ordering::Relaxed), 0, "in flight");
    card.relax_with(|card| {
        assert_eq!(card.block.get(WRITE_FENCE), 5);
        card.carry_out(Status::Ok);
    });
    port.flush_writes().unwrap();
    assert_eq!(card.area.get(WRITES_DONE), 5);
    assert_eq!(card.freed.load(Ordering::Relaxed), 1, "done");
}

#[test]
fn regions_in_flight_come_back_without_a_fence_too() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    for round in 0..100 {
        let region = port.alloc(4096).unwrap();
        remote.write(0, &region).post().unwrap();
        card.carry_out(Status::Ok);
        drop(region);
        assert!(card.freed.load(Ordering::Relaxed) + 2 > round);
    }
    drop(port);
    assert_eq!(card.freed.load(Ordering::Relaxed), 100);
}

#[test]
fn the_doorbell_is_called_only_when_the_card_sleeps() {
    let card = Card::new();
    let (_port, remote, _) = card.open(PortConfig::default());
    remote.write(0, &[1]).post().unwrap();
    assert_eq!(card.doorbells.load(Ordering::Relaxed), 0);
    card.status.set(status_page::SLEEPING, 1);
    remote.write(0, &[1]).post().unwrap();
    assert_eq!(card.doorbells.load(Ordering::Relaxed), 1);
}

#[test]
fn the_doorbell_is_called_for_writes_with_what_follows_them() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    let region = port.alloc(4096).unwrap();
    card.status.set(status_page::SLEEPING, 1);
    let doorbells = || card.doorbells.load(Ordering::Relaxed);
    remote.write(0, &[1]).more().post().unwrap();
    let slice = region.slice(0..1024).unwrap();
    remote.write(1024, slice).more().try_post().unwrap();
    port.write_vector()
        .piece(&remote, 16, &[1])
        .more()
        .post()
        .unwrap();
    assert_eq!(doorbells(), 0);
    assert_eq!(card.block.get(DOORBELL), 3, "they are posted all the same");
    remote.write(24, &[1]).post().unwrap();
    assert_eq!(doorbells(), 1, "the next one calls");
    remote.write(0, &[1]).more().post().unwrap();
    port.progress();
    assert_eq!(doorbells(), 2, "so does a word from the program");
    for _ in 0..59 {
        remote.write(0, &[1]).more().try_post().unwrap();
    }
    assert_eq!(doorbells(), 2);
    remote.write(0, &[1]).more().try_post().unwrap_err();
    assert_eq!(doorbells(), 3, "so does one that finds no room");
    card.carry_out(Status::Ok);
    remote.write(0, &[1]).more().fenced().post().unwrap();
    let before = doorbells();
    assert!(before > 3, "and so does a wait for its end");
    let waits: [&dyn Fn(); 4] = [
        &|| assert!(port.notification(5).unwrap().wait(Timeout::Now).is_err()),
        &|| assert!(port.notification(5).unwrap().spin(Timeout::Now).is_err()),
        &|| assert!(port.notifications().wait(Timeout::Now).is_err()),
        &|| {
            let signal = port.notification(5).unwrap();
            let ready = pin!(signal.ready());
            let _ = ready.poll(&mut Context::from_waker(Waker::noop()));
        },
    ];
    for (number, wait) in waits.into_iter().enumerate() {
        remote.write(0, &[1]).more().post().unwrap();
        let before = doorbells();
        wait();
        assert_eq!(
            doorbells(),
            before + 1,
            "wait {number} for what the other side does"
        );
    }
}

#[test]
fn a_port_that_ends_ends_every_wait() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    remote.write(0, &[1]).post().unwrap();
    card.relax_with(|card| card.area.set(PORT_STATE, u32::from(Status::CardGone.code())));
    let ended = Err(Error::PortEnded {
        status: Status::CardGone,
    });
    assert_eq!(port.flush(), ended);
    assert_eq!(port.flush_remote(NodeId(1)), ended);
    assert_eq!(remote.write(0, &[1]).post().map(drop), ended);
    assert_eq!(remote.read(0, &mut [0; 8]).call().map(drop), ended);
    assert_eq!(
        port.notification(1)
            .unwrap()
            .wait(netvm::Timeout::Never)
            .map(drop),
        ended
    );
    assert_eq!(port.notifications().wait(netvm::Timeout::Never).map(drop), ended);
    assert_eq!(port.block_on(port.notifications().next()).map(drop), ended);
    assert_eq!(port.alloc(1).map(drop), ended);
    drop(port);
    assert_eq!(remote.write(0, &[1]).post().map(drop), Err(Error::PortClosed));
}

#[test]
fn a_card_that_is_gone_reads_as_all_ones_and_does_no_harm() {
    let card = Card::new();
    let (port, remote, _) = card.open(PortConfig::default());
    for at in 0..4096 {
        let at = netvm_abi::WordIndex(at);
        if at != PORT_STATE {
            card.area.set(at, u32::MAX);
        }
    }
    remote.write(0, &[1]).post().unwrap();
    assert_eq!(port.notifications().pop(), None);
    assert!(port.notification(1).unwrap().pending() > 0);
    card.area.set(PORT_STATE, u32::from(Status::CardGone.code()));
    assert!(port.flush_remote(NodeId(1)).is_err());
}
