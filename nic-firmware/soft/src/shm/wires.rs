//! All links of a card, as its wire: those over shared memory, and those over [UDP](crate::udp).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use netvm_abi::wire::{Body, Header};
use netvm_abi::{Incarnation, Nanos, NodeId, PAGE_SIZE};
use netvm_nic::platform::Path;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;

use super::introduce;
use super::ring::{BadRing, Consumer, FILE_BYTES, Producer};
use crate::message::{Message, Spare};
use crate::udp::Udp;
use crate::udp::attention::{Attention, Traffic};
use crate::wire::Wire;

/// The descriptors of a link. The thread that waits for them and the card that uses them hold them together.
#[derive(Debug)]
pub struct Lines {
    /// Ends when the peer ends.
    pub socket: OwnedFd,
    /// Readable when the peer's process has ended, even if a child of it holds the socket.
    pub process: Option<OwnedFd>,
    /// The peer writes it to wake this card.
    pub bell: OwnedFd,
    /// Written to wake the peer's card.
    pub call: OwnedFd,
}

impl Lines {
    /// Whether these are of this process, and the other end has not been closed. A number is one node's at a time, so a process
    /// that has another one of the same number has closed this one.
    #[must_use]
    pub fn lead_to(&self, process: Option<Pid>) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let closed = matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..));
        !closed && introduce::peer_of(&self.socket) == process
    }
}

/// One link.
#[derive(Debug)]
pub struct Link {
    pub(crate) lines: Arc<Lines>,
    pub(crate) producer: Producer,
    pub(crate) consumer: Consumer,
    /// Messages that found no room in the ring.
    waiting: VecDeque<Box<Message>>,
    /// Incarnations of the link's present life, ours first, as the last message named them that left.
    life: [u32; 2],
    /// The peer has ended: what is left in the ring is still taken.
    ending: bool,
}

/// Messages that may wait for room. A window and the round trips fit a ring, so a peer for which so many wait takes nothing
/// out of its ring.
const MOST_WAITING: usize = 4096;

impl Link {
    pub(crate) fn new(lines: Arc<Lines>, producer: Producer, consumer: Consumer) -> Self {
        Self {
            lines,
            producer,
            consumer,
            waiting: VecDeque::new(),
            life: [0; 2],
            ending: false,
        }
    }

    /// Writes what waits for room, as far as there is some.
    fn push_waiting(&mut self, spare: &mut Spare) -> Result<(), BadRing> {
        while let Some(message) = self.waiting.front() {
            if !self.producer.push(message)? {
                break;
            }
            if let Some(message) = self.waiting.pop_front() {
                spare.give(message);
            }
        }
        Ok(())
    }

    fn send(&mut self, message: Box<Message>) -> Result<Option<Box<Message>>, BadRing> {
        let life = [message.word(4), message.word(5)];
        if life[0] != 0 && life[1] != 0 {
            self.life = life;
        }
        if self.waiting.is_empty() && self.producer.push(&message)? {
            return Ok(Some(message));
        }
        if self.waiting.len() >= MOST_WAITING {
            return Err(BadRing);
        }
        self.waiting.push_back(message);
        Ok(None)
    }

    fn call_if_needed(&mut self) {
        // Both are asked: each answer is given once.
        let news = self.producer.should_call();
        let room = self.consumer.should_call();
        if news || room {
            // It fails only when the count is full, and then the peer has been called.
            let _ = rustix::io::write(&self.lines.call, &1u64.to_ne_bytes());
        }
    }
}

/// What carries the messages to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Nothing: there is no link.
    None,
    /// The node is this one.
    Itself,
    /// Rings in memory that both processes map.
    SharedMemory,
    /// Datagrams.
    Udp,
}

/// The way by which messages to a node leave.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// What carries them.
    pub carrier: Carrier,
    /// Where datagrams go to.
    pub address: Option<SocketAddr>,
    /// Whether they are encrypted.
    pub encrypted: bool,
    /// Messages that found no room in the ring.
    pub waiting: u32,
    /// Bytes that the rings take, of both directions.
    pub ring_bytes: u64,
}

