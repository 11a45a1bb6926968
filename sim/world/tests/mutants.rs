//! Acceptance 3: each deliberately broken build is caught, by the checker of the promise it breaks.
//!
//! Compiled to something only with `--cfg netvm_mutant` (`xtask/mutant-rustc`): `cargo xtask test` runs it so.
#![cfg(netvm_mutant)]

use netvm_abi::mutant::{self, Mutant};
use netvm_conformance::ALL;
use netvm_world::check::Promise;
use netvm_world::crowd::{self, Bound, Kind};
use netvm_world::points::{self, Crash};
use netvm_world::timing::CostModel;
use netvm_world::{Config, Failure, FaultLevel, NoTrace, run_conformance, run_seed, wide};
use std::collections::BTreeSet;
use std::process::{Command, ExitStatus};

/// Seeds that a mutant may survive. Most are caught within five; the right checker sees some of them in one of forty.
const SEEDS: u64 = 150;

/// Seeds that have shown mutants which survive many: they are tried first.
const SHOWN: [(Mutant, u64); 7] = [
    (Mutant::LossUntold, 45),
    (Mutant::ErrorToNextOwner, 18),
    (Mutant::AsymmetricUnordered, 17),
    (Mutant::SeqForgetsWrap, 11),
    (Mutant::BouncedUncopied, 8),
    (Mutant::CountForgetsWrap, 6),
    (Mutant::AnswerActsAgain, 5),
];

/// The seeds to try with a mutant.
fn seeds(broken: Mutant) -> impl Iterator<Item = u64> {
    let shown = SHOWN.into_iter().filter(move |(mutant, _)| *mutant == broken);
    shown.map(|(_, seed)| seed).chain(1..=SEEDS)
}

/// What a history is called that the checkers of values object to.
const VALUE: &str = "no order explains";

/// Mutants that no promise names: they give programs values that no order of their operations explains, or stop them.
const PROGRAMS: [(Mutant, FaultLevel, &str); 14] = [
    (Mutant::AtomicAnswersNew, FaultLevel::All, VALUE),
    (Mutant::LockLeavesData, FaultLevel::All, VALUE),
    (Mutant::DeadHolderUntold, FaultLevel::All, VALUE),
    (Mutant::TryTakesHeldLock, FaultLevel::All, VALUE),
    (Mutant::AsymmetricUnordered, FaultLevel::All, VALUE),
    (Mutant::TokenMade, FaultLevel::All, VALUE),
    // Where messages are lost, tokens are lost with them.
    (Mutant::TokenLost, FaultLevel::Benign, VALUE),
    // Waiters are let out, which has a cause where one of them has gone.
    (Mutant::SignalLost, FaultLevel::Benign, VALUE),
    (Mutant::SignalWakesTwo, FaultLevel::All, VALUE),
    (Mutant::MessageTwice, FaultLevel::All, VALUE),
    (Mutant::MessageLost, FaultLevel::All, VALUE),
    (Mutant::LossUntold, FaultLevel::All, VALUE),
    (Mutant::PlaceSkipped, FaultLevel::All, VALUE),
    (
        Mutant::CountForgetsWrap,
        FaultLevel::All,
        "ms after the faults stopped",
    ),
];

/// A world that a mutant does not survive.
type Hunt = fn() -> Option<Box<Failure>>;

/// Mutants that worlds of seeds do not show, or only by chance, each with a world of its own.
fn named_worlds() -> [(Mutant, Promise, Hunt); 6] {
    [
        (Mutant::DeadPageStaysMapped, Promise::P6, crash_points),
        (Mutant::PortInterruptLost, Promise::P4, bodies),
        (Mutant::ServedPortStaysFirst, Promise::P5, greedy_ports),
        (Mutant::RefusalHoldsNothing, Promise::P4, blind_appends),
        (Mutant::SleepLooksAtAllPorts, Promise::P7, idle_ports),
        (Mutant::DeadlineLooksAtAllPorts, Promise::P7, idle_ports),
    ]
}

