//! Greedy ports of a node beside a modest one, whose waits are held against a derived bound.

use netvm_world::crowd::{Bound, KINDS, Kind, Waits, alone, play};
use netvm_world::timing::CostModel;

fn model() -> CostModel {
    CostModel::committed().expect("the committed counts")
}

fn beside(kinds: &[Kind], greedy: u16) -> Waits {
    let model = model();
    let alone = alone(&model).unwrap_or_else(|failure| panic!("alone: {failure}"));
    let bound = Bound::derived(greedy, alone);
    let waits = play(&model, kinds, greedy, bound)
        .unwrap_or_else(|failure| panic!("{greedy} ports that post {kinds:?}: {failure}"));
    println!(
        "{greedy} ports that post {kinds:?}: {} commands; from post to send at most {} ns of {}, to completion {} ns of {}; \
         alone {alone:?}",
        waits.greedy, waits.sends.0, bound.sends.0, waits.ends.0, bound.ends.0
    );
    assert!(waits.ends <= bound.ends && waits.sends <= bound.sends);
    // Otherwise nothing was greedy: a queue of each was full all the time.
    assert!(waits.greedy > 64 * u64::from(greedy), "{waits:?}");
    assert!(waits.ends > alone.takes, "nothing was in its way: {waits:?}");
    waits
}

#[test]
fn two_to_eight_greedy_ports_of_all_kinds_leave_a_modest_one_its_turns() {
    for greedy in 2..=8 {
        beside(&KINDS, greedy);
    }
}

#[test]
fn greedy_ports_of_one_kind_leave_a_modest_one_its_turns() {
    for kind in KINDS {
        beside(&[kind], 8);
    }
}
