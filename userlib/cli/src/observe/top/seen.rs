//! What two looks at the cards tell together: what there is, and how much a second has been done between them.

use std::time::{Duration, Instant};

use netvm_process::soft::report::{Entry, Section};
use serde_json::{Map, Value, json};

use super::super::{Card, ENDED, Sections, entries, find, object};

/// What is asked of each card.
pub(super) const SECTIONS: [Section; 5] = [
    Section::Node,
    Section::Card,
    Section::Ports,
    Section::Segments,
    Section::Links,
];

/// All cards, as they were at one time.
#[derive(Clone)]
pub(super) struct Look {
    at: Instant,
    said: Vec<(Card, Sections)>,
}

impl Look {
    /// Asks these cards.
    pub(super) fn at(cards: Vec<Card>) -> Self {
        // The time of the question: that of the last answer depends on the slowest card.
        let at = Instant::now();
        let mut said = super::super::look(cards, &SECTIONS);
        // One that ended while it was asked is not there any more.
        said.retain(|(_, sections)| !sections.iter().any(|(_, said)| said == &Err(ENDED.to_owned())));
        Self { at, said }
    }

    /// The time from another look to this one.
    pub(super) fn since(&self, before: &Self) -> Duration {
        self.at.duration_since(before.at)
    }

    #[cfg(test)]
    pub(super) fn of(at: Instant, said: Vec<(Card, Sections)>) -> Self {
        Self { at, said }
    }
}

/// A name, and what is counted.
type Counter = (&'static str, fn(&Entry) -> Option<u64>);

/// What is counted of a card.
const CARD: &[Counter] = &[
    ("sent", |e| e.count("messages_sent")),
    ("received", |e| e.count("messages_received")),
    ("bytes_sent", |e| e.count("bytes_sent")),
    ("bytes_received", |e| e.count("bytes_received")),
    ("in_place", |e| {
        Some(e.count("zero_copy")? + e.count("reached").unwrap_or(0))
    }),
    ("bounced", |e| {
        let reasons = ["bounced_not_found", "bounced_read_only", "bounced_segment"];
        reasons.iter().map(|reason| e.count(reason)).sum()
    }),
    ("retransmitted", |e| e.count("retransmitted")),
];

const PORT: &[Counter] = &[
    ("commands", |e| e.count("commands_taken")),
    ("writes", |e| e.count("writes_done")),
    ("reads", |e| e.count("reads_done")),
    ("notified", |e| e.count("notifications")),
    ("bounced", |e| e.count("bounced")),
    ("missed", |e| e.count("source_misses")),
];

const LINK: &[Counter] = &[
    // Messages have numbers, in their order.
    ("sent", |e| e.count("next_seq")),
    ("received", |e| e.count("waits_for_seq")),
    ("retransmitted", |e| e.count("retransmitted")),
    ("bounced", |e| e.count("bounced")),
];

const SEGMENT: &[Counter] = &[
    ("bounced", |e| e.count("bounced")),
    ("missed", |e| e.count("source_misses")),
];

/// A thing, and how much a second it has done; nothing is said where that is not known (yet).
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) entry: Entry,
    rates: Vec<(&'static str, Option<f64>)>,
}

impl Row {
    fn of(before: Option<&Entry>, entry: &Entry, seconds: f64, counters: &[Counter]) -> Self {
        let rate = |(name, count): &Counter| {
            // A link that has come up again counts from the beginning.
            let more = before.and_then(|before| count(entry)?.checked_sub(count(before)?));
            (*name, more.map(|more| more as f64 / seconds))
        };
        Self {
            entry: entry.clone(),
            rates: counters.iter().map(rate).collect(),
        }
    }

    /// How much a second.
    pub(super) fn rate(&self, name: &str) -> Option<f64> {
        let mut all = self.rates.iter();
        all.find(|(known, _)| *known == name)?.1
    }

    fn json(&self, key: Option<&str>) -> Value {
        let mut fields = object(&self.entry);
        if let Some(key) = key {
            fields.insert(key.into(), self.entry.number.into());
        }
        fields.insert("per_second".into(), Value::Object(self.per_second()));
        Value::Object(fields)
    }

    fn per_second(&self) -> Map<String, Value> {
        let rounded = |rate: f64| (rate * 10.0).round() / 10.0;
        let one = |(name, rate): &(&str, Option<f64>)| ((*name).to_owned(), json!(rate.map(rounded)));
        self.rates.iter().map(one).collect()
    }
}

/// A card.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) card: Card,
    /// Why it tells nothing, or not all.
    pub(super) silent: Option<String>,
    pub(super) total: Row,
    pub(super) ports: Vec<Row>,
    pub(super) links: Vec<Row>,
    pub(super) segments: Vec<Row>,
}

impl Seen {
    /// The cards of the second look.
    pub(super) fn between(before: Option<&Look>, now: &Look) -> Vec<Self> {
        // A look takes some time, so two are never at the same one.
        let seconds = before.map_or(1.0, |before| now.since(before).as_secs_f64());
        let one = |(card, said): &(Card, Sections)| {
            let mut all = before.iter().flat_map(|look| &look.said);
            let earlier = all
                .find(|(known, _)| known.same(card))
                .map(|(_, earlier)| earlier);
            Self::of(card, earlier, said, seconds.max(1e-9))
        };
        now.said.iter().map(one).collect()
    }

