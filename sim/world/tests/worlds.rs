//! Worlds that once failed, each with its fault at the step of the protocol where it mattered.

mod lost;

use netvm_abi::wire::{Header, Kind};
use netvm_conformance::{ALL, Case};
use netvm_world::{NoTrace, Script, run_scripted};

fn case(name: &str) -> &'static Case {
    ALL.iter().find(|case| case.name == name).expect("a body")
}

/// A write that hands a lock to a waiting seat: seats have the notifications from 897 on.
fn is_grant(header: &Header) -> bool {
    header.kind == Kind::Write && (897..960).contains(&header.notification.0)
}

/// A grant is lost, and the link with it. The members wait in a chain behind the one that never hears of its grant,
/// until the body gives up after 40 ms and its process withdraws the lock. Then all members end soon: each finds by itself
/// that the home has gone, and does not wait until the one before has.
#[test]
fn members_of_a_lock_with_a_lost_grant_end_when_its_home_goes() {
    let mut late = 0;
    for nth in 0..12 {
        let script = Script {
            frames: is_grant,
            nth,
        };
        match run_scripted(case("contended_lock"), 1, script, &mut NoTrace) {
            Ok(report) => {
                assert!(
                    report.virtual_nanos < 700_000_000,
                    "grant {nth}: over after {} ms",
                    report.virtual_nanos / 1_000_000
                );
                // Without the loss all is over long before the body gives up.
                late += u32::from(report.virtual_nanos > 40_000_000);
            }
            Err(failure) => panic!("grant {nth}: {failure}"),
        }
    }
    assert!(late > 6, "only {late} of 12 grants were lost");
}

/// The last message of a node is lost while its peer goes on sending: its sender hears of it within the stated time, by
/// the checker's books and by its own.
#[test]
fn a_lost_last_message_is_told_beside_traffic_the_other_way() {
    if let Err(failure) = lost::play() {
        panic!("{failure}");
    }
}
