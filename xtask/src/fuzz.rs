//! Builds and runs the fuzz targets of `tests/fuzz`.
//!
//! The targets are ordinary libFuzzer programs, built here with the flags that `cargo fuzz` passes, so that
//! nothing needs to be installed but a C++ compiler. `cargo fuzz` works in that folder as well. With a nightly
//! toolchain they run under AddressSanitizer; stable has no sanitizers.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{MetadataCommand, TargetKind};

use crate::run::{Context, Outcome};
use netvm_harness::cargo::{cargo, output_of, root, target, works};

/// libFuzzer's instrumentation.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
     -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares \
     -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
     -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks";

/// Runs each target for the given time; any crash, hang or leak is a failure with its input kept.
pub(crate) fn fuzz(context: &mut Context<'_>) -> Result<Outcome> {
    let folder = root().join("tests/fuzz");
    let manifest = folder.join("Cargo.toml");
    if !manifest.exists() {
        return Ok(Outcome::Skipped("there is no tests/fuzz in this tree".to_owned()));
    }
    if !works("c++", &["--version"]) {
        return Ok(Outcome::Skipped(
            "libFuzzer needs a C++ compiler: cargo xtask setup".to_owned(),
        ));
    }
    if !works("cargo", &["+nightly", "--version"]) {
        return Ok(Outcome::Skipped(
            "no nightly toolchain here: rustup toolchain install nightly".to_owned(),
        ));
    }
    let host =
        output_of("rustc", &["+nightly", "--print", "host-tuple"]).context("rustc +nightly says no host")?;
    let names = targets(&manifest)?;
    if names.is_empty() {
        bail!("tests/fuzz has no targets");
    }

    let built = target().join("fuzz");
    // A named target keeps the flags away from build scripts and procedural macros.
    let mut build = cargo(&["+nightly", "build", "--release", "--bins", "--target", &host]);
    build
        .arg("--manifest-path")
        .arg(&manifest)
        .arg("--target-dir")
        .arg(&built);
    context.exec(build.env("RUSTFLAGS", format!("{COVERAGE} -Zsanitizer=address")))?;

    let mut runs = Vec::new();
    for name in &names {
        let corpus = target().join("fuzz-corpus").join(name);
        std::fs::create_dir_all(&corpus)?;
        let mut run = Command::new(built.join(&host).join("release").join(name));
        run.current_dir(&folder).arg(&corpus);
        let seeds = folder.join("corpus").join(name);
        if !seeds.is_dir() {
            bail!("{name} has no inputs in tests/fuzz/corpus to begin with: see tests/fuzz/README.md");
        }
        run.arg(seeds);
        run.arg(format!("-max_total_time={}", context.fuzz_seconds));
        run.args([
            "-timeout=20",
            "-rss_limit_mb=4096",
            "-print_final_stats=1",
            "-verbosity=1",
        ]);
        run.arg(format!("-artifact_prefix={}", crashes(name)));
        runs.push(run);
    }
    for (name, end) in names.iter().zip(context.exec_side_by_side(runs)) {
        end.with_context(|| format!("{name}: the input is at {}*", crashes(name)))?;
    }
    let runs = executed(context.log());
    if runs == 0 {
        bail!("no target executed any input");
    }
    Ok(Outcome::Passed(format!(
        "{}, {} s each, {runs} inputs",
        names.join(", "),
        context.fuzz_seconds
    )))
}

/// How the names of files begin into which a target writes what it fails with.
fn crashes(name: &str) -> String {
    let prefix = target().join("xtask").join(format!("fuzz-{name}-"));
    prefix.display().to_string()
}

fn targets(manifest: &Path) -> Result<Vec<String>> {
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec()?;
    let folder = manifest.parent().context("a manifest is in a folder")?;
    let mut names: Vec<String> = metadata
        .packages
        .iter()
        .filter(|package| package.manifest_path.as_std_path().starts_with(folder))
        .flat_map(|package| &package.targets)
        .filter(|target| target.kind.contains(&TargetKind::Bin))
        .map(|target| target.name.clone())
        .collect();
    names.sort();
    Ok(names)
}

/// The inputs that libFuzzer says it executed, over all targets in the log.
fn executed(log: &Path) -> u64 {
    std::fs::read_to_string(log)
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .filter_map(|rest| rest.trim().parse::<u64>().ok())
        .sum()
}
