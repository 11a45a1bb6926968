//! `cargo xtask c-library`: the library for C, from crate `netvm-c`.
//!
//! Cargo makes a static library; the C compiler links it to a shared one, by a script that names the symbols and their version. (Rust's own
//! `cdylib` loses the versions, and exports names that are not public.) [`crate::c_programs`] tests what comes out.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use netvm_harness::cargo::{cargo, root, target};

/// The crate.
const CRATE: &str = "userlib/c";
/// The committed header.
pub(crate) const HEADER: &str = "userlib/c/include/netvm/netvm.h";
/// Names the symbols.
pub(crate) const MAP: &str = "userlib/c/libnetvm.map";
/// The number that programs are linked to. It changes when a program that was built before cannot run with the library any more.
const SONAME: &str = "libnetvm.so.0";
/// What a static library of Rust needs.
const SYSTEM: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"];

/// What to build, and where it goes.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the library goes: `DIR/lib`, `DIR/include`, `DIR/share/man`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Where it will stand in the end, as pkg-config tells; if not given, where it is built.
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// The folder of libraries below the prefix.
    #[arg(long, value_name = "DIR", default_value = "lib")]
    libdir: PathBuf,
    /// The profile of cargo.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Write the header anew from the source, and build nothing.
    #[arg(long)]
    header: bool,
}

impl Options {
    /// Of a build for the tests.
    pub(crate) fn for_tests(out: PathBuf, profile: &str) -> Self {
        Self {
            out: Some(out),
            prefix: None,
            libdir: "lib".into(),
            profile: profile.to_owned(),
            header: false,
        }
    }

    /// Of a build into `usr`, which will be the system's `/usr`.
    pub(crate) fn for_system(usr: PathBuf, libdir: &str) -> Self {
        Self {
            prefix: Some("/usr".into()),
            libdir: libdir.into(),
            ..Self::for_tests(usr, "release")
        }
    }
}

/// `cargo xtask c-library`.
pub(crate) fn c_library(options: &Options) -> Result<bool> {
    if options.header {
        let path = root().join(HEADER);
        std::fs::write(&path, header()?).with_context(|| path.display().to_string())?;
        println!("c-library: {HEADER} is written");
        return Ok(true);
    }
    let mut run = |command: &mut Command| {
        let status = command.status().with_context(|| format!("{command:?}"))?;
        if !status.success() {
            bail!("{command:?}: {status}");
        }
        Ok(())
    };
    let out = build(options, &mut run)?;
    println!(
        "c-library: {} is built",
        out.join(&options.libdir).join(SONAME).display()
    );
    Ok(true)
}

/// The header, as the source makes it.
pub(crate) fn header() -> Result<String> {
    let folder = root().join(CRATE);
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"))
        .map_err(|error| anyhow::anyhow!("cbindgen.toml: {error}"))?;
    let bindings = cbindgen::Builder::new()
        .with_crate(&folder)
        .with_config(config)
        .generate()
        .context("the header")?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(String::from_utf8(text)?)
}

/// The symbols of the map.
pub(crate) fn symbols() -> Result<Vec<String>> {
    let map = std::fs::read_to_string(root().join(MAP)).context(MAP)?;
    let words = map.split([';', '{', '}', '\n']).map(str::trim);
    Ok(words
        .filter(|word| word.starts_with("netvm_"))
        .map(str::to_owned)
        .collect())
}

/// Builds it all. Where that is.
pub(crate) fn build(options: &Options, run: &mut dyn FnMut(&mut Command) -> Result<()>) -> Result<PathBuf> {
    let out = match &options.out {
        Some(out) => std::path::absolute(out)?,
        None => target().join("c"),
    };
    let libraries = out.join(&options.libdir);
    std::fs::create_dir_all(libraries.join("pkgconfig"))?;
    let mut rustc = cargo(&["rustc", "--locked", "--package", "netvm-c", "--lib"]);
    run(rustc.args(["--crate-type", "staticlib", "--profile", &options.profile]))?;
    let folder = match options.profile.as_str() {
        "dev" => "debug",
        profile => profile,
    };
    let archive = libraries.join("libnetvm.a");
    std::fs::copy(target().join(folder).join("libnetvm_c.a"), &archive)?;
    link(&libraries, run)?;
    copy_headers(&out)?;
    copy_pages(&out)?;
    let prefix = options.prefix.as_deref().unwrap_or(&out);
    let config = pkg_config(prefix, &options.libdir);
    std::fs::write(libraries.join("pkgconfig/libnetvm.pc"), config)?;
    Ok(out)
}

/// The shared library and its names.
fn link(libraries: &Path, run: &mut dyn FnMut(&mut Command) -> Result<()>) -> Result<()> {
    let file = format!("libnetvm.so.{}", env!("CARGO_PKG_VERSION"));
    let mut cc = Command::new("cc");
    cc.arg("-shared").arg("-o").arg(libraries.join(&file));
    cc.arg(format!("-Wl,-soname,{SONAME}"));
    cc.arg(format!("-Wl,--version-script={}", root().join(MAP).display()));
    // A name of the map that no source has is an error.
    cc.arg("-Wl,--no-undefined-version");
    cc.args(symbols()?.iter().map(|symbol| format!("-Wl,-u,{symbol}")));
    cc.arg(libraries.join("libnetvm.a"));
    // Its threads outlive a `dlclose`.
    cc.args([
        "-Wl,--gc-sections",
        "-Wl,-z,relro,-z,now,-z,defs,-z,nodelete",
        "-Wl,--as-needed",
    ]);
    run(cc.args(SYSTEM))?;
    for (name, of) in [(SONAME, file.as_str()), ("libnetvm.so", SONAME)] {
        let link = libraries.join(name);
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link)?;
        }
        std::os::unix::fs::symlink(of, link)?;
    }
    Ok(())
}

fn copy_headers(out: &Path) -> Result<()> {
    let folder = out.join("include/netvm");
    std::fs::create_dir_all(&folder)?;
    std::fs::copy(root().join(HEADER), folder.join("netvm.h"))?;
    Ok(())
}

/// The manual's pages, as `NAME.SECTION`.
pub(crate) fn pages() -> Result<Vec<PathBuf>> {
    let folder = root().join(CRATE).join("man");
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        pages.push(entry?.path());
    }
    pages.sort();
    Ok(pages)
}

fn copy_pages(out: &Path) -> Result<()> {
    for page in pages()? {
        let name = page.file_name().unwrap_or_default();
        let section = page.extension().unwrap_or_default().display();
        let folder = out.join(format!("share/man/man{section}"));
        std::fs::create_dir_all(&folder)?;
        std::fs::copy(&page, folder.join(name))?;
    }
    Ok(())
}

fn pkg_config(prefix: &Path, libdir: &Path) -> String {
    format!(
        "prefix={prefix}\n\
         libdir=${{prefix}}/{libdir}\n\
         includedir=${{prefix}}/include\n\n\
         Name: libnetvm\n\
         Description: Remote memory without pinning\n\
         Version: {version}\n\
         Libs: -L${{libdir}} -lnetvm\n\
         Libs.private: {private}\n\
         Cflags: -I${{includedir}}\n",
        prefix = prefix.display(),
        libdir = libdir.display(),
        version = env!("CARGO_PKG_VERSION"),
        private = SYSTEM.join(" "),
    )
}
