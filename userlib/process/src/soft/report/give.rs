//! What a node answers.

use std::net::SocketAddr;

use netvm_abi::bar::BarMap;
use netvm_abi::control::{Modes, NAME_BYTES};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::{NodeId, PortId};
use netvm_soft::PAGE_BYTES;
use netvm_soft::card::{CardStats, Carrier, LinkStats, SoftCard};
use netvm_soft::shm::question::Question;

use super::{Counted, Entry, FORMAT, MOST_ENTRIES, Page, Section};
use crate::node::NodeParts;
use crate::soft::card::ProcessCard;
use crate::soft::memory::ProcessMemory;

type Parts = NodeParts<ProcessCard, ProcessMemory>;

/// The answer to a question, if there is one.
pub(in crate::soft) fn give(node: &Parts, card: &SoftCard, question: Question) -> Option<Vec<u8>> {
    let section = *Section::ALL.get(usize::from(question.section))?;
    let from = question.from;
    let (entries, next) = match section {
        _ if from > 0 && matches!(section, Section::Node | Section::Card | Section::Driver) => {
            (Vec::new(), None)
        }
        Section::Node => (vec![about(node, card)], None),
        Section::Card => (vec![counted_by(card.stats(), node)], None),
        Section::Driver => {
            let counters = node.host.with(|host, _, _| *host.counters());
            (vec![entry(node, Vec::new(), named(counters.iter()))], None)
        }
        Section::Ports => list(from, |from| {
            let from = PortId(u16::try_from(from).ok()?);
            let (port, tally, work) = node.host.with(|host, glue, _| host.port_tally(glue, from))?;
            let counted = named(tally.iter().chain(work.iter()));
            Some((u32::from(port.0), Vec::new(), counted))
        }),
        Section::Segments => list(from, |from| {
            let (place, tally, work) = node.host.with(|host, _, _| host.segment_tally(from))?;
            Some((place, Vec::new(), named(tally.iter().chain(work.iter()))))
        }),
        Section::Exports => list(from, |from| {
            let (place, name, tally) = node.host.with(|host, _, _| host.export_tally(from))?;
            let labels = vec![label("name", text(&name)), label("modes", modes(tally.mode_bits))];
            Some((place, labels, named(tally.iter())))
        }),
        Section::Links => links(node, card, NodeId(u16::try_from(from).ok()?)),
    };
    let page = Page {
        format: FORMAT,
        entries,
        next,
    };
    serde_json::to_vec(&page).ok()
}

