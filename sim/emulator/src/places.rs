//! What stands between pager, driver and card: which region lies where in which port's address space, and which frame the card
//! may use.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use netvm_abi::page_lock::Clear;
use netvm_abi::{Nanos, PortId, Ppn, VirtAddr, Vpn};
use netvm_host::Host;
use netvm_host::platform::{PageGone, Resident};
use netvm_host::unmap::UnmapKind;
use netvm_host_platform::unmap;
use netvm_process::{HostSide, Machine};
use netvm_soft::memory::Heap;

use crate::network::Network;
use crate::vm::{Frame, FrameTable, PAGE_SIZE, PageEvents, PageIndex, PageKey, RegionId};

#[derive(Clone, Copy, Debug)]
struct Place {
    region: RegionId,
    port: PortId,
    start: u64,
    pages: u64,
}

#[derive(Debug, Default)]
struct Tables {
    by_region: HashMap<RegionId, Place>,
    by_address: BTreeMap<(PortId, u64), Place>,
}

/// Translates between the pager's pages and the card's virtual page numbers. A leaf lock, held for a look-up only.
#[derive(Debug, Default)]
pub(crate) struct Places(RwLock<Tables>);

impl Places {
    pub(crate) fn add(&self, region: RegionId, port: PortId, start: VirtAddr, pages: u64) {
        let place = Place {
            region,
            port,
            start: start.0,
            pages,
        };
        let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
        tables.by_region.insert(region, place);
        tables.by_address.insert((port, start.0), place);
    }

    pub(crate) fn remove(&self, region: RegionId) {
        let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = tables.by_region.remove(&region) {
            tables.by_address.remove(&(place.port, place.start));
        }
    }

    /// The virtual page number under which the card may know a page.
    pub(crate) fn vpn(&self, key: PageKey) -> Option<Vpn> {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let place = tables.by_region.get(&key.region)?;
        Some(Vpn::of(
            place.port,
            VirtAddr(place.start + key.page.0 * PAGE_SIZE as u64),
        ))
    }

    /// The page that the card means.
    pub(crate) fn page(&self, vpn: Vpn) -> Option<PageKey> {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let address = vpn.address().0;
        let (_, place) = tables
            .by_address
            .range((vpn.port(), 0)..=(vpn.port(), address))
            .next_back()?;
        let page = (address - place.start) / PAGE_SIZE as u64;
        (page < place.pages).then_some(PageKey {
            region: place.region,
            page: PageIndex(page),
        })
    }
}

/// A node's card, and the frames that it may use.
pub(crate) struct EmulatedCard {
    pub(crate) network: Arc<Network>,
    pub(crate) node: usize,
    pub(crate) frames: Arc<FrameTable>,
    pub(crate) places: Arc<Places>,
}

impl EmulatedCard {
    /// Before a call of the core that may publish a page, under the lock: the frame, which cannot be evicted meanwhile, counts as
    /// the card's before the entry can be seen.
    pub(crate) fn before_publishing(&self, frame: Frame) {
        self.frames.set_mapped(frame);
    }

    /// A page left the card's table in that call. An earlier entry of the same page makes way for the new one: then the frame
    /// stays the card's.
    pub(crate) fn gone_for(&self, frame: Frame, gone: PageGone) {
        let replaced = frame_of(gone.ppn) == frame;
        self.page_gone(PageGone {
            still_readable: gone.still_readable || replaced,
            ..gone
        });
    }

    /// After that call, under the same lock.
    pub(crate) fn after_publishing(&self, host: &Host<Heap>, vpn: Vpn, frame: Frame) {
        if host.mapping(vpn).is_none() {
            self.frames.clear_mapped(frame);
        }
    }
}

fn frame_of(ppn: Ppn) -> Frame {
    Frame(u32::try_from(ppn.0).unwrap_or(u32::MAX))
}

pub(crate) fn ppn_of(frame: Frame) -> Ppn {
    Ppn(u64::from(frame.0))
}

impl Machine for EmulatedCard {
    fn now(&self) -> Nanos {
        self.network.now()
    }

    fn kick(&self) {
        self.network.kick(self.node);
    }

    fn spins_per_run(&self) -> Option<u32> {
        // The posting thread runs an inline card; a waiter looks after it only now and then, for late DMAs.
        (!self.network.is_threaded()).then_some(512)
    }

    fn halt(&self) {
        self.network.halt(self.node);
    }

    fn page_gone(&self, gone: PageGone) {
        let frame = frame_of(gone.ppn);
        if gone.dirty {
            self.frames.mark_dirty(frame);
        }
        if gone.referenced {
            self.frames.mark_referenced(frame);
        }
        // Last: a reader that sees the frame unmapped also sees its marks.
        if !gone.still_readable {
            self.frames.clear_mapped(frame);
        }
    }
}

impl PageEvents for HostSide<EmulatedCard> {
    fn resident(&self, key: PageKey, frame: Frame, writable: bool) {
        let Some(vpn) = self.machine.places.vpn(key) else {
            return;
        };
        self.with(|host, glue, _| {
            self.machine.before_publishing(frame);
            // A page that is not mapped now (a full row, say) is mapped when the card misses it.
            if let Ok(ticket) = host.map_begin(vpn)
                && let Ok(mapped) = host.map_commit(
                    glue,
                    ticket,
                    Resident {
                        ppn: ppn_of(frame),
                        frame: 0,
                        writable,
                    },
                )
                && let Some(gone) = mapped.displaced
            {
                self.machine.gone_for(frame, gone);
            }
            self.machine.after_publishing(host, vpn, frame);
        });
    }

    fn unmap(&self, key: PageKey, frame: Frame) {
        // The flag is set and cleared while the page cannot be evicted; a page that was never the card's needs no call.
        if !self.machine.frames.is_mapped(frame) {
            return;
        }
        let Some(vpn) = self.machine.places.vpn(key) else {
            return;
        };
        let begun = self.with(|host, _, _| host.unmap_begin(vpn, 1, UnmapKind::Remove));
        unmap::finish(self, begun, || {
            // A late DMA ends when its card runs.
            self.machine.kick();
            std::thread::yield_now();
        });
    }

    fn take_referenced(&self, key: PageKey, frame: Frame) -> bool {
        if !self.machine.frames.is_mapped(frame) {
            return false;
        }
        let Some(vpn) = self.machine.places.vpn(key) else {
            return false;
        };
        let used = self.with(|host, glue, _| host.take_use(glue, vpn, Clear::Referenced));
        used.is_some_and(|used| used.referenced)
    }

    fn region_removed(&self, region: RegionId) {
        self.machine.places.remove(region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_translate_both_ways_and_only_inside_their_port() {
        let places = Places::default();
        places.add(RegionId(4), PortId(2), VirtAddr(0x10_0000), 3);
        let key = PageKey {
            region: RegionId(4),
            page: PageIndex(2),
        };
        let vpn = places.vpn(key).unwrap();
        assert_eq!(vpn, Vpn::of(PortId(2), VirtAddr(0x10_2000)));
        assert_eq!(places.page(vpn), Some(key));
        assert_eq!(places.page(Vpn::of(PortId(2), VirtAddr(0x10_3000))), None);
        assert_eq!(places.page(Vpn::of(PortId(2), VirtAddr(0xF_F000))), None);
        assert_eq!(places.page(Vpn::of(PortId(1), VirtAddr(0x10_0000))), None);
        places.remove(RegionId(4));
        assert_eq!(places.page(vpn), None);
    }
}
