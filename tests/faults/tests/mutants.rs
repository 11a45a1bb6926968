//! The board can fail: deliberately broken cores are caught by the same attack. Built with `--cfg netvm_mutant`, in a target
//! folder of its own; otherwise there is nothing to test here.
#![cfg(netvm_mutant)]

use netvm_abi::mutant::{Mutant, select};
use netvm_faults::Attack;

/// What an attack on the broken core says.
fn caught(mutant: Option<Mutant>) -> Option<String> {
    select(mutant);
    let outcome = std::panic::catch_unwind(|| {
        for seed in 0..8 {
            let mut attack = Attack::new(seed);
            attack.run(20_000);
            attack.stand.quiesce();
        }
    });
    select(None);
    let cause = outcome.err()?;
    let text = cause.downcast_ref::<String>().cloned();
    Some(text.unwrap_or_else(|| {
        cause
            .downcast_ref::<&str>()
            .copied()
            .unwrap_or_default()
            .to_owned()
    }))
}

#[test]
fn broken_cores_are_caught() {
    assert_eq!(caught(None), None, "the core as it ships");
    let cases: [(Mutant, &[&str]); 4] = [
        (
            Mutant::CapabilityCheckSkipped,
            &[
                "without a capability",
                "no port may read",
                "a wrong secret",
                "another segment",
                "out of range",
                "to read",
                "another port",
                "another holder",
                "is over",
            ],
        ),
        (Mutant::WriteThroughReadOnly, &["read-only"]),
        (Mutant::UnmapDoesNotWait, &["lies"]),
        (Mutant::BounceRecordDropped, &["did not end", "still held"]),
    ];
    for (mutant, says) in cases {
        let text = caught(Some(mutant)).unwrap_or_else(|| panic!("{mutant:?} was not caught"));
        println!("{mutant:?}: {text}");
        assert!(says.iter().any(|says| text.contains(says)), "{mutant:?}: {text}");
    }
}
