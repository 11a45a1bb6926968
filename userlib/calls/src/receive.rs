//! What arrives: batches are taken, functions run, answers end what waits for them.

use crate::context::{Buffer, Context};
use crate::core::Core;
use crate::error::{End, Result};
use crate::layout::{Credit, Done, Sync};
use crate::link::{Address, Phase, Resync};
use crate::notice::Waiter;
use crate::record::{self, Body, Head, Where, kind, status};
use crate::registry::Registry;
use crate::ring::Step;
use netvm::{Nanos, RegionSlice, RemoteSegment, Timeout};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Batches of a link that are taken before others have their turn.
const TURN: u32 = 64;
/// The export of a buffer is there when its call comes: its node is asked once.
const IMPORT: Timeout = Timeout::Now;
/// Exports of another side that are kept imported.
const SOURCES: usize = 16;

impl Core {
    /// Sees what has come over a link. Whether anything has.
    ///
    /// # Errors
    /// Those that end the port.
    pub(crate) fn service(&mut self, registry: &mut Registry, at: usize) -> Result<bool> {
        let Some(link) = self.link(at) else {
            return Ok(false);
        };
        // Before the words are read: one that comes after has a signal of its own.
        link.inbox.told.ack_up_to(u32::MAX)?;
        let words = &link.inbox.words;
        let (credit, farewell, sync) = (words.credit()?, words.farewell.load()?, words.sync.load()?);
        let landed = link.inbox.arrived.ack_up_to(u32::MAX)?;
        link.inc.ready += u64::from(landed);
        if sync != link.inc.sync {
            // Nothing was sent after this, and nothing will be before it is answered: all signals have come.
            link.inc.sync = sync;
            link.inc.owes = true;
            self.landed(at, Sync(sync).sent());
        }
        if let Some(sent) = farewell.checked_sub(1) {
            self.landed(at, sent);
            if let Some(link) = self.link(at) {
                link.farewell = Some(sent);
            }
        }
        let took = self.take(registry, at)?;
        self.note_credit(at, credit);
        self.tell_credit(at)?;
        if let Some(link) = self.link(at) {
            if took > 0 {
                link.patience = None;
            }
            if link.inc.ready > 0 && link.may_take() {
                self.dirty.push(at as u32);
            } else if link.farewell == Some(link.inc.reader.taken()) {
                link.broken.get_or_insert(End::Left);
                self.next_tick = Nanos(0);
            }
        }
        Ok(took > 0 || credit != Credit::default())
    }

    /// So many batches have landed in all.
    pub(crate) fn landed(&mut self, at: usize, sent: u64) {
        let Some(link) = self.link(at) else { return };
        match sent.checked_sub(link.inc.reader.taken()) {
            Some(ready) => link.inc.ready = ready,
            None => {
                link.broken.get_or_insert(End::Malformed);
            }
        }
    }

    /// Takes batches that have landed, and does what they say. How many.
    fn take(&mut self, registry: &mut Registry, at: usize) -> Result<u32> {
        let mut took = 0;
        while took < TURN {
            let Some(link) = self.link(at) else { break };
            if link.inc.ready == 0 || !link.may_take() {
                break;
            }
            let base = link.inbox.description.chunks_at();
            let mut head = [0; 8];
            link.inbox
                .memory
                .read_into(base + link.inc.reader.offset(), &mut head)?;
            let shape = link.inbox.description.shape;
            match link.inc.reader.take(head) {
                None => {
                    link.broken.get_or_insert(End::Malformed);
                    break;
                }
                Some(Step::Jump) => link.inc.owes = true,
                Some(Step::Batch { offset, len }) => {
                    let mut batch = std::mem::take(&mut link.inc.scratch);
                    batch.resize(len as usize, 0);
                    if let Err(error) = link.inbox.memory.read_into(base + offset, &mut batch) {
                        // The head is taken, and what follows cannot be had.
                        let end = error.status().map_or(End::Lost, End::Gone);
                        if let Some(link) = self.link(at) {
                            link.broken.get_or_insert(end);
                        }
                        self.next_tick = Nanos(0);
                        return self.alive(&error).map(|()| took);
                    }
                    link.inc.ready -= 1;
                    link.inc.bytes += len;
                    link.inc.owes |= link.inc.bytes >= u64::from(shape.chunk_bytes) / 2;
                    took += 1;
                    self.stats.received += 1;
                    self.run(registry, at, &batch)?;
                    if let Some(link) = self.link(at) {
                        link.inc.scratch = batch;
                    }
                }
            }
        }
        Ok(took)
    }

    /// Does what a batch says.
    fn run(&mut self, registry: &mut Registry, at: usize, mut batch: &[u8]) -> Result<()> {
        while !batch.is_empty() {
            let Some((head, body, rest)) = record::split(batch) else {
                return self.malformed(at);
            };
            batch = rest;
            if head.kind & kind::ANSWER != 0 {
                let Some((number, result)) = record::split_answer(body) else {
                    return self.malformed(at);
                };
                self.hear_answer(at, head, number, result);
            } else {
                self.run_call(registry, at, head, body)?;
            }
        }
        Ok(())
    }

