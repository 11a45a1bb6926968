//! Acknowledgements: what has landed is said, and what is said gives credits back.

use super::Links;
use crate::env::Env;
use crate::inbound::Presence;
use crate::platform::{Payload, Platform};
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, MessageFlags, OwnHeader};
use netvm_abi::{BounceId, Nanos, NodeId, Seq, Stamp};

impl<S: Storage> Links<S> {
    /// Acknowledges what has landed and what has been received; `presence` knows of each request. Of a wide window what
    /// arrived last may be far from the highest number: it takes a second one to speak of both.
    pub(crate) fn send_ack<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        id: NodeId,
        presence: impl Fn(BounceId) -> Presence,
    ) {
        let Some(peer) = self.get_mut(id) else {
            return;
        };
        if peer.leaves_some_unsaid() {
            let latest = peer.speaks_of_highest();
            self.send_one_ack(p, env, id, MessageFlags::empty(), &presence);
            if let Some(peer) = self.get_mut(id) {
                peer.speaks_of(latest);
            }
        }
        self.send_one_ack(p, env, id, MessageFlags::empty(), presence);
    }

    /// Says that a request has found no window, with what an acknowledgement says: so its sender knows that the link is well.
    #[cold]
    pub(crate) fn send_refusal<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        id: NodeId,
        presence: impl Fn(BounceId) -> Presence,
    ) {
        self.send_one_ack(p, env, id, MessageFlags::REFUSED, presence);
    }

    fn send_one_ack<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        id: NodeId,
        flags: MessageFlags,
        presence: impl Fn(BounceId) -> Presence,
    ) {
        let Some(peer) = self.get_mut(id) else {
            return;
        };
        peer.sequence.acknowledged();
        let lsn = peer.sequence.lsn();
        let receipt = self.receipt(env, id, presence);
        let mut header = self.session_header(env, Body::Ack, id);
        (header.seq, header.stamp, header.flags) = (lsn, Stamp::of(env.now), flags);
        header.set_receipt(&receipt);
        env.counters.acks_sent += 1;
        p.transmit(&OwnHeader::new(&header), Payload::Empty);
    }

    /// An acknowledgement: gives window slots back to their ports. Credits follow the LSN alone. Whether any honest card
    /// says so.
    pub(crate) fn acknowledged(&mut self, env: &mut Env<S>, id: NodeId, seq: Seq) -> bool {
        let window = u32::from(env.config.geometry.window);
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return false;
        };
        let first = peer.credits.acked();
        env.counters.acks_received += 1;
        let Some(freed) = peer.credits.acknowledge(seq) else {
            env.counters.acks_refused += 1;
            return false;
        };
        peer.unanswered = 0;
        // It is in this life: what offers another one is older.
        peer.offer = None;
        if freed != 0 {
            peer.has_credits_back();
        }
        for step in 0..freed.min(window) {
            self.settle(&env.config, id, first.plus(step));
        }
        true
    }

    /// The LSN has moved. Returns whether that is to be acknowledged now; else it is when the link has been idle.
    #[inline]
    pub(crate) fn has_advanced(&mut self, env: &Env<S>, now: Nanos, id: NodeId) -> bool {
        let Some(peer) = self.get_mut(id) else {
            return false;
        };
        let due = peer.advanced(now);
        if !due {
            self.arm_ack(env, id, now);
        }
        due
    }

    /// A peer says how far it has sent: what of it is not here is a gap from now on.
    pub(crate) fn announced(&mut self, env: &Env<S>, now: Nanos, id: NodeId, next: Seq) {
        let Some(peer) = self.get_mut(id) else {
            return;
        };
        let gap = peer.sequence.anything_past_lsn();
        peer.sequence.announced(next);
        if !peer.sequence.anything_past_lsn() {
            return;
        }
        if !gap {
            peer.gap_since = now;
        }
        // Also where something was past the LSN before: the message at the LSN itself, which the host may be paging
        // for, has armed nothing, and the lost one may be the one behind it.
        self.arm_probe(env, id, now);
    }
}
