//! Remote completion: a flush is answered when everything that its port sent before has landed.
//!
//! It is an ordered message, so it acts when the LSN reaches it: by then every earlier message has
//! landed or failed, and the stream knows of the first failure.

use crate::nic::Nic;
use crate::platform::{Payload, Platform};
use crate::read::RoundTripKind;
use crate::receive::Step;
use netvm_abi::atomic::AtomicResult;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Header, ReadTicket};
use netvm_abi::{BounceId, NodeId, OpId};

impl<S: Storage> Nic<S> {
    /// A flush has been reached by the LSN.
    pub(crate) fn flush_arrives<P: Platform>(&mut self, p: &mut P, at: BounceId) -> Step {
        let Some(slot) = self.slot(at) else {
            return Step::Ended(Status::Malformed);
        };
        let request = slot.header.decode();
        let stream = self.env.config.stream_index(request.source, request.source_port);
        let poison = self
            .streams
            .get(stream)
            .and_then(|stream| stream.poison)
            .filter(|poison| poison.epoch == request.epoch && poison.owner == slot.header.owner());
        let (status, failed) = poison.map_or((Status::Ok, OpId(0)), |poison| (poison.status, poison.op));
        self.answer_flush(p, &request, status, failed);
        Step::Ended(Status::Ok)
    }

    /// Answers a flush: `failed` is the operation that has failed, if one has.
    pub(crate) fn answer_flush<P: Platform>(
        &mut self,
        p: &mut P,
        request: &Header,
        status: Status,
        failed: OpId,
    ) {
        let Body::Flush { ticket, .. } = request.body() else {
            return;
        };
        self.env.counters.flushes_served += 1;
        let body = Body::FlushReply {
            ticket,
            status,
            failed,
        };
        let header = self.answer(body, 0, request);
        p.transmit(&header, Payload::Empty);
    }

    /// The answer to a flush of this node.
    pub(crate) fn flush_reply_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        node: NodeId,
        ticket: ReadTicket,
        status: Status,
        failed: OpId,
    ) {
        if self.awaits(ticket, node, RoundTripKind::Flush) {
            self.env.counters.flush_replies += 1;
            let result = AtomicResult {
                value: u64::from(failed.0),
                second: 0,
            };
            self.end_round_trip(p, ticket.slot, status, result);
        } else {
            self.env.counters.late_replies += 1;
        }
    }
}