/// All links of a card, and the way from the card to itself.
#[derive(Debug)]
pub struct Wires {
    node: NodeId,
    links: Vec<Option<Link>>,
    /// The links that there are.
    active: Vec<NodeId>,
    /// Where the next look for a message begins.
    next: usize,
    /// Messages of the card to itself, and farewells in the name of peers that have ended.
    here: VecDeque<Box<Message>>,
    /// Lines of links that have ended.
    ended: Vec<Arc<Lines>>,
    /// Messages that had no link to leave by.
    pub unsent: u64,
    /// Messages over rings, both ways.
    carried: u64,
    udp: Option<Udp>,
    /// When UDP is looked at.
    attention: Attention,
    /// The card has said farewell.
    silent: bool,
}

impl Wires {
    /// No links yet.
    #[must_use]
    pub fn new(node: NodeId, nodes: u16) -> Self {
        Self {
            node,
            links: (0..nodes).map(|_| None).collect(),
            active: Vec::new(),
            next: 0,
            here: VecDeque::new(),
            ended: Vec::new(),
            unsent: 0,
            carried: 0,
            udp: None,
            attention: Attention::default(),
            silent: false,
        }
    }

    /// With links over UDP, too.
    #[must_use]
    pub fn with_udp(mut self, udp: Option<Udp>) -> Self {
        self.udp = udp;
        self
    }

    /// The links over UDP.
    pub fn udp(&mut self) -> Option<&mut Udp> {
        self.udp.as_mut()
    }

    /// The card has said farewell, and says nothing more: an answer to a greeting that has crossed it would take it back, and a program
    /// that is started again would find its number taken.
    pub const fn fall_silent(&mut self) {
        self.silent = true;
    }

    /// Takes what has come over UDP, unless rings are busy and it can wait for a little ([`Attention`]).
    pub fn look(&mut self, now: Nanos, spare: &mut Spare) {
        let Some(udp) = &mut self.udp else { return };
        let traffic = Traffic {
            rings: self.carried,
            datagrams: udp.passed(),
        };
        if self.attention.is_due(now, traffic) {
            let links = &self.links;
            udp.look(now, spare, |node| {
                links.get(node.index()).is_some_and(Option::is_some)
            });
        }
    }

    /// Adds a link, in the place of an earlier one.
    pub fn add(&mut self, peer: NodeId, link: Link) {
        if let Some(place) = self.links.get_mut(peer.index()) {
            *place = Some(link);
            self.active.retain(|known| *known != peer);
            self.active.push(peer);
        }
    }

    /// The peer of these lines has ended. What it wrote before is still received; then the card hears that the link's life is
    /// over.
    pub fn end(&mut self, peer: NodeId, lines: &Arc<Lines>) {
        if let Some(link) = self.links.get_mut(peer.index()).and_then(Option::as_mut)
            && Arc::ptr_eq(&link.lines, lines)
        {
            link.ending = true;
        }
    }

    /// The lines of links that have ended since the last call, for what waits for them.
    pub fn take_ended(&mut self) -> Vec<Arc<Lines>> {
        std::mem::take(&mut self.ended)
    }

    /// The way by which messages to a node leave.
    #[must_use]
    pub fn way(&self, node: NodeId) -> Way {
        let none = Way {
            carrier: Carrier::None,
            address: None,
            encrypted: false,
            waiting: 0,
            ring_bytes: 0,
        };
        let link = self.links.get(node.index()).and_then(Option::as_ref);
        let udp = self.udp.as_ref().and_then(|udp| udp.address_of(node));
        match (link, udp) {
            _ if node == self.node => Way {
                carrier: Carrier::Itself,
                ..none
            },
            (Some(link), _) => Way {
                carrier: Carrier::SharedMemory,
                waiting: link.waiting.len() as u32,
                ring_bytes: 2 * FILE_BYTES as u64,
                ..none
            },
            (None, Some(address)) => Way {
                carrier: Carrier::Udp,
                address: Some(address),
                encrypted: self.udp.as_ref().is_some_and(Udp::is_encrypted),
                ..none
            },
            (None, None) => none,
        }
    }

    /// Calls the peers that sleep and have got messages, or room for some. What goes over UDP leaves.
    pub fn call_peers(&mut self) {
        if let Some(udp) = &mut self.udp {
            udp.flush();
        }
        for peer in &self.active {
            if let Some(Some(link)) = self.links.get_mut(peer.index()) {
                link.call_if_needed();
            }
        }
    }

