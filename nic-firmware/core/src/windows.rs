//! Which links have a window, of one direction (`docs/decisions/0033-windows.md`).
//!
//! A window is where the messages of a link are noted between two ends: what has left, or what has arrived, until it has ended. It
//! costs kilobytes, and a bounce page for each message. So there are as many windows as the geometry says, and a link has one only
//! while something is under way; of a link *at rest* only the numbers are kept, which go on where they stood.
//!
//! - A link that needs a window gets its *home*, if that is free, else any that is free, else that of a link at rest. Where there are
//!   as many windows as nodes, each keeps its home.
//! - Where no link is at rest one is *called*: it begins nothing more, and its window goes to the link that asked. A call holds for a
//!   while; then another link is called for the same asker, so that one message whose page does not come holds up no other link.
//!
//! **In turns.** Control messages are always offered first, so without more they would get each window that comes free as long as any
//! of them waits, and the ports none (promise P5). So calls are made for the two in turns, and each for that which has waited longest
//! of its kind, as far as this is known: the first to ask in vain since the last call for its kind. A window that is called for a port
//! goes to a port, even if a control message wants to leave over the same link: else the next one would have the link called again
//! before the port's turn.
//!
//! **No deadlock.** The directions have windows of their own. A message that arrives ends with the help of its host alone, and of an
//! answer that the asking card takes without a window of this direction; so a receiving window always comes free. A sending window
//! waits for receiving windows of the other card, and for nothing else.

use netvm_abi::storage::Storage;
use netvm_abi::{Nanos, NodeId};

/// A window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowId(u16);

impl WindowId {
    /// None. Its index is past the end of every table.
    pub(crate) const NONE: Self = Self(u16::MAX);

    /// Whether it is one.
    #[inline]
    pub(crate) const fn is_some(self) -> bool {
        self.0 != Self::NONE.0
    }

    /// The one with this index.
    pub(crate) const fn at(index: u16) -> Self {
        Self(index)
    }

    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The link that has a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(Option<NodeId>);

impl Holder {
    /// None has it.
    pub(crate) const NONE: Self = Self(None);
}

/// What a window is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A control message to this node.
    Control(NodeId),
    /// A port's message to this node; or, where windows are to receive, any message from it.
    Data(NodeId),
}

impl Wanted {
    /// The node whose link wants it.
    pub(crate) const fn by(self) -> NodeId {
        match self {
            Self::Control(node) | Self::Data(node) => node,
        }
    }

    const fn kind(self) -> usize {
        match self {
            Self::Control(_) => 0,
            Self::Data(_) => 1,
        }
    }
}

/// A link has to let go of its window.
#[derive(Clone, Copy, Debug)]
struct Call {
    /// None: its link has been spared, and another one is to be called.
    window: WindowId,
    /// For this.
    wanted: Wanted,
    /// It is still wanted: it has been asked for again.
    again: bool,
    /// It holds until then.
    until: Nanos,
}

/// A link has got a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) window: WindowId,
    /// The link that had it.
    pub(crate) from: Option<NodeId>,
    /// The link that was called for it, and need not let go any more.
    pub(crate) spared: Option<NodeId>,
}

/// There is none now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoneFree {
    /// This link is called now.
    pub(crate) called: Option<NodeId>,
    /// This one was, and is not any more.
    pub(crate) spared: Option<NodeId>,
}

/// The windows of one direction.
pub(crate) struct Windows<S: Storage> {
    holders: S::Table<Holder>,
    call: Option<Call>,
    /// Of each kind, what has asked first in vain since a link was last called for the kind.
    waiting: [Option<Wanted>; 2],
    /// The kind whose turn it is.
    turn: usize,
    /// Where the last look for a link at rest, or for one to call, has ended.
    hand: u16,
}

impl<S: Storage> Windows<S> {
    /// This node has its home for good: what it sends to itself is never sent again.
    pub(crate) fn new(holders: S::Table<Holder>, own: NodeId) -> Self {
        let mut windows = Self {
            holders,
            call: None,
            waiting: [None; 2],
            turn: 0,
            hand: 0,
        };
        let home = windows.home(own);
        if let Some(holder) = windows.holders.get_mut(home.index()) {
            *holder = Holder(Some(own));
        }
        windows
    }

    fn count(&self) -> u16 {
        self.holders.len() as u16
    }

    /// The window that a link gets if it is free.
    pub(crate) fn home(&self, node: NodeId) -> WindowId {
        WindowId(node.0 % self.count().max(1))
    }

    fn holder(&self, window: WindowId) -> Option<NodeId> {
        self.holders.get(window.index())?.0
    }

