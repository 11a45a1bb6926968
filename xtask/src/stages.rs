//! What `cargo xtask test` runs, in this order: cheap checks first.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::run::{Context, Outcome};
use crate::suite::Pace;
use crate::{c_programs, deny, dist, fabric, foreign, fuzz, guide, house, sockets, suite, surface};
use netvm_harness::cargo::{WORKSPACES, cargo, root, target};
use netvm_harness::exec;

/// One named part of the test run.
pub(crate) struct Stage {
    /// As `--only` takes it.
    pub(crate) name: &'static str,
    /// One line for a person.
    pub(crate) about: &'static str,
    /// What it takes on two usual cores where nothing has been built: so much is kept for it, however slow those before it are.
    pub(crate) minutes: u64,
    /// Stages whose failure makes this one pointless.
    pub(crate) needs: &'static [&'static str],
    /// The work.
    pub(crate) run: fn(&mut Context<'_>) -> Result<Outcome>,
}

/// All stages.
pub(crate) static STAGES: [Stage; 25] = [
    Stage {
        name: "format",
        about: "every file is as rustfmt writes it",
        minutes: 1,
        needs: &[],
        run: format,
    },
    Stage {
        name: "house",
        about: "file sizes, arrows between crates, no unsafe code in the cores, links and anchors of every Markdown file",
        minutes: 1,
        needs: &[],
        run: house::check,
    },
    Stage {
        name: "clippy",
        about: "lints of every target, the fuzz targets too (the image's: stage image); a warning is an error",
        minutes: 3,
        needs: &[],
        run: clippy,
    },
    Stage {
        name: "docs",
        about: "documentation (a warning is an error), the list of the public API, crates as they would be published; with --long, the guide as a book",
        minutes: 2,
        needs: &[],
        run: docs,
    },
    Stage {
        name: "no-std",
        about: "the cores build without any feature",
        minutes: 1,
        needs: &[],
        run: no_std,
    },
    Stage {
        name: "unit",
        about: "unit, property, golden-vector and documentation tests of every crate",
        minutes: 16,
        needs: &[],
        run: unit,
    },
    Stage {
        name: "program",
        about: "the netvm program, as the README builds it, and the examples",
        minutes: 4,
        needs: &[],
        run: program,
    },
    Stage {
        name: "c",
        about: "the library for C: its header, symbols and manual pages, its tests and examples in C, also under valgrind, ASan and UBSan",
        minutes: 2,
        needs: &[],
        run: c_programs::stage,
    },
    Stage {
        name: "fabric",
        about: "the provider for libfabric: the programs of libfabric, and an MPI program, over it",
        minutes: 2,
        needs: &[],
        run: fabric::stage,
    },
    Stage {
        name: "foreign",
        about: "the same while all of its pages are taken away, and with little memory: MPI programs, a part of mpi4py's tests",
        minutes: 1,
        needs: &["fabric"],
        run: foreign::stage,
    },
    Stage {
        name: "sockets",
        about: "programs of others over TCP, with the library to preload: Redis, curl, whois, rsync, iperf3",
        minutes: 1,
        needs: &[],
        run: sockets::stage,
    },
    Stage {
        name: "budgets",
        about: "instructions of each step of the NIC's paths, counted, against their budgets",
        minutes: 1,
        needs: &[],
        run: budgets,
    },
    Stage {
        name: "conformance",
        about: "the emulator, and one suite of application bodies on it",
        minutes: 1,
        needs: &[],
        run: conformance,
    },
    Stage {
        name: "demo",
        about: "the README's demo and its exit codes",
        minutes: 1,
        needs: &["program"],
        run: demo,
    },
    Stage {
        name: "loom",
        about: "model checking of the shipped lock, words and queue",
        minutes: 1,
        needs: &[],
        run: loom,
    },
    Stage {
        name: "models",
        about: "model checking of the shipped synchronization algorithms",
        minutes: 1,
        needs: &[],
        run: models,
    },
    Stage {
        name: "sim",
        about: "the simulator: its tests, the suite on it, fixed and fresh seeds, what operations cost in it",
        minutes: 6,
        needs: &["program"],
        run: sim,
    },
    Stage {
        name: "points",
        about: "one fault at one access of a body: other ones for every tree that is committed",
        minutes: 3,
        needs: &["program"],
        run: points,
    },
    Stage {
        name: "mutants",
        about: "deliberately broken builds are caught by the right checker",
        minutes: 5,
        needs: &[],
        run: mutants,
    },
    Stage {
        name: "hostile",
        about: "ten million random and mutated descriptors and frames against the NIC core",
        minutes: 1,
        needs: &[],
        run: hostile,
    },
    Stage {
        name: "fuzz",
        about: "fuzz targets for descriptors, frames, control messages, and what is written for the library",
        minutes: 4,
        needs: &[],
        run: fuzz::fuzz,
    },
    Stage {
        name: "image",
        about: "the firmware image: lints; it builds, boots in QEMU, and reports what goes wrong",
        minutes: 2,
        needs: &[],
        run: image,
    },
    Stage {
        name: "readme",
        about: "the README's example is the one that stage program runs",
        minutes: 0,
        needs: &[],
        run: readme,
    },
    Stage {
        name: "deny",
        about: "licences, bans and sources of every workspace's dependencies",
        minutes: 2,
        needs: &[],
        run: deny::deny,
    },
    Stage {
        name: "rig",
        about: "kernel, module and image together: two hosts and their cards in QEMU, every scenario",
        minutes: 12,
        needs: &["image"],
        run: rig,
    },
];

