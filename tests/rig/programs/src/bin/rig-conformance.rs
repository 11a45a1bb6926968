//! The conformance suite through the kernel: run it on all hosts at the same time, with the same arguments.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use netvm::device;
use netvm_conformance::{ALL, Cluster, Env, PORTS_PER_CASE, Trouble};
use netvm_rig::spread::Spread;

/// Ends with 0 if every case that runs here does well, 1 if one does not, 2 for arguments that make no sense, 3 where there
/// is no card.
#[derive(Parser)]
#[command(name = "rig-conformance", about = "The conformance suite on this host's card")]
struct Arguments {
    /// The card's device.
    #[arg(long, default_value = device::FIRST)]
    device: PathBuf,
    /// Only these cases, in the order of the suite.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Decides sizes, offsets and contents; the same on all hosts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How much work.
    #[arg(long, default_value_t = 1)]
    scale: u32,
    /// How long a case waits for anything before it calls it lost, in seconds.
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// The control group that this program runs in, for cases that want memory pressure.
    #[arg(long)]
    cgroup: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(unknown) = arguments
        .only
        .iter()
        .find(|name| ALL.iter().all(|case| case.name != name.as_str()))
    {
        let names: Vec<&str> = ALL.iter().map(|case| case.name).collect();
        eprintln!(
            "rig-conformance: --only {unknown}: no such case; there are {}",
            names.join(", ")
        );
        return ExitCode::from(2);
    }
    let node = match device::open(&arguments.device) {
        Ok(node) => node,
        Err(error) => {
            eprintln!(
                "rig-conformance: {}: {error:?}; is netvm.ko loaded?",
                arguments.device.display()
            );
            return ExitCode::from(3);
        }
    };
    let cluster = Spread::new(node, arguments.cgroup.clone());
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    for (index, case) in ALL.iter().enumerate().filter(|(_, case)| wanted(case.name)) {
        let mut env = Env::new(
            Arc::clone(&cluster) as Arc<dyn Cluster>,
            arguments.scale,
            arguments.seed,
        );
        env.patience = Duration::from_secs(arguments.patience);
        // A host that is one case ahead uses other ports than the one that it waits for.
        env.first_port = 1 + PORTS_PER_CASE * (index % 4) as u16;
        let began = Instant::now();
        let outcome = cluster.run(case, &env);
        let end = match &outcome {
            Ok(()) => {
                passed += 1;
                "ok".to_owned()
            }
            Err(Trouble::Skipped(why)) => {
                skipped += 1;
                format!("skipped: {why}")
            }
            Err(trouble) => {
                failed += 1;
                format!("FAILED: {trouble}")
            }
        };
        println!("{:<26} {:>6} ms  {end}", case.name, began.elapsed().as_millis());
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}
