//! `netvm info`: what a program can work on here.

use netvm_process::choice;
use serde::Serialize;
use serde_json::json;

use super::{keys, nodes};
use crate::args::Info;
use crate::doctor;
use crate::failure::Failure;
use crate::output;

/// What is said of encryption: decisions 28 and 29.
const PLAIN: &str = "no link is encrypted without a cluster key (`netvm key new`, --key-file): over shared memory this user's processes alone take part; over UDP a machine that sees the \
                     traffic can read and write what is exported, so an address that other machines reach needs a key or --insecure";

#[derive(Serialize)]
struct Found {
    name: &'static str,
    /// What `netvm_process::open` calls it, where it does.
    open: Option<&'static str>,
    there: bool,
    /// Why it is not there, or what was found.
    because: String,
    fix: Option<String>,
}

impl Found {
    fn of(backend: doctor::Backend) -> Self {
        let missing = backend.checks.iter().find(|check| !check.ok);
        let because = match missing {
            Some(check) => format!("{}: {}", check.name, check.found),
            None => {
                let found = backend
                    .checks
                    .iter()
                    .map(|check| format!("{}: {}", check.name, check.found));
                found.collect::<Vec<_>>().join("; ")
            }
        };
        Self {
            open: match backend.name {
                "software card" => Some("soft"),
                "UDP" => Some("soft://ADDRESS:PORT?key-file=FILE"),
                "kernel device" => Some("device:0"),
                _ => None,
            },
            name: backend.name,
            there: backend.works,
            because,
            fix: missing.and_then(|check| check.fix.clone()),
        }
    }
}

/// Runs it.
///
/// # Errors
/// The kernel does not list its sockets.
pub fn run(options: &Info) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    // What runs is looked at first: looking at back ends starts nodes.
    let running = keys::of(&nodes()?);
    let variable = std::env::var(choice::VARIABLE).ok();
    let auto = choice::auto(variable.as_deref());
    let found: Vec<Found> = doctor::backends(&keys::words(&running))
        .into_iter()
        .map(Found::of)
        .collect();
    if options.json {
        return output::print_json(&json!({
            "version": version,
            "backends": found,
            "auto": auto.as_ref().ok().map(ToString::to_string),
            "variable": variable,
            "error": auto.as_ref().err().map(ToString::to_string),
            "links_encrypted": keys::all_encrypted(&running),
            "nodes": running,
        }));
    }
    let mut text = format!("netvm {version}\n");
    for one in &found {
        let there = if one.there { "there" } else { "not there" };
        text += &format!("{}: {there}\n  {}\n", one.name, one.because);
        if let Some(fix) = &one.fix {
            text += &format!("  fix: {fix}\n");
        }
        if let Some(open) = one.open.filter(|_| one.there) {
            text += &format!("  opened as \"{open}\"\n");
        }
    }
    let by = match &variable {
        Some(_) => format!(", as {} says", choice::VARIABLE),
        None => String::new(),
    };
    text += &match auto {
        Ok(auto) => format!("\"auto\" opens \"{auto}\"{by}\n"),
        Err(error) => format!("\"auto\" opens nothing: {error}\n"),
    };
    text += &match running.len() {
        0 => "no node of this user runs\n".to_owned(),
        1 => format!("1 node of this user runs ({})\n", keys::words(&running)),
        count => format!("{count} nodes of this user run ({})\n", keys::words(&running)),
    };
    output::print(&(text + PLAIN + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Backend, Check};

    #[test]
    fn what_is_not_there_says_why() {
        let backend = Backend {
            name: "kernel device",
            about: "",
            works: false,
            everywhere: false,
            checks: vec![
                Check::there("a", "x"),
                Check::missing("device", "no /dev/netvm0", "insmod"),
            ],
        };
        let found = Found::of(backend);
        assert_eq!(found.because, "device: no /dev/netvm0");
        assert_eq!(found.fix.as_deref(), Some("insmod"));
        assert!(!found.there);
    }
}
