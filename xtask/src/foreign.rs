//! The stages `foreign`, `suites` and `apart`: programs and suites that others wrote, over the provider for libfabric, while their pages are
//! taken away, while their memory is limited, and between two network namespaces that lose datagrams.

mod machines;
mod memory;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netvm_harness::cache;
use netvm_harness::cargo::{output_of, root, target};
use netvm_harness::packages::{install, version_of};

use crate::fabric::{self, BY_MESSAGES, RDMA};
use crate::run::{Context, Outcome};
use crate::tools;
use machines::Machines;
use memory::{Limit, Swap};

/// All memory of each process is taken away so often, in milliseconds.
const OFTEN: &str = "40";

/// What the stages have in common.
struct Bench {
    folder: PathBuf,
    providers: PathBuf,
    evictor: PathBuf,
    /// Where evicted pages go. Without it nothing is evicted, and this says why.
    swap: Result<Swap, String>,
}

impl Bench {
    fn new(context: &mut Context<'_>) -> Result<Self> {
        let folder = target().join("foreign");
        std::fs::create_dir_all(&folder)?;
        let providers = fabric::providers(context)?;
        let evictor = folder.join("evictor");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O1", "-o"]);
        let source = root().join("userlib/fabric/tests/foreign/evictor.c");
        context.exec(compiler.arg(&evictor).arg(source))?;
        let swap = Swap::on(&folder)?;
        Ok(Self {
            folder,
            providers,
            evictor,
            swap,
        })
    }

    /// Runs a command while its pages are taken away, or, where nothing can be evicted, as it is. Each process has to read some back.
    fn evicted(&self, context: &mut Context<'_>, command: &Command) -> Result<()> {
        let mut whole = Command::new(&self.evictor);
        match &self.swap {
            Ok(_) => whole.args([OFTEN, "1"]),
            // It still looks whether memory is locked.
            Err(_) => whole.args(["0", "0"]),
        };
        context.exec(&mut behind(whole, command))
    }

    /// The same while all of its processes together have a fraction of the memory that they take otherwise.
    fn limited(&self, context: &mut Context<'_>, command: &Command) -> Result<Option<String>> {
        if self.swap.is_err() {
            return Ok(None);
        }
        let limit = match Limit::new() {
            Ok(limit) => limit,
            Err(why) => return Ok(Some(format!("no limit of memory: {why}"))),
        };
        context.exec(&mut limit.around(&self.evictor, &["0", "0"], command))?;
        let (most, part) = limit.shrink()?;
        context.exec(&mut limit.around(&self.evictor, &["0", "1"], command))?;
        Ok(Some(format!(
            "in {} of {} MiB by control groups of version {}",
            part >> 20,
            most >> 20,
            limit.version()
        )))
    }

    /// `mpirun` with so many ranks on each of two hosts that are one.
    fn two_names(&self, each: u8, options: &[&str]) -> Result<Command> {
        machines::two_names(&self.folder, &self.providers, each, options)
    }

    fn mpi_program(&self, context: &mut Context<'_>, name: &str) -> Result<PathBuf> {
        fabric::mpi_program(context, &self.folder, name)
    }

    /// mpi4py's tests of some modules, or all, by so many processes.
    fn mpi4py(&self, ranks: u8, one_sided: &[&str], sources: &Path, modules: &[&str]) -> Command {
        let mut mpirun = fabric::mpirun(&self.providers, ranks);
        mpirun.args(one_sided);
        mpi4py(&mut mpirun, sources, modules);
        mpirun
    }
}

/// Adds mpi4py's tests to a command that starts processes.
fn mpi4py(mpirun: &mut Command, sources: &Path, modules: &[&str]) {
    // Debian's, whatever others are there.
    mpirun.arg("/usr/bin/python3");
    mpirun.arg(root().join("userlib/fabric/tests/foreign/mpi4py_suite.py"));
    mpirun.arg(sources.join("test")).arg("-v");
    for module in modules {
        mpirun.args(["-i", module]);
    }
}

/// A command as the arguments of another one.
fn behind(mut before: Command, command: &Command) -> Command {
    before.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            before.env(name, value);
        }
    }
    before
}

/// The sources of the installed mpi4py, which have its tests; gotten once a machine.
///
/// # Errors
/// They cannot be had.
fn mpi4py_sources(context: &mut Context<'_>) -> Result<PathBuf> {
    let version = version_of("python3-mpi4py").context("python3-mpi4py is not installed")?;
    let upstream = version.split(['-', '+']).next().unwrap_or_default();
    let name = format!("mpi4py-{upstream}");
    let cache = cache::folder()?;
    let _turn = cache::turn(&cache, &name)?;
    let sources = cache.join(&name);
    if sources.join("test/runtests.py").exists() {
        return Ok(sources);
    }
    let mut pip = Command::new("pip3");
    pip.args(["download", "--no-deps", "--no-binary", ":all:", "--dest"]);
    context.exec(pip.arg(&cache).arg(format!("mpi4py=={upstream}")))?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--directory").arg(&cache);
    context.exec(tar.arg("--file").arg(cache.join(format!("{name}.tar.gz"))))?;
    Ok(sources)
}

