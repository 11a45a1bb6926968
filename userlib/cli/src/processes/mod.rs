//! Commands that work in several processes, each a node of the software card: of this machine, or of several.

pub mod key;
pub mod nodes;
mod overcommit;
pub mod perf;
pub mod ping;
pub mod relay;
pub mod serve;
mod session;
mod spread;

use std::net::ToSocketAddrs;
use std::time::Duration;

use netvm::{NodeId, Port, PortConfig, PortId, RemoteSegment};
use netvm_process::soft::{ClusterKey, DEFAULT_NODES, LinkError, SoftBuilder, UDP_SCHEME};
use netvm_process::{SoftError, SoftNode};

use crate::args::{MAX_TRANSFER, UdpOptions};
use crate::failure::Failure;
use crate::signals::{self, End};

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
    node: SoftNode,
    peer: NodeId,
    port: Port,
    remote: RemoteSegment,
    /// Where the client's part of the server's memory begins.
    part: u64,
}

impl Client {
    fn connect(name: &str, options: &UdpOptions) -> Result<Self, Failure> {
        signals::exit(End::Early)?;
        let (node, peer) = link(name, options)?;
        let port = Port::open(&node.node(), PortConfig::default()).map_err(wrong)?;
        let remote = port.import(peer, PORT, EXPORT, PATIENCE).map_err(wrong)?;
        Ok(Self {
            part: u64::from(node.number().0) * PART,
            node,
            peer,
            port,
            remote,
        })
    }
}

/// A node, linked to the one that has this name. Over UDP the other side may know another node by the number that is free
/// here, and then says which one is free there.
fn link(name: &str, options: &UdpOptions) -> Result<(SoftNode, NodeId), Failure> {
    let target = name.strip_prefix(UDP_SCHEME);
    // What was free there a moment ago, then all.
    let mut numbers = None;
    let mut wanted = None;
    loop {
        let mut builder = SoftNode::builder();
        if let Some(target) = target {
            builder = by_udp(builder, &source_for(target), options)?;
        }
        if let Some(number) = wanted {
            builder = builder.number(number);
        }
        let node = match builder.start() {
            // Free at the other side, and not here.
            Err(SoftError::Link(LinkError::Taken)) if wanted.is_some() => {
                wanted = numbers.as_mut().and_then(Iterator::next);
                if wanted.is_some() {
                    continue;
                }
                return Err(Failure::Wrong("every node number is taken here or there".into()));
            }
            other => other.map_err(cannot_start)?,
        };
        let error = match node.connect(name, PATIENCE) {
            Ok(peer) => return Ok((node, peer)),
            Err(error) => error,
        };
        return Err(match error {
            SoftError::Link(LinkError::NumberTaken { free }) => {
                let all = || std::iter::once(free.0).chain(0..DEFAULT_NODES);
                wanted = numbers.get_or_insert_with(all).next();
                if wanted.is_some() {
                    continue;
                }
                Failure::Wrong(error.to_string())
            }
            SoftError::Link(LinkError::NoSuchNode) => Failure::Unavailable {
                what: format!("no process of this user serves '{name}'"),
                fix: format!("netvm serve {name}"),
            },
            SoftError::Link(LinkError::WantsKey | LinkError::NoKey | LinkError::OtherKey) => {
                Failure::Unavailable {
                    what: format!("{name}: {error}"),
                    fix: "start both nodes with --key-file and the same file of `netvm key new`".into(),
                }
            }
            SoftError::Link(LinkError::BadName) | SoftError::Address { .. } => {
                Failure::Usage(error.to_string())
            }
            other => match (other, target) {
                (SoftError::Link(LinkError::TimedOut), Some(target)) => Failure::Unavailable {
                    what: format!("no node answers at {name}"),
                    fix: format!("netvm serve NAME --udp {target} there"),
                },
                (other, _) => Failure::Wrong(format!("{name}: {other}")),
            },
        });
    }
}

/// The address that a node binds to which talks to this one.
fn source_for(target: &str) -> String {
    let to = target.to_socket_addrs().ok().and_then(|mut all| all.next());
    match to {
        Some(to) if to.ip().is_loopback() && to.is_ipv6() => "[::1]:0",
        Some(to) if to.ip().is_loopback() => "127.0.0.1:0",
        Some(to) if to.is_ipv6() => "[::]:0",
        // One that is no address says so when it is dialled.
        Some(_) => "0.0.0.0:0",
        None => "127.0.0.1:0",
    }
    .into()
}

fn by_udp(mut builder: SoftBuilder, address: &str, options: &UdpOptions) -> Result<SoftBuilder, Failure> {
    builder = builder.udp(address);
    if options.insecure {
        builder = builder.insecure();
    }
    if let Some(file) = &options.key_file {
        builder = builder.key(ClusterKey::read_file(file).map_err(key::unusable)?);
    }
    if let Some(timeout) = options.peer_timeout {
        builder = builder.peer_timeout(timeout);
    }
    if let Some(window) = options.window {
        builder = builder.window(window);
    }
    Ok(match options.payload {
        Some(payload) => builder.payload(payload),
        None => builder,
    })
}

/// Why this process is no node.
pub(crate) fn cannot_start(error: SoftError) -> Failure {
    match error {
        SoftError::Link(LinkError::Taken | LinkError::BadName)
        | SoftError::Address { .. }
        | SoftError::Config(_) => Failure::Usage(error.to_string()),
        SoftError::Insecure(address) => Failure::Usage(format!(
            "{address} is reached by other machines, and UDP is not encrypted: add --key-file FILE, or --insecure to allow it"
        )),
        other => Failure::Wrong(format!("this process cannot be a node: {other}")),
    }
}

fn wrong(error: netvm::Error) -> Failure {
    Failure::Wrong(error.to_string())
}
