//! Counts beside their budgets and times as ratios: a table, a page, a plot and a JSON object.

use super::cases::{self, Above, Reckoned, Step};
use super::ratios::{self, Ratio, Ratios};
use crate::callgrind::{self, Profile};
use anyhow::{Context as _, Result, anyhow};
use plotters::prelude::*;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether every budget and target holds.
    pub ok: bool,
    /// Instructions of each step.
    pub steps: Vec<Step>,
    /// Steps that are to cost less, and what they spend their instructions on.
    pub above: Vec<Above>,
    /// Ratios, as judged.
    pub ratios: Vec<Ratio>,
    /// What a page of a bulk write is reckoned by.
    pub reckoned: Reckoned,
    /// The times they are made of.
    pub times: Ratios,
}

/// The steps' instructions, and the profile that they were taken from.
#[derive(Debug)]
pub struct Counts {
    profile: Profile,
    steps: Vec<Step>,
}

/// Counts instructions.
///
/// # Errors
/// Valgrind is missing, or a step never ran.
pub fn count() -> Result<Counts> {
    let profile = callgrind::run()?;
    let steps = cases::steps(&profile)?;
    Ok(Counts { profile, steps })
}

impl Counts {
    /// Whether every budget holds.
    #[must_use]
    pub fn hold(&self) -> bool {
        self.steps.iter().all(Step::holds)
    }

    /// The table of the page, and a line that sums it up.
    ///
    /// # Errors
    /// None that happens: writing to a string.
    pub fn table(&self) -> Result<String> {
        let mut text = table(&self.steps)?;
        let budgets = self.steps.iter().filter(|step| step.budget.is_some());
        let broken: Vec<&str> = self
            .steps
            .iter()
            .filter(|step| !step.holds())
            .map(|step| step.text)
            .collect();
        let (budgets, steps) = (budgets.count(), self.steps.len());
        if broken.is_empty() {
            writeln!(text, "\n{steps} steps counted, all of {budgets} budgets hold")?;
        } else {
            writeln!(text, "\nbudgets broken: {}", broken.join("; "))?;
        }
        Ok(text)
    }
}

/// Measures.
///
/// # Errors
/// Valgrind is missing, the emulator does not start, or something failed in it.
pub fn measure() -> Result<Report> {
    let Counts { profile, steps } = count()?;
    let reckoned = cases::reckon(&profile, &steps)?;
    let above = cases::above(&steps)?;
    let times = ratios::measure()?;
    let ratios = times.ratios(&reckoned);
    Ok(Report {
        ok: steps.iter().all(Step::holds) && ratios.iter().all(|ratio| ratio.holds),
        steps,
        above,
        ratios,
        reckoned,
        times,
    })
}

const fn verdict(holds: bool) -> &'static str {
    if holds { "yes" } else { "NO" }
}

