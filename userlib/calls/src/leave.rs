//! How batches leave: by one write each, that signals, and what that write may be told of.

use crate::config::Aggregation;
use crate::core::Core;
use crate::error::{End, Ended, Error, Result};
use crate::link::Phase;
use crate::notice::Waiter;
use crate::record;
use crate::ring::HEAD;
use netvm::{Nanos, OpId, Region, RemoteSegment, Write};

/// Payloads up to this many bytes are copied into the command: the library refuses none of them.
const INLINE: usize = 128;
/// Times that a post is repeated that was told of the failure of another.
const REPEATS: u32 = 1000;

impl Core {
    /// Sends the open batch, and what is queued behind it. Whether nothing is left.
    ///
    /// # Errors
    /// Those that end the port.
    pub(crate) fn flush(&mut self, at: usize) -> Result<bool> {
        loop {
            self.refill(at);
            let Some(link) = self.link(at) else {
                return Ok(true);
            };
            if link.out.records == 0 {
                return Ok(link.out.queue.is_empty());
            }
            if !link.may_send() {
                return Ok(false);
            }
            let Phase::Ready(remote) = &link.phase else {
                return Ok(false);
            };
            let len = link.out.open.len() as u64 - HEAD;
            let Some(place) = link.out.writer.place(len) else {
                link.out.pushed_back += 1;
                self.stats.pushed_back += 1;
                return Ok(false);
            };
            let number = link.out.writer.sent();
            let chunks = link.out.writer.chunks();
            let (inbox, base) = (remote.inbox.clone(), remote.description.chunks_at());
            let (mirror, arrived) = (remote.mirror.clone(), remote.description.arrived);
            if let Some(room) = link.out.open.first_chunk_mut::<{ HEAD as usize }>() {
                *room = place.head;
            }
            let mut open = std::mem::take(&mut link.out.open);
            let posted = self.put(at, number, || {
                if let Some((offset, jump)) = &place.jump {
                    inbox.write(base + offset, jump).post()?;
                }
                let to = inbox_write(&inbox, &mirror, base, place.offset, &open)?;
                to.notify(arrived).post()
            });
            open.truncate(HEAD as usize);
            self.stats.batches += 1;
            self.stats.most_chunks = self.stats.most_chunks.max(chunks);
            if let Some(link) = self.link(at) {
                let out = &mut link.out;
                out.open = open;
                out.records = 0;
                if posted.is_err() {
                    link.broken.get_or_insert(End::Lost);
                    return posted.map(|()| false);
                }
                out.urgent = false;
                out.open_since = None;
                for sent in out.sent.drain(..) {
                    sent.end(true);
                }
            }
        }
    }

    /// Posts a batch's operations, and notes them.
    fn put(&mut self, at: usize, number: u64, post: impl Fn() -> netvm::Result<OpId>) -> Result<()> {
        let posted = self.post(at, post)?;
        if let (Some(link), Some(op)) = (self.link(at), posted) {
            link.out.in_flight.push_back((op, number));
        }
        Ok(())
    }

    /// Posts something, again where it was told of the failure of something else. Nothing: the link is broken.
    ///
    /// # Errors
    /// Those that end the port.
    pub(crate) fn post(&mut self, at: usize, post: impl Fn() -> netvm::Result<OpId>) -> Result<Option<OpId>> {
        for _ in 0..REPEATS {
            if self.link(at).is_none_or(|link| link.broken.is_some()) {
                return Ok(None);
            }
            match post() {
                Ok(op) => return Ok(Some(op)),
                Err(error) if self.heard(&error) => {}
                Err(error) => {
                    // What the other side offers does not fit what it says, or memory here cannot be had.
                    let end = error.status().map_or(End::Malformed, End::Gone);
                    self.broken(at, end);
                    return self.alive(&error).map(|()| None);
                }
            }
        }
        self.broken(at, End::Lost);
        Ok(None)
    }

    /// A link is to end, for the first reason that is found.
    ///
    /// The other side may have left, and something of ours failed because it is not there any more. Its farewell landed before that,
    /// so it is seen here, though its signal was not heard yet.
    pub(crate) fn broken(&mut self, at: usize, end: End) {
        self.next_tick = Nanos(0);
        let Some(link) = self.link(at).filter(|link| link.broken.is_none()) else {
            return;
        };
        let farewell = match end {
            End::Gone(_) => link.inbox.words.farewell.load().unwrap_or(0),
            _ => 0,
        };
        let Some(sent) = farewell.checked_sub(1) else {
            link.broken = Some(end);
            return;
        };
        link.farewell = Some(sent);
        link.broken = Some(End::Left);
        self.landed(at, sent);
        self.dirty.push(at as u32);
    }

    /// An error that ends the port is the program's.
    pub(crate) fn alive(&self, error: &netvm::Error) -> Result<()> {
        match error {
            netvm::Error::PortClosed | netvm::Error::PortEnded { .. } => Err(Error::Library(*error)),
            _ => Ok(()),
        }
    }

