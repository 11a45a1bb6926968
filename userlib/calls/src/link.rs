//! A link: two endpoints, an inbox at each, and what each keeps of what is under way between them.

use crate::error::{End, Ended, Error, Result};
use crate::function::Id;
use crate::layout::{Credit, Description, Done, decode_table, page};
use crate::notice::{Synchronizer, Waiter};
use crate::ring::{HEAD, Reader, Writer};
use netvm::{
    Export, Nanos, NodeId, Notification, OpId, Pending, PendingCall, PortId, Region, RemoteSegment, Word64,
};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Where an endpoint is: its node and port. An endpoint is a thread's, so this names a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Its node.
    pub node: NodeId,
    /// Its port.
    pub port: PortId,
}

impl Address {
    /// The endpoint at this port.
    pub fn new(node: impl Into<NodeId>, port: impl Into<PortId>) -> Self {
        Self {
            node: node.into(),
            port: port.into(),
        }
    }
}

/// A link of an endpoint, by which it calls. Of one life: a link to a peer that has died and come back is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    pub(crate) index: u32,
    pub(crate) life: u32,
}

/// Hashes what is a hash already.
#[derive(Default)]
pub(crate) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// A function of the other side.
struct Offered {
    slot: u16,
    signature: u64,
    /// What this side calls it, once it has called it.
    name: &'static str,
}

/// The functions of the other side, by the hashes of their names.
#[derive(Default)]
pub(crate) struct Functions {
    by_name: HashMap<u64, Offered, BuildHasherDefault<AsIs>>,
    /// The one that was found last: often the next one, too.
    last: Option<(Id, u16)>,
}

impl Functions {
    pub(crate) fn decode(table: &[u8]) -> Self {
        let entries = decode_table(table).zip(0..).map(|(id, slot)| {
            let offered = Offered {
                slot,
                signature: id.signature,
                name: "",
            };
            (id.name, offered)
        });
        Self {
            by_name: entries.collect(),
            last: None,
        }
    }

    /// The slot of a function.
    #[inline]
    pub(crate) fn find(&mut self, id: Id, name: &'static str, to: Address) -> Result<u16> {
        if let Some((last, slot)) = self.last
            && last == id
        {
            return Ok(slot);
        }
        let (node, port) = (to.node, to.port);
        match self.by_name.get_mut(&id.name) {
            Some(offered) if offered.signature == id.signature => {
                if offered.name.is_empty() {
                    offered.name = name;
                }
                self.last = Some((id, offered.slot));
                Ok(offered.slot)
            }
            Some(_) => Err(Error::Signature { name, node, port }),
            None => Err(Error::Unknown { name, node, port }),
        }
    }

    /// What the function in this slot is called here; nothing if this side has never called it.
    pub(crate) fn name(&self, slot: u16) -> &'static str {
        let mut offered = self.by_name.values();
        offered
            .find(|offered| offered.slot == slot)
            .map_or("", |offered| offered.name)
    }
}

/// The other side, once it is known.
pub(crate) struct Remote {
    pub(crate) inbox: RemoteSegment,
    pub(crate) description: Description,
    pub(crate) functions: Functions,
    /// Batches lie here as they do there, and leave from here. A place is used again when it was consumed there, so it was
    /// read here long before.
    pub(crate) mirror: Region,
}

/// How far a link has come.
pub(crate) enum Phase {
    /// The other side's inbox is being imported.
    Importing(PendingCall<RemoteSegment>),
    /// It is there; its description is about to be read.
    Found(RemoteSegment),
    /// Its description is being read.
    Describing(RemoteSegment, Region, Pending),
    /// It is known; its table of functions is about to be read.
    Described(RemoteSegment, Description),
    /// Its table of functions is being read.
    Learning(RemoteSegment, Description, Region, Pending),
    /// Calls go.
    Ready(Remote),
}

/// This side's inbox. The export goes before the memory.
pub(crate) struct Inbox {
    pub(crate) _export: Export,
    pub(crate) memory: Region,
    pub(crate) description: Description,
    /// A batch has landed.
    pub(crate) arrived: Notification,
    /// A word has.
    pub(crate) told: Notification,
    pub(crate) words: Words,
}

/// The words of an inbox.
pub(crate) struct Words {
    credit: [Word64; 3],
    pub(crate) farewell: Word64,
    pub(crate) sync: Word64,
    own: [Word64; 3],
    look: [Word64; 3],
}

