//! The link to another node: its life, its two windows, and what keeps it alive.
//!
//! ```text
//! Down --connect--> Connecting --HelloAck--> Up
//!   \--Hello--> Releasing --host and DMAs have let go--> Accepted --first message--> Up
//! Up --probes without an Ack | gap stays open | Bye | new Hello--> Releasing
//! ```
//!
//! Each end draws an incarnation for each life of the link, and every message names both. A life
//! begins only when everything of the one before is gone: bounce slots (the host says so), DMAs
//! and queued messages of its window (counted in `draining`).

use crate::nic::Nic;
use crate::platform::{Payload, Platform};
use crate::slot::SlotState;
use crate::stream::Lost;
use crate::window::{Credits, Sequence};
use netvm_abi::event::NicEvent;
use netvm_abi::port_area::ErrorRecord;
use netvm_abi::shared_map::status_page;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Header, Kind, OwnHeader};
use netvm_abi::words::SharedWords;
use netvm_abi::{BounceId, Incarnation, Nanos, NodeId, Seq};

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// There is none.
    Down,
    /// Greetings go out.
    Connecting,
    /// What is left of the last life has to go first.
    Releasing,
    /// The other side's greeting is answered; whether it knows is not known yet.
    Accepted,
    /// It works.
    Up,
}

/// A greeting that waits until the old life of the link is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) incarnation: Incarnation,
    pub(crate) first: Seq,
    pub(crate) payload: u32,
}

/// Another node (or this one: its link to itself needs no greeting).
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub(crate) link: Link,
    /// Incarnation of this end.
    pub(crate) local: Incarnation,
    /// Incarnation of the other end.
    pub(crate) remote: Incarnation,
    /// `local` has been said in a greeting and no life has begun with it.
    pub(crate) greeted: bool,
    /// The other end's incarnation in the life before: a greeting of it comes late.
    pub(crate) past: Incarnation,
    pub(crate) credits: Credits,
    pub(crate) sequence: Sequence,
    /// Largest payload on this path in bytes.
    pub(crate) payload: u32,
    /// When it was last heard.
    pub(crate) heard_at: Nanos,
    /// Since when the LSN has been missing while later messages are there.
    pub(crate) gap_since: Nanos,
    /// Messages sent since the last that asked for an acknowledgement.
    pub(crate) unasked: u16,
    /// Read slots that wait for its answers.
    pub(crate) reads: u16,
    /// Probes since the last acknowledgement, or greetings without an answer.
    pub(crate) unanswered: u8,
    /// The oldest number without an acknowledgement at the last look, if there was one.
    oldest: Option<Seq>,
    /// Messages of the last life that DMAs or queues still hold.
    draining: u16,
    /// The release that the host owes.
    awaited: Option<Incarnation>,
    pub(crate) offer: Option<Offer>,
    /// The host wants a link to this node.
    pub(crate) wanted: bool,
}

impl Peer {
    /// A node that has not been heard of.
    pub(crate) const fn unknown() -> Self {
        Self {
            link: Link::Down,
            local: Incarnation(0),
            remote: Incarnation(0),
            greeted: false,
            past: Incarnation(0),
            credits: Credits::new(64, Seq(0)),
            sequence: Sequence::new(64, Seq(0)),
            payload: 0,
            heard_at: Nanos(0),
            gap_since: Nanos(0),
            unasked: 0,
            reads: 0,
            unanswered: 0,
            oldest: None,
            draining: 0,
            awaited: None,
            offer: None,
            wanted: false,
        }
    }

    /// Whether a message of these incarnations belongs to the present life of the link.
    #[inline]
    pub(crate) fn is_life_of(&self, theirs: Incarnation, ours: Incarnation) -> bool {
        theirs == self.remote && ours == self.local && matches!(self.link, Link::Up | Link::Accepted)
    }

    /// The same, for a link that is up: nearly every message.
    #[inline]
    pub(crate) fn is_up_with(&self, theirs: Incarnation, ours: Incarnation) -> bool {
        theirs == self.remote && ours == self.local && self.link == Link::Up
    }

    /// A message of this life has arrived.
    #[inline]
    pub(crate) const fn heard(&mut self, now: Nanos) {
        self.heard_at = now;
    }

    /// Whether no acknowledgement has moved the window since the last look, while something waits for one. Asked
    /// once in each look; so nothing needs to be stored when a message leaves. Numbers do not come again within a
    /// life, so the same oldest number at two looks has been the oldest all the time between them.
    pub(crate) fn stalls(&mut self) -> bool {
        let oldest = (self.credits.in_flight() != 0).then_some(self.credits.acked());
        let stalls = oldest.is_some() && oldest == self.oldest;
        self.oldest = oldest;
        stalls
    }

