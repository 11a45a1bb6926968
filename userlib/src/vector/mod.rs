//! Several pieces of local memory and several places of one node, as one operation (scatter and gather).
//!
//! What holds for every vector:
//!
//! - Every piece is checked before any is posted. A vector with a piece that is refused posts nothing.
//! - All pieces go to one node, to any imports of it: [`crate::Error::ForeignPiece`] otherwise. So they are one
//!   stream, with one order, one number, one end and one failure.
//! - A piece of no bytes is none. A vector without pieces is nothing, but its fence and its notification.
//! - Where pieces overlap at the node, which of them is seen there afterwards is open, byte by byte, unless the vector is ordered:
//!   then pieces act one after the other.
//! - A call that waits takes as many pieces as there are, and posts them as room comes. One that does not wait posts all or nothing:
//!   up to 64 messages, and as many staged bytes as a chunk of staging holds.

mod packing;
mod read;
mod write;

pub use read::ReadVector;
pub use write::WriteVector;

use crate::error::{Error, Result};
use crate::import::{RemoteInner, RemoteSegment};
use crate::port::{Port, PortInner};
use netvm_abi::NodeId;
use std::sync::Arc;

impl Port {
    /// A write of several pieces as one operation: see [`WriteVector`].
    pub const fn write_vector(&self) -> WriteVector<'_> {
        WriteVector::new(self)
    }

    /// A read of several pieces as one operation: see [`ReadVector`].
    pub const fn read_vector<P>(&self) -> ReadVector<'_, P> {
        ReadVector::new(self)
    }
}

/// Checks that the pieces' imports are of this port and of one node. Gives the node, if there is a piece.
fn one_node<'a>(
    port: &Arc<PortInner>,
    imports: impl Iterator<Item = &'a RemoteSegment>,
) -> Result<Option<NodeId>> {
    let mut node = None;
    for (piece, import) in (0..).zip(imports.map(RemoteSegment::inner)) {
        let RemoteInner { node: its, .. } = import;
        if !Arc::ptr_eq(&import.port, port) || *node.get_or_insert(*its) != *its {
            return Err(Error::ForeignPiece { piece });
        }
    }
    Ok(node)
}
