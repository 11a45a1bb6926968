//! What a list of seeds comes to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use netvm_world::faults::{Coverage, FaultKind, ProtocolState};
use netvm_world::{Bodies, Config, Failure};
use serde::Serialize;

use super::run::Run;
use crate::output::grouped;

/// The program's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// Before the first run, in bytes.
    pub(crate) before: u64,
    /// The most that it ever was, in bytes.
    pub(crate) peak: u64,
    /// Worlds that ran at once, at most.
    pub(crate) worlds: usize,
}

/// The sum over all seeds that ran, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Sum {
    /// No seed failed, and every kind of fault fired where that can be asked for.
    pub(crate) ok: bool,
    /// Seeds that held.
    pub(crate) seeds: u32,
    /// Seeds asked for.
    pub(crate) seeds_asked: u32,
    /// The first; the others follow it.
    pub(crate) first_seed: u64,
    /// Nodes in each world.
    pub(crate) nodes: u16,
    /// Messages, over all.
    pub(crate) messages: u64,
    /// The fewest messages of a run.
    pub(crate) fewest_messages: u64,
    /// Steps of the worlds, over all.
    pub(crate) events: u64,
    /// Time that passed for the nodes, in nanoseconds, over all.
    pub(crate) virtual_nanos: u64,
    /// Time that passed for the person.
    pub(crate) seconds: f64,
    /// Time of one core for one node of one run.
    pub(crate) seconds_per_node: f64,
    /// The most memory that the program had, in bytes.
    pub(crate) peak_bytes: u64,
    /// What of it came with the runs, divided by the nodes that ran at once.
    pub(crate) bytes_per_node: u64,
    /// What the NICs and hosts (`host_...`) counted, over all: each since its node was last started.
    pub(crate) counters: BTreeMap<String, u64>,
    /// For each kind of fault, how often it fired in each state of the protocol.
    pub(crate) coverage: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// Kinds of fault that never fired.
    pub(crate) never_fired: Vec<&'static str>,
    /// How often each body of the conformance suite ran, and each idiom.
    pub(crate) bodies: Bodies,
    /// Idioms that ran too seldom for the list to have mixed them.
    pub(crate) rare: Vec<&'static str>,
    /// Seeds that failed.
    pub(crate) failures: Vec<Failure>,
    /// The files that hold their traces.
    pub(crate) traces: Vec<PathBuf>,
    #[serde(skip)]
    table: Coverage,
    #[serde(skip)]
    core_time: Duration,
    #[serde(skip)]
    must_cover: bool,
}

impl Sum {
    /// Of nothing yet.
    pub(crate) fn new(first_seed: u64, seeds_asked: u32, config: &Config) -> Self {
        Self {
            ok: false,
            seeds: 0,
            seeds_asked,
            first_seed,
            nodes: config.nodes,
            messages: 0,
            fewest_messages: 0,
            events: 0,
            virtual_nanos: 0,
            seconds: 0.0,
            seconds_per_node: 0.0,
            peak_bytes: 0,
            bytes_per_node: 0,
            counters: BTreeMap::new(),
            coverage: BTreeMap::new(),
            never_fired: Vec::new(),
            bodies: Bodies::default(),
            rare: Vec::new(),
            failures: Vec::new(),
            traces: Vec::new(),
            table: Coverage::default(),
            core_time: Duration::ZERO,
            must_cover: false,
        }
    }

    /// Adds one run.
    pub(crate) fn add(&mut self, run: Run) {
        self.core_time += run.time;
        match run.outcome {
            Err(failure) => self.failures.push(*failure),
            Ok(report) => {
                self.fewest_messages = if self.seeds == 0 {
                    report.messages
                } else {
                    self.fewest_messages.min(report.messages)
                };
                self.seeds += 1;
                self.messages += report.messages;
                self.events += report.events;
                self.virtual_nanos += report.virtual_nanos;
                for (name, value) in report.counters {
                    *self.counters.entry(name).or_default() += value;
                }
                self.table.add(&report.coverage);
                self.bodies.add(&report.bodies);
            }
        }
    }

