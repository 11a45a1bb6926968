//! Where the words of a lock and of a descriptor lie, and what names a member.

use super::super::rights;
use netvm_abi::{Generation, NodeId, NotificationId, PortId};

/// Bytes of a lock and of a descriptor: a cache line each.
pub(super) const LINE: u64 = 64;
/// Where the access list is, behind the lock.
pub(super) const RIGHTS: u64 = LINE;
/// Bytes that are exported. The local members' descriptors lie behind.
pub(super) const EXPORTED: u64 = RIGHTS + rights::BYTES;

/// Words of a lock.
pub(super) mod lock {
    /// Tail of the remote queue: the identifier of a remote member. NICs alone change it.
    pub(crate) const REMOTE_TAIL: u64 = 0;
    /// The budgets: of the local class in the lower half, of the remote class in the upper. Never 0.
    pub(crate) const BUDGETS: u64 = 8;
    /// Tail of the local queue: the number of a local descriptor. Processors alone change it.
    pub(crate) const LOCAL_TAIL: u64 = 16;
    /// The class that yields. All members write it, none reads it to write it.
    pub(crate) const VICTIM: u64 = 32;
    /// 0, or the member by whose death the lock is lost. Once it is set it stays.
    pub(crate) const LOST: u64 = 48;
}

/// Words of a descriptor.
pub(super) mod descriptor {
    /// The budget that came with the lock.
    pub(crate) const BUDGET: u64 = 0;
    /// Local: 1 while a handle has it. Remote: read by members that ask whether its owner lives.
    pub(crate) const TAKEN: u64 = 8;
    /// Local: 1 while its owner sleeps.
    pub(crate) const ASLEEP: u64 = 16;
    /// The successor.
    pub(crate) const NEXT: u64 = 32;
}

/// A remote member: a descriptor that a port exports, and the notification by which its owner is woken. No
/// other life of the port has the same. Never 0, because no notification is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MemberId(pub(super) u64);

impl MemberId {
    pub(super) const fn new(node: NodeId, port: PortId, number: NotificationId, life: Generation) -> Self {
        Self(
            node.0 as u64
                | (port.0 as u64) << 16
                | (number.0 as u16 as u64) << 32
                | (life.0 as u16 as u64) << 48,
        )
    }

    pub(super) const fn node(self) -> NodeId {
        NodeId(self.0 as u16)
    }

    pub(super) const fn port(self) -> PortId {
        PortId((self.0 >> 16) as u16)
    }

    pub(super) const fn number(self) -> NotificationId {
        NotificationId((self.0 >> 32) as u16 as u32)
    }

    /// The name under which its descriptor is exported.
    pub(super) fn name(self) -> String {
        format!("netvm/alock/{:016x}", self.0)
    }
}

/// The two budgets in one word.
pub(super) const fn budgets(local: u32, remote: u32) -> u64 {
    local as u64 | (remote as u64) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_named_whole() {
        let id = MemberId::new(
            NodeId(3),
            PortId(0x102),
            NotificationId(1022),
            Generation(0xABCD_0005),
        );
        assert_eq!(
            (id.node(), id.port(), id.number()),
            (NodeId(3), PortId(0x102), NotificationId(1022))
        );
        assert_eq!(id.name(), "netvm/alock/000503fe01020003");
        assert_ne!(
            id,
            MemberId::new(NodeId(3), PortId(0x102), NotificationId(1022), Generation(6))
        );
    }
}
