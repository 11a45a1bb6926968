//! Which running nodes have a cluster key, and what of their links is encrypted.

use netvm_process::soft::report::Section;
use serde::Serialize;

use super::{Card, Node};

/// A node that runs.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Keyed {
    pub(crate) node: u16,
    pub(crate) process: i32,
    program: String,
    names: Vec<String>,
    /// Why the rest is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The address of its UDP.
    udp: Option<String>,
    /// Whether it has a key.
    key: bool,
    /// Links to other nodes that are up; those of them that go over UDP; and those of these that are encrypted.
    links: u64,
    links_over_udp: u64,
    links_encrypted: u64,
}

/// Asks nodes.
pub(crate) fn of(nodes: &[Node]) -> Vec<Keyed> {
    let one = |node: &Node| {
        let known = Keyed {
            node: node.number,
            process: node.process,
            program: node.program.clone(),
            names: node.names.clone(),
            ..Keyed::default()
        };
        let said = Card::Node(node.clone()).ask(&[Section::Node]).pop();
        let entry = match said {
            Some(Ok(mut entries)) => entries.pop().unwrap_or_default(),
            Some(Err(error)) => {
                return Keyed {
                    error: Some(error),
                    ..known
                };
            }
            None => return known,
        };
        let count = |name| entry.count(name).unwrap_or(0);
        Keyed {
            udp: entry.label("udp").map(str::to_owned),
            key: entry.label("key") == Some("yes"),
            links: count("links"),
            links_over_udp: count("links_over_udp"),
            links_encrypted: count("links_encrypted"),
            ..known
        }
    };
    nodes.iter().map(one).collect()
}

/// Whether there are links over UDP, and all of them are encrypted. A node that does not answer may have others.
pub(crate) fn all_encrypted(nodes: &[Keyed]) -> bool {
    let by_udp: u64 = nodes.iter().map(|node| node.links_over_udp).sum();
    by_udp > 0
        && nodes
            .iter()
            .all(|node| node.error.is_none() && node.links_encrypted == node.links_over_udp)
}

/// The same in words.
pub(crate) fn words(nodes: &[Keyed]) -> String {
    if nodes.is_empty() {
        return "no node of this user runs".into();
    }
    let mut groups: [(&str, Vec<String>); 4] = [
        ("without UDP", Vec::new()),
        ("with a key", Vec::new()),
        ("with UDP and without a key", Vec::new()),
        ("without an answer", Vec::new()),
    ];
    for node in nodes {
        let group = match (&node.error, &node.udp, node.key) {
            (Some(_), ..) => 3,
            (None, None, _) => 0,
            (None, Some(_), true) => 1,
            (None, Some(_), false) => 2,
        };
        if let Some((_, numbers)) = groups.get_mut(group) {
            numbers.push(node.node.to_string());
        }
    }
    let named = groups.iter().filter(|(_, numbers)| !numbers.is_empty());
    let named: Vec<String> = named
        .map(|(what, numbers)| {
            let node = if numbers.len() == 1 { "node" } else { "nodes" };
            format!("{what}: {node} {}", numbers.join(", "))
        })
        .collect();
    let sum = |of: fn(&Keyed) -> u64| nodes.iter().map(of).sum::<u64>();
    let by_udp = sum(|node| node.links_over_udp);
    let links = match (by_udp, sum(|node| node.links_encrypted)) {
        (0, _) => "no link over UDP".to_owned(),
        (all, encrypted) => format!("of {all} ends of links over UDP {encrypted} are encrypted"),
    };
    format!("{}; {links}", named.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u16, by_udp: u64, encrypted: u64) -> Keyed {
        Keyed {
            node: number,
            udp: Some("127.0.0.1:1".into()),
            key: encrypted > 0,
            links: by_udp,
            links_over_udp: by_udp,
            links_encrypted: encrypted,
            ..Keyed::default()
        }
    }

    #[test]
    fn one_link_in_the_clear_is_enough_to_say_no() {
        assert!(!all_encrypted(&[]));
        assert!(!all_encrypted(&[node(1, 0, 0)]));
        assert!(all_encrypted(&[node(1, 2, 2), node(2, 0, 0)]));
        assert!(!all_encrypted(&[node(1, 2, 2), node(2, 1, 0)]));
        let silent = Keyed {
            error: Some("the other process does not answer".into()),
            ..node(2, 0, 0)
        };
        assert!(!all_encrypted(&[node(1, 2, 2), silent]));
    }

    #[test]
    fn nodes_are_told_apart() {
        assert_eq!(words(&[]), "no node of this user runs");
        let memory = Keyed::default();
        let text = words(&[memory, node(1, 2, 2), node(2, 1, 0), node(3, 0, 0)]);
        assert_eq!(
            text,
            "without UDP: node 0; with a key: node 1; with UDP and without a key: nodes 2, 3; \
             of 3 ends of links over UDP 2 are encrypted"
        );
    }
}