fn named<'a>(counters: impl Iterator<Item = (&'a str, u64)>) -> Counted {
    counters.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn label(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

fn entry(node: &Parts, labels: Vec<(String, String)>, counted: Counted) -> Entry {
    Entry {
        number: node.card.node.0.into(),
        labels,
        counted,
    }
}

/// A page of what `next` gives, which finds the first thing from a place on. The driver's lock is taken for each one by itself.
fn list(
    mut from: u32,
    mut next: impl FnMut(u32) -> Option<(u32, Vec<(String, String)>, Counted)>,
) -> (Vec<Entry>, Option<u32>) {
    let mut entries = Vec::new();
    while entries.len() < MOST_ENTRIES {
        let Some((number, labels, counted)) = next(from) else {
            return (entries, None);
        };
        entries.push(Entry {
            number,
            labels,
            counted,
        });
        from = number + 1;
    }
    (entries, Some(from))
}

fn about(node: &Parts, card: &SoftCard) -> Entry {
    let geometry = &node.card.geometry;
    let words = |words: u32| u64::from(words) * 4;
    let bounce = u64::from(geometry.bounce_slots()) * PAGE_BYTES as u64;
    let mut counted = named(
        [
            ("nodes", geometry.nodes.into()),
            ("ports", geometry.ports.into()),
            ("window", geometry.window.into()),
            ("payload", geometry.payload.into()),
            ("uptime_ns", card.now().0),
            ("card_memory_bytes", words(BarMap::new(geometry).words)),
            ("driver_memory_bytes", words(SharedMap::new(geometry).words)),
            ("bounce_memory_bytes", bounce),
        ]
        .into_iter(),
    );
    let host = node.host.with(|host, _, _| host.census());
    counted.extend(
        host.into_iter()
            .map(|(name, value)| (format!("held_{name}"), value.into())),
    );
    counted.extend(named(linked(card).into_iter()));
    let udp = card.udp_address().map(|udp| label("udp", udp.to_string()));
    let key = if card.has_key() { "yes" } else { "no" };
    let labels = udp.into_iter().chain([label("key", key)]).collect();
    entry(node, labels, counted)
}

/// How many links to other nodes are up, and what is encrypted of those that leave the machine's memory.
fn linked(card: &SoftCard) -> [(&'static str, u64); 3] {
    let (mut all, mut by_udp, mut encrypted) = (0, 0, 0);
    let mut next = Some(NodeId(0));
    while let Some(from) = next {
        let links;
        (links, next) = card.links(from, MOST_ENTRIES);
        let others = links.iter().filter(|link| link.carrier != Carrier::Itself);
        for link in others.filter(|link| link.report.up) {
            all += 1;
            by_udp += u64::from(link.carrier == Carrier::Udp);
            encrypted += u64::from(link.encrypted);
        }
    }
    [
        ("links", all),
        ("links_over_udp", by_udp),
        ("links_encrypted", encrypted),
    ]
}

fn counted_by(stats: CardStats, node: &Parts) -> Entry {
    let mut counted = named(stats.counters.iter());
    counted.extend(named(
        [
            ("frames_sent", stats.frames_sent),
            ("frame_bytes_sent", stats.bytes_sent),
            ("page_bytes", stats.page_bytes),
            ("helper_wakeups", stats.wakeups),
            ("helper_looks", stats.looks),
            ("udp_asked", stats.udp.asked),
            ("udp_refused", stats.udp.refused),
            ("udp_strange", stats.udp.strange),
            ("udp_forged", stats.udp.forged),
            ("udp_replayed", stats.udp.replayed),
        ]
        .into_iter(),
    ));
    entry(node, Vec::new(), counted)
}

fn links(node: &Parts, card: &SoftCard, from: NodeId) -> (Vec<Entry>, Option<u32>) {
    let (links, next) = card.links(from, MOST_ENTRIES);
    let entries = links.iter().map(|link| one_link(node, link)).collect();
    (entries, next.map(|next| next.0.into()))
}

fn one_link(node: &Parts, link: &LinkStats) -> Entry {
    let report = &link.report;
    let kind = match link.carrier {
        Carrier::Itself => "itself",
        Carrier::SharedMemory => "shared memory",
        Carrier::Udp => "udp",
        Carrier::None => "none",
    };
    let state = if report.up { "up" } else { "down" };
    let mut labels = vec![
        label("kind", kind),
        label("state", state),
        label("encrypted", if link.encrypted { "yes" } else { "no" }),
    ];
    labels.extend(
        link.address
            .map(|address: SocketAddr| label("address", address.to_string())),
    );
    let mut counted = named(
        [
            ("window_used", report.window_used.into()),
            ("window", report.window.into()),
            ("next_seq", report.next_seq.into()),
            ("waits_for_seq", report.waits_for_seq.into()),
            ("unconfirmed", report.unconfirmed.into()),
            ("congestion_window", report.congestion_window.into()),
            ("reads_waiting", report.reads.into()),
            ("retransmitted", report.retransmitted.into()),
            ("waiting_for_room", link.waiting.into()),
            ("ring_memory_bytes", link.ring_bytes),
        ]
        .into_iter(),
    );
    counted.extend(report.round_trip.map(|ns| ("round_trip_ns".to_owned(), ns)));
    let driver = node.host.with(|host, glue, _| host.peer_tally(glue, link.node));
    if let Some((_, tally, work)) = driver.filter(|(found, ..)| *found == link.node) {
        // The card's own numbers are those of now; the driver has them as of when the card last had a moment.
        let more = tally.iter().chain(work.iter());
        let more: Vec<_> = more
            .filter(|(name, _)| counted.iter().all(|(known, _)| known != name))
            .collect();
        counted.extend(named(more.into_iter()));
    }
    Entry {
        number: link.node.0.into(),
        labels,
        counted,
    }
}

/// A name that may be any bytes.
fn text(name: &[u8; NAME_BYTES]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
    String::from_utf8_lossy(name.get(..end).unwrap_or_default()).into_owned()
}

fn modes(bits: u64) -> String {
    let modes = Modes::from_bits_truncate(bits as u16);
    let names = modes.iter_names().map(|(name, _)| name.to_lowercase());
    names.collect::<Vec<_>>().join("+")
}
