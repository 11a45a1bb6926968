//! A leader of an asymmetric lock sleeps as a leader, however long it slept in its queue: seen by how often each of
//! many that contend for one lock has it.

use netvm_abi::Nanos;
use netvm_bench_sync::locality::{Kind, Setting, measure};
use netvm_world::timing::CostModel;

/// Acquisitions in a while, with `local_percent` of a hundred processes at the lock's home.
fn acquisitions(kind: Kind, local_percent: u32) -> u64 {
    let setting = Setting {
        kind,
        nodes: 6,
        locks: 1,
        local_percent,
    };
    let span = Nanos::from_millis(4);
    let point = measure(&CostModel::committed().expect("counts"), setting, span).expect("a lock");
    println!(
        "{}, {local_percent} % local: {} acquisitions",
        kind.label(),
        point.acquisitions
    );
    point.acquisitions
}

#[test]
fn a_leader_does_not_sleep_as_long_as_in_the_queue() {
    // One process at home, the others elsewhere, and the other way around: each leader has waited for many.
    for local_percent in [25, 50, 75] {
        let (asymmetric, mcs) = (
            acquisitions(Kind::Asymmetric, local_percent),
            acquisitions(Kind::Mcs, local_percent),
        );
        assert!(2 * asymmetric > mcs, "{asymmetric} to {mcs} at {local_percent} %");
    }
}
