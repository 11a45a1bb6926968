//! Writes: inline and staged, straight to the page and through the bounce page, with notification.

mod common;
use common::*;
use netvm_abi::port_area;

#[test]
fn a_staged_write_with_a_notification_lands_and_is_acknowledged() {
    let mut world = World::connected(2, 0);
    world.nodes[1].grant(3, &capability(0));
    let source = world.nodes[0].map(1, 0x5000, 9, false);
    let target = world.nodes[1].map(1, 0x12000, 5, true);
    world.nodes[0].board.pages.get_mut(&source).unwrap()[100..1100].fill(0xA7);
    let command = notify(write(1, 0x12010, 0x5064, 1000), 17);
    assert!(world.nodes[0].post(1, &command, &[]));
    world.run();
    let page = &world.nodes[1].board.pages[&target];
    assert!(page[0x10..0x10 + 1000].iter().all(|&b| b == 0xA7));
    assert!(page[..0x10].iter().chain(&page[0x10 + 1000..]).all(|&b| b == 0));
    assert_eq!(world.nodes[1].signals(1, 17), 1);
    assert_eq!(world.nodes[1].area_word(1, port_area::NOTIFICATION_WRITE), 1);
    world.pass(netvm_abi::Nanos::from_millis(1));
    let counters = world.nodes[0].nic.counters();
    assert_eq!(counters.staged_sent, 1);
    assert!(counters.acks_received > 0);
    assert_eq!(world.nodes[1].nic.counters().zero_copy, 1);
}
