//! Unpacks, configures, builds and thins out a kernel tree; it gets its name when all is done, so that one whose build
//! was interrupted is never taken for a kernel.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::tools::{SOURCE, Tools};
use crate::cache;
use crate::exec::{self, Ended};
use crate::report::{Finished, Progress, Verdict};

/// What unpacking and building take at most; measured: 2.6 GB, with checks 3.5 GB.
const ROOM: u64 = 5 << 30;
/// One step's.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// What is kept of the tree's top: enough to build modules, to boot, and to read what a module calls.
const KEPT: [&str; 14] = [
    ".config",
    "Kbuild",
    "Kconfig",
    "Makefile",
    "Module.symvers",
    "System.map",
    "arch",
    "include",
    "kernel",
    "lib",
    "mm",
    "rust",
    "scripts",
    "tools",
];

/// The steps, run one after another with their output in one log.
struct Steps<'a> {
    log: PathBuf,
    interrupted: Arc<AtomicBool>,
    tools: &'a Tools,
    tree: &'a Path,
    at: usize,
}

/// Builds the kernel of `configs` in a folder beside `tree`, and calls it `tree` when it is done.
pub(super) fn build(tools: &Tools, configs: &[PathBuf], tree: &Path) -> Result<()> {
    let partial = beside(tree, "partial");
    cache::room(tree.parent().unwrap_or(tree), ROOM, "building a kernel")?;
    remove(&partial)
        .and_then(|()| remove(tree))
        .context("clearing what an earlier build left")?;
    std::fs::create_dir_all(&partial)?;
    let log = beside(tree, "log");
    let _ = std::fs::remove_file(&log);
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let mut steps = Steps {
        log,
        interrupted,
        tools,
        tree: &partial,
        at: 0,
    };
    steps.all(configs)?;
    thin(&partial).context("thinning the tree out")?;
    std::fs::rename(&partial, tree).with_context(|| format!("naming {}", tree.display()))
}

impl Steps<'_> {
    fn all(&mut self, configs: &[PathBuf]) -> Result<()> {
        let archive = format!("/usr/src/{SOURCE}.tar.xz");
        let mut unpack = Command::new("tar");
        unpack
            .args(["--strip-components=1", "-xf", &archive, "-C"])
            .arg(self.tree);
        self.step("unpack", "the kernel's sources", &mut [unpack])?;

        let mut merge = Command::new("scripts/kconfig/merge_config.sh");
        merge.current_dir(self.tree).args(["-m", ".config"]).args(configs);
        self.tools.environment(&mut merge);
        let mut commands = [
            self.make(&["rustavailable"]),
            self.make(&["tinyconfig"]),
            merge,
            self.make(&["olddefconfig"]),
        ];
        self.step("configure", "as tests/rig/*.config say", &mut commands)?;
        check(&self.tree.join(".config"), configs)?;

        let jobs = std::thread::available_parallelism().map_or(2, usize::from);
        let make = self.make(&[&format!("-j{jobs}"), "bzImage", "modules"]);
        self.step("build", "the kernel", &mut [make])
    }

    fn make(&self, args: &[&str]) -> Command {
        let mut command = self.tools.make(self.tree);
        command.args(args);
        command
    }

    fn step(&mut self, name: &'static str, about: &str, commands: &mut [Command]) -> Result<()> {
        self.at += 1;
        let mut progress = Progress::start(self.at, 3, name, about);
        for command in commands {
            let ended = exec::run(command, &self.log, LIMIT, &self.interrupted, &mut |line| {
                progress.tick(line);
            })?;
            if ended == Ended::Well {
                continue;
            }
            eprintln!("\n{}", exec::tail(&self.log, 3000));
            bail!(
                "step '{name}' of the kernel {}; the whole output: {}",
                match ended {
                    Ended::Interrupted => "was interrupted",
                    Ended::TimedOut => "took more than an hour",
                    Ended::Well | Ended::Badly => "failed",
                },
                self.log.display()
            );
        }
        let seconds = progress.elapsed().as_secs_f64();
        progress.finish(&Finished {
            stage: name,
            verdict: Verdict::Passed,
            detail: about.to_owned(),
            seconds,
            causes: Vec::new(),
        });
        Ok(())
    }
}

