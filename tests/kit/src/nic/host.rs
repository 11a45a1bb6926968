//! What a node's host does: maps and unmaps pages, grants capabilities, and, as a plain host, pages
//! in what is missing.

use super::{Node, PAGE, answer};
use netvm_abi::atomic::Atomic;
use netvm_abi::bar::BarMap;
use netvm_abi::bounce::BounceUse;
use netvm_abi::capability::{Capability, capability_at};
use netvm_abi::event::{AtomicAnswer, HostEvent, NicEvent, SourceAnswer};
use netvm_abi::lease::{Terms, lease_at};
use netvm_abi::page_lock;
use netvm_abi::page_table::PageEntry;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::wire::{Header, Kind};
use netvm_abi::words::SharedWords;
use netvm_abi::*;

/// Pages and capabilities.
impl Node {
    /// Maps a page of a port with a fresh frame; returns the frame.
    pub fn map(&mut self, port: u16, address: u64, segment: u32, writable: bool) -> u64 {
        let ppn = self.frame_of(Vpn::of(PortId(port), VirtAddr(address)));
        self.map_frame(port, address, segment, writable, ppn);
        ppn
    }

    /// Maps a page of a port with a frame of its own; another page goes if its places are taken.
    ///
    /// # Panics
    /// A place is taken by nothing that was mapped.
    pub fn map_frame(&mut self, port: u16, address: u64, segment: u32, writable: bool, ppn: u64) {
        let vpn = Vpn::of(PortId(port), VirtAddr(address));
        let places = self.table.places(vpn);
        let free = places
            .into_iter()
            .find(|slot| !self.slots.values().any(|(used, _)| used == slot));
        let Some(slot) = free else {
            // As a host would: another page has to go.
            let victim = places[0];
            let (&other, _) = self.slots.iter().find(|(_, (used, _))| *used == victim).unwrap();
            let other = Vpn::from_raw(other);
            self.evict(other);
            if !self.slots.contains_key(&other.raw()) {
                self.map_frame(port, address, segment, writable, ppn);
            }
            return;
        };
        let entry = PageEntry {
            vpn,
            ppn: Ppn(ppn),
            segment: SegmentId(segment),
            writable,
        };
        page_lock::publish(&self.board.bar, &self.table, slot, &entry);
        self.slots.insert(vpn.raw(), (slot, ppn));
        self.frames.insert(vpn.raw(), ppn);
        self.board.mapped.insert((vpn.raw(), ppn));
    }

    /// Unmaps a page; returns whether it was free at once.
    ///
    /// # Panics
    /// It is not mapped.
    pub fn unmap(&mut self, port: u16, address: u64) -> bool {
        let vpn = Vpn::of(PortId(port), VirtAddr(address));
        let (slot, ppn) = self.slots.remove(&vpn.raw()).unwrap();
        page_lock::retract(&self.board.bar, &self.table, slot);
        self.board.bar.full_barrier();
        self.board.mapped.remove(&(vpn.raw(), ppn));
        page_lock::lock_state(&self.board.bar, &self.table, slot) == page_lock::LockState::Free
    }

    /// Whether an unmap would find the page unlocked; the page stays mapped.
    pub fn unmap_would_be_free(&mut self, port: u16, address: u64) -> bool {
        let vpn = Vpn::of(PortId(port), VirtAddr(address));
        let (slot, _) = self.slots[&vpn.raw()];
        page_lock::lock_state(&self.board.bar, &self.table, slot) == page_lock::LockState::Free
    }

    /// Unmaps a page unless a DMA holds it.
    pub fn evict(&mut self, vpn: Vpn) {
        let (slot, ppn) = self.slots[&vpn.raw()];
        page_lock::retract(&self.board.bar, &self.table, slot);
        self.board.bar.full_barrier();
        if page_lock::lock_state(&self.board.bar, &self.table, slot) == page_lock::LockState::Free {
            self.slots.remove(&vpn.raw());
            self.board.mapped.remove(&(vpn.raw(), ppn));
        } else {
            page_lock::restore(&self.board.bar, &self.table, slot);
        }
    }

    /// Maps a page of a port unless it is mapped.
    pub fn map_if_missing(&mut self, port: u16, address: u64, segment: u32, writable: bool) {
        let vpn = Vpn::of(PortId(port), VirtAddr(address));
        if !self.slots.contains_key(&vpn.raw()) {
            self.map(port, address, segment, writable);
        }
    }

    /// Makes a capability live.
    pub fn grant(&mut self, slot: u32, capability: &Capability) {
        let map = BarMap::new(&self.board.geometry);
        let at = capability_at(map.capabilities, CapabilitySlot(slot));
        capability.publish(&self.board.bar, at);
    }

    /// Makes a lease live that lasts so long, and at most so long. [`begin_lease`](Self::begin_lease) tells the NIC.
    pub fn lend(
        &mut self,
        slot: u32,
        capability: &Capability,
        generation: u32,
        (duration, longest): (u64, u64),
    ) {
        let map = BarMap::new(&self.board.geometry);
        let (slot, generation) = (CapabilitySlot(slot), Generation(generation));
        let terms = Terms {
            generation,
            duration: Nanos(duration),
            longest: Nanos(longest),
        };
        terms.publish(&self.board.bar, lease_at(map.leases, slot));
        let lease = Capability {
            expires: Nanos(0),
            ..*capability
        };
        self.grant(slot.0, &lease);
    }

    /// Tells the NIC that a lease begins.
    pub fn begin_lease(&mut self, slot: u32, generation: u32) {
        let (slot, generation) = (CapabilitySlot(slot), Generation(generation));
        self.tell(HostEvent::LeaseBegin { slot, generation });
    }

