//! The page `docs/evaluation/peers.md`.

use super::rows::{LIBFABRIC, UCX};
use super::suite::Measured;
use super::tools::NETPIPE;
use crate::beside::plot;
use crate::beside::programs::PingPong;
use crate::beside::table::table;
use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::path::Path;

/// What profiles say; written by hand.
const WHY: &str = "
## What is not reached, and why

Profiles are `perf record` of both processes during `target/release/peers --only write|rate|udp-write`. The machine compiled other
things meanwhile, so least and most are far apart.

- *8 B one way, shared memory.* UCX stores into memory that both sides map and polls it. Here a descriptor goes to the card, a
  message over a ring, and the receiver's card checks a capability and a page. Most samples are in the spin loop and in
  `Consumer::pop`; 17 % are `clock_gettime`: each spin reads the clock for its deadline, and each run of the card, which is every
  second spin, reads it once. A node that has UDP asks its socket each 10 us only while its rings are busy: 1.16 times the time of
  a node without (`--only write-beside` by `--only write`, the median of seven pairs on a busy machine); 2.4 times when each run
  asked.
- *8 B one way, UDP, and fetch-and-add over it.* The time is that of `sendmsg` and `recvmmsg` in the kernel, one each way, as it is
  for TCP. A target that blocks instead of spinning takes 10 us more: its wake-up.
- *Rate.* 6.3 million a second since flags and counts of a ring stand on cache lines of their own; the table is of before.
- *1 MiB writes beside Open MPI* over UCX and TCP: a row that is newer than the table. In a run in which everything, peers included,
  took two to four times as long as in the table, NetVM moved 0.26 of what Open MPI did (0.15 to 0.46; 0.6 are wanted). A payload is a
  datagram of 4 KiB here, with a slot, a copy and an acknowledged number each; a segment of TCP over loopback has 64 KiB. No profile was
  taken of it.
- *UCX over TCP* moves 0.3 to 0.85 GB/s of 1 MiB puts on this machine, less than elsewhere, so a ratio of 5 says little.
- *A word in each page of fresh memory.* Each page misses once, bounces, and is brought by the port's worker: 6 us a page.
";

/// Writes page and plot into `folder`.
///
/// # Errors
/// They cannot be written.
pub fn write(measured: &Measured, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let file = folder.join("peers.md");
    std::fs::write(&file, page(measured)?).with_context(|| format!("writing {}", file.display()))?;
    plot::ratios(&measured.rows, &folder.join("peers.svg"))
}

/// The page as Markdown.
///
/// # Errors
/// None that happens: writing to a string.
pub fn page(measured: &Measured) -> Result<String> {
    let mut page = format!(
        "# NetVM beside UCX, libfabric and Open MPI\n\n\
         Written by `cargo xtask bench peers`; `--quick` takes some seconds and writes nothing, `--json` prints one object.\n\n\
         Two processes of one machine, each on a processor of its own (`taskset -c 0`, `-c 1`), helper threads included. NetVM, UCX \
         1.13, libfabric 1.17 and Open MPI 4.1 (Debian's `ucx-utils`, `libfabric-bin`, `netpipe-openmpi`) take turns, {} of them. Numbers are medians. A ratio is NetVM's \
         number by the peer's of the same turn, and then the median; below it least and most. Only ratios mean something \
         on another machine.\n\n\
         ![NetVM by its peers](peers.svg)\n\n",
        measured.turns
    );
    table(&mut page, &measured.rows)?;
    writeln!(
        page,
        "\n## What was measured\n\n\
         NetVM: *one way* is half of an 8-byte write with a notification that is answered by one, both sides spinning on the \
         notification. Rates are writes without a pause from memory of `alloc`, until a `flush_remote` is answered; the target computes \
         nothing, and the helper of its card serves. Over UDP payloads have 4,096 bytes. Fresh memory is {} MiB of `alloc`, \
         exported, imported by the other process and written there; {} GiB where it is sparse. UCX registers memory for shared memory and TCP without \
         pinning it, so `mlock` stands for a fabric that pins.\n\n\
         | peer | command |\n|---|---|",
        measured.fresh >> 20,
        measured.fresh >> 24
    )?;
    for (name, ucx) in UCX {
        writeln!(page, "| {name} | `{}` |", ucx.command())?;
    }
    for (name, provider) in LIBFABRIC {
        writeln!(page, "| {name} | `{}` |", PingPong::of(provider).command())?;
    }
    writeln!(page, "| mpi tcp 1m | `mpirun -np 2 {NETPIPE}` |")?;
    page.push_str(WHY);
    Ok(page)
}
