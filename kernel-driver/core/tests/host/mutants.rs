//! Tests of this folder that fail for builds that are broken on purpose.

use netvm_abi::mutant::{Mutant, select};

#[test]
fn broken_builds_are_found() {
    let cases: [(Mutant, fn()); 3] = [
        (
            Mutant::LeaseUnasked,
            crate::leases::later_the_card_is_asked_before_the_copy,
        ),
        (
            Mutant::AtomicDoneTwice,
            crate::atomics::the_third_try_of_an_atomic_is_done_by_the_host,
        ),
        (
            Mutant::EvictedCopyDone,
            crate::paging::an_evicted_page_is_paged_in_again_before_the_copy,
        ),
    ];
    for (mutant, test) in cases {
        select(Some(mutant));
        let end = std::panic::catch_unwind(test);
        select(None);
        assert!(end.is_err(), "{mutant:?}, and no test fails");
    }
}