    /// A link that has no window asks for one. `rests` says whether a link is at rest and may lose its window; a link is called
    /// for so long as `patience`, never this node's own one.
    #[cold]
    pub(crate) fn ask(
        &mut self,
        now: Nanos,
        patience: Nanos,
        (own, wanted): (NodeId, Wanted),
        mut rests: impl FnMut(NodeId, WindowId) -> bool,
    ) -> Result<Given, NoneFree> {
        let home = self.home(wanted.by());
        let count = self.count();
        let first = self.hand;
        // A link that was called keeps its window for what it was called for.
        let kept = self
            .call
            .filter(|call| call.wanted != wanted && now < call.until)
            .map(|call| call.window);
        if self.holder(home).is_none() {
            return Ok(self.give(home, wanted));
        }
        let mut resting = None;
        for window in (0..count).map(|step| WindowId((first + step) % count)) {
            if Some(window) == kept {
                continue;
            }
            match self.holder(window) {
                None => return Ok(self.give(window, wanted)),
                Some(holder) if resting.is_none() && holder != own && rests(holder, window) => {
                    resting = Some(window);
                }
                Some(_) => {}
            }
        }
        match resting {
            Some(window) => Ok(self.give(window, wanted)),
            None => {
                self.waits(wanted);
                Err(self.call_one(now, patience, own))
            }
        }
    }

    fn give(&mut self, window: WindowId, wanted: Wanted) -> Given {
        let node = wanted.by();
        let from = self.holder(window);
        if let Some(holder) = self.holders.get_mut(window.index()) {
            *holder = Holder(Some(node));
        }
        self.hand = (window.0 + 1) % self.count().max(1);
        let done = self
            .call
            .take_if(|call| call.wanted == wanted || call.window == window);
        let spared = done.and_then(|call| self.holder(call.window));
        Given {
            window,
            from,
            spared: spared.filter(|spared| *spared != node),
        }
    }

    /// Something asks in vain: it has no window, or the link that has one is called.
    #[cold]
    pub(crate) fn waits(&mut self, wanted: Wanted) {
        if let Some(call) = self.call.as_mut().filter(|call| call.wanted == wanted) {
            call.again = true;
        } else if let Some(first) = self.waiting.get_mut(wanted.kind()) {
            first.get_or_insert(wanted);
        }
    }

    /// What is next to have a link called for it: what this was done for in vain, else the first of the kind whose turn it is.
    fn next_wanted(&mut self, over: Option<Call>) -> Option<Wanted> {
        // Its link may have got one since.
        let has_none = |wanted: &Wanted| self.holders.iter().all(|holder| holder.0 != Some(wanted.by()));
        let again = over.filter(|call| call.again).map(|call| call.wanted);
        if let Some(wanted) = again.filter(has_none) {
            return Some(wanted);
        }
        for kind in [self.turn, 1 - self.turn] {
            let first = self.waiting.get_mut(kind).and_then(Option::take);
            if let Some(wanted) = first.filter(has_none) {
                self.turn = 1 - kind;
                return Some(wanted);
            }
        }
        None
    }

    /// Calls the next link, unless one is called.
    fn call_one(&mut self, now: Nanos, patience: Nanos, own: NodeId) -> NoneFree {
        if self.call.is_some_and(|call| now < call.until) {
            return NoneFree {
                called: None,
                spared: None,
            };
        }
        let over = self.call.take();
        let spared = over.and_then(|call| self.holder(call.window));
        let Some(wanted) = self.next_wanted(over) else {
            return NoneFree { called: None, spared };
        };
        for _ in 0..2 {
            let window = WindowId(self.hand);
            self.hand = (self.hand + 1) % self.count().max(1);
            if let Some(called) = self.holder(window).filter(|holder| *holder != own) {
                self.call = Some(Call {
                    window,
                    wanted,
                    again: false,
                    until: now.after(patience),
                });
                return NoneFree {
                    called: Some(called),
                    spared,
                };
            }
        }
        NoneFree { called: None, spared }
    }

    /// Whether a link is called.
    pub(crate) fn calls(&self, node: NodeId) -> bool {
        self.call.and_then(|call| self.holder(call.window)) == Some(node)
    }

    /// Whether a link is called no more, because its time is over. What it was called for keeps its place.
    pub(crate) fn spares(&mut self, now: Nanos, node: NodeId) -> bool {
        if !self.calls(node) {
            return false;
        }
        let over = self.call.as_mut().filter(|call| call.until <= now);
        over.map(|call| call.window = WindowId::NONE).is_some()
    }

