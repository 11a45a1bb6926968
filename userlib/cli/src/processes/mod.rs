//! Commands that work in several processes of this machine, each a node of the software card.

pub mod perf;
pub mod ping;
pub mod serve;
mod spread;

use std::time::Duration;

use netvm::{NodeId, Port, PortConfig, PortId, RemoteSegment};
use netvm_process::soft::LinkError;
use netvm_process::{SoftError, SoftNode};

use crate::args::MAX_TRANSFER;
use crate::failure::Failure;

/// The port that serves.
const PORT: PortId = PortId(1);
/// What it exports: a part for each node number, of the largest transfer and a page for words.
const EXPORT: &str = "netvm-serve";
const PART: u64 = MAX_TRANSFER as u64 + 4096;
/// The notification that clients signal.
const SIGNAL: u32 = 1;
/// How long a client waits for a server.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client's way to a server.
struct Client {
    /// Last to go: the port is on it.
    _node: SoftNode,
    peer: NodeId,
    port: Port,
    remote: RemoteSegment,
    /// Where the client's part of the server's memory begins.
    part: u64,
}

impl Client {
    fn connect(name: &str) -> Result<Self, Failure> {
        let node = SoftNode::builder().start().map_err(cannot_start)?;
        let peer = node.connect(name, PATIENCE).map_err(|error| match error {
            SoftError::Link(LinkError::NoSuchNode) => Failure::Unavailable {
                what: format!("no process of this user serves '{name}'"),
                fix: format!("netvm serve {name}"),
            },
            SoftError::Link(LinkError::BadName) => Failure::Usage(error.to_string()),
            other => Failure::Wrong(format!("{name}: {other}")),
        })?;
        let port = Port::open(&node.node(), PortConfig::default()).map_err(wrong)?;
        let remote = port.import(peer, PORT, EXPORT, PATIENCE).map_err(wrong)?;
        Ok(Self {
            part: u64::from(node.number().0) * PART,
            _node: node,
            peer,
            port,
            remote,
        })
    }
}

fn cannot_start(error: SoftError) -> Failure {
    match error {
        SoftError::Link(LinkError::Taken | LinkError::BadName) => Failure::Usage(error.to_string()),
        other => Failure::Wrong(format!("this process cannot be a node: {other}")),
    }
}

fn wrong(error: netvm::Error) -> Failure {
    Failure::Wrong(error.to_string())
}
