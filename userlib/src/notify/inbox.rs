//! What the port knows about arrived notifications, and the exactly-once argument.
//!
//! For each signal the card raises the count (and its shadow here), makes a full barrier, and looks how
//! far the library has read the notification queue. If the number's last entry has not been taken, it
//! stands for this signal too; else the card adds an entry. So a number has at most one entry, and the
//! queue cannot overflow with event counts. The card then interrupts, where that is enabled.
//!
//! **No signal is lost.** For every number with a pending signal one of these holds: it stands in the
//! card's queue, or is about to; it stands in `ready` or `dispatch` here; or it has been taken from
//! there and not acknowledged yet. Three steps could break that. *Draining* takes an entry, stores
//! how far it has read, makes a full barrier, and only then are counts compared that may discard the
//! number: either the card saw the entry taken and adds another, or the count is seen here (the store
//! and load of each side cross a full barrier). *Acknowledging* one of several signals puts the number
//! back into `ready` or `dispatch`: the others may have no entry of their own. *Arming and disarming*
//! move the number from one list to the other under the lock, and then wake: the card has interrupted for
//! those signals before, and the threads that now have to handle them may have blocked since. Over a bus a full barrier
//! does not do: [`super::unsure`].
//!
//! **No handler runs twice for a signal** (thesis 6.1.2). Only the port's dispatcher calls handlers,
//! also for signals that are pending when one is armed; it looks at the counts, calls, then
//! acknowledges, one signal at a time. So the race of the thesis, where the arming thread and an
//! interrupt both find one signal, cannot happen; stale entries find nothing pending.
//!
//! **What an object of the library waits for does not depend on acknowledgements.** A receiver counts the messages
//! that it has taken and compares that with the count of signals, which only the card changes. Acknowledging serves
//! the program alone: it says which signals need no further call, entry or future. The dispatcher acknowledges the
//! signal for which it has called, by its place in the count; a receiver acknowledges as many signals as it has taken
//! messages. Both raise the count *to* a number, so a signal that both have handled is acknowledged once. A receiver
//! that leaves something behind says so ([`PortInner::took`]): its number is handed out once more even if no signal is
//! pending. So a handler that takes everything, something or nothing is called often enough.
//!
//! **A full backlog.** One-shot numbers that the program does not pop stay in the card's queue, which then refuses
//! more. Draining stops at the first that finds no room here, so event counts behind it cannot be seen
//! in the queue: then the counts themselves are scanned. The scan passes over a number that is *out*: popped, and not
//! acknowledged since. The acknowledgement looks at its count, so what came meanwhile is not lost. When draining comes to
//! the entry of a number that the scan has found, the entry tells nothing new while the number is out.
//!
//! **The words of a closed port are its successor's.** Back ends give a number's words to the next port that opens it, so
//! a handle of the old one must not store there. Each store is made under a lock, after a look at `closed`. The thread
//! that closes the port first sets `closed`, then takes each of these locks, then gives the words back.

use super::watch::Waiter;
use crate::error::{Error, Result};
use crate::fence::Mark;
use crate::port::PortInner;
use netvm_abi::bar::port::{INTERRUPT_ENABLE, NOTIFICATION_READ, WAKE_ON_QUEUE};
use netvm_abi::notification::{EVENT_COUNTS, interrupt_bit};
use netvm_abi::port_area::{NOTIFICATION_WRITE, NOTIFICATIONS, SHADOW_SIGNALS};
use netvm_abi::shared_queue::free;
use netvm_abi::words::SharedWords;
use netvm_abi::{Nanos, NotificationId};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A set of event-count numbers.
#[derive(Debug, Default)]
pub(super) struct Ids([u32; EVENT_COUNTS as usize / 32]);

