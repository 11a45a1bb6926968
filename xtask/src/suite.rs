//! The workspace's test programs. They are built once, all together, and each stage runs those that belong to it.
//!
//! A `cargo test --package` for each stage would choose features for its packages alone, and so build most of the workspace anew
//! each time. What fails alone is still run by such a command, which the log names.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{Message, MetadataCommand, Target, TargetKind};

use crate::run::Context;
use netvm_harness::cargo::{cargo, root};

/// Every check of a debug build, at a speed at which the simulator can be tested.
pub(crate) const PROFILE: [&str; 2] = ["--profile", "checked"];

/// Packages whose tests have a stage of their own.
pub(crate) const LOOM: &[&str] = &["netvm-loom"];
pub(crate) const MODELS: &[&str] = &["netvm-models"];
pub(crate) const HOSTILE: &[&str] = &["netvm-faults"];
pub(crate) const CONFORMANCE: &[&str] = &["netvm-conformance", "netvm-emulator"];
pub(crate) const SIM: &[&str] = &["netvm-world", "netvm-bench-sync", "netvm-bench-wire"];

/// Whether the tests of a package have no stage of their own.
pub(crate) fn is_unit(package: &str) -> bool {
    [LOOM, MODELS, HOSTILE, CONFORMANCE, SIM]
        .iter()
        .all(|packages| !packages.contains(&package))
}

/// A test program.
struct Program {
    package: String,
    /// As `cargo test` takes it: `--lib`, or `--test NAME`.
    target: Vec<String>,
    folder: PathBuf,
    executable: PathBuf,
}

/// Builds all test programs.
pub(crate) fn build(context: &mut Context<'_>) -> Result<()> {
    context.exec(&mut cargo_test(&["--no-run"]))
}

/// How test programs run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// One after the other: some measure time, or have threads that spin.
    OneByOne,
    /// One on each processor: they compute, in virtual time or none.
    SideBySide,
}

/// Builds all test programs, and runs those of the packages that are wanted, each with the variables of `env`. All run, however the
/// others end.
pub(crate) fn run(
    context: &mut Context<'_>,
    pace: Pace,
    wanted: &dyn Fn(&str) -> bool,
    env: &[(&str, String)],
) -> Result<()> {
    build(context)?;
    let programs: Vec<Program> = programs()?
        .into_iter()
        .filter(|program| wanted(&program.package))
        .collect();
    let commands = programs.iter().map(|program| {
        let mut command = Command::new(&program.executable);
        command
            .current_dir(&program.folder)
            .env("NETVM_WHOLE", "1")
            .envs(env.iter().cloned());
        command
    });
    let ends: Vec<Result<()>> = match pace {
        Pace::OneByOne => commands.map(|mut command| context.exec(&mut command)).collect(),
        Pace::SideBySide => context.exec_side_by_side(commands.collect()),
    };
    let mut failed = Vec::new();
    for (program, end) in programs.iter().zip(ends) {
        if let Err(error) = end {
            if context.is_over() {
                return Err(error);
            }
            failed.push(alone(program));
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed: {}", failed.join("; "))
}

/// The documentation's tests, of all packages.
pub(crate) fn documentation(context: &mut Context<'_>) -> Result<()> {
    context.exec(&mut cargo_test(&["--doc", "--no-fail-fast"]))
}

pub(crate) fn cargo_test(args: &[&str]) -> Command {
    let mut command = cargo(&["test", "--workspace", "--locked"]);
    command.args(PROFILE).args(args);
    command
}

/// The command that runs a program alone.
fn alone(program: &Program) -> String {
    let mut words = vec!["cargo test", "--package", &program.package];
    words.extend(PROFILE);
    words.extend(program.target.iter().map(String::as_str));
    words.join(" ")
}

/// What has been built.
fn programs() -> Result<Vec<Program>> {
    let workspace = MetadataCommand::new()
        .current_dir(root())
        .no_deps()
        .exec()
        .context("asking cargo for the workspace's packages")?;
    let mut command = cargo_test(&["--no-run", "--quiet", "--message-format=json"]);
    let mut cargo = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let output = cargo.stdout.take().context("cargo without its output")?;
    let mut programs = Vec::new();
    for message in Message::parse_stream(std::io::BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message.context("reading what cargo says")?
            && artifact.profile.test
            && let Some(executable) = artifact.executable
        {
            let package = &workspace[&artifact.package_id];
            let folder = package.manifest_path.parent();
            programs.push(Program {
                package: package.name.to_string(),
                target: target_of(&artifact.target),
                folder: folder
                    .context("a manifest without a folder")?
                    .to_path_buf()
                    .into(),
                executable: executable.into(),
            });
        }
    }
    if !cargo.wait()?.success() {
        bail!("the test programs cannot be listed");
    }
    // Cargo names each as it becomes ready.
    programs.sort_by(|one, other| (&one.package, &one.target).cmp(&(&other.package, &other.target)));
    Ok(programs)
}

fn target_of(target: &Target) -> Vec<String> {
    let option = match target.kind.first() {
        Some(TargetKind::Test) => "--test",
        Some(TargetKind::Bin) => "--bin",
        Some(TargetKind::Example) => "--example",
        Some(TargetKind::Bench) => "--bench",
        _ => return vec!["--lib".to_owned()],
    };
    vec![option.to_owned(), target.name.clone()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_belongs_to_one_stage() {
        let stages = [LOOM, MODELS, HOSTILE, CONFORMANCE, SIM];
        let named: Vec<&str> = stages.into_iter().flatten().copied().collect();
        let workspace = MetadataCommand::new()
            .current_dir(root())
            .no_deps()
            .exec()
            .unwrap();
        for name in &named {
            assert!(!is_unit(name), "{name}");
            assert_eq!(named.iter().filter(|other| *other == name).count(), 1, "{name}");
            assert!(
                workspace
                    .packages
                    .iter()
                    .any(|package| package.name.as_str() == *name),
                "there is no package {name}"
            );
        }
        assert!(is_unit("netvm-nic"));
    }
}
