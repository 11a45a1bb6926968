//! The links to other nodes: their lives, their two windows, the shares of ports in them, and what keeps them alive.
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

mod acknowledge;
mod at_rest;
mod confirm;
mod congestion;
mod controls;
mod copies;
mod credits;
mod greetings;
mod received;
mod report;
mod resend;
mod round_trip_time;
mod timers;
mod wheel;

pub(crate) use copies::{COPIES, Copy, NONE as NO_COPY};
pub(crate) use credits::{Lost, Outgoing, Sender};
pub(crate) use greetings::Greeted;
pub(crate) use received::Numbered;
pub use report::LinkReport;
pub(crate) use resend::Overdue;
pub(crate) use timers::{Timer, Verdict, Witness};
pub(crate) use wheel::Hand;

use crate::env::Env;
use crate::platform::{Path, Platform};
use crate::queue::Deadline;
use crate::tables::{LinkTables, answer_words};
use crate::window::{Credits, Place, Sequence};
use crate::windows::{SetAside, WindowId, Windows};
use at_rest::{HeldWindows, Inflow};
use congestion::Congestion;
use controls::Waiting;
use copies::Copies;
use heapless::Vec;
use netvm_abi::control::CONTROL_SLOTS;
use netvm_abi::event::NicEvent;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::shared_map::status_page;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Greeting, Header, Kind, OwnHeader};
use netvm_abi::words::SharedWords;
use netvm_abi::{Incarnation, Nanos, NodeId, Seq};
use received::Arrivals;
use resend::Resend;
use timers::Alarms;
use wheel::Wheel;

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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
    incarnation: Incarnation,
    first: Seq,
    // As small as they are: an index into the peers is a shift as long as one has 256 bytes.
    payload: u16,
    window: u16,
    /// The other end may refuse messages.
    refuses: bool,
}

const _: () = assert!(size_of::<Peer>() == 256, "an index into the peers is a shift");

impl Offer {
    /// What a greeting that a link can be made of says, of this life and from this number on.
    fn of(greeting: &Greeting, incarnation: Incarnation, first: Seq) -> Self {
        Self {
            incarnation,
            first,
            payload: u16::try_from(greeting.payload).unwrap_or(u16::MAX),
            window: greeting.window,
            refuses: greeting.refuses,
        }
    }
}

/// Another node (or this one: its link to itself needs no greeting).
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    state: State,
    /// Incarnation of this end.
    local: Incarnation,
    /// Incarnation of the other end.
    remote: Incarnation,
    /// `local` has been said in a greeting and no life has begun with it.
    greeted: bool,
    /// The other end's incarnation in the life before: a greeting of it comes late.
    past: Incarnation,
    /// Frames between the nodes may be lost, and are sent again.
    lossy: bool,
    windows: HeldWindows,
    inflow: Inflow,
    /// The other end has no window for what this one sends, as it said not long ago: so often that it may leave again before this
    /// end takes it for lost. 0: it has not said so, or has received something since.
    refused: u8,
    credits: Credits,
    sequence: Sequence,
    resend: Resend,
    arrivals: Arrivals,
    /// Largest payload on this path in bytes.
    payload: u16,
    /// When it was last heard.
    heard_at: Nanos,
    /// Since when the LSN has been missing while later messages are there.
    gap_since: Nanos,
    /// Read slots that wait for its answers.
    reads: u16,
    /// Probes since the last acknowledgement, or greetings without an answer.
    unanswered: u8,
    /// The oldest number without an acknowledgement at the last look; if there was none, one that is acknowledged.
    oldest: Seq,
    /// Messages of the last life that DMAs or queues still hold.
    draining: u16,
    /// The host owes the release of this incarnation.
    awaits_release: bool,
    awaited: Incarnation,
    offer: Option<Offer>,
    /// While the link is held up: the lower half of the next number that joins the line of its stream.
    admits: Option<u16>,
    /// The host wants a link to this node.
    wanted: bool,
    /// The alarms that are set, a bit for each [`Timer`]: where nearly always nothing is to be set, one look finds it.
    alarms: u8,
}

