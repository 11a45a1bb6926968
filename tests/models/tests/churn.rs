//! A lock's recovery while others come and go: however long they do, those adrift have seen enough after a number of
//! looks that does not depend on it; and never do two hold the lock.

use netvm_models::graph::Graph;
use netvm_models::lock::{Action, At, LockModel, State};
use stateright::Model;

/// One holds the lock and dies, one stands behind it, and these visitors come and go so often.
fn visited(visitors: &[(u8, bool)]) -> LockModel {
    LockModel {
        processes: [&[(1, false); 2], visitors].concat(),
        killed: vec![0],
        visitors: visitors.len(),
        counts: true,
        ..LockModel::default()
    }
}

/// The most passes over the members that the one behind the dead needs.
fn passes(name: &str, model: &LockModel) -> u8 {
    let graph = Graph::new(model, |_| 0);
    let wrong = graph.states.iter().find(|state| state.wrong.is_some());
    assert_eq!(wrong, None);
    let passes = graph.states.iter().map(|state| state.counts[1].passes).max();
    println!("{name}: {} states, {passes:?} passes", graph.states.len());
    assert_eq!(graph.cut_off(State::is_done), None);
    passes.unwrap_or_default()
}

/// Most passes of a survey. Two begin it; then, for each visitor, one follows each of the steps that the visitor takes
/// from having asked until it is seen to try no more, or to wait. These pauses are as short as they can be.
const MOST: u8 = 7;

/// Checks 1 to `times` visits of each visitor. The last two counts are more than a recovery takes: they make no
/// difference.
fn bounded(name: &str, times: u8, visitors: impl Fn(u8) -> Vec<(u8, bool)>) {
    let counts: Vec<u8> = (1..=times)
        .map(|times| passes(&format!("{name}, {times} times"), &visited(&visitors(times))))
        .collect();
    assert!(counts.iter().all(|&passes| passes <= MOST), "{counts:?}");
    assert!(counts.ends_with(&[counts[counts.len() - 2]]), "{counts:?}");
}

#[test]
fn trying_visitors_do_not_hold_up_a_recovery() {
    bounded("1 visitor tries", 6, |times| vec![(times, true)]);
    bounded("2 visitors try", 2, |times| vec![(times, true); 2]);
}

#[test]
fn acquiring_visitors_do_not_hold_up_a_recovery() {
    bounded("1 visitor acquires", 3, |times| vec![(times, false)]);
    bounded("1 visitor acquires once, 1 tries", 3, |times| {
        vec![(1, false), (times, true)]
    });
}

/// A survey that cannot tell turns apart waits for as long as any visitor asks: it takes each visit for the first one.
#[test]
fn without_turns_visitors_hold_up_the_recovery() {
    let count = |times| {
        let model = LockModel {
            turnless: true,
            ..visited(&[(times, true)])
        };
        passes(
            &format!("control: no turns, 1 visitor tries {times} times"),
            &model,
        )
    };
    let (few, many) = (count(2), count(6));
    assert!(many > few && many > MOST, "{few}, {many}");
}

/// What happened in a run.
#[derive(Debug, Default)]
struct Run {
    acquired: u32,
    deaths: u32,
    /// The most hand-overs to others from when a process was adrift to when it had the lock.
    passed_over: u32,
}

/// One of the many orders in which things happen, with deaths at random times. Every now and then, a waiter looks.
fn run(model: &LockModel, seed: u64, steps: usize) -> Run {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = move |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as usize % n.max(1)
    };
    let mut state = model.init_states().remove(0);
    let mut run = Run::default();
    let mut since = vec![None; state.processes.len()];
    let mut actions = Vec::new();
    for _ in 0..steps {
        actions.clear();
        model.actions(&state, &mut actions);
        let rare = |action: &Action| matches!(action, Action::Die(_));
        let usual: Vec<Action> = actions.iter().filter(|action| !rare(action)).copied().collect();
        let from = if below(300) == 0 { &actions } else { &usual };
        let Some(&action) = from.get(below(from.len())) else {
            break;
        };
        let inside = |state: &State| {
            let mut processes = state.processes.iter();
            processes.position(|process| matches!(process.at, At::Inside { .. }))
        };
        let before = inside(&state);
        let Some(next) = model.next_state(&state, action) else {
            continue;
        };
        run.deaths += u32::from(matches!(action, Action::Die(_)));
        state = next;
        assert_eq!(state.wrong, None, "seed {seed}");
        if let (None, Some(who)) = (before, inside(&state)) {
            run.acquired += 1;
            for (other, since) in since.iter_mut().enumerate() {
                let passed = since.map_or(0, |since| run.acquired - since - u32::from(other == who));
                run.passed_over = run.passed_over.max(passed);
            }
            since[who] = None;
        }
        for (who, process) in state.processes.iter().enumerate() {
            match &process.at {
                At::Acquire(machine) if machine.pauses() && since[who].is_none() => {
                    since[who] = Some(run.acquired);
                }
                At::Done | At::Dead => since[who] = None,
                _ => {}
            }
        }
    }
    run
}

#[test]
fn no_waiter_is_passed_over_for_long_in_a_crowd() {
    let model = LockModel {
        processes: vec![
            (1, false),
            (200, false),
            (1, false),
            (200, false),
            (200, false),
            (200, true),
            (200, false),
            (200, false),
        ],
        killed: vec![0, 2],
        visitors: 3,
        deaths: 1,
        // Numbers of turns begin anew on the way.
        turn: 450,
        ..LockModel::default()
    };
    let (mut most, mut acquired, mut deaths) = (0, 0, 0);
    for seed in 0..60 {
        let run = run(&model, seed, 12_000);
        most = most.max(run.passed_over);
        acquired += run.acquired;
        deaths += run.deaths;
    }
    println!("{acquired} times the lock was had, {deaths} deaths; passed over {most} times at most");
    assert!(acquired > 60 * 50 && deaths > 30, "{acquired}, {deaths}");
    assert!(most <= 12, "{most}");
}
