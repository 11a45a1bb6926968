//! The address of an endpoint: 64 bytes that name a node, how to reach it, and one life of a port there.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;

use netvm::{NodeId, PortId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::fi::{Answer, Errno};

/// Bytes of an address.
pub(crate) const ADDRESS_BYTES: usize = size_of::<Address>();
/// The kind of address that `fi_info` names: one of this provider's own.
pub(crate) const FORMAT: u32 = crate::fi::FI_PROV_SPECIFIC | 0x4e56;
const MAGIC: u32 = 0x6d76_4e01;

/// An endpoint's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Address {
    magic: u32,
    node: u16,
    /// The port of its messages.
    messages: u16,
    /// The port of its domain's memory.
    memory: u16,
    udp_port: u16,
    spare: u32,
    /// Names the machine, its network namespace and the user: within these a node is found by its number.
    place: u64,
    /// Another one for each endpoint.
    life: u64,
    /// All zero: it has no UDP.
    udp_ip: [u8; 16],
}

const _: () = assert!(ADDRESS_BYTES == 48, "libfabric's users have room for 64 bytes");

impl Address {
    /// An endpoint of this process.
    pub(crate) fn new(
        node: NodeId,
        messages: PortId,
        memory: PortId,
        udp: Option<SocketAddr>,
        life: u64,
    ) -> Self {
        Self {
            magic: MAGIC,
            node: node.0,
            messages: messages.0,
            memory: memory.0,
            udp_port: udp.map_or(0, |udp| udp.port()),
            spare: 0,
            place: place(),
            life,
            udp_ip: udp.map_or([0; 16], |udp| as_ipv6(udp.ip()).octets()),
        }
    }

    /// What a program was given as an address.
    pub(crate) fn read(bytes: &[u8]) -> Answer<Self> {
        let address = Self::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
        (address.magic == MAGIC && address.spare == 0)
            .then_some(address)
            .ok_or(Errno::INVAL)
    }

    fn udp_ip(&self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from(self.udp_ip)).to_canonical()
    }

    pub(crate) const fn node(&self) -> NodeId {
        NodeId(self.node)
    }

    pub(crate) const fn messages(&self) -> PortId {
        PortId(self.messages)
    }

    pub(crate) const fn memory(&self) -> PortId {
        PortId(self.memory)
    }

    pub(crate) const fn life(&self) -> u64 {
        self.life
    }

    /// Whether it is a process of the same user that this one finds by its number.
    pub(crate) fn is_near(&self) -> bool {
        self.place == place()
    }

    /// What `SoftNode::connect` takes; nothing where there is no way.
    pub(crate) fn target(&self) -> Option<String> {
        if self.is_near() {
            return Some(format!("#{}", self.node));
        }
        (self.udp_port != 0).then(|| format!("udp://{}", SocketAddr::new(self.udp_ip(), self.udp_port)))
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        format!(
            "netvm://{}.{}.{}/{:016x}{:016x}",
            self.node, self.messages, self.memory, self.place, self.life
        )
    }
}

const fn as_ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// What processes that find each other by their numbers have in common.
fn place() -> u64 {
    static SHARES: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    place_of(*SHARES.get_or_init(crate::settings::may_share))
}

/// The machine, its network namespace (where node numbers are claimed) and the user, as one number. Where memory is not to be shared,
/// each process is a place of its own, a child of `fork`, too.
fn place_of(shares: bool) -> u64 {
    static USER: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let user = USER.get_or_init(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |data| data.ino());
        // SAFETY: a call without arguments that never fails.
        let user = u64::from(unsafe { libc::geteuid() });
        let parts = boot
            .into_iter()
            .chain(namespace.to_le_bytes())
            .chain(user.to_le_bytes());
        parts.collect()
    });
    let process = if shares { 0 } else { std::process::id() };
    let parts = user.iter().copied().chain(process.to_le_bytes());
    // FNV-1a: it only has to tell places apart.
    parts.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Numbers that no other process comes upon.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the buffer is this function's own and as long as said.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 {
        return u64::from_ne_bytes(bytes);
    }
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    (now.as_nanos() as u64) ^ (u64::from(std::process::id()) << 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        let udp = "10.0.0.1:4800".parse().unwrap();
        let mut address = Address::new(NodeId(3), PortId(4), PortId(5), Some(udp), 6);
        assert_eq!(Address::read(address.as_bytes()), Ok(address));
        assert_eq!(address.target().as_deref(), Some("#3"));
        address.place ^= 1;
        assert_eq!(address.target().as_deref(), Some("udp://10.0.0.1:4800"));
        address.udp_port = 0;
        assert_eq!(address.target(), None);
        assert_eq!(Address::read(&[0; ADDRESS_BYTES]), Err(Errno::INVAL));
        assert_eq!(Address::read(&[0; 7]), Err(Errno::INVAL));
    }

    #[test]
    fn a_process_that_shares_no_memory_is_a_place_of_its_own() {
        assert_eq!(place_of(true), place_of(true));
        assert_ne!(place_of(true), place_of(false));
    }
}
