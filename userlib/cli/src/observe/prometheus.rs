//! Counters in the text format of Prometheus (version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use netvm_process::soft::report::{Entry, Section};

use super::{Card, Said, key};

/// What cards have said of sections. All samples of a metric stand together, as the format wants it.
pub(crate) fn text(cards: &[(Card, Vec<(Section, Said)>)]) -> String {
    let mut metrics: BTreeMap<String, (&'static str, String)> = BTreeMap::new();
    for (card, sections) in cards {
        let of_card = match card {
            Card::Node(node) => vec![
                ("node".to_owned(), node.number.to_string()),
                ("process".to_owned(), node.process.to_string()),
            ],
            Card::Device(path) => vec![("device".to_owned(), path.display().to_string())],
        };
        let up = sections.iter().all(|(_, said)| said.is_ok());
        let (_, lines) = metrics
            .entry("netvm_up".into())
            .or_insert_with(|| ("gauge", String::new()));
        let _ = writeln!(lines, "netvm_up{} {}", braces(&of_card), u8::from(up));
        for (section, said) in sections {
            for entry in said.iter().flatten() {
                let mut labels = of_card.clone();
                if !matches!(section, Section::Node | Section::Card | Section::Driver) {
                    labels.push((key(*section).to_owned(), entry.number.to_string()));
                }
                labels.extend(entry.labels.iter().cloned());
                add(&mut metrics, *section, entry, &labels);
            }
        }
    }
    let mut text = String::new();
    for (name, (kind, lines)) in &metrics {
        let _ = write!(text, "# TYPE {name} {kind}\n{lines}");
    }
    text
}

fn add(
    metrics: &mut BTreeMap<String, (&'static str, String)>,
    section: Section,
    entry: &Entry,
    labels: &[(String, String)],
) {
    let (prefix, kind) = match section {
        Section::Node => ("node", "gauge"),
        Section::Card => ("card", "counter"),
        Section::Driver => ("driver", "counter"),
        // Some of these count, some say how much there is now.
        Section::Ports => ("port", "untyped"),
        Section::Segments => ("segment", "untyped"),
        Section::Exports => ("export", "untyped"),
        Section::Links => ("link", "untyped"),
    };
    for (name, value) in &entry.counted {
        // A counter may have the name of a label.
        let labels: Vec<_> = labels
            .iter()
            .filter(|(label, _)| label != name)
            .cloned()
            .collect();
        let metric = format!("netvm_{prefix}_{name}");
        let (_, lines) = metrics
            .entry(metric.clone())
            .or_insert_with(|| (kind, String::new()));
        let _ = writeln!(lines, "{metric}{} {value}", braces(&labels));
    }
}

fn braces(labels: &[(String, String)]) -> String {
    let escaped = |value: &str| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        value.replace('\n', "\\n")
    };
    let each = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{{{}}}", each.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::super::Node;
    use super::*;

    #[test]
    fn samples_of_a_metric_stand_together_under_one_type() {
        let entry = |number| Entry {
            number,
            labels: vec![("name".into(), "a\"b\\c\nd".into())],
            counted: vec![("grants".into(), 2), ("bytes".into(), 7)],
        };
        let card = |number| {
            let node = Node {
                number,
                process: 9,
                ..Node::default()
            };
            let said = vec![(Section::Exports, Ok(vec![entry(1), entry(2)]))];
            (Card::Node(node), said)
        };
        let mut silent = card(2);
        silent.1 = vec![(Section::Exports, Err("gone".into()))];
        let text = text(&[card(0), card(1), silent]);
        assert_eq!(
            text.matches("# TYPE netvm_export_grants untyped\n").count(),
            1,
            "{text}"
        );
        let line = r#"netvm_export_grants{node="1",process="9",place="2",name="a\"b\\c\nd"} 2"#;
        assert!(text.contains(line), "{text}");
        assert!(text.contains("netvm_up{node=\"2\",process=\"9\"} 0\n"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let of = |name: &str| {
            let all = lines.iter().enumerate();
            all.filter(|(_, line)| line.starts_with(name))
                .map(|(at, _)| at)
                .collect::<Vec<_>>()
        };
        let grants = of("netvm_export_grants{");
        assert_eq!(grants.len(), 4);
        assert_eq!(grants[3] - grants[0], 3, "{text}");
    }
}
