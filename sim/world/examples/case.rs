//! Plays one body of the conformance suite alone, with many seeds, with benign faults or with all:
//! `case NAME FIRST COUNT [all] [trace]`.

use netvm_conformance::ALL;
use netvm_world::{Config, FaultLevel, Lines, NoTrace, run_conformance};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: u64| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(or);
    let case = ALL
        .iter()
        .find(|case| Some(case.name) == args.first().map(String::as_str));
    let Some(case) = case else {
        let names: Vec<_> = ALL.iter().map(|case| case.name).collect();
        eprintln!(
            "usage: case NAME FIRST COUNT [all] [trace], with one of {}",
            names.join(" ")
        );
        std::process::exit(2);
    };
    let (first, count) = (number(1, 1), number(2, 1));
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let config = Config {
        faults: if has("all") {
            FaultLevel::All
        } else {
            FaultLevel::Benign
        },
        ..Config::default()
    };
    let mut failed = 0;
    for seed in first..first + count {
        let result = if has("trace") {
            run_conformance(case, seed, &config, &mut Lines(|line: &str| println!("{line}")))
        } else {
            run_conformance(case, seed, &config, &mut NoTrace)
        };
        if let Err(failure) = result {
            failed += 1;
            println!("seed {seed}: {}", failure.what);
        }
    }
    println!("{failed} of {count} failed");
    std::process::exit(i32::from(failed > 0));
}
