//! Traffic between two hosts: one serves memory ([`serve`]), the other one writes all of it, in pieces of any length at
//! any alignment and in any order, and reads it back ([`drive`]). Either may be told to start over when something fails.

mod drive;
mod life;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use netvm::device;

use life::{Report, Trouble};

/// What is served is called so.
const NAME: &str = "store";
/// Signalled when everything of a round has landed.
const LANDED: u32 = 1;

/// Ends with 0 if all bytes were right and nothing failed that was not allowed to.
#[derive(Parser)]
#[command(
    name = "rig-traffic",
    about = "Writes and reads another host's memory, and checks every byte"
)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Exports memory, and says its digest whenever a round has landed.
    Serve(Common),
    /// Writes it and reads it back; says at the end, as one JSON object, what happened.
    Drive(drive::Drive),
}

/// What both are told.
#[derive(Args)]
struct Common {
    /// The card's device.
    #[arg(long, default_value = device::FIRST)]
    device: PathBuf,
    /// The serving port.
    #[arg(long, default_value_t = 40)]
    port: u16,
    /// Size of the memory, in KiB.
    #[arg(long, default_value_t = 1024)]
    kib: u64,
    /// Stop after this many rounds.
    #[arg(long)]
    rounds: Option<u64>,
    /// Stop after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Stop when this file is there.
    #[arg(long)]
    until: Option<PathBuf>,
    /// Start over, with another port, when something fails.
    #[arg(long)]
    stubborn: bool,
}

fn main() -> ExitCode {
    let mut report = Report::default();
    let result = match Arguments::parse().role {
        Role::Serve(common) => life::live(&common, &mut report, |node, end, report| {
            serve::serve(&common, node, end, report)
        }),
        Role::Drive(drive) => life::live(&drive.common, &mut report, |node, end, report| {
            drive.drive(node, end, report)
        }),
    };
    println!("{}", serde_json::to_string(&report).unwrap_or_default());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("rig-traffic: {trouble}");
            ExitCode::FAILURE
        }
    }
}

impl From<netvm::Error> for Trouble {
    fn from(error: netvm::Error) -> Self {
        Self::Failed(error)
    }
}
