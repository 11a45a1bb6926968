//! Names for ranges, and the lists of their importers (thesis 4.1.1, 10.2).
//!
//! An export is a name with a byte range, modes and an allow-list on a segment. Several exports may
//! overlap. Its *root capability* is what all its grants are derived from; it is written in no
//! NIC's table and leaves the exporter in no message.
//!
//! **The end of an export** (`unexport_begin`, then `unexport_step` until done): the name is free
//! at once; its grants are taken back ([`crate::revoke`]).

use crate::lists::{Links, List, Sorted, linked};
use crate::shares::Shares;
use core::cmp::Ordering;
use netvm_abi::capability::Capability;
use netvm_abi::control::{Modes, NAME_BYTES, Name};
pub use netvm_abi::ioctl::ALLOW_ENTRIES;
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::{ExportId, NodeId, NotificationId, PortId, Status, VirtAddr};

/// An entry of an allow-list; `None` matches any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allow {
    /// The importing node.
    pub node: Option<NodeId>,
    /// The importing port.
    pub port: Option<PortId>,
    /// The modes that this importer may have, of those that the export has.
    pub modes: Modes,
}

/// What to export. The bytes must lie in one segment of the port.
#[derive(Clone, Copy, Debug)]
pub struct ExportSpec<'a> {
    /// The name, unique in the port.
    pub name: Name,
    /// First byte.
    pub start: VirtAddr,
    /// Number of bytes, not 0.
    pub len: u64,
    /// What importers may do at most.
    pub modes: Modes,
    /// Lowest notification number that they may use (with [`Modes::NOTIFY`]).
    pub notify_first: NotificationId,
    /// Highest notification number that they may use.
    pub notify_last: NotificationId,
    /// The shared queue that the range is; without one no importer gets [`Modes::APPEND`].
    pub queue: QueueShape,
    /// The ports that may import; an empty list lets none. At most [`ALLOW_ENTRIES`].
    pub allow: &'a [Allow],
}

/// Why a range cannot be exported, or an export not be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// The port is not open.
    NoSuchPort,
    /// It has no byte.
    Empty,
    /// It is not inside one segment of the port.
    NotRegistered,
    /// The port exports another range under that name.
    NameTaken(ExportId),
    /// The notification range is empty, or starts at 0.
    BadNotifications,
    /// Its queue is none: entries must fill the range and be aligned to their size, their number a power of two of at
    /// most 1,024, what they raise an event count, and the modes have [`Modes::APPEND`].
    BadQueue,
    /// The allow-list has too many entries.
    TooManyAllowed,
    /// The table is full, except for the shares of other ports.
    TableFull,
    /// The port has no such export.
    NoSuchExport,
}

/// The end of an export, driven by [`Host::unexport_step`](crate::Host::unexport_step).
#[derive(Debug)]
#[must_use = "an export ends by steps"]
pub struct Unexport {
    pub(crate) export: ExportId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Live,
    Ending,
}

#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) state: State,
    pub(crate) generation: u16,
    pub(crate) name: [u8; NAME_BYTES],
    /// What its grants are derived from; holder and secret stay empty.
    pub(crate) root: Capability,
    pub(crate) allow: heapless::Vec<Allow, ALLOW_ENTRIES>,
    /// Grants that work.
    pub(crate) grants: List<0>,
    /// Grants that are being taken back.
    pub(crate) ending: u32,
    of_segment: Links,
    free: Links,
}

linked!(Export: 0 => of_segment, 1 => free);

pub(crate) struct Exports<S: Storage> {
    pub(crate) table: S::Table<Export>,
    /// Live exports by port and name.
    pub(crate) names: Sorted<S::Table<u32>>,
    pub(crate) free: List<1>,
    pub(crate) shares: Shares<S>,
}

const fn id_of(index: u32, generation: u16) -> ExportId {
    ExportId(index | ((generation as u32) << 16))
}

impl<S: MakeTable> Exports<S> {
    pub(crate) fn new(tables: &mut S, entries: u32, ports: u16) -> Self {
        let mut table = tables.table(entries as usize, |_| Export {
            state: State::Free,
            generation: 1,
            name: [0; NAME_BYTES],
            root: Capability::NOTHING,
            allow: heapless::Vec::new(),
            grants: List::EMPTY,
            ending: 0,
            of_segment: Links::NONE,
            free: Links::NONE,
        });
        let free = List::of_all(&mut table);
        Self {
            table,
            names: Sorted::new(tables.table(entries as usize, |_| 0)),
            free,
            shares: Shares::new(tables, entries, ports),
        }
    }
}

impl<S: Storage> Exports<S> {
    pub(crate) fn search(&self, port: PortId, name: &[u8; NAME_BYTES]) -> Result<usize, usize> {
        self.names.search(|index| {
            self.table.get(index as usize).map_or(Ordering::Less, |export| {
                (export.root.port, &export.name).cmp(&(port, name))
            })
        })
    }

    pub(crate) fn named(&self, port: PortId, name: &Name) -> Option<u32> {
        self.names.get(self.search(port, name.bytes()).ok()?)
    }

    pub(crate) fn index(&self, id: ExportId) -> Option<u32> {
        let export = self.table.get((id.0 & 0xFFFF) as usize)?;
        let same = u32::from(export.generation) == id.0 >> 16;
        (same && export.state != State::Free).then_some(id.0 & 0xFFFF)
    }

    pub(crate) fn live(&self, id: ExportId) -> Option<&Export> {
        self.table.get(self.index(id)? as usize)
    }

    pub(crate) fn id(&self, index: u32) -> ExportId {
        let generation = self
            .table
            .get(index as usize)
            .map_or(0, |export| export.generation);
        id_of(index, generation)
    }

    /// A capability for an importer, without its secret: what the root, the allow-list and the request
    /// all give.
    ///
    /// # Errors
    /// [`Status::NotAllowed`] when that is nothing.
    pub(crate) fn derive(
        &self,
        index: u32,
        holder: NodeId,
        holder_port: PortId,
        wanted: Modes,
    ) -> Result<Capability, Status> {
        let export = self.table.get(index as usize).ok_or(Status::NoSuchExport)?;
        let allowed = export
            .allow
            .iter()
            .filter(|allow| allow.node.is_none_or(|node| node == holder))
            .filter(|allow| allow.port.is_none_or(|port| port == holder_port))
            .fold(Modes::empty(), |modes, allow| modes | allow.modes);
        let modes = wanted & allowed & export.root.modes;
        if modes.is_empty() {
            return Err(Status::NotAllowed);
        }
        let mut derived = Capability {
            holder,
            holder_port,
            modes,
            ..export.root
        };
        if !modes.contains(Modes::APPEND) {
            derived.queue = QueueShape::NONE;
        }
        if !modes.contains(Modes::NOTIFY) {
            derived.notify_first = NotificationId::NONE;
            derived.notify_last = NotificationId::NONE;
        }
        Ok(derived)
    }
}