    /// Whether what waits for this link may go on waiting.
    pub(crate) const fn will_come_up(&self) -> bool {
        match self.link {
            Link::Up | Link::Accepted | Link::Connecting => true,
            Link::Releasing => self.wanted || self.offer.is_some(),
            Link::Down => false,
        }
    }

    /// Whether something is outstanding that only this peer can end.
    pub(crate) const fn owes(&self) -> bool {
        self.credits.in_flight() != 0 || self.sequence.anything_past_lsn()
    }
}

impl<S: Storage> Nic<S> {
    /// A header of the present life of a link.
    #[inline(always)]
    pub(crate) fn session_header(&self, body: Body, id: NodeId) -> Header {
        let mut header = self.blank_header(id);
        header.set_body(body);
        header
    }

    pub(crate) fn blank_header(&self, id: NodeId) -> Header {
        let mut header = Header::new(Kind::Write, self.env.config.node, id);
        if let Some(peer) = self.peers.get(id.index()) {
            header.source_incarnation = peer.local;
            header.destination_incarnation = peer.remote;
        }
        header
    }

    /// The incarnation for the next life of a link: the one already said in a greeting, so that a
    /// greeting of ours that arrives late is known there; else a new one.
    pub(crate) fn next_incarnation(&mut self, id: NodeId) -> Incarnation {
        match self.peers.get(id.index()) {
            Some(peer) if peer.greeted => peer.local,
            _ => self.draw_incarnation(),
        }
    }

    /// An incarnation that no earlier life of any link of this node had.
    fn draw_incarnation(&mut self) -> Incarnation {
        self.lives = self.lives.wrapping_add(1);
        // An odd factor: different lives give different numbers.
        let mixed = self.env.config.incarnation_seed ^ self.lives.wrapping_mul(0x9E37_79B1);
        Incarnation(if mixed == 0 { 0x9E37_79B1 } else { mixed })
    }

    /// The first sequence number of a life: anywhere, so that the wrap is nothing special.
    pub(crate) const fn first_seq(incarnation: Incarnation) -> Seq {
        Seq(incarnation.0.wrapping_mul(0x85EB_CA6B))
    }

    /// A new life of a link begins.
    pub(crate) fn begin_life(&mut self, now: Nanos, id: NodeId, offer: Offer) {
        let window = self.env.config.geometry.window;
        let payload = self.env.config.geometry.payload;
        if let Some(peer) = self.peers.get_mut(id.index()) {
            peer.remote = offer.incarnation;
            peer.greeted = false;
            peer.credits = Credits::new(window, Self::first_seq(peer.local));
            peer.sequence = Sequence::new(window, offer.first);
            peer.payload = payload.min(offer.payload);
            peer.unanswered = 0;
            peer.oldest = None;
            peer.heard_at = now;
        }
    }

    /// The link works in both directions.
    #[cold]
    pub(crate) fn link_up<P: Platform>(&mut self, p: &mut P, id: NodeId) {
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        peer.link = Link::Up;
        let (incarnation, payload) = (peer.remote, peer.payload);
        self.env.counters.links_up += 1;
        let at = status_page::peer(id);
        p.shared().store_release(status_page::peer_payload(id), payload);
        p.shared().store_release(at, incarnation.0);
        self.env.tell_host(
            p,
            NicEvent::PeerUp {
                peer: id,
                incarnation,
            },
        );
        self.ports.stir();
    }

    /// Says where the windows of all links stand, for observers: what this costs grows with the number of nodes, so it
    /// is for a platform that has a moment.
    pub fn publish_windows<P: Platform>(&self, p: &P) {
        for (id, peer) in (0..).zip(self.peers.iter()) {
            if peer.link == Link::Up {
                let at = status_page::peer_windows(NodeId(id));
                let windows = [peer.credits.next(), peer.credits.acked(), peer.sequence.lsn()];
                p.shared().store_slice(at, &windows.map(|seq| seq.0));
            }
        }
    }

