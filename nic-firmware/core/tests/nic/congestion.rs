//! A way that is slow gets fewer messages, and what waits for it keeps nothing else waiting.

use netvm_abi::capability::Capability;
use netvm_abi::descriptor::Command;
use netvm_abi::*;
use netvm_kit::nic::*;

const SHORT: Nanos = Nanos::from_micros(10);
const LONG: Nanos = Nanos::from_micros(300);

#[test]
fn a_slow_way_gets_one_message_at_a_time_and_a_free_one_all_of_them() {
    let mut slow = Slow::new(2);
    slow.fill();
    assert_eq!(slow.on_wire(), 16, "a link begins with these");
    slow.round(SHORT);
    assert_eq!(slow.cuts(), 0);
    for _ in 0..20 {
        slow.fill();
        slow.round(LONG);
    }
    slow.fill();
    assert_eq!(slow.on_wire(), 1);
    assert!(slow.cuts() >= 4);
    let cuts = slow.cuts();
    // A message more each round, up to a port's share of the window.
    let mut most = 0;
    for _ in 0..80 {
        slow.round(SHORT);
        slow.fill();
        most = most.max(slow.on_wire());
    }
    assert_eq!((most, slow.cuts()), (32, cuts));
    let written = slow.posted;
    for _ in 0..200 {
        slow.round(SHORT);
    }
    let counters = slow.world.nodes[0].counters();
    assert_eq!((counters.messages_sent, counters.links_lost), (written.into(), 0));
    let end = slow.world.nodes[1].memory(1, 0x10000 + u64::from((written - 1) % 512) * 8, 8);
    assert_eq!(end, u64::from(written - 1).to_le_bytes());
}

#[test]
fn what_waits_for_a_slow_way_keeps_no_other_port_waiting() {
    let mut slow = Slow::new(3);
    slow.world.nodes[0].open(2, 7);
    let grant = Capability {
        holder_port: PortId(2),
        ..capability(0)
    };
    slow.world.nodes[2].grant(4, &grant);
    slow.fill();
    assert_eq!(slow.on_wire(), 16);
    for op in 1..=100u32 {
        let other = Command {
            node: NodeId(2),
            capability: CapabilitySlot(4),
            ..inline(op, 0x10000 + u64::from(op) * 8, 8)
        };
        assert!(slow.world.nodes[0].post(2, &other, &u64::from(op).to_le_bytes()));
        slow.world.pass(Nanos::from_micros(20));
    }
    let last = slow.world.nodes[2].memory(1, 0x10000 + 800, 8);
    assert_eq!(last, 100u64.to_le_bytes());
}

#[test]
fn what_waits_for_a_way_that_is_lost_ends() {
    let mut slow = Slow::new(2);
    slow.fill();
    let posted = slow.posted;
    assert_eq!(slow.on_wire(), 16);
    slow.world.pass(Nanos::from_millis(60_000));
    let counters = slow.world.nodes[0].counters();
    assert_eq!(counters.links_lost, 1);
    assert_eq!(counters.messages_sent, 16);
    assert_eq!(counters.commands_failed, u64::from(posted) - 16);
    let error = slow.world.nodes[0].error(1).expect("a record");
    assert_eq!(error.status, Status::LinkLost);
}
