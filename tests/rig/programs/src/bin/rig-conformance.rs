//! The conformance suite through the kernel: run it on all hosts at the same time, with the same arguments.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use netvm::{Node, device};
use netvm_conformance::{ALL, Case, Cluster, Env, Needs, PORTS_PER_CASE, Trouble};
use netvm_rig::spread::{SKIPPED, Single, Spread};

/// Ends with 0 if every case that runs here does well, 1 at the first that does not, 2 for arguments that make no sense, 3 where there
/// is no card.
#[derive(Clone, Parser)]
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
    /// Runs this part of a case alone: how each of a case's processes is started.
    #[arg(long, hide = true, requires = "only")]
    part: Option<usize>,
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
    match arguments.part {
        Some(part) => one_part(&arguments, node, part),
        None => suite(arguments, node),
    }
}

/// The cases that were asked for, each with its place in the suite.
fn chosen(only: &[String]) -> impl Iterator<Item = (usize, &'static Case)> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    ALL.iter().enumerate().filter(move |(_, case)| wanted(case.name))
}

fn env(arguments: &Arguments, cluster: Arc<dyn Cluster>, index: usize, case: &Case) -> Env {
    let mut env = Env::new(cluster, arguments.scale, arguments.seed);
    env.patience = Duration::from_secs(arguments.patience);
    // A host that is one case ahead uses other ports than the one that it waits for.
    env.first_port = 1 + PORTS_PER_CASE * (index % 4) as u16;
    // Two of a case's nodes may be one machine, unless they have to be apart.
    let machines = env.nodes.len();
    if case.needs != Needs::Apart {
        let more = machines..usize::from(case.nodes);
        env.nodes.extend(more.map(|node| (node % machines) as u16));
    }
    env
}

fn suite(arguments: Arguments, node: Node) -> ExitCode {
    let shared = arguments.clone();
    let start = move |case: &Case, part: usize| {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["--only", case.name])
            .args(["--part", &part.to_string()]);
        command.args(["--seed", &shared.seed.to_string()]);
        command.args(["--scale", &shared.scale.to_string()]);
        command.args(["--patience", &shared.patience.to_string()]);
        command.arg("--device").arg(&shared.device);
        if let Some(group) = &shared.cgroup {
            command.arg("--cgroup").arg(group);
        }
        Ok(command)
    };
    let cluster = match Spread::new(node, arguments.cgroup.clone(), Box::new(start)) {
        Ok(cluster) => cluster,
        Err(error) => {
            eprintln!("rig-conformance: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (index, case) in chosen(&arguments.only) {
        let env = env(&arguments, Arc::clone(&cluster) as Arc<dyn Cluster>, index, case);
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
        if failed > 0 {
            // The machines are out of step: each further case would wait in vain, one patience long.
            break;
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs one part of one case.
fn one_part(arguments: &Arguments, node: Node, part: usize) -> ExitCode {
    let Some((index, case)) = chosen(&arguments.only).next() else {
        return ExitCode::from(2);
    };
    let cluster = Single::new(node, arguments.cgroup.clone(), part);
    let env = env(arguments, Arc::clone(&cluster) as Arc<dyn Cluster>, index, case);
    match cluster.run(case, &env) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Trouble::Skipped(_)) => ExitCode::from(SKIPPED),
        Err(trouble) => {
            eprintln!("rig-conformance: part {part} of {}: {trouble}", case.name);
            ExitCode::FAILURE
        }
    }
}
