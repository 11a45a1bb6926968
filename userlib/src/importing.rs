//! An import under way.

use crate::beside::PendingCall;
use crate::error::{Error, Result};
use crate::import::{RemoteSegment, import_while};
use crate::port::Port;
use crate::timeout::Timeout;
use netvm_abi::control::{Modes, Name};
use netvm_abi::{NodeId, PortId};
use std::sync::Arc;

/// An import under way. From [`Port::begin_import`]. Dropped before its end, it gives the import up; a grant that comes later is given
/// back.
pub type PendingImport = PendingCall<RemoteSegment>;

impl Port {
    /// Begins what [`import_with`](Self::import_with) does, and does not wait for it.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::NoSuchNode`], [`Error::PortClosed`], [`Error::PortEnded`]; [`Error::Refused`] where no thread
    /// can be made. Whatever else an import fails with, its end tells.
    pub fn begin_import(
        &self,
        node: NodeId,
        port: PortId,
        name: &str,
        modes: Modes,
        timeout: impl Into<Timeout>,
    ) -> Result<PendingImport> {
        self.begin_import_as(node, port, name, modes, timeout, Ok)
    }

    /// As [`begin_import`](Self::begin_import), and makes something else of what was imported.
    pub(crate) fn begin_import_as<T: Send + 'static>(
        &self,
        node: NodeId,
        port: PortId,
        name: &str,
        modes: Modes,
        timeout: impl Into<Timeout>,
        make: fn(RemoteSegment) -> Result<T>,
    ) -> Result<PendingCall<T>> {
        let inner = &self.inner;
        inner.alive()?;
        inner.check_node(node)?;
        Name::new(name).map_err(|_| Error::Name { name: name.into() })?;
        let (shared, name, timeout) = (Arc::clone(inner), name.to_owned(), timeout.into());
        let body = move |is_wanted: &dyn Fn() -> bool| {
            import_while(&shared, node, port, &name, modes, timeout, is_wanted).and_then(make)
        };
        PendingCall::begin(inner, "netvm-import", body, drop)
    }
}
