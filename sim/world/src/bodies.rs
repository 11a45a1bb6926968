//! Which bodies of the conformance suite ran in a world, and whether a list of seeds has had enough of each idiom.

use netvm_conformance::{ALL, Case};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// One seed in this many must have had each idiom.
const ONE_IN: u64 = 6;

/// How often something ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ran {
    /// In how many seeds.
    pub seeds: u64,
    /// How often it was begun.
    pub begun: u64,
    /// Of these, how often all of it succeeded: the other times a fault or the end of the run has come between.
    pub well: u64,
}

impl Ran {
    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.begun += other.begun;
        self.well += other.well;
    }
}

/// What ran in one seed, or in many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bodies {
    /// How many seeds this is of; large worlds run no bodies, and are not counted.
    pub seeds: u64,
    /// By body.
    pub bodies: BTreeMap<&'static str, Ran>,
    /// By idiom: what of the library bodies are about.
    pub idioms: BTreeMap<&'static str, Ran>,
}

impl Bodies {
    /// The same, of one seed, or of none where no bodies run.
    pub(crate) fn of_seeds(self, seeds: u64) -> Self {
        Self { seeds, ..self }
    }

    /// A body begins.
    pub(crate) fn begins(&mut self, case: &Case) {
        for ran in self.of(case) {
            ran.seeds = 1;
            ran.begun += 1;
        }
    }

    /// A body has ended well.
    pub(crate) fn ends_well(&mut self, case: &Case) {
        for ran in self.of(case) {
            ran.well += 1;
        }
    }

    fn of(&mut self, case: &Case) -> [&mut Ran; 2] {
        [
            self.bodies.entry(case.name).or_default(),
            self.idioms.entry(case.idiom()).or_default(),
        ]
    }

    /// Adds what ran in other seeds.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        for (sum, more) in [
            (&mut self.bodies, &other.bodies),
            (&mut self.idioms, &other.idioms),
        ] {
            for (&name, &ran) in more {
                sum.entry(name).or_default().add(ran);
            }
        }
    }

    /// Idioms that ran in less than one seed of six: such a list has not mixed what it claims.
    #[must_use]
    pub fn rare(&self) -> Vec<&'static str> {
        let often = |idiom: &str| self.idioms.get(idiom).map_or(0, |ran| ran.seeds) * ONE_IN >= self.seeds;
        idioms().into_iter().filter(|idiom| !often(idiom)).collect()
    }

    /// The table as text: idioms, and under each its bodies.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        let mut row = |name: &str, ran: Ran| {
            let _ = writeln!(
                out,
                "{name:<28} {:>7} {:>7} {:>7}",
                ran.seeds, ran.begun, ran.well
            );
        };
        for (idiom, &ran) in &self.idioms {
            row(idiom, ran);
            for case in ALL.iter().filter(|case| case.idiom() == *idiom) {
                if let Some(&ran) = self.bodies.get(case.name) {
                    row(&format!("  {}", case.name), ran);
                }
            }
        }
        format!(
            "{:<28} {:>7} {:>7} {:>7}\n{out}",
            "idiom and body", "seeds", "begun", "well"
        )
    }
}

/// All idioms that there are bodies of.
pub(crate) fn idioms() -> Vec<&'static str> {
    let all: BTreeSet<&str> = ALL.iter().map(Case::idiom).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idiom_that_hardly_ever_ran_is_rare() {
        let mut sum = Bodies::default();
        for seed in 0..12 {
            let mut one = Bodies::default().of_seeds(1);
            for case in ALL {
                if case.idiom() != "locks" || seed == 0 {
                    one.begins(case);
                    one.begins(case);
                    one.ends_well(case);
                }
            }
            sum.add(&one);
        }
        assert_eq!(sum.rare(), ["locks"]);
        let monitors = sum.idioms["monitors"];
        let bodies = ALL.iter().filter(|case| case.idiom() == "monitors").count() as u64;
        assert_eq!(
            (monitors.seeds, monitors.begun, monitors.well),
            (12, 24 * bodies, 12 * bodies)
        );
        assert!(sum.table().contains("\nmonitors"), "{}", sum.table());
        let mut more = Bodies::default().of_seeds(1);
        more.begins(ALL.iter().find(|case| case.idiom() == "locks").expect("a body"));
        sum.add(&more);
        assert_eq!(sum.rare(), ["locks"], "2 of 13");
        more.seeds = 0;
        sum.add(&more);
        assert!(sum.rare().is_empty(), "3 of 13");
    }
}
