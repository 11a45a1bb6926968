//! What the other card has received needs no copy any more.

use super::Links;
use super::copies::{Copies, Lane, Line, NONE};
use super::resend::{kept_index, pass};
use crate::config::Config;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Receipt, Received};
use netvm_abi::{Nanos, NodeId, Seq, StagingId};

/// What a receipt has told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heard {
    /// The way is congested.
    pub(crate) congested: bool,
    /// So many messages that are lost may leave again.
    pub(crate) again: u32,
}

impl<S: Storage> Links<S> {
    /// Takes in what the other card has received. `freed` gets each staging buffer that is not needed any more.
    pub(crate) fn confirm(
        &mut self,
        config: &Config,
        now: Nanos,
        id: NodeId,
        receipt: &Receipt,
        mut freed: impl FnMut(StagingId),
    ) -> Heard {
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return Heard::default();
        };
        let (next, held) = (peer.credits.next(), peer.windows);
        let resend = &mut peer.resend;
        let mut lane = Confirmed {
            copies: &mut self.copies,
            kept: &mut self.kept,
            line: &mut resend.line,
            freed: &mut freed,
            count: 0,
        };
        let of = |lane| move |number| kept_index(config, held, (lane, number));
        let before = resend.requests;
        lane.confirm(&mut resend.requests, next, &receipt.requests, of(Lane::Requests));
        if lane.count != 0 {
            peer.refused = 0;
        }
        // Each number that is passed has been let go, now or as one beyond.
        let beyond = u32::from(resend.beyond) + lane.count;
        resend.beyond = beyond.saturating_sub(resend.requests.since(before)) as u16;
        lane.confirm(
            &mut resend.answers,
            resend.next_answer,
            &receipt.answers,
            of(Lane::Answers),
        );
        let received = lane.count;
        let size = peer.credits.size();
        let congested = resend.hears(now, receipt, size, &config.timers);
        resend.makes_room();
        let window = resend.congestion.window();
        peer.credits.fits_wire(window);
        let out = resend.requests_out(next);
        pass(resend, next, &self.copies, |place| {
            self.kept.get(kept_index(config, held, place)).copied()
        });
        if resend.awaits(next) || peer.credits.in_flight() != 0 {
            self.arm_resend(config, id, now);
        }
        Heard {
            congested,
            // Where more is out than the wire has room for, what comes back makes room.
            again: if out > window { received + 1 } else { u32::MAX },
        }
    }

    /// The life of a link is over: lets go of all copies that it has. `freed` gets the staging buffers that they had.
    pub(crate) fn drop_copies(&mut self, config: &Config, id: NodeId, mut freed: impl FnMut(StagingId)) {
        let Some(peer) = self.peers.get_mut(id.index()).filter(|peer| peer.lossy) else {
            return;
        };
        let (next, held) = (peer.credits.next(), peer.windows);
        let resend = &mut peer.resend;
        for lane in [Lane::Requests, Lane::Answers] {
            let (first, end) = resend.out(lane, next);
            let mut all = Confirmed {
                copies: &mut self.copies,
                kept: &mut self.kept,
                line: &mut resend.line,
                freed: &mut freed,
                count: 0,
            };
            for ahead in 0..end.since(first) {
                all.let_go(kept_index(config, held, (lane, first.plus(ahead))));
            }
        }
        (resend.requests, resend.answers) = (next, resend.next_answer);
        resend.beyond = 0;
        resend.makes_room();
        (resend.fresh_requests, resend.fresh_answers) = (next, resend.next_answer);
    }
}

/// Lets go of copies.
struct Confirmed<'a, S: Storage, F> {
    copies: &'a mut Copies<S>,
    kept: &'a mut [u16],
    line: &'a mut Line,
    freed: &'a mut F,
    /// Messages whose copies have been let go.
    count: u32,
}

impl<S: Storage, F: FnMut(StagingId)> Confirmed<'_, S, F> {
    /// Lets go of what has been received of one lane, whose numbers from `from` on have not been confirmed, and whose
    /// next message has the number `next`; `index` is where the copy of each stands. A receipt that names what has not
    /// been sent is ignored.
    #[inline(always)]
    fn confirm(&mut self, from: &mut Seq, next: Seq, received: &Received, index: impl Fn(Seq) -> usize) {
        let out = next.since(*from);
        let done = received.next.since(*from);
        // An acknowledgement that a later one has overtaken, or nonsense.
        if done > out {
            return;
        }
        for ahead in 0..done {
            self.let_go(index(from.plus(ahead)));
        }
        *from = received.next;
        let (mut beyond, bits) = (received.beyond, received.from.since(received.next));
        while beyond != 0 {
            let ahead = bits.wrapping_add(beyond.trailing_zeros());
            beyond &= beyond - 1;
            if ahead < out - done {
                self.let_go(index(received.next.plus(ahead)));
            }
        }
    }

    #[inline(always)]
    fn let_go(&mut self, index: usize) {
        let Some(kept) = self.kept.get_mut(index) else {
            return;
        };
        if mutant::is(Mutant::CopyKept) && *kept == 3 {
            *kept = NONE;
        }
        let copy = core::mem::replace(kept, NONE);
        let Some(staging) = self.copies.release(copy, self.line) else {
            return;
        };
        self.count += 1;
        if let Some(staging) = staging {
            (self.freed)(staging);
        }
    }
}
