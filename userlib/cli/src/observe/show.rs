//! `netvm show`: nodes, links, ports, segments, exports.

use netvm_process::soft::report::{Entry, Section};
use serde_json::Value;

use super::table::{bytes, table, time};
use super::{Card, Said, all_or_one, any_answer, cards, key, look, object, objects, plain};
use crate::args::{Show, Shown};
use crate::failure::Failure;
use crate::output;

/// Runs it.
///
/// # Errors
/// There is no card, or none answers.
pub fn run(options: &Show) -> Result<(), Failure> {
    let section = match options.what {
        Shown::Nodes => Section::Node,
        Shown::Links => Section::Links,
        Shown::Ports => Section::Ports,
        Shown::Segments => Section::Segments,
        Shown::Exports => Section::Exports,
    };
    let said: Vec<(Card, Said)> = look(cards(&options.which)?, &[section])
        .into_iter()
        .filter_map(|(card, mut said)| Some((card, said.pop()?.1)))
        .collect();
    if options.json {
        let all: Vec<Value> = said.iter().map(|(card, said)| one(card, section, said)).collect();
        output::print_json(&all_or_one(&options.which, all))?;
    } else {
        let parts: Vec<String> = said
            .iter()
            .map(|(card, said)| format!("{}\n{}", card.title(), text(section, said)))
            .collect();
        output::print(&parts.join("\n"))?;
    }
    any_answer(said.iter().map(|(_, said)| said))
}

fn one(card: &Card, section: Section, said: &Said) -> Value {
    let mut fields = card.json();
    match said {
        Err(error) => {
            fields.insert("error".into(), error.clone().into());
        }
        Ok(entries) if section == Section::Node => {
            fields.extend(entries.iter().flat_map(object));
        }
        Ok(entries) => {
            fields.insert(section.name().into(), objects(key(section), entries));
        }
    }
    Value::Object(fields)
}

