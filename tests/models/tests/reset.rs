//! Wait queues and semaphores whose members die, or are taken for dead by mistake: no token and no wake-up out of
//! nothing, none lost while all live, and no process waits for ever.

use netvm_models::reset::{Job, ResetModel, Without};
use netvm_models::{Verdict, explore};

const WAIT: &[Job] = &[Job::Wait];
const TWICE: &[Job] = &[Job::Wait, Job::Wait];
const SIGNAL: &[Job] = &[Job::Signal];
const SIGNALS: &[Job] = &[Job::Signal, Job::Signal];
const QUEUE: &[Job] = &[Job::Queue];
const WAKE: &[Job] = &[Job::Wake];
const WAKES: &[Job] = &[Job::Wake, Job::Wake];

fn run(name: &str, jobs: &[&'static [Job]], deaths: u8, mistakes: u8, without: Without) -> Verdict {
    let model = ResetModel {
        jobs: jobs.to_vec(),
        deaths,
        mistakes,
        without,
    };
    explore(name, model)
}

fn holds(name: &str, jobs: &[&'static [Job]], deaths: u8, mistakes: u8) {
    let verdict = run(name, jobs, deaths, mistakes, Without::Nothing);
    assert_eq!(verdict.wrong, None);
}

#[test]
fn semaphore_of_three_of_whom_one_dies() {
    holds(
        "semaphore, 3 waiters, 2 signals, 1 of 4 dies",
        &[WAIT, WAIT, WAIT, SIGNALS],
        1,
        0,
    );
}

#[test]
fn semaphore_of_two_that_come_twice_and_one_dies() {
    holds(
        "semaphore, 2 waiters twice, 3 signals, 1 of 3 dies",
        &[TWICE, TWICE, &[Job::Signal, Job::Signal, Job::Signal]],
        1,
        0,
    );
}

#[test]
fn semaphore_of_two_with_a_death_and_a_mistake() {
    holds(
        "semaphore, 2 waiters, 2 signals, 1 of 3 dies, 1 mistake",
        &[WAIT, WAIT, SIGNALS],
        1,
        1,
    );
}

#[test]
fn wait_queue_of_three_of_whom_two_die() {
    holds(
        "wait queue, 3 waiters, 2 signals, 2 of 4 die",
        &[QUEUE, QUEUE, QUEUE, WAKES],
        2,
        0,
    );
}

#[test]
fn semaphore_of_two_taken_for_dead() {
    holds(
        "semaphore, 2 waiters, 2 signals, 1 mistake",
        &[WAIT, WAIT, SIGNALS],
        0,
        1,
    );
    holds(
        "semaphore, 2 waiters, 2 signals, 2 mistakes",
        &[WAIT, WAIT, SIGNALS],
        0,
        2,
    );
}

#[test]
fn semaphore_of_two_that_come_twice() {
    holds(
        "semaphore, 1 waiter twice, 1 once, 3 signals, 1 mistake",
        &[TWICE, WAIT, SIGNAL, SIGNALS],
        0,
        1,
    );
}

#[test]
fn wait_queue_of_three_of_whom_one_dies() {
    holds(
        "wait queue, 3 waiters, 2 signals, 1 of 4 dies",
        &[QUEUE, QUEUE, QUEUE, WAKES],
        1,
        0,
    );
}

/// A signal of the first turn, which a reset has ended, comes in the third.
#[test]
fn wait_queue_of_one_that_comes_three_times_and_is_taken_for_dead() {
    holds(
        "wait queue, 1 waiter three times, 2 signals, 1 mistake",
        &[&[Job::Queue, Job::Queue, Job::Queue], WAKE, WAKE],
        0,
        1,
    );
}

#[test]
fn wait_queue_of_three_taken_for_dead() {
    holds(
        "wait queue, 3 waiters, 2 signals, 1 mistake",
        &[QUEUE, QUEUE, QUEUE, WAKES],
        0,
        1,
    );
}

#[test]
fn control_a_grant_of_an_old_epoch_is_thrown_away() {
    let verdict = run(
        "control: no token is given back",
        &[WAIT, WAIT, SIGNALS],
        0,
        1,
        Without::GiveBack,
    );
    assert!(verdict.stuck > 0, "{verdict:?}");
}

#[test]
fn control_a_reset_forgets_what_is_pending() {
    let verdict = run(
        "control: a reset forgets what is pending",
        &[WAIT, WAIT, SIGNALS],
        0,
        1,
        Without::Pending,
    );
    assert!(verdict.stuck > 0, "{verdict:?}");
}

#[test]
fn control_a_reset_acts_twice() {
    let verdict = run(
        "control: a reset acts twice",
        &[WAIT, WAIT, WAIT, SIGNAL],
        0,
        1,
        Without::Once,
    );
    assert!(
        verdict
            .wrong
            .as_ref()
            .is_some_and(|wrong| wrong.starts_with("more was had")),
        "{verdict:?}"
    );
}

#[test]
fn control_no_looks() {
    let verdict = run("control: no looks", &[WAIT, WAIT, SIGNALS], 1, 0, Without::Looks);
    assert!(verdict.stuck > 0, "{verdict:?}");
}
