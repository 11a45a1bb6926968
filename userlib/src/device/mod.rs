//! The kernel back end: `/dev/netvmN` of `netvm.ko` (docs/ABI.md, chapter 14).
//!
//! Calls only set things up, wait, and tear them down; the words that a write touches are mapped, and the memory that the
//! card reaches is any memory of the process. Linux only.

mod calls;
mod map;
mod memory;
mod port;

use crate::backend::{Backend, OpenRequest, PortBackend, Refusal};
use crate::node::Node;
use calls::{Calls, system};
use netvm_abi::ioctl::{ANY_PORT, Query, Register, StatScope};
use netvm_abi::{ABI_VERSION, Geometry, NodeId, PAGE_SIZE};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A signal came in between (`EINTR`).
const INTERRUPTED: i32 = rustix::io::Errno::INTR.raw_os_error();

/// The first card's device.
pub const FIRST: &str = "/dev/netvm0";

/// Whether this machine has a card that is up.
#[must_use]
pub fn present() -> bool {
    Path::new(FIRST).exists()
}

/// The node of the card behind a device such as [`FIRST`].
///
/// # Errors
/// The device cannot be opened, or its driver speaks another version of the ABI.
pub fn open(path: impl AsRef<Path>) -> Result<Node, Refusal> {
    let path = path.as_ref().to_owned();
    let calls = Calls::open(&path)?;
    let mut query = Query::default();
    calls.query(&mut query)?;
    if query.version != ABI_VERSION || query.page_size != PAGE_SIZE {
        return Err(Refusal::Unsupported(
            "the driver of /dev/netvm speaks another version of the ABI: install the library and the module of one release",
        ));
    }
    Ok(Node::new(Arc::new(Device { path, query })))
}

/// Names and values of counters.
pub type Counted = Vec<(String, u64)>;

/// What a card and its driver have counted since they were started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The driver's.
    pub driver: Counted,
    /// The card's; some hundredths of a second old.
    pub card: Counted,
    /// Those of each open port, by its number.
    pub ports: Vec<(u32, Counted)>,
    /// Those of each registered segment, by its place in the driver's table.
    pub segments: Vec<(u32, Counted)>,
    /// Those of the link to each node, by the node's number.
    pub peers: Vec<(u32, Counted)>,
}

/// Reads the counters of the card behind a device such as [`FIRST`]. Needs no port.
///
/// # Errors
/// The device cannot be opened, or its driver is of another release.
pub fn counters(path: impl AsRef<Path>) -> Result<Counters, Refusal> {
    let calls = Calls::open_to_read(path.as_ref())?;
    Ok(Counters {
        driver: calls.counters(StatScope::Driver)?,
        card: calls.counters(StatScope::Card)?,
        ports: calls.each(StatScope::Port)?,
        segments: calls.each(StatScope::Segment)?,
        peers: calls.each(StatScope::Peer)?,
    })
}

/// A card's device.
struct Device {
    path: PathBuf,
    query: Query,
}

impl Backend for Device {
    fn name(&self) -> &'static str {
        "device"
    }

    fn node(&self) -> NodeId {
        NodeId(self.query.node)
    }

    /// What the driver tells of it; the sizes of the card's own tables, which are no business of a process, are the usual
    /// ones.
    fn geometry(&self) -> Geometry {
        Geometry {
            version: self.query.version,
            page_size: self.query.page_size,
            payload: self.query.payload,
            ports: self.query.ports,
            nodes: self.query.nodes,
            window: self.query.window,
            ..Geometry::default()
        }
    }

    fn inline_limit(&self) -> usize {
        usize::from(self.query.inline_bytes)
    }

    fn open(&self, request: &OpenRequest) -> Result<Arc<dyn PortBackend>, Refusal> {
        let calls = Calls::open(&self.path)?;
        // The driver takes it here or never. To signal it costs little beside the interrupt that it tells of.
        let descriptor = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| system("make an eventfd", errno))?;
        let mut register = Register {
            version: ABI_VERSION,
            port: request.port.map_or(ANY_PORT, |port| port.0),
            eventfd: descriptor.as_raw_fd().cast_unsigned(),
            ..Register::default()
        };
        // Signals of the process may end the call before it has done anything.
        let interrupted =
            |refusal: &Refusal| matches!(refusal, Refusal::System { errno, .. } if *errno == INTERRUPTED);
        while let Err(refusal) = calls.register(&mut register) {
            if !interrupted(&refusal) {
                return Err(refusal);
            }
        }
        let status_bytes = self.query.status_bytes as usize;
        Ok(port::Port::new((calls, descriptor), &register, status_bytes)?)
    }
}