impl Ids {
    /// Adds a number; false if it was there.
    pub(super) fn add(&mut self, id: NotificationId) -> bool {
        let bit = 1 << (id.0 % 32);
        match self.0.get_mut(id.index() / 32) {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                true
            }
            _ => false,
        }
    }

    pub(super) fn has(&self, id: NotificationId) -> bool {
        let word = self.0.get(id.index() / 32).copied().unwrap_or(u32::MAX);
        word & (1 << (id.0 % 32)) != 0
    }

    /// Removes a number; whether it was there.
    fn take(&mut self, id: NotificationId) -> bool {
        let had = self.has(id);
        self.remove(id);
        had
    }

    pub(super) fn remove(&mut self, id: NotificationId) {
        if let Some(word) = self.0.get_mut(id.index() / 32) {
            *word &= !(1 << (id.0 % 32));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = NotificationId> {
        (0..).zip(self.0).flat_map(|(index, word)| {
            (0..32)
                .filter(move |bit| word & (1 << bit) != 0)
                .map(move |bit| NotificationId(32 * index + bit))
        })
    }
}

/// Numbers in order of arrival, event counts at most once.
#[derive(Debug, Default)]
struct List {
    order: VecDeque<NotificationId>,
    has: Ids,
}

impl List {
    fn push(&mut self, id: NotificationId) {
        if id.is_one_shot() || self.has.add(id) {
            self.order.push_back(id);
        }
    }

    fn pop(&mut self) -> Option<NotificationId> {
        let id = self.order.pop_front()?;
        self.has.remove(id);
        Some(id)
    }
}

/// A procedure that runs for each signal.
pub(super) type Handler = Box<dyn FnMut(NotificationId) + Send>;

/// A number with a handler.
pub(super) struct Armed {
    /// Which arming it is, so that one that is replaced while it runs does not come back.
    pub(super) generation: u64,
    /// Away while it runs.
    pub(super) handler: Option<Handler>,
}

/// What the lock protects. Nothing parks under it.
#[derive(Default)]
pub(super) struct State {
    /// Queue entries taken.
    read: u32,
    /// For [`NotificationQueue`](super::NotificationQueue).
    ready: List,
    /// One-shot numbers in `ready`.
    one_shots: usize,
    /// Draining has stopped because there are too many of those.
    behind: bool,
    /// For the dispatcher.
    dispatch: List,
    pub(super) handlers: HashMap<NotificationId, Armed>,
    pub(super) generation: u64,
    /// How many want to be interrupted for a number.
    interest: HashMap<NotificationId, u32>,
    /// The interrupt enable words as the card has them.
    enabled: Ids,
    /// How many want to be interrupted for any queue entry.
    pub(super) queue_interest: u32,
    pub(super) waiters: Vec<Waiter>,
    pub(super) next_waiter: u64,
    /// When the dispatcher looks next at the latest.
    pub(super) next_look: Nanos,
    /// The dispatcher's thread runs, or is about to end because a [loop](super::events) has taken over.
    pub(super) dispatcher_runs: bool,
    /// A loop of the program calls handlers and wakes futures.
    pub(super) looped: bool,
    pub(super) acknowledged: u64,
    /// Numbers that an object of the library has for itself.
    owned: Ids,
    /// Numbers that exports of the program let peers signal: first and last of each range.
    given_away: Vec<(NotificationId, NotificationId)>,
    /// Numbers that the program has popped and not acknowledged since.
    pub(super) out: Ids,
    /// Numbers found by their counts, whose entries are still in the card's queue.
    scanned: Ids,
    /// Numbers to hand out once more, with or without a pending signal.
    pub(super) again: Ids,
    /// Numbers whose entries were taken since the last read across the bus.
    pub(super) unsure: Ids,
    /// Numbers that go to a [group](super::members::Group), and to which.
    pub(super) members: HashMap<NotificationId, u64>,
    /// By group: numbers that it has to look at.
    groups: HashMap<u64, List>,
    last_group: u64,
}

impl State {
    /// Takes a number for an object of the library; false if another one has it.
    pub(super) fn own(&mut self, id: NotificationId) -> bool {
        self.owned.add(id)
    }

    pub(super) fn disown(&mut self, id: NotificationId) {
        self.owned.remove(id);
        self.again.remove(id);
    }

    /// Makes a group.
    pub(super) fn new_group(&mut self) -> u64 {
        self.last_group += 1;
        self.groups.insert(self.last_group, List::default());
        self.last_group
    }

    /// Ends a group. Gives back its members.
    pub(super) fn end_group(&mut self, group: u64) -> Vec<NotificationId> {
        self.groups.remove(&group);
        self.members
            .extract_if(|_, of| *of == group)
            .map(|(id, _)| id)
            .collect()
    }

    /// The next number that a group has to look at.
    pub(super) fn pop_member(&mut self, group: u64) -> Option<NotificationId> {
        self.groups.get_mut(&group)?.pop()
    }

    /// Whether a group has a number to look at.
    pub(super) fn has_member(&self, group: u64) -> bool {
        self.groups.get(&group).is_some_and(|list| !list.order.is_empty())
    }

    /// Whether nothing tells that the program or the library uses this number.
    pub(super) fn is_unused(&self, id: NotificationId) -> bool {
        let given_away = self
            .given_away
            .iter()
            .any(|&(first, last)| (first..=last).contains(&id));
        !self.owned.has(id)
            && !self.handlers.contains_key(&id)
            && !self.interest.contains_key(&id)
            && !given_away
    }

    /// Makes sure that no object of the library has this number.
    pub(super) fn is_programs(&self, id: NotificationId) -> Result<()> {
        if !id.is_one_shot() && self.owned.has(id) {
            return Err(Error::NotificationTaken { id });
        }
        Ok(())
    }

    /// An export lets peers signal these.
    pub(super) fn give_away(&mut self, range: (NotificationId, NotificationId)) -> Result<()> {
        let counts = range.0.0..=range.1.0.min(EVENT_COUNTS - 1);
        for id in counts {
            self.is_programs(NotificationId(id))?;
        }
        self.given_away.push(range);
        Ok(())
    }

    /// That export has ended.
    pub(super) fn take_back(&mut self, range: (NotificationId, NotificationId)) {
        if let Some(at) = self.given_away.iter().position(|other| *other == range) {
            self.given_away.swap_remove(at);
        }
    }

    /// Whether the program has something to pop, as far as is known.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.order.is_empty()
    }
}

