//! The participants' access to each other's words: the same ports that may join an object may write to them.
//!
//! The home's export has the list of the ports that may join. The other participants' words are in their own memory,
//! which each of them exports for itself; so the home keeps a copy of its list beside the object, and a port that joins
//! exports what it has to to those alone. A participant can change that copy as it can change the object: a port that
//! is let in can let in others.

use crate::backend::{Admission, Refusal};
use crate::error::{Error, Result};
use crate::export::Access;
use crate::region::Region;
use netvm_abi::control::Modes;
use netvm_abi::ioctl::{ALLOW_ENTRIES, ANY_NODE, ANY_PORT};
use netvm_abi::{NodeId, PortId, Status};

/// Bytes that a list takes in memory.
pub(super) const BYTES: u64 = ALLOW_ENTRIES as u64 * 8;

/// The list of an object: for each line node, port and modes, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights([u64; ALLOW_ENTRIES]);

impl Rights {
    /// Those that an export with this access gives.
    ///
    /// # Errors
    /// [`Error::Refused`] when there are more lines than an export may have.
    pub(super) fn of(access: &Access) -> Result<Self> {
        let admissions = access.admissions();
        let mut lines = [0; ALLOW_ENTRIES];
        if admissions.len() > ALLOW_ENTRIES {
            return Err(Error::Refused {
                what: "give access to this: a list may have 16 lines",
                reason: Refusal::Status(Status::TableFull),
            });
        }
        for (line, admission) in lines.iter_mut().zip(&admissions) {
            let node = admission.node.map_or(ANY_NODE, |node| node.0);
            let port = admission.port.map_or(ANY_PORT, |port| port.0);
            *line = u64::from(node) | u64::from(port) << 16 | u64::from(admission.modes.bits()) << 32;
        }
        Ok(Self(lines))
    }

    /// Puts them down in memory.
    pub(super) fn store(&self, memory: &Region, offset: u64) -> Result<()> {
        for (line, at) in self.0.iter().zip((offset..).step_by(8)) {
            memory.word64(at)?.store(*line)?;
        }
        Ok(())
    }

    /// From an object's memory. Whatever is there, it is a list.
    pub(super) fn from_bytes(bytes: &[u8; BYTES as usize]) -> Self {
        let mut lines = [0; ALLOW_ENTRIES];
        for (line, eight) in lines.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *line = u64::from_le_bytes(*eight);
        }
        Self(lines)
    }

    /// What a participant exports: ports that may change the object by atomics get `changers`, ports that may read the
    /// object get `readers`.
    pub(super) fn members(self, changers: Modes, readers: Modes) -> Access {
        let mut access = Access::nobody();
        for line in self.0 {
            let may = Modes::from_bits_truncate((line >> 32) as u16);
            let mut modes = Modes::empty();
            for (needed, gives) in [(Modes::ATOMIC, changers), (Modes::READ, readers)] {
                if may.contains(needed) {
                    modes |= gives;
                }
            }
            if !modes.is_empty() {
                let (node, port) = (line as u16, (line >> 16) as u16);
                access = access.and(Admission {
                    node: (node != ANY_NODE).then_some(NodeId(node)),
                    port: (port != ANY_PORT).then_some(PortId(port)),
                    modes,
                });
            }
        }
        access
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_admit_whom_the_object_admits() {
        let all = Modes::READ | Modes::WRITE | Modes::ATOMIC;
        let access = Access::everyone()
            .modes(Modes::READ)
            .and_node(NodeId(2), all)
            .and_port(NodeId(3), PortId(7), all);
        let rights = Rights::of(&access).unwrap();
        let bytes: Vec<u8> = rights.0.iter().flat_map(|line| line.to_le_bytes()).collect();
        let again = Rights::from_bytes(bytes.as_slice().try_into().unwrap());
        assert_eq!(again, rights);

        let theirs = again.members(Modes::WRITE, Modes::READ).admissions();
        let line = |node: Option<u16>, port: Option<u16>, modes| Admission {
            node: node.map(NodeId),
            port: port.map(PortId),
            modes,
        };
        assert_eq!(
            theirs,
            [
                line(Some(2), None, Modes::WRITE | Modes::READ),
                line(Some(3), Some(7), Modes::WRITE | Modes::READ),
                line(None, None, Modes::READ),
            ]
        );
    }

    #[test]
    fn a_list_has_an_end() {
        let mut access = Access::nobody();
        for node in 0..16 {
            access = access.and_node(NodeId(node), Modes::READ);
        }
        assert!(Rights::of(&access).is_ok());
        assert!(Rights::of(&access.and_node(NodeId(16), Modes::READ)).is_err());
    }

    #[test]
    fn an_empty_list_lets_no_port_in_and_nonsense_gives_no_more_than_it_says() {
        let none = Rights::of(&Access::nobody()).unwrap();
        assert!(none.members(Modes::all(), Modes::all()).admissions().is_empty());
        let nonsense = Rights([u64::MAX; ALLOW_ENTRIES]);
        let all = nonsense.members(Modes::WRITE, Modes::READ).admissions();
        assert!(all.iter().all(|line| line.modes == Modes::WRITE | Modes::READ));
    }
}
