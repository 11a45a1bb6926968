//! The ports: their lives, what their applications are told, and what each of them holds.

mod complete;
mod error;
pub mod notify;
mod turns;

pub(crate) use complete::Looked;

use crate::env::Env;
use crate::pipeline::{Entry, Pipeline, Stage};
use crate::platform::Platform;
use netvm_abi::bar::BarMap;
use netvm_abi::bar::port::SIGNALLED;
use netvm_abi::descriptor::QUEUE_ENTRIES;
use netvm_abi::event::NicEvent;
use netvm_abi::notification::EVENT_COUNTS;
use netvm_abi::port_area::{
    ERROR_WRITE, ERRORS_LOST, NOTIFICATION_WRITE, READS_DONE, SHADOW_SIGNALS, TAKEN, WRITES_DONE,
};
use netvm_abi::shared_queue::Cursor;
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;
use netvm_abi::{Generation, PortId, WordIndex};
use turns::Turns;

/// Entries of a notification queue (the only size that the geometry admits).
pub(crate) const NOTIFICATION_ENTRIES: u32 = 2048;

/// What counts are cleared with: a part of all event counts.
const ZEROES: [u32; 64] = [0; 64];
const _: () = assert!(EVENT_COUNTS.is_multiple_of(ZEROES.len() as u32));

/// The life of a port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Has no owner.
    Closed,
    /// Served.
    Open,
    /// Waits for its DMAs.
    Closing,
}

/// A completion counter and its shadow in host memory.
#[derive(Clone, Copy, Debug)]
struct Completion {
    /// What has been completed.
    done: u32,
    /// What the application has been told.
    shadow: u32,
    /// Of what it wants to hear exactly.
    fence: u32,
    /// The count at which it is told next: a step after the shadow, or the fence if that comes first. So a completion
    /// compares once.
    tell_at: u32,
}

/// Which completion counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Commands taken.
    Taken,
    /// Writes done.
    Writes,
    /// Reads, flushes and atomics done.
    Reads,
}

/// What a look at an open port has found: so many new commands (if none, entries are on their way), or words that have
/// to be taken note of first, as a fence has moved or the doorbell makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News(u32);

impl News {
    const WORDS: Self = Self(u32::MAX);

    /// New commands, if no word has to be taken note of.
    #[inline]
    pub(crate) fn commands(self) -> Option<u32> {
        (self.0 <= QUEUE_ENTRIES).then_some(self.0)
    }
}

/// What a port holds of the NIC's resources: it counts against its shares (promise P5), and the number of a port that
/// has closed keeps it until that ends.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Staging buffers for its commands.
    buffers: u16,
    /// Of these, those whose page the host has been asked for.
    missing: u16,
    /// Read slots.
    reads: u16,
}

/// A port.
pub struct Port {
    id: PortId,
    state: State,
    generation: Generation,
    pub(crate) pipeline: Pipeline,
    counts: [Completion; 3],
    /// DMAs that use this port's pages.
    dmas: u16,
    held: Held,
    error_write: u32,
    errors_lost: u32,
    /// Entries put into the notification queue.
    notification_write: u32,
    /// Entries that the application had taken when the NIC last looked.
    notification_read: u32,
    /// One-shot entries between the two.
    one_shots: u32,
    /// Which event counts have an entry in the queue.
    queued: [u32; EVENT_COUNTS as usize / 32],
    /// Places of its shared queue.
    cursor: Cursor,
}

impl Port {
    /// A closed port.
    pub(crate) fn closed() -> Self {
        Self {
            id: PortId(0),
            state: State::Closed,
            generation: Generation(0),
            pipeline: Pipeline::starting_at(0),
            counts: [Completion::starting_at(0); 3],
            dmas: 0,
            held: Held::default(),
            error_write: 0,
            errors_lost: 0,
            notification_write: 0,
            notification_read: 0,
            one_shots: 0,
            queued: [0; EVENT_COUNTS as usize / 32],
            cursor: Cursor::default(),
        }
    }

    /// Its number.
    #[inline]
    pub(crate) const fn id(&self) -> PortId {
        self.id
    }

    /// Its present, or last, owner.
    #[inline]
    pub(crate) const fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether the port is served.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether the port is served and still of this generation.
    #[inline]
    pub(crate) fn is(&self, generation: Generation) -> bool {
        self.is_open() && self.generation == generation
    }

    /// A DMA locks one of its pages.
    #[inline]
    pub(crate) const fn dma_begins(&mut self) {
        self.dmas += 1;
    }

    /// Staging buffers that it holds.
    #[inline]
    pub(crate) const fn buffers(&self) -> u16 {
        self.held.buffers
    }

    /// It gets a staging buffer.
    pub(crate) const fn takes_buffer(&mut self) {
        self.held.buffers += 1;
    }

    /// It gives one back.
    pub(crate) const fn gives_buffer(&mut self) {
        self.held.buffers = self.held.buffers.saturating_sub(1);
    }

