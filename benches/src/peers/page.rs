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

Profiles are `perf record` of both processes during `target/release/peers --only write|rate|large|udp-write|udp-large|fresh`. The
table is of 2026-11-30. Much in it depends on the machine: one of 2026-11-27 had 0.93 and 1.14 where this one has 0.36 and 0.34 (1 MiB
and 64 KiB beside UCX put by CMA), and 4.7 where this one has 2.3 (8 B one way beside UCX am). Programs of that day have the same
times on this machine as those of the table, or longer ones.

- *8 B one way, shared memory.* UCX stores into memory that both sides map and polls it. Here a descriptor goes to the card, a
  message over a ring, and the receiver's card checks a capability and a page. Most samples are in the spin loop and in
  `Consumer::pop`. A waiter reads the clock in one look of eight, and runs the card in each second one: to run it more often is slower,
  because each look takes the ring's lines from the processor that writes them. A node that has UDP asks its socket each 10 us only
  while its rings are busy.
- *1 MiB and 64 KiB writes, shared memory.* The receiving card copies out of the ring what the other processor has just written: 60 % of
  its time, at 8 GB/s here. UCX put by CMA is one copy by the sender, between two buffers of which neither leaves its own cache.
- *8 B one way, UDP.* The time is that of `sendmsg` and `recvmmsg` in the kernel, one each way, as it is
  for TCP. A target that blocks instead of spinning takes 10 us more: its wake-up.
- *Rate.* Each write calls the card, which looks at everything that it serves. Sixteen at a time (`Write::more`) spare much of that
  work. The machine of 2026-11-27 had 5.7 million a second, one at a time.
- *1 MiB writes beside Open MPI* over UCX and TCP. A payload is a datagram of 4 KiB here, with a slot, a CRC32C at both ends, a copy to be
  sent again and an acknowledged number each; a segment of TCP over loopback has 64 KiB, and no checksum. At the sender the kernel's
  `sendmsg` has 29 % of the time, `recvmmsg` for acknowledgements 16 %, the checksum 13 %; at the receiver three copies have 40 % and the
  checksum 14 %.
- *UCX over TCP* moves 0.3 to 2 GB/s of 1 MiB puts, from run to run, so its ratio says little.
- *A word in each page of fresh memory.* The card's table holds a quarter of these pages. The others miss once each, bounce, and are brought
  by the port's worker: 5 us a page.
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
