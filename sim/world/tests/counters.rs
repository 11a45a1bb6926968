//! A report has every counter that there is: a new one needs no mention here. (Each core has a test that drives each of
//! its own above zero, and fails for one that it does not know.)

use netvm_world::{Config, NoTrace, run_seed};
use std::collections::BTreeSet;

/// What the simulated kernel counts.
const KERNEL: [&str; 2] = ["host_evictions", "host_written_back"];
/// What the run itself counts: operations of programs whose histories were judged, and histories whose search took too long.
const JUDGED: [&str; 7] = [
    "histories_undecided",
    "judged_channel_operations",
    "judged_lock_operations",
    "judged_semaphore_operations",
    "judged_shared_queue_operations",
    "judged_wait_queue_operations",
    "judged_word_operations",
];

#[test]
fn a_report_has_every_counter_of_both_cores() {
    let config = Config {
        messages: 500,
        ..Config::default()
    };
    let report = run_seed(1, &config, &mut NoTrace).expect("a good run");
    let found: BTreeSet<&str> = report.counters.keys().map(String::as_str).collect();
    let host: Vec<String> = netvm_host::counters::Counters::NAMES
        .iter()
        .map(|name| format!("host_{name}"))
        .collect();
    let expected: BTreeSet<&str> = netvm_nic::Counters::NAMES
        .iter()
        .copied()
        .chain(host.iter().map(String::as_str))
        .chain(KERNEL)
        .chain(JUDGED)
        .collect();
    assert_eq!(found, expected);
    assert_eq!(report.counters["histories_undecided"], 0);
    // The figures are the cores', not zeroes under their names.
    for name in [
        "messages_sent",
        "zero_copy",
        "bounced_not_found",
        "host_bounced",
        "host_pages_mapped",
        "host_evictions",
        "host_written_back",
        "judged_channel_operations",
        "judged_lock_operations",
        "judged_semaphore_operations",
        "judged_shared_queue_operations",
        "judged_wait_queue_operations",
        "judged_word_operations",
    ] {
        assert!(report.counters[name] > 0, "{name}: {:?}", report.counters);
    }
}
