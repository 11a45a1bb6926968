//! `cargo xtask bench net`: connections beside TCP over loopback, into `docs/evaluation/`.

use anyhow::{Context as _, ensure};
use clap::Parser;
use netvm_benches::net::{self, Run};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Runs `netvm bench net` several times and writes page and plot.
#[derive(Parser)]
struct Options {
    /// How often it runs.
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// Few connections and messages.
    #[arg(long)]
    quick: bool,
    /// Folder of the page and the plot.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/evaluation"))]
    out: PathBuf,
}

fn main() -> ExitCode {
    netvm_benches::end(run(&Options::parse()))
}

fn run(options: &Options) -> anyhow::Result<bool> {
    let mut program = std::env::current_exe()?;
    program.set_file_name("netvm");
    let mut runs = Vec::new();
    for _ in 0..options.turns.max(1) {
        let mut command = Command::new(&program);
        command.args(["bench", "net", "--json"]).stderr(Stdio::inherit());
        if options.quick {
            command.arg("--quick");
        }
        let output = command
            .output()
            .with_context(|| format!("running {}: `cargo xtask bench net` builds it", program.display()))?;
        // A goal that is missed is in what it prints.
        ensure!(!output.stdout.is_empty(), "it has measured nothing");
        runs.push(serde_json::from_slice::<Run>(&output.stdout)?);
    }
    print!("{}", net::write(&runs, &options.out)?);
    Ok(true)
}
