//! Remote completion: a flush is answered when everything that its port sent before has landed.
//!
//! It is an ordered message, so it acts when the LSN reaches it: by then every earlier message has
//! landed or failed, and the stream knows of the first failure.

use crate::nic::Nic;
use crate::platform::{Payload, Platform};
use crate::read::ReadKind;
use crate::receive::Step;
use netvm_abi::atomic::AtomicResult;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Header, Kind, OwnHeader};
use netvm_abi::{BounceId, Generation, ReadSlot};

impl<S: Storage> Nic<S> {
    /// A flush has been reached by the LSN.
    pub(crate) fn flush_arrives<P: Platform>(&mut self, p: &mut P, at: BounceId) -> Step {
        let Some(slot) = self.slot(at) else {
            return Step::Ended(Status::Malformed);
        };
        let request = slot.header.decode();
        let stream = self.config.stream_index(request.source, request.source_port);
        let poison = self
            .streams
            .get(stream)
            .and_then(|stream| stream.poison)
            .filter(|poison| poison.epoch == request.epoch.0 && poison.owner == request.compare);
        let (status, op) = poison.map_or((Status::Ok, 0), |poison| (poison.status, poison.op));
        self.answer_flush(p, &request, status, op);
        Step::Ended(Status::Ok)
    }

    /// Answers a flush: `op` is the operation that has failed, if one has.
    pub(crate) fn answer_flush<P: Platform>(&mut self, p: &mut P, request: &Header, status: Status, op: u32) {
        self.counters.flushes_served += 1;
        let mut header = self.answer(Kind::FlushReply, request);
        header.status = status.code();
        header.operand = u64::from(op);
        header.compare = request.operand;
        p.transmit(&OwnHeader::new(&header), Payload::Empty);
    }

    /// The answer to a flush of this node.
    pub(crate) fn flush_reply_arrives<P: Platform>(&mut self, p: &mut P, header: &Header) {
        let read = ReadSlot(header.compare as u16);
        let generation = Generation((header.compare >> 32) as u32);
        if self.awaits(read, generation, header.source, ReadKind::Flush) {
            self.counters.flush_replies += 1;
            let result = AtomicResult {
                value: header.operand,
                second: 0,
            };
            self.end_round_trip(p, read, header.outcome(), result);
        } else {
            self.counters.late_replies += 1;
        }
    }
}
