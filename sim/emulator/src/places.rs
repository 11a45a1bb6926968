//! Which region of the pager lies where in which port's address space.

use std::collections::{BTreeMap, HashMap};
use std::sync::{PoisonError, RwLock};

use netvm_abi::{PortId, VirtAddr, Vpn};

use crate::vm::{PAGE_SIZE, PageIndex, PageKey, RegionId};

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
