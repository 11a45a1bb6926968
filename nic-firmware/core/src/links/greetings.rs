//! Greetings: how a life of a link begins, and how it is ended from the other side.
//!
//! The side that greets draws its incarnation and repeats `Hello` until it is answered. The other
//! first lets go of the life before (the host too), then draws its own and answers `HelloAck`; it
//! sends nothing windowed until the first message of the new life shows that the answer has
//! arrived, so that no message is refused for coming too early. When both greet at once, the lower
//! node number's greeting stands.
//!
//! A greeting alone ends no life that is under way: it may be older than this life, kept by the wire, however long. The
//! other side is asked within the life (a probe). If that is over for it, it says farewell to it, and only then is the
//! offer taken up; if not, it acknowledges, and the offer is forgotten.

use super::{Links, Offer, State};
use crate::env::Env;
use crate::platform::{Path, Payload, Platform};
use netvm_abi::frame::MIN_PAYLOAD;
use netvm_abi::mutant::{self, Mutant};
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Greeting, Header, OwnHeader};
use netvm_abi::{ABI_VERSION, Geometry, Incarnation, Nanos, NodeId, PAGE_SIZE};

/// What a greeting leads to beyond its link.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) enum Greeted {
    /// Nothing.
    Done,
    /// The link is up: that is to be acknowledged, so that the other side knows.
    Up,
    /// The life that was under way is over, and this one is offered.
    Replaced(Offer),
    /// The life that was under way is over.
    Ended,
}

/// What this end offers, over this path.
fn offered<S: Storage>(env: &Env<S>, path: Path) -> Greeting {
    let geometry = &env.config.geometry;
    Greeting {
        page_size: geometry.page_size,
        payload: geometry.payload.min(path.payload),
        window: geometry.window,
        version: geometry.version,
        refuses: geometry.shares_windows(),
    }
}

/// Whether a link can be made of what the other end offers: of payload and window the smaller one of both counts.
fn agrees(greeting: &Greeting) -> bool {
    greeting.page_size == PAGE_SIZE
        && Geometry::has_window(greeting.window)
        && greeting.version == ABI_VERSION
        && (MIN_PAYLOAD..=PAGE_SIZE).contains(&greeting.payload)
}

impl<S: Storage> Links<S> {
    /// The host wants a link.
    pub(crate) fn connect<P: Platform>(&mut self, p: &mut P, env: &mut Env<S>, now: Nanos, id: NodeId) {
        let Some(peer) = self.get_mut(id) else {
            return;
        };
        peer.wanted = true;
        if peer.state != State::Down {
            return;
        }
        let local = self.next_incarnation(env, id);
        let Some(peer) = self.get_mut(id) else {
            return;
        };
        peer.local = local;
        peer.unanswered = 0;
        if id == env.config.node {
            let path = Path::own();
            let offer = Offer::of(&offered(env, path), local, Self::first_seq(local));
            self.begin_life(env, now, id, offer, path);
            self.comes_up(p, env, id);
            return;
        }
        peer.state = State::Connecting;
        peer.greeted = true;
        self.send_hello(p, env, id);
        self.arm_hello(env, id, now);
    }

    /// Sends (or repeats) a greeting.
    pub(super) fn send_hello<P: Platform>(&self, p: &mut P, env: &mut Env<S>, id: NodeId) {
        env.counters.hellos_sent += 1;
        let greeting = offered(env, self.path_to(p, id));
        let mut header = self.greeting(env, Body::Hello { greeting }, id);
        header.destination_incarnation = Incarnation(0);
        p.transmit(&OwnHeader::new(&header), Payload::Empty);
    }

    /// The path to a node, for the life that begins or is under way.
    fn path_to<P: Platform>(&self, p: &mut P, id: NodeId) -> Path {
        let life = self.get(id).map_or(Incarnation(0), |peer| peer.local);
        p.path_to(id, life)
    }

    fn greeting(&self, env: &Env<S>, body: Body, id: NodeId) -> Header {
        let mut header = self.session_header(env, body, id);
        header.seq = Self::first_seq(header.source_incarnation);
        header
    }

    /// Accepts a greeting.
    fn send_hello_ack<P: Platform>(&self, p: &mut P, env: &Env<S>, id: NodeId) {
        let body = Body::HelloAck {
            status: Status::Ok,
            greeting: offered(env, self.path_to(p, id)),
        };
        p.transmit(&OwnHeader::new(&self.greeting(env, body, id)), Payload::Empty);
    }

