//! `cargo xtask`: the commands a NetVM developer types.
//!
//! | command | file |
//! |---|---|
//! | `cargo xtask setup` | [`setup`] |
//! | `cargo xtask test` | [`stages`] lists what it runs, [`run`] runs it, the test programs are in [`suite`], [`netvm_harness::report`] shows it |
//! | `cargo xtask api` | [`surface`] |
//! | `cargo xtask bench` | [`mod@bench`] |
//! | `cargo xtask c-library` | [`c_library`] |
//! | `cargo xtask dist` | [`mod@dist`] |
//! | `cargo xtask firmware` | [`image`] |
//! | `cargo xtask kernel` | [`mod@kernel`] |
//! | `cargo xtask module` | [`mod@module`] |
//! | `cargo xtask rig` | [`mod@rig`] |
//!
//! The last four are in `tests/rig/harness`, which builds the machines and runs them.
//! The rules that no compiler checks are in [`house`]; the licence and source policy in [`deny`]; the guide's book is built in [`guide`].

mod bench;
mod c_library;
mod c_programs;
mod deny;
mod dist;
mod fabric;
mod foreign;
mod fuzz;
mod guide;
mod house;
mod run;
mod setup;
mod sockets;
mod stages;
mod suite;
mod surface;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use netvm_harness::{Usage, image, kernel, module, rig};

/// NetVM's developer commands.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    version,
    arg_required_else_help = true
)]
#[command(after_help = "Exit codes: 0 all is well, 1 something failed, 2 the command line was wrong.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install the Debian packages that the tests need (or say which to install).
    Setup,
    /// Run every check there is; CI runs the same.
    Test(run::Options),
    /// Compare the public API with its list in `docs/api`, or write that list.
    Api(surface::Options),
    /// Run a benchmark of the `benches` package, for instance `cargo xtask bench path`.
    Bench(bench::Options),
    /// Build the library for C: `libnetvm.so`, `libnetvm.a`, header, manual pages and what pkg-config asks for.
    CLibrary(c_library::Options),
    /// Make the Debian packages.
    Dist(dist::Options),
    /// Build the firmware image and print its size, and the memory that a card takes.
    Firmware(image::Options),
    /// Build the Linux that the rig's hosts run, if the cache has it not.
    Kernel(kernel::Options),
    /// Build the kernel module.
    Module(module::Options),
    /// The real stack in QEMU: Linux, the module, the firmware image, a wire.
    #[command(subcommand)]
    Rig(rig::Rig),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Setup => setup::setup(),
        Command::Test(options) => run::run(&options),
        Command::Api(options) => surface::api(&options),
        Command::Bench(options) => bench::bench(&options),
        Command::CLibrary(options) => c_library::c_library(&options),
        Command::Dist(options) => dist::dist(&options),
        Command::Firmware(options) => image::firmware(&options),
        Command::Kernel(options) => kernel::kernel(&options),
        Command::Module(options) => module::module(&options),
        Command::Rig(command) => rig::rig(&command),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            match error.is::<Usage>() {
                true => ExitCode::from(2),
                false => ExitCode::FAILURE,
            }
        }
    }
}
