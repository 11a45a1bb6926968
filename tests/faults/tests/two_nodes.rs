//! Hostile bytes between two whole nodes (promise P5): a million descriptors, frames, host words and changing memory.
//! Nothing panics, no DMA leaves a mapped page (the board asserts it), no buffer is lost, and the counters
//! add up. `hostile.rs` goes on from here to ten million, against books of its own.

use netvm_abi::bar::{BarMap, port as bar_port};
use netvm_abi::wire::{HEADER_BYTES, Header, Kind, MessageFlags};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_kit::Lie;
use netvm_kit::nic::*;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn victim(seed: u64) -> World {
    let mut world = World::connected(2, seed);
    world.hosts = true;
    world.nodes[1].grant(3, &capability(0));
    world.nodes[0].grant(3, &capability(1));
    for node in &mut world.nodes {
        node.map(1, 0x12000, 5, true);
        node.map(1, 0x13000, 5, false);
        node.map(1, 0x14000, 6, true);
    }
    world
}

/// A descriptor that is mostly plausible.
fn descriptor(rng: &mut ChaCha8Rng) -> [u32; 16] {
    let mut command = write(
        rng.random(),
        0x12000 + u64::from(rng.random::<u32>() % 0x3000),
        0x12000 + u64::from(rng.random::<u32>() % 0x3000),
        rng.random::<u32>() % 4200,
    );
    command.notification.0 = rng.random::<u32>() % 2000;
    command.epoch.0 = rng.random::<u16>() % 3;
    command.reply.0 = rng.random::<u16>() % 80;
    command.node.0 = rng.random::<u16>() % 3;
    let mut words = command.encode();
    words[0] = words[0] & !0xFFFF | u32::from([1u16, 1, 2, 3, 16, 17][rng.random_range(0..6)]);
    words[0] |= u32::from(rng.random::<u8>() & 3) << 8;
    if rng.random_bool(0.5) {
        let at = rng.random_range(0..16);
        words[at] ^= 1 << rng.random_range(0..32);
    }
    if rng.random_bool(0.02) {
        for word in &mut words {
            *word = rng.next_u32();
        }
    }
    words
}

