//! The sending side of links: credits, the ports' shares of them, and whose the messages are that have left.

use super::copies::Copies;
use super::{Links, Peer, Timer};
use crate::config::Config;
use crate::env::Env;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{OwnHeader, Receipt};
use netvm_abi::{Epoch, Generation, Incarnation, Nanos, NodeId, OpId, PortId, Seq, Stamp};

/// A port's sending side towards one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sender {
    /// Window slots that it holds: reserved, or of a message that has not ended as far as this side knows.
    share: u16,
    /// In which epoch an operation was lost before the receiver could know of it: what follows is held back.
    lost: Option<Epoch>,
    /// Owner of the port that posted it.
    owner: Generation,
}

impl Sender {
    /// An operation was lost. Returns whether the last loss was of another epoch, or there was none.
    pub(super) fn loses(&mut self, loss: Lost) -> bool {
        let before = (self.owner, self.lost);
        (self.owner, self.lost) = (loss.owner, Some(loss.epoch));
        before != (self.owner, self.lost)
    }

    /// Whether it holds no slot of the window.
    pub(super) const fn is_idle(&self) -> bool {
        self.share == 0
    }

    /// Whether it has lost an operation.
    pub(super) const fn remembers(&self) -> bool {
        self.lost.is_some()
    }
}

/// In which epoch of which life of its port an operation was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The next owner of the port number is not to blame.
    pub(crate) owner: Generation,
    pub(crate) epoch: Epoch,
}

/// A message that has left and is not acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing {
    pub(crate) port: PortId,
    pub(crate) epoch: Epoch,
    pub(crate) op: OpId,
    pub(crate) generation: Generation,
    /// It is known to have ended, and its port has its slot back, though one before it has not.
    pub(crate) settled: bool,
}

/// A port's way to a node.
pub(crate) struct Way<'a, S: Storage> {
    peer: &'a mut Peer,
    sender: &'a mut Sender,
    outgoing: &'a mut [Outgoing],
    copies: &'a mut Copies<S>,
}

impl<S: Storage> Way<'_, S> {
    /// The node.
    #[inline]
    pub(crate) fn peer(&mut self) -> &mut Peer {
        self.peer
    }

    /// Takes a window slot for the port, which gets at most half of them (promise P5).
    #[inline(always)]
    pub(crate) fn reserve(&mut self) -> bool {
        if self.has_its_share() || !self.reserve_copy() {
            return false;
        }
        if !self.peer.credits.reserve() {
            self.unreserve_copy();
            return false;
        }
        self.sender.share += 1;
        true
    }

    #[inline(always)]
    fn has_its_share(&self) -> bool {
        self.sender.share >= self.peer.credits.share()
    }

    /// Reserves a copy for a message, if the wire may lose it.
    #[inline(always)]
    fn reserve_copy(&mut self) -> bool {
        !self.peer.lossy || self.copies.reserve()
    }

    /// Whether the wire has room for a message that could leave now. A message that is only reserved takes none: its page may not
    /// come for long.
    #[inline(always)]
    pub(crate) fn finds_room(&mut self) -> bool {
        !self.peer.lossy || self.peer.has_room_on_wire()
    }

    #[inline]
    fn unreserve_copy(&mut self) {
        self.copies.unreserve(u32::from(self.peer.lossy));
    }

    /// An operation was lost. Returns whether the last loss was of another epoch, or there was none.
    pub(super) fn loses(self, loss: Lost) -> bool {
        self.sender.loses(loss)
    }

    /// Whether an operation of this way was lost at this side.
    #[inline]
    pub(crate) const fn has_lost(&self) -> bool {
        self.sender.lost.is_some()
    }

    /// Whether one was lost in this epoch of this owner. Of another, the loss is over and done with.
    #[inline]
    pub(crate) fn follows(&mut self, loss: Lost) -> bool {
        let Some(lost) = self.sender.lost else {
            return false;
        };
        let follows = (self.sender.owner, lost) == (loss.owner, loss.epoch);
        if !follows {
            self.sender.lost = None;
        }
        follows
    }

    /// Takes a window slot for a message that leaves at once. Gives its number.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Seq> {
        if self.has_its_share() {
            return None;
        }
        // Where it takes a look to know, the message goes through the pipeline, which takes that look.
        let next = self.peer.credits.next();
        if self.peer.lossy && !(self.peer.resend.surely_has_room(next) && self.copies.reserve()) {
            return None;
        }
        let Some(seq) = self.peer.credits.take() else {
            self.unreserve_copy();
            return None;
        };
        self.sender.share += 1;
        Some(seq)
    }

    /// Turns a reserved window slot into a sequence number.
    #[inline(always)]
    pub(crate) fn assign(&mut self) -> Seq {
        self.peer.credits.assign()
    }

    /// Gives a message its number, and writes down whose it is. Returns whether the peer is to be looked at anyway.
    #[inline(always)]
    pub(crate) fn number(
        self,
        config: &Config,
        now: Nanos,
        header: &mut OwnHeader,
        out: Outgoing,
        seq: Seq,
    ) -> bool {
        let (peer, window) = (self.peer, u32::from(config.geometry.window));
        header.set_number(seq, [peer.local, peer.remote]);
        header.set_stamp(Stamp::of(now));
        // One request in every quarter of a window, at its end: so a holder of a half (a port) or of the whole has
        // asked, not every message asks when the window is full, and what a half asks for comes with the half.
        if peer.credits.ends_a_quarter(seq) {
            header.request_ack();
        }
        let slot = config.slot_id(peer.windows.to, (seq.0 & (window - 1)) as u16);
        if let Some(place) = self.outgoing.get_mut(slot.index()) {
            *place = out;
        }
        peer.is_set(Timer::Probe)
    }
}

