//! An append arrives: a write to which this NIC gives its place (`docs/decisions/0012-shared-receive-queue.md`).
//!
//! It acts when the window's turn comes to it, as an ordered message does, so the messages of one sender get their
//! places in the order in which they were sent. Then it is held back ([`crate::behind`]), refused, or given the next
//! place; from there on it is a plain write to that place. However it ends, its record is stored: a place that was
//! given out and never filled is one to skip, and not a hole that the receiver waits at.
//!
//! **A full queue** refuses an append, which is an outcome and no failure of its stream: notifications, writes and
//! ordered operations behind it go on (`docs/decisions/0023-refused-append.md`). Only the appends behind it must not
//! overtake it, because its sender sends it again. So the stream remembers the latest refusal, and every append names
//! the latest one that its sender knew of when it was posted. One that names another is held back.
//!
//! **Order.** The record is stored when the DMA has ended, or the host has copied, and before the event count is
//! raised. A place is not given out again while anything still writes to it: only its record lets the receiver
//! free it, and the record of a message whose link has failed is stored when its DMA, or the host, has let go.

use super::Nic;
use super::receive::Step;
use crate::dmas::Holder;
use crate::inbound::SlotState;
use crate::platform::Platform;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::shared_queue::Record;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::{BounceId, Nanos, OpId};

impl<S: Storage> Nic<S> {
    /// The window's turn has come to an append, and everything earlier of its sender has ended: gives it a place,
    /// and says so in its header, so that it can go on as a write.
    ///
    /// # Errors
    /// How far it got instead.
    #[inline(never)]
    pub(super) fn take_place<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        at: BounceId,
    ) -> Result<(), Step> {
        if self.is_behind_refusal(at) {
            return Err(self.hold_message_back(p, at));
        }
        let Some(slot) = self.inbound.get_mut(at) else {
            return Err(Step::Ended(Status::Malformed));
        };
        let id = slot.header().destination_port();
        let Some(port) = self.ports.get_mut(id) else {
            return Err(self.write_refused(Status::NoSuchPort));
        };
        let queue = match self.env.capabilities.authorise_append(p.bar(), now, slot, port) {
            Ok(queue) => queue,
            Err(status) => return Err(self.write_refused(status)),
        };
        if self.dmas.ticket().is_none() {
            // First the slot for its DMA: what has a place goes there at once.
            slot.set(SlotState::Queued);
            self.dmas.park(&mut self.env, Holder::Window(at));
            return Err(Step::Pending);
        }
        let Some(number) = port.next_place(p, &self.env, queue.places.capacity()) else {
            return Err(self.refuse_append(p, at));
        };
        // It may still be refused, by a revocation in this very moment: then its place is one to skip.
        slot.let_through(port.generation());
        self.env.counters.appends += 1;
        slot.give_place(queue.places.address(number), number, queue.raises);
        Ok(())
    }

    /// Whether an append of its stream has found no place before it, which its sender did not know of.
    fn is_behind_refusal(&self, at: BounceId) -> bool {
        let refused = self.inbound.refusal_before(&self.env.config, at);
        let named = self.inbound.get(at).map(|slot| slot.header().refusal());
        refused != OpId(0) && Some(refused) != named && !mutant::is(Mutant::RefusalHoldsNothing)
    }

    /// The queue is full: the append ends without a place, its sender is told, and its stream remembers it.
    #[cold]
    fn refuse_append<P: Platform>(&mut self, p: &mut P, at: BounceId) -> Step {
        let Some(slot) = self.inbound.get_mut(at) else {
            return Step::Ended(Status::Malformed);
        };
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        let header = *slot.header();
        self.inbound.note_refusal(&self.env.config, at);
        *self.env.counters.refusals(Status::NoPlace) += 1;
        self.send_error(p, &header, Status::NoPlace);
        Step::Refused
    }

    /// A message that had a place has ended, or is not awaited any more: the receiver learns what became of it. The
    /// event count for one that has landed follows when its stream passes it; that for a place to be skipped is raised
    /// here, because a message that has failed delivers none.
    #[cold]
    #[inline(never)]
    pub(super) fn place_ended<P: Platform>(&mut self, p: &mut P, at: BounceId, status: Status) {
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        let Some((place, raises)) = slot.end_place() else {
            return;
        };
        let header = slot.header();
        let id = header.destination_port();
        let record = Record {
            status,
            len: header.payload_len(),
            node: header.source(),
            port: header.source_port(),
        };
        let Some((port, copies)) = self.ports.with_queues(id, slot.let_through_to()) else {
            return;
        };
        record.store(p.shared(), self.env.shared.port_area(id), place);
        if status != Status::Ok {
            self.env.counters.places_skipped += 1;
            if raises.is_some() {
                port.notify_event(p, &mut self.env, copies, raises);
            }
        }
    }
}
