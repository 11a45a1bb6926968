//! The conformance suite on three nodes of the software card in one process, joined by rings in shared memory.

use std::time::Duration;

use netvm::{Node, PortId};
use netvm_conformance::Nodes;
use netvm_process::{SoftBuilder, SoftNode};

/// Linked nodes.
struct Linked(Vec<SoftNode>);

impl Linked {
    /// Numbers from `first` on: tests of one machine may run at the same time.
    fn start(first: u16, builder: impl Fn() -> SoftBuilder) -> Self {
        let mut nodes: Vec<SoftNode> = Vec::new();
        for number in first..first + 3 {
            let node = builder().number(number).start().unwrap();
            for other in &nodes {
                let name = format!("#{}", other.number());
                node.connect(&name, Duration::from_secs(10)).unwrap();
            }
            nodes.push(node);
        }
        Self(nodes)
    }
}

impl Nodes for Linked {
    fn count(&self) -> u16 {
        3
    }

    fn node(&self, node: u16) -> Node {
        self.0[usize::from(node)].node()
    }

    fn kill(&self, node: u16, port: PortId) {
        self.0[usize::from(node)].kill(port);
    }
}

fn run_all(mode: &str, first: u16, builder: impl Fn() -> SoftBuilder) {
    netvm_conformance::run_all(mode, Linked::start(first, builder))
        .unwrap_or_else(|failed| panic!("{failed}"));
}

#[test]
fn shared_memory() {
    run_all("shared memory", 50, SoftNode::builder);
}

#[test]
fn small_payloads() {
    run_all("shared memory, 1 KiB", 54, || SoftNode::builder().payload(1024));
}
