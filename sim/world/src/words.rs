//! The two word spaces of a node as simulated memory: allocated when touched, watched on every
//! access, with a store buffer for each side, and a bus between the sides that posts stores.
//!
//! The store buffer models what real machines do between a store and a later load (promise P1): a
//! store may stay invisible to the other side until the storing side makes a full barrier. Stores of
//! one side keep their order. A buffer is emptied at the latest when the storing side's step ends,
//! which is soon in virtual time; so it matters for exactly the races in which the two sides'
//! accesses interleave.
//!
//! A store that has left its side's buffer is in memory, unless it crosses the bus (from the host to NIC memory, from
//! the card to the driver's memory) and the bus lags: then it lands later in virtual time, behind the stores that were
//! posted before it. No barrier among processors waits for that. A read across the bus does: its request pushes the stores
//! of its side ahead of it, and its answer those of the other side, as PCI's ordering rules say. So do interrupts and
//! wake-up calls, which are posted stores themselves.

use crate::effort::Meter;
use netvm_abi::words::SharedWords;
use netvm_abi::{Nanos, WordIndex};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// The side that accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The card's processor.
    Nic,
    /// A processor of the host, in the kernel or an app.
    Host,
}

/// What accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Actor {
    /// A program.
    App,
    /// The host core.
    Driver,
    /// The NIC core.
    Card,
}

impl Actor {
    /// The side that it is on.
    pub(crate) const fn side(self) -> Side {
        match self {
            Self::App | Self::Driver => Side::Host,
            Self::Card => Side::Nic,
        }
    }
}

/// What an access does to its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Touch {
    /// It is read.
    Load,
    /// It is written.
    Store,
}

/// Which space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// NIC memory.
    Bar,
    /// The driver's memory.
    Shared,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Nic => Self::Host,
            Self::Host => Self::Nic,
        }
    }

    /// The memory on the other side of the bus.
    const fn across(self) -> Space {
        match self {
            Self::Nic => Space::Shared,
            Self::Host => Space::Bar,
        }
    }
}

/// What happens around accesses.
pub(crate) trait Watch {
    /// Before an access: a fault may strike now, or the other side run.
    fn before(&self, actor: Actor, touch: Touch, space: Space, at: WordIndex);

    /// After a barrier: the other side may run now.
    fn after_barrier(&self, side: Side);

    /// A store is made: its own side knows of it.
    fn issued(&self, _side: Side, _space: Space, _at: WordIndex, _value: u32) {}

    /// A store has been made, for checkers: the card's when it has left the card, for the bus keeps the order of what a card
    /// did; the host's when it has landed, for only then may the card know of it.
    fn stored(&self, side: Side, space: Space, at: WordIndex, value: u32);

    /// What a load gives instead of the word's value.
    fn loaded(&self, _side: Side, _space: Space, _at: WordIndex, value: u32) -> u32 {
        value
    }

    /// Whether this store shall linger in its side's buffer.
    fn linger(&self, side: Side) -> bool;

    /// When a store of this side across the bus lands; `None`: at once. `last` is when the store lands that was posted
    /// before it and is still under way. At the time that this gives, [`NodeWords::land`] has to be called.
    fn lag(&self, side: Side, last: Option<Nanos>) -> Option<Nanos>;

    /// Whether the card has left the bus: its memory reads as all ones.
    fn card_gone(&self) -> bool;
}

const CHUNK: usize = 1024;
type Chunk = Box<[Cell<u32>; CHUNK]>;

/// The memory behind one space.
struct Cells {
    chunks: Vec<OnceCell<Chunk>>,
    words: u32,
}

impl Cells {
    fn new(words: u32) -> Self {
        Self {
            chunks: (0..words.div_ceil(CHUNK as u32))
                .map(|_| OnceCell::new())
                .collect(),
            words,
        }
    }

    fn load(&self, at: WordIndex) -> u32 {
        if at.0 >= self.words {
            return u32::MAX;
        }
        let chunk = self.chunks.get(at.index() / CHUNK).and_then(OnceCell::get);
        chunk.map_or(0, |chunk| chunk[at.index() % CHUNK].get())
    }

