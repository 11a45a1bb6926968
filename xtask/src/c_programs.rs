//! The stage `c`: the library for C is tested by programs in C.
//!
//! The header is the one that the source makes, the symbols are those of the map, and the manual has no fault that a program finds. The
//! tests run plainly, under valgrind, and with the sanitizers for addresses and for undefined behaviour; the examples are built as their
//! first lines say, and once more with the static library.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use netvm_harness::cargo::{output_of, root, target};
use netvm_harness::packages::install;

use crate::c_library::{self, HEADER, Options};
use crate::run::{Context, Outcome};
use crate::tools;

/// Every program is C99 without an extension, and without a warning.
const STRICT: [&str; 7] = [
    "-std=c99",
    "-pedantic",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-D_XOPEN_SOURCE=700",
    "-D_DEFAULT_SOURCE",
];

/// What the compiler can watch; what it finds ends the program.
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
/// The same for a program that forks.
const WITHOUT_ADDRESSES: [&str; 2] = ["-fsanitize=undefined", "-fno-sanitize-recover=all"];

/// Threads that spin get their turns, and a leak is an error.
const VALGRIND: [&str; 6] = [
    "--quiet",
    "--fair-sched=yes",
    "--error-exitcode=9",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
];
/// A child of `fork` leaks, for valgrind, what only its parent's other threads know. And where one of these is in the allocator of gcc's
/// address sanitizer as the program forks, that allocator is locked for good in the child.
const FORKS: &str = "fork";

/// Tells a test that a tool watches it.
const WATCHED: (&str, &str) = ("NETVM_C_WATCHED", "1");

/// The stage.
pub(crate) fn stage(context: &mut Context<'_>) -> Result<Outcome> {
    if !install(&tools::C)? {
        return Ok(Outcome::Skipped("packages are missing (named above)".to_owned()));
    }
    let committed = std::fs::read_to_string(root().join(HEADER)).context(HEADER)?;
    if c_library::header()? != committed {
        bail!("{HEADER} is not what the source makes: `cargo xtask c-library --header` writes it");
    }
    let built = c_library::build(
        &Options::for_tests(target().join("c-tests"), "release"),
        &mut |command| context.exec(command),
    )?;
    let bench = Bench::new(built)?;
    bench.exports_what_the_map_names()?;
    let pages = c_library::pages()?;
    context.exec(
        Command::new("mandoc")
            .args(["-T", "lint", "-W", "warning"])
            .args(&pages),
    )?;
    bench.is_fit_for_cxx(context)?;
    let tests = sources("userlib/c/tests")?;
    for test in &tests {
        bench.test(context, test)?;
    }
    let examples = sources("examples/c")?;
    for example in &examples {
        bench.example(context, example)?;
    }
    Ok(Outcome::Passed(format!(
        "{} tests, plainly, under valgrind, ASan and UBSan; {} examples, linked to both libraries; {} pages",
        tests.len(),
        examples.len(),
        pages.len()
    )))
}

/// The programs of a folder.
fn sources(folder: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(folder)).with_context(|| folder.to_owned())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// The library, and where programs go that use it.
struct Bench {
    library: PathBuf,
    programs: PathBuf,
}

impl Bench {
    fn new(library: PathBuf) -> Result<Self> {
        let programs = library.join("programs");
        std::fs::create_dir_all(&programs)?;
        Ok(Self { library, programs })
    }

    fn libraries(&self) -> PathBuf {
        self.library.join("lib")
    }

    /// No name of Rust leaks out, and each has its version.
    fn exports_what_the_map_names(&self) -> Result<()> {
        let shared = self.libraries().join("libnetvm.so.0");
        let shared = shared.to_string_lossy();
        let listed = output_of("nm", &["--dynamic", "--defined-only", &shared]).context("nm does not run")?;
        let mut exported: Vec<&str> = listed
            .lines()
            .filter_map(|line| line.split_whitespace().nth(2))
            .filter(|name| !name.starts_with("NETVM_"))
            .collect();
        let mut wanted: Vec<String> = c_library::symbols()?
            .into_iter()
            .map(|name| name + "@@NETVM_0.1")
            .collect();
        exported.sort_unstable();
        wanted.sort_unstable();
        if exported != wanted {
            bail!("the library exports {exported:?}, and the map names {wanted:?}");
        }
        Ok(())
    }

