//! `cargo xtask kernel`: the Linux that the rig's hosts run, built once a machine.
//!
//! Debian's `linux-source-6.12`, the smallest configuration there is and what `tests/rig/*.config` add, with
//! Rust: [`tools`] are what it takes, [`build`] does it. What a module and a boot need is kept in the cache
//! ([`crate::cache`]), under a name that changes with everything that goes into it.

mod build;
pub(crate) mod tools;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;

use crate::cache;
use crate::cargo::root;

/// Options of `cargo xtask kernel`.
#[derive(Args)]
#[command(
    after_help = "The result lies in $NETVM_CACHE (else $XDG_CACHE_HOME/netvm, else ~/.cache/netvm); \
    what is there already is not built again. It takes about 10 minutes on two cores, the debug kernel 20."
)]
pub struct Options {
    /// The kernel with lock, memory and sleep checks (PROVE_LOCKING, KASAN, ...).
    #[arg(long)]
    debug: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// A built kernel.
#[derive(Clone, Serialize)]
pub(crate) struct Kernel {
    /// The tree, as an out-of-tree module needs it.
    pub(crate) tree: PathBuf,
    /// What a machine boots.
    pub(crate) image: PathBuf,
    /// Debian's version of the sources.
    pub(crate) version: String,
    /// With the debug configuration.
    pub(crate) debug: bool,
    /// Now, and not found in the cache.
    pub(crate) built: bool,
}

/// `cargo xtask kernel`. `Ok(false)`: it failed, and stderr says why.
///
/// # Errors
/// What is missing, or what stopped the build.
pub fn kernel(options: &Options) -> Result<bool> {
    let kernel = ready(options.debug)?;
    if options.json {
        println!("{}", serde_json::to_string(&kernel)?);
    } else {
        println!(
            "Linux {}{}, {}\n  tree   {}\n  image  {}",
            kernel.version,
            if kernel.debug { " with checks" } else { "" },
            if kernel.built {
                "built now"
            } else {
                "found in the cache"
            },
            kernel.tree.display(),
            kernel.image.display()
        );
    }
    Ok(true)
}

/// The tree of the kernel without checks, if it is built and what a module takes is there: for those that it is not worth building for.
///
/// # Errors
/// What the tree's name is made from cannot be read.
pub fn tree_if_built() -> Result<Option<PathBuf>> {
    if !crate::packages::missing(&tools::PACKAGES).is_empty() {
        return Ok(None);
    }
    let configs = [root().join("tests/rig/kernel.config")];
    let tree = cache::folder()?.join(name(&tools::ready()?, &configs, false)?);
    Ok(tree.join("arch/x86/boot/bzImage").is_file().then_some(tree))
}

/// The kernel, built if the cache has it not.
pub(crate) fn ready(debug: bool) -> Result<Kernel> {
    let tools = tools::ready()?;
    let configs: &[&str] = match debug {
        false => &["kernel.config"],
        true => &["kernel.config", "kernel-debug.config"],
    };
    let configs: Vec<PathBuf> = configs
        .iter()
        .map(|name| root().join("tests/rig").join(name))
        .collect();
    let folder = cache::folder()?;
    let name = name(&tools, &configs, debug)?;
    let tree = folder.join(&name);
    let image = tree.join("arch/x86/boot/bzImage");
    let mut built = false;
    if !image.is_file() {
        let _turn = cache::turn(&folder, &name)?;
        // Another process may have had the turn before us.
        if !image.is_file() {
            build::build(&tools, &configs, &tree)?;
            built = true;
        }
    }
    if !image.is_file() {
        bail!("the build left no {}", image.display());
    }
    Ok(Kernel {
        tree,
        image,
        version: tools.source,
        debug,
        built,
    })
}

/// Of the tree: another as soon as anything that goes into it is another.
fn name(tools: &tools::Tools, configs: &[PathBuf], debug: bool) -> Result<String> {
    let mut inputs = tools.versions();
    for config in configs {
        inputs.push('\n');
        inputs.push_str(&read(config)?);
    }
    let version = tools.source.split('-').next().unwrap_or_default();
    let kind = if debug { "-debug" } else { "" };
    Ok(format!("kernel-{version}{kind}-{}", cache::name_of(&inputs)))
}

fn read(config: &Path) -> Result<String> {
    std::fs::read_to_string(config).with_context(|| format!("reading {}", config.display()))
}