    fn malformed(&mut self, at: usize) -> Result<()> {
        if let Some(link) = self.link(at) {
            link.broken.get_or_insert(End::Malformed);
        }
        Ok(())
    }

    fn hear_answer(&mut self, at: usize, head: Head, number: u64, result: &[u8]) {
        let Some(link) = self.link(at) else { return };
        if number >= link.out.calls {
            link.broken.get_or_insert(End::Malformed);
            return;
        }
        let waiter = link.out.answered(number);
        if head.status == status::DONE {
            match waiter {
                Some(Waiter::Reply(cell)) => cell.answer(result),
                Some(Waiter::Passed(place)) => {
                    let missed = result
                        .first_chunk::<8>()
                        .map_or(1, |missed| u64::from_le_bytes(*missed));
                    self.passed(place, missed);
                }
                _ => {}
            }
            return;
        }
        let waiter = waiter.or_else(|| link.out.uncounted(number).map(Waiter::Consumed));
        let name = match &link.phase {
            Phase::Ready(remote) => remote.functions.name(head.slot),
            _ => "",
        };
        self.failed(at, waiter, name, number, record::ended(head.status, result));
    }

    fn run_call(&mut self, registry: &mut Registry, at: usize, head: Head, body: &[u8]) -> Result<()> {
        let Some(link) = self.link(at) else { return Ok(()) };
        let number = link.inc.calls;
        let from = link.to;
        link.inc.calls += 1;
        link.inc.counted |= head.kind & kind::COUNTED != 0;
        let Some(call) = Body::decode(head.kind, body) else {
            return self.malformed(at);
        };
        let place = match call.audience {
            None => None,
            Some(audience) => match self.pass_on(at, number, head, &call, audience) {
                Ok(place) => Some(place),
                Err(status) => {
                    self.answer(at, number, head.slot, status, &[]);
                    return Ok(());
                }
            },
        };
        let mut result = std::mem::take(&mut self.scratch);
        result.clear();
        let buffer = match call.buffer {
            Where::Nowhere => Ok(None),
            Where::Here(bytes) => Ok(Some(Buffer::Bytes(bytes))),
            Where::At { address, len } => self.written(address, len).map(Some),
            Where::There { offset, len, name } => self.read(at, offset, len, name)?.map(Some),
        };
        let ended = match buffer {
            Ok(buffer) => {
                self.stats.ran += 1;
                self.invoke(
                    registry,
                    head.slot,
                    Caller { at, from, number },
                    call.argument,
                    buffer,
                    &mut result,
                )
            }
            Err(why) => {
                result.extend_from_slice(record::shortened(&why).as_bytes());
                status::NO_BUFFER
            }
        };
        match place {
            // Its first caller hears of all members together.
            Some(place) => {
                if ended != status::DONE && head.kind & kind::RETURNS == 0 {
                    self.answer(at, number, head.slot, ended, &result);
                }
                self.passed(place, u64::from(ended != status::DONE));
            }
            None if ended != status::DONE => self.answer(at, number, head.slot, ended, &result),
            None if head.kind & kind::RETURNS != 0 => self.answer(at, number, head.slot, ended, &result),
            None => {}
        }
        self.scratch = result;
        Ok(())
    }

    /// Runs a function.
    pub(crate) fn invoke(
        &mut self,
        registry: &mut Registry,
        slot: u16,
        caller: Caller,
        argument: &[u8],
        buffer: Option<Buffer<'_>>,
        result: &mut Vec<u8>,
    ) -> u8 {
        let Some(body) = registry.body(slot) else {
            return status::NO_FUNCTION;
        };
        self.in_function = true;
        let mut context = Context::new(self, caller);
        // What it was about to change is its own, and it says so by panicking.
        let ended = catch_unwind(AssertUnwindSafe(|| body(&mut context, argument, buffer, result)));
        self.in_function = false;
        ended.unwrap_or_else(|panic| {
            self.stats.panics += 1;
            result.clear();
            result.extend_from_slice(record::shortened(text_of(&*panic)).as_bytes());
            status::PANICKED
        })
    }

