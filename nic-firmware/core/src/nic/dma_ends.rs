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
        match ended.holder {
            Holder::Window(at) => self.moved(p, now, at, ok),
            Holder::Reply(read) => self.reply_moved(p, read, ok),
            Holder::Source(staging) => self.filled(p, now, staging, ok),
        }
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