impl Words {
    pub(crate) fn of(memory: &Region) -> netvm::Result<Self> {
        let three = |at: u64| -> netvm::Result<[Word64; 3]> {
            Ok([
                memory.word64(at)?,
                memory.word64(at + 8)?,
                memory.word64(at + 16)?,
            ])
        };
        Ok(Self {
            credit: three(page::CREDIT)?,
            farewell: memory.word64(page::FAREWELL)?,
            sync: memory.word64(page::SYNC)?,
            own: three(page::OWN)?,
            look: three(page::LOOK)?,
        })
    }

    fn load(words: &[Word64; 3]) -> netvm::Result<Credit> {
        let [consumed, done, sync] = words;
        // The last word first: what it says is true of what is loaded after it.
        let sync = sync.load()?;
        let done = Done(done.load()?);
        let consumed = consumed.load()?;
        Ok(Credit { consumed, done, sync })
    }

    /// What the other side has written.
    pub(crate) fn credit(&self) -> netvm::Result<Credit> {
        Self::load(&self.credit)
    }

    /// What a look has read.
    pub(crate) fn looked(&self) -> netvm::Result<Credit> {
        Self::load(&self.look)
    }

    /// What the other side's looks find.
    pub(crate) fn set_own(&self, credit: Credit) -> netvm::Result<()> {
        let [consumed, done, sync] = &self.own;
        consumed.store(credit.consumed)?;
        done.store(credit.done.0)?;
        sync.store(credit.sync)
    }
}

/// A record that waits for its turn.
pub(crate) struct Queued {
    /// Whole, with a slot of 0 if the function's is not known yet.
    pub(crate) record: Vec<u8>,
    /// The function whose slot is not known yet.
    pub(crate) unresolved: Option<(Id, &'static str)>,
    pub(crate) is_call: bool,
    pub(crate) waiter: Option<Waiter>,
    pub(crate) sent: Option<Synchronizer>,
}

/// What this side sends.
pub(crate) struct Outgoing {
    /// The batch that is being packed, behind room for its head.
    pub(crate) open: Vec<u8>,
    /// Its records.
    pub(crate) records: u32,
    /// It has answers: those do not wait for more.
    pub(crate) urgent: bool,
    /// Since when it is known to wait.
    pub(crate) open_since: Option<Nanos>,
    /// It is in the endpoint's list of those that have something to send.
    pub(crate) listed: bool,
    /// Waits for its turn behind the open batch.
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) queued_bytes: u64,
    pub(crate) writer: Writer,
    /// Calls packed so far: the next one's number.
    pub(crate) calls: u64,
    /// Calls that wait for a result, by their numbers, in order.
    pub(crate) awaiting: VecDeque<(u64, Option<Waiter>)>,
    /// How many of these are not over.
    pub(crate) unanswered: u32,
    /// Counters of consumed calls, by the calls' numbers, in order.
    pub(crate) counted: VecDeque<(u64, Option<Synchronizer>)>,
    /// Counters of sent calls, of the open batch.
    pub(crate) sent: Vec<Synchronizer>,
    /// Operations of batches that are not known to be consumed.
    pub(crate) in_flight: VecDeque<(OpId, u64)>,
    /// Calls that are known to be done.
    pub(crate) done: u64,
    /// The last resynchronization that the other side was told of.
    pub(crate) sync: u64,
    /// The number of times that there was no place for a batch.
    pub(crate) pushed_back: u64,
}

impl Outgoing {
    pub(crate) fn new(writer: Writer) -> Self {
        Self {
            open: vec![0; HEAD as usize],
            records: 0,
            urgent: false,
            open_since: None,
            listed: false,
            queue: VecDeque::new(),
            queued_bytes: 0,
            writer,
            calls: 0,
            awaiting: VecDeque::new(),
            unanswered: 0,
            counted: VecDeque::new(),
            sent: Vec::new(),
            in_flight: VecDeque::new(),
            done: 0,
            sync: 0,
            pushed_back: 0,
        }
    }

    /// Whether something waits to leave.
    pub(crate) fn has_unsent(&self) -> bool {
        self.records > 0 || !self.queue.is_empty()
    }

    /// Whether something is under way that the other side has to do something about.
    pub(crate) fn expects(&self) -> bool {
        self.has_unsent()
            || self.unanswered > 0
            || !self.counted.is_empty()
            || self.writer.sent() > self.writer.consumed()
    }

