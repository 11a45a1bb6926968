//! What building the kernel and a module for it takes: Debian's packages, and the kernel's own bindgen.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cache;
use crate::cargo::{self, output_of};
use crate::packages::{self, Probe, Tool};

/// The sources; the archive's name below `/usr/src` begins the same.
pub(super) const SOURCE: &str = "linux-source-6.12";
/// Debian's Rust: the kernel is built with the one whose standard library's sources are there too.
pub(crate) const RUSTC: &str = "/usr/bin/rustc";
/// What Debian's LLVM calls itself.
pub(crate) const LLVM: &str = "-19";
const LLVM_FOLDER: &str = "/usr/lib/llvm-19";
/// Linux 6.12 asks for a bindgen of before 0.72.
const BINDGEN: &str = "0.71.1";

const fn package(package: &'static str, needed_for: &'static str) -> Tool {
    Tool {
        package,
        needed_for,
        probe: Probe::Package,
    }
}

/// Everything but bindgen, which Debian has not in this version.
pub(crate) static PACKAGES: [Tool; 18] = [
    package(SOURCE, "the hosts' kernel"),
    package("rustc-web", "Rust in the kernel"),
    package("cargo-web", "crates in the kernel"),
    package("rust-web-src", "the kernel's own core"),
    package("clang-19", "the kernel's C"),
    package("lld-19", "linking the kernel"),
    package("llvm-19", "the kernel's binary tools"),
    package("libclang-19-dev", "reading the kernel's headers from Rust"),
    package("flex", "the kernel's configuration"),
    package("bison", "the kernel's configuration"),
    package("bc", "the kernel's build"),
    package("make", "the kernel's build"),
    package("gcc", "the kernel's host programs"),
    package("libc6-dev", "the kernel's host programs"),
    package("libelf-dev", "the kernel's objtool"),
    package("libssl-dev", "the kernel's host programs"),
    package("kmod", "the kernel's modules"),
    package("xz-utils", "unpacking the kernel"),
];

/// What was found.
pub(crate) struct Tools {
    /// Version of the sources' package.
    pub(crate) source: String,
    /// Version of Debian's Rust, as it says itself.
    rustc: String,
    clang: String,
    /// Sources of the standard library.
    library: PathBuf,
    bindgen: PathBuf,
}

/// Installs what is missing.
pub(crate) fn ready() -> Result<Tools> {
    if !packages::install(&PACKAGES)? {
        bail!("packages are missing; their names and the command are above");
    }
    let version = |package| packages::version_of(package).with_context(|| format!("no version of {package}"));
    let rustc = output_of(RUSTC, &["--version"]).with_context(|| format!("{RUSTC} does not run"))?;
    let release = rustc.split(' ').nth(1).unwrap_or_default();
    let library = PathBuf::from(format!("/usr/src/rustc-{release}/library"));
    if !library.is_dir() {
        bail!(
            "{RUSTC} is {rustc}, and {} is not there: it must be Debian's rustc-web, not another",
            library.display()
        );
    }
    Ok(Tools {
        source: version(SOURCE)?,
        clang: version("clang-19")?,
        rustc,
        library,
        bindgen: bindgen()?,
    })
}

impl Tools {
    /// Everything whose change changes what is built.
    pub(crate) fn versions(&self) -> String {
        format!(
            "{SOURCE} {}\n{}\nclang {}\nbindgen {BINDGEN}",
            self.source, self.rustc, self.clang
        )
    }

    /// `make` with these tools, in `folder`.
    pub(crate) fn make(&self, folder: &std::path::Path) -> Command {
        let mut command = Command::new("make");
        command.current_dir(folder).arg(format!("LLVM={LLVM}"));
        self.environment(&mut command);
        command
    }

    /// These tools before the developer's own, and nothing of a cargo that runs us.
    pub(crate) fn environment(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let foreign = ["CARGO", "RUST", "KBUILD", "MAKE", "KCFLAGS", "LD_LIBRARY_PATH"];
            if foreign.iter().any(|prefix| name.starts_with(prefix)) && name != "CARGO_HOME" {
                command.env_remove(&*name);
            }
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let bindgen = self.bindgen.display();
        command
            .env("PATH", format!("/usr/bin:{bindgen}:{LLVM_FOLDER}/bin:{path}"))
            .env("RUSTC", RUSTC)
            .env("RUST_LIB_SRC", &self.library)
            .env("LIBCLANG_PATH", format!("{LLVM_FOLDER}/lib"))
            .env("KBUILD_BUILD_USER", "netvm")
            .env("KBUILD_BUILD_HOST", "rig")
            .env("LC_ALL", "C");
    }
}

/// The folder of the kernel's bindgen, installed into the cache if it is not there.
fn bindgen() -> Result<PathBuf> {
    let folder = cache::folder()?;
    let name = format!("bindgen-{BINDGEN}");
    let bin = folder.join(&name).join("bin");
    if bin.join("bindgen").is_file() {
        return Ok(bin);
    }
    let _turn = cache::turn(&folder, &name)?;
    if bin.join("bindgen").is_file() {
        return Ok(bin);
    }
    eprintln!("installing bindgen {BINDGEN} (about a minute)");
    let mut install = cargo::install("bindgen-cli", BINDGEN, &folder.join(&name));
    install.current_dir(&folder).stdout(std::io::stderr());
    if !install.status().context("cannot start cargo")?.success() {
        bail!("bindgen {BINDGEN} could not be installed");
    }
    Ok(bin)
}
