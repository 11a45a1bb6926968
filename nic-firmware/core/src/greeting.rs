//! Greetings: how a life of a link begins, and how it is ended from the other side.
//!
//! The side that greets draws its incarnation and repeats `Hello` until it is answered. The other
//! first lets go of the life before (the host too), then draws its own and answers `HelloAck`; it
//! sends nothing windowed until the first message of the new life shows that the answer has
//! arrived, so that no message is refused for coming too early. When both greet at once, the lower
//! node number's greeting stands.

use crate::nic::Nic;
use crate::peer::{Link, Offer, Peer};
use crate::platform::{Payload, Platform};
use netvm_abi::frame::MIN_PAYLOAD;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Body, Greeting, Header, OwnHeader};
use netvm_abi::{ABI_VERSION, Incarnation, Nanos, NodeId, PAGE_SIZE};

impl<S: Storage> Nic<S> {
    /// The host wants a link.
    pub(crate) fn connect<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId) {
        let own = id == self.env.config.node;
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        peer.wanted = true;
        if peer.link != Link::Down {
            return;
        }
        let local = self.next_incarnation(id);
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        peer.local = local;
        peer.unanswered = 0;
        if own {
            let offer = Offer {
                incarnation: local,
                first: Self::first_seq(local),
                payload: self.env.config.geometry.payload,
            };
            self.begin_life(now, id, offer);
            self.link_up(p, id);
            return;
        }
        peer.link = Link::Connecting;
        peer.greeted = true;
        self.send_hello(p, id);
        self.arm_hello(id, now);
    }

    /// Sends (or repeats) a greeting.
    pub(crate) fn send_hello<P: Platform>(&mut self, p: &mut P, id: NodeId) {
        self.env.counters.hellos_sent += 1;
        let greeting = self.offered();
        let mut header = self.greeting(Body::Hello { greeting }, id);
        header.destination_incarnation = Incarnation(0);
        p.transmit(&OwnHeader::new(&header), Payload::Empty);
    }

    /// What this end offers.
    const fn offered(&self) -> Greeting {
        let geometry = &self.env.config.geometry;
        Greeting {
            page_size: geometry.page_size,
            payload: geometry.payload,
            window: geometry.window,
            version: geometry.version,
        }
    }

    fn greeting(&self, body: Body, id: NodeId) -> Header {
        let mut header = self.session_header(body, id);
        header.seq = Self::first_seq(header.source_incarnation);
        header
    }

    /// Accepts a greeting.
    fn send_hello_ack<P: Platform>(&self, p: &mut P, id: NodeId) {
        let body = Body::HelloAck {
            status: Status::Ok,
            greeting: self.offered(),
        };
        p.transmit(&OwnHeader::new(&self.greeting(body, id)), Payload::Empty);
    }

    pub(crate) fn greeting_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, header: &Header) {
        if header.source == self.env.config.node || header.source_incarnation.0 == 0 {
            self.env.counters.malformed += 1;
            return;
        }
        self.env.counters.greetings += 1;
        match header.body() {
            Body::Hello { greeting } => self.hello_arrives(p, now, header, greeting),
            Body::HelloAck { status, greeting } => self.hello_ack_arrives(p, now, header, status, greeting),
            _ => self.bye_arrives(p, now, header),
        }
    }

    fn agrees(&self, greeting: &Greeting) -> bool {
        greeting.page_size == PAGE_SIZE
            && greeting.window == self.env.config.geometry.window
            && greeting.version == ABI_VERSION
            && (MIN_PAYLOAD..=PAGE_SIZE).contains(&greeting.payload)
    }

    fn hello_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, header: &Header, greeting: Greeting) {
        let id = header.source;
        if !self.agrees(&greeting) {
            self.env.counters.hellos_refused += 1;
            let body = Body::HelloAck {
                status: Status::VersionMismatch,
                greeting: self.offered(),
            };
            let mut refusal = self.greeting(body, id);
            refusal.source_incarnation = Incarnation(u32::MAX);
            refusal.destination_incarnation = header.source_incarnation;
            p.transmit(&OwnHeader::new(&refusal), Payload::Empty);
            return;
        }
        let offer = Offer {
            incarnation: header.source_incarnation,
            first: header.seq,
            payload: greeting.payload,
        };
        let lower = self.env.config.node < id;
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        match peer.link {
            Link::Up | Link::Accepted if peer.remote == offer.incarnation => {
                // It asks again: the answer has not arrived yet.
                self.send_hello_ack(p, id);
            }
            Link::Connecting if lower => {}
            _ if peer.past == offer.incarnation => self.env.counters.stale_greetings += 1,
            Link::Releasing => peer.offer = Some(offer),
            Link::Down | Link::Connecting | Link::Up | Link::Accepted => {
                self.env.counters.peer_resets += 1;
                self.lose_link(p, now, id, Some(offer));
            }
        }
    }

    /// The last life is gone: begin the one that was offered.
    pub(crate) fn accept_offer<P: Platform>(&mut self, p: &mut P, now: Nanos, id: NodeId, offer: Offer) {
        let local = self.next_incarnation(id);
        if let Some(peer) = self.peers.get_mut(id.index()) {
            peer.local = local;
            peer.link = Link::Accepted;
        }
        self.begin_life(now, id, offer);
        self.send_hello_ack(p, id);
        self.arm_probe(id, now);
    }

    fn hello_ack_arrives<P: Platform>(
        &mut self,
        p: &mut P,
        now: Nanos,
        header: &Header,
        status: Status,
        greeting: Greeting,
    ) {
        let id = header.source;
        let agrees = self.agrees(&greeting);
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        if peer.link != Link::Connecting || header.destination_incarnation != peer.local {
            let repeated = matches!(peer.link, Link::Up)
                && header.destination_incarnation == peer.local
                && header.source_incarnation == peer.remote;
            if !repeated {
                self.env.counters.stale_greetings += 1;
            }
            return;
        }
        if status != Status::Ok || !agrees {
            self.env.counters.hellos_refused += 1;
            peer.link = Link::Down;
            peer.wanted = false;
            self.fail_controls(p, id, Status::VersionMismatch);
            self.ports.stir();
            return;
        }
        let offer = Offer {
            incarnation: header.source_incarnation,
            first: header.seq,
            payload: greeting.payload,
        };
        self.begin_life(now, id, offer);
        self.link_up(p, id);
        // Tells the other side that its answer has arrived.
        self.send_ack(p, id);
        self.arm_probe(id, now);
    }

    /// The other side says that the life we know is over.
    fn bye_arrives<P: Platform>(&mut self, p: &mut P, now: Nanos, header: &Header) {
        let id = header.source;
        let Some(peer) = self.peers.get(id.index()) else {
            return;
        };
        let ours = matches!(peer.link, Link::Up | Link::Accepted)
            && header.destination_incarnation == peer.local
            && header.source_incarnation == peer.remote;
        if ours {
            self.lose_link(p, now, id, None);
        } else {
            self.env.counters.stale_greetings += 1;
        }
    }

    /// Answers a message of a life that this side does not know (any more): so the other side
    /// learns at once, not after many probes. Not while the life may just be beginning.
    #[cold]
    pub(crate) fn refuse_stale<P: Platform>(
        &mut self,
        p: &mut P,
        id: NodeId,
        theirs: Incarnation,
        ours: Incarnation,
    ) {
        self.env.counters.stale_incarnation += 1;
        let beginning = self
            .peers
            .get(id.index())
            .is_some_and(|peer| peer.link == Link::Connecting && peer.local == ours);
        if beginning || id == self.env.config.node || ours.0 == 0 {
            return;
        }
        self.send_bye(p, id, ours, theirs);
    }

    /// Ends all links at their other sides: this firmware ends, and nothing is to be asked of it any more. A farewell
    /// that is lost does no harm; the other side then notices by the silence.
    pub fn leave<P: Platform>(&mut self, p: &mut P) {
        for index in 0..self.peers.len() {
            let id = NodeId(index as u16);
            if let Some(&Peer {
                link: Link::Up,
                local,
                remote,
                ..
            }) = self.peers.get(index)
                && id != self.env.config.node
            {
                self.send_bye(p, id, local, remote);
            }
        }
    }

    /// Ends a life of a link at the other side.
    pub(crate) fn send_bye<P: Platform>(
        &mut self,
        p: &mut P,
        id: NodeId,
        ours: Incarnation,
        theirs: Incarnation,
    ) {
        let mut bye = Header::of(Body::Bye, self.env.config.node, id);
        bye.source_incarnation = ours;
        bye.destination_incarnation = theirs;
        p.transmit(&OwnHeader::new(&bye), Payload::Empty);
    }
}