    /// A record was packed.
    #[inline]
    pub(crate) fn packed(&mut self, is_call: bool, waiter: Option<Waiter>, sent: Option<Synchronizer>) {
        self.records += 1;
        if !is_call {
            self.urgent = true;
            return;
        }
        let number = self.calls;
        self.calls += 1;
        match waiter {
            None => {}
            Some(Waiter::Consumed(counter)) => self.counted.push_back((number, Some(counter))),
            Some(waiter) => self.awaiting.push_back((number, Some(waiter))),
        }
        self.sent.extend(sent);
    }

    /// Takes what waits for the answer to this call.
    pub(crate) fn answered(&mut self, number: u64) -> Option<Waiter> {
        let at = self.awaiting.binary_search_by_key(&number, |(number, _)| *number);
        let waiter = self.awaiting.get_mut(at.ok()?)?.1.take()?;
        while let Some((_, None)) = self.awaiting.front() {
            self.awaiting.pop_front();
        }
        self.unanswered = self.unanswered.saturating_sub(1);
        Some(waiter)
    }

    /// Takes the counter of a call that has failed before it was done.
    pub(crate) fn uncounted(&mut self, number: u64) -> Option<Synchronizer> {
        let at = self.counted.binary_search_by_key(&number, |(number, _)| *number);
        self.counted.get_mut(at.ok()?)?.1.take()
    }

    /// The other side has consumed so many batches. Whether that says something new; nothing: no honest side says so.
    pub(crate) fn note_consumed(&mut self, batches: u64) -> Option<bool> {
        // What was read before what was acted upon last says nothing new.
        if batches <= self.writer.consumed() {
            return Some(false);
        }
        if !self.writer.note_consumed(batches) {
            return None;
        }
        let mut in_flight = self.in_flight.iter();
        let over = in_flight
            .position(|(_, number)| *number > batches)
            .unwrap_or(self.in_flight.len());
        self.in_flight.drain(..over);
        Some(true)
    }

    /// The other side has run so many calls, of whose answers those in the first `taken` batches have been heard. Whether an honest
    /// one says so.
    pub(crate) fn note_done(&mut self, done: Done, taken: u64) -> bool {
        let calls = done.calls(self.done);
        if calls <= self.done || !done.is_answered(taken) {
            return true;
        }
        if calls > self.calls {
            return false;
        }
        self.done = calls;
        while let Some((number, _)) = self.counted.front()
            && *number < calls
        {
            if let Some((_, Some(counter))) = self.counted.pop_front() {
                counter.end(true);
            }
        }
        true
    }
}

/// What this side receives.
pub(crate) struct Incoming {
    pub(crate) reader: Reader,
    /// Batches that have landed and were not taken.
    pub(crate) ready: u64,
    /// Calls run, and batches consumed.
    pub(crate) calls: u64,
    /// What the other side was told.
    pub(crate) told: Credit,
    /// Calls that it was told are done.
    pub(crate) told_done: u64,
    /// The last resynchronization seen.
    pub(crate) sync: u64,
    /// A call was run whose caller counts.
    pub(crate) counted: bool,
    /// A chunk was left, or half of one was consumed, since the other side was told.
    pub(crate) owes: bool,
    /// Bytes consumed since.
    pub(crate) bytes: u64,
    /// What was read of the ring, again and again.
    pub(crate) scratch: Vec<u8>,
    /// Exports of the other side that calls had read, by name.
    pub(crate) sources: Vec<(String, RemoteSegment)>,
}

impl Incoming {
    pub(crate) const fn new(reader: Reader) -> Self {
        Self {
            reader,
            ready: 0,
            calls: 0,
            told: Credit {
                consumed: 0,
                done: Done(0),
                sync: 0,
            },
            told_done: 0,
            sync: 0,
            counted: false,
            owes: false,
            bytes: 0,
            scratch: Vec::new(),
            sources: Vec::new(),
        }
    }
}

/// A resynchronization: what signals may have been suppressed is told by a word instead.
pub(crate) enum Resync {
    /// None.
    Quiet,
    /// All that was sent is being flushed.
    Flushes(Pending),
    /// It was told what has landed, and has to say that it has seen this.
    Told(u64),
}

