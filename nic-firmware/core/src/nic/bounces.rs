//! The bounce path (thesis 5.6): payload into a bounce page, header into its record, an event to
//! the host, which pages in, copies once and ends the slot.

use super::Nic;
use crate::dmas::{Holder, Ticket};
use crate::inbound::SlotState;
use crate::platform::{Dma, Platform};
use netvm_abi::bounce::BounceUse;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::Kind;
use netvm_abi::{BounceId, ByteLen, Generation, Nanos};

impl<S: Storage> Nic<S> {
    /// Moves the payload of a message in the window into its bounce page, which is free: it belongs
    /// to the window slot.
    pub(super) fn bounce_message<P: Platform>(&mut self, p: &mut P, ticket: Ticket, at: BounceId) {
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        slot.set(SlotState::Bouncing);
        let dma = Dma::ReceiveToBounce {
            receive: slot.receive(),
            bounce: at,
            len: ByteLen(u32::from(slot.header().payload_len())),
        };
        self.dmas
            .start(p, &mut self.env, (ticket, Holder::Window(at)), dma);
        if mutant::is(Mutant::BounceToldEarly)
            && let Some(slot) = self.inbound.get(at)
        {
            let (header, generation) = (slot.header().decode(), slot.generation());
            self.env.tell_bounced(p, at, generation, &header);
        }
    }

    /// The payload of a message is in its bounce page.
    pub(super) fn message_bounced<P: Platform>(&mut self, p: &mut P, at: BounceId) {
        let Some(slot) = self.inbound.get_mut(at) else {
            return;
        };
        slot.set(SlotState::Bounced);
        let (header, generation) = (slot.header().decode(), slot.generation());
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        self.env.tell_bounced(p, at, generation, &header);
    }

    /// The host has dealt with a bounced message or reply.
    pub(super) fn bounce_ended<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        bounce: BounceId,
        generation: Generation,
        status: Status,
    ) {
        match BounceUse::from_id(&self.env.config.geometry, bounce) {
            Some(BounceUse::Window { .. }) => {
                let waits = self.inbound.get(bounce).is_some_and(|found| {
                    found.state() == SlotState::Bounced && found.generation() == generation
                });
                if !waits {
                    self.env.counters.late_answers += 1;
                    return;
                }
                let atomic = self
                    .inbound
                    .get(bounce)
                    .is_some_and(|slot| slot.header().kind() == Kind::AtomicRequest);
                self.env.counters.bounces_ended += u64::from(!atomic);
                if self.link_is_over(bounce) {
                    // Its window is gone, and no peer is to be told.
                    self.forget(p, bounce);
                    return;
                }
                if status != Status::Ok {
                    *self.env.counters.refusals(status) += 1;
                }
                if atomic {
                    // That is how the host refuses one.
                    self.finish_atomic(p, now, bounce, Err(status));
                } else {
                    self.end(p, now, bounce, status);
                }
            }
            Some(BounceUse::Reply(read)) => self.reply_ended(p, read, generation, status),
            Some(BounceUse::Source(_)) | None => self.env.counters.host_events_refused += 1,
        }
    }
}
