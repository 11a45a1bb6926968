//! The conformance suite on the simulator: without faults, and with those that no correct program
//! notices. Some bodies alone: `NETVM_CASE=dead_holder,ping_pong`.

use netvm_conformance::ALL;
use netvm_kit::length::is_whole;
use netvm_world::{Config, FaultLevel, NoTrace, run_conformance};

fn suite(faults: FaultLevel, seeds: std::ops::Range<u64>) {
    let mut failed = Vec::new();
    let wanted = std::env::var("NETVM_CASE").unwrap_or_default();
    let wanted: Vec<&str> = wanted.split(',').filter(|name| !name.is_empty()).collect();
    for case in ALL
        .iter()
        .filter(|case| wanted.is_empty() || wanted.contains(&case.name))
    {
        for seed in seeds.clone() {
            if let Err(failure) = run_conformance(
                case,
                seed,
                &Config {
                    faults,
                    ..Config::default()
                },
                &mut NoTrace,
            ) {
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
    suite(FaultLevel::Off, 1..3);
}

#[test]
fn every_body_passes_with_benign_faults() {
    suite(FaultLevel::Benign, 1..if is_whole() { 17 } else { 2 });
}
