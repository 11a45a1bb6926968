//! `netvm stat`: what cards and their drivers have counted.

use std::time::{Duration, Instant};

use netvm_process::soft::report::{Entry, Section};
use serde_json::Value;

use super::{
    Card, Said, Sections, all_or_one, any_answer, cards, find, key, object, objects, plain, prometheus,
};
use crate::args::Stat;
use crate::failure::Failure;
use crate::output;

/// What is asked of each card. A kernel's card has no node section worth the name, and no exports.
const SECTIONS: [Section; 6] = [
    Section::Node,
    Section::Driver,
    Section::Card,
    Section::Ports,
    Section::Segments,
    Section::Links,
];

/// Reads the counters and prints them.
///
/// # Errors
/// [`Failure::Unavailable`] without a card; [`Failure::Wrong`] where none answers.
pub fn run(options: &Stat) -> Result<(), Failure> {
    let Some(seconds) = options.watch else {
        let said = look(options)?;
        if options.prometheus {
            output::print(&prometheus::text(&said))?;
        } else if options.json {
            output::print_json(&all_or_one(&options.which, all(&said)))?;
        } else {
            output::print(&text(&said, options.all))?;
        }
        return answered(&said);
    };
    let period = Duration::from_secs(seconds);
    let mut last = look(options)?;
    answered(&last)?;
    let mut since = Instant::now();
    let mut left = options.count.unwrap_or(u64::MAX);
    while left > 0 {
        std::thread::sleep(period);
        let said = look(options)?;
        let took = since.elapsed().as_secs_f64();
        since = Instant::now();
        if options.json {
            output::print_json(&all_or_one(&options.which, all(&said)))?;
        } else {
            output::print(&changes(&last, &said, took))?;
        }
        last = said;
        left -= 1;
    }
    Ok(())
}

fn look(options: &Stat) -> Result<Vec<(Card, Sections)>, Failure> {
    Ok(super::look(cards(&options.which)?, &SECTIONS))
}

fn answered(said: &[(Card, Sections)]) -> Result<(), Failure> {
    any_answer(
        said.iter()
            .flat_map(|(_, sections)| sections.iter().map(|(_, said)| said)),
    )
}

fn all(said: &[(Card, Sections)]) -> Vec<Value> {
    let each = said.iter().map(|(card, sections)| {
        let mut fields = card.json();
        for (section, said) in sections {
            match said {
                Err(error) => {
                    fields.insert("error".into(), error.clone().into());
                }
                Ok(entries) if is_list(*section) => {
                    fields.insert(section.name().into(), objects(key(*section), entries));
                }
                Ok(entries) => {
                    let one = entries.iter().flat_map(object).collect();
                    // `node` is the number.
                    let name = if *section == Section::Node {
                        "about"
                    } else {
                        section.name()
                    };
                    fields.insert(name.into(), Value::Object(one));
                }
            }
        }
        Value::Object(fields)
    });
    each.collect()
}

const fn is_list(section: Section) -> bool {
    !matches!(section, Section::Node | Section::Card | Section::Driver)
}

/// What a part of the table stands under.
fn title(section: Section, entry: &Entry) -> String {
    let labels: Vec<String> = entry
        .labels
        .iter()
        .map(|(name, value)| format!("{name} {}", plain(value)))
        .collect();
    let labels = match labels.as_slice() {
        [] => String::new(),
        labels => format!(" ({})", labels.join(", ")),
    };
    let what = match section {
        Section::Ports => format!("port {}", entry.number),
        Section::Segments => format!("segment in place {}", entry.number),
        Section::Exports => format!("export in place {}", entry.number),
        Section::Links => format!("link to node {}", entry.number),
        other => other.name().to_owned(),
    };
    what + &labels
}

