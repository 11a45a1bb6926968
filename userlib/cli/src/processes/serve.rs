//! `netvm serve`: memory of this process under a name.

use std::net::SocketAddr;

use std::time::{Duration, Instant};

use netvm::{Access, Error, Port, PortConfig, SharedConfig, SharedReceiver, Timeout};
use netvm_process::SoftNode;
use netvm_process::soft::DEFAULT_NODES;
use serde::Serialize;

use super::session::{REQUEST_BYTES, REQUESTS, Sessions};
use super::{EXPORT, PART, PORT, SIGNAL, by_udp, cannot_start, wrong};
use crate::args::Serve;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Served<'a> {
    name: &'a str,
    node: u16,
    bytes: u64,
    process: u32,
    udp: Option<SocketAddr>,
}

/// Runs it.
///
/// # Errors
/// The name is taken, or the node cannot be started.
pub fn run(options: &Serve) -> Result<(), Failure> {
    let mut builder = SoftNode::builder().name(&options.name);
    if let Some(number) = options.number {
        builder = builder.number(number);
    }
    if let Some(address) = &options.udp {
        builder = by_udp(builder, address, &options.options)?;
    }
    let node = builder.start().map_err(cannot_start)?;
    let port = Port::open(&node.node(), PortConfig::number(PORT.0)).map_err(wrong)?;
    let bytes = u64::from(DEFAULT_NODES) * PART;
    let memory = port.alloc(bytes).map_err(wrong)?;
    let access = Access::everyone().notify(SIGNAL..=SIGNAL);
    let _export = port.export(EXPORT, &memory, .., access).map_err(wrong)?;
    let config = SharedConfig::default().message_bytes(REQUEST_BYTES);
    let mut requests = SharedReceiver::open(&port, REQUESTS, config).map_err(wrong)?;
    let mut sessions = Sessions::new(node.node());
    let served = Served {
        name: &options.name,
        node: node.number().0,
        bytes,
        process: std::process::id(),
        udp: node.udp_address(),
    };
    if options.json {
        output::print_json(&served)?;
    } else {
        output::print(&format!(
            "node {}: serves {} MiB as '{}'{}, none of it pinned; Ctrl-C ends it\n",
            served.node,
            bytes >> 20,
            options.name,
            served
                .udp
                .map(|udp| format!(" and at udp://{udp}"))
                .unwrap_or_default()
        ))?;
    }
    take_requests(
        &mut requests,
        &mut sessions,
        options.seconds.map(Duration::from_secs),
    )
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