impl Peer {
    /// A node that has not been heard of.
    pub(crate) const fn unknown() -> Self {
        Self {
            state: State::Down,
            local: Incarnation(0),
            remote: Incarnation(0),
            greeted: false,
            past: Incarnation(0),
            lossy: false,
            windows: HeldWindows::NONE,
            inflow: Inflow::Closed,
            refused: 0,
            credits: Credits::new(64, Seq(0)),
            sequence: Sequence::new(64, Seq(0)),
            resend: Resend::new(),
            arrivals: Arrivals::new(),
            payload: 0,
            heard_at: Nanos(0),
            gap_since: Nanos(0),
            reads: 0,
            unanswered: 0,
            oldest: Seq(u32::MAX),
            draining: 0,
            awaits_release: false,
            awaited: Incarnation(0),
            offer: None,
            admits: None,
            wanted: false,
            alarms: 0,
        }
    }

    /// Whether an alarm is set.
    #[inline]
    const fn is_set(&self, timer: Timer) -> bool {
        self.alarms & timer.bit() != 0
    }

    /// Whether a life of the link is under way, at this end at least.
    fn is_alive(&self) -> bool {
        matches!(self.state, State::Up | State::Accepted)
    }

    /// Whether a message of these incarnations belongs to the present life of the link.
    #[inline]
    pub(crate) fn is_life_of(&self, theirs: Incarnation, ours: Incarnation) -> bool {
        theirs == self.remote && ours == self.local && self.is_alive()
    }

    /// The same, for a link that is up: nearly every message.
    #[inline]
    pub(crate) fn is_up_with(&self, theirs: Incarnation, ours: Incarnation) -> bool {
        theirs == self.remote && ours == self.local && self.state == State::Up
    }

    /// Whether the link works, in the life that this incarnation of this end began.
    #[inline]
    pub(crate) fn is_up_in(&self, life: Incarnation) -> bool {
        self.state == State::Up && self.local == life
    }

    /// Whether the link works.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether a message of this life shows that the other end knows of it.
    #[inline]
    pub(crate) fn is_accepted(&self) -> bool {
        self.state == State::Accepted
    }

    /// This end's incarnation.
    #[inline]
    pub(crate) const fn life(&self) -> Incarnation {
        self.local
    }

    /// Messages that may be on their way to it.
    pub(crate) const fn window(&self) -> u32 {
        self.credits.size()
    }

    /// Largest payload on this path in bytes.
    #[inline]
    pub(crate) const fn payload(&self) -> u32 {
        self.payload as u32
    }

    /// Window slots reserved for messages that have not left.
    #[inline]
    pub(crate) const fn reserved(&self) -> u32 {
        self.credits.reserved()
    }

    /// A message of this life has arrived.
    #[inline]
    pub(crate) const fn heard(&mut self, now: Nanos) {
        self.heard_at = now;
    }

    /// Where a number falls.
    #[inline]
    pub(crate) fn place(&self, seq: Seq) -> Place {
        if mutant::is(Mutant::SeqForgetsWrap) && seq.0 < self.sequence.lsn().0 {
            return Place::Before;
        }
        self.sequence.place(seq)
    }

    /// A message inside the window has arrived, for the first time. Returns whether others are missing before it.
    #[inline]
    pub(crate) fn arrived(&mut self, now: Nanos, seq: Seq, wants_ack: bool) -> bool {
        let early = seq != self.sequence.lsn();
        if early && !self.sequence.anything_past_lsn() {
            self.gap_since = now;
        }
        self.sequence.arrived(seq, wants_ack);
        early
    }

    /// Slot of the lowest number missing.
    #[inline]
    pub(crate) const fn lsn_slot(&self) -> u16 {
        self.sequence.lsn_slot()
    }

    /// Whether a request is missing before one that is known of.
    #[inline]
    pub(crate) fn misses_some(&self) -> bool {
        let (received, seen) = self.sequence.received();
        received != seen
    }

    /// Whether frames between the nodes may be lost.
    #[inline]
    pub(crate) const fn is_lossy(&self) -> bool {
        self.lossy
    }

    /// The message at the LSN is done with. Returns whether something past it has arrived, or has been sent.
    #[inline]
    pub(crate) const fn advance(&mut self) -> bool {
        self.sequence.advance();
        self.sequence.anything_past_lsn()
    }

    /// The LSN has come to rest. Returns whether that is to be acknowledged now; else it is when the link has been idle.
    #[inline]
    pub(crate) const fn advanced(&mut self, now: Nanos) -> bool {
        self.gap_since = now;
        self.sequence.ack_due()
    }

    /// Whether the LSN waits for a host, and streams go on without it.
    #[inline]
    pub(crate) const fn is_held_up(&self) -> bool {
        self.admits.is_some()
    }

