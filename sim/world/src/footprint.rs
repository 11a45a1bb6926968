//! What the memory of a world is made of, part by part, beside what the process has.
//!
//! Each part is counted where it is held: the tables of the cores as they ask for them, words, frames and buffers by their
//! number, stacks by what the kernel says is resident of them. The process' anonymous memory is measured. What no part
//! names is the library's own heap, small maps of the simulator and what the allocator keeps: [`Footprint::rest`].

use crate::card::Card;
use crate::check::Checkers;
use crate::driver::Driver;
use crate::heap::Heap;
use crate::process;
use crate::sim::Sim;
use netvm_host::Host;
use netvm_nic::Nic;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::rc::Rc;

/// How much of the measured memory the parts may leave unnamed, in percent.
pub const TOLERANCE: u64 = 15;

/// One part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it belongs to.
    pub group: &'static str,
    /// What it is.
    pub name: String,
    /// Of all nodes together.
    pub bytes: u64,
}

/// The memory of a world at its largest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Anonymous memory of the process, less what it had before the world, in bytes.
    pub measured: u64,
    /// What it is made of, the largest first.
    pub parts: Vec<Part>,
}

impl Footprint {
    /// The sum of all parts, in bytes.
    #[must_use]
    pub fn named(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// What no part names, in bytes; negative where parts are not resident.
    #[must_use]
    pub fn rest(&self) -> i64 {
        self.measured as i64 - self.named() as i64
    }

    /// Whether the parts add up to what was measured, but for [`TOLERANCE`].
    #[must_use]
    pub fn adds_up(&self) -> bool {
        self.rest().unsigned_abs() * 100 <= self.measured * TOLERANCE
    }
}

/// Looks at the memory of the process while a world runs.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    before: u64,
    largest: Rc<RefCell<Footprint>>,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            before: anonymous(),
            largest: Rc::default(),
        }
    }
}

impl Meter {
    /// The largest that was seen.
    pub(crate) fn largest(&self) -> Footprint {
        self.largest.borrow().clone()
    }

    /// Counts the parts if the process has grown by a hundredth since they were counted last.
    pub(crate) fn look(&self, sim: &Sim, checkers: &Checkers) {
        let measured = anonymous().saturating_sub(self.before);
        if measured > self.largest.borrow().measured / 100 * 101 {
            *self.largest.borrow_mut() = Footprint {
                measured,
                parts: parts(sim, checkers),
            };
        }
    }
}

const NIC: &str = "NIC core";
const HOST: &str = "host core";
const WORDS: &str = "shared words";
const CARD: &str = "card";
const PROCESSES: &str = "processes";
const SIMULATOR: &str = "simulator";

fn parts(sim: &Sim, checkers: &Checkers) -> Vec<Part> {
    let mut sums: BTreeMap<(&'static str, String), u64> = BTreeMap::new();
    let mut add = |group, name: &str, bytes: u64| *sums.entry((group, name.to_owned())).or_default() += bytes;
    for node in &sim.nodes {
        // A card in the middle of a pass is measured another time.
        if let Ok(card) = node.card.try_borrow()
            && let Some(Card { tables, .. }) = card.as_ref()
        {
            add(NIC, "its own fields", size_of::<Nic<Heap>>() as u64);
            for &(entry, bytes) in tables {
                add(NIC, &format!("table of {}", short(entry)), bytes);
            }
        }
        if let Some(Driver { tables, .. }) = node.driver(sim).as_ref() {
            add(HOST, "its own fields", size_of::<Host<Heap>>() as u64);
            for &(entry, bytes) in tables {
                add(HOST, &format!("table of {}", short(entry)), bytes);
            }
        }
        let [bar, shared, stores] = node.words().bytes();
        add(WORDS, "NIC memory (BAR)", bar);
        add(WORDS, "driver memory", shared);
        add(SIMULATOR, "stores that have not landed", stores);
        let [staging, bounce, received] = node.bus.borrow().bytes();
        add(CARD, "staging buffers", staging);
        add(CARD, "bounce pages", bounce);
        add(CARD, "received frames", received);
        let [frames, swap, tables] = node.vm.borrow().bytes();
        add(PROCESSES, "page frames", frames);
        add(PROCESSES, "swap", swap);
        add(PROCESSES, "page tables", tables);
    }
    add(PROCESSES, "stacks", resident_of(process::stacks(sim)));
    add(SIMULATOR, "events to come", sim.clock.borrow().bytes());
    add(SIMULATOR, "last events of the trace", sim.trace.borrow().bytes());
    let [messages, books] = checkers.bytes();
    add(SIMULATOR, "the checkers' messages", messages);
    add(SIMULATOR, "the checkers' other books", books);
    let (overheard, greetings) = (sim.overheard.borrow(), sim.greetings.borrow());
    let overheard = overheard
        .iter()
        .chain(greetings.values().flatten())
        .map(|frame| frame.len() as u64)
        .sum();
    add(SIMULATOR, "frames to be played again", overheard);
    let mut parts: Vec<Part> = sums
        .into_iter()
        .map(|((group, name), bytes)| Part { group, name, bytes })
        .collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    parts
}

/// What a table is called: the type of its entries without its modules, or what they are.
fn short(name: &str) -> &str {
    match name {
        "u16" => return "numbers in notification queues",
        "u32" => return "links of waiting lines",
        _ => {}
    }
    let end = name.find('<').unwrap_or(name.len());
    let start = name[..end].rfind("::").map_or(0, |at| at + 2);
    &name[start..]
}

/// The anonymous memory of this process that is resident, in bytes; 0 where `/proc` does not say.
fn anonymous() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(kib).unwrap_or_default()
}

fn kib(text: &str) -> Option<u64> {
    let number: u64 = text.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(number * 1024)
}

/// What is resident of these ranges of addresses, in bytes.
fn resident_of(ranges: Vec<Range<usize>>) -> u64 {
    let starts: BTreeMap<usize, usize> = ranges.into_iter().map(|range| (range.start, range.end)).collect();
    let inside = |start: usize, end: usize| {
        starts
            .range(..=start)
            .next_back()
            .is_some_and(|(_, &last)| end <= last)
    };
    let mut counts = false;
    let mut sum = 0;
    for line in fs::read_to_string("/proc/self/smaps").unwrap_or_default().lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            sum += if counts { kib(rest).unwrap_or_default() } else { 0 };
        } else if let Some((start, end)) = mapping(line) {
            counts = inside(start, end);
        }
    }
    sum
}

/// The addresses at the head of a mapping.
fn mapping(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types_lose_their_modules() {
        assert_eq!(short("netvm_nic::slot::Slot"), "Slot");
        assert_eq!(short("core::option::Option<a::B>"), "Option<a::B>");
        assert_eq!(short("u32"), "links of waiting lines");
        assert_eq!(mapping("7f00-8f00 rw-p 00000000 00:00 0"), Some((0x7f00, 0x8f00)));
        assert_eq!(mapping("Size: 4 kB"), None);
    }
}
