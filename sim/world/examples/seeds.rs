//! Plays seeds and prints what came of them: `seeds FIRST COUNT [NODES] [trace|benign]`.

use netvm_world::faults::Coverage;
use netvm_world::{Bodies, Config, FaultLevel, Lines, NoTrace, run_seed};
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: u64| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(or);
    let (first, count, nodes) = (number(0, 1), number(1, 1), number(2, 4) as u16);
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let faults = match (has("benign"), has("calm")) {
        (true, _) => FaultLevel::Benign,
        (_, true) => FaultLevel::Off,
        _ => FaultLevel::All,
    };
    let config = Config {
        nodes,
        faults,
        ..Config::default()
    };
    let mut coverage = Coverage::default();
    let mut bodies = Bodies::default();
    let mut failed = 0;
    for seed in first..first + count {
        let began = Instant::now();
        let result = if has("trace") {
            run_seed(seed, &config, &mut Lines(|line: &str| println!("{line}")))
        } else {
            run_seed(seed, &config, &mut NoTrace)
        };
        match result {
            Ok(report) => {
                bodies.add(&report.bodies);
                coverage.add(&report.coverage);
                println!(
                    "seed {seed}: {} messages, {} events, {} us virtual, {:?}",
                    report.messages,
                    report.events,
                    report.virtual_nanos / 1_000,
                    began.elapsed()
                );
                if has("counters") {
                    for (name, value) in &report.counters {
                        println!("  {name} {value}");
                    }
                }
            }
            Err(failure) => {
                failed += 1;
                println!("{failure}\n");
            }
        }
    }
    println!("{}", coverage.table());
    println!("{}", bodies.table());
    println!(
        "{failed} of {count} failed; never fired: {:?}; rare: {:?}",
        coverage.never_fired(),
        bodies.rare()
    );
    std::process::exit(i32::from(failed > 0));
}
