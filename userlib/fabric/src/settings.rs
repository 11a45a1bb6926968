//! What the environment says: `FI_NETVM_*`.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use netvm_process::soft::ClusterKey;
use netvm_process::{SoftBuilder, SoftNode};

use crate::fi::{Answer, Errno};
use crate::log;

/// An address for UDP, `IP:PORT`: endpoints of other machines and network namespaces are reached by it.
const UDP: &str = "FI_NETVM_UDP";
/// The number of this process' node; the lowest that is free if not set.
const NUMBER: &str = "FI_NETVM_NUMBER";
/// Memory regions that this process may have, and keys of others that it may use, at once.
const KEYS: &str = "FI_NETVM_KEYS";
/// As many as a cache of registrations holds, and some: one takes half a KiB.
const USUAL_KEYS: u16 = 8192;
/// Node numbers are below this.
const NODES: &str = "FI_NETVM_NODES";
/// The file of the cluster key that encrypts UDP.
const KEY_FILE: &str = "FI_NETVM_KEY_FILE";
/// `1`: UDP may be used without a key.
const INSECURE: &str = "FI_NETVM_INSECURE";
/// `0`: other processes of the machine are reached over UDP, too.
const SHARED: &str = "FI_NETVM_SHM";
/// `0`: large messages go through the card in pieces, also where the receiver may read them out of the sender's memory.
const PULL: &str = "FI_NETVM_PULL";

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number<T: std::str::FromStr>(name: &str) -> Answer<Option<T>> {
    let Some(value) = variable(name) else {
        return Ok(None);
    };
    value.parse().map(Some).map_err(|_| {
        log::warn(&format!("{name}={value} is no number that it can be"));
        Errno::INVAL
    })
}

/// Whether large messages may be read out of the sender's memory.
pub(crate) fn may_pull() -> bool {
    variable(PULL).is_none_or(|value| value != "0")
}

/// Whether other processes of the machine are reached over shared memory.
pub(crate) fn may_share() -> bool {
    variable(SHARED).is_none_or(|value| value != "0")
}

/// Starts this process' node.
pub(crate) fn start() -> Answer<SoftNode> {
    let keys = number::<NonZeroU16>(KEYS)?.map_or(USUAL_KEYS, NonZeroU16::get);
    let mut builder: SoftBuilder = SoftNode::builder().names(keys).capabilities(keys.into());
    if let Some(nodes) = number(NODES)? {
        builder = builder.nodes(nodes);
    }
    if let Some(number) = number(NUMBER)? {
        builder = builder.number(number);
    }
    if let Some(udp) = variable(UDP) {
        let refused = |why: &str| {
            log::warn(&format!("{UDP}={udp} {why}"));
            Errno::INVAL
        };
        let socket: SocketAddr = udp.parse().map_err(|_| refused("is no IP address and port"))?;
        // Others are told it: it is a part of each endpoint's address.
        if socket.ip().is_unspecified() {
            return Err(refused(
                "is no address that others reach: name one of this machine",
            ));
        }
        builder = builder.udp(udp);
        if let Some(file) = variable(KEY_FILE) {
            let key = ClusterKey::read_file(&file).map_err(|error| {
                log::warn(&format!("{KEY_FILE}={file}: {error}"));
                Errno::INVAL
            })?;
            builder = builder.key(key);
        }
        if variable(INSECURE).is_some_and(|value| value == "1") {
            builder = builder.insecure();
        }
    }
    builder.start().map_err(|error| {
        log::warn(&format!("no node: {error}"));
        Errno::NODATA
    })
}