    /// Its staging buffers whose page the host has been asked for.
    #[inline]
    pub(crate) const fn missing(&self) -> u16 {
        self.held.missing
    }

    /// The host is asked for the page of one.
    pub(crate) const fn lacks_page(&mut self) {
        self.held.missing += 1;
    }

    /// The host has answered.
    pub(crate) const fn has_page(&mut self) {
        self.held.missing = self.held.missing.saturating_sub(1);
    }

    /// Read slots that it holds.
    #[inline]
    pub(crate) const fn reads(&self) -> u16 {
        self.held.reads
    }

    /// It gets a read slot.
    pub(crate) const fn takes_read(&mut self) {
        self.held.reads += 1;
    }

    /// It gives one back.
    pub(crate) const fn gives_read(&mut self) {
        self.held.reads = self.held.reads.saturating_sub(1);
    }

    /// The number of the next place in its shared queue, if one of the `capacity` places is free.
    pub(crate) fn next_place<P: Platform, S: Storage>(
        &mut self,
        p: &P,
        env: &Env<S>,
        capacity: u32,
    ) -> Option<u32> {
        self.cursor.take(p.bar(), env.bar.port(self.id), capacity)
    }

    /// What a look at the block of the port leaves to do: nothing, if no command is new, no fence has moved, and no entry
    /// is on its way. (An entry that lacks something may have got it.)
    #[inline(always)]
    fn look<W: SharedWords + ?Sized>(&self, bar: &W, block: WordIndex) -> Option<News> {
        match Looked::at_once(bar, block) {
            Some(words) => self.news(&words),
            None => self.look_slowly(bar, block),
        }
    }

    /// The same where every access is an act of its own. The words stay in here, so that no memory is set aside for them
    /// where they fit into registers.
    #[cold]
    #[inline(never)]
    fn look_slowly<W: SharedWords + ?Sized>(&self, bar: &W, block: WordIndex) -> Option<News> {
        self.news(&Looked::at(bar, block))
    }

    #[inline(always)]
    fn news(&self, words: &Looked) -> Option<News> {
        let waiting = words.doorbell.wrapping_sub(self.pipeline.fetched());
        let [taken, writes, reads] = &self.counts;
        if words.taken != taken.fence || words.writes != writes.fence || words.reads != reads.fence {
            return Some(News::WORDS);
        }
        (waiting != 0 || !self.pipeline.is_empty()).then_some(News(waiting))
    }

    /// How far the entry at the head of its pipeline is; nothing if none may leave.
    #[inline]
    pub(crate) fn head_stage(&self) -> Option<Stage> {
        self.pipeline.head_stage().filter(|_| self.is_open())
    }

    /// The entry at the head has left the pipeline.
    #[inline]
    pub(crate) fn drop_head(&mut self) {
        self.pipeline.drop_head();
        self.count(Count::Taken).done = self.pipeline.retired();
    }

    /// A write has gone straight through the empty pipeline. Gives whether the counts of commands taken and of writes
    /// done are due.
    #[inline(always)]
    pub(crate) fn pass_through(&mut self) -> (bool, bool) {
        self.pipeline.pass_through();
        let [taken, writes, _] = &mut self.counts;
        taken.done = self.pipeline.retired();
        writes.done = writes.done.wrapping_add(1);
        (taken.due(), writes.due())
    }

    /// Tells the host that the port is closed, if it closes and its last DMA has ended.
    #[inline]
    fn settle<P: Platform, S: Storage>(&mut self, p: &mut P, env: &mut Env<S>) {
        if self.state == State::Closing && self.dmas == 0 {
            self.state = State::Closed;
            env.counters.ports_closed += 1;
            let (port, generation) = (self.id, self.generation);
            env.tell_host(p, NicEvent::PortClosed { port, generation });
        }
    }
}

/// All ports.
pub(crate) struct Ports<S: Storage> {
    table: S::Table<Port>,
    /// Copies of the notification queues: what stands where.
    copies: S::Table<u16>,
    turns: Turns,
}

impl<S: Storage> Ports<S> {
    pub(crate) fn new(mut table: S::Table<Port>, copies: S::Table<u16>) -> Self {
        for (id, port) in (0..).zip(table.iter_mut()) {
            port.id = PortId(id);
        }
        Self {
            table,
            copies,
            turns: Turns::new(),
        }
    }

    /// Ports that have an owner, commands in all pipelines, and what ports hold of shares and page locks.
    pub(crate) fn held(&self) -> (u32, u32, u32) {
        let open = self.table.iter().filter(|port| port.state != State::Closed);
        let commands = self.table.iter().map(|port| u32::from(port.pipeline.len()));
        let shares = self.table.iter().map(|port| {
            u32::from(port.dmas)
                + u32::from(port.held.buffers)
                + u32::from(port.held.missing)
                + u32::from(port.held.reads)
        });
        (open.count() as u32, commands.sum(), shares.sum())
    }

