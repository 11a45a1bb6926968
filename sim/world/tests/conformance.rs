//! The conformance suite on the simulator: without faults, and with those that no correct program
//! notices. Some bodies alone: `NETVM_CASE=dead_holder,ping_pong`.

use netvm_conformance::{ALL, Case};
use netvm_kit::length::{is_long, is_whole};
use netvm_world::{Config, FaultLevel, NoTrace, run_conformance};

fn suite(config: &Config, seeds: std::ops::Range<u64>) {
    suite_of(|_| true, config, seeds);
}

fn suite_of(chosen: impl Fn(&Case) -> bool, config: &Config, seeds: std::ops::Range<u64>) {
    let mut failed = Vec::new();
    let wanted = std::env::var("NETVM_CASE").unwrap_or_default();
    let wanted: Vec<&str> = wanted.split(',').filter(|name| !name.is_empty()).collect();
    for case in ALL
        .iter()
        .filter(|case| chosen(case) && (wanted.is_empty() || wanted.contains(&case.name)))
    {
        for seed in seeds.clone() {
            if let Err(failure) = run_conformance(case, seed, config, &mut NoTrace) {
                failed.push(format!("{} with seed {seed}: {}", case.name, failure.what));
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} failures:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

#[test]
fn every_body_passes_without_faults() {
    let config = Config {
        faults: FaultLevel::Off,
        ..Config::default()
    };
    suite(&config, 1..3);
}

#[test]
fn every_body_passes_with_benign_faults() {
    let config = Config {
        faults: FaultLevel::Benign,
        ..Config::default()
    };
    suite(&config, 1..if is_whole() { 17 } else { 2 });
}

/// What keeps time of its own looks at its peer, doubts, and says things again, while what it waits for is under way.
#[test]
fn bodies_that_keep_time_pass_far_away() {
    let keeps_time = |case: &Case| matches!(case.idiom(), "calls" | "connections" | "leases");
    let config = Config {
        faults: FaultLevel::Benign,
        ..Config::far()
    };
    suite_of(
        |case| is_long() || keeps_time(case),
        &config,
        1..if is_long() { 17 } else { 3 },
    );
}
