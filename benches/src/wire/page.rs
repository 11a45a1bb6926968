//! The page `docs/evaluation/wire.md`.

use super::plot;
use anyhow::{Context as _, Result};
use netvm_bench_wire::suite::Measured;
use netvm_bench_wire::verdict::AGAIN;
use netvm_world::timing::CostModel;
use std::fmt::Write as _;
use std::path::Path;

/// What was found when this was measured; written by hand.
const WHY: &str = "
## What is not reached, and why

- *Goodput where a round trip takes 100 us.* A number is a slot of the receiver's window, and the LSN waits for what is missing. So
  what may be on its way past a lost message is a window, and it has to last for the round trips in which that message comes
  again: one for each time that it is lost, and a quarter to see it. Of 64 B a round trip of 100 us holds 310 messages at full speed:
  a window of 1,024 has room for two repetitions, and one of 64 for none. A port has half of the window for what has not
  landed, and more while messages past the missing one land.
- *Writes of 4 KiB with a wide window, 1 % lost.* The card is the bottleneck there, not the wire, and each loss costs five
  acknowledgements beyond those of a stream that loses nothing (`--json` counts them): one for each 32 messages past a gap, so that each message is
  spoken of twice, and one when it is filled. An acknowledgement of one message costs its reader 675 instructions ([path.md](path.md)), so
  these are 34 of the 1,226 that a message costs, and what leaves again is another 12.
- *Goodput where much is lost, with the usual window.* When the window is used up nothing follows what is lost again, so time alone
  finds the loss. *Asked* counts these waits.
- *Stalls* are waits of up to 100 ms. A card whose messages have all been received asks for the credits that are missing, and
  asks less often each time; where much is lost, some of these questions are.
";

/// Writes page and plot into `folder`.
///
/// # Errors
/// They cannot be written.
pub fn write(model: &CostModel, all: &Measured, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let file = folder.join("wire.md");
    std::fs::write(&file, page(model, all)?).with_context(|| format!("writing {}", file.display()))?;
    plot::goodput(&all.streams, &folder.join("wire.svg"))
}

/// The page as Markdown.
///
/// # Errors
/// None that happens: writing to a string.
pub fn page(model: &CostModel, all: &Measured) -> Result<String> {
    let mut page = String::from(
        "# A wire that loses frames, measured\n\n\
         Written by `cargo xtask bench wire`. `netvm bench wire` measures and prints the same; `--quick` takes some seconds, \
         `--json` prints one object. Both end with exit status 1 when a goal is missed that has been reached, or a link is lost.\n\n\
         The shipped NIC core, host core and library run in the simulator, with the deadlines that are shipped, and watched by \
         its checkers. Time is virtual, by the cost model of [sync.md](sync.md), but the links are longer: so long that a round \
         trip takes what each row says. Frames of both directions are lost at random, each alone, acknowledgements and greetings \
         included; nothing else fails. The same seeds give the same numbers on every machine.\n\n\
         | parameter | value |\n|---|---|\n",
    );
    for (name, value, unit) in model.parameters() {
        if name != "link" {
            writeln!(page, "| {name} | {value} {unit} |")?;
        }
    }
    streams(&mut page, all)?;
    completions(&mut page, all)?;
    incasts(&mut page, all)?;
    goals(&mut page, all)?;
    page.push_str(WHY);
    Ok(page)
}