    /// A port.
    #[inline]
    pub(crate) fn get(&self, id: PortId) -> Option<&Port> {
        self.table.get(id.index())
    }

    /// The same, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.table.get_mut(id.index())
    }

    /// A port that is open and still of this generation.
    #[inline]
    pub(crate) fn of_owner(&mut self, id: PortId, generation: Generation) -> Option<&mut Port> {
        self.get_mut(id).filter(|port| port.is(generation))
    }

    /// The same, with the copies of all notification queues.
    #[inline]
    pub(crate) fn with_queues(
        &mut self,
        id: PortId,
        generation: Generation,
    ) -> Option<(&mut Port, &mut [u16])> {
        let port = self.table.get_mut(id.index())?;
        port.is(generation).then_some((port, &mut self.copies))
    }

    /// Serves a port. The driver has cleared the port's block and area before it posted this; what
    /// the NIC owns of them is set to zero here all the same.
    pub(crate) fn open<P: Platform>(
        &mut self,
        p: &P,
        env: &mut Env<S>,
        (id, generation): (PortId, Generation),
        counts_from: u32,
    ) {
        let Some(port) = self.get_mut(id).filter(|port| port.state == State::Closed) else {
            env.counters.host_events_refused += 1;
            return;
        };
        let (block, area) = (env.bar.port(id), env.shared.port_area(id));
        for first in (0..EVENT_COUNTS).step_by(ZEROES.len()) {
            p.bar().store_slice(block.plus(SIGNALLED.0 + first), &ZEROES);
            p.shared()
                .store_slice(area.plus(SHADOW_SIGNALS.0 + first), &ZEROES);
        }
        for word in [TAKEN, WRITES_DONE, READS_DONE] {
            p.shared().store_release(area.plus(word.0), counts_from);
        }
        for word in [NOTIFICATION_WRITE, ERROR_WRITE, ERRORS_LOST] {
            p.shared().store_release(area.plus(word.0), 0);
        }
        *port = Port {
            id,
            state: State::Open,
            generation,
            held: port.held,
            pipeline: Pipeline::starting_at(counts_from),
            counts: [Completion::starting_at(counts_from); 3],
            ..Port::closed()
        };
        env.counters.ports_opened += 1;
        self.turns.set(id, true);
    }

    /// Serves a port no more; false if it is not this owner's. Its pipeline is to be [drained](Self::drain).
    pub(crate) fn close(&mut self, env: &mut Env<S>, id: PortId, generation: Generation) -> bool {
        let Some(port) = self.of_owner(id, generation) else {
            env.counters.host_events_refused += 1;
            return false;
        };
        port.state = State::Closing;
        self.turns.set(id, false);
        true
    }

    /// Takes the next entry out of the pipeline of a port that closes. After the last one the host hears that the port
    /// is closed, unless DMAs still use its pages.
    pub(crate) fn drain<P: Platform>(&mut self, p: &mut P, env: &mut Env<S>, id: PortId) -> Option<Entry> {
        let port = self.get_mut(id)?;
        let entry = port.pipeline.drain();
        if entry.is_none() {
            port.settle(p, env);
        }
        entry
    }

    /// A DMA with one of its pages has ended.
    #[inline]
    pub(crate) fn dma_ended<P: Platform>(&mut self, p: &mut P, env: &mut Env<S>, id: PortId) {
        if let Some(port) = self.get_mut(id) {
            port.dmas = port.dmas.saturating_sub(1);
            port.settle(p, env);
        }
    }

    /// The open ports behind this one; all of them, if it is none or closed.
    pub(crate) fn open_after(&self, port: Option<PortId>) -> impl Iterator<Item = &Port> {
        self.turns.ports_after(port).filter_map(|id| self.get(id))
    }

    /// Something happened that may let a stalled port go on: all ports get another turn.
    #[inline]
    pub(crate) const fn stir(&mut self) {
        self.turns.stir();
    }

    /// Whether every open port has been found idle since the last event.
    #[inline]
    pub(crate) const fn all_quiet(&self) -> bool {
        self.turns.all_quiet()
    }

    /// Looks at up to `looks` ports in turn, and gives the first that has something to do. Nothing: none has. When turns
    /// `begin`, also where every port was idle at its last one.
    #[inline(always)]
    pub(crate) fn next_turn<W: SharedWords + ?Sized>(
        &mut self,
        bar: &W,
        map: &BarMap,
        begin: bool,
        looks: &mut u32,
    ) -> Option<(PortId, News)> {
        let table = &self.table;
        let look = |id: PortId| table.get(id.index())?.look(bar, map.port(id));
        self.turns.next(begin, looks, look)
    }

    /// What the port's turn brought.
    #[inline]
    pub(crate) fn end_turn(&mut self, id: PortId, served: bool, more: bool) {
        self.turns.report(id, served, more);
    }
}