    /// A greeting has arrived, or the answer to one, or a farewell.
    pub(crate) fn greeting_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        now: Nanos,
        header: &Header,
    ) -> Greeted {
        if header.source == env.config.node || header.source_incarnation.0 == 0 {
            env.counters.malformed += 1;
            return Greeted::Done;
        }
        env.counters.greetings += 1;
        match header.body() {
            Body::Hello { greeting } => self.hello_arrives(p, env, now, header, greeting),
            Body::HelloAck { status, greeting } => {
                let accepted = status == Status::Ok && agrees(&greeting);
                self.hello_ack_arrives(p, env, now, header, accepted.then_some(greeting))
            }
            _ => self.bye_arrives(env, header),
        }
    }

    fn hello_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        now: Nanos,
        header: &Header,
        greeting: Greeting,
    ) -> Greeted {
        let id = header.source;
        if !agrees(&greeting) {
            env.counters.hellos_refused += 1;
            let body = Body::HelloAck {
                status: Status::VersionMismatch,
                greeting: offered(env, Path::default()),
            };
            let mut refusal = self.greeting(env, body, id);
            refusal.source_incarnation = Incarnation(u32::MAX);
            refusal.destination_incarnation = header.source_incarnation;
            p.transmit(&OwnHeader::new(&refusal), Payload::Empty);
            return Greeted::Done;
        }
        let offer = Offer::of(&greeting, header.source_incarnation, header.seq);
        let lower = env.config.node < id;
        let Some(peer) = self.get_mut(id) else {
            return Greeted::Done;
        };
        match peer.state {
            State::Up | State::Accepted if peer.remote == offer.incarnation => {
                // It asks again: the answer has not arrived yet.
                self.send_hello_ack(p, env, id);
            }
            State::Connecting if lower => {}
            _ if peer.past == offer.incarnation => env.counters.stale_greetings += 1,
            State::Releasing => peer.offer = Some(offer),
            State::Up | State::Accepted if !mutant::is(Mutant::GreetingEndsLife) => {
                peer.offer = Some(offer);
                self.probe(p, env, now, id);
            }
            _ => {
                env.counters.peer_resets += 1;
                return Greeted::Replaced(offer);
            }
        }
        Greeted::Done
    }

    /// The last life is gone: begins the one that was offered.
    pub(super) fn accept<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        now: Nanos,
        id: NodeId,
        offer: Offer,
    ) {
        let local = self.next_incarnation(env, id);
        if let Some(peer) = self.get_mut(id) {
            peer.local = local;
            peer.state = State::Accepted;
        }
        self.begin_life(env, now, id, offer, self.path_to(p, id));
        self.send_hello_ack(p, env, id);
        self.arm_probe(env, id, now);
    }

    /// `greeting`: what the other end offers, if it accepts and agrees.
    fn hello_ack_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        now: Nanos,
        header: &Header,
        greeting: Option<Greeting>,
    ) -> Greeted {
        let id = header.source;
        let Some(peer) = self.get_mut(id) else {
            return Greeted::Done;
        };
        if peer.state != State::Connecting || header.destination_incarnation != peer.local {
            let repeated = peer.state == State::Up
                && header.destination_incarnation == peer.local
                && header.source_incarnation == peer.remote;
            env.counters.stale_greetings += u64::from(!repeated);
            return Greeted::Done;
        }
        let Some(greeting) = greeting else {
            env.counters.hellos_refused += 1;
            peer.state = State::Down;
            peer.wanted = false;
            self.fail_controls(p, env, id, Status::VersionMismatch);
            return Greeted::Done;
        };
        let offer = Offer::of(&greeting, header.source_incarnation, header.seq);
        self.begin_life(env, now, id, offer, self.path_to(p, id));
        self.comes_up(p, env, id);
        self.arm_probe(env, id, now);
        Greeted::Up
    }

    /// The other side says that the life we know is over.
    fn bye_arrives(&mut self, env: &mut Env<S>, header: &Header) -> Greeted {
        let Some(peer) = self.get_mut(header.source) else {
            return Greeted::Done;
        };
        if peer.is_life_of(header.source_incarnation, header.destination_incarnation) {
            let Some(offer) = peer.offer.take() else {
                return Greeted::Ended;
            };
            env.counters.peer_resets += 1;
            return Greeted::Replaced(offer);
        }
        env.counters.stale_greetings += 1;
        Greeted::Done
    }

    /// Answers a message of a life that this side does not know (any more): so the other side
    /// learns at once, not after many probes. Not while the life may just be beginning.
    #[cold]
    pub(crate) fn refuse_stale<P: Platform>(
        &self,
        p: &mut P,
        env: &mut Env<S>,
        id: NodeId,
        theirs: Incarnation,
        ours: Incarnation,
    ) {
        env.counters.stale_incarnation += 1;
        let beginning = self
            .get(id)
            .is_some_and(|peer| peer.state == State::Connecting && peer.local == ours);
        if beginning || id == env.config.node || ours.0 == 0 {
            return;
        }
        send_bye(p, env, id, ours, theirs);
    }

    /// Ends the life of a link at its other side.
    pub(crate) fn end_at_peer<P: Platform>(&self, p: &mut P, env: &Env<S>, id: NodeId) {
        if let Some(peer) = self.get(id) {
            send_bye(p, env, id, peer.local, peer.remote);
        }
    }

    /// Ends all links at their other sides: this firmware ends, and nothing is to be asked of it any more. A farewell
    /// that is lost does no harm; the other side then notices by the silence.
    pub(crate) fn leave<P: Platform>(&self, p: &mut P, env: &Env<S>) {
        for (id, peer) in (0..).map(NodeId).zip(self.peers.iter()) {
            if peer.is_up() && id != env.config.node {
                send_bye(p, env, id, peer.local, peer.remote);
            }
        }
    }
}

/// Ends a life of a link at the other side.
pub(super) fn send_bye<P: Platform, S: Storage>(
    p: &mut P,
    env: &Env<S>,
    id: NodeId,
    ours: Incarnation,
    theirs: Incarnation,
) {
    let mut bye = Header::of(Body::Bye, env.config.node, id);
    bye.source_incarnation = ours;
    bye.destination_incarnation = theirs;
    p.transmit(&OwnHeader::new(&bye), Payload::Empty);
}