    /// Whether a message waits for room in its ring.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.links.iter().flatten().any(|link| !link.waiting.is_empty())
    }

    /// Says to all peers whether this card sleeps. To sleep is allowed only if the answer is true: nothing has arrived.
    pub fn set_asleep(&mut self, asleep: bool) -> bool {
        for peer in &self.active {
            if let Some(Some(link)) = self.links.get(peer.index()) {
                link.consumer.set_asleep(asleep);
            }
        }
        fence(Ordering::SeqCst);
        !self.has_input()
    }

    /// The life of a link ends, for the card, by a farewell in the name of its peer.
    fn remove(&mut self, peer: NodeId) {
        let Some(link) = self.links.get_mut(peer.index()).and_then(Option::take) else {
            return;
        };
        self.active.retain(|known| *known != peer);
        self.ended.push(Arc::clone(&link.lines));
        let mut farewell = Header::of(Body::Bye, peer, self.node);
        farewell.source_incarnation = Incarnation(link.life[1]);
        farewell.destination_incarnation = Incarnation(link.life[0]);
        self.here.push_back(Box::new(Message {
            header: farewell.encode(),
            ..Message::default()
        }));
    }

    /// Takes a message from one link. `Err`: the link is over.
    fn take(&mut self, peer: NodeId, spare: &mut Spare) -> Result<Option<Box<Message>>, BadRing> {
        let Some(Some(link)) = self.links.get_mut(peer.index()) else {
            return Ok(None);
        };
        if !link.waiting.is_empty() {
            link.push_waiting(spare)?;
        }
        match link.consumer.pop(spare)? {
            None if link.ending => Err(BadRing),
            None => Ok(None),
            Some(mut message) => {
                self.carried += 1;
                message.arrived_from(peer, self.node);
                Ok(Some(message))
            }
        }
    }
}

impl Wire for Wires {
    fn send(&mut self, _: Nanos, to: NodeId, message: Box<Message>) -> Option<Box<Message>> {
        if to == self.node {
            self.here.push_back(message);
            return None;
        }
        if self.silent {
            return Some(message);
        }
        let Some(Some(link)) = self.links.get_mut(to.index()) else {
            match &mut self.udp {
                Some(udp) if udp.has(to) => udp.send(to, &message),
                _ => self.unsent += 1,
            }
            return Some(message);
        };
        self.carried += 1;
        match link.send(message) {
            Ok(back) => back,
            Err(BadRing) => {
                self.remove(to);
                None
            }
        }
    }

    fn receive(&mut self, spare: &mut Spare) -> Option<Box<Message>> {
        if let Some(message) = self.here.pop_front() {
            return Some(message);
        }
        // In turns, so that one busy link holds up no other.
        for _ in 0..self.active.len() {
            self.next = if self.next + 1 < self.active.len() {
                self.next + 1
            } else {
                0
            };
            let peer = *self.active.get(self.next)?;
            match self.take(peer, spare) {
                Ok(None) => {}
                Ok(message) => return message,
                Err(BadRing) => {
                    self.remove(peer);
                    return self.here.pop_front();
                }
            }
        }
        self.udp.as_mut()?.pop()
    }

    fn path_to(&mut self, to: NodeId, life: Incarnation) -> Path {
        let payload = self.udp.as_mut().and_then(|udp| udp.payload(to, life));
        Path {
            loses_frames: payload.is_some(),
            payload: payload.unwrap_or(PAGE_SIZE),
        }
    }

