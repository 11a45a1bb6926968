//! Counting instructions with valgrind's callgrind.
//!
//! A benchmark starts itself again under valgrind with one hidden argument. There, each piece to be measured
//! is a function of its own (`#[inline(never)]`, name starting with `probe_`), called from a function named
//! after the case (`case_...`, likewise). Callgrind writes down what each call from one to the other cost,
//! callees included. The count is exact and the same on every run; it needs no library in the measured program
//! and no tool beside valgrind.

use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::process::Command;

/// The argument that makes a benchmark run its cases for callgrind instead of reporting.
pub const CASES: &str = "--cases-for-callgrind";
/// The argument that names the one case to run.
pub const ONLY: &str = "--only-case";

/// What the calls of one function from another cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Number of calls.
    pub calls: u64,
    /// Instructions of all of them, callees included.
    pub instructions: u64,
}

impl Calls {
    /// Instructions per call.
    #[must_use]
    pub fn each(self) -> f64 {
        self.instructions as f64 / self.calls.max(1) as f64
    }
}

/// What callgrind saw.
#[derive(Debug, Default)]
pub struct Profile {
    calls: BTreeMap<(String, String), Calls>,
    own: BTreeMap<String, u64>,
}

impl Profile {
    /// What the function whose name contains `case` paid for its calls of the one whose name contains `probe`.
    ///
    /// # Errors
    /// There was no such call: it was inlined, merged with another, or never made.
    pub fn between(&self, case: &str, probe: &str) -> Result<Calls> {
        let mut sum = Calls::default();
        for ((caller, callee), calls) in &self.calls {
            if named(caller, case) && named(callee, probe) {
                sum.calls += calls.calls;
                sum.instructions += calls.instructions;
            }
        }
        if sum.calls == 0 {
            bail!("callgrind saw no call of {probe} by {case}");
        }
        Ok(sum)
    }

    /// The functions in which most instructions were spent, without their callees.
    #[must_use]
    pub fn hottest(&self, count: usize) -> Vec<(&str, u64)> {
        let mut all: Vec<(&str, u64)> = self.own.iter().map(|(name, own)| (name.as_str(), *own)).collect();
        all.sort_by_key(|&(_, own)| std::cmp::Reverse(own));
        all.truncate(count);
        all
    }

    /// Reads callgrind's output, written without compression of names and positions.
    fn parse(text: &str) -> Result<Self> {
        let mut profile = Self::default();
        let mut function = String::new();
        let mut callee = String::new();
        let mut pending = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                function = name.to_owned();
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("calls=") {
                let count = rest.split(' ').next().unwrap_or_default();
                pending = Some(count.parse::<u64>().with_context(|| format!("in '{line}'"))?);
            } else if line.starts_with(|c: char| c.is_ascii_digit()) {
                let cost: u64 = match line.split(' ').nth(1) {
                    Some(cost) => cost.parse().with_context(|| format!("in '{line}'"))?,
                    None => 0,
                };
                match pending.take() {
                    Some(calls) => {
                        let entry = profile
                            .calls
                            .entry((function.clone(), callee.clone()))
                            .or_default();
                        entry.calls += calls;
                        entry.instructions += cost;
                    }
                    None => *profile.own.entry(function.clone()).or_default() += cost,
                }
            }
        }
        Ok(profile)
    }
}

/// Whether a (demangled or mangled) symbol is the function `name`, not one whose name goes on.
fn named(symbol: &str, name: &str) -> bool {
    symbol.match_indices(name).any(|(at, _)| {
        let next = symbol[at + name.len()..].chars().next();
        // A legacy mangling goes on with the hash's length, `17h`; recursion levels follow a quote.
        !next.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
    })
}

/// Runs this program's cases under callgrind.
///
/// # Errors
/// Valgrind is missing (the message names the package that has it), or the run failed.
pub fn run() -> Result<Profile> {
    Profile::parse(&watch(&[CASES], &[])?)
}

