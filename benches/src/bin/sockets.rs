//! `cargo xtask bench sockets`: programs of others over the library to preload, beside TCP, into `docs/evaluation/`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Parser;
use netvm_benches::sockets;

/// Runs Redis and iperf3 several times with the library and over TCP, and writes page and plot.
#[derive(Parser)]
struct Options {
    /// How often everything is measured.
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// Few requests.
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
    let library = std::env::current_exe()?.with_file_name("libnetvm_preload.so");
    ensure!(
        library.exists(),
        "{} is not there: `cargo xtask bench sockets` builds it",
        library.display()
    );
    let folder = std::env::temp_dir().join(format!("netvm-sockets-{}", std::process::id()));
    let turns: anyhow::Result<Vec<_>> = (0..options.turns.max(1))
        .map(|_| sockets::measure(&library, &folder, options.quick))
        .collect();
    let _ = std::fs::remove_dir_all(&folder);
    print!("{}", sockets::write(&turns?, &options.out)?);
    Ok(true)
}
