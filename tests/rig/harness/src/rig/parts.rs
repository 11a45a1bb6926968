//! What the machines are made of: kernel, module, image, programs, root file system.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::initramfs::Archive;
use super::programs::{self, Programs, STRIP};
use crate::cargo::{root, target};
use crate::kernel::{Kernel, tools};
use crate::packages::{self, Probe, Tool};
use crate::{image, module};

static PACKAGES: [Tool; 6] = [
    STRIP,
    Tool {
        package: "qemu-system-x86",
        needed_for: "the hosts",
        probe: Probe::Runs("qemu-system-x86_64", &["--version"]),
    },
    Tool {
        package: "qemu-system-arm",
        needed_for: "the cards",
        probe: Probe::Runs("qemu-system-aarch64", &["--version"]),
    },
    Tool {
        package: "busybox-static",
        needed_for: "the hosts' shell",
        probe: Probe::Package,
    },
    Tool {
        package: "squashfs-tools",
        needed_for: "a file system that cannot be written",
        probe: Probe::Runs("mksquashfs", &["-version"]),
    },
    Tool {
        package: "util-linux",
        needed_for: "machines that end when the rig does",
        probe: Probe::Runs("setpriv", &["--version"]),
    },
];

/// Names a folder whose files the hosts have in `/bin` as well.
const EXTRA: &str = "NETVM_RIG_EXTRA";

/// Everything that a machine boots.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(super) kernel: Kernel,
    pub(super) initramfs: PathBuf,
}

/// Installs the packages that rig and kernel need, as far as it may. Whether all are there.
///
/// # Errors
/// An installation failed.
pub fn installed() -> Result<bool> {
    // Both lists are gone through, so that a person reads of everything that is missing.
    let (machines, kernel) = (
        packages::install(&PACKAGES)?,
        packages::install(&tools::PACKAGES)?,
    );
    Ok(machines && kernel)
}

/// Builds it all; `None` if a compiler has said on stderr what is wrong.
pub(crate) fn ready(debug: bool) -> Result<Option<Parts>> {
    if !packages::install(&PACKAGES)? {
        bail!("packages are missing; their names and the command are above");
    }
    let Some(module) = module::build(debug)? else {
        return Ok(None);
    };
    let taken = root().join("tests/rig/taken");
    let Some(taken) = module::build_plain(&module.kernel, &taken, "taken")? else {
        return Ok(None);
    };
    image::have_target()?;
    if !image::build().status().context("cannot start cargo")?.success() {
        return Ok(None);
    }
    let Some(programs) = programs::build()? else {
        return Ok(None);
    };
    let initramfs = target().join("rig").join(if debug {
        "initramfs-debug.cpio"
    } else {
        "initramfs.cpio"
    });
    let archive = archive(&[&module.module, &taken], &programs)?;
    std::fs::write(&initramfs, archive).with_context(|| format!("writing {}", initramfs.display()))?;
    Ok(Some(Parts {
        kernel: module.kernel,
        initramfs,
    }))
}

fn archive(modules: &[&Path], programs: &Programs) -> Result<Vec<u8>> {
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("reading {}", path.display()));
    let mut archive = Archive::default();
    let mut folders = folders(&programs.libraries);
    folders.extend(
        [
            "bin", "dev", "etc", "lib", "mnt", "proc", "root", "run", "sys", "tmp",
        ]
        .map(str::to_owned),
    );
    for folder in &folders {
        archive.folder(folder)?;
    }
    archive.device("dev/console", 5, 1)?;
    archive.file(
        "etc/passwd",
        b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/tmp:/bin/sh\n\
          other:x:1001:1001:other:/tmp:/bin/sh\n",
    )?;
    archive.file(
        "etc/group",
        b"root:x:0:\napp:x:1000:\nnetvm:x:990:app,other\nother:x:1001:\n",
    )?;
    archive.program("init", &read(&root().join("tests/rig/init"))?)?;
    archive.program("bin/busybox", &read(Path::new("/bin/busybox"))?)?;
    for module in modules {
        let name = module.file_name().context("a module without a name")?;
        archive.file(&format!("lib/{}", name.to_string_lossy()), &read(module)?)?;
    }
    archive.file("lib/squashfs.img", &read(&squashfs()?)?)?;
    for name in applets()? {
        archive.link(&format!("bin/{name}"), "busybox")?;
    }
    for library in &programs.libraries {
        archive.program(&inside(library), &read(library)?)?;
    }
    for program in &programs.programs {
        let name = program.file_name().context("a program without a name")?;
        archive.program(&format!("bin/{}", name.to_string_lossy()), &read(program)?)?;
    }
    if let Some(extra) = std::env::var_os(EXTRA) {
        let folder = Path::new(&extra);
        for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let name = entry.file_name().to_string_lossy().into_owned();
                archive.program(&format!("bin/{name}"), &read(&entry.path())?)?;
            }
        }
    }
    archive.finish()
}

/// A path of this machine, as an archive names it.
fn inside(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').to_owned()
}

/// The folders of these files, each after the one that it is in.
fn folders(files: &BTreeSet<PathBuf>) -> BTreeSet<String> {
    files
        .iter()
        .flat_map(|file| file.ancestors().skip(1))
        .map(inside)
        .filter(|folder| !folder.is_empty())
        .collect()
}

/// A squashfs with one file, `read`, of some pages.
fn squashfs() -> Result<PathBuf> {
    let (folder, image) = (target().join("rig/squashfs"), target().join("rig/squashfs.img"));
    std::fs::create_dir_all(&folder)?;
    let bytes: Vec<u8> = (0..64 << 10).map(|at: u32| (at / 4096 * 31 + at) as u8).collect();
    std::fs::write(folder.join("read"), bytes)?;
    let made = Command::new("mksquashfs")
        .args([&folder, &image])
        .args([
            "-noappend",
            "-all-root",
            "-no-progress",
            "-quiet",
            "-comp",
            "gzip",
        ])
        .stdout(Stdio::null())
        .status()
        .context("starting mksquashfs")?;
    if !made.success() {
        bail!("mksquashfs failed for {}", folder.display());
    }
    Ok(image)
}

/// The names that busybox answers to.
fn applets() -> Result<Vec<String>> {
    let output = Command::new("/bin/busybox")
        .arg("--list")
        .output()
        .context("starting busybox")?;
    let names = String::from_utf8(output.stdout)?;
    Ok(names
        .lines()
        .filter(|name| *name != "busybox")
        .map(str::to_owned)
        .collect())
}
