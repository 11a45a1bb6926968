//! A link at rest has no window: only its numbers stay ([`crate::windows`]).
//!
//! An end takes a window from a link when nothing of that direction is under way, as far as it knows, and needs not tell the other
//! end:
//!
//! - **To send**: all that has left has ended, all answers that are waited for are here, and no command holds a credit. Word of a failed
//!   write is not waited for: what of it is still on its way is taken in the order of its numbers, and is sent again until then.
//! - **To receive**: all that is known to have been sent has ended, and each answer to it has been received.
//!
//! What comes late is judged by its number alone. A message that comes again lies before the window, and is acknowledged again; a
//! new one gets a window, or is refused, and then its sender sends it again, as if the wire had lost it. So a link that may be
//! refused is one that may lose frames.
//!
//! What a stream has to remember longer (an error that its program has not heard of, an append that was refused) is set aside, and
//! comes back with the next window. Where there is no room for it aside, the link keeps its window.

use super::{Links, Lost, Peer, Sender};
use crate::config::Config;
use crate::env::Env;
use crate::windows::{NoneFree, Wanted, WindowId};
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::storage::Storage;
use netvm_abi::{Nanos, NodeId, PortId, Seq};

/// The windows that a link has.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldWindows {
    /// To send.
    pub(super) to: WindowId,
    /// To receive.
    pub(super) from: WindowId,
}

impl HeldWindows {
    /// None.
    pub(super) const NONE: Self = Self {
        to: WindowId::NONE,
        from: WindowId::NONE,
    };
}

/// Whether new messages of a link are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inflow {
    /// They are.
    Open,
    /// It takes a look: the link has no window, or another one is to have it.
    Closed,
}

impl Peer {
    /// Its window to receive.
    #[inline]
    pub(crate) const fn window_from(&self) -> WindowId {
        self.windows.from
    }

    /// Whether it takes a look to know if a message may come in.
    #[inline]
    pub(crate) fn is_closed_to_new(&self) -> bool {
        self.inflow != Inflow::Open
    }

    /// Nothing of what this side sends is under way.
    fn rests_sending(&self) -> bool {
        let next = self.credits.next();
        self.credits.in_flight() == 0
            && self.credits.reserved() == 0
            && self.reads == 0
            && (!self.lossy || self.resend.requests == next)
            && !self.arrivals.misses_answers()
    }

    /// Nothing of what the other side sends is under way, as far as is known.
    fn rests_receiving(&self) -> bool {
        self.draining == 0
            && !self.awaits_release
            && self.admits.is_none()
            && (!self.sequence.anything_past_lsn() || mutant::is(Mutant::WindowTakenEarly))
            && self.resend.answers == self.resend.next_answer
    }

    /// A life begins, with the windows of the one before.
    pub(super) const fn begins_open(&mut self) {
        self.inflow = if self.windows.from.is_some() {
            Inflow::Open
        } else {
            Inflow::Closed
        };
    }
}

impl<S: Storage> Links<S> {
    /// This node's link to itself has its windows for good.
    pub(super) fn has_own_windows(&mut self, own: NodeId) {
        let windows = HeldWindows {
            to: self.to.home(own),
            from: self.from.home(own),
        };
        if let Some(peer) = self.get_mut(own) {
            peer.windows = windows;
        }
    }

    /// A node's window to receive.
    pub(crate) fn window_from(&self, id: NodeId) -> WindowId {
        self.get(id).map_or(WindowId::NONE, |peer| peer.windows.from)
    }

    /// Whether a link has a window to send what is wanted, or gets one now.
    #[inline]
    pub(crate) fn has_window_to(&mut self, env: &mut Env<S>, now: Nanos, wanted: Wanted) -> bool {
        let Some(peer) = self.get(wanted.by()) else {
            return false;
        };
        if !peer.windows.to.is_some() {
            return self.gets_window_to(env, now, wanted);
        }
        if peer.credits.is_closed() {
            self.to.waits(wanted);
            return false;
        }
        if self.to.calls_for(wanted) {
            let spared = self.to.is_served(wanted);
            self.opens_to(spared);
        }
        true
    }

    #[cold]
    fn gets_window_to(&mut self, env: &mut Env<S>, now: Nanos, wanted: Wanted) -> bool {
        let id = wanted.by();
        let (own, ports) = (env.config.node, usize::from(env.config.geometry.ports));
        let (peers, senders) = (&self.peers, &self.senders);
        let room = self.losses_aside.room();
        let rests = |node: NodeId, window: WindowId| {
            let at = window.index() * ports;
            let row = senders.get(at..at + ports).unwrap_or_default();
            peers.get(node.index()).is_some_and(Peer::rests_sending)
                && row.iter().all(Sender::is_idle)
                && row.iter().filter(|sender| sender.remembers()).count() <= room
        };
        let given = match self
            .to
            .ask(now, env.config.timers.probe_interval, (own, wanted), rests)
        {
            Ok(given) => given,
            Err(NoneFree { called, spared }) => {
                self.opens_to(spared);
                if let Some(called) = called {
                    self.calls_to(env, now, called);
                }
                return false;
            }
        };
        self.opens_to(given.spared);
        if let Some(from) = given.from {
            env.counters.windows_moved += 1;
            self.leaves_window_to(&env.config, from, given.window);
        }
        let (at, senders) = (given.window.index() * ports, &mut self.senders);
        let put = |port, sender| {
            if let Some(place) = senders.get_mut(at + usize::from(port)) {
                *place = sender;
            }
        };
        self.losses_aside.take_back(id, |_| true, put);
        if let Some(peer) = self.get_mut(id) {
            peer.windows.to = given.window;
            peer.credits.open();
        }
        true
    }