/// Instructions of all calls of `probe` in one case, callees included, by the source file that they come from, most
/// first. Files outside of this repository count as one.
///
/// # Errors
/// As [`run`].
pub fn files_within(case: &str, probe: &str) -> Result<Vec<(String, u64)>> {
    let collect = format!("--toggle-collect=*{probe}*");
    let only = format!("{ONLY}={case}");
    Ok(files(&watch(&[CASES, &only], &[&collect])?))
}

/// Sums callgrind's output by source file.
fn files(text: &str) -> Vec<(String, u64)> {
    let mut files: BTreeMap<String, u64> = BTreeMap::new();
    let mut file = "";
    let mut of_a_call = false;
    for line in text.lines() {
        let named = ["fl=", "fi=", "fe="]
            .iter()
            .find_map(|key| line.strip_prefix(key));
        if let Some(name) = named {
            file = name;
        } else if line.starts_with("calls=") {
            of_a_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            // The line behind a call says what the callee cost: its own lines say so, too.
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok());
            if !std::mem::take(&mut of_a_call) {
                *files.entry(own_file(file)).or_default() += cost.unwrap_or(0);
            }
        }
    }
    let mut files: Vec<(String, u64)> = files.into_iter().collect();
    files.sort_by_key(|&(_, cost)| std::cmp::Reverse(cost));
    files
}

/// A file's name from the root of this repository on.
fn own_file(path: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../");
    let root = std::fs::canonicalize(root).unwrap_or_default();
    match std::path::Path::new(path).strip_prefix(root) {
        Ok(own) => own.display().to_string(),
        Err(_) if path.starts_with('/') || path.starts_with("./") => String::from("the standard libraries"),
        // Rust's own files have names without a root where its source is not installed.
        Err(_) => path.to_owned(),
    }
}

/// Runs this program with these arguments under callgrind, and gives what callgrind wrote.
fn watch(arguments: &[&str], options: &[&str]) -> Result<String> {
    let program = std::env::current_exe().context("finding this program's own file")?;
    let output = std::env::temp_dir().join(format!("netvm-callgrind-{}", std::process::id()));
    let result = Command::new("valgrind")
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .args(options)
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(&program)
        .args(arguments)
        .output();
    let finished = match result {
        Ok(finished) => finished,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!(
                "instruction counts need valgrind, which is not installed; on Debian: sudo apt-get install valgrind"
            )
        }
        Err(error) => return Err(error).context("starting valgrind"),
    };
    if !finished.status.success() {
        bail!(
            "the run under valgrind failed ({}):\n{}",
            finished.status,
            String::from_utf8_lossy(&finished.stderr)
        );
    }
    let text = std::fs::read_to_string(&output).context("reading what callgrind wrote")?;
    std::fs::remove_file(&output).context("removing callgrind's file")?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
version: 1
events: Ir

fl=a.rs
fn=bench::case_hit
10 4
cfn=bench::probe_lock
calls=2 20
11 90
12 1

fn=bench::probe_lock
20 60
cfn=bench::barrier
calls=2 3
21 30

fn=bench::case_hit_late
10 1
cfn=bench::probe_lock
calls=1 20
11 50
";

    #[test]
    fn calls_are_told_apart_by_caller() -> Result<()> {
        let profile = Profile::parse(SAMPLE)?;
        let hit = profile.between("case_hit", "probe_lock")?;
        assert_eq!((hit.calls, hit.instructions), (2, 90));
        assert!((profile.between("case_hit_late", "probe_lock")?.each() - 50.0).abs() < 1e-9);
        assert!(profile.between("case_miss", "probe_lock").is_err());
        Ok(())
    }

    #[test]
    fn costs_of_a_file_exclude_callees() {
        assert_eq!(files(SAMPLE), vec![("a.rs".to_owned(), 66)]);
    }

    #[test]
    fn own_cost_excludes_callees() -> Result<()> {
        let profile = Profile::parse(SAMPLE)?;
        assert_eq!(
            profile.hottest(2),
            vec![("bench::probe_lock", 60), ("bench::case_hit", 5)]
        );
        Ok(())
    }
}
