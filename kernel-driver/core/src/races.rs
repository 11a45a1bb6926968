//! Page events against maps under way: sequence, fault without the lock, recheck, publish.
//!
//! A page that is being paged in may be taken away again before it is published. So a map takes a
//! look at a counter first, and publishes only if the counter has not moved and no page event is open.
//! Counters are kept for a hash of the page (small events) and for the port (large ones): an event
//! disturbs few maps of other pages, and costs the same however large its range is. A map that is
//! disturbed for nothing is only tried again.

use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::{PortId, Vpn};

/// Counters for page hashes.
const BUCKETS: usize = 1024;
/// Events of more pages are the port's.
const SMALL: u64 = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    events: u32,
    open: u32,
}

impl Clock {
    fn begin(&mut self) {
        self.events = self.events.wrapping_add(1);
        self.open = self.open.saturating_add(1);
    }

    fn end(&mut self) {
        self.open = self.open.saturating_sub(1);
    }
}

/// What a map saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    port: u32,
    page: u32,
}

pub(crate) struct Races<S: Storage> {
    ports: S::Table<Clock>,
    pages: S::Table<Clock>,
}

const fn bucket(vpn: Vpn) -> usize {
    (vpn.raw().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize
}

impl<S: MakeTable> Races<S> {
    pub(crate) fn new(tables: &mut S, ports: u16) -> Self {
        Self {
            ports: tables.table(usize::from(ports), |_| Clock::default()),
            pages: tables.table(BUCKETS, |_| Clock::default()),
        }
    }
}

impl<S: Storage> Races<S> {
    fn each(&mut self, first: Vpn, pages: u64, mut what: impl FnMut(&mut Clock)) {
        if pages > SMALL {
            if let Some(clock) = self.ports.get_mut(first.port().index()) {
                what(clock);
            }
            return;
        }
        for page in 0..pages {
            let vpn = Vpn::new(first.port(), first.page_number().wrapping_add(page));
            if let Some(clock) = self.pages.get_mut(bucket(vpn)) {
                what(clock);
            }
        }
    }

    /// A page event begins.
    pub(crate) fn begin(&mut self, first: Vpn, pages: u64) {
        self.each(first, pages, Clock::begin);
    }

    /// The same page event is over.
    pub(crate) fn end(&mut self, first: Vpn, pages: u64) {
        self.each(first, pages, Clock::end);
    }

    /// Looks; nothing while an event is open.
    pub(crate) fn look(&self, vpn: Vpn) -> Option<Look> {
        let port: PortId = vpn.port();
        let port = self.ports.get(port.index())?;
        let page = self.pages.get(bucket(vpn))?;
        (port.open == 0 && page.open == 0).then_some(Look {
            port: port.events,
            page: page.events,
        })
    }
}
