//! `netvm doctor`: for each back end what works, what is missing, and the command that fixes it.

mod emulator;
mod kernel;
mod rig;
mod simulator;
mod soft;

use std::fmt::Write as _;

use serde::Serialize;

use crate::args::Doctor;
use crate::failure::Failure;
use crate::observe::{keys, nodes};
use crate::output;

/// One thing that a back end needs.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What is needed.
    pub name: String,
    /// Is it there?
    pub ok: bool,
    /// What was found.
    pub found: String,
    /// The command or setting that brings it, where it is not there.
    pub fix: Option<String>,
}

impl Check {
    /// Something that is there.
    pub fn there(name: &str, found: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            ok: true,
            found: found.into(),
            fix: None,
        }
    }

    /// Something that is missing, and what brings it.
    pub fn missing(name: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            ok: false,
            found: found.into(),
            fix: Some(fix.into()),
        }
    }
}

/// A back end: where NetVM can run.
#[derive(Debug, Serialize)]
pub struct Backend {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Everything that it needs is there.
    pub works: bool,
    /// Should it work on every machine? The others need a card, or programs that `netvm` itself does not.
    pub everywhere: bool,
    /// What was looked at.
    pub checks: Vec<Check>,
}

impl Backend {
    fn new(name: &'static str, about: &'static str, everywhere: bool, checks: Vec<Check>) -> Self {
        let works = checks.iter().all(|check| check.ok);
        Self {
            name,
            about,
            works,
            everywhere,
            checks,
        }
    }
}

#[derive(Serialize)]
struct Examination {
    ok: bool,
    backends: Vec<Backend>,
}

/// The back ends that a program can work on, examined. `keys`: what running nodes say of their keys.
pub(crate) fn backends(keys: &str) -> Vec<Backend> {
    vec![
        soft::examine(),
        soft::examine_udp(keys),
        emulator::examine(),
        kernel::examine(),
    ]
}

/// Looks at everything and says what was found.
///
/// # Errors
/// [`Failure::Unavailable`] after printing, if a back end that works everywhere does not work here.
pub fn run(options: &Doctor) -> Result<(), Failure> {
    // What runs is looked at first: looking at back ends starts nodes.
    let keys = match nodes() {
        Ok(nodes) => keys::words(&keys::of(&nodes)),
        Err(Failure::Unavailable { what, fix }) => format!("not known: {what} ({fix})"),
        Err(other) => format!("not known: {other}"),
    };
    let mut backends = backends(&keys);
    backends.extend([simulator::examine(), rig::examine()]);
    let broken: Vec<&Backend> = backends
        .iter()
        .filter(|backend| backend.everywhere && !backend.works)
        .collect();
    let outcome = match broken.first() {
        None => Ok(()),
        Some(first) => {
            let fix = first.checks.iter().find_map(|check| check.fix.clone());
            Err(Failure::Unavailable {
                what: format!("the {} does not work on this machine", first.name),
                fix: fix.unwrap_or_else(|| "see above".to_owned()),
            })
        }
    };
    if options.json {
        output::print_json(&Examination {
            ok: outcome.is_ok(),
            backends,
        })?;
    } else {
        output::print(&table(&backends))?;
    }
    outcome
}

fn table(backends: &[Backend]) -> String {
    let mut text = String::new();
    for backend in backends {
        let verdict = match (backend.works, backend.everywhere) {
            (true, _) => "works",
            (false, true) => "does not work here",
            (false, false) => "not on this machine",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} ({}): {verdict}", backend.name, backend.about);
        for check in &backend.checks {
            let mark = if check.ok { "ok     " } else { "missing" };
            let _ = writeln!(text, "  {mark}  {}: {}", check.name, check.found);
            if let Some(fix) = &check.fix {
                let _ = writeln!(text, "           fix: {fix}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missing_thing_breaks_a_back_end_and_shows_its_fix() {
        let checks = vec![Check::there("a", "x"), Check::missing("b", "no b", "get b")];
        let backend = Backend::new("n", "about", true, checks);
        assert!(!backend.works);
        let text = table(&[backend]);
        assert!(
            text.contains("does not work here") && text.contains("fix: get b"),
            "{text}"
        );
    }

    #[test]
    fn what_needs_a_card_is_not_broken_where_there_is_none() {
        let checks = || vec![Check::missing("b", "no b", "get b")];
        assert!(table(&[Backend::new("n", "about", false, checks())]).contains("not on this machine"));
        assert!(table(&[Backend::new("n", "about", true, checks())]).contains("does not work here"));
        assert!(table(&[Backend::new("n", "about", false, vec![])]).contains("works"));
    }
}
