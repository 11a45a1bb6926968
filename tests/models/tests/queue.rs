//! The wait queue (thesis table 20) and the semaphore (table 23): no wake-up and no token is lost or
//! invented, first come first served, no process waits for ever.

use netvm_models::queue::{Job, QueueModel};
use netvm_models::{Nic, explore};

fn holds(name: &str, model: QueueModel) {
    assert_eq!(explore(name, model).wrong, None);
}

#[test]
fn wait_queue_of_three_with_two_signallers() {
    holds(
        "wait queue, 3 waiters, 2 signallers",
        QueueModel::new(&[(3, &[Job::Queue]), (2, &[Job::Wake])]),
    );
}

#[test]
fn wait_queue_of_three_with_two_signallers_twice() {
    holds(
        "wait queue, 3 waiters, 2 signallers twice",
        QueueModel::new(&[(3, &[Job::Queue]), (2, &[Job::Wake, Job::Wake])]),
    );
}

#[test]
fn wait_queue_of_two_twice() {
    holds(
        "wait queue, 2 waiters twice, 2 signallers twice",
        QueueModel::new(&[(2, &[Job::Queue, Job::Queue]), (2, &[Job::Wake, Job::Wake])]),
    );
}

#[test]
fn semaphore_of_three_waiters_and_four_signals() {
    holds(
        "semaphore, 3 waiters, 4 signals",
        QueueModel::new(&[(3, &[Job::Wait]), (2, &[Job::Signal, Job::Signal])]),
    );
}

#[test]
fn semaphore_of_four_waiters_and_four_signals() {
    holds(
        "semaphore, 4 waiters, 4 signals",
        QueueModel::new(&[(4, &[Job::Wait]), (2, &[Job::Signal, Job::Signal])]),
    );
}

#[test]
fn semaphore_of_two_that_come_twice_and_one_that_tries() {
    holds(
        "semaphore, 2 waiters twice, 1 tries, 4 signals",
        QueueModel::new(&[
            (2, &[Job::Wait, Job::Wait]),
            (1, &[Job::Try]),
            (2, &[Job::Signal, Job::Signal]),
        ]),
    );
}

/// Without the pending counter, a signal that comes while the new head is on its way is lost.
#[test]
fn a_queue_without_the_pending_counter_loses_wake_ups() {
    let model = QueueModel::new(&[(3, &[Job::Queue]), (2, &[Job::Wake])]).on(Nic::NoPending);
    let verdict = explore("control: no pending counter", model);
    assert!(verdict.stuck > 0, "{verdict:?}");
}

/// The thesis' test for an empty queue: with two waiters and three signals the third is filed as pending
/// on a queue where all waiters are spoken for, and a waiter that comes later sleeps for ever.
#[test]
fn the_thesis_empty_test_loses_a_token() {
    let jobs: &[(usize, &[Job])] = &[(3, &[Job::Wait]), (3, &[Job::Signal])];
    let shipped = explore("semaphore, 3 waiters, 3 signals", QueueModel::new(jobs));
    assert_eq!(shipped.wrong, None);
    let thesis = explore("control: empty is C = 0", QueueModel::new(jobs).on(Nic::Thesis));
    assert!(thesis.stuck > 0, "{thesis:?}");
}