/// Stages that take long for what they show: `--long` runs them behind the others, and `--only` by their names.
pub(crate) static LONG: [Stage; 3] = [
    Stage {
        name: "suites",
        about: "mpi4py's tests, HPCC, NetPIPE and coarrays over the provider for libfabric, evicted (with --long or by name only)",
        minutes: 20,
        needs: &[],
        run: foreign::suites,
    },
    Stage {
        name: "apart",
        about: "the same, and each kind of call, between two network namespaces that lose datagrams (with --long or by name only)",
        minutes: 15,
        needs: &[],
        run: foreign::apart,
    },
    Stage {
        name: "dist",
        about: "Debian packages: lintian is silent; installed into a clean root, used there, purged without a trace (with --long or by name only)",
        minutes: 8,
        needs: &[],
        run: dist::stage,
    },
];

fn passed(detail: &str) -> Result<Outcome> {
    Ok(Outcome::Passed(detail.to_owned()))
}

fn format(context: &mut Context<'_>) -> Result<Outcome> {
    for manifest in WORKSPACES {
        let manifest = root().join(manifest);
        context.exec(cargo(&["fmt", "--all", "--check", "--manifest-path"]).arg(manifest))?;
    }
    // Kbuild builds it, with the kernel's edition; it is in no workspace.
    let mut module = std::process::Command::new("rustfmt");
    module.current_dir(root()).args(["--check", "--edition", "2021"]);
    context.exec(module.arg("kernel-driver/module/src/main.rs"))?;
    passed("every file is formatted")
}