/// The receiving side of a port.
pub(crate) struct Inbox {
    entries: u32,
    /// Acknowledge counts; stored under the lock, loaded without.
    acknowledged: Box<[AtomicU32]>,
    pub(super) state: Mutex<State>,
}

impl Inbox {
    pub(crate) fn new(entries: u32) -> Self {
        Self {
            entries: entries.max(1),
            acknowledged: (0..EVENT_COUNTS).map(|_| AtomicU32::new(0)).collect(),
            state: Mutex::default(),
        }
    }

    /// Signals acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.state.lock().acknowledged
    }

    pub(super) fn count(&self, id: NotificationId) -> u32 {
        self.acknowledged
            .get(id.index())
            .map_or(0, |count| count.load(Ordering::Acquire))
    }

    /// Under the lock.
    pub(super) fn set_count(&self, id: NotificationId, count: u32) {
        if let Some(word) = self.acknowledged.get(id.index()) {
            word.store(count, Ordering::Release);
        }
    }
}

impl PortInner {
    /// Unacknowledged signals of this number.
    #[inline]
    pub(crate) fn pending(&self, id: NotificationId) -> u32 {
        // The acknowledge count first: read the other way round, an acknowledgement in between would
        // make a huge number of it.
        let acknowledged = self.inbox.count(id);
        let signals = self.area.load_acquire(SHADOW_SIGNALS.plus(id.0));
        // After the load, with acquire order: a port that is open still had the words when they were loaded.
        if self.closed.load(Ordering::Acquire) {
            return 0;
        }
        signals.wrapping_sub(acknowledged)
    }

