//! Port numbers and their generations.
use crate::Progress;
use crate::attach::Host;
use crate::platform::{PageGone, Platform};
use netvm_abi::storage::Storage;
use netvm_abi::{Generation, Nanos, PortId};

/// An open port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPort {
    /// Its number.
    pub port: PortId,
    /// Distinguishes it from earlier owners of the number.
    pub generation: Generation,
}

/// Why a port cannot be opened or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortError {
    /// The number is out of range, or 0, which is the driver's.
    NoSuchPort,
    /// Somebody has it, or its last owner is not cleaned up yet.
    InUse,
    /// All ports are in use.
    AllInUse,
    /// The card is dead.
    CardGone,
}

/// The closing of a port, driven by [`Host::port_close_step`].
#[derive(Debug)]
#[must_use = "a port is closed by steps"]
pub struct PortClose {
    /// The port.
    pub port: PortId,
}

impl<S: Storage> Host<S> {
    /// Opens a port: a given one, or the lowest free one. Clears its block in NIC memory and its
    /// area in shared memory, and tells the NIC.
    ///
    /// # Errors
    /// [`PortError`].
    pub fn port_open<P: Platform>(
        &mut self,
        platform: &mut P,
        wanted: Option<PortId>,
        now: Nanos,
    ) -> Result<OpenPort, PortError> {
        let _ = (platform.bar(), wanted, now);
        Err(PortError::AllInUse)
    }

    /// Begins to close a port, also one whose process has died: nothing new is accepted for it.
    ///
    /// # Errors
    /// [`PortError::NoSuchPort`] when it is not open in this generation.
    pub fn port_close_begin<P: Platform>(
        &mut self,
        platform: &mut P,
        port: OpenPort,
        now: Nanos,
    ) -> Result<PortClose, PortError> {
        let _ = (platform.bar(), now);
        Ok(PortClose { port: port.port })
    }

    /// Goes on closing it: revokes its grants, unmaps its pages (at most `budget` of them in this
    /// step, each told to `gone`), releases its imports, waits for the NIC and for paging workers.
    /// When done, the number may be opened again.
    pub fn port_close_step<P: Platform>(
        &mut self,
        platform: &mut P,
        close: &mut PortClose,
        now: Nanos,
        budget: u32,
        gone: &mut impl FnMut(PageGone),
    ) -> Progress {
        let _ = (platform.bar(), close, now, budget, gone);
        Progress::Done
    }
}
