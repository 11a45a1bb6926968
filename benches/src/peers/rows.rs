//! What is measured, by which command, and what is compared with what.

use super::tools::Ucx;

/// Measurements of one turn, by name.
pub type Turn = std::collections::BTreeMap<&'static str, f64>;

/// UCX's measurements: microseconds of one operation, by name.
pub const UCX: [(&str, Ucx); 11] = [
    (
        "ucx am 8",
        ucx("posix,self", "-t am_lat -x posix -d memory -s 8 -n 500000"),
    ),
    (
        "ucx put 8",
        ucx("posix,self", "-t put_lat -x posix -d memory -s 8 -n 500000"),
    ),
    (
        "ucx am rate",
        ucx("posix,self", "-t am_bw -x posix -d memory -s 8 -n 2000000"),
    ),
    (
        "ucx cma 64k",
        ucx(
            "cma,posix,self",
            "-t put_bw -x cma -d memory -D zcopy -s 65536 -n 20000 -w 100",
        ),
    ),
    (
        "ucx cma 1m",
        ucx(
            "cma,posix,self",
            "-t put_bw -x cma -d memory -D zcopy -s 1048576 -n 2000 -w 20",
        ),
    ),
    (
        "ucx map 64k",
        ucx("posix,self", "-t ucp_put_bw -s 65536 -n 50000 -w 100"),
    ),
    (
        "ucx map 1m",
        ucx("posix,self", "-t ucp_put_bw -s 1048576 -n 5000 -w 100"),
    ),
    ("ucx fadd", ucx("posix,self", "-t ucp_fadd -s 8 -n 500000")),
    (
        "ucx tcp tag 8",
        ucx("tcp,self", "-t tag_lat -s 8 -n 20000 -w 1000"),
    ),
    (
        "ucx tcp 1m",
        ucx("tcp,self", "-t ucp_put_bw -s 1048576 -n 1000 -w 20"),
    ),
    (
        "ucx tcp fadd",
        ucx("tcp,self", "-t ucp_fadd -s 8 -n 20000 -w 1000"),
    ),
];

const fn ucx(transports: &'static str, args: &'static str) -> Ucx {
    Ucx { transports, args }
}

/// Providers of libfabric, by the name of their measurement.
pub const LIBFABRIC: [(&str, &str); 2] = [("fi shm 8", "shm"), ("fi net 8", "net")];

/// How a number is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
    /// 10^9 bytes a second, of operations of so many bytes that are measured in microseconds.
    Gigabytes(u32),
    /// 10^6 operations a second, which are measured in microseconds each.
    Millions,
}

impl Unit {
    /// A measured time, in this unit.
    #[must_use]
    pub fn show(self, time: f64) -> f64 {
        match self {
            Self::Micros | Self::Millis => time,
            Self::Gigabytes(bytes) => f64::from(bytes) / time / 1e3,
            Self::Millions => 1.0 / time,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Micros => "us",
            Self::Millis => "ms",
            Self::Gigabytes(_) => "GB/s",
            Self::Millions => "M/s",
        }
    }

    /// Whether more is better.
    #[must_use]
    pub const fn is_rate(self) -> bool {
        matches!(self, Self::Gigabytes(_) | Self::Millions)
    }
}

/// What the ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// At most so many times the peer's time.
    AtMost(f64),
    /// At least so much of the peer's rate.
    AtLeast(f64),
    /// So much by itself, whatever the peer does.
    Alone(f64),
    /// Nothing: it is said for comparison.
    Nothing,
}

/// A comparison.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What is done.
    pub what: &'static str,
    /// NetVM's measurement.
    pub ours: &'static str,
    /// Who it is compared with.
    pub with: &'static str,
    /// The peers' measurements: the best counts, in each turn.
    pub theirs: &'static [&'static str],
    /// How the numbers are shown.
    pub unit: Unit,
    /// The goal.
    pub wanted: Wanted,
}