fn clippy(context: &mut Context<'_>) -> Result<Outcome> {
    context.cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ])?;
    // The fuzz targets are a workspace of their own, built by stage `fuzz` alone, and late. Nothing is linked here: so neither
    // libFuzzer nor the toolchain that it needs.
    let mut fuzz = cargo(&["clippy", "--bins", "--locked", "--manifest-path"]);
    fuzz.arg(root().join("tests/fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(target().join("fuzz"))
        .args(["--", "-D", "warnings"])
        .env("CUSTOM_LIBFUZZER_PATH", "/nowhere/libfuzzer.a");
    context.exec(&mut fuzz)?;
    passed("no warnings")
}

fn docs(context: &mut Context<'_>) -> Result<Outcome> {
    let mut command = cargo(&[
        "doc",
        "--workspace",
        "--no-deps",
        "--locked",
        "--document-private-items",
    ]);
    // These documents are for developers: they show private items, and link to them.
    const FLAGS: &str = "-D warnings -A rustdoc::private-intra-doc-links";
    context.exec(command.env("RUSTDOCFLAGS", FLAGS))?;
    let mut changes = Vec::new();
    for package in surface::LISTED {
        changes.extend(surface::changes(package, &surface::list(package)?)?);
    }
    if !changes.is_empty() {
        bail!(
            "the public API has changed; `cargo xtask api --write` lists it anew:\n{}",
            changes.join("\n")
        );
    }
    let mut package = vec!["package", "--locked", "--allow-dirty"];
    if !context.long {
        package.push("--no-verify");
    }
    for name in surface::PUBLISHED {
        package.extend(["--package", name]);
    }
    context.cargo(&package)?;
    let detail = "no warnings, the public API is as listed, the crates can be packed";
    if !context.long {
        return passed(detail);
    }
    let book = guide::build(context)?;
    passed(&format!("{detail}; the guide is {}", book.display()))
}

fn no_std(context: &mut Context<'_>) -> Result<Outcome> {
    for package in house::CORES {
        context.cargo(&["build", "--package", package, "--no-default-features", "--locked"])?;
    }
    passed(&house::CORES.join(", "))
}

/// Runs the tests of some packages.
fn tests_of(context: &mut Context<'_>, pace: Pace, packages: &[&str]) -> Result<Outcome> {
    suite::run(
        context,
        pace,
        &|package| packages.contains(&package),
        &fresh_cases(),
    )?;
    context.tests()
}

/// Property tests begin with other cases for every tree that is committed.
fn fresh_cases() -> Vec<(&'static str, String)> {
    let first = seeds_of_the_tree();
    let variable = |first: u64| ("PROPTEST_RNG_SEED", first.to_string());
    first.map(variable).into_iter().collect()
}

fn unit(context: &mut Context<'_>) -> Result<Outcome> {
    let mut env = fresh_cases();
    if context.long {
        env.push(("NETVM_LONG", "1".to_owned()));
    }
    let programs = suite::run(context, Pace::OneByOne, &suite::is_unit, &env);
    suite::documentation(context).and(programs)?;
    context.tests()
}

fn program(context: &mut Context<'_>) -> Result<Outcome> {
    context.cargo(&["build", "--release", "--locked", "--bin", "netvm"])?;
    let mut examples: Vec<_> = std::fs::read_dir(root().join("examples"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        // Those in C are the stage `c`'s.
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    examples.sort();
    for example in &examples {
        context.cargo(&["run", "--release", "--locked", "--example", example])?;
    }
    passed(&format!("built; the examples ran: {}", examples.join(", ")))
}

fn budgets(context: &mut Context<'_>) -> Result<Outcome> {
    // With the program, so that both are built from the same features: else most of the workspace is built again.
    let packages = ["--package", "netvm-cli", "--package", "netvm-benches"];
    let mut build = cargo(&["build", "--release", "--locked", "--bin", "path"]);
    context.exec(build.args(packages))?;
    let mut path = std::process::Command::new(target().join("release/path"));
    context.exec(path.current_dir(root()).arg("--counts"))?;
    passed(
        exec::tail(context.log(), 2_000)
            .trim()
            .lines()
            .last()
            .unwrap_or_default(),
    )
}

fn conformance(context: &mut Context<'_>) -> Result<Outcome> {
    tests_of(context, Pace::OneByOne, suite::CONFORMANCE)
}

fn demo(context: &mut Context<'_>) -> Result<Outcome> {
    context.cargo(&["run", "--release", "--locked", "--bin", "netvm", "--", "demo"])?;
    let two = [
        "run",
        "--release",
        "--locked",
        "--bin",
        "netvm",
        "--",
        "demo",
        "--processes",
    ];
    context.cargo(&two)?;
    context.cargo(&["run", "--release", "--locked", "--bin", "netvm", "--", "doctor"])?;
    passed("256 MiB arrived, nothing pinned, nothing dropped, in one process and between two")
}

fn loom(context: &mut Context<'_>) -> Result<Outcome> {
    tests_of(context, Pace::SideBySide, suite::LOOM)
}

fn models(context: &mut Context<'_>) -> Result<Outcome> {
    tests_of(context, Pace::SideBySide, suite::MODELS)
}

fn hostile(context: &mut Context<'_>) -> Result<Outcome> {
    tests_of(context, Pace::OneByOne, suite::HOSTILE)
}

fn sim(context: &mut Context<'_>) -> Result<Outcome> {
    let tests = tests_of(context, Pace::SideBySide, suite::SIM)?;
    // What fails names the command that replays it, and the file with its trace. The other seeds run, so one run tells all.
    let fresh = context.seeds.to_string();
    let worlds = |kind: &[&str]| {
        let mut netvm = cargo(&["run", "--release", "--locked", "--bin", "netvm", "--", "sim"]);
        netvm.args(["--nodes", "4", "--keep-going"]).args(kind);
        if let Some(first) = seeds_of_the_tree() {
            netvm.args(["--first-seed", &first.to_string()]);
        }
        netvm
    };
    context.exec(&mut worlds(&["--seeds", &fresh]))?;
    if context.long {
        // A minute each.
        context.exec(&mut worlds(&["--far", "--seeds", "12"]))?;
    }
    // Very many nodes, whose links share windows. The most that there can be take 12 GB.
    let nodes = if context.long { "4096" } else { "512" };
    let sparse = ["sim", "--sparse", "--seeds", "1", "--nodes", nodes];
    context.exec(cargo(&["run", "--release", "--locked", "--bin", "netvm", "--"]).args(sparse))?;
    // What has to hold of the synchronization operations' costs, it judges itself.
    context.cargo(&[
        "run",
        "--release",
        "--locked",
        "--bin",
        "netvm",
        "--",
        "bench",
        "sync",
        "--quick",
    ])?;
    // And of a wire that loses frames, which goals it reaches.
    let wire = ["bench", "wire", "--quick"];
    context.exec(cargo(&["run", "--release", "--locked", "--bin", "netvm", "--"]).args(wire))?;
    match tests {
        Outcome::Passed(tests) => passed(&format!(
            "{tests}; {fresh} fresh seeds; {nodes} nodes; bench sync, bench wire"
        )),
        skipped @ Outcome::Skipped(_) => Ok(skipped),
    }
}

fn points(context: &mut Context<'_>) -> Result<Outcome> {
    // A minute of points, and the listing of them all.
    let mut netvm = cargo(&["run", "--release", "--locked", "--bin", "netvm", "--", "sim"]);
    netvm.args(["--enumerate", "--keep-going", "--minutes", "1"]);
    if let Some(first) = seeds_of_the_tree() {
        netvm.args(["--from", &first.to_string()]);
    }
    context.exec(&mut netvm)?;
    let log = exec::tail(context.log(), 2_000);
    passed(log.trim().lines().last().unwrap_or_default())
}

/// The first fresh seed of what is committed, of worlds and of property tests: every change meets what
/// nothing has met before, and a repeated test elsewhere meets the same. Without git, they are drawn.
fn seeds_of_the_tree() -> Option<u64> {
    let mut git = std::process::Command::new("git");
    let answer = git
        .args(["rev-parse", "HEAD^{tree}"])
        .current_dir(root())
        .output()
        .ok()?;
    let hash = String::from_utf8(answer.stdout).ok()?;
    u64::from_str_radix(hash.get(..10)?, 16).ok()
}

fn mutants(context: &mut Context<'_>) -> Result<Outcome> {
    // Whole programs of worlds, and tests beside those that such a build breaks: each of these is one.
    let (in_worlds, in_tests) = (["mutants", "idioms"], ["crossed", "host", "library", "nic"]);
    for (programs, only) in [
        (&in_worlds[..], None),
        (&in_tests[..], Some("broken_builds_are_found")),
    ] {
        let mut command = suite::cargo_test(&[]);
        for program in programs {
            command.args(["--test", program]);
        }
        command.args(only);
        // Around the compiler of this workspace's crates: the others are built already.
        context.exec(command.env("RUSTC_WORKSPACE_WRAPPER", root().join("xtask/mutant-rustc")))?;
    }
    context.tests()
}

/// What the last scenario that begins may take on a slow machine, with a second try.
const LAST_SCENARIO: Duration = Duration::from_secs(6 * 60);

/// The stage `rig`: the scenarios on the plain kernel, which is built if the cache has it not. All of them where there is
/// time; else the first ones, and others of the rest for every tree that is committed.
fn rig(context: &mut Context<'_>) -> Result<Outcome> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::Skipped(
            "its hosts and their kernel are built on x86-64 only".to_owned(),
        ));
    }
    if !netvm_harness::rig::installed()? {
        return Ok(Outcome::Skipped(
            "packages are missing (named above), and only root of a Debian may install them: sudo cargo xtask rig test"
                .to_owned(),
        ));
    }
    let this = std::env::current_exe().context("this program's own path")?;
    let minutes = context.left().saturating_sub(LAST_SCENARIO).as_secs() / 60;
    let from = seeds_of_the_tree().unwrap_or_default();
    let mut rig = std::process::Command::new(this);
    rig.args(["rig", "test", "--tries", "2"]);
    rig.args(["--minutes", &minutes.to_string(), "--from", &from.to_string()]);
    context.exec(&mut rig)?;
    let log = exec::tail(context.log(), 20_000);
    // Lines of the table begin with a name, those of the progress with a bracket.
    let again = log
        .lines()
        .filter(|line| !line.starts_with('[') && line.contains("; try 1 FAILED: "));
    let mut detail = log.trim().lines().last().unwrap_or_default().to_owned();
    for name in again.filter_map(|line| line.split_whitespace().next()) {
        detail.push_str(&format!("; {name} only at the second try"));
    }
    Ok(Outcome::Passed(detail))
}

fn image(context: &mut Context<'_>) -> Result<Outcome> {
    netvm_harness::image::test(&mut |command| context.exec(command)).map(Outcome::Passed)
}

fn readme(_: &mut Context<'_>) -> Result<Outcome> {
    let (readme, example) = (
        std::fs::read_to_string(root().join("README.md"))?,
        std::fs::read_to_string(root().join("examples/hello.rs"))?,
    );
    let Some(shown) = readme
        .split("```rust\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
    else {
        bail!("README.md shows no Rust");
    };
    if !example.ends_with(shown) {
        bail!("README.md's example is not the end of examples/hello.rs");
    }
    passed("the README's example is examples/hello.rs")
}
