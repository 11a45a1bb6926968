//! The platform of the tests: plain memory as NIC memory and driver memory.

use super::NODE;
use crate::Words;
use netvm_abi::attach::CardHeader;
use netvm_abi::page_table::HashKey;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::{BounceId, Geometry, Incarnation, bar};
use netvm_host::Platform;
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;

/// The platform of the tests.
pub struct Fake {
    /// NIC memory.
    pub bar: Words,
    /// Driver memory.
    pub shared: Words,
    /// Bounce pages, as far as they were written.
    pub bounce: HashMap<BounceId, Vec<u32>>,
    /// From what the next secret follows.
    pub secrets: u64,
    /// How often the NIC was woken.
    pub wakes: u32,
    /// Whether it carries out atomics in place.
    pub in_place: bool,
}

impl Platform for Fake {
    type Bar = Words;
    type Shared = Words;

    fn bar(&self) -> &Words {
        &self.bar
    }

    fn shared(&self) -> &Words {
        &self.shared
    }

    fn applies_atomics(&self) -> bool {
        self.in_place
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

/// The card's firmware starts: it publishes its header.
pub fn boot(geometry: &Geometry, bar: &[AtomicU32], key: u64) {
    CardHeader {
        geometry: *geometry,
        node: NODE,
        incarnation: Incarnation(5),
        key: HashKey([key, 0x0F1E_2D3C_4B5A_6978]),
    }
    .publish(bar);
}

/// A platform whose card is up.
#[must_use]
pub fn fake(geometry: &Geometry) -> Fake {
    let fake = Fake {
        bar: Words::new(bar::BarMap::new(geometry).words),
        shared: Words::new(SharedMap::new(geometry).words),
        bounce: HashMap::new(),
        secrets: 42,
        wakes: 0,
        in_place: false,
    };
    boot(geometry, &fake.bar, 0x1234_5678_9ABC_DEF0);
    fake
}
