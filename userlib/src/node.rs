//! A node: where ports are opened.

use crate::backend::Backend;
use netvm_abi::{Geometry, NodeId};
use std::fmt;
use std::sync::Arc;

/// One node of the network, through whichever back end reaches it. Cheap to clone.
#[derive(Clone)]
pub struct Node {
    backend: Arc<dyn Backend>,
}

impl Node {
    /// Wraps a back end.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.backend.node()
    }

    /// What it wraps: for a back end that stands before another one.
    #[must_use]
    pub const fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Sizes of its NIC.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.backend.geometry()
    }

    /// The back end's name: `"emulator"`, `"simulator"`, `"device"`, `"soft"`.
    #[must_use]
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({}, {})", self.id(), self.backend_name())
    }
}