    /// Ends the sum. `must_cover`: a kind of fault that never fired, or an idiom that hardly ever ran, is a failure.
    pub(crate) fn finish(&mut self, time: Duration, memory: Memory, must_cover: bool) {
        self.must_cover = must_cover;
        self.seconds = time.as_secs_f64();
        let worlds = (memory.worlds as u64).clamp(1, u64::from(self.seeds_asked.max(1)));
        let runs = memory.peak.saturating_sub(memory.before);
        self.peak_bytes = memory.peak;
        self.bytes_per_node = runs / (worlds * u64::from(self.nodes.max(1)));
        self.seconds_per_node =
            self.core_time.as_secs_f64() / f64::from(self.seeds.max(1)) / f64::from(self.nodes.max(1));
        self.never_fired = self
            .table
            .never_fired()
            .into_iter()
            .map(FaultKind::label)
            .collect();
        self.rare = self.bodies.rare();
        for (kind, states) in FaultKind::ALL.iter().zip(&self.table.fired) {
            let row = ProtocolState::ALL
                .iter()
                .map(|state| state.label())
                .zip(states.iter().copied())
                .collect();
            self.coverage.insert(kind.label(), row);
        }
        self.ok = self.complaint().is_none();
    }

    /// What a person should hear about, if anything.
    pub(crate) fn complaint(&self) -> Option<String> {
        if !self.failures.is_empty() {
            let replays: Vec<&str> = self
                .failures
                .iter()
                .map(|failure| failure.replay.as_str())
                .collect();
            let mut text = format!(
                "{} seed(s) failed; replay with\n  {}",
                self.failures.len(),
                replays.join("\n  ")
            );
            for path in &self.traces {
                // Writing to a string cannot fail.
                let _ = write!(text, "\ntrace: {}", path.display());
            }
            return Some(text);
        }
        if self.seeds < self.seeds_asked {
            return Some(format!("only {} of {} seeds ran", self.seeds, self.seeds_asked));
        }
        if self.must_cover && !self.never_fired.is_empty() {
            return Some(format!(
                "never fired in {} seeds: {}",
                self.seeds,
                self.never_fired.join(", ")
            ));
        }
        if self.must_cover && !self.rare.is_empty() {
            return Some(format!(
                "ran in too few of {} seeds: {}",
                self.seeds,
                self.rare.join(", ")
            ));
        }
        None
    }

