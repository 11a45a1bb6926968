//! `netvm stat`: what this machine's card and its driver have counted.

use std::path::Path;

use netvm::device::{self, Counted, Counters};
use serde_json::{Map, Value, json};

use crate::args::Stat;
use crate::failure::Failure;
use crate::output;

/// Reads the counters and prints them.
///
/// # Errors
/// [`Failure::Unavailable`] without a card, or with a driver that does not answer.
pub fn run(options: &Stat) -> Result<(), Failure> {
    let counters = device::counters(&options.device).map_err(|refusal| Failure::Unavailable {
        what: format!(
            "the counters of {} cannot be read: {refusal:?}",
            options.device.display()
        ),
        fix: fix(&options.device).to_owned(),
    })?;
    if options.json {
        output::print_json(&json!({
            "driver": object(&counters.driver),
            "card": object(&counters.card),
            "ports": objects("port", &counters.ports),
            "segments": objects("place", &counters.segments),
            "peers": objects("node", &counters.peers),
        }))
    } else {
        output::print(&table(&counters, options.all))
    }
}

fn fix(device: &Path) -> &'static str {
    if device.exists() {
        "use the netvm.ko and the netvm of one release"
    } else {
        "load the kernel module (insmod netvm.ko) on a machine with a card, and give it the card (docs/decisions/0020-permissions.md)"
    }
}

fn object(counters: &Counted) -> Value {
    let fields: Map<String, Value> = counters
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(*value)))
        .collect();
    Value::Object(fields)
}

/// An array of those, each with its number under `key`.
fn objects(key: &str, all: &[(u32, Counted)]) -> Value {
    let each = all.iter().map(|(number, counters)| {
        let mut fields = object(counters);
        fields[key] = Value::from(*number);
        fields
    });
    Value::Array(each.collect())
}

/// As a person reads it: what is zero is left out, unless `all`.
fn table(counters: &Counters, all: bool) -> String {
    let mut text = String::new();
    let mut part = |title: &str, counters: &Counted| {
        text.push_str(title);
        text.push('\n');
        let before = text.len();
        for (name, value) in counters.iter().filter(|(_, value)| all || *value > 0) {
            text.push_str(&format!("  {name:<32} {value:>20}\n"));
        }
        if text.len() == before {
            text.push_str("  nothing yet\n");
        }
    };
    part("driver", &counters.driver);
    part("card", &counters.card);
    for (title, each) in [
        ("port", &counters.ports),
        ("segment in place", &counters.segments),
        ("link to node", &counters.peers),
    ] {
        for (number, counters) in each {
            part(&format!("{title} {number}"), counters);
        }
    }
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> Counters {
        Counters {
            driver: vec![("bounced".to_owned(), 3), ("cards_dead".to_owned(), 0)],
            card: Vec::new(),
            ports: vec![(3, vec![("bounced".to_owned(), 2)])],
            ..Counters::default()
        }
    }

    #[test]
    fn zeros_are_shown_to_those_who_ask() {
        let text = table(&counters(), false);
        assert!(text.contains("bounced") && !text.contains("cards_dead"), "{text}");
        assert!(text.contains("card\n  nothing yet\nport 3\n  bounced"), "{text}");
        assert!(table(&counters(), true).contains("cards_dead"));
    }

    #[test]
    fn json_has_a_field_for_each_counter() {
        let counters = counters();
        assert_eq!(object(&counters.driver), json!({"bounced": 3, "cards_dead": 0}));
        assert_eq!(
            objects("port", &counters.ports),
            json!([{"port": 3, "bounced": 2}])
        );
    }
}
