//! What this node's ports import.
use crate::attach::Host;
use crate::platform::Platform;
use netvm_abi::control::{Modes, Name};
use netvm_abi::storage::Storage;
use netvm_abi::{Nanos, NodeId, PortId, Token};

/// What to import.
#[derive(Clone, Copy, Debug)]
pub struct ImportSpec {
    /// The exporting node; this node itself too.
    pub node: NodeId,
    /// The exporting port.
    pub port: PortId,
    /// The export's name.
    pub name: Name,
    /// The modes wanted: the import is refused if one of them is not allowed.
    pub modes: Modes,
    /// When it must have succeeded.
    pub deadline: Nanos,
    /// Whether it waits (until the deadline) for a port or export that does not exist yet, and for a
    /// link that is not up; otherwise it fails at once.
    pub wait: bool,
}

/// Why an import cannot be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportError {
    /// The importing port is not open.
    NoSuchPort,
    /// No such node.
    NoSuchNode,
    /// The table is full.
    TableFull,
    /// No message can be sent at the moment (releases only): try again.
    Busy,
    /// The port has no such import.
    NoSuchImport,
    /// The card is dead.
    CardGone,
}

impl<S: Storage> Host<S> {
    /// Begins to import. The end comes as [`Notice::Imported`](crate::events::Notice::Imported).
    ///
    /// # Errors
    /// [`ImportError`].
    pub fn import<P: Platform>(
        &mut self,
        platform: &mut P,
        port: PortId,
        spec: &ImportSpec,
        now: Nanos,
    ) -> Result<Token, ImportError> {
        let _ = (platform.bar(), port, spec, now);
        Err(ImportError::NoSuchPort)
    }

    /// Lets go of an import, or gives up one that is pending (no notice comes then).
    ///
    /// # Errors
    /// [`ImportError::NoSuchImport`]; [`ImportError::Busy`].
    pub fn unimport<P: Platform>(
        &mut self,
        platform: &mut P,
        port: PortId,
        import: Token,
    ) -> Result<(), ImportError> {
        let _ = (platform.bar(), port, import);
        Err(ImportError::NoSuchImport)
    }
}