    /// As a person reads it; the last line is `N seeds: ok` when all is well.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\nhow often each fault fired in each state of the protocol\n"
        );
        text.push_str(&self.table.table());
        let _ = writeln!(text, "\nhow often each body ran beside the others\n");
        text.push_str(&self.bodies.table());
        let _ = writeln!(text);
        let _ = writeln!(
            text,
            "messages        {} ({} in the shortest run)",
            grouped(self.messages),
            grouped(self.fewest_messages)
        );
        let _ = writeln!(text, "events          {}", grouped(self.events));
        let _ = writeln!(text, "virtual time    {:.3} s", self.virtual_nanos as f64 / 1e9);
        let _ = writeln!(
            text,
            "a node takes    {:.1} ms of one core for a run, {} KiB while it runs",
            self.seconds_per_node * 1e3,
            grouped(self.bytes_per_node / 1024)
        );
        let _ = writeln!(
            text,
            "memory          {} KiB at most",
            grouped(self.peak_bytes / 1024)
        );
        let _ = writeln!(text, "time            {:.1} s", self.seconds);
        if !self.never_fired.is_empty() {
            let _ = writeln!(text, "never fired     {}", self.never_fired.join(", "));
        }
        if !self.rare.is_empty() {
            let _ = writeln!(text, "ran too seldom  {}", self.rare.join(", "));
        }
        if self.ok {
            let _ = writeln!(text, "\n{} seeds: ok", self.seeds);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_world::{Ran, Report};

    fn sum(asked: u32) -> Sum {
        Sum::new(1, asked, &Config::default())
    }

    fn failed() -> Run {
        let failure = Failure {
            seed: 1,
            nodes: 4,
            point: None,
            promise: None,
            what: "x".to_owned(),
            virtual_nanos: 0,
            last_events: Vec::new(),
            counters: BTreeMap::new(),
            replay: "play it again".to_owned(),
        };
        Run {
            outcome: Err(Box::new(failure)),
            time: Duration::ZERO,
        }
    }

    fn ran(seeds: u64) -> Ran {
        Ran {
            seeds,
            begun: 2,
            well: 1,
        }
    }

    /// Every number of the JSON goes up with what it counts.
    #[test]
    fn every_number_moves() {
        let mut sum = sum(1);
        let mut coverage = Coverage::default();
        (coverage.fired[0][0], coverage.total[0]) = (1, 1);
        let bodies = Bodies {
            seeds: 1,
            idioms: BTreeMap::from([("locks", ran(1))]),
            ..Bodies::default()
        };
        sum.add(Run {
            outcome: Ok(Report {
                seed: 1,
                nodes: 4,
                messages: 1,
                events: 2,
                virtual_nanos: 3,
                counters: BTreeMap::from([("dropped".to_owned(), 5)]),
                coverage,
                bodies: bodies.clone(),
                longest: BTreeMap::new(),
            }),
            time: Duration::from_secs(6),
        });
        sum.add(failed());
        let memory = Memory {
            before: 1 << 20,
            peak: 3 << 20,
            worlds: 2,
        };
        sum.finish(Duration::from_secs(7), memory, true);
        let all = serde_json::to_value(&sum).expect("JSON");
        for (name, value) in all.as_object().expect("an object") {
            assert!(
                value.as_f64().is_none_or(|number| number > 0.0),
                "{name}: {value}"
            );
        }
        assert_eq!(all["counters"]["dropped"], 5);
        assert_eq!(all["peak_bytes"], 3 << 20);
        assert_eq!(all["bytes_per_node"], (2 << 20) / 4, "one world of 4 nodes");
        let first = (FaultKind::ALL[0].label(), ProtocolState::ALL[0].label());
        assert_eq!(all["coverage"][first.0][first.1], 1);
        assert_eq!(all["bodies"]["idioms"]["locks"]["begun"], 2);
        let rare = all["rare"].as_array().expect("a list");
        assert!(
            rare.contains(&"monitors".into()) && !rare.contains(&"locks".into()),
            "{rare:?}"
        );
        assert_eq!(all["failures"].as_array().map(Vec::len), Some(1));
        let silent = all["never_fired"].as_array().expect("a list");
        assert!(
            !silent.is_empty() && !silent.contains(&first.0.into()),
            "{silent:?}"
        );
    }

    #[test]
    fn an_idiom_that_hardly_ever_ran_fails_a_long_list() {
        let mut sum = sum(0);
        sum.table.total.fill(1);
        sum.bodies.seeds = 60;
        sum.bodies.idioms = BTreeMap::from([("locks", ran(10)), ("channels", ran(9))]);
        sum.finish(Duration::ZERO, Memory::default(), true);
        let complaint = sum.complaint().expect("a complaint");
        assert!(
            complaint.contains("ran in too few of") && complaint.contains("channels"),
            "{complaint}"
        );
        assert!(
            !complaint.contains("locks, ") || complaint.contains("asymmetric locks, "),
            "{complaint}"
        );
        sum.finish(Duration::ZERO, Memory::default(), false);
        assert!(sum.ok);
    }

    #[test]
    fn a_failed_seed_shows_its_replay_and_is_not_ok() {
        let mut sum = sum(1);
        sum.add(failed());
        sum.traces.push("/some/where.txt".into());
        sum.finish(Duration::ZERO, Memory::default(), false);
        assert!(!sum.ok && !sum.table().contains(": ok"));
        assert!(
            sum.complaint()
                .is_some_and(|text| text.contains("trace: /some/where.txt"))
        );
        assert!(sum.complaint().is_some_and(|text| text.contains("play it again")));
    }

    #[test]
    fn seeds_that_did_not_run_are_no_success() {
        let mut sum = sum(3);
        sum.finish(Duration::ZERO, Memory::default(), false);
        assert!(!sum.ok);
    }

    #[test]
    fn a_fault_that_never_fired_fails_a_long_list() {
        let mut sum = sum(0);
        sum.finish(Duration::ZERO, Memory::default(), true);
        assert!(!sum.ok && sum.complaint().is_some_and(|text| text.contains("never fired")));
        sum.finish(Duration::ZERO, Memory::default(), false);
        assert!(sum.ok && sum.table().ends_with("0 seeds: ok\n"));
    }
}