    /// Whether the words may be changed: those of a port that is closed are its successor's. The caller holds a lock
    /// that the closing thread takes after it has set `closed` and before the words go.
    pub(crate) fn has_words(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// From the return on, nothing here changes the port's words. The thread that closes the port calls this after it
    /// has set `closed`.
    pub(crate) fn leave_inbox(&self) {
        drop(self.inbox.state.lock());
    }

    /// Tells the card that `count` places of the port's shared queue are free.
    pub(crate) fn free_places(&self, count: u32) {
        let _state = self.inbox.state.lock();
        if self.has_words() {
            free(&self.block, count);
        }
    }

    /// Signals of this number in the life of the port. Only the card changes the count.
    #[inline]
    pub(crate) fn signals(&self, id: NotificationId) -> u32 {
        self.area.load_acquire(SHADOW_SIGNALS.plus(id.0))
    }

    /// Signals of this number that are acknowledged.
    pub(super) fn acknowledged(&self, id: NotificationId) -> u32 {
        self.inbox.count(id)
    }

    /// Puts a number where its handler, its group or the program looks for it.
    pub(super) fn announce(&self, state: &mut State, id: NotificationId) {
        let group = state.members.get(&id).copied();
        if let Some(list) = group.and_then(|group| state.groups.get_mut(&group)) {
            list.push(id);
        }
        if state.handlers.contains_key(&id) {
            state.dispatch.push(id);
        } else if group.is_none() {
            state.ready.push(id);
        }
    }

    /// Announces a number if there is a reason to.
    pub(super) fn announce_if_due(&self, state: &mut State, id: NotificationId) {
        if self.pending(id) > 0 || state.again.has(id) {
            self.announce(state, id);
        }
    }

    /// Whether there is a reason to hand out a number: a pending signal, or a receiver that has left something behind,
    /// which is a reason once.
    pub(super) fn take_reason(&self, state: &mut State, id: NotificationId) -> bool {
        if self.pending(id) > 0 {
            return true;
        }
        let again = state.again.has(id);
        state.again.remove(id);
        again
    }

    /// Takes what is in the card's queue.
    pub(super) fn drain(&self, state: &mut State) {
        if !self.has_words() {
            return;
        }
        let written = self.area.load_acquire(NOTIFICATION_WRITE);
        if written.wrapping_sub(state.read) > self.inbox.entries {
            // Not a count that the queue could have reached: a card that is gone reads as all ones.
            return;
        }
        let before = state.read;
        state.behind = false;
        while state.read != written {
            let at = NOTIFICATIONS.plus(state.read % self.inbox.entries);
            let id = NotificationId(self.area.load_acquire(at));
            if id.is_one_shot() {
                if state.one_shots >= self.config.one_shot_backlog.max(1) {
                    state.behind = true;
                    break;
                }
                state.one_shots += 1;
                state.ready.push(id);
            } else if id.is_some() {
                state.unsure.add(id);
                if !(state.scanned.take(id) && state.out.has(id)) {
                    self.announce(state, id);
                }
            }
            state.read = state.read.wrapping_add(1);
        }
        if state.read != before {
            self.block.store_release(NOTIFICATION_READ, state.read);
            // Counts are compared after this, by a holder of the lock: see the module's text.
            self.block.full_barrier();
        }
        if state.behind {
            for id in (1..EVENT_COUNTS).map(NotificationId) {
                // One that is out is looked at when it is acknowledged.
                if self.pending(id) > 0 && !state.out.has(id) {
                    state.scanned.add(id);
                    self.announce(state, id);
                }
            }
        }
    }

    /// The next number for the program to handle.
    pub(super) fn pop_ready(&self) -> Option<NotificationId> {
        let mut wake = false;
        let mut state = self.inbox.state.lock();
        if !self.has_words() {
            return None;
        }
        self.drain(&mut state);
        let found = loop {
            let Some(id) = state.ready.pop() else {
                if self.make_sure(&mut state) {
                    // Some of what came to light may be another's.
                    wake = true;
                    continue;
                }
                break None;
            };
            if id.is_one_shot() {
                state.one_shots -= 1;
                break Some(id);
            }
            if state.handlers.contains_key(&id) || state.members.contains_key(&id) {
                self.announce(&mut state, id);
                wake = true;
            } else if self.take_reason(&mut state, id) {
                state.out.add(id);
                break Some(id);
            }
        };
        if state.behind {
            self.drain(&mut state);
        }
        wake |= state.queue_interest > 0 && self.make_sure(&mut state);
        drop(state);
        if wake {
            self.backend.wake();
        }
        found
    }

    /// The next number for the dispatcher to look at.
    pub(super) fn pop_dispatch(&self) -> Option<NotificationId> {
        let mut state = self.inbox.state.lock();
        self.drain(&mut state);
        let wake = state.dispatch.order.is_empty() && self.make_sure(&mut state);
        let found = state.dispatch.pop();
        drop(state);
        if wake {
            // Some of what came to light may be another's.
            self.backend.wake();
        }
        found
    }

    /// A handler is armed (or, with `None`, disarmed) for a number. Gives back the one before.
    pub(super) fn set_handler(&self, id: NotificationId, handler: Option<Handler>) -> Option<Armed> {
        // Outlives the lock also where a thread unwinds: what it owns may take the lock when it is dropped.
        let mut before = None;
        let mut state = self.inbox.state.lock();
        let moved = self.replace(&mut state, id, handler, &mut before);
        drop(state);
        if moved {
            self.backend.wake();
        }
        before
    }

    /// The handler that was armed so is disarmed, unless that was done before. Its own part is away: it runs.
    pub(super) fn disarm_if(&self, id: NotificationId, generation: u64) {
        let mut before = None;
        let mut state = self.inbox.state.lock();
        let armed = state.handlers.get(&id);
        if armed.is_none_or(|armed| armed.generation != generation) {
            return;
        }
        let moved = self.replace(&mut state, id, None, &mut before);
        drop(state);
        if moved {
            self.backend.wake();
        }
    }

    /// Puts the handler before into `before`, and tells whether there are signals that now are another's to handle. The
    /// other may have blocked already, and the card interrupts for no signal twice: so it is to be woken, once the lock is
    /// free.
    fn replace(
        &self,
        state: &mut State,
        id: NotificationId,
        handler: Option<Handler>,
        before: &mut Option<Armed>,
    ) -> bool {
        state.generation += 1;
        let generation = state.generation;
        let arms = handler.is_some();
        *before = match handler {
            Some(handler) => state.handlers.insert(
                id,
                Armed {
                    generation,
                    handler: Some(handler),
                },
            ),
            None => state.handlers.remove(&id),
        };
        let found = match (arms, before.is_some()) {
            (true, false) => self.add_interest(state, id),
            (false, true) => {
                self.drop_interest(state, id);
                false
            }
            _ => false,
        };
        let moved = self.pending(id) > 0 || state.again.has(id);
        if moved {
            state.out.remove(id);
            self.announce(state, id);
        }
        moved || found
    }

    /// From now on the card interrupts for signals of this number. The caller looks at the counts
    /// after this. As [`make_sure`](Self::make_sure), whether others have something to look at.
    fn add_interest(&self, state: &mut State, id: NotificationId) -> bool {
        let count = state.interest.entry(id).or_insert(0);
        *count += 1;
        if *count == 1 {
            state.enabled.add(id);
            self.store_enabled(state, id);
        }
        self.cross_bus(state)
    }

    fn drop_interest(&self, state: &mut State, id: NotificationId) {
        if let Some(count) = state.interest.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                state.interest.remove(&id);
                state.enabled.remove(id);
                self.store_enabled(state, id);
            }
        }
    }

    fn store_enabled(&self, state: &State, id: NotificationId) {
        if !self.has_words() {
            return;
        }
        if let (Some((at, _)), Some(word)) = (interrupt_bit(id), state.enabled.0.get(id.index() / 32)) {
            debug_assert_eq!(at, INTERRUPT_ENABLE.plus(id.0 / 32));
            self.block.store_release(at, *word);
        }
    }

    /// The same for entries of the queue.
    fn add_queue_interest(&self, state: &mut State) -> bool {
        state.queue_interest += 1;
        if state.queue_interest == 1 && self.has_words() {
            self.block.store_release(WAKE_ON_QUEUE, 1);
        }
        self.cross_bus(state)
    }

    fn drop_queue_interest(&self, state: &mut State) {
        state.queue_interest = state.queue_interest.saturating_sub(1);
        if state.queue_interest == 0 && self.has_words() {
            self.block.store_release(WAKE_ON_QUEUE, 0);
        }
    }

    /// The port is closed: forgets handlers and wakes every future.
    pub(crate) fn close_inbox(&self) {
        let handlers = std::mem::take(&mut self.inbox.state.lock().handlers);
        for (_, armed) in handlers {
            self.guarded(|| drop(armed));
        }
        self.wake_all();
    }

    /// Wakes every future.
    pub(super) fn wake_all(&self) {
        let waiters = std::mem::take(&mut self.inbox.state.lock().waiters);
        for waiter in waiters {
            self.guarded(|| waiter.waker.wake());
        }
    }
}

