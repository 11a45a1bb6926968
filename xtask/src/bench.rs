//! `cargo xtask bench NAME`: builds and runs a benchmark of the `benches` package.

use anyhow::{Result, bail, ensure};
use clap::Args;

use netvm_harness::cargo::{cargo, root};
use netvm_harness::packages::install;

use crate::tools;

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// Which benchmark; without a name they are listed.
    name: Option<String>,
    /// Handed on to the benchmark.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs a benchmark program; its output and exit status are the benchmark's own.
pub(crate) fn bench(options: &Options) -> Result<bool> {
    let folder = root().join("benches");
    if !folder.join("Cargo.toml").exists() {
        bail!("there is no benches package in this tree");
    }
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()?;
    let is_program =
        |target: &&cargo_metadata::Target| target.kind.contains(&cargo_metadata::TargetKind::Bin);
    let programs: Vec<(&str, &str)> = metadata
        .packages
        .iter()
        .filter(|found| found.manifest_path.as_std_path().starts_with(&folder))
        .flat_map(|found| {
            let programs = found.targets.iter().filter(is_program);
            programs.map(|target| (target.name.as_str(), found.name.as_str()))
        })
        .collect();
    let names: Vec<&str> = programs.iter().map(|&(name, _)| name).collect();
    if names.is_empty() {
        bail!("the benches package is not in the workspace")
    }
    let Some(name) = options.name.as_deref() else {
        println!("benchmarks: {}", names.join(", "));
        return Ok(true);
    };
    let Some(&(_, package)) = programs.iter().find(|program| program.0 == name) else {
        let what = format!("there is no benchmark `{name}`; there are: {}", names.join(", "));
        return Err(netvm_harness::Usage(what).into());
    };
    let tools: &[_] = match name {
        "peers" => &tools::PEERS,
        "mpi" => &tools::FABRIC,
        "sockets" => &tools::SOCKETS,
        _ => &[],
    };
    if !install(tools)? {
        return Ok(false);
    }
    if name == "mpi" {
        let build = cargo(&["build", "--release", "--quiet", "--package", "netvm-fabric"]).status()?;
        ensure!(build.success(), "the provider for libfabric is not built");
    }
    if name == "sockets" {
        let build = cargo(&["build", "--release", "--quiet", "--package", "netvm-preload"]).status()?;
        ensure!(build.success(), "the library to preload is not built");
    }
    if name == "net" {
        let build = cargo(&["build", "--release", "--quiet", "--package", "netvm-cli"]).status()?;
        ensure!(build.success(), "the netvm program is not built");
    }
    let mut command = cargo(&[
        "run",
        "--release",
        "--quiet",
        "--package",
        package,
        "--bin",
        name,
        "--",
    ]);
    Ok(command.args(&options.args).status()?.success())
}
