//! How much memory a card takes, as a function of nodes, ports and host pages: counted from the types of the core and
//! of the image, for 64-bit machines; first the board's own.

use std::fmt;

use netvm_abi::Geometry;
use netvm_abi::bar::BarMap;
use netvm_fw_common::board::geometry as of_board;
use netvm_fw_common::memory as card;
use serde::Serialize;

/// Bytes of NIC memory that a card shows to its host, a power of two, as a PCI range is.
pub(crate) fn nic_memory() -> u64 {
    (u64::from(BarMap::new(&of_board()).words) * 4).next_power_of_two()
}

/// Networks that the table shows: nodes, ports, pages of the host.
const NETWORKS: [(u16, u16, u32); 6] = [
    (2, 64, 1 << 13),
    (2, 64, 1 << 18),
    (16, 64, 1 << 18),
    (64, 64, 1 << 20),
    (256, 64, 1 << 22),
    (256, 256, 1 << 22),
];

/// Bytes by part, at one geometry.
#[derive(Serialize)]
struct Row {
    nodes: u16,
    ports: u16,
    host_pages: u32,
    card_bytes: u64,
    host_bytes: u64,
}

/// What one more of something adds.
#[derive(Serialize)]
struct Share {
    of: &'static str,
    card_bytes: f64,
    host_bytes: f64,
}

#[derive(Serialize)]
struct Part {
    name: &'static str,
    on_host: bool,
    bytes: u64,
}

/// All of it.
#[derive(Serialize)]
pub(super) struct Memory {
    nodes: u16,
    ports: u16,
    host_pages: u32,
    parts: Vec<Part>,
    shares: Vec<Share>,
    networks: Vec<Row>,
}

fn geometry(nodes: u16, ports: u16, host_pages: u32) -> Geometry {
    Geometry {
        nodes,
        ports,
        // A row of the page table for each page of the host, as decision 1 chose.
        page_rows: host_pages.next_power_of_two(),
        ..Geometry::default()
    }
}

/// What the second half of a number adds, spread over that half: event rings are rounded up to a power of two, so
/// that one more by itself may add nothing or a lot.
fn share(of: &'static str, count: u32, at: impl Fn(u32) -> Geometry) -> Share {
    let (card, host) = card::totals(&at(count));
    let (twice_card, twice_host) = card::totals(&at(2 * count));
    let each = |more: u64, less: u64| (more - less) as f64 / f64::from(count);
    Share {
        of,
        card_bytes: each(twice_card, card),
        host_bytes: each(twice_host, host),
    }
}

impl Memory {
    /// Counts, at a geometry.
    pub(super) fn new(usual: &Geometry) -> Self {
        let parts = card::parts(usual);
        let (nodes, ports, pages) = (usual.nodes, usual.ports, usual.page_rows);
        let small = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        Self {
            nodes,
            ports,
            host_pages: pages,
            parts: parts
                .iter()
                .map(|part| Part {
                    name: part.name,
                    on_host: part.on_host,
                    bytes: part.bytes,
                })
                .collect(),
            shares: vec![
                share("peer node", 128, |count| geometry(small(count), ports, pages)),
                share("port", 256, |count| geometry(nodes, small(count), pages)),
                share("host page", 1 << 20, |count| geometry(nodes, ports, count)),
            ],
            networks: NETWORKS
                .iter()
                .map(|&(nodes, ports, host_pages)| {
                    let (card_bytes, host_bytes) = card::totals(&geometry(nodes, ports, host_pages));
                    Row {
                        nodes,
                        ports,
                        host_pages,
                        card_bytes,
                        host_bytes,
                    }
                })
                .collect(),
        }
    }

    /// What the image's log must say of the parts, if its types are as large as here.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |part: &Part| {
            let owner = if part.on_host { "host" } else { "card" };
            format!("memory of a {owner}: {}, {} bytes", part.name, part.bytes)
        };
        self.parts.iter().map(line).collect()
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "memory of a card, {} nodes, {} ports, {} host pages",
            self.nodes, self.ports, self.host_pages
        )?;
        for part in &self.parts {
            let owner = if part.on_host { "  on the host" } else { "" };
            writeln!(f, "{:<26}{:>12}{owner}", part.name, part.bytes)?;
        }
        writeln!(
            f,
            "\n{:<26}{:>12}{:>14}",
            "each further", "card bytes", "host bytes"
        )?;
        for share in &self.shares {
            writeln!(
                f,
                "{:<26}{:>12.0}{:>14.0}",
                share.of, share.card_bytes, share.host_bytes
            )?;
        }
        writeln!(
            f,
            "\n{:>8}{:>8}{:>12}{:>16}{:>16}",
            "nodes", "ports", "host pages", "card bytes", "host bytes"
        )?;
        for row in &self.networks {
            writeln!(
                f,
                "{:>8}{:>8}{:>12}{:>16}{:>16}",
                row.nodes, row.ports, row.host_pages, row.card_bytes, row.host_bytes
            )?;
        }
        Ok(())
    }
}