    /// Something that was posted before has failed. Whose it is ends; for others to the same node, signals may have been
    /// suppressed. Whether it was such an error.
    pub(crate) fn heard(&mut self, error: &netvm::Error) -> bool {
        let (node, failure) = match error {
            netvm::Error::Failed(failure) => (Some(failure.node), Some(failure)),
            netvm::Error::StreamFailed { node } => (Some(*node), None),
            netvm::Error::FailuresLost { .. } => (None, None),
            _ => return false,
        };
        self.next_tick = Nanos(0);
        let mut broken = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let Some(link) = slot.link.as_deref_mut() else {
                continue;
            };
            if node.is_some_and(|node| node != link.to.node) {
                continue;
            }
            let own = failure.and_then(|failure| {
                let mut in_flight = link.out.in_flight.iter();
                in_flight
                    .find(|(op, _)| *op == failure.op)
                    .map(|_| failure.status)
            });
            match (own, node) {
                (Some(status), _) => broken.push((at, End::Gone(status))),
                (None, Some(_)) => link.doubts |= link.is_ready(),
                // Which it was is not known.
                (None, None) if link.out.writer.sent() > link.out.writer.consumed() => {
                    broken.push((at, End::Lost));
                }
                (None, None) => {}
            }
        }
        for (at, end) in broken {
            self.broken(at, end);
        }
        true
    }

    /// Moves what is queued into the open batch, as far as that has room.
    fn refill(&mut self, at: usize) {
        let aggregation = self.config.aggregation;
        let mut refused = Vec::new();
        let Some(link) = self.link(at) else { return };
        let Phase::Ready(remote) = &mut link.phase else {
            return;
        };
        let limit = remote.description.shape.longest();
        let most = match aggregation {
            Aggregation::None => 0,
            Aggregation::Packed { bytes, .. } | Aggregation::Overflow { bytes } => u64::from(bytes),
        };
        let out = &mut link.out;
        while let Some(first) = out.queue.front() {
            let whole = (out.open.len() + first.record.len()) as u64;
            if out.records > 0 && whole > most.min(limit + HEAD) {
                break;
            }
            let Some(mut queued) = out.queue.pop_front() else {
                break;
            };
            let len = queued.record.len() as u64;
            out.queued_bytes = out.queued_bytes.saturating_sub(len);
            let resolved = match queued.unresolved {
                None => Ok(()),
                Some((id, name)) => remote
                    .functions
                    .find(id, name, link.to)
                    .map(|slot| record::set_slot(&mut queued.record, slot)),
            };
            let fits = resolved.and(if len > limit {
                Err(Error::TooLong { len, limit })
            } else {
                Ok(())
            });
            if fits.is_err() {
                let name = queued.unresolved.map_or("", |(_, name)| name);
                if matches!(queued.waiter, Some(Waiter::Reply(_) | Waiter::Passed(_))) {
                    out.unanswered = out.unanswered.saturating_sub(1);
                }
                refused.push((queued.waiter, queued.sent, name, out.calls));
                continue;
            }
            out.open.extend_from_slice(&queued.record);
            out.packed(queued.is_call, queued.waiter, queued.sent);
        }
        for (waiter, sent, name, number) in refused {
            if let Some(sent) = sent {
                sent.end(false);
            }
            self.failed(at, waiter, name, number, Ended::NoFunction);
        }
    }

    /// Sends what is due: full batches, answers, what has waited long enough; with `all`, everything.
    pub(crate) fn flush_due(&mut self, all: bool) -> Result<()> {
        let delay = match self.config.aggregation {
            Aggregation::Packed { delay, .. } => delay.as_nanos() as u64,
            _ => 0,
        };
        let now = if all { Nanos(0) } else { self.port.now() };
        let mut listed = std::mem::take(&mut self.unsent);
        let mut result = Ok(());
        listed.retain(|&at| {
            let at = at as usize;
            let Some(link) = self.link(at) else { return false };
            let out = &mut link.out;
            let since = *out.open_since.get_or_insert(now);
            let is_due = all || out.urgent || !out.queue.is_empty() || now.0.saturating_sub(since.0) >= delay;
            if is_due && result.is_ok() {
                result = self.flush(at).map(drop);
            }
            // Calls are done once their answers are on their way.
            if is_due && result.is_ok() {
                result = self.tell_credit(at);
            }
            let Some(link) = self.link(at) else { return false };
            link.out.listed = link.out.has_unsent();
            link.out.listed
        });
        // What was listed meanwhile stands behind.
        listed.append(&mut self.unsent);
        self.unsent = listed;
        result
    }
}

/// The write of a batch: small ones from where they are, others from the mirror, which no one waits for.
fn inbox_write<'a>(
    inbox: &'a RemoteSegment,
    mirror: &Region,
    base: u64,
    offset: u64,
    batch: &'a [u8],
) -> netvm::Result<Write<'a>> {
    if batch.len() <= INLINE {
        return Ok(inbox.write(base + offset, batch));
    }
    mirror.write_from(offset, batch)?;
    let slice = mirror.slice(offset..offset + batch.len() as u64)?;
    Ok(inbox.write(base + offset, slice))
}
