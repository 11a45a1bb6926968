//! Mapping pages: a ticket before the page is looked for, and its publication.

use super::Host;
use crate::card::CardFailure;
use crate::platform::{Platform, Resident};
use crate::shadow::{MapError, MapTicket, Mapped, Out, SlotState};
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::page_lock::{Clear, PageUse};
use netvm_abi::page_table::PageEntry;
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{SegmentId, Vpn};

impl<S: Storage> Host<S> {
    /// Looks at the page events, before the platform pages in (or looks whether the page is there).
    ///
    /// # Errors
    /// [`MapError::NotRegistered`], [`MapError::Raced`], [`MapError::CardGone`].
    pub fn map_begin(&self, vpn: Vpn) -> Result<MapTicket, MapError> {
        self.map_begin_near(None, vpn)
    }

    /// The same for a page that is likely to be in the segment `near`.
    pub(crate) fn map_begin_near(&self, near: Option<SegmentId>, vpn: Vpn) -> Result<MapTicket, MapError> {
        if !self.is_alive() {
            return Err(MapError::CardGone);
        }
        if !self.port_is_open(vpn.port()) {
            return Err(MapError::NotRegistered);
        }
        let segment = self
            .segments
            .holding_near(near, vpn.port(), vpn.address())
            .ok_or(MapError::NotRegistered)?;
        let look = self.races.look(vpn).ok_or(MapError::Raced)?;
        Ok(MapTicket { vpn, segment, look })
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
        let vpn = ticket.vpn;
        let result = self.map_now(platform, ticket, page);
        match &result {
            Ok(Mapped { displaced }) => {
                match displaced {
                    Some(gone) if gone.vpn == vpn => self.counters.pages_replaced += 1,
                    Some(gone) if gone.still_readable => self.counters.pages_moved += 1,
                    Some(_) => self.counters.pages_displaced += 1,
                    None => {}
                }
                if displaced.is_some_and(|gone| gone.dirty) {
                    self.counters.pages_dirty += 1;
                }
            }
            Err(MapError::Raced) => self.counters.map_races += 1,
            Err(MapError::Busy) => self.counters.map_rows_busy += 1,
            Err(MapError::CardGone) => self.fail(CardFailure::AllOnes),
            Err(MapError::NotRegistered) => {}
        }
        result
    }

    fn map_now<P: Platform>(
        &mut self,
        platform: &mut P,
        ticket: MapTicket,
        page: Resident,
    ) -> Result<Mapped, MapError> {
        let vpn = ticket.vpn;
        let now = self.map_begin_near(Some(ticket.segment), vpn)?;
        if now.segment != ticket.segment {
            return Err(MapError::NotRegistered);
        }
        if now.look != ticket.look && !mutant::is(Mutant::RaceUnseen) {
            return Err(MapError::Raced);
        }
        let bar = platform.bar();
        let entry = PageEntry {
            vpn,
            ppn: page.ppn,
            segment: ticket.segment,
            writable: page.writable || mutant::is(Mutant::MapsForWriting),
        };
        let earlier = self.shadow.find(vpn).map(|(at, slot)| (at, *slot));
        let (at, displaced) = match earlier {
            Some((_, slot)) if slot.state == SlotState::Zapped => return Err(MapError::Raced),
            Some((_, slot)) if slot.ppn == page.ppn && slot.writable == page.writable => {
                self.counters.pages_already_mapped += 1;
                return Ok(Mapped { displaced: None });
            }
            Some((at, _)) => match self.shadow.take_out_now(bar, at) {
                Out::Gone(gone, _) => (at, Some(gone)),
                Out::InUse(_) => return Err(MapError::Busy),
                Out::CardGone => return Err(MapError::CardGone),
            },
            None => self.shadow.make_room(bar, vpn)?,
        };
        self.shadow.fill(bar, at, &entry, page.frame);
        self.counters.pages_mapped += 1;
        Ok(Mapped { displaced })
    }

    /// Whether the NIC may use a page now, and whether it may write it.
    #[must_use]
    pub fn mapping(&self, vpn: Vpn) -> Option<Resident> {
        let (_, slot) = self.shadow.find(vpn)?;
        (slot.state == SlotState::Mapped).then_some(Resident {
            ppn: slot.ppn,
            frame: slot.frame,
            writable: slot.writable,
        })
    }

    /// Reads and resets what the NIC did to a mapped page (see [`netvm_abi::page_lock::take_use`]). A
    /// page that it holds at this moment counts as referenced. `None`: it is not mapped.
    pub fn take_use<P: Platform>(&mut self, platform: &mut P, vpn: Vpn, clear: Clear) -> Option<PageUse> {
        self.shadow.find(vpn)?;
        Some(self.take_use_of(platform, vpn, 1, clear))
    }

    /// The same for `pages` pages from `first` on, all in one answer: what was done to any of them. Reads one word for each
    /// page that is mapped, and one more across the bus if a mark is reset, however many are.
    pub fn take_use_of<P: Platform>(
        &mut self,
        platform: &mut P,
        first: Vpn,
        pages: u64,
        clear: Clear,
    ) -> PageUse {
        let mut all = PageUse::default();
        let mut posted = false;
        for page in first.page_number()..first.page_number().saturating_add(pages) {
            let Some((at, slot)) = self.shadow.find(Vpn::new(first.port(), page)) else {
                continue;
            };
            let used = if self.is_alive() {
                let (used, toggled) = self.shadow.ask(platform.bar(), at, clear);
                posted |= toggled;
                used
            } else {
                PageUse {
                    dirty: slot.writable,
                    referenced: true,
                    held: false,
                }
            };
            all.dirty |= used.dirty;
            all.referenced |= used.referenced;
            all.held |= used.held;
        }
        if posted {
            // For all toggles at once: each was posted before this read, and no caller has acted on an answer yet.
            platform.bar().bus_barrier();
        }
        all
    }

    /// Pages that are mapped now.
    #[must_use]
    pub fn mapped_pages(&self) -> u32 {
        self.shadow.mapped()
    }
}