    fn of(card: &Card, before: Option<&Sections>, now: &Sections, seconds: f64) -> Self {
        let rows = |section, counters| -> Vec<Row> {
            let one = |entry: &Entry| {
                let earlier = before.and_then(|before| find(before, section, entry.number));
                Row::of(earlier, entry, seconds, counters)
            };
            entries(now, section).iter().map(one).collect()
        };
        let silent = now.iter().find_map(|(_, said)| said.clone().err());
        Self {
            card: card.clone(),
            silent,
            total: rows(Section::Card, CARD).pop().unwrap_or_default(),
            ports: rows(Section::Ports, PORT),
            links: rows(Section::Links, LINK),
            segments: rows(Section::Segments, SEGMENT),
        }
    }

    /// The share of arriving payloads that went straight to their page, in percent.
    pub(super) fn in_place(&self) -> Option<f64> {
        let (hits, bounced) = (self.total.rate("in_place")?, self.total.rate("bounced")?);
        (hits + bounced > 0.0).then(|| 100.0 * hits / (hits + bounced))
    }

    pub(super) fn json(&self) -> Value {
        let list =
            |key: &str, rows: &[Row]| -> Value { rows.iter().map(|row| row.json(Some(key))).collect() };
        let mut fields = self.card.json();
        if let Some(error) = &self.silent {
            fields.insert("error".into(), error.clone().into());
        }
        fields.insert("per_second".into(), Value::Object(self.total.per_second()));
        fields.insert("links".into(), list("peer", &self.links));
        fields.insert("ports".into(), list("port", &self.ports));
        fields.insert("segments".into(), list("place", &self.segments));
        Value::Object(fields)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::super::Node;
    use super::*;

    pub(in super::super) fn entry(number: u32, counted: &[(&str, u64)]) -> Entry {
        Entry {
            number,
            labels: Vec::new(),
            counted: counted
                .iter()
                .map(|(name, value)| ((*name).into(), *value))
                .collect(),
        }
    }

    pub(in super::super) fn node(number: u16) -> Card {
        Card::Node(Node {
            number,
            process: 1000 + i32::from(number),
            program: "store".into(),
            names: vec![format!("name{number}")],
        })
    }

    /// A card that has done everything `times` so often.
    pub(in super::super) fn said(number: u16, times: u64) -> (Card, Sections) {
        let card = entry(
            0,
            &[
                ("messages_sent", 1000 * times),
                ("messages_received", 500 * times),
                ("bytes_sent", 4_000_000 * times),
                ("bytes_received", 2_000_000 * times),
                ("zero_copy", 75 * times),
                ("bounced_not_found", 20 * times),
                ("bounced_read_only", 5 * times),
                ("bounced_segment", 0),
                ("retransmitted", 3 * times),
            ],
        );
        let mut link = entry(
            7,
            &[
                ("window_used", 5),
                ("window", 64),
                ("next_seq", 1000 * times),
                ("retransmitted", 3 * times),
                ("round_trip_ns", 12_345),
            ],
        );
        link.labels = vec![("kind".into(), "udp".into()), ("state".into(), "up".into())];
        let port = entry(3, &[("commands_taken", 40 * times), ("bounced", 25 * times)]);
        let sections = vec![
            (Section::Card, Ok(vec![card])),
            (Section::Ports, Ok(vec![port])),
            (Section::Segments, Ok(Vec::new())),
            (Section::Links, Ok(vec![link])),
        ];
        (node(number), sections)
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let begin = Instant::now();
        let first = Look::of(begin, vec![said(1, 1)]);
        let second = Look::of(begin + Duration::from_secs(2), vec![said(1, 3), said(2, 1)]);
        let seen = Seen::between(Some(&first), &second);
        assert_eq!(seen[0].total.rate("sent"), Some(1000.0));
        assert_eq!(seen[0].total.rate("bounced"), Some(25.0));
        assert_eq!(seen[0].in_place(), Some(75.0));
        assert_eq!(seen[0].links[0].rate("sent"), Some(1000.0));
        assert_eq!(
            seen[0].links[0].rate("received"),
            None,
            "this card does not count it"
        );
        assert_eq!(seen[0].ports[0].rate("commands"), Some(40.0));
        assert_eq!(
            (seen[1].total.rate("sent"), seen[1].in_place()),
            (None, None),
            "it has just come"
        );
        assert!(
            Seen::between(None, &second)
                .iter()
                .all(|seen| seen.total.rate("sent").is_none())
        );
        let json = seen[0].json();
        assert_eq!(json["per_second"]["sent"], 1000.0);
        assert_eq!(json["links"][0]["peer"], 7);
        assert_eq!(
            json["links"][0]["per_second"],
            json!({"sent": 1000.0, "received": null, "retransmitted": 3.0, "bounced": null})
        );
    }

    #[test]
    fn a_number_that_another_process_took_over_begins_anew() {
        let begin = Instant::now();
        let mut later = said(1, 3);
        if let Card::Node(node) = &mut later.0 {
            node.process += 1;
        }
        let first = Look::of(begin, vec![said(1, 1)]);
        let second = Look::of(begin + Duration::from_secs(1), vec![later]);
        assert_eq!(Seen::between(Some(&first), &second)[0].total.rate("sent"), None);
        // Counters that go back say nothing.
        let back = Look::of(begin + Duration::from_secs(1), vec![said(1, 0)]);
        assert_eq!(Seen::between(Some(&first), &back)[0].total.rate("sent"), None);
    }

    #[test]
    fn a_card_that_does_not_answer_says_why() {
        let silent = (node(4), vec![(Section::Card, Err("no answer".to_owned()))]);
        let look = Look::of(Instant::now(), vec![silent]);
        let seen = Seen::between(None, &look);
        assert_eq!(seen[0].silent.as_deref(), Some("no answer"));
        assert_eq!(seen[0].json()["error"], "no answer");
    }
}
