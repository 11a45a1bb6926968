//! What the other card has received: a command that waits for that is a round trip without a message of its own.
//!
//! A flush takes a window slot and is answered when everything before it has landed, which may take a page. This
//! command asks less, and so it must not wait for a credit either. At its turn everything that its port posted earlier
//! has left. The last number that has left towards the node is what it waits for; a `Probe` asks for the acknowledgement
//! that says so. Messages of other ports are among those numbers: one of them that is lost is sent again within a round
//! trip or two, and a message that has been received counts at once, whatever page it waits for.
//!
//! A probe that is lost needs no second one of this place. As long as something has not been acknowledged the link
//! looks again ([`crate::links`]), and a life that ends, ends its round trips.

use super::Nic;
use crate::platform::Platform;
use netvm_abi::atomic::AtomicResult;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{Nanos, NodeId, PortId, ReadSlot, Seq};

impl<S: Storage> Nic<S> {
    /// The command at the head of a port's pipeline waits until its node has received what has left before it.
    #[cold]
    pub(super) fn await_receipt<P: Platform>(&mut self, p: &mut P, now: Nanos, id: PortId) {
        let Some(port) = self.ports.get_mut(id) else {
            return;
        };
        let Some(entry) = port.pipeline.head() else {
            return;
        };
        let (command, read, session) = (entry.header, entry.read, entry.session);
        let node = command.destination();
        if !self.links.get(node).is_some_and(|peer| peer.is_up_in(session)) {
            return self.give_up(p, id, Status::LinkLost);
        }
        port.drop_head();
        let (Some(slot), Some((received, next))) = (read, self.links.sent_to(node)) else {
            return;
        };
        self.env.counters.receipts_awaited += 1;
        self.round_trips.await_receipt(&command, slot, next);
        if received == next || mutant::is(Mutant::ReceivedUnasked) {
            self.end_round_trip(p, slot, Status::Ok, AtomicResult::default());
        } else {
            self.links.probe(p, &mut self.env, now, node);
        }
    }

    /// A node has received everything before `next`.
    #[cold]
    #[inline(never)]
    pub(super) fn node_has_received<P: Platform>(&mut self, p: &mut P, node: NodeId, next: Seq) {
        for index in 0..self.env.config.geometry.reads {
            let slot = ReadSlot(index);
            if self.round_trips.is_received(slot, node, next) {
                self.end_round_trip(p, slot, Status::Ok, AtomicResult::default());
            }
        }
        self.round_trips.look_for_receipts();
    }
}
