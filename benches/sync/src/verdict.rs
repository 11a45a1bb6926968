//! What has to hold of what was measured.

use super::crowd::Crowd;
use super::locality::{Kind, Point};
use super::operations::{Group, Operation};
use super::pressure::Pressure;

/// An extended atomic takes at most so many hundredths more of a standard one's time.
pub const MORE_TIME: u64 = 5;
/// And of its instructions.
pub const MORE_INSTRUCTIONS: u64 = 20;
/// Jain's index of a crowd is at least this.
pub const FAIR: f64 = 0.99;
/// A crowd's goodput is at least this part of what hand-overs allow.
pub const GOODPUT: f64 = 0.95;

/// Jain's index of the senders of a full shared queue is at least this in every world.
pub const SHARED: f64 = 0.9;
/// None of them waits longer for a place, in rounds: the time in which the receiver serves each of them once.
pub const LONGEST_WAIT: f64 = 25.0;

/// What does not hold of the extended atomics: each is compared with the dearest standard one.
#[must_use]
pub fn of_operations(operations: &[Operation]) -> Vec<String> {
    let of = |group| {
        operations
            .iter()
            .filter(move |operation| operation.group == group)
    };
    let most = |value: fn(&Operation) -> u64| of(Group::Standard).map(value).max().unwrap_or_default();
    let (nanos, instructions) = (most(|one| one.nanos), most(|one| one.instructions));
    let mut wrong = Vec::new();
    if nanos == 0 || of(Group::Extended).count() != 5 {
        wrong.push("not all atomics were measured".to_owned());
    }
    for one in of(Group::Extended) {
        if one.nanos * 100 > nanos * (100 + MORE_TIME) {
            wrong.push(format!(
                "{} takes {} ns, more than {MORE_TIME} % over the standard atomics' {nanos}",
                one.name, one.nanos
            ));
        }
        if one.instructions * 100 > instructions * (100 + MORE_INSTRUCTIONS) {
            wrong.push(format!(
                "{} takes {} instructions, more than {MORE_INSTRUCTIONS} % over the standard atomics' {instructions}",
                one.name, one.instructions
            ));
        }
    }
    wrong
}

/// What does not hold of a crowd.
#[must_use]
pub fn of_crowd(crowd: &Crowd) -> Vec<String> {
    let mut wrong = Vec::new();
    if crowd.acquisitions == 0 {
        wrong.push("no client of the crowd got the lock".to_owned());
    }
    for (name, count) in crowd.retries.iter().filter(|(_, count)| *count > 0) {
        wrong.push(format!(
            "{} clients on one lock: {name} is {count}, not 0",
            crowd.clients
        ));
    }
    if crowd.jain < FAIR {
        wrong.push(format!(
            "{} clients on one lock: Jain's index is {:.4}, less than {FAIR}",
            crowd.clients, crowd.jain
        ));
    }
    if crowd.goodput < GOODPUT {
        wrong.push(format!(
            "{} clients on one lock: the goodput is {:.3} of what hand-overs allow, less than {GOODPUT}",
            crowd.clients, crowd.goodput
        ));
    }
    wrong
}

/// What does not hold of full shared queues: that no sender starves.
#[must_use]
pub fn of_pressure(all: &[Pressure]) -> Vec<String> {
    let mut wrong = Vec::new();
    for one in all {
        let who = format!("{} senders of a full queue", one.setting.senders);
        if one.worst_jain < SHARED {
            wrong.push(format!(
                "{who}: Jain's index is {:.3}, less than {SHARED}",
                one.worst_jain
            ));
        }
        if one.longest_rounds() > LONGEST_WAIT {
            wrong.push(format!(
                "{who}: one has waited {:.1} times as long as all take, more than {LONGEST_WAIT}",
                one.longest_rounds()
            ));
        }
    }
    wrong
}

