//! A page's marks where the host's stores lag behind on the bus: each use counts for one of two questions.

use netvm_abi::bar::BarMap;
use netvm_abi::page_lock::{self, Clear, PageUse, Used};
use netvm_abi::page_table::{HashKey, PageEntry, PageTable};
use netvm_abi::words::SharedWords;
use netvm_abi::{Geometry, PortId, Ppn, SegmentId, VirtAddr, Vpn, WordIndex};
use netvm_kit::{Hook, Words};
use std::sync::atomic::AtomicU32;

/// NIC memory as the host sees it: a store stays on the bus until the host's next read pushes it on.
#[derive(Default)]
struct AcrossTheBus {
    posted: Vec<(WordIndex, u32)>,
}

impl Hook for AcrossTheBus {
    fn load(&mut self, memory: &[AtomicU32], at: WordIndex) -> u32 {
        self.bus_barrier(memory);
        memory.load_acquire(at)
    }

    fn store(&mut self, _: &[AtomicU32], at: WordIndex, value: u32) {
        self.posted.push((at, value));
    }

    fn bus_barrier(&mut self, memory: &[AtomicU32]) {
        for (at, value) in self.posted.drain(..) {
            memory.store_release(at, value);
        }
    }
}

#[test]
fn a_use_right_after_a_question_counts_for_the_next_one() {
    let geometry = Geometry::default();
    let table = PageTable::of(&geometry, HashKey::default());
    let host = Words::new(BarMap::new(&geometry).words);
    host.hook(AcrossTheBus::default());
    let card = &*host;
    let entry = PageEntry {
        vpn: Vpn::of(PortId(1), VirtAddr(0x1000)),
        ppn: Ppn(7),
        segment: SegmentId(1),
        writable: true,
    };
    let [slot, ..] = table.places(entry.vpn);
    let use_page = |used| {
        let locked = page_lock::lock_page(card, &table, entry.vpn, true).expect("it is mapped");
        page_lock::unlock_page(card, &table, locked.slot, used);
    };
    page_lock::publish(&host, &table, slot, &entry);
    host.bus_barrier();
    for (used, clear) in [
        (Used::Read, Clear::Referenced),
        (Used::Written, Clear::Dirty),
        (Used::Written, Clear::Both),
    ] {
        let of = |found: PageUse| match clear {
            Clear::Dirty => found.dirty,
            _ => found.referenced,
        };
        let ask = || page_lock::take_use(&host, &table, slot, clear);
        ask();
        use_page(used);
        assert!(of(ask()), "{clear:?}: a use before the question");
        use_page(used);
        assert!(of(ask()), "{clear:?}: a use between two questions");
        assert!(!of(ask()), "{clear:?}: no use since");
    }
}
