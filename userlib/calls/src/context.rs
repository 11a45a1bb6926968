//! What a called function is given.

use crate::core::Core;
use crate::link::{Address, Peer};
use crate::receive::Caller;
use crate::to::To;
use netvm::RegionSlice;

/// Where a called function stands: its caller, and the way to make calls of its own. These are packed or queued, and leave
/// when it has returned: a function never waits.
pub struct Context<'a> {
    core: &'a mut Core,
    caller: Caller,
}

impl<'a> Context<'a> {
    pub(crate) const fn new(core: &'a mut Core, caller: Caller) -> Self {
        Self { core, caller }
    }

    /// The link over which the call came; nothing if this endpoint has made it itself, in a broadcast.
    #[must_use]
    pub fn caller(&self) -> Option<Peer> {
        let at = self.caller.at;
        self.core.slots.get(at)?.link.as_ref()?;
        Some(self.core.peer(at))
    }

    /// Where the call came from. (A broadcast comes from the member that has passed it on.)
    #[must_use]
    pub const fn from(&self) -> Address {
        self.caller.from
    }

    /// The call's number: so many came over its link before.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.caller.number
    }

    /// This endpoint.
    #[must_use]
    pub fn here(&self) -> Address {
        self.core.here()
    }

    /// Calls over a link.
    pub const fn to(&mut self, peer: Peer) -> To<'_> {
        To::new(self.core, None, peer)
    }

    /// The link to an endpoint, if there is one.
    #[must_use]
    pub fn link_to(&self, to: Address) -> Option<Peer> {
        self.core.link_to(to)
    }
}

/// The buffer of a call.
#[derive(Debug)]
pub enum Buffer<'a> {
    /// It came with the call.
    Bytes(&'a [u8]),
    /// It was read from its caller's memory.
    Read(Vec<u8>),
    /// It lies where its caller has written it, in an export of this endpoint's port. Others with a right to that memory may
    /// change it at any time.
    Place(RegionSlice),
}

impl Buffer<'_> {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Read(bytes) => bytes.len() as u64,
            Self::Place(place) => place.len(),
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes, where nothing else can change them; nothing of a [`Place`](Self::Place).
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Read(bytes) => Some(bytes),
            Self::Place(_) => None,
        }
    }

    /// A copy of all of it.
    ///
    /// # Errors
    /// [`netvm::Error::Memory`].
    pub fn to_vec(&self) -> netvm::Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.to_vec()),
            Self::Read(bytes) => Ok(bytes.clone()),
            Self::Place(place) => {
                let mut bytes = vec![0; place.len() as usize];
                place.region().read_into(place.offset(), &mut bytes)?;
                Ok(bytes)
            }
        }
    }
}
