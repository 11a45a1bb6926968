//! `netvm sim --memory`: what the memory of one world is made of.

use std::fmt::Write as _;

use netvm_world::footprint::{Footprint, TOLERANCE};
use netvm_world::{Config, run_measured};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, grouped};

/// A row of the table, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Row<'a> {
    group: &'a str,
    name: &'a str,
    bytes_per_node: u64,
}

/// All of it.
#[derive(Debug, Serialize)]
struct Memory<'a> {
    seed: u64,
    nodes: u16,
    /// Anonymous memory of the process that came with the world, divided by its nodes.
    measured_bytes_per_node: u64,
    parts: Vec<Row<'a>>,
    /// What no part names.
    rest_bytes_per_node: i64,
    /// How much that may be, in percent of what was measured.
    tolerance_percent: u64,
    adds_up: bool,
}

/// Runs a seed and prints the parts.
///
/// # Errors
/// [`Failure::Wrong`] when the run failed, or the parts do not add up.
pub(super) fn print(seed: u64, config: &Config, json: bool) -> Result<(), Failure> {
    let (_, footprint) = run_measured(seed, config).map_err(|failure| Failure::Wrong(failure.to_string()))?;
    let nodes = u64::from(config.nodes.max(1));
    let memory = Memory {
        seed,
        nodes: config.nodes,
        measured_bytes_per_node: footprint.measured / nodes,
        parts: footprint
            .parts
            .iter()
            .map(|part| Row {
                group: part.group,
                name: &part.name,
                bytes_per_node: part.bytes / nodes,
            })
            .collect(),
        rest_bytes_per_node: footprint.rest() / nodes as i64,
        tolerance_percent: TOLERANCE,
        adds_up: footprint.adds_up(),
    };
    if json {
        output::print_json(&memory)?;
    } else {
        output::print(&table(&memory))?;
    }
    if memory.adds_up {
        return Ok(());
    }
    Err(Failure::Wrong(complaint(&footprint)))
}

fn complaint(footprint: &Footprint) -> String {
    format!(
        "the parts add up to {} KiB, and {} KiB were measured: more than {TOLERANCE} % apart",
        grouped(footprint.named() / 1024),
        grouped(footprint.measured / 1024)
    )
}

fn table(memory: &Memory<'_>) -> String {
    let mut text = format!(
        "seed {}, {} nodes: KiB for each node\n\n{:<13} {:<40} {:>9}\n",
        memory.seed, memory.nodes, "of", "part", "KiB"
    );
    let mut row = |group: &str, name: &str, bytes: i64| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{group:<13} {name:<40} {:>9.1}", bytes as f64 / 1024.0);
    };
    // What is less than a KiB stands in one line.
    let (large, small): (Vec<_>, Vec<_>) = memory.parts.iter().partition(|part| part.bytes_per_node >= 1024);
    for part in large {
        row(part.group, part.name, part.bytes_per_node as i64);
    }
    row(
        "all",
        "parts below 1 KiB",
        small.iter().map(|part| part.bytes_per_node as i64).sum(),
    );
    row("library, heap", "not named", memory.rest_bytes_per_node);
    row("", "measured", memory.measured_bytes_per_node as i64);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_world::footprint::Part;

    fn footprint(measured: u64) -> Footprint {
        Footprint {
            measured,
            parts: vec![Part {
                group: "card",
                name: "staging buffers".to_owned(),
                bytes: 86_000,
            }],
        }
    }

    #[test]
    fn parts_that_do_not_add_up_are_told() {
        assert!(footprint(100_000).adds_up());
        let far = footprint(200_000);
        assert!(!far.adds_up() && complaint(&far).contains("83 KiB"));
    }
}