/// A message that is mostly plausible for the present life of the link.
fn message(rng: &mut ChaCha8Rng, good: &Header) -> Vec<u8> {
    let kinds = Kind::ALL;
    let mut header = *good;
    header.kind = kinds[rng.random_range(0..kinds.len())];
    if matches!(header.kind, Kind::Hello | Kind::Bye) && rng.random_bool(0.95) {
        header.kind = Kind::Write;
    }
    match rng.random_range(0..4) {
        0 => header.kind = Kind::Write,
        1 => header.kind = Kind::ReadRequest,
        _ => {}
    }
    header.flags = MessageFlags::from_bits_truncate(rng.random());
    header.seq.0 = good.seq.0.wrapping_add(rng.random::<u32>() % 80).wrapping_sub(8);
    header.source_port.0 = rng.random::<u16>() % 3;
    header.destination_port.0 = rng.random::<u16>() % 3;
    if rng.random_bool(0.7) {
        header.source_port.0 = 1;
        header.destination_port.0 = 1;
    }
    header.capability.0 = 3;
    header.secret = 0x1234_5678_9ABC_DEF0;
    header.address.0 = 0x12000 + u64::from(rng.random::<u32>() % 0x3000);
    header.notification.0 = rng.random::<u32>() % 2000;
    header.epoch.0 = rng.random::<u16>() % 3;
    header.len = match header.kind {
        Kind::Write => rng.random::<u16>() % 300,
        _ => 0,
    };
    header.raw.operand = u64::from(rng.random::<u32>() % 8) | (u64::from(rng.random::<u32>() % 64) << 32);
    header.raw.compare = u64::from(rng.random::<u32>() % 512);
    if rng.random_bool(0.05) {
        header.len = 128;
        header.kind = Kind::Control;
        header.source_port.0 = 0;
        header.destination_port.0 = 0;
    }
    let mut bytes = header.encode().to_vec();
    bytes.resize(HEADER_BYTES + usize::from(header.len), 0xEE);
    match rng.random_range(0..20) {
        0..6 => {
            let at = rng.random_range(0..HEADER_BYTES);
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        6 => bytes.truncate(rng.random_range(0..bytes.len())),
        7 => rng.fill_bytes(&mut bytes[..HEADER_BYTES]),
        _ => {}
    }
    bytes
}

/// Ends or fails DMAs in any order, repeats completions, tells of sent buffers.
fn happen(world: &mut World, rng: &mut ChaCha8Rng, node: usize) {
    let now = world.now;
    while let Some(at) = pick(rng, world.nodes[node].board.dmas.len()) {
        let (id, _) = world.nodes[node].board.dmas[at];
        world.nodes[node].end_dma(now, at, rng.random_bool(0.98));
        if rng.random_bool(0.1) {
            let Node { nic, board, .. } = &mut world.nodes[node];
            nic.handle_dma_done(board, now, id, true);
        }
        if rng.random_bool(0.3) {
            break;
        }
    }
}

fn pick(rng: &mut ChaCha8Rng, len: usize) -> Option<usize> {
    (len > 0).then(|| rng.random_range(0..len))
}

/// What must hold of the counters whatever came in.
fn add_up(world: &World) {
    for node in &world.nodes {
        let c = node.counters();
        assert_eq!(c.retransmitted, 0);
        assert_eq!(c.events_lost, 0);
        let unwindowed = c.acks_received
            + c.errors_received
            + c.read_replies
            + c.flush_replies
            + c.atomic_replies
            + c.late_replies
            + c.probes_received;
        let refused = c.malformed + c.greetings + c.stale_incarnation + c.duplicates + c.out_of_window;
        assert_eq!(c.frames, refused + unwindowed + c.messages_received, "frames");
        assert_eq!(
            c.messages_received,
            c.messages_landed + c.messages_failed + c.dropped,
            "messages"
        );
        assert_eq!(
            c.commands,
            c.messages_sent - c.control_sent + c.commands_failed + c.commands_held,
            "commands"
        );
        assert!(
            c.notifications_coalesced <= c.notifications_delivered,
            "coalesced ones are delivered ones"
        );
        let bounced = c.bounced_not_found + c.bounced_read_only + c.bounced_segment + c.control_received;
        assert!(c.bounces_ended <= bounced);
        assert!(c.dma_started >= c.zero_copy + bounced);
        assert!(node.board.receive.is_empty(), "a receive buffer is lost");
    }
}

fn end(mut world: World) {
    world.shuffle = true;
    world.run();
    world.pass(Nanos::from_millis(3000));
    for node in &mut world.nodes {
        assert_eq!(node.nic.dmas_in_flight(), 0);
        let vpns: Vec<u64> = node.slots.keys().copied().collect();
        for raw in vpns {
            let vpn = Vpn::from_raw(raw);
            assert!(
                node.unmap(vpn.port().0, vpn.address().0),
                "a lock is left behind on {vpn}"
            );
        }
    }
    add_up(&world);
}

#[test]
fn hostile_descriptors() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut world = victim(77);
    let map = BarMap::new(&world.nodes[0].board.geometry);
    let mut posted = 0u32;
    let mut total = 0;
    while total < 500_000 {
        world.now.0 += 500;
        let block = map.port(PortId(1));
        let batch = rng.random_range(1..=16);
        for _ in 0..batch {
            let at = block.plus(bar_port::COMMANDS.0 + (posted % 64) * 48);
            let words = descriptor(&mut rng);
            world.nodes[0].board.bar.store_slice(at, &words);
            posted = posted.wrapping_add(1);
        }
        total += batch;
        world.nodes[0].board.bar.store_release(block, posted);
        if rng.random_bool(0.01) {
            // A doorbell that lies; then the truth again.
            world.nodes[0].board.bar.store_release(block, rng.next_u32());
            world.nodes[0].poll(world.now);
            world.nodes[0].board.bar.store_release(block, posted);
        }
        for word in [1u32, 2, 3, 4, 5, 6, 40] {
            if rng.random_bool(0.02) {
                world.nodes[0]
                    .board
                    .bar
                    .store_release(block.plus(word), rng.next_u32());
            }
        }
        for _ in 0..2000 {
            let taken = world.nodes[0].area_word(1, netvm_abi::port_area::TAKEN);
            if posted.wrapping_sub(taken) <= 48 {
                break;
            }
            for node in 0..2 {
                happen(&mut world, &mut rng, node);
            }
            if !world.step() {
                world.pass(Nanos::from_millis(1));
            }
            while world.nodes[0].error(1).is_some() {}
        }
    }
    world.nodes[1].deliver_bytes(world.now, &[1, 2, 3]);
    let counters = world.nodes[0].counters();
    assert!(counters.commands > 400_000, "{}", counters.commands);
    assert!(counters.commands_refused > 1000);
    assert!(counters.broken_doorbells > 0);
    assert!(counters.messages_sent > 10_000, "{}", counters.messages_sent);
    end(world);
}