    /// The LSN waits for a host: false, if it is known.
    pub(crate) fn hold_up(&mut self) -> bool {
        let begins = self.admits.is_none();
        if begins {
            self.admits = Some(self.sequence.lsn().0 as u16);
        }
        begins
    }

    /// The slot of the next number that joins its stream, if all before it have arrived, and it has.
    pub(crate) fn admit(&mut self) -> Option<u16> {
        let received = self.sequence.received().0.0 as u16;
        let number = self.admits.filter(|number| *number != received)?;
        self.admits = Some(number.wrapping_add(1));
        Some(number & (self.sequence.size() - 1) as u16)
    }

    /// Whether the LSN has passed all that has joined: the link is held up no more.
    pub(crate) fn catches_up(&mut self) -> bool {
        let lsn = self.sequence.lsn().0 as u16;
        self.admits.take_if(|number| *number == lsn).is_some()
    }

    /// The life of the link is over. Whether it was held up.
    pub(crate) const fn lets_go(&mut self) -> bool {
        self.admits.take().is_some()
    }

    /// Whether something past the LSN has arrived or has been sent.
    pub(crate) const fn leads(&self) -> bool {
        self.sequence.past_lsn() != 0
    }

    /// Read slots that wait for its answers.
    pub(crate) const fn reads(&self) -> u16 {
        self.reads
    }

    /// One more does.
    pub(crate) const fn owes_answer(&mut self) {
        self.reads += 1;
    }

    /// One less does.
    pub(crate) const fn pays_answer(&mut self) {
        self.reads = self.reads.saturating_sub(1);
    }

    /// Whether no acknowledgement has moved the window since the last look, while something waits for one. Asked
    /// once in each look; so nothing needs to be stored when a message leaves. Numbers do not come again within a
    /// life, so the same oldest number at two looks has been the oldest all the time between them.
    fn stalls(&mut self) -> bool {
        let (waits, acked) = (self.credits.in_flight() != 0, self.credits.acked());
        let stalls = waits && self.oldest == acked;
        self.oldest = if waits { acked } else { acked.plus(u32::MAX) };
        stalls
    }

    /// Whether what waits for this link may go on waiting.
    pub(crate) const fn will_come_up(&self) -> bool {
        match self.state {
            State::Up | State::Accepted | State::Connecting => true,
            State::Releasing => self.wanted || self.offer.is_some(),
            State::Down => false,
        }
    }

    /// Whether something is outstanding that only this peer can end.
    const fn owes(&self) -> bool {
        self.credits.in_flight() != 0 || self.sequence.anything_past_lsn()
    }
}

/// What there is to say and do when the life of a link is over.
#[must_use]
pub(crate) struct Over {
    /// Whether the link worked: what was outstanding ends with `LinkLost`.
    pub(crate) was_up: bool,
    /// What the host is told after that.
    pub(crate) event: NicEvent,
}

/// All links.
pub(crate) struct Links<S: Storage> {
    peers: S::Table<Peer>,
    outgoing: S::Table<Outgoing>,
    senders: S::Table<Sender>,
    losses_aside: SetAside<S, Sender>,
    /// Which links have windows: to send, and to receive.
    to: Windows<S>,
    from: Windows<S>,
    deadlines: S::Table<Deadline>,
    copies: Copies<S>,
    /// For each number of a message that has not been received, its copy.
    kept: S::Table<u16>,
    /// What has been received of answers past one that is missing, [`answer_words`] for each sending window.
    answered: S::Table<u64>,
    wheel: Wheel,
    hands: S::Table<Hand>,
    controls: Vec<Waiting, { CONTROL_SLOTS as usize }>,
    alarms: Alarms,
    /// Lives begun so far.
    lives: u32,
}

impl<S: Storage> Links<S> {
    pub(crate) fn new(env: &Env<S>, tables: LinkTables<S>) -> Self {
        let own = env.config.node;
        let mut links = Self {
            peers: tables.peers,
            outgoing: tables.outgoing,
            senders: tables.senders,
            losses_aside: SetAside::new(tables.losses_aside),
            to: Windows::new(tables.senders_of, own),
            from: Windows::new(tables.receivers_of, own),
            deadlines: tables.deadlines,
            copies: Copies::new(tables.copies),
            kept: tables.kept,
            answered: tables.answered,
            wheel: Wheel::new(),
            hands: tables.hands,
            controls: Vec::new(),
            alarms: Alarms::new(&env.config.timers),
            lives: 0,
        };
        links.has_own_windows(own);
        links
    }