impl Peer {
    /// Whether fewer messages are on the wire than the congestion window allows.
    #[inline(always)]
    fn has_room_on_wire(&mut self) -> bool {
        let next = self.credits.next();
        self.resend.surely_has_room(next) || self.resend.has_room(next)
    }
}

impl<S: Storage> Links<S> {
    /// The way of a port to a node; nothing, if the link has no window to send.
    #[inline(always)]
    pub(crate) fn way(&mut self, config: &Config, node: NodeId, port: PortId) -> Option<Way<'_, S>> {
        let peer = self.peers.get_mut(node.index())?;
        Some(Way {
            sender: self.senders.get_mut(config.stream_index(peer.windows.to, port))?,
            peer,
            outgoing: &mut self.outgoing,
            copies: &mut self.copies,
        })
    }

    /// Window slots that a port holds, of all nodes: its messages that are not known to have landed.
    pub(crate) fn slots_of(&self, config: &Config, port: PortId) -> u32 {
        let windows = self.senders.chunks(config.geometry.ports.into());
        let senders = windows.filter_map(|row| row.get(port.index()));
        senders.map(|sender| u32::from(sender.share)).sum()
    }

    /// An operation of a port towards a node was lost before the receiver could know of it. Returns whether the last loss
    /// of that way was of another epoch, or there was none.
    pub(crate) fn note_loss(&mut self, env: &mut Env<S>, node: NodeId, port: PortId, loss: Lost) -> bool {
        match self.way(&env.config, node, port) {
            Some(way) => way.loses(loss),
            None => self.note_loss_aside(env, node, port, loss),
        }
    }

    /// Gives back a window slot that was not used.
    pub(crate) fn return_credit(&mut self, config: &Config, node: NodeId, port: PortId, life: Incarnation) {
        if let Some(way) = self.way(config, node, port) {
            way.sender.share = way.sender.share.saturating_sub(1);
            // A later life of the link has forgotten the reservation.
            if way.peer.is_up_in(life) {
                way.copies.unreserve(u32::from(way.peer.lossy));
                way.peer.credits.unreserve();
            }
        }
    }

    /// The LSN has passed a message, or it has been lost: its port has one window slot more, if it has not got it before.
    pub(super) fn settle(&mut self, config: &Config, id: NodeId, seq: Seq) -> Option<Outgoing> {
        let out = *self.outgoing_at(config, id, seq)?;
        if !out.settled {
            self.give_back(config, id, out.port);
        }
        Some(out)
    }

    /// Messages past one that is missing have ended. Their ports may have others on the way: the window's slots stay
    /// taken until the LSN has passed them, but a port that has little waiting at the receiver is not held up by the loss of
    /// one message before it has used the whole window.
    pub(crate) fn settle_ended(&mut self, config: &Config, id: NodeId, receipt: &Receipt) {
        let Some(credits) = self.get(id).map(|peer| peer.credits) else {
            return;
        };
        for seq in receipt.ended_beyond() {
            // Of what has not been sent an honest card says nothing.
            if seq.since(credits.acked()) >= credits.in_flight() {
                continue;
            }
            if let Some(out) = self.outgoing_at(config, id, seq)
                && !core::mem::replace(&mut out.settled, true)
            {
                let port = out.port;
                self.give_back(config, id, port);
            }
        }
    }

    #[inline]
    fn outgoing_at(&mut self, config: &Config, id: NodeId, seq: Seq) -> Option<&mut Outgoing> {
        let slot = (seq.0 & (u32::from(config.geometry.window) - 1)) as u16;
        let sends = self.get(id)?.windows.to;
        self.outgoing.get_mut(config.slot_id(sends, slot).index())
    }

    /// A port has one window slot more.
    #[inline]
    fn give_back(&mut self, config: &Config, id: NodeId, port: PortId) {
        if let Some(way) = self.way(config, id, port) {
            way.sender.share = way.sender.share.saturating_sub(1);
        }
    }

    /// Takes the oldest message that has left and is not acknowledged. The link is lost, so it is not known whether
    /// the message has landed.
    pub(crate) fn next_lost(&mut self, env: &Env<S>, id: NodeId) -> Option<Outgoing> {
        let peer = self.get_mut(id)?;
        if peer.credits.in_flight() == 0 {
            return None;
        }
        let seq = peer.credits.acked();
        peer.credits.acknowledge(seq.plus(1));
        self.settle(&env.config, id, seq)
    }
}
