//! The lists of the view: their columns, the most wanted first, so that a narrow window shows those.

use netvm_process::soft::report::Entry;

use super::super::show::{self, count, label, number, round_trip, state};
use super::super::table::table;
use super::super::{Card, plain};
use super::seen::{Row, Seen};
use crate::output;

/// The longest name that is shown whole.
const LONGEST: usize = 20;
/// Columns stand so far apart.
pub(super) const GAP: usize = 2;

/// What is told of the card that is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Links,
    Ports,
    Segments,
}

impl List {
    pub(super) const ALL: [Self; 3] = [Self::Links, Self::Ports, Self::Segments];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Links => "links",
            Self::Ports => "ports",
            Self::Segments => "segments",
        }
    }

    /// The list of a card.
    pub(super) fn of(self, seen: &Seen) -> Cells {
        match self {
            Self::Links => Cells::of(LINKS, seen.links.iter()),
            Self::Ports => Cells::of(PORTS, seen.ports.iter()),
            Self::Segments => Cells::of(show::SEGMENTS, seen.segments.iter().map(|row| &row.entry)),
        }
    }
}

/// A title, and what stands under it.
type Column<T> = (&'static str, fn(&T) -> String);

const NODES: &[Column<Seen>] = &[
    ("node", |seen| match &seen.card {
        Card::Node(node) => node.number.to_string(),
        Card::Device(path) => short(&path.display().to_string()),
    }),
    ("program", |seen| match &seen.card {
        Card::Node(node) => short(&node.program),
        Card::Device(_) => "kernel".into(),
    }),
    ("sent/s", |seen| rate(&seen.total, "sent")),
    ("received/s", |seen| rate(&seen.total, "received")),
    ("in place", |seen| {
        seen.in_place()
            .map_or_else(|| "-".into(), |share| format!("{share:.0} %"))
    }),
    ("bounced/s", |seen| rate(&seen.total, "bounced")),
    ("again/s", |seen| rate(&seen.total, "retransmitted")),
    ("ports", |seen| seen.ports.len().to_string()),
    ("links", |seen| seen.links.len().to_string()),
    ("name", |seen| match &seen.card {
        Card::Node(node) => node.names.first().map_or_else(|| "-".into(), |name| short(name)),
        Card::Device(_) => "-".into(),
    }),
    ("MB/s out", |seen| megabytes(&seen.total, "bytes_sent")),
    ("MB/s in", |seen| megabytes(&seen.total, "bytes_received")),
    ("process", |seen| match &seen.card {
        Card::Node(node) => node.process.to_string(),
        Card::Device(_) => "-".into(),
    }),
];

const LINKS: &[Column<Row>] = &[
    ("to", |row| number(&row.entry)),
    ("state", |row| state(&row.entry)),
    ("used", |row| {
        used(&row.entry).map_or_else(|| "-".into(), output::grouped)
    }),
    ("free", |row| {
        let free = |entry: &Entry| Some(entry.count("window")?.saturating_sub(used(entry)?));
        free(&row.entry).map_or_else(|| "-".into(), output::grouped)
    }),
    ("sent/s", |row| rate(row, "sent")),
    ("received/s", |row| rate(row, "received")),
    ("again/s", |row| rate(row, "retransmitted")),
    ("again", |row| count(&row.entry, "retransmitted")),
    ("round trip", |row| round_trip(&row.entry)),
    ("bounced/s", |row| rate(row, "bounced")),
    ("kind", |row| label(&row.entry, "kind")),
    ("bounced", |row| count(&row.entry, "bounced")),
    ("address", |row| label(&row.entry, "address")),
    ("encrypted", |row| label(&row.entry, "encrypted")),
];

const PORTS: &[Column<Row>] = &[
    ("port", |row| number(&row.entry)),
    ("commands/s", |row| rate(row, "commands")),
    ("writes/s", |row| rate(row, "writes")),
    ("reads/s", |row| rate(row, "reads")),
    ("notified/s", |row| rate(row, "notified")),
    ("bounced/s", |row| rate(row, "bounced")),
    ("missed/s", |row| rate(row, "missed")),
    ("paging", |row| count(&row.entry, "queued")),
    ("errors", |row| count(&row.entry, "errors")),
    ("bounced", |row| count(&row.entry, "bounced")),
    ("commands", |row| count(&row.entry, "commands_taken")),
    ("segments", |row| count(&row.entry, "segments")),
    ("imports", |row| count(&row.entry, "imports")),
];

/// Slots of the peer's window that messages hold. The kernel's driver says how many are on their way.
fn used(entry: &Entry) -> Option<u64> {
    entry.count("window_used").or_else(|| entry.count("in_flight"))
}

fn rate(row: &Row, name: &str) -> String {
    row.rate(name)
        .map_or_else(|| "-".into(), |rate| output::grouped(rate.round() as u64))
}

fn megabytes(row: &Row, name: &str) -> String {
    row.rate(name)
        .map_or_else(|| "-".into(), |rate| format!("{:.1}", rate / 1e6))
}

fn short(name: &str) -> String {
    let name = plain(name);
    if name.chars().count() <= LONGEST {
        return name;
    }
    name.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// A list of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cells {
    pub(super) titles: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Cells {
    fn of<'a, T: 'a>(columns: &[Column<T>], things: impl Iterator<Item = &'a T>) -> Self {
        let row = |thing: &T| columns.iter().map(|(_, cell)| cell(thing)).collect();
        Self {
            titles: columns.iter().map(|(title, _)| *title).collect(),
            rows: things.map(row).collect(),
        }
    }

    /// A row for each card.
    pub(super) fn nodes(seen: &[Seen]) -> Self {
        Self::of(NODES, seen.iter())
    }

    /// How wide the columns are that fit into a line, from the first on; one at least.
    pub(super) fn widths(&self, line: usize) -> Vec<usize> {
        let widest = |(column, title): (usize, &&str)| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            widest.max(title.chars().count())
        };
        let all: Vec<usize> = self.titles.iter().enumerate().map(widest).collect();
        let mut fitting = Vec::new();
        let mut end = 0;
        for width in all {
            end += width;
            if end > line && !fitting.is_empty() {
                break;
            }
            fitting.push(width);
            end += GAP;
        }
        fitting
    }
}

/// Everything at once, as plain text.
pub(super) fn text(seen: &[Seen]) -> String {
    let part = |cells: &Cells| table(&cells.titles, &cells.rows);
    let mut text = part(&Cells::nodes(seen));
    for one in seen {
        text += &format!("\n{}\n", one.card.title());
        if let Some(error) = &one.silent {
            text += &format!("  {}\n", plain(error));
            continue;
        }
        for list in List::ALL {
            let cells = list.of(one);
            text += &match cells.rows.len() {
                0 => format!(" {}: none\n", list.name()),
                _ => format!(" {}\n{}", list.name(), part(&cells)),
            };
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::seen::Look;
    use super::super::seen::tests::said;
    use super::*;

    #[test]
    fn the_most_wanted_columns_fit_into_a_narrow_line() {
        let cells = Cells {
            titles: vec!["to", "state", "kind"],
            rows: vec![vec!["1".into(), "up".into(), "shared memory".into()]],
        };
        assert_eq!(cells.widths(80), [2, 5, 13]);
        assert_eq!(cells.widths(24), [2, 5, 13]);
        assert_eq!(cells.widths(23), [2, 5]);
        assert_eq!(cells.widths(8), [2]);
        assert_eq!(cells.widths(0), [2]);
        assert!(Cells::default().widths(80).is_empty());
    }

    #[test]
    fn plain_text_has_every_card_and_list() {
        let begin = Instant::now();
        let first = Look::of(begin, vec![said(1, 1)]);
        let second = Look::of(begin + Duration::from_secs(1), vec![said(1, 2)]);
        let text = text(&Seen::between(Some(&first), &second));
        for words in [
            "node 1 (process 1001, store, found as 'name1')",
            "75 %",
            " links\n",
            "12.3 us",
            " ports\n",
            " segments: none\n",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
        let link = text.lines().find(|line| line.contains("udp")).expect("the link");
        let cells: Vec<&str> = link.split_whitespace().collect();
        assert_eq!(cells[..6], ["7", "up", "5", "59", "1,000", "-"]);
    }

    #[test]
    fn names_of_others_are_cut_and_cannot_move_the_cursor() {
        assert_eq!(short("a\x1b[2J"), "a\u{FFFD}[2J");
        assert_eq!(short(&"x".repeat(21)), format!("{}…", "x".repeat(19)));
    }
}
