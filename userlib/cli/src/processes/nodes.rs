//! `netvm nodes`: which nodes of this user run.

use netvm_process::soft;
use serde::Serialize;

use crate::args::Nodes;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Process {
    process: i32,
    program: String,
    nodes: Vec<u16>,
    names: Vec<String>,
}

#[derive(Serialize)]
struct Found {
    processes: Vec<Process>,
}

/// Runs it.
///
/// # Errors
/// The kernel does not list its sockets.
pub fn run(options: &Nodes) -> Result<(), Failure> {
    let running = soft::running().map_err(|error| Failure::Unavailable {
        what: format!("/proc/net/unix: {error}"),
        fix: "mount /proc".into(),
    })?;
    let program = |pid: i32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.map_or_else(|_| "?".into(), |name| name.trim().to_owned())
    };
    let processes: Vec<Process> = running
        .into_iter()
        .map(|(pid, running)| Process {
            process: pid,
            program: program(pid),
            nodes: running.numbers.iter().map(|number| number.0).collect(),
            names: running.names,
        })
        .collect();
    if options.json {
        return output::print_json(&Found { processes });
    }
    if processes.is_empty() {
        return output::print("no node of this user runs; `netvm serve NAME` starts one\n");
    }
    let mut text = String::new();
    for found in &processes {
        let all = |some: &mut dyn Iterator<Item = String>| some.collect::<Vec<_>>().join(", ");
        text += &format!(
            "process {} ({}): node {}{}\n",
            found.process,
            found.program,
            all(&mut found.nodes.iter().map(u16::to_string)),
            match found.names.as_slice() {
                [] => String::new(),
                names => format!(
                    ", found as {}",
                    all(&mut names.iter().map(|name| format!("'{name}'")))
                ),
            }
        );
    }
    output::print(&text)
}
