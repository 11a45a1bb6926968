//! Events of the host driver, and those that go to it.

use crate::nic::Nic;
use crate::platform::Platform;
use crate::port::{Port, PortState};
use netvm_abi::bar::port::SIGNALLED;
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::notification::EVENT_COUNTS;
use netvm_abi::port_area::{
    ERROR_WRITE, ERRORS_LOST, NOTIFICATION_WRITE, READS_DONE, SHADOW_SIGNALS, TAKEN, WRITES_DONE,
};
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{Generation, Nanos, PortId};

impl<S: Storage> Nic<S> {
    /// Takes what the host has posted. Returns whether more waits.
    #[inline]
    pub(crate) fn host_events<P: Platform>(&mut self, p: &mut P, now: Nanos, budget: u32) -> bool {
        self.host_waits(p) && self.take_host_events(p, now, budget)
    }

    #[inline(never)]
    fn take_host_events<P: Platform>(&mut self, p: &mut P, now: Nanos, budget: u32) -> bool {
        for _ in 0..budget {
            // A barrier must find room: until then no event is taken.
            if !self.dmas.barrier_room() {
                return false;
            }
            let Some(words) = self.env.next_host_event(p) else {
                return false;
            };
            match HostEvent::decode(&words) {
                Some(event) => self.host_event(p, now, event),
                None => self.env.counters.host_events_refused += 1,
            }
        }
        self.host_waits(p)
    }

    /// Whether the host has posted an event that can be taken.
    #[inline]
    pub(crate) fn host_waits<P: Platform>(&self, p: &P) -> bool {
        self.dmas.barrier_room() && self.env.host_waits(p)
    }

    fn host_event<P: Platform>(&mut self, p: &mut P, now: Nanos, event: HostEvent) {
        match event {
            HostEvent::PortOpen { port, generation } => self.open_port(p, port, generation),
            HostEvent::PortClose { port, generation } => self.close_port(p, port, generation),
            HostEvent::BounceEnded {
                bounce,
                generation,
                status,
            } => self.bounce_ended(p, now, bounce, generation, status),
            HostEvent::SourceAnswer {
                staging,
                generation,
                answer,
            } => self.source_answered(p, now, staging, generation, answer),
            HostEvent::SendControl { peer, slot, token } => self.control_posted(p, now, peer, slot, token),
            HostEvent::PeerReleased { peer, incarnation } => self.peer_released(p, now, peer, incarnation),
            HostEvent::PeerConnect { peer } => self.connect(p, now, peer),
            HostEvent::Barrier { token } => self.dmas.barrier(p, &mut self.env, token),
            HostEvent::AtomicAnswer {
                bounce,
                generation,
                answer,
            } => self.atomic_answered(p, now, bounce, generation, answer),
        }
    }

    /// Serves a port. The driver has cleared the port's block and area before it posted this; what
    /// the NIC owns of them is set to zero here all the same.
    fn open_port<P: Platform>(&mut self, p: &mut P, id: PortId, generation: Generation) {
        let free = self
            .ports
            .get(id.index())
            .is_some_and(|port| port.state == PortState::Closed);
        if !free {
            self.env.counters.host_events_refused += 1;
            return;
        }
        let (block, area) = (self.env.bar.port(id), self.env.shared.port_area(id));
        for number in 0..EVENT_COUNTS {
            p.bar().store_release(block.plus(SIGNALLED.0 + number), 0);
            p.shared().store_release(area.plus(SHADOW_SIGNALS.0 + number), 0);
        }
        for word in [
            TAKEN,
            WRITES_DONE,
            READS_DONE,
            NOTIFICATION_WRITE,
            ERROR_WRITE,
            ERRORS_LOST,
        ] {
            p.shared().store_release(area.plus(word.0), 0);
        }
        if let Some(port) = self.ports.get_mut(id.index()) {
            *port = Port {
                state: PortState::Open,
                generation,
                // Held for what its number did before, until that ends.
                staging: port.staging,
                missing: port.missing,
                reads: port.reads,
                ..Port::closed()
            };
        }
        self.env.counters.ports_opened += 1;
        self.turns.set(id, true);
    }

    /// Drops a port's commands; answers when its DMAs have ended.
    fn close_port<P: Platform>(&mut self, p: &mut P, id: PortId, generation: Generation) {
        let Some(port) = self.ports.get_mut(id.index()) else {
            self.env.counters.host_events_refused += 1;
            return;
        };
        if !port.is(generation) {
            self.env.counters.host_events_refused += 1;
            return;
        }
        port.state = PortState::Closing;
        let (head, len, idle) = (port.head, port.len, port.dmas == 0);
        let pipeline = port.pipeline;
        port.len = 0;
        self.turns.set(id, false);
        for (index, entry) in pipeline.iter().enumerate() {
            let offset = (index as u8).wrapping_sub(head) % pipeline.len() as u8;
            if offset < len {
                self.release_entry(id, *entry);
            }
        }
        if idle {
            self.port_closed(p, id);
        }
    }

    /// A closing port's last DMA has ended.
    pub(crate) fn port_closed<P: Platform>(&mut self, p: &mut P, id: PortId) {
        let Some(port) = self.ports.get_mut(id.index()) else {
            return;
        };
        port.state = PortState::Closed;
        let generation = port.generation;
        self.env.counters.ports_closed += 1;
        self.env
            .tell_host(p, NicEvent::PortClosed { port: id, generation });
    }
}
