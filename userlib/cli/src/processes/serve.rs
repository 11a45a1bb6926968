//! `netvm serve`: memory of this process under a name.

use std::net::SocketAddr;

use std::time::{Duration, Instant};

use netvm::{Access, Error, Port, PortConfig, SharedConfig, SharedReceiver, Timeout};
use netvm_process::SoftNode;
use netvm_process::soft::DEFAULT_NODES;
use serde::Serialize;

use super::overcommit::{SparseFile, memory_bytes, size};
use super::session::{Offer, REQUEST_BYTES, REQUESTS, Sessions};
use super::{EXPORT, PART, PORT, SIGNAL, by_udp, cannot_start, wrong};
use crate::args::{Serve, Size};
use crate::failure::Failure;
use crate::output;
use crate::signals::{self, End};

#[derive(Serialize)]
struct Served<'a> {
    name: &'a str,
    node: u16,
    bytes: u64,
    process: u32,
    udp: Option<SocketAddr>,
    /// Of the mapping for `netvm perf --overcommit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    overcommit_bytes: Option<u64>,
}

/// Runs it.
///
/// # Errors
/// The name is taken, or the node cannot be started.
pub fn run(options: &Serve) -> Result<(), Failure> {
    let offer = options.overcommit.map(offer).transpose()?;
    let mut builder = SoftNode::builder().name(&options.name);
    if let Some(number) = options.number {
        builder = builder.number(number);
    }
    if let Some(address) = &options.udp {
        builder = by_udp(builder, address, &options.options)?;
    }
    let node = builder.start().map_err(cannot_start)?;
    signals::exit(End::Well)?;
    let port = Port::open(&node.node(), PortConfig::number(PORT.0)).map_err(wrong)?;
    let bytes = u64::from(DEFAULT_NODES) * PART;
    let memory = port.alloc(bytes).map_err(wrong)?;
    let access = Access::everyone().notify(SIGNAL..=SIGNAL);
    let _export = port.export(EXPORT, &memory, .., access).map_err(wrong)?;
    let config = SharedConfig::default().message_bytes(REQUEST_BYTES);
    let mut requests = SharedReceiver::open(&port, REQUESTS, config).map_err(wrong)?;
    let mut sessions = Sessions::new(node.node(), offer);
    let served = Served {
        name: &options.name,
        node: node.number().0,
        bytes,
        process: std::process::id(),
        udp: node.udp_address(),
        overcommit_bytes: offer.map(|offer| offer.bytes),
    };
    if options.json {
        output::print_json(&served)?;
    } else {
        output::print(&format!(
            "node {}: serves {} MiB as '{}'{}{}, none of it pinned; Ctrl-C ends it\n",
            served.node,
            bytes >> 20,
            options.name,
            served
                .udp
                .map(|udp| format!(" and at udp://{udp}"))
                .unwrap_or_default(),
            offer
                .map(|offer| format!(
                    ", and each `netvm perf --overcommit` {} of a file ({:.2} x its memory)",
                    size(offer.bytes),
                    offer.bytes as f64 / offer.memory.max(1) as f64
                ))
                .unwrap_or_default()
        ))?;
    }
    take_requests(
        &mut requests,
        &mut sessions,
        options.seconds.map(Duration::from_secs),
    )
}

/// The mapping that sessions may have, after it was tried whether this process can have one.
fn offer(wanted: Size) -> Result<Offer, Failure> {
    let memory = memory_bytes().ok_or_else(|| Failure::Unavailable {
        what: "/proc/meminfo does not say how much memory there is".into(),
        fix: "mount /proc".into(),
    })?;
    let bytes = wanted
        .bytes(memory)
        .map_err(|why| Failure::Usage(format!("--overcommit: {why}")))?;
    SparseFile::map(&std::env::temp_dir(), bytes)?;
    Ok(Offer { bytes, memory })
}

/// Begins sessions for clients that ask for one, until the time is over.
fn take_requests(
    requests: &mut SharedReceiver,
    sessions: &mut Sessions,
    time: Option<Duration>,
) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        let left = time.map_or(Timeout::Never, |time| {
            Timeout::After(time.saturating_sub(begin.elapsed()))
        });
        let (from, request) = match requests.recv(left) {
            Ok(message) => (message.sender(), message.to_vec().map_err(wrong)?),
            Err(Error::TimedOut) => return Ok(()),
            Err(error) => return Err(wrong(error)),
        };
        sessions.asked(from, &request);
    }
}
