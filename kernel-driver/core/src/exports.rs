//! Names for ranges, and the lists of their importers (thesis 4.1.1, 10.2).
//!
//! An export is a name with a byte range, modes and an allow-list on a segment. Several exports may
//! overlap. Its *root capability* is what all its grants are derived from; it is written in no
//! NIC's table and leaves the exporter in no message.
//!
//! **The end of an export** (`unexport_begin`, then `unexport_step` until done): the name is free
//! at once; its grants are taken back ([`crate::revoke`]).

use crate::Progress;
use crate::host::Host;
use crate::lists::{Links, List, Sorted, linked};
use crate::platform::Platform;
use crate::shares::Shares;
use core::cmp::Ordering;
use netvm_abi::capability::Capability;
use netvm_abi::control::{Modes, NAME_BYTES, Name};
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::{ExportId, Nanos, NodeId, NotificationId, PortId, Status, VirtAddr};

/// Most entries of an allow-list.
pub const ALLOW_ENTRIES: usize = 16;
/// Grants taken back in one step.
const REVOKE_SLICE: u32 = 64;

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

/// The end of an export, driven by [`Host::unexport_step`].
#[derive(Debug)]
#[must_use = "an export ends by steps"]
pub struct Unexport {
    export: ExportId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Live,
    Ending,
}

#[derive(Debug)]
pub(crate) struct Export {
    state: State,
    generation: u16,
    name: [u8; NAME_BYTES],
    /// What its grants are derived from; holder and secret stay empty.
    root: Capability,
    allow: heapless::Vec<Allow, ALLOW_ENTRIES>,
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
    names: Sorted<S::Table<u32>>,
    free: List<1>,
    shares: Shares<S>,
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
    fn search(&self, port: PortId, name: &[u8; NAME_BYTES]) -> Result<usize, usize> {
        self.names.search(|index| {
            self.table.get(index as usize).map_or(Ordering::Less, |export| {
                (export.root.port, &export.name).cmp(&(port, name))
            })
        })
    }

    pub(crate) fn named(&self, port: PortId, name: &Name) -> Option<u32> {
        self.names.get(self.search(port, name.bytes()).ok()?)
    }

    fn index(&self, id: ExportId) -> Option<u32> {
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

impl<S: Storage> Host<S> {
    /// Gives a name to a range of a port's memory. The cost does not grow with its size.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn export(&mut self, port: PortId, spec: &ExportSpec<'_>) -> Result<ExportId, ExportError> {
        if !self.port_is_open(port) {
            return Err(ExportError::NoSuchPort);
        }
        if spec.len == 0 {
            return Err(ExportError::Empty);
        }
        let notifies = spec.modes.contains(Modes::NOTIFY);
        if notifies && (!spec.notify_first.is_some() || spec.notify_first > spec.notify_last) {
            return Err(ExportError::BadNotifications);
        }
        let end = VirtAddr(spec.start.0.saturating_add(spec.len));
        let (mut modes, queue) = (spec.modes, spec.queue);
        let fits = queue.places(spec.start, end).is_some() && !queue.notification().is_one_shot();
        if queue.is_some() && !(fits && modes.contains(Modes::APPEND)) {
            return Err(ExportError::BadQueue);
        }
        if !queue.is_some() {
            modes.remove(Modes::APPEND);
        }
        let allow = heapless::Vec::from_slice(spec.allow).map_err(|_| ExportError::TooManyAllowed)?;
        let (segment, _) = self
            .segments
            .holding(port, spec.start, spec.len)
            .ok_or(ExportError::NotRegistered)?;
        let exports = &mut self.exports;
        let at = match exports.search(port, spec.name.bytes()) {
            Err(at) => at,
            Ok(at) => {
                let taken = exports.names.get(at).unwrap_or(0);
                return Err(ExportError::NameTaken(exports.id(taken)));
            }
        };
        if !exports.shares.take(port) {
            return Err(ExportError::TableFull);
        }
        let index = exports
            .free
            .pop_front(&mut exports.table)
            .ok_or(ExportError::TableFull)?;
        if let Some(export) = exports.table.get_mut(index as usize) {
            export.state = State::Live;
            export.name = *spec.name.bytes();
            export.allow = allow;
            export.root = Capability {
                port,
                modes,
                segment,
                start: spec.start,
                end,
                queue,
                notify_first: if notifies {
                    spec.notify_first
                } else {
                    NotificationId::NONE
                },
                notify_last: if notifies {
                    spec.notify_last
                } else {
                    NotificationId::NONE
                },
                ..Capability::NOTHING
            };
        }
        exports.names.insert(at, index);
        if let Some(segment) = self.segments.get(segment) {
            segment.exports.push_back(&mut exports.table, index);
        }
        self.counters.exports += 1;
        Ok(self.exports.id(index))
    }

    /// Begins to end an export: the name is free at once, its grants are revoked.
    ///
    /// # Errors
    /// [`ExportError::NoSuchExport`].
    pub fn unexport_begin(&mut self, port: PortId, export: ExportId) -> Result<Unexport, ExportError> {
        let index = self
            .exports
            .index(export)
            .filter(|&index| {
                let entry = self.exports.table.get(index as usize);
                entry.is_some_and(|entry| entry.root.port == port)
            })
            .ok_or(ExportError::NoSuchExport)?;
        self.unname(index);
        Ok(Unexport { export })
    }

    /// Goes on ending it. When done, DMAs authorised earlier are over, and bounced or parked
    /// messages that name one of its grants are refused (promise P5).
    pub fn unexport_step<P: Platform>(
        &mut self,
        platform: &mut P,
        unexport: &mut Unexport,
        now: Nanos,
    ) -> Progress {
        match self.exports.index(unexport.export) {
            Some(index) => self.end_export(platform, index, now),
            None => Progress::Done,
        }
    }

    fn unname(&mut self, index: u32) {
        let Some(export) = self.exports.table.get_mut(index as usize) else {
            return;
        };
        if export.state != State::Live {
            return;
        }
        export.state = State::Ending;
        let (port, name) = (export.root.port, export.name);
        if let Ok(at) = self.exports.search(port, &name) {
            self.exports.names.remove(at);
        }
    }

    /// One step of the end of an export; several callers may drive it at once.
    pub(crate) fn end_export<P: Platform>(&mut self, platform: &mut P, index: u32, now: Nanos) -> Progress {
        self.unname(index);
        for _ in 0..REVOKE_SLICE {
            let first = self.exports.table.get(index as usize);
            let Some(grant) = first.and_then(|export| export.grants.first()) else {
                break;
            };
            self.retract_grant(platform, grant, true);
        }
        self.request_barrier(platform, now);
        self.reap();
        let Some(export) = self.exports.table.get_mut(index as usize) else {
            return Progress::Done;
        };
        if !export.grants.is_empty() {
            return Progress::Again;
        }
        if export.ending > 0 {
            return Progress::Wait;
        }
        export.state = State::Free;
        export.generation = export.generation.wrapping_add(1);
        let (port, segment) = (export.root.port, export.root.segment);
        if let Some(segment) = self.segments.get(segment) {
            segment.exports.remove(&mut self.exports.table, index);
        }
        self.exports.free.push_back(&mut self.exports.table, index);
        self.exports.shares.give(port);
        self.counters.unexports += 1;
        Progress::Done
    }
}
