//! P7: what a body does costs the cores the same among hundreds of ports, large tables and many nodes as in a small world.

use netvm_conformance::ALL;
use netvm_world::{CoreStep, wide};
use std::collections::BTreeMap;

/// Bodies that together use writes, reads, notifications, appends and locks, on memory that is evicted now and then.
const BODIES: [&str; 5] = [
    "bulk_write",
    "bulk_read",
    "scattered_then_notify",
    "shared_posted",
    "contended_lock",
];

/// The longest step of each kind in the worlds of all bodies and of so many seeds.
fn longest(seeds: u64, nodes: u16, idle: u16) -> BTreeMap<CoreStep, u32> {
    let mut longest = BTreeMap::new();
    let worlds = BODIES
        .iter()
        .flat_map(|name| (1..=seeds).map(move |seed| (name, seed)));
    for (name, seed) in worlds {
        let case = ALL.iter().find(|case| case.name == *name).expect("a body");
        let report = wide::run(case, seed, nodes, idle).unwrap_or_else(|failure| panic!("{name}: {failure}"));
        for (step, work) in report.longest {
            let most: &mut u32 = longest.entry(step).or_default();
            *most = work.max(*most);
        }
    }
    longest
}

#[test]
fn the_longest_steps_do_not_grow_with_ports_and_nodes() {
    // One small world may have no long step of some kind: of four frames in a row that each acknowledge much, say.
    let small = longest(4, 4, 0);
    println!("small: {small:?}");
    for (nodes, idle) in [(4, 200), (40, 200)] {
        let wide = longest(1, nodes, idle);
        println!("{nodes} nodes, {idle} idle ports: {wide:?}");
        for (step, work) in wide {
            // Other worlds have other schedules: twice as much may be met in one, and a second look has a budget.
            let most = (2 * small[&step]).max(64);
            assert!(
                work <= most,
                "{nodes} nodes, {idle} idle ports: {step:?} takes {work}, and in a small world {}",
                small[&step]
            );
        }
    }
}