    fn store(&self, at: WordIndex, value: u32) {
        if at.0 >= self.words {
            return;
        }
        let Some(chunk) = self.chunks.get(at.index() / CHUNK) else {
            return;
        };
        if value == 0 && chunk.get().is_none() {
            return;
        }
        chunk.get_or_init(|| Box::new([const { Cell::new(0) }; CHUNK]))[at.index() % CHUNK].set(value);
    }

    fn bytes(&self) -> usize {
        self.chunks.iter().filter(|chunk| chunk.get().is_some()).count() * CHUNK * 4
    }
}

/// Stores that are not visible yet, oldest first.
type Buffer = RefCell<VecDeque<(Space, WordIndex, u32)>>;

/// Stores that are under way across the bus, oldest first, and when they land.
type Posted = RefCell<VecDeque<(Nanos, WordIndex, u32)>>;

/// Both word spaces of one node.
pub(crate) struct NodeWords {
    bar: Cells,
    shared: Cells,
    buffers: [Buffer; 2],
    posted: [Posted; 2],
    /// The card does nothing any more that anything else sees.
    halted: Cell<bool>,
    watch: Rc<dyn Watch>,
}

impl NodeWords {
    /// Bytes that are allocated: of NIC memory, of the driver's, and for stores that have not landed.
    pub(crate) fn bytes(&self) -> [u64; 3] {
        let cells = |cells: &Cells| cells.bytes() + cells.chunks.len() * size_of::<OnceCell<Chunk>>();
        let buffered: usize = self.buffers.iter().map(|buffer| buffer.borrow().capacity()).sum();
        let posted: usize = self.posted.iter().map(|posted| posted.borrow().capacity()).sum();
        let stores =
            buffered * size_of::<(Space, WordIndex, u32)>() + posted * size_of::<(Nanos, WordIndex, u32)>();
        [cells(&self.bar), cells(&self.shared), stores].map(|bytes| bytes as u64)
    }

    /// Zeroed spaces of `bar` and `shared` words.
    pub(crate) fn new(bar: u32, shared: u32, watch: Rc<dyn Watch>) -> Self {
        Self {
            bar: Cells::new(bar),
            shared: Cells::new(shared),
            buffers: [Buffer::default(), Buffer::default()],
            posted: [Posted::default(), Posted::default()],
            halted: Cell::new(false),
            watch,
        }
    }

    fn cells(&self, space: Space) -> &Cells {
        match space {
            Space::Bar => &self.bar,
            Space::Shared => &self.shared,
        }
    }

    /// Reads a word, for checkers: no hook, no buffer. Of the driver's memory, what the card has posted to it.
    pub(crate) fn peek(&self, space: Space, at: WordIndex) -> u32 {
        let posted = self.posted[Side::Nic as usize].borrow();
        let under_way = posted.iter().rev().find(|&&(_, index, _)| index == at);
        match under_way {
            Some(&(.., value)) if space == Space::Shared => value,
            _ => self.cells(space).load(at),
        }
    }

    /// Stops the card in the middle of whatever it does: from now on its stores stay in its store buffer.
    pub(crate) fn halt(&self) {
        self.halted.set(true);
    }

    /// Whether the card was stopped so.
    pub(crate) fn is_halted(&self) -> bool {
        self.halted.get()
    }

    /// Empties the store buffer of a side.
    pub(crate) fn drain(&self, side: Side) {
        if side == Side::Nic && self.halted.get() {
            return;
        }
        let buffer = &self.buffers[side as usize];
        loop {
            let Some((space, at, value)) = buffer.borrow_mut().pop_front() else {
                return;
            };
            self.leave(side, space, at, value);
        }
    }

    /// A store has left its side's buffer.
    fn leave(&self, side: Side, space: Space, at: WordIndex, value: u32) {
        if space == side.across() {
            let posted = &self.posted[side as usize];
            let last = posted.borrow().back().map(|&(lands, ..)| lands);
            if let Some(lands) = self.watch.lag(side, last) {
                posted.borrow_mut().push_back((lands, at, value));
                if side == Side::Nic {
                    self.watch.stored(side, space, at, value);
                }
                return;
            }
        }
        self.cells(space).store(at, value);
        self.watch.stored(side, space, at, value);
    }