    fn has_input(&mut self) -> bool {
        let waits = |link: &Link| link.ending || link.consumer.has_message();
        !self.here.is_empty()
            || self.udp.as_ref().is_some_and(Udp::has_input)
            || self.active.iter().any(|peer| {
                self.links
                    .get(peer.index())
                    .and_then(Option::as_ref)
                    .is_some_and(waits)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Pools;
    use crate::shm::mapping::Shared;
    use crate::udp::attention::PAUSE;
    use rustix::event::{EventfdFlags, PollFd, PollFlags};
    use std::net::UdpSocket;

    const NODES: u16 = 4;
    /// From one run to the next.
    const STEP: Nanos = Nanos(500);
    const RUNS_PER_PAUSE: u64 = PAUSE.0 / STEP.0;

    fn bell() -> OwnedFd {
        rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap()
    }

    /// Both ends of a link.
    fn link() -> [Link; 2] {
        let ring = || {
            let (file, producer) = Shared::create("ring", FILE_BYTES).unwrap();
            let consumer = Shared::accept(&file, FILE_BYTES).unwrap();
            (Producer::new(producer), Consumer::new(consumer))
        };
        let ((out, there), (back, here)) = (ring(), ring());
        let lines = || {
            Arc::new(Lines {
                socket: bell(),
                process: None,
                bell: bell(),
                call: bell(),
            })
        };
        [Link::new(lines(), out, here), Link::new(lines(), back, there)]
    }

    /// A node that has a link over shared memory and a UDP socket, and the node at the other end of the link.
    struct Stand {
        wires: Wires,
        other: Wires,
        spare: Spare,
        now: Nanos,
    }

    impl Stand {
        fn new() -> Self {
            let udp = Udp::bind("127.0.0.1:0".parse().unwrap(), (NodeId(0), NODES), 1024).unwrap();
            let mut wires = Wires::new(NodeId(0), NODES).with_udp(Some(udp));
            let mut other = Wires::new(NodeId(1), NODES);
            let [here, there] = link();
            wires.add(NodeId(1), here);
            other.add(NodeId(0), there);
            Self {
                wires,
                other,
                spare: Spare::new(&Pools::default()),
                now: Nanos(0),
            }
        }

        fn asked(&self) -> u64 {
            self.wires.udp.as_ref().unwrap().stats().asked
        }

        fn taken(&self) -> u64 {
            self.wires.udp.as_ref().unwrap().stats().strange
        }

        /// A run, as a card makes it; before it a message has come over the ring, perhaps.
        fn run(&mut self, message: bool) {
            if message {
                self.other.send(self.now, NodeId(0), Box::default());
            }
            self.now = self.now.after(STEP);
            self.wires.look(self.now, &mut self.spare);
            let received = self.wires.receive(&mut self.spare);
            assert_eq!(received.is_some(), message);
        }

        /// Has a datagram lie in the socket.
        fn datagram(&self) {
            let socket = self.wires.udp.as_ref().unwrap().socket();
            let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
            stranger.send_to(&[0; 100], socket.local_addr().unwrap()).unwrap();
            let mut fds = [PollFd::new(socket, PollFlags::IN)];
            assert_eq!(rustix::event::poll(&mut fds, None), Ok(1));
        }
    }

    #[test]
    fn a_card_that_has_left_hears_and_says_nothing() {
        let mut stand = Stand::new();
        stand.run(true);
        stand.other.fall_silent();
        assert!(stand.other.send(stand.now, NodeId(0), Box::default()).is_some());
        stand.run(false);
        // To itself it speaks on: what it has under way ends.
        assert!(stand.other.send(stand.now, NodeId(1), Box::default()).is_none());
        assert!(stand.other.receive(&mut stand.spare).is_some());
    }

    #[test]
    fn a_node_whose_rings_are_busy_asks_its_socket_seldom() {
        const PAUSES: u64 = 20;
        let mut stand = Stand::new();
        (0..PAUSES * RUNS_PER_PAUSE).for_each(|_| stand.run(true));
        assert_eq!(stand.asked(), PAUSES);
        // Once they rest, each run asks.
        (0..RUNS_PER_PAUSE).for_each(|_| stand.run(false));
        assert_eq!(stand.asked(), PAUSES + RUNS_PER_PAUSE);
    }

    /// Whenever it comes.
    #[test]
    fn a_datagram_is_taken_within_some_runs_of_a_card_that_rings_keep_busy() {
        for before in 0..RUNS_PER_PAUSE {
            let mut stand = Stand::new();
            (0..before).for_each(|_| stand.run(true));
            stand.datagram();
            let mut runs = 0;
            while stand.taken() == 0 {
                stand.run(true);
                runs += 1;
                assert!(runs <= RUNS_PER_PAUSE, "it came before run {before}");
            }
        }
    }
}