pub(crate) struct Link {
    pub(crate) to: Address,
    pub(crate) serial: u64,
    pub(crate) phase: Phase,
    pub(crate) inbox: Inbox,
    pub(crate) out: Outgoing,
    pub(crate) inc: Incoming,
    /// Its words are being read.
    pub(crate) look: Option<Pending>,
    pub(crate) resync: Resync,
    /// Signals of what was sent may have been suppressed.
    pub(crate) doubts: bool,
    /// When it has to be up.
    pub(crate) deadline: Nanos,
    /// When to look next, and how long after the look before.
    pub(crate) patience: Option<(Nanos, Nanos)>,
    /// The other side has said farewell, after so many batches: all of them have landed.
    pub(crate) farewell: Option<u64>,
    /// It is about to end.
    pub(crate) broken: Option<End>,
}

impl Link {
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready(_))
    }

    /// Whether what has landed is to be taken: also after the other side has left, which then gets no answers.
    pub(crate) fn may_take(&self) -> bool {
        match self.broken {
            Some(End::Malformed) => false,
            Some(_) => self.farewell.is_some(),
            // What is heard of a link that is not up here yet would be answered to nowhere: it waits.
            None => self.is_ready() || self.farewell.is_some(),
        }
    }

    /// Why it ends now: not before all is taken that the other side has said is there.
    pub(crate) fn end(&self) -> Option<End> {
        let sent = self.farewell.unwrap_or_default();
        match self.broken {
            Some(end) if end != End::Malformed && self.inc.reader.taken() < sent => None,
            end => end,
        }
    }

    /// Whether batches may leave.
    pub(crate) const fn may_send(&self) -> bool {
        self.is_ready() && self.broken.is_none() && !self.doubts && matches!(self.resync, Resync::Quiet)
    }

    /// All that waits for something of it hears why it has ended. Gives the broadcasts that it was to pass on.
    pub(crate) fn fail_all(&mut self, end: End) -> Vec<u64> {
        let mut passed = Vec::new();
        let out = &mut self.out;
        let queued = out.queue.drain(..).flat_map(|queued| {
            if let Some(sent) = queued.sent {
                sent.end(false);
            }
            queued.waiter
        });
        let waiters = out.awaiting.drain(..).filter_map(|(_, waiter)| waiter);
        let counters = out.counted.drain(..).filter_map(|(_, counter)| counter);
        for sent in out.sent.drain(..) {
            sent.end(false);
        }
        for waiter in waiters.chain(counters.map(Waiter::Consumed)).chain(queued) {
            match waiter {
                Waiter::Reply(cell) => cell.fail(Ended::Link(end)),
                Waiter::Consumed(counter) => counter.end(false),
                Waiter::Passed(place) => passed.push(place),
            }
        }
        passed
    }
}

/// A place for links, one after the other.
pub(crate) struct Slot {
    pub(crate) life: u32,
    pub(crate) link: Option<Box<Link>>,
    /// Why the last one has ended.
    pub(crate) last: End,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Shape;

    /// A link over which two counted calls have left, in one batch.
    fn two_calls(counter: &Synchronizer) -> Outgoing {
        let shape = Shape {
            chunk_bytes: 64,
            chunks: 2,
        };
        let mut out = Outgoing::new(Writer::new(shape));
        for _ in 0..2 {
            counter.add();
            out.packed(true, Some(Waiter::Consumed(counter.clone())), None);
        }
        assert!(out.writer.place(16).is_some());
        out
    }

    #[test]
    fn a_count_that_overtakes_the_answers_waits_for_them() {
        let counter = Synchronizer::new();
        let mut out = two_calls(&counter);
        let done = Done::new(2, 3);
        assert!(out.note_done(done, 2));
        assert_eq!(counter.open(), 2);
        // The last of three batches has the answer of a call that has failed.
        out.uncounted(0).unwrap().end(false);
        assert!(out.note_done(done, 3));
        assert_eq!((counter.open(), counter.failed()), (0, 1));
    }

    #[test]
    fn counts_of_calls_and_batches_that_were_not_sent_are_refused() {
        let mut out = two_calls(&Synchronizer::new());
        assert!(!out.note_done(Done::new(3, 0), 0));
        assert_eq!(out.note_consumed(2), None);
        assert_eq!(out.note_consumed(1), Some(true));
        assert_eq!(out.note_consumed(1), Some(false));
    }
}
