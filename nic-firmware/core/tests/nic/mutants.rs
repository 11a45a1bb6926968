//! Tests of this folder that fail for builds that are broken on purpose.

use netvm_abi::mutant::{Mutant, select};

/// One test for them all: a mutant is the whole process's.
#[test]
fn broken_builds_are_found() {
    let cases: [(Mutant, fn()); 3] = [
        (
            Mutant::ReadOvertakes,
            crate::read::an_ordered_read_is_served_after_everything_before_it,
        ),
        (
            Mutant::AnyFrameVouches,
            crate::progress::a_last_message_that_is_lost_beside_traffic_fails_the_link,
        ),
        (
            Mutant::LeaseUnending,
            crate::lease::it_ends_by_the_cards_clock_alone,
        ),
    ];
    for (mutant, test) in cases {
        select(Some(mutant));
        let end = std::panic::catch_unwind(test);
        select(None);
        assert!(end.is_err(), "{mutant:?}, and no test fails");
    }
}