/// The suite's bodies, one by one and without faults, until a checker objects.
fn bodies() -> Option<Box<Failure>> {
    let quiet = Config {
        faults: FaultLevel::Off,
        ..Config::default()
    };
    ALL.iter().find_map(|case| {
        let failure = run_conformance(case, 1, &quiet, &mut NoTrace).err()?;
        failure.promise.is_some().then_some(failure)
    })
}

/// A process dies at one access after the other, and nothing else fails.
fn crash_points() -> Option<Box<Failure>> {
    let case = ALL.iter().find(|case| case.name == "ping_pong").expect("a body");
    let recorded = points::record(case, &mut NoTrace).expect("without a fault it ends well");
    recorded
        .points(case, &[Crash::ProcessDies], &mut BTreeSet::new())
        .step_by(20)
        .find_map(|point| points::play(&point, &mut NoTrace).err())
}

/// Appends that are posted one behind the other to a queue that is full.
fn blind_appends() -> Option<Box<Failure>> {
    let case = ALL
        .iter()
        .find(|case| case.name == "shared_posted")
        .expect("a body");
    let config = Config {
        faults: FaultLevel::Off,
        ..Config::default()
    };
    run_conformance(case, 1, &config, &mut NoTrace).err()
}

/// Two hundred ports that do nothing.
fn idle_ports() -> Option<Box<Failure>> {
    let case = ALL.iter().find(|case| case.name == "bulk_write").expect("a body");
    wide::run(case, 1, 4, 200).err()
}

/// Eight ports that always lack staging buffers, beside a modest one.
fn greedy_ports() -> Option<Box<Failure>> {
    let model = CostModel::committed().expect("the committed counts");
    let alone = crowd::alone(&model).expect("a port alone gets its turns");
    crowd::play(&model, &[Kind::LargeWrite], 8, Bound::derived(8, alone)).err()
}

/// Which mutants a process is to try: those whose place leaves this remainder when it is divided by the number of processes.
const PART: &str = "NETVM_PART";

/// Mutants are selected for the whole process, so all of them are one test. It starts itself once for each processor.
#[test]
fn every_mutant_is_caught_by_its_checker() {
    let parts = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(part) = std::env::var(PART).ok().and_then(|part| part.parse().ok()) {
        return part_of_the_mutants_is_caught(part, parts);
    }
    let this = std::env::current_exe().expect("this program's path");
    let processes: Vec<_> = (0..parts)
        .map(|part| {
            Command::new(&this)
                .args(["--exact", "every_mutant_is_caught_by_its_checker", "--nocapture"])
                .env(PART, part.to_string())
                .spawn()
                .expect("this program starts again")
        })
        .collect();
    let ends: Vec<_> = processes.into_iter().map(|mut process| process.wait()).collect();
    assert!(
        ends.iter().all(|end| end.as_ref().is_ok_and(ExitStatus::success)),
        "a part has failed, as it says above: {ends:?}"
    );
}