/// Did every line of `configs` take hold? A later file may say otherwise than an earlier one. Kconfig drops what
/// lacks a dependency without a word.
fn check(result: &Path, configs: &[PathBuf]) -> Result<()> {
    let result = std::fs::read_to_string(result).context("reading the kernel's configuration")?;
    let mut texts = Vec::new();
    for config in configs {
        texts.push(super::read(config)?);
    }
    let lost = lost(&result, &texts);
    if !lost.is_empty() {
        bail!("the kernel's configuration does not take: {}", lost.join(", "));
    }
    Ok(())
}

/// The choice that two configurations make differently; the others of the choice are off without a line of their own.
const PREEMPTION: &str = "CONFIG_PREEMPT";

fn lost<'a>(result: &str, texts: &'a [String]) -> Vec<&'a str> {
    let lines = |text: &'a String| text.lines().filter_map(|line| Some((option(line)?, line)));
    let mut lost = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        for (name, line) in lines(text) {
            let later = texts.iter().skip(at + 1).flat_map(lines);
            let overruled = |other: &str| {
                other == name || (name.starts_with(PREEMPTION) && other.starts_with(PREEMPTION))
            };
            if later.map(|(other, _)| other).any(overruled) {
                continue;
            }
            let holds = match line.starts_with('#') {
                false => result.lines().any(|other| other == line),
                true => !result.lines().any(|other| other.starts_with(&format!("{name}="))),
            };
            if !holds {
                lost.push(line);
            }
        }
    }
    lost
}

/// The option of a line `CONFIG_X=...` or `# CONFIG_X is not set`.
fn option(line: &str) -> Option<&str> {
    match line.strip_prefix("# ") {
        Some(rest) => rest.strip_suffix(" is not set"),
        None => line.split_once('=').map(|(name, _)| name),
    }
    .filter(|name| name.starts_with("CONFIG_"))
}

/// Removes what neither a module's build nor a boot needs.
fn thin(tree: &Path) -> Result<()> {
    for entry in std::fs::read_dir(tree)? {
        let entry = entry?;
        if !KEPT.iter().any(|kept| entry.file_name() == OsStr::new(kept)) {
            remove(&entry.path())?;
        }
    }
    for entry in std::fs::read_dir(tree.join("arch"))? {
        let entry = entry?;
        if entry.path().is_dir() && entry.file_name() != OsStr::new("x86") {
            remove(&entry.path())?;
        }
    }
    for entry in std::fs::read_dir(tree.join("tools"))? {
        let entry = entry?;
        let kept = ["objtool", "include", "scripts"];
        if !kept.iter().any(|kept| entry.file_name() == OsStr::new(kept)) {
            remove(&entry.path())?;
        }
    }
    for folder in ["arch", "kernel", "lib", "mm", "rust"] {
        objects(&tree.join(folder))?;
    }
    Ok(())
}

/// Removes objects and archives below `folder`.
fn objects(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            objects(&path)?;
        } else if kind.is_file() && path.extension().is_some_and(|end| end == "o" || end == "a") {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The path of another end: `with_extension` would take the version's last number for one.
fn beside(tree: &Path, end: &str) -> PathBuf {
    let mut path = tree.as_os_str().to_owned();
    path.push(".");
    path.push(end);
    PathBuf::from(path)
}

/// A file or a folder, if it is there.
fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_did_not_take_hold_are_named() {
        let wanted = [
            "# a comment\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\nCONFIG_D=\"x\"\nCONFIG_PREEMPT_NONE=y\n".to_owned(),
            "CONFIG_D=\"y\"\nCONFIG_PREEMPT=y\n".to_owned(),
        ];
        let good = "CONFIG_A=y\nCONFIG_C=m\nCONFIG_D=\"y\"\nCONFIG_PREEMPT=y\n";
        assert_eq!(lost(good, &wanted), Vec::<&str>::new());
        let bad = "CONFIG_B=y\nCONFIG_C=y\nCONFIG_D=\"x\"\nCONFIG_PREEMPT=y\n";
        assert_eq!(
            lost(bad, &wanted),
            [
                "CONFIG_A=y",
                "# CONFIG_B is not set",
                "CONFIG_C=m",
                "CONFIG_D=\"y\""
            ]
        );
    }
}