const K64: Unit = Unit::Gigabytes(1 << 16);
const M1: Unit = Unit::Gigabytes(1 << 20);

/// All comparisons.
pub const ROWS: [Row; 17] = [
    row(
        "8 B one way, shared memory",
        "write 8",
        "UCX am, posix",
        &["ucx am 8"],
        Unit::Micros,
        Wanted::AtMost(1.2),
    ),
    row(
        "8 B one way, shared memory",
        "write 8",
        "UCX put, mapped",
        &["ucx put 8"],
        Unit::Micros,
        Wanted::AtMost(2.0),
    ),
    row(
        "8 B one way, shared memory",
        "write 8",
        "libfabric shm",
        &["fi shm 8"],
        Unit::Micros,
        Wanted::Nothing,
    ),
    row(
        "1 MiB writes, shared memory",
        "write 1m",
        "UCX put by CMA",
        &["ucx cma 1m"],
        M1,
        Wanted::AtLeast(0.4),
    ),
    row(
        "1 MiB writes, shared memory",
        "write 1m",
        "UCX put, mapped",
        &["ucx map 1m"],
        M1,
        Wanted::Nothing,
    ),
    row(
        "64 KiB writes, shared memory",
        "write 64k",
        "UCX put by CMA",
        &["ucx cma 64k"],
        K64,
        Wanted::AtLeast(0.7),
    ),
    row(
        "64 KiB writes, shared memory",
        "write 64k",
        "UCX put, mapped",
        &["ucx map 64k"],
        K64,
        Wanted::Nothing,
    ),
    row(
        "8 B one way, UDP loopback",
        "udp write 8",
        "the better of UCX tcp tag, libfabric net",
        &["ucx tcp tag 8", "fi net 8"],
        Unit::Micros,
        Wanted::AtMost(1.0),
    ),
    row(
        "1 MiB writes, UDP loopback",
        "udp write 1m",
        "UCX put, tcp",
        &["ucx tcp 1m"],
        M1,
        Wanted::AtLeast(1.0),
    ),
    row(
        "1 MiB writes, UDP loopback",
        "udp write 1m",
        "Open MPI, UCX, tcp",
        &["mpi tcp 1m"],
        M1,
        Wanted::AtLeast(0.6),
    ),
    row(
        "fetch-and-add, UDP loopback",
        "udp fadd",
        "UCX tcp",
        &["ucx tcp fadd"],
        Unit::Micros,
        Wanted::AtMost(1.0),
    ),
    row(
        "fetch-and-add, shared memory",
        "fadd",
        "UCX tcp",
        &["ucx tcp fadd"],
        Unit::Micros,
        Wanted::AtMost(1.0),
    ),
    row(
        "fetch-and-add, shared memory",
        "fadd",
        "UCX, mapped",
        &["ucx fadd"],
        Unit::Micros,
        Wanted::Nothing,
    ),
    row(
        "rate of 8 B writes, shared memory",
        "rate 8",
        "UCX am, posix",
        &["ucx am rate"],
        Unit::Millions,
        Wanted::Alone(6.0),
    ),
    row(
        "fresh memory, to its first byte written remotely",
        "fresh",
        "mlock",
        &["lock"],
        Unit::Millis,
        Wanted::AtMost(0.01),
    ),
    row(
        "64 times as much, sparse, to its first byte",
        "sparse",
        "mlock of the smaller one",
        &["lock"],
        Unit::Millis,
        Wanted::AtMost(0.01),
    ),
    row(
        "fresh memory, to a word in each page written remotely",
        "fresh all",
        "mlock, and a word in each page written locally",
        &["lock all"],
        Unit::Millis,
        Wanted::Nothing,
    ),
];

const fn row(
    what: &'static str,
    ours: &'static str,
    with: &'static str,
    theirs: &'static [&'static str],
    unit: Unit,
    wanted: Wanted,
) -> Row {
    Row {
        what,
        ours,
        with,
        theirs,
        unit,
        wanted,
    }
}
