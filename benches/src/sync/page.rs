//! The page `docs/evaluation/sync.md` and the data beside it.

use super::plot;
use anyhow::{Context as _, Result};
use netvm_bench_sync::locality::{Kind, PROCESSES, Point};
use netvm_bench_sync::suite::Measured;
use netvm_bench_sync::verdict::{FAIR, GOODPUT, LONGEST_WAIT, MORE_INSTRUCTIONS, MORE_TIME, SHARED};
use netvm_world::timing::CostModel;
use std::fmt::Write as _;
use std::path::Path;

/// Writes page, plot and data into `folder`.
///
/// # Errors
/// They cannot be written.
pub fn write(model: &CostModel, all: &Measured, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let save = |name: &str, text: String| {
        let file = folder.join(name);
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
    };
    save("sync.md", page(model, all)?)?;
    save("sync-locality.csv", data(&all.locality)?)?;
    plot::locality(&all.locality, &folder.join("sync-locality.svg"))
}

fn data(points: &[Point]) -> Result<String> {
    let mut text = String::from("lock,nodes,locks,processes,local_percent,acquisitions,nanos,mops\n");
    for point in points {
        let at = point.setting;
        writeln!(
            text,
            "{},{},{},{},{},{},{},{:.4}",
            at.kind.label(),
            at.nodes,
            at.locks,
            point.processes,
            at.local_percent,
            point.acquisitions,
            point.nanos,
            point.mops
        )?;
    }
    Ok(text)
}

/// The page as Markdown.
///
/// # Errors
/// None that happens: writing to a string.
pub fn page(model: &CostModel, all: &Measured) -> Result<String> {
    let mut page = String::from(
        "# Synchronization and channels, measured\n\n\
         Written by `cargo xtask bench sync` (minutes). `netvm bench sync` measures and prints the same, with fewer worlds \
         in the last part; `--quick` takes seconds, `--json` prints one object. Both end with exit status 1 when something \
         that has to hold does not.\n\n\
         The shipped NIC core, host core and library run in the simulator, without faults and watched by its checkers. Time is \
         virtual, by this cost model (`sim/world/src/timing`): a card takes one input after the other, each for the instructions \
         that were counted for that step ([instructions.csv](instructions.csv)); what else takes time is stated here. The \
         figures stand for a present card with Arm cores on a 100 Gbit/s fabric. They are estimates, not measurements: \
         ratios of what goes the same way say something, nanoseconds do not.\n\n\
         | parameter | value |\n|---|---|\n",
    );
    for (name, value, unit) in model.parameters() {
        writeln!(page, "| {name} | {value} {unit} |")?;
    }
    operations(&mut page, all)?;
    crowd(&mut page, all)?;
    locality(&mut page, all)?;
    hot(&mut page, model, all)?;
    pressure(&mut page, all)?;
    streams(&mut page, all)?;
    Ok(page)
}

fn operations(page: &mut String, all: &Measured) -> Result<()> {
    writeln!(
        page,
        "\n## Each operation alone\n\n\
         Instructions are those of all cards together, acknowledgements aside. Time ends when the call returns; where the line \
         says *until*, at the other process. An extended atomic may take {MORE_TIME} % more time and {MORE_INSTRUCTIONS} % more \
         instructions than the dearest standard one.\n\n\
         | operation | round trips | one-way messages | instructions | ns | in 4 B reads |\n|---|---|---|---|---|---|"
    )?;
    for one in &all.operations {
        writeln!(
            page,
            "| {} | {} | {} | {} | {} | {:.2} |",
            one.name, one.round_trips, one.one_way, one.instructions, one.nanos, one.reads
        )?;
    }
    Ok(())
}

fn crowd(page: &mut String, all: &Measured) -> Result<()> {
    let crowd = &all.crowd;
    writeln!(
        page,
        "\n## {} clients on one lock\n\n\
         Processes on {} nodes take one MCS lock again and again and hold it for no time. Almost all sleep when their turn comes, \
         so the hand-over that is the measure is one to a sleeping process, measured with two clients.\n\n\
         | what | measured | target |\n|---|---|---|\n\
         | refused, missed, sent again, or waited for room | {} | 0 |\n\
         | Jain's index of acquisitions | {:.4} | >= {FAIR} |\n\
         | goodput / what hand-overs of {} ns allow | {:.3} | >= {GOODPUT} |\n\
         | acquisitions in {} us, and of each client | {}, {} to {} | |",
        crowd.clients,
        crowd.nodes,
        crowd.retried(),
        crowd.jain,
        crowd.hand_over_nanos,
        crowd.goodput,
        crowd.nanos / 1_000,
        crowd.acquisitions,
        crowd.fewest,
        crowd.most,
    )?;
    Ok(())
}