    /// A link that is at rest loses its window to send.
    fn leaves_window_to(&mut self, config: &Config, id: NodeId, window: WindowId) {
        if let Some(peer) = self.get_mut(id) {
            peer.windows.to = WindowId::NONE;
        }
        for port in 0..config.geometry.ports {
            let at = config.stream_index(window, PortId(port));
            if let Some(sender) = self.senders.get_mut(at).map(core::mem::take)
                && sender.remembers()
            {
                let kept = self.losses_aside.put(id, port, sender);
                debug_assert!(kept, "a link that finds no room keeps its window");
            }
        }
    }

    /// A link is to end what it has under way, and to begin nothing.
    fn calls_to(&mut self, env: &mut Env<S>, now: Nanos, id: NodeId) {
        env.counters.windows_called += 1;
        if let Some(peer) = self.get_mut(id) {
            peer.credits.close();
        }
        // The call ends with the time, too.
        self.arm_probe(env, id, now);
    }

    /// A link that was called may go on.
    fn opens_to(&mut self, id: Option<NodeId>) {
        if let Some(peer) = id.and_then(|id| self.get_mut(id)) {
            peer.credits.open();
        }
    }

    /// Whether a link that was called may go on sending, because the call is over. While it is not, the link is looked at again.
    pub(crate) fn call_ends(&mut self, env: &Env<S>, now: Nanos, id: NodeId) -> bool {
        if self.to.spares(now, id) {
            self.opens_to(Some(id));
            return true;
        }
        if self.to.calls(id) {
            self.arm_probe(env, id, now);
        }
        false
    }

    /// A message has come over a link that has no window, or is to leave it: whether the message may come in. `keeps` says whether
    /// what a window's streams have to remember can be set aside, `moves` has it moved when a window goes from one link to another.
    #[cold]
    pub(crate) fn lets_in(
        &mut self,
        env: &mut Env<S>,
        now: Nanos,
        (id, seq): (NodeId, Seq),
        keeps: impl Fn(WindowId) -> bool,
        moves: impl FnOnce(&Config, WindowId, Option<NodeId>),
    ) -> bool {
        if self.window_from(id).is_some() {
            if self.from.spares(now, id) {
                self.opens_from(Some(id));
                return true;
            }
            // What fills a gap lets the link come to rest.
            return self
                .get(id)
                .is_some_and(|peer| peer.sequence.received().1.is_after(seq));
        }
        let own = env.config.node;
        let peers = &self.peers;
        let rests = |node: NodeId, window: WindowId| {
            peers.get(node.index()).is_some_and(Peer::rests_receiving) && keeps(window)
        };
        let given = match self.from.ask(
            now,
            env.config.timers.probe_interval,
            (own, Wanted::Data(id)),
            rests,
        ) {
            Ok(given) => given,
            Err(NoneFree { called, spared }) => {
                self.opens_from(spared);
                if let Some(peer) = called.and_then(|called| self.get_mut(called)) {
                    env.counters.windows_called += 1;
                    peer.inflow = Inflow::Closed;
                }
                return false;
            }
        };
        self.opens_from(given.spared);
        if let Some(peer) = given.from.and_then(|from| self.get_mut(from)) {
            env.counters.windows_moved += 1;
            (peer.windows.from, peer.inflow) = (WindowId::NONE, Inflow::Closed);
        }
        moves(&env.config, given.window, given.from);
        if let Some(peer) = self.get_mut(id) {
            (peer.windows.from, peer.inflow) = (given.window, Inflow::Open);
        }
        true
    }

    fn opens_from(&mut self, id: Option<NodeId>) {
        if let Some(peer) = id.and_then(|id| self.get_mut(id)) {
            peer.inflow = Inflow::Open;
        }
    }

    /// An operation of a port was lost towards a node whose link has no window. Returns whether the last loss was of another epoch,
    /// or there was none. Where there is no room aside, the link gets a window for that, if it can.
    #[cold]
    pub(super) fn note_loss_aside(
        &mut self,
        env: &mut Env<S>,
        node: NodeId,
        port: PortId,
        loss: Lost,
    ) -> bool {
        if self.get(node).is_none() || port.0 >= env.config.geometry.ports {
            return false;
        }
        let mut sender = Sender::default();
        let aside = &mut self.losses_aside;
        aside.take_back(node, |of| of == port.0, |_, before| sender = before);
        let other = sender.loses(loss);
        if !aside.put(node, port.0, sender)
            && self.gets_window_to(env, env.now, Wanted::Data(node))
            && let Some(way) = self.way(&env.config, node, port)
        {
            let _ = way.loses(loss);
        }
        other
    }
}
