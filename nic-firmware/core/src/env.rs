//! What every part of a NIC works with: how the NIC is set up, where things are, and the way to its host.

use crate::authorise::CapabilityTable;
use crate::config::Config;
use crate::counters::Counters;
use crate::platform::{Interrupt, Platform};
use netvm_abi::bar::BarMap;
use netvm_abi::bounce::store_record;
use netvm_abi::event::{EVENT_WORDS, NicEvent};
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::page_table::PageTable;
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::storage::Storage;
use netvm_abi::wire::Header;
use netvm_abi::{BounceId, Generation, Nanos, PortId};

/// The surroundings of the parts. All but the time, the counters and the lines stays as it is made.
pub(crate) struct Env<S: Storage> {
    pub(crate) config: Config,
    pub(crate) bar: BarMap,
    pub(crate) shared: SharedMap,
    pub(crate) page_table: PageTable,
    pub(crate) capabilities: CapabilityTable,
    /// Links of the waiting lines of all parts ([`crate::queue::Fifo`]), one for each operation.
    pub(crate) lines: S::Table<u32>,
    /// The time of the event at hand.
    pub(crate) now: Nanos,
    /// Each part counts what it does.
    pub(crate) counters: Counters,
    host_ring: RingReader,
    nic_ring: RingWriter,
}

impl<S: Storage> Env<S> {
    /// Of a NIC whose configuration has been checked.
    pub(crate) fn new(config: Config, lines: S::Table<u32>) -> Self {
        let geometry = &config.geometry;
        Self {
            bar: BarMap::new(geometry),
            shared: SharedMap::new(geometry),
            page_table: PageTable::of(geometry, config.hash_key),
            capabilities: CapabilityTable::of(geometry),
            host_ring: RingReader::new(RingPlace::host_events(geometry)),
            nic_ring: RingWriter::new(RingPlace::nic_events(geometry)),
            lines,
            now: Nanos(0),
            counters: Counters::default(),
            config,
        }
    }

    /// Whether the host has posted an event.
    #[inline]
    pub(crate) fn host_waits<P: Platform>(&self, p: &P) -> bool {
        !self.host_ring.is_empty(p.bar())
    }

    /// Takes the words of an event that the host has posted; nothing when none waits.
    #[inline]
    pub(crate) fn next_host_event<P: Platform>(&mut self, p: &P) -> Option<[u32; EVENT_WORDS]> {
        self.host_ring.pop(p.bar(), p.shared())
    }

    /// Posts an event to the host. The ring has room for everything that can be outstanding.
    pub(crate) fn tell_host<P: Platform>(&mut self, p: &mut P, event: NicEvent) {
        if !self.nic_ring.push(p.shared(), p.bar(), &event.encode()) {
            self.counters.events_lost += 1;
            return;
        }
        self.counters.driver_interrupts += 1;
        p.interrupt(Interrupt::Driver);
    }

    /// Writes a bounce record and tells the host.
    pub(crate) fn tell_bounced<P: Platform>(
        &mut self,
        p: &mut P,
        bounce: BounceId,
        generation: Generation,
        header: &Header,
    ) {
        if mutant::is(Mutant::BounceRecordDropped) {
            return;
        }
        store_record(p.shared(), self.shared.bounce_record(bounce), header);
        self.tell_host(p, NicEvent::Bounced { bounce, generation });
    }

    /// Interrupts an application that may sleep.
    pub(crate) fn interrupt_port<P: Platform>(&mut self, p: &mut P, id: PortId) {
        self.counters.port_interrupts += 1;
        if mutant::is(Mutant::PortInterruptLost) && self.counters.port_interrupts.is_multiple_of(2) {
            return;
        }
        p.interrupt(Interrupt::Port(id));
    }
}
