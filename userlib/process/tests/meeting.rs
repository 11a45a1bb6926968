//! Nodes that connect to each other at the same time, and again while they work: what is under way arrives.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netvm::{Access, Port, PortConfig, PortId, RemoteSegment};
use netvm_kit::length::is_long;
use netvm_process::SoftNode;

/// Node numbers of this program: those from 280 on, which no other test has.
const FIRST: u16 = 280;
const NODES: u16 = FIRST + 4;
const SERVED: PortId = PortId(7);
const PATIENCE: Duration = Duration::from_secs(20);

fn node(at: u16) -> SoftNode {
    SoftNode::builder()
        .nodes(NODES)
        .number(FIRST + at)
        .start()
        .unwrap()
}

fn name(at: u16) -> String {
    format!("#{}", FIRST + at)
}

/// A port with memory that others write to.
struct Served {
    port: Port,
    _export: netvm::Export,
}

impl Served {
    fn new(node: &SoftNode) -> Self {
        let port = Port::open(&node.node(), PortConfig::number(SERVED.0)).unwrap();
        let memory = port.alloc(4096).unwrap();
        let access = Access::everyone().notify(1..=1);
        let export = port.export("memory", &memory, .., access).unwrap();
        Self {
            port,
            _export: export,
        }
    }

    /// Signals that have come.
    fn came(&self) -> u32 {
        self.port.notification(1).unwrap().pending()
    }
}

/// The other one's memory, once there is a link.
fn reach(node: &SoftNode, port: &Port, at: u16) -> RemoteSegment {
    let peer = node.connect(&name(at), PATIENCE).unwrap();
    port.import(peer, SERVED, "memory", PATIENCE).unwrap()
}

#[test]
fn two_that_connect_to_each_other_at_once_have_one_link_that_loses_nothing() {
    for round in 0..if is_long() { 400 } else { 40 } {
        let nodes = [node(0), node(1)];
        let served = nodes.each_ref().map(Served::new);
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            for (at, node) in nodes.iter().enumerate() {
                let start = &start;
                scope.spawn(move || {
                    let port = Port::open(&node.node(), PortConfig::default()).unwrap();
                    start.wait();
                    let other = reach(node, &port, 1 - at as u16);
                    for word in 0..20_u64 {
                        other
                            .write(8 * word, &word.to_le_bytes())
                            .notify(1)
                            .post()
                            .unwrap();
                    }
                    let landed = port.flush_remote_for(other.node(), PATIENCE);
                    assert_eq!(landed, Ok(()), "round {round}, node {at}");
                });
            }
        });
        assert_eq!(served.each_ref().map(Served::came), [20, 20], "round {round}");
    }
}

/// From either side, in whatever order of their numbers.
#[test]
fn to_connect_again_disturbs_nothing_that_is_under_way() {
    let nodes = [node(2), node(3)];
    let served = nodes.each_ref().map(Served::new);
    let over = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let again = [0, 1].map(|at| {
            let (node, over) = (&nodes[at], &over);
            scope.spawn(move || {
                let mut times = 0;
                while !over.load(Ordering::Relaxed) {
                    node.connect(&name(3 - at as u16), PATIENCE).unwrap();
                    times += 1;
                }
                times
            })
        });
        let writers = [0, 1].map(|at| {
            let node = &nodes[at];
            scope.spawn(move || {
                let port = Port::open(&node.node(), PortConfig::default()).unwrap();
                let other = reach(node, &port, 3 - at as u16);
                for word in 0..20_000_u64 {
                    let to = 8 * (word % 512);
                    other.write(to, &word.to_le_bytes()).notify(1).post().unwrap();
                }
                port.flush_remote_for(other.node(), PATIENCE)
            })
        });
        let sent = writers.map(|writer| writer.join().unwrap());
        over.store(true, Ordering::Relaxed);
        let times = again.map(|thread| thread.join().unwrap());
        assert!(
            times.iter().all(|times| *times > 10),
            "connected again {times:?} times"
        );
        sent
    });
    assert_eq!(sent, [Ok(()), Ok(())]);
    assert_eq!(served.each_ref().map(Served::came), [20_000; 2]);
}
