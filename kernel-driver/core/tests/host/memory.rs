//! The platform of the tests: plain memory as BAR and shared memory, tables on the heap.

use crate::rig::NODE;
use netvm_abi::attach::CardHeader;
use netvm_abi::page_table::HashKey;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::words::SharedWords;
use netvm_abi::{BounceId, Geometry, Incarnation, WordIndex, bar};
use netvm_host::Platform;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Tables on the heap, and how many bytes they take.
pub(crate) struct Heap(pub(crate) usize);

impl Storage for Heap {
    type Table<T: 'static> = Box<[T]>;
}

impl MakeTable for Heap {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
        self.0 += len * size_of::<T>();
        (0..len).map(make).collect()
    }
}

/// NIC memory, which counts how often the host looks into it.
pub(crate) struct Bar {
    words: Arc<[AtomicU32]>,
    pub(crate) loads: Cell<u32>,
}

impl std::ops::Deref for Bar {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        &self.words
    }
}

impl SharedWords for Bar {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.loads.set(self.loads.get() + 1);
        self.words.load_acquire(at)
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        self.words.store_release(at, value);
    }

    fn full_barrier(&self) {
        self.words.full_barrier();
    }

    fn bus_barrier(&self) {
        self.loads.set(self.loads.get() + 1);
        self.words.bus_barrier();
    }
}

/// The platform of the tests.
pub(crate) struct Fake {
    pub(crate) bar: Bar,
    pub(crate) shared: Arc<[AtomicU32]>,
    pub(crate) bounce: HashMap<BounceId, Vec<u32>>,
    pub(crate) secrets: u64,
    pub(crate) wakes: u32,
}

impl Platform for Fake {
    type Bar = Bar;
    type Shared = [AtomicU32];

    fn bar(&self) -> &Bar {
        &self.bar
    }

    fn shared(&self) -> &[AtomicU32] {
        &self.shared
    }

    fn secret(&mut self) -> u64 {
        // Not secret at all: tests want to know it.
        self.secrets = self.secrets.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
        self.secrets
    }

    fn load_bounce(&mut self, bounce: BounceId, into: &mut [u32]) {
        let page = self.bounce.get(&bounce).cloned().unwrap_or_default();
        for (i, word) in into.iter_mut().enumerate() {
            *word = page.get(i).copied().unwrap_or(0);
        }
    }

    fn store_bounce(&mut self, bounce: BounceId, from: &[u32]) {
        let page = self.bounce.entry(bounce).or_default();
        let len = page.len().max(from.len());
        page.resize(len, 0);
        page[..from.len()].copy_from_slice(from);
    }

    fn wake_nic(&mut self) {
        self.wakes += 1;
    }
}

pub(crate) fn words(count: u32) -> Arc<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

pub(crate) fn boot(geometry: &Geometry, bar: &[AtomicU32], key: u64) {
    CardHeader {
        geometry: *geometry,
        node: NODE,
        incarnation: Incarnation(5),
        key: HashKey([key, 0x0F1E_2D3C_4B5A_6978]),
    }
    .publish(bar);
}

pub(crate) fn fake(geometry: &Geometry) -> Fake {
    let fake = Fake {
        bar: Bar {
            words: words(bar::BarMap::new(geometry).words),
            loads: Cell::new(0),
        },
        shared: words(SharedMap::new(geometry).words),
        bounce: HashMap::new(),
        secrets: 42,
        wakes: 0,
    };
    boot(geometry, &fake.bar, 0x1234_5678_9ABC_DEF0);
    fake
}
