//! What is measured, by which command, and what is compared with what.

use super::tools::Ucx;
use crate::beside::rows::{Row, Unit, Wanted, row};

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

const K64: Unit = Unit::Gigabytes(1 << 16);
const M1: Unit = Unit::Gigabytes(1 << 20);

/// All comparisons.
pub const ROWS: [Row; 18] = [
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
        "the same, the card called for 16 at once",
        "rate 8 together",
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