    fn is_fit_for_cxx(&self, context: &mut Context<'_>) -> Result<()> {
        let source = self.programs.join("header.cpp");
        std::fs::write(
            &source,
            "#include <netvm/netvm.h>\nint main() { return netvm_error_status(); }\n",
        )?;
        let mut cxx = Command::new("c++");
        cxx.args(["-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror"]);
        context.exec(self.linked(&mut cxx, &source, "header"))
    }

    /// The rest of a compiler's command for a program of one source, and where the program goes.
    fn linked<'a>(&self, compiler: &'a mut Command, source: &Path, name: &str) -> &'a mut Command {
        compiler
            .arg(source)
            .arg("-I")
            .arg(self.library.join("include"))
            .arg("-L")
            .arg(self.libraries())
            .args(["-lnetvm", "-pthread", "-o"])
            .arg(self.programs.join(name))
    }

    /// Runs a program that was built.
    fn runs(&self, command: &mut Command, context: &mut Context<'_>) -> Result<()> {
        context.exec(command.env("LD_LIBRARY_PATH", self.libraries()))
    }

    fn test(&self, context: &mut Context<'_>, source: &Path) -> Result<()> {
        let name = stem(source);
        let mut cc = Command::new("cc");
        context.exec(self.linked(cc.args(STRICT).arg("-g"), source, &name))?;
        let program = self.programs.join(&name);
        self.runs(&mut Command::new(&program), context)?;
        if name != FORKS {
            let mut valgrind = Command::new("valgrind");
            self.runs(
                valgrind.args(VALGRIND).arg(&program).env(WATCHED.0, WATCHED.1),
                context,
            )?;
        }
        let checked = format!("{name}-sanitized");
        let mut cc = Command::new("cc");
        let watches = if name == FORKS {
            WITHOUT_ADDRESSES
        } else {
            SANITIZERS
        };
        context.exec(self.linked(cc.args(STRICT).arg("-g").args(watches), source, &checked))?;
        let mut program = Command::new(self.programs.join(&checked));
        self.runs(program.env(WATCHED.0, WATCHED.1), context)
    }

    /// Builds an example as a user does, with either library.
    fn example(&self, context: &mut Context<'_>, source: &Path) -> Result<()> {
        let shared = self.programs.join(format!("example-{}", stem(source)));
        self.compile(context, source, &shared, &[])?;
        self.runs(&mut Command::new(shared), context)?;
        // In a folder without the shared library a linker finds the static one, and the program runs by itself.
        let folder = self.programs.join("static");
        std::fs::create_dir_all(&folder)?;
        std::fs::copy(self.libraries().join("libnetvm.a"), folder.join("libnetvm.a"))?;
        let libdir = format!("--define-variable=libdir={}", folder.display());
        let alone = folder.join(format!("example-{}", stem(source)));
        self.compile(context, source, &alone, &["--static", &libdir])?;
        context.exec(&mut Command::new(alone))
    }

    /// Compiles a program with what pkg-config says.
    fn compile(&self, context: &mut Context<'_>, source: &Path, program: &Path, how: &[&str]) -> Result<()> {
        let output = Command::new("pkg-config")
            .args(how)
            .args(["--cflags", "--libs", "libnetvm"])
            .env("PKG_CONFIG_PATH", self.libraries().join("pkgconfig"))
            .output()
            .context("pkg-config does not run")?;
        if !output.status.success() {
            bail!("pkg-config: {}", String::from_utf8_lossy(&output.stderr));
        }
        let mut cc = Command::new("cc");
        cc.args(STRICT)
            .arg(source)
            .args(String::from_utf8_lossy(&output.stdout).split_whitespace())
            .args(["-pthread", "-o"])
            .arg(program);
        context.exec(&mut cc)
    }
}
