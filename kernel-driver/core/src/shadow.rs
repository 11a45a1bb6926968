//! Mapping pages: rows, quota, displacement.
use crate::attach::Host;
use crate::platform::{PageGone, Platform, Resident};
use netvm_abi::page_lock::{Clear, PageUse};
use netvm_abi::storage::Storage;
use netvm_abi::{SegmentId, Vpn};

/// A look at the page events before a page is paged in; [`Host::map_commit`] publishes only if none
/// of them concerned the page meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapTicket {
    /// The page.
    pub vpn: Vpn,
    /// Its segment.
    pub segment: SegmentId,
    pub(crate) port_events: u32,
    pub(crate) page_events: u32,
}

/// Why a page was not mapped. None of these is an error of the application but the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The page is in no registered range of an open port.
    NotRegistered,
    /// It is being unmapped, or was since the ticket: page in again.
    Raced,
    /// Its row is full and the NIC uses every page that might be displaced, or the page itself is
    /// mapped differently and in use: copy this time.
    Busy,
    /// The card is dead.
    CardGone,
}

/// A page was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what happened to a displaced page must be marked"]
pub struct Mapped {
    /// What the entry displaced: another page of a full row, or an earlier entry of the same page.
    pub displaced: Option<PageGone>,
}

impl<S: Storage> Host<S> {
    /// Looks at the page events, before the platform pages in (or looks whether the page is there).
    ///
    /// # Errors
    /// [`MapError::NotRegistered`], [`MapError::Raced`], [`MapError::CardGone`].
    pub fn map_begin(&self, vpn: Vpn) -> Result<MapTicket, MapError> {
        let _ = vpn;
        Err(MapError::NotRegistered)
    }

    /// Publishes the page to the NIC if nothing happened to it since the ticket.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map_commit<P: Platform>(
        &mut self,
        platform: &mut P,
        ticket: MapTicket,
        page: Resident,
    ) -> Result<Mapped, MapError> {
        let _ = (platform.bar(), ticket, page);
        Err(MapError::NotRegistered)
    }

    /// Whether the NIC may use a page now, and whether it may write it.
    #[must_use]
    pub fn mapping(&self, vpn: Vpn) -> Option<Resident> {
        let _ = vpn;
        None
    }

    /// Reads and resets what the NIC did to a mapped page (see [`netvm_abi::page_lock::take_use`]). A
    /// page that it holds at this moment counts as referenced. `None`: it is not mapped.
    pub fn take_use<P: Platform>(&mut self, platform: &mut P, vpn: Vpn, clear: Clear) -> Option<PageUse> {
        let _ = (platform.bar(), vpn, clear);
        None
    }

    /// Pages that are mapped now.
    #[must_use]
    pub fn mapped_pages(&self) -> u32 {
        0
    }
}
