//! Every option of the library with every other, by generation: a random sequence of operations runs through library,
//! cards and drivers, and through a model that is a vector of bytes and some queues. Both must agree on answers, memory,
//! statuses, notifications and messages.
//!
//! One thread does everything in order. So the model needs no schedules: what may overtake one another never touches the
//! same bytes, because the stand settles before such an operation, unless it is ordered. More sequences:
//! `PROPTEST_CASES=2000 cargo test --release -p netvm-emulator --test crossed`.

mod model;
mod op;
mod stand;

use netvm::Nanos;
use netvm_emulator::{Builder, DmaMode, Emulator, NicMode};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use stand::Cluster;

/// Sequences in each mode, unless the environment says otherwise.
const CASES: u32 = 150;

/// Plays sequences on a cluster of this kind. Gives the first on which they disagree, made short.
fn cross(builder: Builder, resident: u32, seed: u64, shrink: u32) -> Result<(), String> {
    let cluster = Cluster::start(builder, resident);
    let default = Config::default();
    let set = std::env::var_os("PROPTEST_CASES").is_some();
    let config = Config {
        cases: if set { default.cases } else { CASES },
        max_shrink_iters: shrink,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..default
    };
    TestRunner::new(config)
        .run(&op::sequences(), |ops| cluster.play(&ops))
        .map_err(|failure| failure.to_string())?;
    cluster.check_used();
    Ok(())
}

#[cfg(not(netvm_mutant))]
fn agree(mode: &str, builder: Builder, resident: u32, seed: u64) {
    cross(builder, resident, seed, 1_000).unwrap_or_else(|failure| panic!("{mode}: {failure}"));
}

const fn late(seed: u64) -> DmaMode {
    DmaMode::Late {
        seed,
        up_to: Nanos(20_000),
    }
}

#[cfg(not(netvm_mutant))]
#[test]
fn plenty_of_memory() {
    agree("inline", Emulator::builder(), 512, 1);
}

#[cfg(not(netvm_mutant))]
#[test]
fn little_memory_small_packets() {
    let builder = Emulator::builder().mtu(1500).dma(late(1)).inline_limit(8);
    agree("inline, late, 1500", builder, 24, 2);
}

#[cfg(not(netvm_mutant))]
#[test]
fn cards_with_threads() {
    let builder = Emulator::builder().nic(NicMode::Threaded).dma(late(2));
    agree("threaded, late", builder, 48, 3);
}

/// Library and model disagree about builds that are broken on purpose, and about no other. Built with `--cfg netvm_mutant`,
/// in a target folder of its own.
#[cfg(netvm_mutant)]
#[test]
fn broken_builds_are_found() {
    use netvm_abi::mutant::{Mutant, select};
    let cases = [
        None,
        Some(Mutant::LostDirtyBit),
        Some(Mutant::OneShotLost),
        Some(Mutant::FlushDoesNotWait),
        Some(Mutant::AtomicAnswersNew),
        Some(Mutant::OtherBufferLeaves),
        Some(Mutant::OtherBufferAnswers),
        Some(Mutant::ReplyStaysInBounce),
        Some(Mutant::HostForgetsDirty),
        Some(Mutant::PagerForgetsDirty),
    ];
    for mutant in cases {
        select(mutant);
        let builder = Emulator::builder().mtu(1500).dma(late(1));
        let end = std::panic::catch_unwind(|| cross(builder, 24, 2, 0));
        select(None);
        let said = match end {
            Ok(Ok(())) => None,
            Ok(Err(said)) => Some(said),
            Err(_) => Some("a panic".to_owned()),
        };
        println!("{mutant:?}: {}", said.as_deref().map_or("all agree", first_line));
        assert_eq!(said.is_some(), mutant.is_some(), "{mutant:?}: {said:?}");
    }
}

#[cfg(netvm_mutant)]
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