/// The entries of a section. Without any the text says why, once for sections in a row.
fn entries_or_why<'a>(said: &'a Said, text: &mut String) -> Option<&'a Vec<Entry>> {
    match said {
        Ok(entries) => Some(entries),
        Err(error) => {
            let line = format!("  {}\n", plain(error));
            if !text.ends_with(&line) {
                text.push_str(&line);
            }
            None
        }
    }
}

/// As a person reads it: what is zero is left out, unless `all`.
fn text(said: &[(Card, Sections)], all: bool) -> String {
    let mut text = String::new();
    for (card, sections) in said {
        text += &format!("{}\n", card.title());
        for (section, said) in sections {
            let Some(entries) = entries_or_why(said, &mut text) else {
                continue;
            };
            for entry in entries {
                if *section == Section::Node && entry.counted.is_empty() {
                    continue;
                }
                text += &format!(" {}\n", title(*section, entry));
                let before = text.len();
                for (name, value) in entry.counted.iter().filter(|(_, value)| all || *value > 0) {
                    text += &format!("  {name:<32} {value:>20}\n");
                }
                if text.len() == before {
                    text += "  nothing yet\n";
                }
            }
        }
    }
    text
}

/// What has changed between two looks, and by how much a second.
fn changes(before: &[(Card, Sections)], now: &[(Card, Sections)], seconds: f64) -> String {
    let mut text = String::new();
    for (card, sections) in now {
        let same = |(known, _): &&(Card, Sections)| known.same(card);
        let earlier = before.iter().find(same).map(|(_, sections)| sections);
        text += &format!("{}\n", card.title());
        let start = text.len();
        for (section, said) in sections {
            let Some(entries) = entries_or_why(said, &mut text) else {
                continue;
            };
            for entry in entries {
                let known = earlier.and_then(|earlier| find(earlier, *section, entry.number));
                if *section == Section::Links {
                    match Fate::of(known, entry) {
                        Fate::Stays => {}
                        Fate::Down => continue,
                        told => {
                            text += &format!("  {} {}\n", place(*section, entry.number), told.words());
                            continue;
                        }
                    }
                }
                for (name, value) in entry.counted.iter().filter(|(name, _)| name != "uptime_ns") {
                    let last = known.and_then(|known| known.count(name)).unwrap_or(0);
                    if *value != last {
                        let change = if name.ends_with("_seq") {
                            // Sequence numbers wrap.
                            f64::from((*value as u32).wrapping_sub(last as u32).cast_signed())
                        } else {
                            *value as f64 - last as f64
                        };
                        let place = format!("{}.{name}", place(*section, entry.number));
                        text += &format!("  {place:<40} {value:>20} {:>+16.1}/s\n", change / seconds);
                    }
                }
            }
            let known = earlier.map_or(&[][..], |earlier| super::entries(earlier, *section));
            let gone = known
                .iter()
                .filter(|known| find(sections, *section, known.number).is_none());
            for known in gone.filter(|known| *section != Section::Links || is_up(known)) {
                text += &format!("  {} {}\n", place(*section, known.number), Fate::Goes.words());
            }
        }
        if text.len() == start {
            text += "  nothing has changed\n";
        }
    }
    text
}

/// What has become of a link between two looks. The numbers of one that has gone, or was made anew, begin again: they have not changed by
/// so much a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    /// It was not there, and is not.
    Down,
    Comes,
    Goes,
    Anew,
}

impl Fate {
    fn of(before: Option<&Entry>, now: &Entry) -> Self {
        match (before.filter(|before| is_up(before)), is_up(now)) {
            (None, false) => Self::Down,
            (None, true) => Self::Comes,
            (Some(_), false) => Self::Goes,
            (Some(before), true) => {
                // It wraps.
                let seq = |entry: &Entry| entry.count("next_seq").unwrap_or(0) as u32;
                let went_back = seq(now).wrapping_sub(seq(before)).cast_signed() < 0;
                if went_back { Self::Anew } else { Self::Stays }
            }
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Stays => "is as it was",
            Self::Down => "is not there",
            Self::Comes => "has come up",
            Self::Goes => "has gone",
            Self::Anew => "was made anew",
        }
    }
}