#[test]
fn hostile_frames() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut world = victim(78);
    let mut good = None;
    for _ in 0..100_000 {
        if world.wire.is_empty() {
            let command = notify(inline(1, 0x12000, 8), 3);
            world.nodes[0].post(1, &command, &[1; 8]);
            world.nodes[0].poll(world.now);
            world.wire.extend(world.nodes[0].board.outbox.drain(..));
        }
        // The forger sees everything: what goes to the victim, and what the victim acknowledges.
        for header in world.wire.iter().map(|message| message.header) {
            if header.destination == NodeId(1) {
                good = Some(header);
            }
        }
        for header in world.nodes[1].board.outbox.iter().map(|message| message.header) {
            if let (Some(good), Kind::Ack) = (&mut good, header.kind) {
                good.seq = header.seq;
                good.source_incarnation = header.destination_incarnation;
                good.destination_incarnation = header.source_incarnation;
            }
        }
        for _ in 0..5 {
            world.now.0 += 100;
            if let Some(good) = &good {
                let bytes = message(&mut rng, good);
                world.nodes[1].deliver_bytes(world.now, &bytes);
            }
        }
        happen(&mut world, &mut rng, 1);
        let written = world.nodes[1].area_word(1, netvm_abi::port_area::NOTIFICATION_WRITE);
        if rng.random_bool(0.01) {
            world.nodes[1].set_bar_word(1, bar_port::NOTIFICATION_READ, written);
        }
        world.nodes[1].serve_host();
        if rng.random_bool(0.3) {
            world.run();
            world.pass(Nanos::from_millis(1));
            let down = world.nodes[0].counters().links_up == world.nodes[0].counters().links_lost;
            if down {
                world.pass(Nanos::from_millis(100));
            }
        }
        while world.nodes[1].error(1).is_some() || world.nodes[0].error(1).is_some() {}
    }
    let counters = world.nodes[1].counters();
    assert!(counters.frames > 400_000, "{}", counters.frames);
    assert!(counters.malformed > 1000);
    assert!(
        counters.messages_received > 10_000,
        "{}",
        counters.messages_received
    );
    for (name, value) in counters.iter() {
        let wanted = [
            "zero_copy",
            "reads_served",
            "one_shot_delivered",
            "bounces_ended",
            "ordered_parked",
        ];
        assert!(!wanted.contains(&name) || value > 100, "{name}: {value}");
    }
    world.nodes[0].deliver_bytes(world.now, &[0; 100]);
    end(world);
}

#[test]
fn descriptor_memory_that_changes_between_loads() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut world = victim(79);
    let map = BarMap::new(&world.nodes[0].board.geometry);
    let block = map.port(PortId(1));
    let commands = block.plus(bar_port::COMMANDS.0).0;
    let lie = Lie::new(commands..commands + 64 * 48, Vec::new(), 0x1234_5678);
    world.nodes[0].board.bar.hook(lie.always());
    let mut posted = 0u32;
    for _ in 0..20_000 {
        for _ in 0..4 {
            let at = block.plus(bar_port::COMMANDS.0 + (posted % 64) * 48);
            let words = descriptor(&mut rng);
            world.nodes[0].board.bar.store_slice(at, &words);
            posted = posted.wrapping_add(1);
        }
        world.nodes[0].board.bar.store_release(block, posted);
        for _ in 0..2000 {
            let taken = world.nodes[0].area_word(1, netvm_abi::port_area::TAKEN);
            if posted.wrapping_sub(taken) <= 48 {
                break;
            }
            if !world.step() {
                world.pass(Nanos::from_millis(1));
            }
            while world.nodes[0].error(1).is_some() {}
        }
    }
    world.nodes[0].board.bar.unhook();
    assert!(world.nodes[0].counters().commands > 70_000);
    world.nodes[1].deliver_bytes(world.now, &[1, 2, 3]);
    end(world);
}
