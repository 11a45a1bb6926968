//! Where evicted pages go, and how little memory processes may have: both only root arranges.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use netvm_harness::cargo::works;

/// Bytes of swap that the tests bring.
const SIZE: &str = "768M";

/// Swap for the time of a stage.
pub(super) enum Swap {
    /// The machine's own.
    There,
    /// Compressed memory: a device that was free.
    Compressed { device: PathBuf, reset: PathBuf },
    /// A file.
    File(PathBuf),
}

impl fmt::Display for Swap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::There => "the machine's swap",
            Self::Compressed { .. } => "compressed memory",
            Self::File(_) => "a swap file",
        })
    }
}

/// Whether this process may do everything.
pub(super) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn swap_on(path: &Path) -> bool {
    let Some(path) = path.to_str() else { return false };
    works("mkswap", &[path]) && works("swapon", &[path])
}

impl Swap {
    /// Switches it on; or why there is none.
    pub(super) fn on(folder: &Path) -> Result<std::result::Result<Self, String>> {
        if !is_root() {
            return Ok(Err("only root may take another process' pages".to_owned()));
        }
        // The first line is the table's head.
        if std::fs::read_to_string("/proc/swaps")?.lines().count() > 1 {
            return Ok(Ok(Self::There));
        }
        let size = PathBuf::from("/sys/block/zram0/disksize");
        let is_free = std::fs::read_to_string(&size).is_ok_and(|size| size.trim() == "0");
        if is_free && std::fs::write(&size, SIZE).is_ok() {
            let swap = Self::Compressed {
                device: "/dev/zram0".into(),
                reset: "/sys/block/zram0/reset".into(),
            };
            if swap_on("/dev/zram0".as_ref()) {
                return Ok(Ok(swap));
            }
        }
        let file = folder.join("swap");
        let mut make = Command::new("sh");
        make.args([
            "-c",
            "rm -f \"$0\" && (umask 77 && dd if=/dev/zero of=\"$0\" bs=1M count=768)",
        ]);
        let made = make.arg(&file).output()?;
        let swap = Self::File(file.clone());
        if made.status.success() && swap_on(&file) {
            return Ok(Ok(swap));
        }
        Ok(Err(
            "this machine takes neither /dev/zram0 nor a file as swap".to_owned()
        ))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        match self {
            Self::There => {}
            Self::Compressed { device, reset } => {
                let _ = Command::new("swapoff").arg(device).output();
                let _ = std::fs::write(reset, "1");
            }
            Self::File(file) => {
                let _ = Command::new("swapoff").arg(&file).output();
                let _ = std::fs::remove_file(file);
            }
        }
    }
}

/// Names of a control group's files in the two versions of them.
struct Version {
    number: u8,
    root: &'static str,
    limit: &'static str,
    peak: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        number: 2,
        root: "/sys/fs/cgroup",
        limit: "memory.max",
        peak: "memory.peak",
    },
    Version {
        number: 1,
        root: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        peak: "memory.max_usage_in_bytes",
    },
];

/// A control group whose processes share little memory.
pub(super) struct Limit {
    version: &'static Version,
    folder: PathBuf,
}

impl Limit {
    /// An empty group without a limit. The kernel gives the memory controller to one of the versions.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn new() -> std::result::Result<Self, String> {
        for version in &VERSIONS {
            let root = Path::new(version.root);
            if version.number == 2 {
                // Groups have what their parent hands on.
                let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
            }
            let folder = root.join(format!("netvm-{}", std::process::id()));
            let limit = Self { version, folder };
            if std::fs::create_dir_all(&limit.folder).is_ok() && limit.folder.join(version.limit).exists() {
                return Ok(limit);
            }
        }
        Err("no control group with a limit can be made under /sys/fs/cgroup".to_owned())
    }

    pub(super) const fn version(&self) -> u8 {
        self.version.number
    }

    /// The command, run in the group by the evictor, which has these arguments.
    pub(super) fn around(&self, evictor: &Path, arguments: &[&str], command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        shell
            .arg(self.folder.join("cgroup.procs"))
            .arg(evictor)
            .args(arguments);
        super::behind(shell, command)
    }

    /// Limits the group to half of the most that it has had. Gives both.
    ///
    /// # Errors
    /// The group says no number, or takes none.
    pub(super) fn shrink(&self) -> Result<(u64, u64)> {
        let peak = std::fs::read_to_string(self.folder.join(self.version.peak))?;
        let peak: u64 = peak
            .trim()
            .parse()
            .context("the most memory of a control group")?;
        let limit = peak / 2;
        std::fs::write(self.folder.join(self.version.limit), limit.to_string())?;
        Ok((peak, limit))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // Its processes have ended, but their memory may not be given back yet.
        for _ in 0..50 {
            if std::fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
