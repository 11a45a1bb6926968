//! One direction of a connection: a ring of entries in the receiver's memory, which the sender writes to.
//!
//! Each entry is one write with a notification, so as many entries are whole as signals have come. An entry lies within one page;
//! where the next one does not fit, an empty one fills the page up. The receiver says how far it has come in a word of the sender's
//! memory, and in the head of each entry that goes the other way.

use netvm::{Error, Export, Notification, Region, RemoteSegment, Word64, Write};
use zerocopy::{FromBytes, IntoBytes};

use crate::wire::{HEAD_BYTES, Head, Kind, PAGE, UNIT};

/// Bytes of a ring.
pub(crate) const RING: u64 = 256 << 10;
/// A ring's memory: a page for the word that the other side writes, and the ring.
pub(crate) const MEMORY: u64 = PAGE + RING;
/// Entries up to this size travel in their descriptor.
const SHORT: usize = 128;
/// The receiver says so once this much is free again.
const REPORT: u64 = RING / 4;

/// Where the entry `at` bytes behind the beginning of time stands.
const fn place(at: u64) -> u64 {
    PAGE + at % RING
}

/// What of this page is left.
const fn rest_of_page(at: u64) -> u64 {
    PAGE - at % PAGE
}

/// The ring that this side takes entries from.
pub(crate) struct Inbound {
    memory: Region,
    _export: Export,
    signal: Notification,
    /// Signals that were taken and not acknowledged.
    taken: u32,
    seq: u32,
    at: u64,
    reported: u64,
}

/// An entry, as it stands in the ring.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) head: Head,
    /// Where its bytes begin.
    body: u64,
}

/// The other side does not keep to the rules.
#[derive(Debug)]
pub(crate) struct Broken;

impl Inbound {
    pub(crate) fn new(memory: Region, export: Export, signal: Notification) -> Self {
        // Of the number's former use.
        let _ = signal.ack_up_to(u32::MAX);
        Self {
            memory,
            _export: export,
            signal,
            taken: 0,
            seq: 0,
            at: 0,
            reported: 0,
        }
    }

    /// The next entry, if one has come.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, Broken> {
        loop {
            if self.signal.pending() == self.taken {
                return Ok(None);
            }
            let mut bytes = [0; HEAD_BYTES];
            let at = place(self.at);
            self.memory.read_into(at, &mut bytes).map_err(|_| Broken)?;
            let head = Head::read_from_bytes(&bytes).map_err(|_| Broken)?;
            let len = HEAD_BYTES as u64 + u64::from(head.size);
            if head.seq != self.seq || len > rest_of_page(self.at) {
                return Err(Broken);
            }
            let entry = Entry {
                head,
                body: at + HEAD_BYTES as u64,
            };
            if head.kind != Kind::Skip as u8 {
                return Ok(Some(entry));
            }
            self.pass(rest_of_page(self.at));
        }
    }

    /// Copies an entry's bytes out.
    pub(crate) fn copy(&self, entry: &Entry, from: u64, into: &mut [u8]) -> Result<(), Broken> {
        let inside = from + into.len() as u64 <= u64::from(entry.head.size);
        let copied = inside.then(|| self.memory.read_into(entry.body + from, into));
        copied.and_then(Result::ok).ok_or(Broken)
    }

    /// The entry is done with.
    pub(crate) fn done(&mut self, entry: &Entry) {
        self.pass((HEAD_BYTES as u64 + u64::from(entry.head.size)).next_multiple_of(UNIT));
    }

    const fn pass(&mut self, len: u64) {
        self.at += len;
        self.seq = self.seq.wrapping_add(1);
        self.taken = self.taken.wrapping_add(1);
    }

    /// How far it has come, if the other side should be told by a write of its own.
    pub(crate) fn to_report(&self) -> Option<u64> {
        (self.at - self.reported >= REPORT).then_some(self.at)
    }

    /// How far it has come.
    pub(crate) const fn at(&self) -> u64 {
        self.at
    }

    /// The other side was told how far it has come.
    pub(crate) const fn reported(&mut self) {
        self.reported = self.at;
    }

    /// Acknowledges what was taken, so that the next signal is announced.
    pub(crate) fn rest(&mut self) {
        if self.taken > 0 {
            let acknowledged = self.signal.ack_up_to(self.taken).unwrap_or(0);
            self.taken -= acknowledged;
        }
    }

    /// Whether something waits in it.
    pub(crate) fn has_more(&self) -> bool {
        self.signal.pending() != self.taken
    }
}

/// The ring that this side writes entries to.
pub(crate) struct Outbound {
    remote: RemoteSegment,
    /// What was written, until it has left.
    copy: Region,
    /// How far the receiver has come.
    credit: Word64,
    used: u64,
    seq: u32,
    at: u64,
    signal: u32,
    /// The card has not been called for the last of what was written.
    rings: bool,
}

/// Whether the card is called for what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// It leaves at once.
    Now,
    /// More follows, and [`Outbound::rings`] says later that the card is to be called. What the card takes in one run leaves together.
    Later,
}

