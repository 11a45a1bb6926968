//! The provider, and the programs that measure over it.

use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::rows::Measured;
use crate::beside::programs::{PROVIDERS, Processors, mpirun, said};
use crate::beside::rows::Turn;

/// What Open MPI does over what.
#[derive(Clone, Copy, Debug)]
pub struct Over {
    /// What the program is told to do.
    pub what: &'static str,
    /// How Open MPI is told what to go over.
    pub args: &'static str,
}

impl Over {
    /// The command that a person types.
    #[must_use]
    pub fn command(&self) -> String {
        format!(
            "mpirun -np 2 --bind-to core {} measure {} N",
            self.args, self.what
        )
    }
}

/// All that is run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The folder of the provider.
    pub providers: PathBuf,
    measure: PathBuf,
    registration: PathBuf,
}

impl Programs {
    /// Takes the provider that Cargo has built beside this program, and compiles what is in C.
    ///
    /// # Errors
    /// There is no provider, or a compiler fails.
    pub fn prepare() -> Result<Self> {
        let program = std::env::current_exe().context("this program has no path")?;
        let built = program.parent().context("this program is in no folder")?;
        let folder = built.join("bench-mpi");
        let providers = folder.join("providers");
        std::fs::create_dir_all(&providers).with_context(|| format!("making {}", providers.display()))?;
        // As libfabric names what it loads.
        std::fs::copy(built.join("libnetvm_fi.so"), providers.join("libnetvm-fi.so"))
            .context("the provider is not there (cargo build --release -p netvm-fabric)")?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/mpi");
        let compiled = |compiler: &str, name: &str, more: &[&str]| {
            let (from, to) = (source.join(name).with_extension("c"), folder.join(name));
            let mut command = Command::new(compiler);
            command
                .args(["-std=gnu99", "-O2", "-o"])
                .arg(&to)
                .arg(from)
                .args(more);
            let status = command.status().with_context(|| format!("starting {compiler}"))?;
            ensure!(status.success(), "{compiler} does not compile {name}.c");
            Ok(to)
        };
        Ok(Self {
            measure: compiled("mpicc", "measure", &[])?,
            registration: compiled("cc", "registration", &["-lfabric"])?,
            providers,
        })
    }

    /// Measures over something by Open MPI.
    ///
    /// # Errors
    /// The program fails, or prints something else.
    pub fn mpi(
        &self,
        over: &Over,
        names: Measured,
        count: u32,
        on: Processors,
        turn: &mut Turn,
    ) -> Result<()> {
        let mut command = mpirun(on);
        command
            .args(over.args.split_whitespace())
            .args(["-x", PROVIDERS])
            .arg(&self.measure)
            .args([over.what, &count.to_string()])
            .env(PROVIDERS, &self.providers);
        take(command, names, turn).with_context(|| over.command())
    }

    /// Measures registrations of memory.
    ///
    /// # Errors
    /// The program fails, or prints something else.
    pub fn registration(&self, bytes: u64, names: Measured, turn: &mut Turn) -> Result<()> {
        let mut command = Command::new(&self.registration);
        command
            .args(["netvm", &bytes.to_string()])
            .env(PROVIDERS, &self.providers);
        take(command, names, turn)
    }
}

fn take(mut command: Command, names: Measured, turn: &mut Turn) -> Result<()> {
    command.stdout(Stdio::piped());
    let said = said(command, |child| child.stdout.take())?;
    for (printed, name) in names {
        let time =
            value(&said, printed).with_context(|| format!("no {printed} is in what it printed:\n{said}"))?;
        turn.insert(name, time);
    }
    Ok(())
}

/// What stands behind a name in a line.
fn value(said: &str, name: &str) -> Option<f64> {
    let mut lines = said.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(found, _)| *found == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        let said = "latency 1.0818\nrate 0.4964\n";
        assert_eq!(value(said, "rate"), Some(0.4964));
        assert_eq!(value(said, "late"), None);
        assert_eq!(value("rate much", "rate"), None);
    }
}