    /// Whether a link is called for this.
    #[inline]
    pub(crate) fn calls_for(&self, wanted: Wanted) -> bool {
        self.call.is_some_and(|call| call.wanted == wanted)
    }

    /// Its link has a window, from elsewhere: the one that was called for it need not let go any more.
    #[cold]
    pub(crate) fn is_served(&mut self, wanted: Wanted) -> Option<NodeId> {
        let done = self.call.take_if(|call| call.wanted == wanted)?;
        self.holder(done.window)
    }
}

/// What is remembered of a port towards a node, or of a node's port, while the link has no window.
#[derive(Clone, Copy, Debug)]
pub struct Aside<T>(Option<(NodeId, u16, T)>);

impl<T> Aside<T> {
    /// Nothing.
    pub(crate) const NONE: Self = Self(None);
}

/// Entries of such a table.
pub(crate) const ASIDE: usize = 1024;

/// All that is set aside. Nearly always it is nothing, and nothing looks through the table.
pub(crate) struct SetAside<S: Storage, T: 'static> {
    table: S::Table<Aside<T>>,
    held: usize,
}

impl<S: Storage, T> SetAside<S, T> {
    pub(crate) const fn new(table: S::Table<Aside<T>>) -> Self {
        Self { table, held: 0 }
    }

    /// How many more things may be set aside.
    pub(crate) fn room(&self) -> usize {
        self.table.len() - self.held
    }

    /// Sets something of a port aside; false where there is no room.
    pub(crate) fn put(&mut self, node: NodeId, port: u16, what: T) -> bool {
        let Some(free) = self.table.iter_mut().find(|aside| aside.0.is_none()) else {
            return false;
        };
        free.0 = Some((node, port, what));
        self.held += 1;
        true
    }

