//! What is measured, and what is compared with what.

use super::programs::Over;
use crate::beside::programs::PingPong;
use crate::beside::rows::{Row, Unit, Wanted, row};

/// Settings of the provider that let its messages go over UDP, also to a process of the same machine.
const BY_UDP: &[(&str, &str)] = &[("FI_NETVM_SHM", "0"), ("FI_NETVM_UDP", "127.0.0.1:0")];

/// Messages between two programs of libfabric's, by the name of their measurement.
pub const LIBFABRIC: [(&str, PingPong); 8] = [
    ("netvm 8", PingPong::of("netvm")),
    ("shm 8", PingPong::of("shm")),
    ("netvm 1m", large("netvm")),
    ("shm 1m", large("shm")),
    ("netvm udp 8", by_udp(PingPong::of("netvm"))),
    ("net 8", PingPong::of("net")),
    ("netvm udp 1m", by_udp(large("netvm"))),
    ("tcp 1m", large("tcp;ofi_rxm")),
];

const fn large(provider: &'static str) -> PingPong {
    PingPong {
        bytes: 1 << 20,
        rounds: 500,
        ..PingPong::of(provider)
    }
}

const fn by_udp(of: PingPong) -> PingPong {
    PingPong { env: BY_UDP, ..of }
}

/// What Open MPI goes over, and before which names its measurements stand.
pub const MPI: [(Over, Measured); 4] = [
    (
        Over {
            what: "messages",
            args: "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include netvm",
        },
        &[
            ("latency", "mpi netvm latency"),
            ("rate", "mpi netvm rate"),
            ("bandwidth", "mpi netvm bandwidth"),
        ],
    ),
    (
        Over {
            what: "messages",
            args: "--mca pml ob1 --mca btl vader,self --mca btl_vader_single_copy_mechanism cma",
        },
        &[
            ("latency", "mpi vader latency"),
            ("rate", "mpi vader rate"),
            ("bandwidth", "mpi vader bandwidth"),
        ],
    ),
    (
        Over {
            what: "windows",
            args: "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include netvm --mca osc rdma --mca btl ofi,self \
                   --mca btl_ofi_provider_include netvm",
        },
        &[
            ("put", "mpi netvm put"),
            ("get", "mpi netvm get"),
            ("fetch", "mpi netvm fetch"),
        ],
    ),
    (
        Over {
            what: "windows",
            args: "--mca pml ob1 --mca osc rdma --mca btl tcp,self,ofi --mca btl_ofi_provider_include shm",
        },
        &[
            ("put", "mpi shm put"),
            ("get", "mpi shm get"),
            ("fetch", "mpi shm fetch"),
        ],
    ),
];

/// What a program prints, and how it is called here.
pub type Measured = &'static [(&'static str, &'static str)];

/// What the program of registrations prints, and how it is called here.
pub const REGISTRATION: Measured = &[("register", "register"), ("lock", "lock")];

const M1: Unit = Unit::Gigabytes(1 << 20);

/// All comparisons.
pub const ROWS: [Row; 11] = [
    row(
        "8 B one way, shared memory",
        "netvm 8",
        "libfabric shm",
        &["shm 8"],
        Unit::Micros,
        Wanted::AtMost(1.0),
    ),
    row(
        "8 B one way, MPI, shared memory",
        "mpi netvm latency",
        "ob1, vader",
        &["mpi vader latency"],
        Unit::Micros,
        Wanted::AtMost(2.5),
    ),
    row(
        "1 MiB there and back, shared memory",
        "netvm 1m",
        "libfabric shm",
        &["shm 1m"],
        M1,
        Wanted::AtLeast(0.9),
    ),
    row(
        "1 MiB, 16 at a time, MPI, shared memory",
        "mpi netvm bandwidth",
        "ob1, vader",
        &["mpi vader bandwidth"],
        M1,
        Wanted::Nothing,
    ),
    row(
        "8 B, 64 at a time, MPI, shared memory",
        "mpi netvm rate",
        "ob1, vader",
        &["mpi vader rate"],
        Unit::Millions,
        Wanted::Nothing,
    ),
    row(
        "8 B one way, UDP loopback",
        "netvm udp 8",
        "libfabric net",
        &["net 8"],
        Unit::Micros,
        Wanted::AtMost(1.0),
    ),
    row(
        "1 MiB there and back, UDP loopback",
        "netvm udp 1m",
        "libfabric tcp;ofi_rxm",
        &["tcp 1m"],
        M1,
        Wanted::AtLeast(0.5),
    ),
    row(
        "MPI_Put of 8 B and flush, shared memory",
        "mpi netvm put",
        "btl ofi over shm",
        &["mpi shm put"],
        Unit::Micros,
        Wanted::AtMost(1.0),
    ),
    row(
        "MPI_Get of 8 B and flush, shared memory",
        "mpi netvm get",
        "btl ofi over shm",
        &["mpi shm get"],
        Unit::Micros,
        Wanted::AtMost(1.0),
    ),
    row(
        "MPI_Fetch_and_op and flush, shared memory",
        "mpi netvm fetch",
        "btl ofi over shm",
        &["mpi shm fetch"],
        Unit::Micros,
        Wanted::AtMost(1.0),
    ),
    row(
        "registration of 1 GiB of fresh memory",
        "register",
        "mlock",
        &["lock"],
        Unit::Micros,
        Wanted::AtMost(0.001),
    ),
];
