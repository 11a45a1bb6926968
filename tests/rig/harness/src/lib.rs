//! The machinery behind `cargo xtask rig`, `kernel`, `module` and `firmware`: builds what the machines boot, and runs it
//! in QEMU.
//!
//! | module | question |
//! |---|---|
//! | [`rig`] | the real stack in QEMU: what is tried on it, what it costs, by hand |
//! | [`image`] | the firmware image: built, sized, counted, booted |
//! | [`mod@kernel`], [`mod@module`] | the hosts' Linux, and NetVM's module for it |
//! | [`packages`] | which Debian packages that takes |
//! | [`cargo`], [`cache`] | where the workspace is, how cargo is called, what is built once a machine |
//! | [`exec`], [`report`] | how one command runs, and what a person sees of it |

pub mod cache;
pub mod cargo;
pub mod exec;
pub mod image;
pub mod kernel;
pub mod module;
pub mod packages;
pub mod report;
pub mod rig;

/// The command line names something that does not exist.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
