//! Taking grants back: the barrier with the NIC, and what is reaped behind it.

use super::Host;
use crate::Progress;
use crate::card::CardState;
use crate::grants::{GrantInfo, GrantState};
use crate::platform::Platform;
use crate::revoke::Revoke;
use netvm_abi::capability::{Capability, capability_at};
use netvm_abi::control::Control;
use netvm_abi::event::HostEvent;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::{CapabilitySlot, Nanos, Token};

/// Retracted grants looked at in one go.
const REAP_SLICE: u32 = 128;

impl<S: Storage> Host<S> {
    /// Begins to take one grant back: new messages under it are refused from now on. `None`: it is
    /// gone already.
    pub fn revoke_begin<P: Platform>(
        &mut self,
        platform: &mut P,
        grant: GrantInfo,
        now: Nanos,
    ) -> Option<Revoke> {
        let entry = self.grants.table.get(grant.slot.index())?;
        if entry.generation != grant.generation.0 || entry.state != GrantState::Live {
            return None;
        }
        self.retract_grant(platform, grant.slot.0, true);
        self.request_barrier(platform, now);
        Some(Revoke { grant })
    }

    /// Goes on. When done, DMAs and copies authorised earlier are over.
    pub fn revoke_step<P: Platform>(
        &mut self,
        platform: &mut P,
        revoke: &mut Revoke,
        now: Nanos,
    ) -> Progress {
        self.request_barrier(platform, now);
        self.reap();
        let pending = self
            .grants
            .table
            .get(revoke.grant.slot.index())
            .is_some_and(|entry| {
                entry.generation == revoke.grant.generation.0 && entry.state == GrantState::Retracted
            });
        if pending { Progress::Wait } else { Progress::Done }
    }

    /// Makes a live grant invalid; `tell`: its holder hears of it. Follow with
    /// [`Self::request_barrier`].
    pub(crate) fn retract_grant<P: Platform>(&mut self, platform: &mut P, index: u32, tell: bool) {
        let Some(entry) = self.grants.table.get_mut(index as usize) else {
            return;
        };
        if entry.state != GrantState::Live {
            return;
        }
        let slot = CapabilitySlot(index);
        let holder = entry.capability.holder;
        let export = entry.export;
        entry.state = GrantState::Retracted;
        let lent = entry.lease.is_some();
        // The holder of a lease learns of its end from the program that gave it, or from the card.
        entry.tell = tell && holder != self.node && !lent;
        self.grants.untold += u32::from(entry.tell);
        entry.stamp = self.barriers.stamp();
        let kept = mutant::is(Mutant::CapabilityKept) && !tell;
        if matches!(self.card, CardState::Alive) && !kept {
            Capability::retract(platform.bar(), capability_at(self.bar_map.capabilities, slot));
        }
        if let Some(export) = self.exports.table.get_mut(export as usize) {
            export.grants.remove(&mut self.grants.table, index);
            export.ending += 1;
        }
        if let Some(peer) = self.peers.get_mut(holder.index()) {
            peer.grants.remove(&mut self.grants.table, index);
        }
        self.grants.retracted.push_back(&mut self.grants.table, index);
        if tell {
            self.counters.grants_revoked += 1;
            if holder == self.node && !lent {
                self.import_revoked(holder, slot);
            }
        }
    }

    /// Posts a barrier if one is wanted and none is in flight.
    pub(crate) fn request_barrier<P: Platform>(&mut self, platform: &mut P, now: Nanos) {
        if self.barriers.wanted && !self.barriers.in_flight() && self.is_alive() {
            self.barriers.wanted = false;
            self.barriers.issued = self.barriers.issued.wrapping_add(1);
            // What passed before does not count against the answer.
            self.look(platform, now, false);
            self.barriers.issued_at = Some(self.watch.wait_for_answer());
            let token = Token(self.barriers.issued);
            self.post(platform, &HostEvent::Barrier { token });
        }
    }

    /// The NIC has answered a barrier. False: none is in flight under that number.
    pub(crate) fn barrier_done<P: Platform>(&mut self, platform: &mut P, token: Token, now: Nanos) -> bool {
        if !self.barriers.in_flight() || token.0 != self.barriers.issued {
            return false;
        }
        self.barriers.done = self.barriers.issued;
        self.counters.barriers += 1;
        self.request_barrier(platform, now);
        self.reap();
        true
    }

    /// Moves on retracted grants that nothing is under way for.
    pub(crate) fn reap(&mut self) {
        let stopped = matches!(self.card, CardState::Stopped { .. });
        for _ in 0..self.grants.retracted.len().min(REAP_SLICE) {
            let Some(index) = self.grants.retracted.pop_front(&mut self.grants.table) else {
                return;
            };
            let Some(entry) = self.grants.table.get_mut(index as usize) else {
                continue;
            };
            let over = entry.in_hand == 0 && (stopped || self.barriers.passed(entry.stamp));
            if entry.state == GrantState::Retracted && over {
                entry.state = GrantState::Passed;
                if let Some(export) = self.exports.table.get_mut(entry.export as usize) {
                    export.ending = export.ending.saturating_sub(1);
                }
            }
            if entry.state == GrantState::Passed && (!entry.tell || stopped) {
                self.grants.untold = self.grants.untold.saturating_sub(u32::from(entry.tell));
                entry.tell = false;
                entry.state = GrantState::Free;
                // 0 is no lease.
                entry.generation = entry.generation.wrapping_add(1).max(1);
                if entry.lease.take().is_some() {
                    self.grants.shares.give(entry.capability.port);
                }
                self.grants.free.push_back(&mut self.grants.table, index);
            } else {
                self.grants.retracted.push_back(&mut self.grants.table, index);
            }
        }
    }

    /// Tells holders whose grants were taken back, as far as messages can be sent.
    pub(crate) fn tell_holders<P: Platform>(&mut self, platform: &mut P) {
        for _ in 0..self.grants.retracted.len().min(REAP_SLICE) {
            let Some(index) = self.grants.retracted.pop_front(&mut self.grants.table) else {
                return;
            };
            self.grants.retracted.push_back(&mut self.grants.table, index);
            let Some(entry) = self.grants.table.get(index as usize) else {
                continue;
            };
            if !entry.tell {
                continue;
            }
            let holder = entry.capability.holder;
            let message = Control::Revoked {
                capability: CapabilitySlot(index),
                exporter: self.node,
            };
            // A peer that is down has lost its grants with its link.
            let told = self.peer(holder).is_none() || self.send_farewell(platform, holder, &message);
            if let Some(entry) = self.grants.table.get_mut(index as usize) {
                entry.tell = !told;
                self.grants.untold = self.grants.untold.saturating_sub(u32::from(told));
            }
        }
        self.reap();
    }
}