fn is_up(link: &Entry) -> bool {
    link.label("state") != Some("down")
}

fn place(section: Section, number: u32) -> String {
    match section {
        Section::Ports => format!("port {number}"),
        Section::Segments => format!("segment {number}"),
        Section::Exports => format!("export {number}"),
        Section::Links => format!("link {number}"),
        other => other.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Node;
    use super::*;

    fn said(bounced: u64) -> Vec<(Card, Sections)> {
        let entry = |number, counted: &[(&str, u64)]| Entry {
            number,
            labels: Vec::new(),
            counted: counted
                .iter()
                .map(|(name, value)| ((*name).into(), *value))
                .collect(),
        };
        let sections = vec![
            (
                Section::Driver,
                Ok(vec![entry(0, &[("bounced", bounced), ("cards_dead", 0)])]),
            ),
            (Section::Card, Ok(vec![entry(0, &[])])),
            (Section::Ports, Ok(vec![entry(3, &[("bounced", 2)])])),
        ];
        vec![(Card::Node(Node::default()), sections)]
    }

    #[test]
    fn zeros_are_shown_to_those_who_ask() {
        let shown = text(&said(3), false);
        assert!(
            shown.contains("bounced") && !shown.contains("cards_dead"),
            "{shown}"
        );
        assert!(
            shown.contains("card\n  nothing yet\n port 3\n  bounced"),
            "{shown}"
        );
        assert!(text(&said(3), true).contains("cards_dead"));
    }

    #[test]
    fn json_has_a_field_for_each_counter() {
        let all = all(&said(3));
        let card = &all[0];
        assert_eq!(card["driver"], json!({"bounced": 3, "cards_dead": 0}));
        assert_eq!(card["ports"], json!([{"port": 3, "bounced": 2}]));
    }

    #[test]
    fn a_watch_shows_what_has_changed() {
        let text = changes(&said(3), &said(7), 2.0);
        assert!(
            text.contains("driver.bounced") && text.contains("+2.0/s"),
            "{text}"
        );
        assert!(!text.contains("port 3"), "{text}");
        assert!(changes(&said(3), &said(3), 1.0).contains("nothing has changed"));
    }

    /// A card with links of these numbers, in these states, at these sequence numbers.
    fn linked(links: &[(u32, &str, u64)]) -> Vec<(Card, Sections)> {
        let link = |&(number, state, seq): &(u32, &str, u64)| Entry {
            number,
            labels: vec![("state".into(), state.into())],
            counted: vec![("next_seq".into(), seq), ("window".into(), 64)],
        };
        let sections = vec![(Section::Links, Ok(links.iter().map(link).collect()))];
        vec![(Card::Node(Node::default()), sections)]
    }

    #[test]
    fn a_watch_tells_of_a_link_that_goes_instead_of_what_it_loses_a_second() {
        let before = linked(&[
            (1, "up", 900),
            (2, "up", 900),
            (3, "up", 900),
            (4, "down", 0),
            (5, "up", 900),
            (6, "down", 0),
            (7, "up", u32::MAX.into()),
        ]);
        let after = linked(&[
            (1, "down", 0),
            (3, "up", 7),
            (4, "up", 3),
            (5, "up", 1000),
            (6, "down", 0),
            (7, "up", 9),
        ]);
        let text = changes(&before, &after, 10.0);
        for line in [
            "  link 1 has gone\n",
            "  link 2 has gone\n",
            "  link 3 was made anew\n",
            "  link 4 has come up\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
        assert!(
            text.contains("link 5.next_seq") && text.contains("+10.0/s"),
            "{text}"
        );
        for not in ["link 6", "link 1.", "link 2.", "link 3.", "link 4."] {
            assert!(!text.contains(not), "{not} is in {text}");
        }
        // Its numbers wrap.
        assert!(text.contains("+1.0/s") && !text.contains("link 7 was"), "{text}");
    }
}
