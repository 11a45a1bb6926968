//! Acceptance of promise P5: ten million random and mutated descriptors and frames against the NIC core: no panic, no DMA
//! outside of what is allowed, books that balance. Deterministic: a failure prints its seed and how to run it alone.
//!
//! `NETVM_CASES` sets the number of cases, `NETVM_SEED` runs one seed alone.

use netvm_faults::Attack;
use netvm_kit::length::is_whole;
use std::time::Instant;

/// Cases of one seed: after so many the books are balanced, everything is released, and a new NIC begins.
const CASES_PER_SEED: u64 = 50_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let digits = text.replace('_', "");
    Some(
        digits
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

fn attack(seed: u64, cases: u64) -> Attack {
    let mut attack = Attack::new(seed);
    for quarter in 1..=4 {
        attack.run(cases * quarter / 4);
        attack.stand.quiesce();
    }
    attack
}

/// Runs a seed; says which, if it fails.
fn run(seed: u64) -> Attack {
    std::panic::catch_unwind(|| attack(seed, CASES_PER_SEED)).unwrap_or_else(|cause| {
        eprintln!("seed {seed} failed; alone: NETVM_SEED={seed} cargo test --release -p netvm-faults");
        std::panic::resume_unwind(cause)
    })
}

#[test]
fn ten_million_cases() {
    if let Some(seed) = number("NETVM_SEED") {
        println!("{:#?}", run(seed).stand.nic.counters());
        return;
    }
    // An unoptimised build makes fewer, so that it ends.
    let default = if is_whole() { 10_000_000 } else { 200_000 };
    let seeds = number("NETVM_CASES").unwrap_or(default).div_ceil(CASES_PER_SEED);
    let begun = Instant::now();
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get().min(4) as u64);
    let mut sums: Vec<(&str, u64)> = Vec::new();
    let mut made = [0; 7];
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..workers)
            .map(|worker| {
                scope.spawn(move || {
                    let mut sums = Vec::new();
                    let mut made = [0_u64; 7];
                    for seed in (worker..seeds).step_by(workers as usize) {
                        let attack = run(seed);
                        add(&mut sums, attack.stand.nic.counters().iter());
                        let m = attack.made;
                        let these = [
                            m.descriptors,
                            m.random_descriptors,
                            m.lying_descriptors,
                            m.frames,
                            m.random_frames,
                            m.broken_doorbells,
                            m.late_dmas,
                        ];
                        for (sum, value) in made.iter_mut().zip(these) {
                            *sum += value;
                        }
                    }
                    (sums, made)
                })
            })
            .collect();
        for part in parts {
            let (these, made_here) = part.join().expect("a worker failed; its seed is printed above");
            add(&mut sums, these.into_iter());
            for (sum, value) in made.iter_mut().zip(made_here) {
                *sum += value;
            }
        }
    });
    let cases: u64 = made[..5].iter().sum();
    let [near, random, lying, frames, bytes, doorbells, late] = made;
    println!(
        "{cases} cases in {:.0} s: descriptors {near} near the truth, {random} random, {lying} in lying memory; \
         frames {frames} near the truth, {bytes} random; {doorbells} broken doorbells, {late} late DMA ends",
        begun.elapsed().as_secs_f64()
    );
    for (name, value) in &sums {
        println!("{name:28} {value}");
    }
    // An attack that never got anywhere proves nothing.
    // The wire of this stand says that it loses nothing, so nothing is kept.
    let lossless = [
        "retransmitted",
        "tail_probes",
        "put_off",
        "answers_unkept",
        "windows_cut",
        // There are as many windows as nodes.
        "window_stalls",
        "windows_refused",
        "windows_moved",
        "windows_called",
    ];
    let never = ["events_lost", "host_events_refused"];
    let silent: Vec<_> = sums
        .iter()
        .filter(|(name, value)| *value == 0 && !never.contains(name) && !lossless.contains(name))
        .collect();
    assert!(
        cases < 1_000_000 || silent.is_empty(),
        "never happened: {silent:?}"
    );
}

fn add<'a>(sums: &mut Vec<(&'a str, u64)>, values: impl Iterator<Item = (&'a str, u64)>) {
    for (at, (name, value)) in values.enumerate() {
        match sums.get_mut(at) {
            Some(sum) => sum.1 += value,
            None => sums.push((name, value)),
        }
    }
}