/// A title, and what stands under it.
pub(super) type Column = (&'static str, fn(&Entry) -> String);

pub(super) fn count(entry: &Entry, name: &str) -> String {
    entry.count(name).map_or_else(|| "-".into(), output::grouped)
}

/// How many requests may be on the wire, where that is not the window.
fn on_the_wire(entry: &Entry) -> String {
    match entry.count("congestion_window") {
        None | Some(0) => "-".into(),
        Some(most) => output::grouped(most),
    }
}

pub(super) fn size(entry: &Entry, name: &str) -> String {
    entry.count(name).map_or_else(|| "-".into(), bytes)
}

pub(super) fn label(entry: &Entry, name: &str) -> String {
    entry.label(name).map_or_else(|| "-".into(), plain)
}

pub(super) fn number(entry: &Entry) -> String {
    entry.number.to_string()
}

/// Whether a link is up.
pub(super) fn state(entry: &Entry) -> String {
    match entry.label("state") {
        Some(state) => plain(state),
        // The kernel says it by the life of the link.
        None if entry.count("incarnation") == Some(0) => "down".into(),
        None => "up".into(),
    }
}

pub(super) fn round_trip(entry: &Entry) -> String {
    entry.count("round_trip_ns").map_or_else(|| "-".into(), time)
}

const NODES: &[Column] = &[
    ("udp", |e| label(e, "udp")),
    ("up for", |e| {
        e.count("uptime_ns").map_or_else(|| "-".into(), time)
    }),
    ("ports", |e| count(e, "held_open_ports")),
    ("exports", |e| count(e, "held_exports")),
    ("imports", |e| count(e, "held_imports")),
    ("card", |e| size(e, "card_memory_bytes")),
    ("driver", |e| size(e, "driver_memory_bytes")),
    ("bounce pages", |e| size(e, "bounce_memory_bytes")),
    ("key", |e| label(e, "key")),
    ("links", |e| count(e, "links")),
    ("over udp", |e| count(e, "links_over_udp")),
    ("encrypted", |e| count(e, "links_encrypted")),
];

const LINKS: &[Column] = &[
    ("to", number),
    ("kind", |e| label(e, "kind")),
    ("address", |e| label(e, "address")),
    ("state", state),
    ("window", |e| match (e.count("window_used"), e.count("window")) {
        (Some(used), Some(window)) => format!("{used}/{window}"),
        _ => count(e, "in_flight"),
    }),
    ("on the wire", on_the_wire),
    ("retransmitted", |e| count(e, "retransmitted")),
    ("round trip", round_trip),
    ("no room", |e| count(e, "waiting_for_room")),
    ("bounced", |e| count(e, "bounced")),
    ("grants", |e| count(e, "grants")),
    ("imports", |e| count(e, "imports")),
    ("rings", |e| size(e, "ring_memory_bytes")),
    ("encrypted", |e| label(e, "encrypted")),
];

const PORTS: &[Column] = &[
    ("port", number),
    ("commands", |e| count(e, "commands_taken")),
    ("writes", |e| count(e, "writes_done")),
    ("reads", |e| count(e, "reads_done")),
    ("notified", |e| count(e, "notifications")),
    ("bounced", |e| count(e, "bounced")),
    ("missed", |e| count(e, "source_misses")),
    ("paging", |e| count(e, "queued")),
    ("errors", |e| count(e, "errors")),
    ("segments", |e| count(e, "segments")),
    ("imports", |e| count(e, "imports")),
];

pub(super) const SEGMENTS: &[Column] = &[
    ("segment", |e| count(e, "segment")),
    ("port", |e| count(e, "port")),
    ("at", |e| {
        e.count("start")
            .map_or_else(|| "-".into(), |at| format!("{at:#x}"))
    }),
    ("size", |e| size(e, "bytes")),
    ("names", |e| count(e, "exports")),
    ("pages mapped", |e| count(e, "pages_mapped")),
    ("bounced", |e| count(e, "bounced")),
    ("missed", |e| count(e, "source_misses")),
];

const EXPORTS: &[Column] = &[
    ("name", |e| label(e, "name")),
    ("port", |e| count(e, "port")),
    ("size", |e| size(e, "bytes")),
    ("modes", |e| label(e, "modes")),
    ("notifications", |e| {
        match (e.count("notify_first"), e.count("notify_last")) {
            (Some(0) | None, _) | (_, None) => "-".into(),
            (Some(first), Some(last)) => format!("{first} to {last}"),
        }
    }),
    ("importers", |e| count(e, "grants")),
    ("", |e| match e.count("ending") {
        Some(1) => "is being taken back".into(),
        _ => String::new(),
    }),
];

fn text(section: Section, said: &Said) -> String {
    let entries = match said {
        Err(error) => return format!("  {}\n", plain(error)),
        Ok(entries) if entries.is_empty() => return "  none\n".into(),
        Ok(entries) => entries,
    };
    let columns = match section {
        Section::Links => LINKS,
        Section::Ports => PORTS,
        Section::Segments => SEGMENTS,
        Section::Exports => EXPORTS,
        Section::Node | Section::Card | Section::Driver => NODES,
    };
    let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let row = |entry: &Entry| columns.iter().map(|(_, cell)| cell(entry)).collect();
    table(&titles, &entries.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            number: 3,
            labels: vec![("name".into(), "a\x1b[2Jb".into()), ("kind".into(), "udp".into())],
            counted: vec![
                ("window_used".into(), 5),
                ("window".into(), 64),
                ("bytes".into(), 4096),
            ],
        }
    }

    #[test]
    fn a_wire_that_loses_nothing_has_no_window_of_its_own() {
        let with = |most| Entry {
            counted: vec![("congestion_window".into(), most)],
            ..entry()
        };
        assert_eq!(
            [entry(), with(0), with(16)].map(|entry| on_the_wire(&entry)),
            ["-", "-", "16"]
        );
    }

    #[test]
    fn names_of_others_cannot_move_the_cursor() {
        let text = text(Section::Exports, &Ok(vec![entry()]));
        assert!(
            !text.contains('\x1b') && text.contains("[2Jb") && text.contains("4 KiB"),
            "{text}"
        );
    }

    #[test]
    fn what_a_card_does_not_say_is_a_dash() {
        let text = text(Section::Links, &Ok(vec![entry()]));
        assert!(text.contains("5/64") && text.contains('-'), "{text}");
        assert_eq!(super::text(Section::Ports, &Ok(Vec::new())), "  none\n");
    }
}
