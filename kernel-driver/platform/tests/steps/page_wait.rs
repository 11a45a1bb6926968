//! Whether a worker that waits for a page is all that keeps an address space.

use netvm_host_platform::page_wait::PageWait;

#[test]
fn only_a_waiting_worker_s_reference_can_be_the_last() {
    let wait: PageWait = PageWait::default();
    assert!(
        !wait.is_waiting() && !wait.is_last(|| 1),
        "of the process, which lives"
    );
    wait.during(|| {
        assert!(wait.is_waiting() && !wait.is_last(|| 2));
        assert!(wait.is_last(|| 1));
    });
    assert!(!wait.is_waiting());
}

#[test]
fn references_counted_in_two_waits_tell_nothing() {
    let wait: PageWait = PageWait::default();
    let is_last = wait.during(|| {
        wait.is_last(|| {
            // As if that wait had ended and another one begun while the references are counted.
            wait.during(|| ());
            1
        })
    });
    assert!(
        !is_last,
        "the worker may have given its reference back in between"
    );
}