    /// Lands what a side has posted until `now`.
    pub(crate) fn land(&self, side: Side, now: Nanos) {
        let posted = &self.posted[side as usize];
        loop {
            let front = posted.borrow().front().copied();
            let Some((_, at, value)) = front.filter(|&(lands, ..)| lands <= now) else {
                return;
            };
            posted.borrow_mut().pop_front();
            self.cells(side.across()).store(at, value);
            if side == Side::Host {
                self.watch.stored(side, side.across(), at, value);
            }
        }
    }

    /// A side sends an interrupt or a wake-up call across the bus: a posted store behind all its earlier ones, those in its
    /// buffer included. The platforms have a barrier there.
    pub(crate) fn call(&self, side: Side) {
        self.drain(side);
        self.push(side);
    }

    /// Something that a side sends across the bus pushes all earlier stores ahead of it.
    fn push(&self, side: Side) {
        self.land(side, Nanos::MAX);
    }

    /// A side reads across the bus.
    fn cross(&self, side: Side) {
        self.push(side);
        self.push(side.other());
    }

    /// Whether all stores of a side have landed.
    pub(crate) fn has_landed(&self, side: Side) -> bool {
        self.buffers[side as usize].borrow().is_empty() && !self.is_lagging(side)
    }

    /// Whether stores of a side are under way.
    pub(crate) fn is_lagging(&self, side: Side) -> bool {
        !self.posted[side as usize].borrow().is_empty()
    }

    /// The card has been cut off from the bus: what it has under way does not land.
    pub(crate) fn cut_off(&self) {
        self.posted[Side::Nic as usize].borrow_mut().clear();
    }

    /// A reset card's memory is zero, and nothing is under way to it.
    pub(crate) fn clear_bar(&self) {
        for chunk in self.bar.chunks.iter().filter_map(OnceCell::get) {
            chunk.iter().for_each(|word| word.set(0));
        }
        self.buffers[Side::Nic as usize].borrow_mut().clear();
        self.halted.set(false);
        self.posted.iter().for_each(|posted| posted.borrow_mut().clear());
    }

    fn load(&self, actor: Actor, space: Space, at: WordIndex) -> u32 {
        self.watch.before(actor, Touch::Load, space, at);
        let side = actor.side();
        if side == Side::Host && space == Space::Bar && self.watch.card_gone() {
            return u32::MAX;
        }
        let own = self.buffers[side as usize].borrow();
        let pending = own
            .iter()
            .rev()
            .find(|(in_space, index, _)| (*in_space, *index) == (space, at))
            .map(|&(.., value)| value);
        drop(own);
        let value = pending.unwrap_or_else(|| {
            if space == side.across() {
                self.cross(side);
            }
            self.cells(space).load(at)
        });
        self.watch.loaded(side, space, at, value)
    }

    fn store(&self, actor: Actor, space: Space, at: WordIndex, value: u32) {
        self.watch.before(actor, Touch::Store, space, at);
        let side = actor.side();
        if side == Side::Host && space == Space::Bar && self.watch.card_gone() {
            return;
        }
        self.watch.issued(side, space, at, value);
        let buffer = &self.buffers[side as usize];
        let halted = side == Side::Nic && self.halted.get();
        if halted || !buffer.borrow().is_empty() || self.watch.linger(side) {
            buffer.borrow_mut().push_back((space, at, value));
            return;
        }
        self.leave(side, space, at, value);
    }
}

/// A part of one space, as one actor sees it.
#[derive(Clone)]
pub(crate) struct View {
    words: Rc<NodeWords>,
    actor: Actor,
    space: Space,
    base: WordIndex,
    len: u32,
    /// Counts the accesses of a core.
    meter: Option<Meter>,
}

impl View {
    /// The same, whose accesses are counted.
    pub(crate) fn counted(self, meter: &Meter) -> Self {
        Self {
            meter: Some(meter.clone()),
            ..self
        }
    }