/// Why an entry was not written.
#[derive(Debug)]
pub(crate) enum Full {
    /// There is no room now.
    Now,
    /// The ring is gone.
    Gone(Error),
}

impl From<Error> for Full {
    fn from(error: Error) -> Self {
        match error {
            Error::NoRoom { .. } => Self::Now,
            error => Self::Gone(error),
        }
    }
}

impl Outbound {
    /// `credit` is the word in which the receiver says how far it has come.
    pub(crate) fn new(remote: RemoteSegment, copy: Region, credit: Word64, signal: u32) -> Self {
        Self {
            remote,
            copy,
            credit,
            used: 0,
            seq: 0,
            at: 0,
            signal,
            rings: false,
        }
    }

    /// The other side has come so far.
    pub(crate) fn heard(&mut self, used: u64) {
        // A number that makes no sense is the other side's own loss.
        if used > self.used && used <= self.at {
            self.used = used;
        }
    }

    /// How far the other side is known to have come.
    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    /// Behind the last entry that was written.
    pub(crate) const fn end(&self) -> u64 {
        self.at
    }

    fn has_room(&mut self, need: u64) -> bool {
        if self.at + need - self.used <= RING {
            return true;
        }
        let used = self.credit.load().unwrap_or(0);
        self.heard(used);
        self.at + need - self.used <= RING
    }

    /// Writes an entry: its head, and what `fill` puts behind it.
    ///
    /// # Errors
    /// There is no room, or the ring is gone. Nothing was written then, but perhaps an entry that fills a page up.
    pub(crate) fn put(
        &mut self,
        head: &mut Head,
        len: usize,
        calls: Calls,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Full> {
        let whole = HEAD_BYTES + len;
        let need = (whole as u64).next_multiple_of(UNIT);
        let rest = rest_of_page(self.at);
        if need > rest {
            if !self.has_room(rest + need) {
                return Err(Full::Now);
            }
            let skip = Head {
                seq: self.seq,
                ..Head::new(Kind::Skip)
            };
            self.write(skip.as_bytes(), calls)?;
            self.rings = calls == Calls::Later;
            self.pass(rest);
        } else if !self.has_room(need) {
            return Err(Full::Now);
        }
        head.seq = self.seq;
        head.size = len as u16;
        if whole <= SHORT {
            let mut bytes = [0; SHORT];
            let (start, body) = bytes.split_at_mut(HEAD_BYTES);
            start.copy_from_slice(head.as_bytes());
            fill(body.get_mut(..len).unwrap_or_default());
            self.write(bytes.get(..whole).unwrap_or_default(), calls)?;
        } else {
            self.write_long(head, len, calls, fill)?;
        }
        self.pass(need);
        self.rings = calls == Calls::Later;
        Ok(())
    }

    /// Whether the card is to be called for what was written. Says so once.
    pub(crate) const fn rings(&mut self) -> bool {
        core::mem::replace(&mut self.rings, false)
    }

    fn write(&self, bytes: &[u8], calls: Calls) -> Result<(), Full> {
        self.post(self.remote.write(place(self.at), bytes), calls)
    }

    fn post(&self, write: Write<'_>, calls: Calls) -> Result<(), Full> {
        let write = write.notify(self.signal).regardless();
        match calls {
            Calls::Now => write.try_post()?,
            Calls::Later => write.more().try_post()?,
        };
        Ok(())
    }

    fn write_long(
        &self,
        head: &Head,
        len: usize,
        calls: Calls,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Full> {
        let at = place(self.at);
        let copy = self.copy.atomics().and_then(|bytes| bytes.get(at as usize..));
        let copy = copy.and_then(|bytes| bytes.get(..HEAD_BYTES + len));
        let place = copy.ok_or(Full::Gone(Error::PortClosed))?.as_ptr();
        // SAFETY: the bytes are atomics, so they may be changed, and only this value uses them: the card has read what stood here
        // before, because the other side has taken it, or its place would not be free.
        let room =
            unsafe { core::slice::from_raw_parts_mut(place.cast_mut().cast::<u8>(), HEAD_BYTES + len) };
        let (start, body) = room.split_at_mut(HEAD_BYTES);
        start.copy_from_slice(head.as_bytes());
        fill(body);
        let slice = self.copy.slice(at..at + (HEAD_BYTES + len) as u64)?;
        self.post(self.remote.write(at, &slice), calls)
    }

    const fn pass(&mut self, len: u64) {
        self.at += len;
        self.seq = self.seq.wrapping_add(1);
    }

    /// Tells the other side, in a word of its memory, how far this side has come with its ring.
    pub(crate) fn tell(&self, at: u64) -> Result<(), Full> {
        let word = at.to_le_bytes();
        // In order, or an earlier number might be the last to land, and stay.
        let write = self.remote.write(0, &word).notify(self.signal + 1);
        write.ordered().regardless().try_post()?;
        Ok(())
    }

    /// The ring's node.
    pub(crate) fn node(&self) -> netvm::NodeId {
        self.remote.node()
    }
}
