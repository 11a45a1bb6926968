//! Where the messages of a measurement have landed: in pages that were in memory, or in bounce pages from which the host took
//! them.

use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};

use netvm_process::soft::UDP_SCHEME;
use netvm_process::soft::report::Section;
use serde::Serialize;

use super::Task;
use super::lane::Kind;
use crate::observe::{self, Card};
use crate::processes::Client;

/// Counts of a card that tell it.
const NAMES: [&str; 9] = [
    "zero_copy",
    "reached",
    "bounced_not_found",
    "bounced_read_only",
    "bounced_segment",
    "reads_served",
    "source_copies",
    "atomics_served",
    "atomics_by_host",
];

/// What a card had counted at some time, in the order of [`NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts([u64; NAMES.len()]);

impl Counts {
    fn of(count: impl Fn(&str) -> Option<u64>) -> Option<Self> {
        let mut counts = Self::default();
        for (value, name) in counts.0.iter_mut().zip(NAMES) {
            *value = count(name)?;
        }
        Some(counts)
    }

    /// Of the card of this process.
    fn of_own(client: &Client) -> Option<Self> {
        let counters = client.node.stats().counters;
        Self::of(|name| {
            let mut all = counters.iter();
            all.find(|(known, _)| *known == name).map(|(_, value)| value)
        })
    }

    /// Of the server's card.
    fn of_server(server: Option<&Card>) -> Option<Self> {
        let said = server?.ask(&[Section::Card]).pop()?.ok()?;
        let card = said.first()?;
        Self::of(|name| card.count(name))
    }
}

/// Messages of the cards, each of up to a page. All that the card has served meanwhile: of other clients, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Landed {
    /// Those that went straight to or from a page that was in memory. Nothing: not known.
    in_place: Option<u64>,
    /// Those that the host copied, or did itself. Nothing: not known.
    bounced: Option<u64>,
}

impl Landed {
    /// Between two looks at a card that served this.
    fn between(before: Option<Counts>, after: Option<Counts>, task: Task) -> Self {
        let (Some(before), Some(after)) = (before, after) else {
            return Self::default();
        };
        let mut grown = [0; NAMES.len()];
        for (grown, (after, before)) in grown.iter_mut().zip(after.0.into_iter().zip(before.0)) {
            *grown = after.saturating_sub(before);
        }
        let [
            straight,
            reached,
            absent,
            read_only,
            foreign,
            reads,
            copies,
            atomics,
            by_host,
        ] = grown;
        let (in_place, bounced) = match task {
            Task::Memory(Kind::Write(_)) | Task::Channel(_) => {
                (straight + reached, absent + read_only + foreign)
            }
            Task::Memory(Kind::Read(_)) => (reads.saturating_sub(copies), copies),
            Task::Memory(Kind::Atomic) => (atomics.saturating_sub(by_host), by_host),
            // It has no bytes.
            Task::Memory(Kind::Notify) => (0, 0),
        };
        Self {
            in_place: Some(in_place),
            bounced: Some(bounced),
        }
    }

    /// For a person: the share in place.
    pub(super) fn share(&self) -> String {
        match (self.in_place, self.bounced) {
            (Some(0), Some(0)) => "-".into(),
            (Some(in_place), Some(bounced)) => {
                let all = in_place.saturating_add(bounced);
                // Not rounded up: all is only said of all.
                let tenths = u128::from(in_place) * 1000 / u128::from(all);
                format!("{}.{} %", tenths / 10, tenths % 10)
            }
            _ => "unknown".into(),
        }
    }
}

/// The cards at both ends of a measurement.
pub(super) struct Watch<'a> {
    client: &'a Client,
    server: Option<Card>,
}

/// What both had counted at some time: the server's, and this process'.
pub(super) struct Look(Option<Counts>, Option<Counts>);

impl<'a> Watch<'a> {
    /// Finds the server's card, if it is on this machine.
    pub(super) fn new(client: &'a Client, name: &str) -> Self {
        Self {
            client,
            server: server(client, name),
        }
    }

    /// Looks at both.
    pub(super) fn look(&self) -> Look {
        Look(
            Counts::of_server(self.server.as_ref()),
            Counts::of_own(self.client),
        )
    }

    /// Where messages of this task have landed since: at the server, and in this process.
    pub(super) fn since(&self, before: &Look, task: Task) -> (Landed, Landed) {
        let now = self.look();
        (
            Landed::between(before.0, now.0, task),
            Landed::between(before.1, now.1, task),
        )
    }
}

/// The server's card, if it is on this machine and answers questions.
fn server(client: &Client, name: &str) -> Option<Card> {
    let Some(address) = name.strip_prefix(UDP_SCHEME) else {
        let number = client.peer.0;
        return Some(Card::Node(observe::Node {
            number,
            ..observe::Node::default()
        }));
    };
    // Nothing can be bound to an address of another machine.
    let is_here = |at: &SocketAddr| UdpSocket::bind((at.ip(), 0)).is_ok();
    let here: Vec<_> = address.to_socket_addrs().ok()?.filter(is_here).collect();
    let nodes = observe::nodes().ok()?.into_iter();
    nodes
        .filter(|node| node.number == client.peer.0)
        .map(Card::Node)
        .find(|card| here.iter().any(|at| is_at(card, *at)))
}

/// Whether a card has its UDP there. A relay there is no card.
fn is_at(card: &Card, at: SocketAddr) -> bool {
    let Some(Ok(said)) = card.ask(&[Section::Node]).pop() else {
        return false;
    };
    let udp = said.first().and_then(|node| node.label("udp")?.parse().ok());
    udp.is_some_and(|udp: SocketAddr| {
        udp.port() == at.port() && (udp.ip() == at.ip() || udp.ip().is_unspecified())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_counts_of_its_own() {
        let before = Some(Counts([1; NAMES.len()]));
        let after = Some(Counts([91, 11, 2, 3, 5, 51, 12, 41, 3]));
        for (task, in_place, bounced) in [
            (Task::Memory(Kind::Write(8)), 100, 7),
            (Task::Channel(8), 100, 7),
            (Task::Memory(Kind::Read(8)), 39, 11),
            (Task::Memory(Kind::Atomic), 38, 2),
            (Task::Memory(Kind::Notify), 0, 0),
        ] {
            let landed = Landed::between(before, after, task);
            assert_eq!(
                (landed.in_place, landed.bounced),
                (Some(in_place), Some(bounced)),
                "{task:?}"
            );
        }
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let write = Task::Memory(Kind::Write(8));
        for (before, after) in [(None, Some(Counts::default())), (Some(Counts::default()), None)] {
            let landed = Landed::between(before, after, write);
            assert_eq!(landed.share(), "unknown");
            let text = serde_json::to_string(&landed).unwrap();
            assert_eq!(text, r#"{"in_place":null,"bounced":null}"#);
        }
        // A card of another release may lack one of them.
        assert_eq!(Counts::of(|name| (name != "zero_copy").then_some(1)), None);
    }

    #[test]
    fn all_is_only_said_of_all() {
        let share = |in_place, bounced| {
            Landed {
                in_place: Some(in_place),
                bounced: Some(bounced),
            }
            .share()
        };
        assert_eq!(share(10_000, 0), "100.0 %");
        assert_eq!(share(999_999, 1), "99.9 %");
        assert_eq!(share(1, 2), "33.3 %");
        assert_eq!(share(0, 9), "0.0 %");
        assert_eq!(share(0, 0), "-");
    }
}