fn part_of_the_mutants_is_caught(part: usize, parts: usize) {
    let mut place = 0;
    let mut is_mine = || {
        place += 1;
        place % parts == part
    };
    let cases = [
        (Mutant::UnmapDoesNotWait, Promise::P1),
        (Mutant::BounceRecordDropped, Promise::P2),
        (Mutant::LostDirtyBit, Promise::P3),
        (Mutant::WriteThroughReadOnly, Promise::P3),
        (Mutant::NotificationEarly, Promise::P4),
        (Mutant::OneShotLost, Promise::P4),
        (Mutant::FlushDoesNotWait, Promise::P4),
        (Mutant::CapabilityCheckSkipped, Promise::P5),
        (Mutant::NotificationUnchecked, Promise::P5),
        (Mutant::PortForgotten, Promise::P2),
        (Mutant::DeadPageStaysMapped, Promise::P6),
        (Mutant::StagingKept, Promise::P6),
        (Mutant::FalseRefusal, Promise::P2),
        (Mutant::HealthyCardDead, Promise::P2),
        (Mutant::FailedDmaLands, Promise::P2),
        (Mutant::SeqForgetsWrap, Promise::P2),
        // Two atomics of one unit take one another's operands.
        (Mutant::UnitAdmitsAll, Promise::P1),
        (Mutant::StagingFreedEarly, Promise::P1),
        (Mutant::BounceToldEarly, Promise::P1),
        (Mutant::OtherBufferLeaves, Promise::P2),
        (Mutant::OtherBufferAnswers, Promise::P2),
        (Mutant::ReplyStaysInBounce, Promise::P2),
        (Mutant::BouncedUncopied, Promise::P2),
        (Mutant::ErrorUntold, Promise::P2),
        (Mutant::ErrorTwice, Promise::P2),
        (Mutant::ErrorNowhere, Promise::P2),
        (Mutant::ShadowKept, Promise::P4),
        (Mutant::ErrorToNextOwner, Promise::P6),
        (Mutant::BlockKept, Promise::P6),
        (Mutant::CapabilityKept, Promise::P6),
        (Mutant::OtherMessageAgain, Promise::P2),
        (Mutant::LossForgotten, Promise::P2),
        (Mutant::AnswerActsAgain, Promise::P2),
        (Mutant::GapReceived, Promise::P2),
        (Mutant::CopyKept, Promise::P6),
        (Mutant::HeldEnded, Promise::P2),
        (Mutant::WindowTakenEarly, Promise::P2),
        (Mutant::GreetingEndsLife, Promise::P2),
        (Mutant::TurnNotWaitedFor, Promise::P4),
        (Mutant::ReceivedUnasked, Promise::P2),
    ];
    let mut survivors = Vec::new();
    for (broken, promise) in cases.into_iter().filter(|_| is_mine()) {
        mutant::select(Some(broken));
        let config = Config {
            messages: 5_000,
            ..Config::default()
        };
        let mut others = Vec::new();
        let caught = seeds(broken).find_map(|seed| {
            let failure = run_seed(seed, &config, &mut NoTrace).err()?;
            if failure.promise == Some(promise) {
                return Some((seed, failure.what));
            }
            others.push(format!("seed {seed}: {:?} {}", failure.promise, failure.what));
            None
        });
        match caught {
            Some((seed, what)) => println!("{broken:?}: caught by {promise} with seed {seed}: {what}"),
            None => survivors.push(format!("{broken:?} was not caught by {promise}; {others:#?}")),
        }
    }
    for (broken, faults, words) in PROGRAMS.into_iter().filter(|_| is_mine()) {
        mutant::select(Some(broken));
        let config = Config {
            faults,
            ..Config::default()
        };
        let mut others = Vec::new();
        let caught = seeds(broken).find_map(|seed| {
            let failure = run_seed(seed, &config, &mut NoTrace).err()?;
            let judged = failure.what.contains(words);
            others.push(format!("seed {seed}: {:?} {}", failure.promise, failure.what));
            judged.then_some(seed)
        });
        match caught {
            Some(seed) => println!("{broken:?}: \"{words}\" with seed {seed}"),
            None => survivors.push(format!("{broken:?}: never \"{words}\"; {others:#?}")),
        }
    }
    for (broken, promise, hunt) in named_worlds().into_iter().filter(|_| is_mine()) {
        mutant::select(Some(broken));
        match hunt() {
            Some(failure) if failure.promise == Some(promise) => {
                println!(
                    "{broken:?}: caught by {promise} in its own world: {}",
                    failure.what
                );
            }
            other => survivors.push(format!("{broken:?} was not caught by {promise}: {other:?}")),
        }
    }
    mutant::select(None);
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}
