//! Which links have a window, of one direction (`docs/decisions/0033-windows.md`).
//!
//! A window is where the messages of a link are noted between two ends: what has left, or what has arrived, until it has ended. It
//! costs kilobytes, and a bounce page for each message. So there are as many windows as the geometry says, and a link has one only
//! while something is under way; of a link *at rest* only the numbers are kept, which go on where they stood.
//!
//! - A link that needs a window gets its *home*, if that is free, else any that is free, else that of a link at rest. Where there are
//!   as many windows as nodes, each keeps its home.
//! - Where no link is at rest one is *called*: it begins nothing more, and its window goes to the link that asked. A call holds for a
//!   while; then another link is called, so that one message whose page does not come holds up no other link.
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

/// A link has to let go of its window.
#[derive(Clone, Copy, Debug)]
struct Call {
    window: WindowId,
    /// For this link.
    wanted_by: NodeId,
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
    /// Where the last look for a link at rest, or for one to call, has ended.
    hand: u16,
}

impl<S: Storage> Windows<S> {
    /// This node has its home for good: what it sends to itself is never sent again.
    pub(crate) fn new(holders: S::Table<Holder>, own: NodeId) -> Self {
        let mut windows = Self {
            holders,
            call: None,
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

    /// A link, which has none, asks for a window. `rests` says whether a link is at rest and may lose its window; a link is called
    /// for so long as `patience`, never this node's own one.
    #[cold]
    pub(crate) fn ask(
        &mut self,
        now: Nanos,
        patience: Nanos,
        (own, node): (NodeId, NodeId),
        mut rests: impl FnMut(NodeId, WindowId) -> bool,
    ) -> Result<Given, NoneFree> {
        let home = self.home(node);
        let count = self.count();
        let first = self.hand;
        // A link that was called keeps its window for the one that asked for it.
        let kept = self
            .call
            .filter(|call| call.wanted_by != node && now < call.until)
            .map(|call| call.window);
        if self.holder(home).is_none() {
            return Ok(self.give(home, node));
        }
        let mut resting = None;
        for window in (0..count).map(|step| WindowId((first + step) % count)) {
            if Some(window) == kept {
                continue;
            }
            match self.holder(window) {
                None => return Ok(self.give(window, node)),
                Some(holder) if resting.is_none() && holder != own && rests(holder, window) => {
                    resting = Some(window);
                }
                Some(_) => {}
            }
        }
        match resting {
            Some(window) => Ok(self.give(window, node)),
            None => Err(self.call_one(now, patience, (own, node))),
        }
    }

    fn give(&mut self, window: WindowId, node: NodeId) -> Given {
        let from = self.holder(window);
        if let Some(holder) = self.holders.get_mut(window.index()) {
            *holder = Holder(Some(node));
        }
        self.hand = (window.0 + 1) % self.count().max(1);
        let done = self
            .call
            .take_if(|call| call.wanted_by == node || call.window == window);
        let spared = done.and_then(|call| self.holder(call.window));
        Given {
            window,
            from,
            spared: spared.filter(|spared| *spared != node),
        }
    }

    /// Calls the next link, unless one is called.
    fn call_one(&mut self, now: Nanos, patience: Nanos, (own, node): (NodeId, NodeId)) -> NoneFree {
        if self.call.is_some_and(|call| now < call.until) {
            return NoneFree {
                called: None,
                spared: None,
            };
        }
        let spared = self.call.take().and_then(|call| self.holder(call.window));
        for _ in 0..2 {
            let window = WindowId(self.hand);
            self.hand = (self.hand + 1) % self.count().max(1);
            if let Some(called) = self.holder(window).filter(|holder| *holder != own) {
                self.call = Some(Call {
                    window,
                    wanted_by: node,
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

    /// Whether a link is called no more, because its time is over.
    pub(crate) fn spares(&mut self, now: Nanos, node: NodeId) -> bool {
        self.calls(node) && self.call.take_if(|call| call.until <= now).is_some()
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
        windows.ask(Nanos(now), PATIENCE, (OWN, NodeId(node)), |holder, _| {
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
