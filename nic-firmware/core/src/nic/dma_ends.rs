//! A DMA ends: its operation goes on, and those that wait for a slot get theirs.

use super::Nic;
use crate::dmas::{Holder, SLOTS};
use crate::platform::{DmaId, Platform};
use netvm_abi::Nanos;
use netvm_abi::storage::Storage;

impl<S: Storage> Nic<S> {
    pub(super) fn dma_done<P: Platform>(&mut self, p: &mut P, now: Nanos, id: DmaId, ok: bool) {
        let Some(ended) = self.dmas.end(p, &mut self.env, id, ok) else {
            return;
        };
        if let Some(port) = ended.page_of {
            self.ports.dma_ended(p, &mut self.env, port);
        }
        self.dmas.end_barriers(p, &mut self.env, id);
        // What this operation does next finds the slot free that it has just left. So nothing waits after it that does
        // not wait now, unless every slot is taken again: then there is another end.
        if self.dmas.anything_parked() {
            return self.go_on_and_resume(p, now, ended.holder, ok);
        }
        self.go_on(p, now, ended.holder, ok);
    }

    /// An operation goes on whose DMA has ended.
    #[inline(always)]
    fn go_on<P: Platform>(&mut self, p: &mut P, now: Nanos, holder: Holder, ok: bool) {
        match holder {
            Holder::Window(at) => self.moved(p, now, at, ok),
            Holder::Reply(read) => self.reply_moved(p, read, ok),
            Holder::Source(staging) => self.filled(p, now, staging, ok),
        }
    }

    /// The same where others wait for its slot.
    #[inline(never)]
    fn go_on_and_resume<P: Platform>(&mut self, p: &mut P, now: Nanos, holder: Holder, ok: bool) {
        self.go_on(p, now, holder, ok);
        self.resume_parked(p, now);
    }

    /// Gives free slots to operations that wait. Called after each completion and once in every pass, so none is left
    /// behind when those before turn out not to need their slot any more.
    #[inline]
    pub(super) fn resume_parked<P: Platform>(&mut self, p: &mut P, now: Nanos) {
        if self.dmas.anything_parked() {
            self.resume_some(p, now);
        }
    }

    #[cold]
    fn resume_some<P: Platform>(&mut self, p: &mut P, now: Nanos) {
        for _ in 0..SLOTS {
            match self.dmas.next_parked(&self.env) {
                Some(Holder::Window(at)) => self.resume(p, now, at),
                Some(Holder::Reply(read)) => self.place_reply(p, read),
                Some(Holder::Source(staging)) => self.fill_again(p, now, staging),
                None => return,
            }
        }
    }
}
