//! Acknowledgements: what has landed is said, and what is said gives credits back.

use super::Links;
use crate::env::Env;
use crate::platform::{Payload, Platform};
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, OwnHeader};
use netvm_abi::{BounceId, Nanos, NodeId, Seq};

impl<S: Storage> Links<S> {
    /// Acknowledges what has landed: lowest number missing, and a bitmap of what has ended past it.
    pub(crate) fn send_ack<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        id: NodeId,
        has_ended: impl Fn(BounceId) -> bool,
    ) {
        let window = u32::from(env.config.geometry.window);
        let Some(peer) = self.get_mut(id) else {
            return;
        };
        peer.sequence.acknowledged();
        let lsn = peer.sequence.lsn();
        let mut landed = 0;
        // What has not been seen has not ended.
        for ahead in 0..peer.sequence.past_lsn().min(64) {
            let seq = lsn.plus(1 + ahead);
            let ended = ahead + 1 < window && has_ended(env.config.slot_id(id, (seq.0 % window) as u16));
            landed |= u64::from(ended) << ahead;
        }
        let mut header = self.session_header(env, Body::Ack { landed }, id);
        header.seq = lsn;
        env.counters.acks_sent += 1;
        p.transmit(&OwnHeader::new(&header), Payload::Empty);
    }

    /// An acknowledgement: gives window slots back to their ports. The bitmap is for a fabric that
    /// loses messages; credits follow the LSN alone.
    pub(crate) fn acknowledged(&mut self, env: &mut Env<S>, id: NodeId, seq: Seq) {
        let window = u32::from(env.config.geometry.window);
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        let first = peer.credits.acked();
        env.counters.acks_received += 1;
        let Some(freed) = peer.credits.acknowledge(seq) else {
            env.counters.acks_refused += 1;
            return;
        };
        peer.unanswered = 0;
        for step in 0..freed.min(window) {
            self.settle(&env.config, id, first.plus(step).0);
        }
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
