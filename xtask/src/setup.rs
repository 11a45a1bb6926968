//! `cargo xtask setup`: the Debian packages that the tests need.
//!
//! Nothing here is needed to build or to run the demo: those take Rust and a C linker. It changes nothing when
//! all is there, so CI calls it every time.

use anyhow::Result;
use netvm_harness::packages::{Probe, Tool, install, missing, names};

const TOOLS: [Tool; 11] = [
    Tool {
        package: "gcc",
        needed_for: "linking",
        probe: Probe::Runs("cc", &["--version"]),
    },
    Tool {
        package: "g++",
        needed_for: "the fuzz targets (libFuzzer is C++)",
        probe: Probe::Runs("c++", &["--version"]),
    },
    Tool {
        package: "valgrind",
        needed_for: "instruction counts (cargo xtask bench path)",
        probe: Probe::Runs("valgrind", &["--version"]),
    },
    Tool {
        package: "qemu-system-arm",
        needed_for: "booting the firmware image",
        probe: Probe::Runs("qemu-system-aarch64", &["--version"]),
    },
    Tool {
        package: "iproute2",
        needed_for: "two network namespaces, as two machines",
        probe: Probe::Runs("ip", &["-V"]),
    },
    Tool {
        package: "pkg-config",
        needed_for: "the examples of the library for C",
        probe: Probe::Runs("pkg-config", &["--version"]),
    },
    Tool {
        package: "mandoc",
        needed_for: "checking the manual of the library for C",
        probe: Probe::Package,
    },
    Tool {
        package: "libfabric-bin",
        needed_for: "the programs that come with libfabric",
        probe: Probe::Runs("fi_info", &["--version"]),
    },
    Tool {
        package: "libfabric-dev",
        needed_for: "tests of the provider for libfabric",
        probe: Probe::Package,
    },
    Tool {
        package: "openmpi-bin",
        needed_for: "MPI programs over the provider for libfabric",
        probe: Probe::Runs("mpirun", &["--version"]),
    },
    Tool {
        package: "libopenmpi-dev",
        needed_for: "MPI programs over the provider for libfabric",
        probe: Probe::Runs("mpicc", &["--version"]),
    },
];

/// `cargo xtask setup`. `Ok(false)`: something is missing.
pub(crate) fn setup() -> Result<bool> {
    if missing(&TOOLS).is_empty() {
        println!(
            "setup: {} are there; nothing to do",
            names(&TOOLS.iter().collect::<Vec<_>>(), ", ")
        );
        return Ok(true);
    }
    let done = install(&TOOLS)?;
    if done {
        println!("setup: done");
    }
    Ok(done)
}
