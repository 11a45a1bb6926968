//! The page `docs/evaluation/mpi.md`.

use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::path::Path;

use super::rows::{LIBFABRIC, MPI};
use super::suite::Measured;
use crate::beside::plot;
use crate::beside::table::table;

/// What profiles say; written by hand.
const WHY: &str = "
## What is not reached, and why

- *8 B one way.* A message is a write with a signal: a command, a message over a ring in shared memory, a check of a capability and of a
  page, and then the match of a tag. The transports beside it store into memory that both sides map. By itself the library needs less
  ([peers.md](peers.md)): the rest is the provider's matching and its queues.
- *1 MiB.* The receiver reads a long message out of the sender's memory when it is taken, in one call, and the sender's next one is offered
  after that. No profile was taken.
- *8 B, 64 at a time.* Each message is a command of its own with a signal of its own. MPI does not say that more will follow
  (`FI_MORE`), so nothing is gathered.
- *One-sided operations.* Memory of a program's windows is its own, and never in the card's table: the card reads `/proc/self/pagemap` for
  each access, to know that the page is there, and moves the bytes itself ([decision 38](../decisions/0038-at-once.md)). The rest is the way of a request and
  its answer through two rings, and the loops of MPI at both ends, which ask two endpoints in each turn.
- *Over UDP* a payload is at most 4 KiB: 1 MiB are 256 datagrams with a slot, a checksum at both ends, a copy to be sent again and an
  acknowledged number each, and two copies more than a write of the library, in and out of the ring of messages. They leave up to 14 at a
  time in one call of the kernel. Before 2026-11-30 each piece had a call of its own, and the ratio was 0.21.
";

/// Writes page and plot into `folder`.
///
/// # Errors
/// They cannot be written.
pub fn write(measured: &Measured, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let file = folder.join("mpi.md");
    std::fs::write(&file, page(measured)?).with_context(|| format!("writing {}", file.display()))?;
    plot::ratios(&measured.rows, &folder.join("mpi.svg"))
}

/// The page as Markdown.
///
/// # Errors
/// None that happens: writing to a string.
pub fn page(measured: &Measured) -> Result<String> {
    let mut page = format!(
        "# The provider for libfabric beside others\n\n\
         Written by `cargo xtask bench mpi`; `--quick` takes some seconds and writes nothing, `--json` prints one object.\n\n\
         Two processes of one machine, each on a processor of its own, helper threads included. The provider ([fabric.md](../fabric.md)), \
         the providers of libfabric 1.17, and Open MPI 4.1 over both and over its own shared memory take turns, {} of them. Numbers are \
         medians. A ratio is NetVM's number by the peer's of the same turn, and then the median; below it least and most. Only ratios \
         mean something on another machine.\n\n\
         ![NetVM by its peers](mpi.svg)\n\n",
        measured.turns
    );
    table(&mut page, &measured.rows)?;
    writeln!(
        page,
        "\n## What was measured\n\n\
         `fi_pingpong` sends a message of so many bytes and waits for one as long; the time is that of one way, and a rate is that of one \
         way, too. [measure.c](../../benches/src/mpi/measure.c) does the same by MPI, sends many at a time, and does one-sided operations with a \
         flush behind each, on windows that the processes do not share. [registration.c](../../benches/src/mpi/registration.c) registers {} MiB \
         of fresh memory by `fi_mr_reg`, and locks as much by `mlock`, which brings all its pages: a fabric that pins does both.\n\n\
         | measurement | command |\n|---|---|",
        measured.registered >> 20,
    )?;
    for (name, pingpong) in LIBFABRIC {
        writeln!(page, "| {name} | `{}` |", pingpong.command())?;
    }
    for (over, names) in MPI {
        let names: Vec<&str> = names.iter().map(|(_, name)| *name).collect();
        writeln!(page, "| {} | `{}` |", names.join(", "), over.command())?;
    }
    page.push_str(WHY);
    Ok(page)
}
