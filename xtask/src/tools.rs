//! The Debian packages that commands and stages need: each stands here once.

use netvm_harness::packages::{Probe, Tool};

const fn runs(
    package: &'static str,
    needed_for: &'static str,
    program: &'static str,
    args: &'static [&'static str],
) -> Tool {
    Tool {
        package,
        needed_for,
        probe: Probe::Runs(program, args),
    }
}

const fn debians(package: &'static str, needed_for: &'static str) -> Tool {
    Tool {
        package,
        needed_for,
        probe: Probe::Package,
    }
}

const VALGRIND: Tool = runs(
    "valgrind",
    "instruction counts (cargo xtask bench path), the tests of the library for C",
    "valgrind",
    &["--version"],
);
const QEMU: Tool = runs(
    "qemu-system-arm",
    "booting the firmware image",
    "qemu-system-aarch64",
    &["--version"],
);
const PKG_CONFIG: Tool = runs(
    "pkg-config",
    "the examples of the library for C",
    "pkg-config",
    &["--version"],
);
const MANDOC: Tool = debians("mandoc", "checking the manual of the library for C");
const LIBFABRIC: Tool = runs(
    "libfabric-bin",
    "the programs that come with libfabric",
    "fi_info",
    &["--version"],
);
const LIBFABRIC_DEV: Tool = debians("libfabric-dev", "tests of the provider for libfabric");
const MPIRUN: Tool = runs(
    "openmpi-bin",
    "MPI programs over the provider for libfabric",
    "mpirun",
    &["--version"],
);
const MPICC: Tool = runs(
    "libopenmpi-dev",
    "MPI programs over the provider for libfabric",
    "mpicc",
    &["--version"],
);

const MPI4PY: Tool = debians(
    "python3-mpi4py",
    "mpi4py's own tests over the provider for libfabric",
);
const NUMPY: Tool = debians("python3-numpy", "mpi4py's own tests");
const PIP: Tool = runs(
    "python3-pip",
    "getting mpi4py's own tests, which are in its sources only",
    "pip3",
    &["--version"],
);

const REDIS: Tool = runs(
    "redis-tools",
    "Redis over the library to preload",
    "redis-benchmark",
    &["--version"],
);
const IPERF: Tool = runs(
    "iperf3",
    "iperf3 over the library to preload",
    "iperf3",
    &["--version"],
);
const CURL: Tool = runs("curl", "curl over the library to preload", "curl", &["--version"]);
const WHOIS: Tool = runs(
    "whois",
    "whois over the library to preload",
    "whois",
    &["--version"],
);
const RSYNC: Tool = runs(
    "rsync",
    "rsync over the library to preload",
    "rsync",
    &["--version"],
);

/// `cargo xtask setup`: what the stages of a plain `cargo xtask test` need.
pub(crate) const SETUP: [Tool; 19] = [
    runs("gcc", "linking", "cc", &["--version"]),
    runs(
        "g++",
        "the fuzz targets (libFuzzer is C++)",
        "c++",
        &["--version"],
    ),
    VALGRIND,
    QEMU,
    runs(
        "iproute2",
        "two network namespaces, as two machines",
        "ip",
        &["-V"],
    ),
    PKG_CONFIG,
    MANDOC,
    LIBFABRIC,
    LIBFABRIC_DEV,
    MPIRUN,
    MPICC,
    MPI4PY,
    NUMPY,
    PIP,
    REDIS,
    IPERF,
    CURL,
    WHOIS,
    RSYNC,
];

/// The stage `sockets`.
pub(crate) const SOCKETS: [Tool; 6] = [
    REDIS,
    IPERF,
    CURL,
    WHOIS,
    RSYNC,
    debians("python3", "servers over the library to preload"),
];

/// The stage `c`, beside a compiler.
pub(crate) const C: [Tool; 3] = [VALGRIND, PKG_CONFIG, MANDOC];

/// The stage `fabric` and `cargo xtask bench mpi`, beside a compiler.
pub(crate) const FABRIC: [Tool; 4] = [LIBFABRIC, LIBFABRIC_DEV, MPIRUN, MPICC];

/// The stage `foreign`, beside a compiler.
pub(crate) const FOREIGN: [Tool; 7] = [LIBFABRIC, LIBFABRIC_DEV, MPIRUN, MPICC, MPI4PY, NUMPY, PIP];

/// The stages `suites` and `apart` take these beside that; `cargo xtask setup` does not bring them.
pub(crate) const SUITES: [Tool; 5] = [
    debians("hpcc", "the HPC Challenge over the provider for libfabric"),
    debians("netpipe-openmpi", "NetPIPE over the provider for libfabric"),
    runs(
        "gfortran",
        "coarrays over the provider for libfabric",
        "gfortran",
        &["--version"],
    ),
    debians(
        "libcoarrays-openmpi-dev",
        "coarrays over the provider for libfabric",
    ),
    runs(
        "iptables",
        "losing datagrams between two network namespaces",
        "iptables",
        &["--version"],
    ),
];

/// `cargo xtask dist`.
pub(crate) const DIST: [Tool; 2] = [
    debians("debhelper", "the Debian packages"),
    debians("dpkg-dev", "the Debian packages"),
];

/// Trying the Debian packages takes these beside that. Only this stage needs lintian and mmdebstrap, so `cargo xtask setup` does not bring
/// them.
pub(crate) const DIST_TRIED: [Tool; 3] = [
    QEMU,
    debians("lintian", "checking the Debian packages"),
    debians("mmdebstrap", "installing the Debian packages into a clean root"),
];

/// What `cargo xtask bench peers` runs beside NetVM.
pub(crate) const PEERS: [Tool; 3] = [
    runs("ucx-utils", "measuring UCX", "ucx_info", &["-v"]),
    LIBFABRIC,
    debians("netpipe-openmpi", "measuring Open MPI"),
];