    /// Ends a capability.
    pub fn revoke(&mut self, slot: u32) {
        let map = BarMap::new(&self.board.geometry);
        Capability::retract(
            &self.board.bar,
            capability_at(map.capabilities, CapabilitySlot(slot)),
        );
    }
}

/// The plain host, and its view of memory.
impl Node {
    /// Maps the page of an atomic, or carries it out.
    fn bring_operand(&mut self, header: &Header, attempt: u8) -> AtomicAnswer {
        let vpn = Vpn::of(header.destination_port, header.address);
        let ppn = self.frame_of(vpn);
        if attempt < 3 {
            if !self.slots.contains_key(&vpn.raw()) {
                self.map_frame(vpn.port().0, vpn.address().0, 5, true, ppn);
            }
            return AtomicAnswer::Retry;
        }
        let atomic = Atomic::requested(header).expect("an atomic");
        let (at, len) = (
            usize::from(header.address.page_offset().0),
            atomic.operand_bytes() as usize,
        );
        let bytes = &mut self.board.pages.get_mut(&ppn).unwrap()[at..at + len];
        let mut operand = [0; 4];
        for (word, bytes) in operand.iter_mut().zip(bytes.chunks(8)) {
            let mut long = [0; 8];
            long[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(long);
        }
        let (result, _) = atomic.apply(&mut operand);
        for (bytes, word) in bytes.chunks_mut(8).zip(operand) {
            let len = bytes.len();
            bytes.copy_from_slice(&word.to_le_bytes()[..len]);
        }
        AtomicAnswer::Done(result)
    }

    /// A plain host: pages in what is missing (a fresh frame of zeroes, or the frame it had), copies
    /// bounced payload once, ends every slot.
    pub fn serve_host(&mut self) -> bool {
        self.take_events();
        let events = std::mem::take(&mut self.inbox);
        let any = !events.is_empty();
        for event in events {
            match event {
                NicEvent::Bounced { bounce, generation } => {
                    let header = self.record(bounce);
                    let mut status = Status::Ok;
                    if header.kind != Kind::Control {
                        status = self.page_in_and_copy(bounce, &header);
                    }
                    self.tell(HostEvent::BounceEnded {
                        bounce,
                        generation,
                        status,
                    });
                }
                NicEvent::AtomicMiss {
                    bounce,
                    generation,
                    attempt,
                } => {
                    let header = self.record(bounce);
                    let answer = self.bring_operand(&header, attempt);
                    self.tell(HostEvent::AtomicAnswer {
                        bounce,
                        generation,
                        answer,
                    });
                }
                NicEvent::SourceMiss {
                    staging,
                    generation,
                    vpn,
                    offset,
                    len,
                    attempt,
                } => {
                    let ppn = self.frame_of(vpn);
                    let from = usize::from(offset.0);
                    if attempt < 3 {
                        if !self.slots.contains_key(&vpn.raw()) {
                            self.map_frame(vpn.port().0, vpn.address().0, 5, true, ppn);
                        }
                        self.tell(answer(staging, generation, SourceAnswer::Retry));
                    } else {
                        let bytes = self.board.pages[&ppn][from..from + len.index()].to_vec();
                        let id = BounceUse::Source(staging).id(&self.board.geometry);
                        self.board.bounce.insert(id.0, bytes);
                        self.tell(answer(staging, generation, SourceAnswer::Copied));
                    }
                }
                _ => {}
            }
        }
        any
    }

    /// What the NIC says of a bounced message.
    ///
    /// # Panics
    /// It is no header.
    pub fn record(&self, bounce: BounceId) -> Header {
        let map = SharedMap::new(&self.board.geometry);
        netvm_abi::bounce::load_record(&self.board.shared, map.bounce_record(bounce)).unwrap()
    }

    /// The frame that holds a page's bytes, mapped or not.
    pub fn frame_of(&mut self, vpn: Vpn) -> u64 {
        if let Some(ppn) = self.frames.get(&vpn.raw()) {
            return *ppn;
        }
        self.next_ppn += 1;
        let ppn = self.next_ppn;
        self.board.pages.insert(ppn, vec![0; PAGE]);
        self.frames.insert(vpn.raw(), ppn);
        ppn
    }

    fn page_in_and_copy(&mut self, bounce: BounceId, header: &Header) -> Status {
        let vpn = Vpn::of(header.destination_port, header.address);
        let ppn = self.frame_of(vpn);
        let at = usize::from(header.address.page_offset().0);
        let bytes = self.board.bounce[&bounce.0].clone();
        self.board.pages.get_mut(&ppn).unwrap()[at..at + bytes.len()].copy_from_slice(&bytes);
        Status::Ok
    }

    /// Bytes of a port's memory, wherever they are.
    pub fn memory(&mut self, port: u16, address: u64, len: usize) -> Vec<u8> {
        let ppn = self.frame_of(Vpn::of(PortId(port), VirtAddr(address)));
        let at = (address & 0xFFF) as usize;
        self.board.pages[&ppn][at..at + len].to_vec()
    }

    /// Stores bytes in a port's memory, wherever they are.
    ///
    /// # Panics
    /// They leave the page.
    pub fn fill(&mut self, port: u16, address: u64, bytes: &[u8]) {
        let ppn = self.frame_of(Vpn::of(PortId(port), VirtAddr(address)));
        let at = (address & 0xFFF) as usize;
        self.board.pages.get_mut(&ppn).unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
