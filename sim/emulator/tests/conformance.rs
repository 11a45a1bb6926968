//! The conformance suite on the emulator: every body in every mode.
//!
//! Some bodies alone, again and again: `NETVM_CASE=dead_exporter,ping_pong NETVM_REPEAT=30 cargo test -p netvm-emulator
//! --test conformance`. Another seed: `NETVM_SEED=7`.

use netvm::{Node, Port, PortConfig, PortId, Region};
use netvm_conformance::Nodes;
use netvm_emulator::{Builder, DmaMode, Emulator, NicMode};
use std::sync::Mutex;

const NODES: u16 = 3;
/// Port with which a node is put under memory pressure, beyond those of the bodies.
const HOG: u16 = 40;

/// An emulator as the bodies see it.
struct Emulated {
    emulator: Emulator,
    /// Pages that a node may keep resident.
    resident: u32,
    hogs: Mutex<Vec<Option<(Port, Region)>>>,
}

impl Nodes for Emulated {
    fn count(&self) -> u16 {
        NODES
    }

    fn node(&self, node: u16) -> Node {
        self.emulator.node(usize::from(node))
    }

    fn kill(&self, node: u16, port: PortId) {
        self.emulator.kill(usize::from(node), port);
    }

    fn pressure(&self, node: u16) {
        let mut hogs = self.hogs.lock().unwrap();
        let hog = &mut hogs[usize::from(node)];
        let (_, region) = hog.get_or_insert_with(|| {
            let port = Port::open(&self.node(node), PortConfig::number(HOG)).unwrap();
            let region = port.alloc(u64::from(self.resident) * 4096 * 2).unwrap();
            (port, region)
        });
        for page in 0..region.len() / 4096 {
            region.write_from(page * 4096, &[1]).unwrap();
        }
    }
}

/// Runs every body on a cluster of this kind.
fn run_all(mode: &str, builder: Builder, resident: u32) {
    let emulator = builder.nodes(NODES).resident_pages(resident).start();
    let nodes = Emulated {
        emulator: emulator.unwrap_or_else(|error| panic!("{error}")),
        resident,
        hogs: Mutex::new((0..NODES).map(|_| None).collect()),
    };
    netvm_conformance::run_all(mode, nodes).unwrap_or_else(|failed| panic!("{failed}"));
}

fn late(seed: u64) -> DmaMode {
    DmaMode::Late {
        seed,
        up_to: netvm::Nanos(50_000),
    }
}

#[test]
fn inline() {
    run_all("inline", Emulator::builder(), 512);
}

#[test]
fn inline_small_packets_little_memory() {
    run_all("inline, 1500", Emulator::builder().mtu(1500), 24);
}

#[test]
fn inline_late_transfers() {
    run_all(
        "inline, late",
        Emulator::builder().dma(late(1)).inline_limit(8),
        64,
    );
}

#[test]
fn threaded() {
    run_all("threaded", Emulator::builder().nic(NicMode::Threaded), 512);
}

#[test]
fn threaded_late_transfers_little_memory() {
    let builder = Emulator::builder().nic(NicMode::Threaded).dma(late(2)).mtu(1500);
    run_all("threaded, late, 1500", builder, 24);
}