    /// The place of a buffer that its caller has written.
    fn written(&mut self, address: u64, len: u64) -> std::result::Result<Buffer<'static>, String> {
        let nowhere = || "its address is in no export of this endpoint's port".to_owned();
        let (export, offset) = self.port.locate(netvm::VirtAddr(address)).ok_or_else(nowhere)?;
        let start = export.address().0.wrapping_sub(export.region().address().0) + offset;
        let end = start
            .checked_add(len)
            .filter(|_| offset.checked_add(len).is_some_and(|end| end <= export.len()));
        let end = end.ok_or_else(|| "it is longer than the export that it begins in".to_owned())?;
        let place: RegionSlice = export
            .region()
            .slice(start..end)
            .map_err(|error| error.to_string())?;
        Ok(Buffer::Place(place))
    }

    /// Reads a buffer that lies with its caller. Ends when it is here, or cannot be.
    fn read(
        &mut self,
        at: usize,
        offset: u64,
        len: u64,
        name: &str,
    ) -> Result<std::result::Result<Buffer<'static>, String>> {
        let limit = u64::from(self.config.shape.chunk_bytes).max(self.config.queue_bytes);
        if len > limit {
            return Ok(Err(format!(
                "it has {len} bytes, and at most {limit} are read here"
            )));
        }
        let mut bytes = vec![0; len as usize];
        // An export that was kept may have ended, and another may have its name: once more, then.
        for is_last in [false, false, false, true] {
            let source = match self.source(at, name)? {
                Ok(source) => source,
                Err(why) => return Ok(Err(why)),
            };
            match source.read(offset, &mut bytes[..]).call() {
                Ok(()) => return Ok(Ok(Buffer::Read(bytes))),
                Err(error) => {
                    // It may have been told of the failure of something else, too.
                    self.heard(&error);
                    self.alive(&error)?;
                    if let Some(link) = self.link(at) {
                        link.inc.sources.retain(|(kept, _)| kept != name);
                    }
                    if is_last {
                        return Ok(Err(error.to_string()));
                    }
                }
            }
        }
        Ok(Err(String::new()))
    }

    /// The export of this name at the other side.
    fn source(&mut self, at: usize, name: &str) -> Result<std::result::Result<RemoteSegment, String>> {
        let Some(link) = self.link(at) else {
            return Ok(Err(String::new()));
        };
        let mut kept = link.inc.sources.iter();
        if let Some((_, source)) = kept.find(|(kept, _)| kept == name) {
            return Ok(Ok(source.clone()));
        }
        let to = link.to;
        let source = match self.port.import(to.node, to.port, name, IMPORT) {
            Ok(source) => source,
            Err(error) => {
                self.alive(&error)?;
                return Ok(Err(error.to_string()));
            }
        };
        if let Some(link) = self.link(at) {
            if link.inc.sources.len() >= SOURCES {
                link.inc.sources.remove(0);
            }
            link.inc.sources.push((name.to_owned(), source.clone()));
        }
        Ok(Ok(source))
    }

    /// The other side has said how far it is.
    pub(crate) fn note_credit(&mut self, at: usize, credit: Credit) {
        let Some(link) = self.link(at) else { return };
        let consumed = link.out.note_consumed(credit.consumed);
        if consumed == Some(true) {
            link.patience = None;
        }
        let taken = link.inc.reader.taken();
        if consumed.is_none() || !link.out.note_done(credit.done, taken) {
            link.broken.get_or_insert(End::Malformed);
            return;
        }
        if let Resync::Told(sync) = link.resync
            && credit.sync == sync
        {
            link.resync = Resync::Quiet;
        }
    }

    /// Tells the other side how far this one is, if that is worth a message.
    ///
    /// # Errors
    /// Those that end the port.
    pub(crate) fn tell_credit(&mut self, at: usize) -> Result<()> {
        // What was answered goes before the word that it was done.
        if self
            .link(at)
            .is_some_and(|link| link.inc.counted || link.inc.owes)
            && !self.in_function
        {
            self.flush(at)?;
        }
        let Some(link) = self.link(at) else { return Ok(()) };
        let (told, told_done) = (link.inc.told, link.inc.told_done);
        let calls = if link.out.has_unsent() {
            told_done
        } else {
            link.inc.calls
        };
        let done = if calls == told_done {
            told.done
        } else {
            Done::new(calls, link.out.writer.sent())
        };
        let credit = Credit {
            consumed: link.inc.reader.taken(),
            done,
            sync: link.inc.sync,
        };
        let counts = link.inc.counted && calls > told_done;
        if !(link.inc.owes || counts) || credit == told {
            return Ok(());
        }
        let Phase::Ready(remote) = &link.phase else {
            return Ok(());
        };
        let (inbox, id) = (remote.inbox.clone(), remote.description.arrived + 1);
        // First, so that a look finds it whatever becomes of the message.
        link.inbox.words.set_own(credit)?;
        let bytes = credit.encode();
        let told = self.post(at, || {
            let write = inbox.write(crate::layout::page::CREDIT, &bytes);
            // Ordered: an earlier count never lands on a later one.
            write.ordered().regardless().notify(id).post()
        })?;
        if let (Some(link), Some(_)) = (self.link(at), told) {
            link.inc.told = credit;
            link.inc.told_done = calls;
            link.inc.owes = false;
            link.inc.bytes = 0;
            link.inc.counted &= calls < link.inc.calls;
        }
        Ok(())
    }
}

/// What has made a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) at: usize,
    pub(crate) from: Address,
    pub(crate) number: u64,
}

/// What a panic says.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(it says nothing)")
}
