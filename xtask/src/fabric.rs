//! The stage `fabric`: the provider for libfabric is used by programs that know nothing of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netvm_harness::cargo::{root, target};
use netvm_harness::packages::install;

use crate::run::{Context, Outcome};
use crate::tools;

/// Where libfabric looks for providers.
pub(crate) const PROVIDERS: &str = "FI_PROVIDER_PATH";

/// Server and client. A client gives up where no server listens yet, so it is called again.
const PINGPONG: &str = "
    pingpong() { timeout 60 fi_pingpong -p netvm -e rdm -m $kind -c -S all -I 20 \"$@\"; }
    kind=$1
    pingpong -B $2 & server=$!
    for try in 1 2 3 4 5 6 7 8 9 10; do
        pingpong -P $2 127.0.0.1 && wait $server && exit 0
        sleep 0.3
    done
    kill $server
    exit 1";

/// The control port of the first `fi_pingpong`.
const PORT: u16 = 47_611;

/// Ranks, largest message in bytes, rounds.
const EXCHANGES: [(u8, u32, u8); 3] = [(2, 1 << 20, 2), (4, 1 << 20, 2), (8, 1 << 16, 1)];

/// One-sided communication by one-sided operations of the provider, or by messages.
pub(crate) const RDMA: &[&str] = &[
    "--mca",
    "osc",
    "rdma",
    "--mca",
    "btl",
    "ofi,self",
    "--mca",
    "btl_ofi_provider_include",
    "netvm",
];
pub(crate) const BY_MESSAGES: &[&str] = &["--mca", "osc", "pt2pt"];

/// The stage.
pub(crate) fn stage(context: &mut Context<'_>) -> Result<Outcome> {
    if !install(&tools::FABRIC)? {
        return Ok(Outcome::Skipped("packages are missing (named above)".to_owned()));
    }
    let folder = target().join("fabric");
    let providers = providers(context)?;
    offers_an_endpoint(&providers)?;
    calls(context, &folder, &providers)?;
    for (kind, port) in ["msg", "tagged"].into_iter().zip(PORT..) {
        pingpong(context, &providers, kind, port)?;
    }
    let [exchange, patterns, windows] = [
        mpi_program(context, &folder, "exchange")?,
        mpi_program(context, &folder, "patterns")?,
        mpi_program(context, &folder, "windows")?,
    ];
    for (ranks, most, rounds) in EXCHANGES {
        context.exec(
            mpirun(&providers, ranks)
                .arg(&exchange)
                .args([most.to_string(), rounds.to_string()]),
        )?;
    }
    // Over and over: each begins with ranks that meet all at once.
    for _ in 0..5 {
        context.exec(mpirun(&providers, 4).arg(&patterns))?;
    }
    for (one_sided, ranks) in [(RDMA, 2), (RDMA, 4), (BY_MESSAGES, 4)] {
        context.exec(mpirun(&providers, ranks).args(one_sided).arg(&windows))?;
    }
    let ranks = EXCHANGES.map(|(ranks, ..)| ranks.to_string()).join(", ");
    Ok(Outcome::Passed(format!(
        "fi_info; each kind of call; fi_pingpong, messages with and without tags; MPI programs with {ranks} ranks"
    )))
}

/// Builds the provider, into a folder where libfabric finds it.
pub(crate) fn providers(context: &mut Context<'_>) -> Result<PathBuf> {
    context.cargo(&["build", "--release", "--locked", "--package", "netvm-fabric"])?;
    let providers = target().join("fabric/providers");
    std::fs::create_dir_all(&providers)?;
    // A program that has loaded the former one keeps it.
    let copy = providers.join("new");
    std::fs::copy(target().join("release/libnetvm_fi.so"), &copy)
        .context("the provider is not where Cargo builds it")?;
    // As libfabric names what it loads.
    std::fs::rename(copy, providers.join("libnetvm-fi.so"))?;
    Ok(providers)
}

fn offers_an_endpoint(providers: &Path) -> Result<()> {
    let mut info = Command::new("fi_info");
    let listed = info.args(["-p", "netvm"]).env(PROVIDERS, providers).output()?;
    let text = String::from_utf8_lossy(&listed.stdout);
    ensure!(
        listed.status.success() && text.contains("FI_EP_RDM"),
        "fi_info -p netvm lists no endpoint: {text}{}",
        String::from_utf8_lossy(&listed.stderr)
    );
    Ok(())
}

/// By what ways messages go: long ones are read out of the sender's memory, they go in pieces, or all go over UDP.
const WAYS: [&[(&str, &str)]; 3] = [
    &[("FI_NETVM_PULL", "1")],
    &[("FI_NETVM_PULL", "0")],
    &[("FI_NETVM_SHM", "0"), ("FI_NETVM_UDP", "127.0.0.1:0")],
];

/// What the manual pages say of each call, between two processes; long messages read out of the sender's memory, and in pieces.
fn calls(context: &mut Context<'_>, folder: &Path, providers: &Path) -> Result<()> {
    for (name, ways) in [
        ("calls", &WAYS[..]),
        ("features", &WAYS),
        ("atomics", &WAYS),
        ("rest", &WAYS),
        // Pieces are as others are; over UDP services answer other machines, too.
        ("services", &[WAYS[0], WAYS[2]]),
    ] {
        let program = c_program(context, folder, name)?;
        for settings in ways {
            let mut both = Command::new("timeout");
            both.arg("120").arg(&program).env(PROVIDERS, providers);
            context.exec(both.envs(settings.iter().copied()))?;
        }
    }
    Ok(())
}

/// Builds a program that uses libfabric alone.
pub(crate) fn c_program(context: &mut Context<'_>, folder: &Path, name: &str) -> Result<PathBuf> {
    let program = folder.join(name);
    let source = root().join(format!("userlib/fabric/tests/c/{name}.c"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]);
    context.exec(compiler.arg(&program).arg(source).arg("-lfabric"))?;
    Ok(program)
}

fn pingpong(context: &mut Context<'_>, providers: &Path, kind: &str, port: u16) -> Result<()> {
    let mut both = Command::new("sh");
    both.args(["-c", PINGPONG, "sh", kind, &port.to_string()]);
    context.exec(both.env(PROVIDERS, providers))
}

/// Builds an MPI program.
pub(crate) fn mpi_program(context: &mut Context<'_>, folder: &Path, name: &str) -> Result<PathBuf> {
    let program = folder.join(name);
    let source = root().join(format!("userlib/fabric/tests/mpi/{name}.c"));
    let mut compiler = Command::new("mpicc");
    compiler.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", "-o"]);
    context.exec(compiler.arg(&program).arg(source))?;
    Ok(program)
}

/// Open MPI over libfabric, and over this provider alone.
pub(crate) fn mpirun(providers: &Path, ranks: u8) -> Command {
    let mut mpirun = Command::new("timeout");
    mpirun
        .args([&MOST_SECONDS.to_string(), "mpirun", "-n", &ranks.to_string()])
        .args(["--oversubscribe", "--bind-to", "none"]);
    over_the_provider(&mut mpirun, providers);
    mpirun
}

/// No MPI program takes so long.
const MOST_SECONDS: u32 = 900;

/// Adds what makes `mpirun` use this provider alone.
pub(crate) fn over_the_provider(mpirun: &mut Command, providers: &Path) {
    mpirun
        .args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"])
        .args(["--mca", "mtl_ofi_provider_include", "netvm"])
        .args(["-x", PROVIDERS])
        .env(PROVIDERS, providers)
        // Containers run tests as root, which Open MPI refuses otherwise.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
}
