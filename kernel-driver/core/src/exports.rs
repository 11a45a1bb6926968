//! Names for ranges, and who may import them.
use crate::Progress;
use crate::attach::Host;
use crate::platform::Platform;
use netvm_abi::control::{Modes, Name};
use netvm_abi::storage::Storage;
use netvm_abi::{ExportId, Nanos, NodeId, NotificationId, PortId, VirtAddr};

/// Most entries of an allow-list.
pub const ALLOW_ENTRIES: usize = 16;

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
    /// Who may import; an empty list: nobody. At most [`ALLOW_ENTRIES`].
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
    /// The allow-list has too many entries.
    TooManyAllowed,
    /// The table is full.
    TableFull,
    /// The port has no such export.
    NoSuchExport,
}

/// The end of an export, driven by [`Host::unexport_step`].
#[derive(Debug)]
#[must_use = "an export ends by steps"]
pub struct Unexport {
    /// The export.
    pub export: ExportId,
}

impl<S: Storage> Host<S> {
    /// Gives a name to a range of a port's memory. The cost does not grow with its size.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn export(&mut self, port: PortId, spec: &ExportSpec<'_>) -> Result<ExportId, ExportError> {
        let _ = (port, spec);
        Err(ExportError::NoSuchPort)
    }

    /// Begins to end an export: the name is free at once, its grants are revoked.
    ///
    /// # Errors
    /// [`ExportError::NoSuchExport`].
    pub fn unexport_begin<P: Platform>(
        &mut self,
        platform: &mut P,
        port: PortId,
        export: ExportId,
        now: Nanos,
    ) -> Result<Unexport, ExportError> {
        let _ = (platform.bar(), port, now);
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
        let _ = (platform.bar(), unexport, now);
        Progress::Done
    }
}