    /// Credits that messages have, of links that live.
    pub(crate) fn credits_held(&self) -> u32 {
        let live = self.peers.iter().filter(|peer| peer.is_alive());
        live.map(|peer| peer.credits.in_flight() + peer.credits.reserved())
            .sum()
    }

    /// Answers that this node has asked for and not got.
    pub(crate) fn answers_owed(&self) -> u32 {
        self.peers.iter().map(|peer| u32::from(peer.reads)).sum()
    }

    /// Copies of messages that are not known to have been received, and those that are reserved.
    pub(crate) const fn copies_held(&self) -> u32 {
        self.copies.held()
    }

    /// Control messages that have not left.
    pub(crate) fn controls_held(&self) -> u32 {
        self.controls.len() as u32
    }

    /// A node.
    #[inline]
    pub(crate) fn get(&self, id: NodeId) -> Option<&Peer> {
        self.peers.get(id.index())
    }

    /// The same, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: NodeId) -> Option<&mut Peer> {
        self.peers.get_mut(id.index())
    }

    /// A message that answers `request`, with `len` bytes behind it, in the present life of the link.
    #[inline(always)]
    pub(crate) fn answer(&self, body: Body, len: u16, request: &OwnHeader) -> OwnHeader {
        let peer = self.get(request.source());
        let incarnations = peer.map_or([Incarnation(0); 2], |peer| [peer.local, peer.remote]);
        OwnHeader::answering(request, incarnations, body, len)
    }

    /// A header of the present life of a link.
    #[inline(always)]
    fn session_header(&self, env: &Env<S>, body: Body, id: NodeId) -> Header {
        let mut header = Header::new(Kind::Write, env.config.node, id);
        if let Some(peer) = self.get(id) {
            header.source_incarnation = peer.local;
            header.destination_incarnation = peer.remote;
        }
        header.set_body(body);
        header
    }

    /// The incarnation for the next life of a link: the one already said in a greeting, so that a
    /// greeting of ours that arrives late is known there; else one that no earlier life of any link of this node had.
    fn next_incarnation(&mut self, env: &Env<S>, id: NodeId) -> Incarnation {
        if let Some(peer) = self.get(id)
            && peer.greeted
        {
            return peer.local;
        }
        self.lives = self.lives.wrapping_add(1);
        // An odd factor: different lives give different numbers.
        let mixed = env.config.incarnation_seed ^ self.lives.wrapping_mul(0x9E37_79B1);
        Incarnation(if mixed == 0 { 0x9E37_79B1 } else { mixed })
    }

    /// The first sequence number of a life: anywhere, so that the wrap is nothing special.
    const fn first_seq(incarnation: Incarnation) -> Seq {
        Seq(incarnation.0.wrapping_mul(0x85EB_CA6B))
    }

    /// What has been received of a node's answers: a bit each.
    fn answered_of(&mut self, id: NodeId, window: u16) -> &mut [u64] {
        let words = answer_words(window);
        let sends = self.get(id).map_or(WindowId::NONE, |peer| peer.windows.to);
        let at = sends.index() * words;
        self.answered.get_mut(at..at + words).unwrap_or_default()
    }

    /// A new life of a link begins.
    fn begin_life(&mut self, env: &Env<S>, now: Nanos, id: NodeId, offer: Offer, path: Path) {
        let own = env.config.geometry.window;
        self.answered_of(id, own).fill(0);
        // What is refused for lack of a window has to be sent again, at either end.
        let lossy = path.loses_frames || offer.refuses || env.config.geometry.shares_windows();
        // The link uses the first slots of either end's window, as many as the smaller one has. (What has left is noted at its
        // number in this end's own window: only this end looks there.)
        let window = own.min(offer.window);
        if let Some(peer) = self.get_mut(id) {
            peer.lossy = lossy && id != env.config.node;
            peer.resend = Resend::begin(Self::first_seq(peer.local));
            peer.arrivals = Arrivals::begin(offer.first);
            peer.remote = offer.incarnation;
            peer.greeted = false;
            peer.credits = Credits::new(window, Self::first_seq(peer.local));
            peer.sequence = Sequence::new(window, offer.first);
            peer.begins_open();
            peer.refused = 0;
            if peer.lossy {
                peer.resend.congestion = Congestion::of(window.into(), &env.config.timers);
                peer.resend.makes_room();
                let messages = peer.resend.congestion.window();
                peer.credits.fits_wire(messages);
            }
            let own = env.config.geometry.payload.min(path.payload);
            peer.payload = offer.payload.min(u16::try_from(own).unwrap_or(u16::MAX));
            peer.unanswered = 0;
            peer.oldest = peer.credits.acked().plus(u32::MAX);
            peer.heard_at = now;
        }
    }

    /// The link works in both directions.
    #[cold]
    pub(crate) fn comes_up<P: Platform>(&mut self, p: &mut P, env: &mut Env<S>, id: NodeId) {
        let Some(peer) = self.get_mut(id) else {
            return;
        };
        peer.state = State::Up;
        let (incarnation, payload) = (peer.remote, peer.payload);
        env.counters.links_up += 1;
        let at = status_page::peer(id);
        p.shared()
            .store_release(status_page::peer_payload(id), payload.into());
        p.shared().store_release(at, incarnation.0);
        let peer = id;
        env.tell_host(p, NicEvent::PeerUp { peer, incarnation });
    }

    /// Says where the windows of all links stand, for observers: what this costs grows with the number of nodes, so it
    /// is for a platform that has a moment.
    pub(crate) fn publish_windows<P: Platform>(&self, p: &P) {
        for (id, peer) in (0..).zip(self.peers.iter()) {
            if peer.is_up() {
                let at = status_page::peer_windows(NodeId(id));
                let windows = [peer.credits.next(), peer.credits.acked(), peer.sequence.lsn()];
                p.shared().store_slice(at, &windows.map(|seq| seq.0));
            }
        }
    }

    /// The life of a link is over. `offer`: the greeting that asks for the next one.
    pub(crate) fn end_life<P: Platform>(
        &mut self,
        p: &P,
        env: &mut Env<S>,
        id: NodeId,
        offer: Option<Offer>,
    ) -> Option<Over> {
        let peer = self.peers.get_mut(id.index())?;
        let over = peer.remote;
        let was_up = peer.is_alive();
        // Of a life that only this side began, the greeting may still come again.
        if peer.is_up() {
            peer.past = over;
        }
        peer.state = State::Releasing;
        peer.offer = offer;
        peer.unanswered = 0;
        peer.awaits_release = true;
        peer.awaited = offer.map_or(over, |offer| offer.incarnation);
        if was_up && peer.lossy {
            let reserved = peer.credits.reserved();
            self.copies.unreserve(reserved);
        }
        if was_up {
            env.counters.links_lost += 1;
            p.shared().store_release(status_page::peer(id), 0);
        }
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
        Some(Over { was_up, event })
    }

    /// A message of a life that is over is still held.
    pub(crate) fn drains(&mut self, id: NodeId) {
        if let Some(peer) = self.get_mut(id) {
            peer.draining += 1;
        }
    }

    /// It is not any more.
    pub(crate) fn has_drained(&mut self, id: NodeId) {
        if let Some(peer) = self.get_mut(id) {
            peer.draining = peer.draining.saturating_sub(1);
        }
    }

    /// Whether the life of a link has ended and not all of it is gone: no answer of that life is awaited.
    pub(crate) fn is_releasing(&self, id: NodeId) -> bool {
        self.get(id).is_none_or(|peer| peer.state == State::Releasing)
    }

    /// The host has released everything of an earlier life. Returns whether that was awaited.
    pub(crate) fn released(&mut self, env: &mut Env<S>, id: NodeId, incarnation: Incarnation) -> bool {
        let Some(peer) = self.get_mut(id) else {
            env.counters.host_events_refused += 1;
            return false;
        };
        if peer.state != State::Releasing || !peer.awaits_release || peer.awaited != incarnation {
            env.counters.late_answers += 1;
            return false;
        }
        peer.awaits_release = false;
        true
    }

    /// Begins the next life of a link, if the last one is gone and it is wanted.
    pub(crate) fn try_begin<P: Platform>(&mut self, p: &mut P, env: &mut Env<S>, now: Nanos, id: NodeId) {
        let Some(peer) = self.get_mut(id) else {
            return;
        };
        if peer.state != State::Releasing || peer.awaits_release || peer.draining != 0 {
            return;
        }
        if let Some(offer) = peer.offer.take() {
            self.accept(p, env, now, id, offer);
        } else {
            peer.state = State::Down;
            if peer.wanted {
                self.connect(p, env, now, id);
            }
        }
    }
}
