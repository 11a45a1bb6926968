//! The lock (thesis table 17): mutual exclusion, first come first served, no process waits for ever.

use netvm::sync::protocol::SeatId;
use netvm_models::explore;
use netvm_models::graph::Graph;
use netvm_models::lock::{LockModel, State};

fn holds(name: &str, processes: &[(u8, bool)]) {
    let verdict = explore(
        name,
        LockModel {
            processes: processes.to_vec(),
            ..LockModel::default()
        },
    );
    assert_eq!(verdict.wrong, None);
}

#[test]
fn three_processes_twice() {
    holds("lock, 3 processes twice", &[(2, false); 3]);
}

#[test]
fn two_acquire_and_one_first_tries() {
    holds(
        "lock, 2 processes twice, 1 tries first",
        &[(2, false), (2, false), (2, true)],
    );
}

#[test]
fn four_processes_once() {
    holds("lock, 4 processes once", &[(1, false); 4]);
}

/// Whichever process dies, and wherever: never do two hold the lock, and all living processes can always come to their
/// end.
fn survives(name: &str, processes: &[(u8, bool)], deaths: u8) {
    let model = LockModel {
        processes: processes.to_vec(),
        deaths,
        ..LockModel::default()
    };
    goes_on(name, model);
}

fn goes_on(name: &str, model: LockModel) {
    let graph = Graph::new(&model, |_| 0);
    println!("{name}: {} states", graph.states.len());
    let wrong = graph.states.iter().find(|state| state.wrong.is_some());
    assert_eq!(wrong, None);
    assert_eq!(graph.cut_off(State::is_done), None);
}

#[test]
fn of_two_one_dies() {
    survives("lock, 2 processes twice, 1 dies", &[(2, false); 2], 1);
}

#[test]
fn of_three_one_dies() {
    survives("lock, 3 processes once, 1 dies", &[(1, false); 3], 1);
}

#[test]
fn of_three_two_die() {
    survives("lock, 3 processes once, 2 die", &[(1, false); 3], 2);
}

#[test]
fn of_three_of_whom_one_comes_twice_and_one_tries_one_dies() {
    survives(
        "lock, 3 processes, 1 twice, 1 only tries, 1 dies",
        &[(2, false), (1, false), (1, true)],
        1,
    );
}

/// After it has handed over the lock, and before that has come, a process tries to get it again: the waiter that looks
/// meanwhile finds it in a turn that has handed the lock to none.
#[test]
fn of_two_that_try_after_their_turn_one_dies() {
    let model = LockModel {
        processes: vec![(3, false), (2, false)],
        deaths: 1,
        tries_last: true,
        ..LockModel::default()
    };
    goes_on("lock, 2 processes, then both try, 1 dies", model);
}

/// A chain of four of which the first, the holder of the lock, and the third are dead: two are left that each stand
/// behind a dead one, and may get the lock in either order.
fn torn() -> LockModel {
    LockModel {
        processes: vec![(1, false), (2, false), (1, false), (2, false)],
        killed: vec![0, 2],
        ..LockModel::default()
    }
}

#[test]
fn a_chain_torn_in_two_places() {
    goes_on("lock, chain torn twice", torn());
}

#[test]
fn a_torn_chain_of_which_another_dies() {
    let model = LockModel { deaths: 1, ..torn() };
    goes_on("lock, chain torn twice, another dies", model);
}

/// Numbers of turns begin anew after 512: the second turn of each is number 0.
#[test]
fn turns_begin_anew() {
    let turn = SeatId::TURNS - 2;
    let model = |processes: &[(u8, bool)], deaths| LockModel {
        processes: processes.to_vec(),
        deaths,
        turn,
        ..LockModel::default()
    };
    let verdict = explore(
        "lock, 2 processes three times, turns begin anew",
        model(&[(3, false); 2], 0),
    );
    assert_eq!(verdict.wrong, None);
    goes_on(
        "lock, 2 processes twice, turns begin anew, 1 dies",
        model(&[(2, false); 2], 1),
    );
    goes_on(
        "lock, chain torn twice, turns begin anew",
        LockModel { turn, ..torn() },
    );
}

/// A link that fails for a moment: the successor's name never comes, and the holder finds it by looking.
#[test]
fn a_name_is_lost() {
    let model = |processes: &[(u8, bool)], losses| LockModel {
        processes: processes.to_vec(),
        losses,
        ..LockModel::default()
    };
    goes_on(
        "lock, 2 processes twice, 2 names lost",
        model(&[(2, false); 2], 2),
    );
    goes_on("lock, 3 processes once, 1 name lost", model(&[(1, false); 3], 1));
}

/// A participant adrift that does not know that another has recovered the lock since it asked would take it as well.
#[test]
fn recoveries_that_are_not_counted_let_two_in() {
    let model = LockModel {
        forgetful: true,
        ..torn()
    };
    let graph = Graph::new(&model, |_| 0);
    println!("control: recoveries not counted: {} states", graph.states.len());
    assert!(graph.states.iter().any(|state| state.wrong.is_some()));
}
