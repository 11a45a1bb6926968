//! The lock (thesis table 17): mutual exclusion, first come first served, nobody waits for ever.

use netvm_models::explore;
use netvm_models::lock::LockModel;

fn holds(name: &str, processes: &[(u8, bool)]) {
    let verdict = explore(
        name,
        LockModel {
            processes: processes.to_vec(),
        },
    );
    assert_eq!(verdict.wrong, None);
}

#[test]
fn three_processes_three_times_each() {
    holds("lock, 3 processes 3 times", &[(3, false); 3]);
}

#[test]
fn two_who_acquire_and_one_who_first_tries() {
    holds(
        "lock, 2 processes twice, 1 tries first",
        &[(2, false), (2, false), (2, true)],
    );
}

#[test]
fn four_processes_once() {
    holds("lock, 4 processes once", &[(1, false); 4]);
}
