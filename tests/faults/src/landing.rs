//! Which bytes of pages may change, and to what: a target notes what each message may do, by a rule of its own, and
//! compares in the end.

use crate::bytes::{Bytes, original};
use netvm_abi::{PAGE_SIZE, PortId, VirtAddr, Vpn};
use std::collections::{HashMap, HashSet};

/// A byte of a page.
type Place = (u64, usize);

/// What may have landed, byte by byte.
#[derive(Default)]
pub struct Landing {
    /// Beside what the page held at first.
    may: HashMap<Place, Vec<u8>>,
    /// Anything may be there.
    any: HashSet<Place>,
    /// What was there at first must be there no more.
    must: HashSet<Place>,
}

fn places(port: PortId, address: VirtAddr, len: usize) -> impl Iterator<Item = Place> {
    let (vpn, first) = (Vpn::of(port, address).raw(), usize::from(address.page_offset().0));
    assert!(first + len <= PAGE_SIZE as usize, "a message stays in its page");
    (first..first + len).map(move |at| (vpn, at))
}

impl Landing {
    /// These bytes may land there.
    pub fn may(&mut self, port: PortId, address: VirtAddr, bytes: &[u8]) {
        for (place, &byte) in places(port, address, bytes.len()).zip(bytes) {
            self.may.entry(place).or_default().push(byte);
        }
    }

    /// Something lands there for certain.
    pub fn must(&mut self, port: PortId, address: VirtAddr, len: usize) {
        self.must.extend(places(port, address, len));
    }

    /// Anything may land there.
    pub fn any(&mut self, port: PortId, address: VirtAddr, len: usize) {
        self.any.extend(places(port, address, len));
    }

    fn has_landed(&self, place: Place, byte: u8) -> bool {
        self.any.contains(&place) || self.may.get(&place).is_some_and(|may| may.contains(&byte))
    }

    /// Nothing lies where it may not; and what must have landed has, if that is asked for.
    pub fn check(&self, bytes: &mut Bytes, landed: bool) {
        for (vpn, page) in bytes.touched() {
            for (at, &byte) in page.iter().enumerate() {
                let place = (vpn.raw(), at);
                assert!(
                    byte == original(vpn, at) || self.has_landed(place, byte),
                    "{byte:#x} at byte {at} of {vpn}, where nothing brought it"
                );
            }
        }
        for &(vpn, at) in self.must.iter().filter(|_| landed) {
            let vpn = Vpn::from_raw(vpn);
            let byte = bytes.page(vpn)[at];
            assert!(
                self.has_landed((vpn.raw(), at), byte),
                "what was written to byte {at} of {vpn} has not landed"
            );
        }
    }

    /// These bytes may have been read there.
    pub fn check_read(&self, port: PortId, address: VirtAddr, read: &[u8]) {
        for ((vpn, at), &byte) in places(port, address, read.len()).zip(read) {
            assert!(
                byte == original(Vpn::from_raw(vpn), at) || self.has_landed((vpn, at), byte),
                "{byte:#x} was read at byte {at} of {}, where it never was",
                Vpn::from_raw(vpn)
            );
        }
    }
}