fn locality(page: &mut String, all: &Measured) -> Result<()> {
    writeln!(
        page,
        "\n## Kinds of locks, by locality\n\n\
         {PROCESSES} processes a node take locks that are spread over all nodes (of each sort, of the own node and of others, \
         each uses 12 at most, drawn from all), hold them for 100 ns, and give them back. Of one lock it is the processes that \
         are placed. `spin` is compare-and-swap until it succeeds, and a write to let go; like the MCS lock it goes through the \
         card on the lock's own node too, which it must to be atomic with the others. Processes of a node are threads of the \
         locks' home, as the asymmetric lock asks. Data: [sync-locality.csv](sync-locality.csv).\n\n\
         ![throughput by locality](sync-locality.svg)\n\n\
         | nodes | locks | local | ALock, Mops/s | MCS | spin | ALock / better of both |\n|---|---|---|---|---|---|---|"
    )?;
    let find = |of: &Point, kind: Kind| {
        let mut same = all.locality.iter().filter(|other| {
            let (one, other) = (of.setting, other.setting);
            (other.kind, other.nodes, other.locks, other.local_percent)
                == (kind, one.nodes, one.locks, one.local_percent)
        });
        same.next().map_or(0.0, |point| point.mops)
    };
    for point in all
        .locality
        .iter()
        .filter(|point| point.setting.kind == Kind::Asymmetric)
    {
        let (mcs, spin) = (find(point, Kind::Mcs), find(point, Kind::Spin));
        writeln!(
            page,
            "| {} | {} | {} % | {:.3} | {mcs:.3} | {spin:.3} | {:.2} |",
            point.setting.nodes,
            point.setting.locks,
            point.setting.local_percent,
            point.mops,
            point.mops / mcs.max(spin).max(1e-9)
        )?;
    }
    Ok(())
}

fn hot(page: &mut String, model: &CostModel, all: &Measured) -> Result<()> {
    let best = |value: fn(&netvm_bench_sync::hot::Hot) -> f64| all.hot.iter().map(value).fold(0.0, f64::max);
    writeln!(
        page,
        "\n## Hot words\n\n\
         Clients on 8 nodes, each with one fetch-and-add under way, on words of a ninth. The last columns are of the same worlds \
         with operands that take no time to fetch (0 ns instead of {}): more than that a cache of operands in the card (thesis 10.2) \
         cannot give, since it would have to be looked at as well. That is {:.0} % of the time of one at the most, and {:.0} % of \
         throughput; with some numbers of clients the card's instructions bind, and the cache gives nothing.\n\n\
         | clients | words | Mops/s | ns | not fetched: Mops/s | ns |\n|---|---|---|---|---|---|",
        model.dma_read,
        best(|hot| 100.0 * (1.0 - hot.cached_nanos / hot.nanos)),
        best(|hot| 100.0 * (hot.cached_mops / hot.mops - 1.0)),
    )?;
    for hot in &all.hot {
        writeln!(
            page,
            "| {} | {} | {:.3} | {:.0} | {:.3} | {:.0} |",
            hot.clients, hot.words, hot.mops, hot.nanos, hot.cached_mops, hot.cached_nanos
        )?;
    }
    Ok(())
}

fn pressure(page: &mut String, all: &Measured) -> Result<()> {
    writeln!(
        page,
        "\n## A shared queue that is always full\n\n\
         Senders on 8 nodes have the next message ready at once and wait by `send`; the receiver takes so long for each, on \
         average. Watched for 100 rounds after 20, in worlds that differ in when each sender begins and how long each message \
         takes; in a round the receiver could serve each sender once. Shares are of an equal one.\n\n\
         | senders | room | service, us | Jain's index | lowest (>= {SHARED}) | least share | largest | longest wait, rounds (<= {LONGEST_WAIT}) | \
         refusals a message | served / possible |\n|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for one in &all.pressure {
        let setting = one.setting;
        writeln!(
            page,
            "| {} | {} | {} | {:.3} | {:.3} | {:.2} | {:.2} | {:.1} | {:.1} | {:.3} |",
            setting.senders,
            setting.capacity,
            setting.service_nanos / 1_000,
            one.jain,
            one.worst_jain,
            one.fewest,
            one.most,
            one.longest_rounds(),
            one.refusals,
            one.goodput
        )?;
    }
    Ok(())
}

fn streams(page: &mut String, all: &Measured) -> Result<()> {
    writeln!(
        page,
        "\n## Channels and plain writes\n\n\
         One process sends to another, which spins. Time of one message alone, then 256 as fast as they go; received in place, \
         64 entries. The plain writes go round 64 slots with a notification each and no flow control. A message of up to 4,088 \
         bytes travels in one piece, with its head; a larger one is one write more.\n\n\
         | bytes | channel: ns | 1000/s | MB/s | plain write: ns | 1000/s | MB/s |\n|---|---|---|---|---|---|---|"
    )?;
    for one in &all.streams {
        writeln!(
            page,
            "| {} | {} | {:.0} | {:.0} | {} | {:.0} | {:.0} |",
            one.bytes,
            one.channel_nanos,
            one.channel_kilo,
            one.channel_megabytes,
            one.write_nanos,
            one.write_kilo,
            one.write_megabytes
        )?;
    }
    Ok(())
}