/// The stage `foreign`: a part of everything, in a minute.
pub(crate) fn stage(context: &mut Context<'_>) -> Result<Outcome> {
    if !install(&tools::FOREIGN)? {
        return Ok(Outcome::Skipped("packages are missing (named above)".to_owned()));
    }
    let bench = Bench::new(context)?;
    let exchange = bench.mpi_program(context, "exchange")?;
    let mut small = fabric::mpirun(&bench.providers, 4);
    small.arg(&exchange).args(["1048576", "1"]);
    bench.evicted(context, &small)?;
    let limited = bench.limited(context, &small)?;
    let patterns = bench.mpi_program(context, "patterns")?;
    bench.evicted(context, fabric::mpirun(&bench.providers, 4).arg(patterns))?;
    let windows = bench.mpi_program(context, "windows")?;
    bench.evicted(context, bench.two_names(2, RDMA)?.arg(windows))?;
    let sources = match mpi4py_sources(context) {
        Ok(sources) => sources,
        Err(error) => {
            return Ok(Outcome::Skipped(format!(
                "mpi4py's tests cannot be had: {error:#}"
            )));
        }
    };
    bench.evicted(context, &bench.mpi4py(2, BY_MESSAGES, &sources, &["p2p_buf$"]))?;
    let mut one_sided = bench.two_names(1, RDMA)?;
    mpi4py(&mut one_sided, &sources, &["rma$"]);
    bench.evicted(context, &one_sided)?;
    let detail = "MPI programs with 4 ranks, mpi4py's tests of messages and of one-sided operations with 2";
    bench.say(detail, limited)
}

/// The stage `suites`: all of it.
pub(crate) fn suites(context: &mut Context<'_>) -> Result<Outcome> {
    if !(install(&tools::FOREIGN)? && install(&tools::SUITES)?) {
        return Ok(Outcome::Skipped("packages are missing (named above)".to_owned()));
    }
    let bench = Bench::new(context)?;
    let sources = mpi4py_sources(context)?;
    for (ranks, modules) in [(2, &[][..]), (3, &[]), (4, &[]), (8, EIGHT)] {
        context.exec(&mut bench.mpi4py(ranks, MIXED, &sources, modules))?;
    }
    for each in [1, 2] {
        let mut mpirun = bench.two_names(each, RDMA)?;
        mpi4py(&mut mpirun, &sources, &["rma"]);
        bench.evicted(context, &mpirun)?;
    }
    bench.evicted(context, &bench.mpi4py(2, MIXED, &sources, &[]))?;
    let limited = bench.limited(
        context,
        &bench.mpi4py(4, BY_MESSAGES, &sources, &["p2p", "cco_buf"]),
    )?;
    for ranks in [2, 4] {
        hpcc(context, &bench.folder, ranks, |context, hpcc| {
            bench.evicted(context, fabric::mpirun(&bench.providers, ranks).args(hpcc))
        })?;
    }
    bench.evicted(context, fabric::mpirun(&bench.providers, 2).args(NETPIPE))?;
    let ring = coarrays(context, &bench.folder)?;
    for ranks in [2, 4, 8] {
        let mut images = fabric::mpirun(&bench.providers, ranks);
        bench.evicted(context, images.args(RDMA).arg(&ring))?;
    }
    bench.say(
        "mpi4py's tests with 2, 3, 4 and 8 ranks, HPCC, NetPIPE, coarrays",
        limited,
    )
}