/// What does not hold of kinds of locks: without clients from elsewhere, the asymmetric lock is the quickest.
#[must_use]
pub fn of_locality(points: &[Point]) -> Vec<String> {
    let mut wrong = Vec::new();
    for point in points {
        let setting = point.setting;
        if point.acquisitions == 0 {
            wrong.push(format!("no client got a lock: {setting:?}"));
        }
        let beaten = points.iter().any(|other| {
            let same = (
                other.setting.nodes,
                other.setting.locks,
                other.setting.local_percent,
            ) == (setting.nodes, setting.locks, 100);
            same && setting.kind == Kind::Asymmetric
                && setting.local_percent == 100
                && other.mops > point.mops
        });
        if beaten {
            wrong.push(format!(
                "another lock is quicker where all are local: {setting:?}"
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locality::Setting;

    #[test]
    fn where_all_are_local_the_asymmetric_lock_is_quickest() {
        let point = |kind, mops| Point {
            setting: Setting {
                kind,
                nodes: 4,
                locks: 8,
                local_percent: 100,
            },
            processes: 12,
            acquisitions: 5,
            nanos: 1,
            mops,
        };
        let (fast, slow) = (point(Kind::Asymmetric, 2.0), point(Kind::Spin, 1.0));
        assert!(of_locality(&[fast.clone(), slow.clone()]).is_empty());
        let none = Point {
            acquisitions: 0,
            mops: 0.0,
            ..fast
        };
        assert_eq!(of_locality(&[none, slow]).len(), 2);
    }

    #[test]
    fn a_sender_that_starves_is_seen() {
        let setting = crate::pressure::Setting {
            senders: 8,
            capacity: 4,
            service_nanos: 1_000,
        };
        let good = Pressure {
            setting,
            worlds: 1,
            messages: 800,
            goodput: 1.0,
            jain: 0.95,
            worst_jain: 0.9,
            fewest: 0.5,
            most: 1.5,
            longest_nanos: 200_000,
            refusals: 2.0,
        };
        let bad = Pressure {
            worst_jain: 0.89,
            longest_nanos: 200_001,
            ..good.clone()
        };
        assert!(of_pressure(&[good]).is_empty());
        assert_eq!(of_pressure(&[bad]).len(), 2);
    }

    fn operation(name: &str, group: Group, nanos: u64, instructions: u64) -> Operation {
        Operation {
            name: name.to_owned(),
            group,
            round_trips: 1,
            one_way: 0,
            instructions,
            nanos,
            reads: 1.0,
        }
    }

    fn all(nanos: u64, instructions: u64) -> Vec<Operation> {
        let mut all = vec![operation("swap", Group::Standard, 1_000, 1_000)];
        all.extend((0..4).map(|_| operation("semP", Group::Extended, 1_000, 1_000)));
        all.push(operation("semV", Group::Extended, nanos, instructions));
        all
    }

    #[test]
    fn an_extended_atomic_may_cost_a_little_more() {
        assert!(of_operations(&all(1_050, 1_200)).is_empty());
        assert!(of_operations(&all(1_051, 1_000))[0].contains("semV takes 1051 ns"));
        assert!(of_operations(&all(1_000, 1_201))[0].contains("1201 instructions"));
        assert!(
            !of_operations(&[]).is_empty(),
            "nothing measured is nothing shown"
        );
    }

    #[test]
    fn a_crowd_is_fair_quick_and_repeats_nothing() {
        let good = Crowd {
            clients: 3,
            nodes: 3,
            nanos: 1_000,
            acquisitions: 9,
            fewest: 3,
            most: 3,
            jain: 1.0,
            hand_over_nanos: 100,
            goodput: 0.95,
            retries: vec![("duplicates".to_owned(), 0)],
        };
        assert!(of_crowd(&good).is_empty());
        let bad = Crowd {
            jain: 0.98,
            goodput: 0.9,
            retries: vec![("duplicates".to_owned(), 2)],
            ..good
        };
        assert_eq!(of_crowd(&bad).len(), 3);
    }
}
