//! Remote completion: a flush is answered when everything that its port sent before has landed.
//!
//! It is an ordered message, so it acts when its turn comes: by then every earlier message of its port has
//! landed or failed, and the stream knows of the first failure, and of the latest append that found no place.

use super::Nic;
use super::receive::Step;
use crate::platform::{Payload, Platform};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, OwnHeader};
use netvm_abi::{BounceId, OpId};

impl<S: Storage> Nic<S> {
    /// The turn of a flush has come.
    pub(super) fn flush_arrives<P: Platform>(&mut self, p: &mut P, at: BounceId) -> Step {
        let Some(slot) = self.inbound.get(at) else {
            return Step::Ended(Status::Malformed);
        };
        let request = *slot.header();
        let poison = self.inbound.failure_before(&self.env.config, at);
        let (status, failed) = poison.map_or((Status::Ok, OpId(0)), |poison| (poison.status, poison.op));
        let refused = self.inbound.refusal_before(&self.env.config, at);
        self.answer_flush(p, &request, status, [failed, refused]);
        Step::Ended(Status::Ok)
    }

    /// Answers a flush: with the operation that has failed, if one has, and the append that found no place.
    #[inline]
    pub(super) fn answer_flush<P: Platform>(
        &mut self,
        p: &mut P,
        request: &OwnHeader,
        status: Status,
        [failed, refused]: [OpId; 2],
    ) {
        let Body::Flush { ticket, .. } = request.body() else {
            return;
        };
        self.env.counters.flushes_served += 1;
        let body = Body::FlushReply {
            ticket,
            status,
            failed,
            refused,
        };
        let mut header = self.links.answer(body, 0, request);
        self.links.keep_answer(&mut self.env, &mut header, Payload::Empty);
        p.transmit(&header, Payload::Empty);
    }
}