    /// The life of a link is over. What was outstanding ends with [`Status::LinkLost`].
    pub(crate) fn lose_link<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId, offer: Option<Offer>) {
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        let over = peer.remote;
        let was_up = matches!(peer.link, Link::Up | Link::Accepted);
        // Of a life that only this side began, the greeting may still come again.
        if peer.link == Link::Up {
            peer.past = over;
        }
        peer.link = Link::Releasing;
        peer.offer = offer;
        peer.unanswered = 0;
        peer.awaited = Some(offer.map_or(over, |offer| offer.incarnation));
        let event = match offer {
            Some(offer) => NicEvent::PeerReset {
                peer: id,
                incarnation: offer.incarnation,
            },
            None => NicEvent::PeerLost {
                peer: id,
                incarnation: over,
            },
        };
        if was_up {
            self.env.counters.links_lost += 1;
            p.shared().store_release(status_page::peer(id), 0);
            self.fail_outgoing(p, id);
            self.fail_round_trips(p, id);
            self.fail_controls(p, id, Status::LinkLost);
            self.clear_window(p, id);
        }
        self.env.tell_host(p, event);
        self.ports.stir();
        self.try_begin(p, now, id);
    }

    /// Messages that left and were not acknowledged: it is not known whether they landed. Each port hears of its first
    /// one, and its notifications wait for a new epoch.
    fn fail_outgoing<P: Platform>(&mut self, p: &mut P, id: NodeId) {
        let mut told = [0u64; 16];
        for _ in 0..self.env.config.geometry.window {
            let Some(peer) = self.peers.get_mut(id.index()) else {
                return;
            };
            if peer.credits.in_flight() == 0 {
                return;
            }
            let seq = peer.credits.acked();
            peer.credits.acknowledge(seq.plus(1));
            let slot = self
                .env
                .config
                .slot_id(id, (seq.0 % u32::from(self.env.config.geometry.window)) as u16);
            let Some(out) = self.outgoing.get(slot.index()).copied() else {
                return;
            };
            let at = self.env.config.stream_index(id, out.port);
            if let Some(sender) = self.senders.get_mut(at) {
                sender.share = sender.share.saturating_sub(1);
            }
            // Of a port that is gone the next owner of the number hears nothing, and nothing of it is held back.
            let Some(port) = self.ports.of_owner(out.port, out.generation) else {
                continue;
            };
            if let Some(sender) = self.senders.get_mut(at) {
                sender.lost = Some(Lost {
                    owner: out.generation,
                    epoch: out.epoch,
                });
            }
            let bit = 1 << (out.port.0 % 64);
            let Some(word) = told.get_mut(out.port.index() / 64) else {
                continue;
            };
            if *word & bit == 0 {
                *word |= bit;
                let record = ErrorRecord {
                    op: out.op,
                    status: Status::LinkLost,
                    node: id,
                    epoch: out.epoch,
                    ..ErrorRecord::default()
                };
                port.record_error(p, &mut self.env, &record);
            }
        }
    }

    /// Empties the receiving window. Bounced messages stay with the host until it releases them;
    /// what a DMA or a queue holds goes when that lets go.
    fn clear_window<P: Platform>(&mut self, p: &mut P, id: NodeId) {
        for index in 0..self.env.config.geometry.window {
            let at = self.env.config.slot_id(id, index);
            let Some(slot) = self.slot_mut(at) else {
                return;
            };
            let state = slot.state;
            slot.state = match state {
                SlotState::Queued
                | SlotState::Moving
                | SlotState::Fetching
                | SlotState::Storing
                | SlotState::Bouncing
                | SlotState::Dead => SlotState::Dead,
                SlotState::Bounced => SlotState::Bounced,
                SlotState::Missing
                | SlotState::Ordered
                | SlotState::Sourcing
                | SlotState::Landed
                | SlotState::Failed => SlotState::Missing,
            };
            let drains = slot.state == SlotState::Dead && state != SlotState::Dead;
            let lost = !matches!(state, SlotState::Missing | SlotState::Landed | SlotState::Failed);
            if slot.state == SlotState::Missing
                && let Some(receive) = slot.let_go()
            {
                p.release_receive(receive);
            }
            if lost {
                self.env.counters.dropped += 1;
            }
            if drains && let Some(peer) = self.peers.get_mut(id.index()) {
                peer.draining += 1;
            }
            if state == SlotState::Sourcing {
                self.staging.orphan(&mut self.ports, at);
            }
        }
    }

    /// A message of an earlier life is no longer held.
    #[cold]
    pub(crate) fn bury<P: Platform>(&mut self, p: &mut P, now: Nanos, at: BounceId) {
        let Some(slot) = self.slot_mut(at) else {
            return;
        };
        slot.state = SlotState::Missing;
        let id = slot.header.source();
        if let Some(receive) = slot.let_go() {
            p.release_receive(receive);
        }
        self.place_ended(p, at, Status::LinkLost);
        self.leave_unit(at);
        if let Some(peer) = self.peers.get_mut(id.index()) {
            peer.draining = peer.draining.saturating_sub(1);
        }
        self.try_begin(p, now, id);
    }

    /// A message of an earlier life, which the host has let go of.
    pub(crate) fn forget<P: Platform>(&mut self, p: &mut P, at: BounceId) {
        self.set_slot(at, SlotState::Missing);
        self.place_ended(p, at, Status::LinkLost);
        self.leave_unit(at);
    }

    /// Whether the life of the link that a message came over has ended: its answer is not awaited.
    pub(crate) fn link_is_over(&self, at: BounceId) -> bool {
        self.slot(at)
            .and_then(|slot| self.peers.get(slot.header.source().index()))
            .is_none_or(|peer| peer.link == Link::Releasing)
    }

    /// The host has released everything of an earlier life.
    pub(crate) fn peer_released<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        id: NodeId,
        incarnation: Incarnation,
    ) {
        let Some(peer) = self.peers.get_mut(id.index()) else {
            self.env.counters.host_events_refused += 1;
            return;
        };
        if peer.link != Link::Releasing || peer.awaited != Some(incarnation) {
            self.env.counters.late_answers += 1;
            return;
        }
        peer.awaited = None;
        for index in 0..self.env.config.geometry.window {
            let at = self.env.config.slot_id(id, index);
            if self.slot(at).is_some_and(|slot| slot.state == SlotState::Bounced) {
                self.forget(p, at);
            }
        }
        self.try_begin(p, now, id);
    }

    /// Begins the next life of a link, if the last one is gone and it is wanted.
    fn try_begin<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        if peer.link != Link::Releasing || peer.awaited.is_some() || peer.draining != 0 {
            return;
        }
        if let Some(offer) = peer.offer.take() {
            self.accept_offer(p, now, id, offer);
        } else {
            peer.link = Link::Down;
            if peer.wanted {
                self.connect(p, now, id);
            }
        }
        self.ports.stir();
    }

    /// Acknowledges what has landed: lowest number missing, and a bitmap of what landed past it.
    pub(crate) fn send_ack<P: Platform>(&mut self, p: &mut P, id: NodeId) {
        let window = self.env.config.geometry.window;
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        peer.sequence.acknowledged();
        let lsn = peer.sequence.lsn();
        let gap = peer.sequence.anything_past_lsn();
        let mut landed = 0;
        if gap {
            for ahead in 0..64u32 {
                let seq = lsn.plus(1 + ahead);
                let ended = ahead + 1 < u32::from(window)
                    && self
                        .slot(self.env.config.slot_id(id, (seq.0 % u32::from(window)) as u16))
                        .is_some_and(|slot| matches!(slot.state, SlotState::Landed | SlotState::Failed));
                landed |= u64::from(ended) << ahead;
            }
        }
        let mut header = self.session_header(Body::Ack { landed }, id);
        header.seq = lsn;
        self.env.counters.acks_sent += 1;
        p.transmit(&OwnHeader::new(&header), Payload::Empty);
    }

    /// An acknowledgement: gives window slots back to their ports. The bitmap is for a fabric that
    /// loses messages; credits follow the LSN alone.
    pub(crate) fn ack_arrives(&mut self, id: NodeId, seq: Seq) {
        let window = u32::from(self.env.config.geometry.window);
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        let first = peer.credits.acked();
        self.env.counters.acks_received += 1;
        let Some(freed) = peer.credits.acknowledge(seq) else {
            self.env.counters.acks_refused += 1;
            return;
        };
        peer.unanswered = 0;
        for step in 0..freed.min(window) {
            let slot = self.env.config.slot_id(id, (first.plus(step).0 % window) as u16);
            let Some(port) = self.outgoing.get(slot.index()).map(|out| out.port) else {
                continue;
            };
            let at = self.env.config.stream_index(id, port);
            if let Some(sender) = self.senders.get_mut(at) {
                sender.share = sender.share.saturating_sub(1);
            }
        }
        self.ports.stir();
    }

    /// The LSN has moved: acknowledge now if that is due, else when the link has been idle.
    pub(crate) fn after_advance<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        peer.gap_since = now;
        if peer.sequence.ack_due() {
            self.send_ack(p, id);
        } else {
            self.arm_ack(id, now);
        }
    }
}