/// What a waiter wants to be interrupted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Signals of this number.
    Signal(NotificationId),
    /// Entries of the queue.
    Entry,
    /// Numbers of a group.
    Member(u64),
    /// Another number of signals than this. Whether they are acknowledged does not matter.
    Change(NotificationId, u32),
    /// A count that comes to a mark.
    Mark(Mark),
    /// No event: only time passes.
    Time,
}

/// What a future waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(super) want: Want,
    /// It looks again then in any case.
    pub(super) until: Nanos,
}

impl Want {
    /// ... and to look again at this time.
    pub(crate) const fn until(self, until: Nanos) -> Wish {
        Wish { want: self, until }
    }
}

impl From<Want> for Wish {
    fn from(want: Want) -> Self {
        want.until(Nanos::MAX)
    }
}

/// Keeps interrupts enabled while it lives.
pub(super) struct Interest {
    port: Arc<PortInner>,
    want: Want,
}

impl Interest {
    pub(super) fn new(port: &Arc<PortInner>, want: Want) -> Self {
        let wake = match want {
            Want::Signal(id) | Want::Change(id, _) => port.add_interest(&mut port.inbox.state.lock(), id),
            Want::Entry | Want::Member(_) => port.add_queue_interest(&mut port.inbox.state.lock()),
            // It is asked for when its waker is there.
            Want::Mark(_) | Want::Time => false,
        };
        if wake {
            port.backend.wake();
        }
        Self {
            port: Arc::clone(port),
            want,
        }
    }
}

impl Interest {
    pub(super) const fn want(&self) -> Want {
        self.want
    }

    pub(super) const fn port(&self) -> &Arc<PortInner> {
        &self.port
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        let mut state = self.port.inbox.state.lock();
        match self.want {
            Want::Signal(id) | Want::Change(id, _) => self.port.drop_interest(&mut state, id),
            Want::Entry | Want::Member(_) => self.port.drop_queue_interest(&mut state),
            // The fence word holds no more than a count.
            Want::Mark(_) | Want::Time => {}
        }
    }
}
