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

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

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
/// How long it asks at addresses of one kind before it asks at those of the next.
const TURN: Duration = Duration::from_millis(250);

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

/// Why there is no link.
enum NoLink {
    /// This process cannot be such a node.
    Here(Failure),
    There(SoftError),
}

/// A node, linked to the one that has this name. A name for UDP may have addresses of several kinds, each for a node that is bound to one of
/// its kind: each kind is tried for a while, which is longer in each round.
fn link(name: &str, options: &UdpOptions) -> Result<(SoftNode, NodeId), Failure> {
    let end = Instant::now() + PATIENCE;
    let target = name.strip_prefix(UDP_SCHEME);
    let sources = target.map_or_else(|| vec![None], |target| sources_for(target).map(Some).collect());
    let mut turn = if sources.len() == 1 { PATIENCE } else { TURN };
    loop {
        for source in &sources {
            let left = end.saturating_duration_since(Instant::now());
            match link_from(*source, name, turn.min(left), options) {
                Ok(linked) => return Ok(linked),
                // Also where the turn was too short for a far one's card.
                Err(NoLink::There(SoftError::Link(LinkError::TimedOut) | SoftError::Silent))
                    if Instant::now() < end => {}
                Err(other) => return Err(failure(other, name)),
            }
        }
        turn *= 2;
    }
}

/// A link of a node that is bound there, if it is to have UDP. The other side may know another node by the number that is free here, and
/// then says which one is free there.
fn link_from(
    source: Option<&str>,
    name: &str,
    patience: Duration,
    options: &UdpOptions,
) -> Result<(SoftNode, NodeId), NoLink> {
    // What was free there a moment ago, then all.
    let mut numbers = None;
    let mut wanted = None;
    loop {
        let mut builder = SoftNode::builder();
        if let Some(source) = source {
            builder = by_udp(builder, source, options).map_err(NoLink::Here)?;
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
                let what = "every node number is taken here or there";
                return Err(NoLink::Here(Failure::Wrong(what.into())));
            }
            other => other.map_err(|error| NoLink::Here(cannot_start(error)))?,
        };
        let error = match node.connect(name, patience) {
            Ok(peer) => return Ok((node, peer)),
            Err(error) => error,
        };
        if let SoftError::Link(LinkError::NumberTaken { free }) = error {
            let all = || std::iter::once(free.0).chain(0..DEFAULT_NODES);
            wanted = numbers.get_or_insert_with(all).next();
            if wanted.is_some() {
                continue;
            }
        }
        return Err(NoLink::There(error));
    }
}

fn failure(no: NoLink, name: &str) -> Failure {
    let error = match no {
        NoLink::Here(failure) => return failure,
        NoLink::There(error) => error,
    };
    match (error, name.strip_prefix(UDP_SCHEME)) {
        (SoftError::Link(error @ LinkError::NumberTaken { .. }), _) => Failure::Wrong(error.to_string()),
        (SoftError::Link(LinkError::NoSuchNode), _) => Failure::Unavailable {
            what: format!("no process of this user serves '{name}'"),
            fix: format!("netvm serve {name}"),
        },
        (SoftError::Link(error @ (LinkError::WantsKey | LinkError::NoKey | LinkError::OtherKey)), _) => {
            Failure::Unavailable {
                what: format!("{name}: {error}"),
                fix: "start both nodes with --key-file and the same file of `netvm key new`".into(),
            }
        }
        (error @ (SoftError::Link(LinkError::BadName) | SoftError::Address { .. }), _) => {
            Failure::Usage(error.to_string())
        }
        (SoftError::Link(LinkError::TimedOut), Some(target)) => Failure::Unavailable {
            what: format!("no node answers at {name}"),
            fix: format!("netvm serve NAME --udp {target} there"),
        },
        (other, _) => Failure::Wrong(format!("{name}: {other}")),
    }
}

/// The addresses that nodes bind to which talk to those of this name, each once. Never none.
fn sources_for(target: &str) -> impl Iterator<Item = &'static str> {
    let mut sources: Vec<_> = target
        .to_socket_addrs()
        .into_iter()
        .flatten()
        .map(source_for)
        .collect();
    let mut seen = BTreeSet::new();
    sources.retain(|source| seen.insert(*source));
    // One that is no address says so when it is dialled.
    if sources.is_empty() {
        sources.push("127.0.0.1:0");
    }
    sources.into_iter()
}

fn source_for(to: SocketAddr) -> &'static str {
    match (to.ip().is_loopback(), to.is_ipv6()) {
        (true, true) => "[::1]:0",
        (true, false) => "127.0.0.1:0",
        (false, true) => "[::]:0",
        (false, false) => "0.0.0.0:0",
    }
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
        SoftError::Link(LinkError::Taken) => Failure::Usage(format!("{error}; `netvm nodes` lists them")),
        SoftError::Link(LinkError::BadName) | SoftError::Address { .. } | SoftError::Config(_) => {
            Failure::Usage(error.to_string())
        }
        SoftError::Insecure(address) => Failure::Usage(format!(
            "{address} is reached by other machines, and UDP is not encrypted: add --key-file FILE, or --insecure to allow it"
        )),
        other => Failure::Wrong(format!("this process cannot be a node: {other}")),
    }
}

fn wrong(error: netvm::Error) -> Failure {
    Failure::Wrong(error.to_string())
}