/// The stage `apart`: between two network namespaces, where datagrams get lost.
pub(crate) fn apart(context: &mut Context<'_>) -> Result<Outcome> {
    if !(install(&tools::FOREIGN)? && install(&tools::SUITES)?) {
        return Ok(Outcome::Skipped("packages are missing (named above)".to_owned()));
    }
    let bench = Bench::new(context)?;
    let sources = mpi4py_sources(context)?;
    let machines = match Machines::new(&bench.folder, &bench.providers)? {
        Ok(machines) => machines,
        Err(why) => return Ok(Outcome::Skipped(format!("no network namespaces: {why}"))),
    };
    for name in ["calls", "features", "rest", "services"] {
        let program = fabric::c_program(context, &bench.folder, name)?;
        let mut both = machines.sides(&program);
        context.exec(both.env(fabric::PROVIDERS, &bench.providers))?;
    }
    let [exchange, patterns, windows] = [
        bench.mpi_program(context, "exchange")?,
        bench.mpi_program(context, "patterns")?,
        bench.mpi_program(context, "windows")?,
    ];
    for (each, most) in [(1, "1048576"), (2, "65536"), (4, "4096")] {
        let mut mpirun = machines.mpirun(each, &[]);
        bench.evicted(context, mpirun.arg(&exchange).args([most, "1"]))?;
    }
    bench.evicted(context, machines.mpirun(2, &[]).arg(&patterns))?;
    for each in [1, 2, 4] {
        bench.evicted(context, machines.mpirun(each, RDMA).arg(&windows))?;
    }
    for (each, one_sided, modules) in [
        (1, MIXED, &[][..]),
        (2, MIXED, &["p2p", "cco"]),
        (1, RDMA, &["rma"]),
        (2, RDMA, &["rma"]),
    ] {
        let mut mpirun = machines.mpirun(each, one_sided);
        mpi4py(&mut mpirun, &sources, modules);
        // They join processes by the name of the host, which only one of the machines has, and share the memory of windows.
        context.exec(mpirun.args(["-e", "dynproc|win"]))?;
    }
    hpcc(context, &bench.folder, 2, |context, hpcc| {
        context.exec(machines.mpirun(1, &[]).args(hpcc))
    })?;
    context.exec(machines.mpirun(1, &[]).args(NETPIPE))?;
    bench.say(
        "each kind of call, MPI programs with 2, 4 and 8 ranks, mpi4py's tests with 2 and 4, HPCC, NetPIPE; 1 % of the datagrams lost",
        None,
    )
}

/// Windows of one machine by Open MPI's own shared memory, those of two by messages, which cannot do windows of one process.
const MIXED: &[&str] = &["--mca", "osc", "sm,pt2pt"];
/// mpi4py's tests that eight processes run on two cores within minutes.
const EIGHT: &[&str] = &["p2p", "cco_buf", "cco_obj", "msg", "comm"];
/// NetPIPE, looking at the bytes.
const NETPIPE: [&str; 6] = ["NPopenmpi", "-i", "-u", "1048576", "-o", "/dev/null"];

/// Builds the program with coarrays.
fn coarrays(context: &mut Context<'_>, folder: &Path) -> Result<PathBuf> {
    let program = folder.join("ring");
    let libraries = output_of("pkg-config", &["--libs", "caf-openmpi"]);
    let mut compiler = Command::new("gfortran");
    compiler.args(["-O1", "-fcoarray=lib", "-o"]).arg(&program);
    compiler.arg(root().join("userlib/fabric/tests/foreign/ring.f90"));
    compiler.args(libraries.unwrap_or_default().split_whitespace());
    context.exec(&mut compiler)?;
    Ok(program)
}

/// Runs the HPC Challenge with its example's sizes on a grid of 1 or 2 by 2 processes, and reads what it found.
fn hpcc(
    context: &mut Context<'_>,
    folder: &Path,
    ranks: u8,
    run: impl FnOnce(&mut Context<'_>, [&std::ffi::OsStr; 4]) -> Result<()>,
) -> Result<()> {
    let folder = folder.join("hpcc");
    std::fs::create_dir_all(&folder)?;
    let example = "/usr/share/doc/hpcc/examples/_hpccinf.txt";
    let input = std::fs::read_to_string(example).context(example)?;
    let grid = format!("{}            Ps", ranks / 2);
    std::fs::write(
        folder.join("hpccinf.txt"),
        input.replace("2            Ps", &grid),
    )?;
    let output = folder.join("hpccoutf.txt");
    let _ = std::fs::remove_file(&output);
    let in_folder = [
        "env".as_ref(),
        "--chdir".as_ref(),
        folder.as_os_str(),
        "hpcc".as_ref(),
    ];
    run(context, in_folder)?;
    let said = std::fs::read_to_string(&output).context("hpcc has written nothing")?;
    let errors = said
        .lines()
        .filter(|line| line.starts_with("Found ") && !line.starts_with("Found 0 errors"));
    ensure!(
        said.lines().any(|line| line == "Success=1") && !said.contains("FAILED") && errors.count() == 0,
        "hpcc has found errors: {}",
        output.display()
    );
    Ok(())
}

impl Bench {
    /// What a stage says in the end. What could not be evicted is not passed over in silence.
    fn say(&self, detail: &str, limited: Option<String>) -> Result<Outcome> {
        Ok(match &self.swap {
            Ok(swap) => Outcome::Passed(format!(
                "{detail}; evicted to {swap}, nothing locked or pinned{}",
                limited.map_or_else(String::new, |limited| format!("; {limited}"))
            )),
            Err(why) => Outcome::Skipped(format!("nothing was evicted: {why}; the rest passed: {detail}")),
        })
    }
}
