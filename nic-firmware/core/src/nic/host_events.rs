//! Events of the host driver, and those that go to it.

use super::Nic;
use crate::platform::Platform;
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::storage::Storage;
use netvm_abi::{Generation, Nanos, PortId};

impl<S: Storage> Nic<S> {
    /// Takes what the host has posted. Returns whether more waits.
    #[inline]
    pub(super) fn host_events<P: Platform>(&mut self, p: &mut P, now: Nanos, budget: u32) -> bool {
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
    pub(super) fn host_waits<P: Platform>(&self, p: &P) -> bool {
        self.dmas.barrier_room() && self.env.host_waits(p)
    }

    fn host_event<P: Platform>(&mut self, p: &mut P, now: Nanos, event: HostEvent) {
        match event {
            HostEvent::PortOpen {
                port,
                generation,
                counts_from,
            } => {
                self.ports.open(p, &mut self.env, (port, generation), counts_from);
            }
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
            } => self.source_answered(p, now, (staging, generation), answer),
            HostEvent::SendControl { peer, slot, token } => {
                self.links
                    .control_posted(p, &mut self.env, now, (peer, slot), token);
                self.ports.stir();
            }
            HostEvent::PeerReleased { peer, incarnation } => self.peer_released(p, now, peer, incarnation),
            HostEvent::PeerConnect { peer } => self.connect(p, now, peer),
            HostEvent::LeaseBegin { slot, generation } => {
                let begun = self.env.capabilities.begin_lease(p.bar(), now, slot, generation);
                self.env.counters.leases_begun += u64::from(begun);
            }
            HostEvent::LeaseAsk {
                slot,
                generation,
                token,
            } => {
                let left = self.env.capabilities.lease_left(p.bar(), now, slot, generation);
                let answer = NicEvent::LeaseLeft {
                    slot,
                    generation,
                    token,
                    left,
                };
                self.env.tell_host(p, answer);
            }
            HostEvent::Barrier { token } => self.dmas.barrier(p, &mut self.env, token),
            HostEvent::AtomicAnswer {
                bounce,
                generation,
                answer,
            } => self.atomic_answered(p, now, bounce, generation, answer),
        }
    }

    /// Drops a port's commands. The host hears when its DMAs have ended.
    fn close_port<P: Platform>(&mut self, p: &mut P, id: PortId, generation: Generation) {
        if !self.ports.close(&mut self.env, id, generation) {
            return;
        }
        while let Some(entry) = self.ports.drain(p, &mut self.env, id) {
            self.release_entry(id, entry);
        }
    }
}