impl Report {
    /// Writes `path.md`, `path.svg` and `instructions.csv` into `folder`.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let save = |name: &str, text: String| {
            let file = folder.join(name);
            std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
        };
        save("path.md", self.page()?)?;
        save("instructions.csv", self.counts()?)?;
        let file = folder.join("path.svg");
        plot(&self.steps, &file).map_err(|error| anyhow!("drawing {}: {error}", file.display()))
    }

    /// The counts, for the simulator's cost model.
    fn counts(&self) -> Result<String> {
        let mut text = String::from("step,instructions\n");
        for step in &self.steps {
            writeln!(text, "{},{:.0}", step.name, step.instructions)?;
        }
        Ok(text)
    }

    /// The steps above their goals, and where their instructions are.
    fn goals(&self, page: &mut String) -> Result<()> {
        if self.above.is_empty() {
            return Ok(());
        }
        page.push_str(
            "\n## What is left\n\n\
             These steps are to cost less than they do. The last column says which source files their instructions come \
             from, inlined functions counted where they are written; `benches/` is this benchmark's own platform.\n\n\
             | step | wanted | now | why | instructions by source file |\n|---|---|---|---|---|\n",
        );
        for step in &self.above {
            let shown = step.files.iter().filter(|(_, cost)| *cost >= 5.0);
            let files: Vec<String> = shown.map(|(file, cost)| format!("{file} {cost:.0}")).collect();
            writeln!(
                page,
                "| {} | {:.0} | {:.0} | {} | {} |",
                step.text,
                step.wanted,
                step.instructions,
                step.why,
                files.join(", ")
            )?;
        }
        Ok(())
    }

    /// The report as Markdown.
    ///
    /// # Errors
    /// None that happens: writing to a string.
    pub fn page(&self) -> Result<String> {
        let mut page = String::from(
            "# The path of a write, measured\n\n\
             Written by `cargo xtask bench path`, which fails when a budget is broken.\n\n\
             ## Instructions\n\n\
             Counted by callgrind (x86-64, release build; repeatable to the instruction on one toolchain). Averages over \
             512 writes, so acknowledgements and shadow counters are in with their share. The platform around the NIC core \
             does next to nothing. The simulator's cost model reads [instructions.csv](instructions.csv).\n\n\
             ![instructions by step](path.svg)\n\n",
        );
        page.push_str(&table(&self.steps)?);
        self.goals(&mut page)?;
        page.push_str(
            "\n## Times, as ratios\n\n\
             All in one run, the fastest of many short batches each. The emulator runs its cards inline: one sending thread, \
             one spinning reader. Of a bulk write the emulator's ticker thread does a part where a second processor is free.\n\n\
             | ratio | measured | target | holds |\n|---|---|---|---|\n",
        );
        for ratio in &self.ratios {
            writeln!(
                page,
                "| {} | {:.3} | {} | {} |",
                ratio.text,
                ratio.value,
                ratio.target,
                verdict(ratio.holds)
            )?;
        }
        let (times, reckoned) = (&self.times, &self.reckoned);
        writeln!(
            page,
            "\nThe times themselves, on the machine that wrote this page:\n\n\
             | what | time |\n|---|---|\n\
             | mlock + munlock of a resident page | {:.0} ns |\n\
             | page lock + dirty unlock | {:.1} ns |\n\
             | a cache line from core to core | {:.0} ns |\n\
             | 8 B write, one way | {:.0} ns |\n\
             | 8 B write, posted back to back, library and both cards on one processor (wanted: 222 ns, 4.5 M/s) | {:.0} ns, {:.1} M/s |\n\
             | memcpy, 32 MiB | {:.0} MiB/s |\n\
             | bulk write, 32 MiB | {:.0} MiB/s |\n\
             | the two copies of a page of it, through a buffer in the cache | {:.0} ns |\n\
             | its {:.0} counted instructions, at {:.3} ns each | {:.0} ns |",
            times.mlock_ns,
            times.lock_ns,
            times.hop_ns,
            times.write_ns,
            times.posted_ns,
            1000.0 / times.posted_ns,
            times.memcpy,
            times.bulk,
            times.copies_ns,
            reckoned.page,
            times.whole_ns / reckoned.whole,
            reckoned.page * times.whole_ns / reckoned.whole,
        )?;
        for (size, time) in &times.export_us {
            writeln!(page, "| export of {} MiB | {time:.2} us |", size >> 20)?;
        }
        Ok(page)
    }
}

/// Steps beside their budgets, as Markdown.
fn table(steps: &[Step]) -> Result<String> {
    let mut text = String::from("| step | instructions | budget | holds |\n|---|---|---|---|\n");
    for step in steps {
        let (budget, holds) = match step.budget {
            Some(budget) => (format!("{budget:.0}"), verdict(step.holds())),
            None => (String::new(), ""),
        };
        writeln!(
            text,
            "| {} | {:.0} | {budget} | {holds} |",
            step.text, step.instructions
        )?;
    }
    Ok(text)
}

/// Bars: what each step costs, with its budget as a mark.
fn plot(steps: &[Step], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    const ROW: i32 = 30;
    const LEFT: i32 = 430;
    const WIDTH: i32 = 440;
    let most = steps
        .iter()
        .map(|step| step.instructions.max(step.budget.unwrap_or(0.0)))
        .fold(1.0, f64::max);
    let scale = |count: f64| LEFT + (count / most * f64::from(WIDTH)) as i32;
    let height = ROW * (steps.len() as i32 + 2);
    let root = SVGBackend::new(file, ((LEFT + WIDTH + 70) as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let font = ("sans-serif", 15).into_font();
    root.draw(&Text::new(
        "Instructions by step; the mark is the budget",
        (10, 8),
        ("sans-serif", 18).into_font(),
    ))?;
    for (row, step) in (1..).zip(steps) {
        let top = row * ROW + 10;
        let color = if step.holds() {
            RGBColor(70, 120, 180)
        } else {
            RGBColor(200, 70, 60)
        };
        root.draw(&Text::new(step.text, (10, top + 2), font.clone()))?;
        root.draw(&Rectangle::new(
            [(LEFT, top), (scale(step.instructions), top + 18)],
            color.filled(),
        ))?;
        let count = format!("{:.0}", step.instructions);
        root.draw(&Text::new(
            count,
            (scale(step.instructions) + 6, top + 2),
            font.clone(),
        ))?;
        if let Some(budget) = step.budget {
            let at = scale(budget);
            root.draw(&PathElement::new(
                vec![(at, top - 4), (at, top + 22)],
                BLACK.stroke_width(2),
            ))?;
        }
    }
    root.present()?;
    Ok(())
}
