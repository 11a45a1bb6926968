//! Links are looked after: whether the other side is still there, and whether a signal was suppressed.
//!
//! A card delivers no signal behind a failed operation of the same port to the same node until the port has heard of the
//! failure. That may have been an operation of another link to that node, or of the program. So after such news, or when
//! nothing is heard for long, a sender flushes, and tells by a word how much has landed. It sends nothing more until that is
//! answered: then no signal is under way that could be counted twice.

use crate::core::Core;
use crate::error::{End, Result};
use crate::layout::{CREDIT_BYTES, Sync, page};
use crate::link::{Phase, Resync};
use netvm::Nanos;

/// How long nothing happens before the first look.
const FIRST: u64 = 5_000_000;
/// Looks are at most this far apart.
const LONGEST: u64 = 500_000_000;
/// Waited so long, a sender doubts that its signals have come.
const DOUBT: u64 = 4 * FIRST;
/// How soon to look again for the end of an operation under way.
const SOON: u64 = 100_000;

impl Core {
    /// Looks after all links, if it is time for that.
    ///
    /// # Errors
    /// Those that end the port.
    pub(crate) fn tick(&mut self) -> Result<()> {
        let now = self.port.now();
        if now < self.next_tick {
            return Ok(());
        }
        self.next_tick = Nanos(now.0.saturating_add(FIRST));
        for at in 0..self.slots.len() {
            self.come_up(at, now)?;
            self.resync(at)?;
            let due = self.look(at, now)?;
            self.next_tick = self.next_tick.min(due);
            if let Some(end) = self.link(at).and_then(|link| link.end()) {
                self.end(at, end);
            }
        }
        Ok(())
    }

    /// Goes on with a resynchronization.
    fn resync(&mut self, at: usize) -> Result<()> {
        let Some(link) = self.link(at) else { return Ok(()) };
        let Phase::Ready(remote) = &link.phase else {
            return Ok(());
        };
        let (node, inbox) = (link.to.node, remote.inbox.clone());
        let id = remote.description.arrived + 1;
        if link.broken.is_some() {
            return Ok(());
        }
        match &mut link.resync {
            // The word may have been held back, too, behind a failure that the program has heard of instead.
            Resync::Quiet | Resync::Told(_) if link.doubts => match self.port.begin_flush_remote(node) {
                Ok(flush) => {
                    self.stats.looks += 1;
                    if let Some(link) = self.link(at) {
                        link.doubts = false;
                        link.resync = Resync::Flushes(flush);
                    }
                }
                Err(error) => self.resync_failed(at, &error)?,
            },
            Resync::Flushes(flush) => match flush.end() {
                None => {}
                Some(Ok(())) => {
                    let sync = Sync::new(link.out.writer.sent(), link.out.sync);
                    let number = link.out.writer.sent();
                    let word = sync.0.to_le_bytes();
                    let posted = self.post(at, || {
                        let write = inbox.write(page::SYNC, &word);
                        write.ordered().notify(id).post()
                    })?;
                    if let (Some(link), Some(op)) = (self.link(at), posted) {
                        link.out.in_flight.push_back((op, number));
                        link.out.sync = sync.0;
                        link.resync = Resync::Told(sync.0);
                    }
                }
                Some(Err(error)) => self.resync_failed(at, &error)?,
            },
            Resync::Quiet | Resync::Told(_) => {}
        }
        Ok(())
    }

    fn resync_failed(&mut self, at: usize, error: &netvm::Error) -> Result<()> {
        let heard = self.heard(error);
        self.alive(error)?;
        let Some(link) = self.link(at) else { return Ok(()) };
        link.resync = Resync::Quiet;
        link.doubts = true;
        if !heard && !matches!(error, netvm::Error::NoRoom { .. }) {
            link.broken.get_or_insert(End::Lost);
        }
        Ok(())
    }

    /// Looks at the other side when it is time. When it is the next time.
    fn look(&mut self, at: usize, now: Nanos) -> Result<Nanos> {
        let Some(link) = self.link(at) else {
            return Ok(Nanos::MAX);
        };
        let Phase::Ready(remote) = &link.phase else {
            return Ok(Nanos(now.0 + SOON));
        };
        let inbox = remote.inbox.clone();
        if let Some(ended) = link.look.as_mut().and_then(netvm::Pending::end) {
            link.look = None;
            match ended {
                Ok(()) => {
                    let credit = link.inbox.words.looked()?;
                    self.note_credit(at, credit);
                    self.dirty.push(at as u32);
                }
                Err(error) => {
                    self.heard(&error);
                    self.alive(&error)?;
                    if let Some(status) = error.status() {
                        self.broken(at, End::Gone(status));
                    }
                }
            }
        }
        let Some(link) = self.link(at) else {
            return Ok(Nanos::MAX);
        };
        let first = if link.out.expects() { FIRST } else { LONGEST };
        let (due, span) = *link.patience.get_or_insert((Nanos(now.0 + first), Nanos(first)));
        if now >= due {
            let next = Nanos((span.0 * 2).min(LONGEST));
            link.patience = Some((Nanos(now.0 + next.0), next));
            let is_behind = link.out.writer.sent() > link.out.writer.consumed();
            if next.0 >= DOUBT && (is_behind || matches!(link.resync, Resync::Told(_))) {
                link.doubts = true;
            }
            if link.look.is_none() {
                let into = link
                    .inbox
                    .memory
                    .slice(page::LOOK..page::LOOK + CREDIT_BYTES as u64)?;
                match inbox.read(page::OWN, &into).begin() {
                    Ok(look) => link.look = Some(look),
                    Err(error) => {
                        self.heard(&error);
                        self.alive(&error)?;
                    }
                }
                self.stats.looks += 1;
            }
        }
        let Some(link) = self.link(at) else {
            return Ok(Nanos::MAX);
        };
        let due = link.patience.map_or(due, |(due, _)| due);
        let is_busy = link.look.is_some() || link.doubts || !matches!(link.resync, Resync::Quiet);
        Ok(if is_busy {
            Nanos(now.0 + SOON).min(due)
        } else {
            due
        })
    }
}