    #[inline]
    fn load(&self, at: WordIndex) -> u32 {
        if at.0 < self.len {
            self.words.load(self.actor, self.space, self.base.plus(at.0))
        } else {
            u32::MAX
        }
    }

    #[inline]
    fn store(&self, at: WordIndex, value: u32) {
        if at.0 < self.len {
            self.words
                .store(self.actor, self.space, self.base.plus(at.0), value);
        }
    }

    /// All of a space.
    pub(crate) fn whole(words: &Rc<NodeWords>, actor: Actor, space: Space) -> Self {
        let len = words.cells(space).words;
        Self {
            words: words.clone(),
            actor,
            space,
            base: WordIndex(0),
            len,
            meter: None,
        }
    }

    /// `len` words from `base` on, for a program.
    pub(crate) fn part(words: &Rc<NodeWords>, space: Space, base: WordIndex, len: u32) -> Self {
        Self {
            words: words.clone(),
            actor: Actor::App,
            space,
            base,
            len,
            meter: None,
        }
    }
}

impl SharedWords for View {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        self.meter.iter().for_each(Meter::count);
        self.load(at)
    }

    fn store_release(&self, at: WordIndex, value: u32) {
        self.meter.iter().for_each(Meter::count);
        self.store(at, value);
    }

    fn store_slice(&self, at: WordIndex, values: &[u32]) {
        self.meter
            .iter()
            .for_each(|meter| meter.count_slice(values.len()));
        for (place, &value) in (0..).zip(values) {
            self.store(at.plus(place), value);
        }
    }

    fn load_slice(&self, at: WordIndex, into: &mut [u32]) {
        self.meter.iter().for_each(|meter| meter.count_slice(into.len()));
        for (place, word) in (0..).zip(into) {
            *word = self.load(at.plus(place));
        }
    }

    fn full_barrier(&self) {
        let side = self.actor.side();
        self.words.drain(side);
        self.words.watch.after_barrier(side);
    }

    fn bus_barrier(&self) {
        let side = self.actor.side();
        self.words.drain(side);
        if self.space == side.across() {
            self.words.cross(side);
        }
        self.words.watch.after_barrier(side);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Quiet {
        linger: Cell<bool>,
        lags: Cell<bool>,
        gone: Cell<bool>,
        stores: Cell<u32>,
    }

    impl Watch for Quiet {
        fn before(&self, _actor: Actor, _touch: Touch, _space: Space, _at: WordIndex) {}
        fn after_barrier(&self, _side: Side) {}
        fn stored(&self, _side: Side, _space: Space, _at: WordIndex, _value: u32) {
            self.stores.set(self.stores.get() + 1);
        }
        fn linger(&self, side: Side) -> bool {
            side == Side::Nic && self.linger.get()
        }
        fn lag(&self, _side: Side, last: Option<Nanos>) -> Option<Nanos> {
            last.or(self.lags.get().then_some(Nanos(100)))
        }
        fn card_gone(&self) -> bool {
            self.gone.get()
        }
    }

    fn spaces() -> (Rc<Quiet>, View, View) {
        let watch = Rc::new(Quiet::default());
        let words = Rc::new(NodeWords::new(5000, 100, watch.clone()));
        (
            watch,
            View::whole(&words, Actor::Card, Space::Bar),
            View::whole(&words, Actor::Driver, Space::Bar),
        )
    }

    #[test]
    fn a_store_that_lingers_is_seen_by_its_own_side_only_until_a_barrier() {
        let (watch, nic, host) = spaces();
        watch.linger.set(true);
        nic.store_release(WordIndex(4500), 7);
        watch.linger.set(false);
        nic.store_release(WordIndex(3), 8);
        assert_eq!(
            (
                nic.load_acquire(WordIndex(4500)),
                host.load_acquire(WordIndex(4500))
            ),
            (7, 0)
        );
        assert_eq!(host.load_acquire(WordIndex(3)), 0, "stores keep their order");
        nic.full_barrier();
        assert_eq!(
            (
                host.load_acquire(WordIndex(4500)),
                host.load_acquire(WordIndex(3))
            ),
            (7, 8)
        );
        assert_eq!(watch.stores.get(), 2);
    }

    #[test]
    fn stores_across_the_bus_lag_behind_until_a_read_across_it_of_either_side() {
        let (watch, nic, host) = spaces();
        let words = nic.words.clone();
        let nic_across = View::whole(&words, Actor::Card, Space::Shared);
        let host_own = View::whole(&words, Actor::Driver, Space::Shared);
        let both = |at| (nic.load_acquire(at), host_own.load_acquire(at));
        watch.lags.set(true);
        let at = WordIndex(3);
        host.store_release(at, 1);
        nic_across.store_release(at, 2);
        host.full_barrier();
        nic_across.full_barrier();
        assert_eq!(both(at), (0, 0), "no barrier among processors waits for a bus");
        nic_across.bus_barrier();
        assert_eq!(both(at), (1, 2), "the request pushes, and so does the answer");
        host.store_release(at, 3);
        nic_across.store_release(at, 4);
        assert_eq!(host.load_acquire(at), 3, "a load is a read");
        assert_eq!(both(at), (3, 4));
        host.store_release(at, 5);
        watch.lags.set(false);
        host.store_release(WordIndex(4), 6);
        assert_eq!(
            nic.load_acquire(WordIndex(4)),
            0,
            "posted stores keep their order"
        );
        words.land(Side::Host, Nanos(99));
        assert_eq!(nic.load_acquire(at), 3);
        words.land(Side::Host, Nanos(100));
        assert_eq!((nic.load_acquire(at), nic.load_acquire(WordIndex(4))), (5, 6));
        nic.bus_barrier();
        watch.lags.set(true);
        nic.store_release(at, 7);
        assert_eq!(nic.load_acquire(at), 7, "its own memory lies across no bus");
    }

    #[test]
    fn a_call_across_the_bus_is_behind_every_store() {
        let (watch, nic, _) = spaces();
        let words = nic.words.clone();
        let nic_across = View::whole(&words, Actor::Card, Space::Shared);
        let host_own = View::whole(&words, Actor::Driver, Space::Shared);
        let at = WordIndex(3);
        watch.linger.set(true);
        watch.lags.set(true);
        nic_across.store_release(at, 1);
        assert_eq!(host_own.load_acquire(at), 0);
        words.call(Side::Nic);
        assert_eq!(host_own.load_acquire(at), 1, "what is woken sees it");
    }

    #[test]
    fn outside_and_behind_a_dead_card_reads_are_all_ones() {
        let (watch, nic, host) = spaces();
        assert_eq!(host.load_acquire(WordIndex(5000)), u32::MAX);
        host.store_release(WordIndex(1), 5);
        watch.gone.set(true);
        assert_eq!(host.load_acquire(WordIndex(1)), u32::MAX);
        host.store_release(WordIndex(1), 6);
        assert_eq!(
            nic.load_acquire(WordIndex(1)),
            5,
            "the card itself still sees its memory"
        );
    }

    #[test]
    fn stores_of_a_halted_card_are_seen_by_it_alone_until_it_is_reset() {
        let (_, nic, host) = spaces();
        nic.store_release(WordIndex(1), 1);
        nic.words.halt();
        nic.store_release(WordIndex(1), 2);
        host.store_release(WordIndex(2), 3);
        nic.full_barrier();
        assert_eq!(nic.load_acquire(WordIndex(1)), 2);
        assert_eq!(host.load_acquire(WordIndex(1)), 1);
        assert_eq!(nic.load_acquire(WordIndex(2)), 3, "the host goes on");
        nic.words.clear_bar();
        assert!(!nic.words.is_halted());
        nic.store_release(WordIndex(1), 4);
        assert_eq!(host.load_acquire(WordIndex(1)), 4);
    }

    #[test]
    fn memory_is_allocated_when_it_is_written() {
        let (_, nic, host) = spaces();
        assert_eq!((nic.words.bar.bytes(), host.load_acquire(WordIndex(1))), (0, 0));
        nic.store_release(WordIndex(1), 0);
        assert_eq!(nic.words.bar.bytes(), 0);
        nic.store_release(WordIndex(4999), 1);
        assert_eq!(nic.words.bar.bytes(), CHUNK * 4);
    }
}