    /// Takes back all that was set aside of a node, of the ports that `wanted` names.
    pub(crate) fn take_back(
        &mut self,
        node: NodeId,
        wanted: impl Fn(u16) -> bool,
        mut back: impl FnMut(u16, T),
    ) {
        if self.held == 0 {
            return;
        }
        for aside in self.table.iter_mut() {
            if let Some((_, port, what)) = aside.0.take_if(|(of, port, _)| *of == node && wanted(*port)) {
                self.held -= 1;
                back(port, what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use netvm_abi::storage::Static;
    use std::boxed::Box;
    use std::vec::Vec;

    const OWN: NodeId = NodeId(0);
    const PATIENCE: Nanos = Nanos(100);

    fn windows(count: usize) -> Windows<Static> {
        let holders = (0..count).map(|_| Holder::NONE).collect::<Vec<_>>();
        Windows::new(Box::leak(holders.into_boxed_slice()), OWN)
    }

    fn ask(windows: &mut Windows<Static>, now: u64, node: u16, resting: &[u16]) -> Result<Given, NoneFree> {
        ask_for(windows, now, Wanted::Data(NodeId(node)), resting)
    }

    fn ask_for(
        windows: &mut Windows<Static>,
        now: u64,
        wanted: Wanted,
        resting: &[u16],
    ) -> Result<Given, NoneFree> {
        windows.ask(Nanos(now), PATIENCE, (OWN, wanted), |holder, _| {
            resting.contains(&holder.0)
        })
    }

    #[test]
    fn where_there_are_enough_each_link_has_its_home() {
        let mut windows = windows(8);
        for node in 1..8 {
            let given = ask(&mut windows, 0, node, &[]).unwrap();
            assert_eq!((given.window, given.from), (WindowId(node), None));
        }
    }

    #[test]
    fn a_window_at_rest_goes_to_the_next_and_never_the_own_one() {
        let mut windows = windows(3);
        for node in [4, 5] {
            ask(&mut windows, 0, node, &[]).unwrap();
        }
        let given = ask(&mut windows, 0, 6, &[0, 5]).unwrap();
        assert_eq!(given.from, Some(NodeId(5)));
        let given = ask(&mut windows, 0, 5, &[0, 4, 6]).unwrap();
        assert_eq!(given.from, Some(NodeId(4)), "not the one just given");
    }

    #[test]
    fn the_link_that_asked_gets_the_window_of_the_one_that_was_called() {
        let mut windows = windows(3);
        ask(&mut windows, 0, 4, &[]).unwrap();
        ask(&mut windows, 0, 5, &[]).unwrap();
        let none = ask(&mut windows, 10, 6, &[]).unwrap_err();
        let called = none.called.unwrap();
        let again = NoneFree {
            called: None,
            spared: None,
        };
        assert_eq!(
            ask(&mut windows, 20, 7, &[]),
            Err(again),
            "one is called at a time"
        );
        assert_eq!(
            ask(&mut windows, 20, 7, &[called.0]),
            Err(again),
            "for the one that asked"
        );
        let given = ask(&mut windows, 30, 6, &[called.0]).unwrap();
        assert_eq!((given.from, given.spared), (Some(called), None));
    }

    #[test]
    fn a_call_ends_and_another_link_is_called() {
        let mut windows = windows(3);
        ask(&mut windows, 0, 4, &[]).unwrap();
        ask(&mut windows, 0, 5, &[]).unwrap();
        let first = ask(&mut windows, 10, 6, &[]).unwrap_err().called.unwrap();
        assert!(!windows.spares(Nanos(109), first));
        let next = ask(&mut windows, 110, 7, &[]).unwrap_err();
        assert_eq!(next.spared, Some(first));
        assert_ne!(next.called, Some(first));
        let called = next.called.unwrap();
        assert!(windows.spares(Nanos(210), called));
        assert_eq!(ask(&mut windows, 220, 8, &[called.0]).unwrap().from, Some(called));
    }

    #[test]
    fn what_a_call_was_made_for_in_vain_has_the_next_one_made_for_it() {
        let mut windows = windows(3);
        ask(&mut windows, 0, 4, &[]).unwrap();
        ask(&mut windows, 0, 5, &[]).unwrap();
        let first = ask(&mut windows, 10, 6, &[]).unwrap_err().called.unwrap();
        let _ = ask(&mut windows, 20, 7, &[]);
        let _ = ask(&mut windows, 30, 6, &[]);
        assert!(windows.spares(Nanos(110), first));
        let next = ask(&mut windows, 120, 7, &[]).unwrap_err();
        let second = next.called.unwrap();
        assert_ne!(second, first);
        assert!(
            ask(&mut windows, 130, 7, &[second.0]).is_err(),
            "for node 6, still"
        );
        assert_eq!(ask(&mut windows, 130, 6, &[second.0]).unwrap().from, Some(second));
    }

    #[test]
    fn calls_are_made_for_ports_and_control_messages_in_turns() {
        let mut windows = windows(2);
        let control = |node| Wanted::Control(NodeId(node));
        let port = Wanted::Data(NodeId(9));
        ask_for(&mut windows, 0, control(4), &[]).unwrap();
        // This has a link called; then a port asks, after other control messages.
        assert!(ask_for(&mut windows, 1, control(5), &[]).is_err());
        assert!(ask_for(&mut windows, 1, control(6), &[]).is_err());
        assert!(ask_for(&mut windows, 1, port, &[]).is_err());
        ask_for(&mut windows, 2, control(5), &[4]).unwrap();
        // The next control message is first again, and the call is the port's.
        let called = ask_for(&mut windows, 2, control(6), &[]).unwrap_err().called;
        assert_eq!(called, Some(NodeId(5)));
        assert!(ask_for(&mut windows, 3, control(6), &[5]).is_err(), "kept");
        assert!(ask_for(&mut windows, 3, control(9), &[5]).is_err(), "for ports");
        ask_for(&mut windows, 3, port, &[5]).unwrap();
    }

    #[test]
    fn another_window_that_comes_free_spares_the_link_that_was_called() {
        let mut windows = windows(3);
        ask(&mut windows, 0, 4, &[]).unwrap();
        ask(&mut windows, 0, 5, &[]).unwrap();
        let called = ask(&mut windows, 10, 6, &[]).unwrap_err().called.unwrap();
        let other = NodeId(9 - called.0);
        let given = ask(&mut windows, 20, 6, &[other.0]).unwrap();
        assert_eq!((given.from, given.spared), (Some(other), Some(called)));
    }

    #[test]
    fn all_that_was_set_aside_of_a_node_comes_back() {
        let table = Box::leak(Box::new([Aside::NONE; 4]));
        let mut aside = SetAside::<Static, u16>::new(table);
        for (node, port) in [(1, 7), (2, 7), (1, 9), (3, 1)] {
            assert!(aside.put(NodeId(node), port, node * 100 + port));
        }
        assert!(!aside.put(NodeId(4), 0, 0));
        let mut back = Vec::new();
        aside.take_back(NodeId(1), |port| port == 9, |port, what| back.push((port, what)));
        aside.take_back(NodeId(1), |_| true, |port, what| back.push((port, what)));
        assert_eq!(back, [(9, 109), (7, 107)]);
        assert_eq!(aside.room(), 2);
    }
}
