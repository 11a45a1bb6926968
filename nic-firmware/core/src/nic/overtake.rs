//! A message waits for its host, and those of other ports go on past it (`inbound/order.rs`).
//!
//! The LSN stands at that message. So each message that ends, or whose turn has come, is looked at in the line of its own
//! stream; the LSN follows when it can.

use super::Nic;
use crate::inbound::{Slot, SlotState};
use crate::links::Peer;
use crate::platform::Platform;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, Nanos, NodeId};

impl<S: Storage> Nic<S> {
    /// Messages of a link are past one at which the LSN stands. If that waits for its host, they do not wait for it.
    #[cold]
    #[inline(never)]
    pub(super) fn held_up<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        let Some(peer) = self.links.get_mut(id) else {
            return;
        };
        let at = self.env.config.slot_id(peer.window_from(), peer.lsn_slot());
        let waits = peer.leads() && self.inbound.get(at).is_some_and(Slot::awaits_host);
        if waits && peer.hold_up() {
            self.inbound.holds_up();
            self.env.counters.links_held_up += 1;
            self.admit(p, now, id);
        }
    }

    /// Messages have arrived. On a link that is held up, those with none missing before them join their streams.
    #[inline]
    pub(super) fn admit<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        if self.inbound.any_held_up() {
            self.admit_all(p, now, id);
        }
    }

    #[inline(never)]
    fn admit_all<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        for _ in 0..self.env.config.geometry.window {
            let Some(peer) = self.links.get_mut(id) else {
                break;
            };
            let Some(slot) = peer.admit() else {
                break;
            };
            let at = self.env.config.slot_id(peer.window_from(), slot);
            self.inbound.joins(&self.env.config, at);
            self.pass_all(p, now, at);
        }
        self.follow(p, now, id);
    }

    /// A message of a link that is held up has ended.
    pub(super) fn goes_on<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId, at: BounceId) {
        self.pass_all(p, now, at);
        self.follow(p, now, id);
    }

    /// A stream passes a message, and those behind it, as far as they have ended. It acts on those that asked for order.
    fn pass_all<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) {
        let mut next = Some(at);
        for _ in 0..self.env.config.geometry.window {
            let Some(at) = next.filter(|at| self.inbound.is_due(*at)) else {
                return;
            };
            if self.inbound.state(at) == Some(SlotState::Ordered) {
                let step = self.act(p, now, at);
                if !self.mark_step(p, at, step) {
                    return;
                }
            }
            let Some(slot) = self.inbound.get(at) else {
                return;
            };
            let (status, number) = (slot.status(), slot.header().notification());
            let poisoned = self.is_poisoned(at, status);
            // The header stays in the slot until the next message comes into it.
            next = self.inbound.passes(&self.env.config, at);
            if number.is_some() && !mutant::is(Mutant::NotificationEarly) {
                self.deliver(p, at, poisoned);
            }
        }
    }

    /// The LSN follows over what the streams have passed.
    fn follow<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        let mut moved = false;
        for _ in 0..self.env.config.geometry.window {
            let Some(peer) = self.links.get_mut(id) else {
                return;
            };
            let at = self.env.config.slot_id(peer.window_from(), peer.lsn_slot());
            if self.inbound.state(at) != Some(SlotState::Passed) {
                break;
            }
            self.inbound.set(at, SlotState::Missing);
            peer.advance();
            moved = true;
        }
        if self.links.get_mut(id).is_some_and(Peer::catches_up) {
            self.inbound.goes_on();
        }
        if moved {
            self.after_advance(p, now, id);
        }
    }
}