fn streams(page: &mut String, all: &Measured) -> Result<()> {
    writeln!(
        page,
        "\n## A stream\n\n\
         One port writes to 16 pages of another node as fast as it can, until a `flush_remote` after the last write is \
         answered. All pages are there. 64 B travel in the descriptor, 4 KiB through a staging buffer. *Window*: the messages that may be on their way, of all ports together; a wide one has \
         as many staging buffers. *Again* is what left again, \
         as a share of the messages; its bound is {AGAIN} p/(1-p), where p is the loss of one frame. *In vain* counts frames that \
         came again and had not been lost, *asked* the times that nothing came back and a message left again to ask, *stalls* \
         the looks, one in 100 ms, that found that nothing had moved since the one before, *credits* and *staging* the writes that waited for one.\n\n\
         ![goodput by loss](wire.svg)\n\n\
         | write | round trip, us | window | lost | MB/s | of whole | again | bound | in vain | asked | stalls | credits | staging | links lost |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for stream in &all.streams {
        let (at, counted, loss) = (stream.setting, stream.counted, stream.loss());
        writeln!(
            page,
            "| {} B | {} | {} | {} % | {:.1} | {:.1} % | {:.2} % | {:.2} % | {} | {} | {} | {} | {} | {} |",
            at.bytes,
            at.round_trip / 1_000,
            at.window,
            loss * 100.0,
            stream.megabytes,
            stream.share * 100.0,
            stream.again_share * 100.0,
            AGAIN * loss / (1.0 - loss) * 100.0,
            counted.in_vain,
            counted.tail_probes,
            counted.stalls,
            counted.credit_stalls,
            counted.staging_stalls,
            counted.links_lost
        )?;
    }
    Ok(())
}

fn completions(page: &mut String, all: &Measured) -> Result<()> {
    writeln!(
        page,
        "\n## One lost frame\n\n\
         In round trips: what a `flush_remote` takes that is alone on an idle link. The frame is lost once and arrives when it is \
         sent again; worlds differ in when that is. *In a stream*: another port of the same node writes ten times in a round trip, \
         before and after. *Last*: nine writes stand alone, and nothing follows. Time counts from the call of the write.\n\n\
         | what is lost, and until when | round trip, ns | nothing lost | median | worst | sent again |\n\
         |---|---|---|---|---|---|"
    )?;
    for one in &all.completions {
        writeln!(
            page,
            "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} |",
            one.setting.case.label(),
            one.round_trip_nanos,
            one.lossless,
            one.median,
            one.worst,
            one.again as f64 / f64::from(one.setting.worlds)
        )?;
    }
    Ok(())
}

fn incasts(page: &mut String, all: &Measured) -> Result<()> {
    writeln!(
        page,
        "\n## Many to one\n\n\
         All nodes stream writes of 4 KiB to one, through a switch whose links carry 25 Gbit/s each, and which keeps so many bytes \
         for that node: what finds no room is lost, and nothing else is. Another node writes 8 B there, with a `flush_remote`, again \
         and again. *Share*: what arrives, of what the link carries. *Jain*: of the senders' shares, 1 where they are equal. *Small*: \
         what the small write takes, half of the time and 99 times of 100, in times of what it takes alone.\n\n\
         | senders | round trip, us | switch, KiB | MB/s | share | Jain | again | small alone, us | median | 99 % | links lost |\n\
         |---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for one in &all.incasts {
        let at = one.setting;
        writeln!(
            page,
            "| {} | {} | {} | {:.1} | {:.1} % | {:.3} | {:.2} % | {:.1} | {:.1} | {:.1} | {} |",
            at.senders,
            at.round_trip / 1_000,
            at.switch >> 10,
            one.megabytes,
            one.share * 100.0,
            one.jain,
            one.again_share * 100.0,
            one.small_alone as f64 / 1e3,
            one.small_median as f64 / one.small_alone.max(1) as f64,
            one.slowness(),
            one.links_lost
        )?;
    }
    Ok(())
}

fn goals(page: &mut String, all: &Measured) -> Result<()> {
    writeln!(
        page,
        "\n## Goals\n\n\
         A goal that is reached must stay so; NO marks one that is not reached yet.\n\n\
         | goal | wanted | measured | reached |\n|---|---|---|---|"
    )?;
    for goal in &all.goals {
        writeln!(
            page,
            "| {} | {} {:.3} | {:.3} | {} |",
            goal.what,
            if goal.at_least { ">=" } else { "<=" },
            goal.wanted,
            goal.measured,
            if goal.reached { "yes" } else { "NO" }
        )?;
    }
    Ok(())
}
