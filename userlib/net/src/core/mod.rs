//! The state of a network that one thread at a time works on: its queue, its peers, the table of connections, its listeners.

mod connections;
mod deadlines;
mod gather;
mod greeting;
mod incoming;
mod large;
mod peer;
mod reads;
mod slots;
mod time;

use crate::address::Address;
use crate::config::{NetConfig, PLACES};
use crate::conn::Conn;
use crate::engine::{Call, Engine};
use crate::error;
use crate::listener::Waiting;
use crate::stats::NetStats;
use crate::wire::{Header, Id, Kind, PeerAddress, Reason};
use deadlines::Deadlines;
pub(crate) use greeting::QUEUE;
use greeting::Stranger;
use netvm::{Nanos, NodeId, Notification, NotificationReady, SharedReceiver, SharedSender, Sleep, Status};
use peer::{Peer, Stage};
use slots::Slots;
use std::collections::HashMap;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use zerocopy::IntoBytes;

/// How often posting is tried again at once, after failures that were told meanwhile.
const TRIES: u32 = 8;

/// So long after a thread has spun the dispatcher comes by to look whether one does still.
const GRACE: Nanos = Nanos::from_millis(1);

/// What is let go of when no thread needs the state: it may wait for what is under way.
#[derive(Default)]
pub(crate) struct Trash(Vec<Peer>, Vec<SharedSender>);

pub(crate) struct Core {
    queue: SharedReceiver,
    slots: Slots,
    peers: Vec<Option<Box<Peer>>>,
    by_address: HashMap<PeerAddress, usize>,
    strangers: Vec<Stranger>,
    listeners: HashMap<u16, Arc<Waiting>>,
    next_service: u16,
    /// Names of sessions count from here.
    next_session: u32,
    /// Places of the queue that each peer has.
    share: u32,
    /// Bytes that a connection takes.
    window: u32,
    next_read: u64,
    /// Buffers of messages.
    spare: Vec<Vec<u8>>,
    trash: Trash,
    /// Calls the dispatcher when something comes.
    arrival: Option<NotificationReady>,
    timer: Option<(Nanos, Sleep)>,
    /// Threads spin, and are back soon when they do not: until then the dispatcher does not come for messages.
    grace: Option<Nanos>,
    next_tick: Nanos,
    /// Connections whose writers wait for an answer, and until when.
    awaited: Deadlines,
    /// Connections that were offered memory, and until when they keep it unused.
    offered: Deadlines,
    /// Peers with small writes since the program waited last.
    gathered: Vec<usize>,
    /// Something has been posted since the last look at the clock.
    unsure: bool,
    /// Sixteenths of the share of looks that have found something, of 255.
    busy: u32,
    /// A peer has gone since the last look into the queue, and its connections are still to end.
    gone: bool,
    stats: NetStats,
    /// The port has ended.
    ended: bool,
}

impl Core {
    pub(crate) fn new(queue: SharedReceiver, now: Nanos, config: &NetConfig) -> Self {
        Self {
            queue,
            slots: Slots::default(),
            peers: Vec::new(),
            by_address: HashMap::new(),
            strangers: Vec::new(),
            listeners: HashMap::new(),
            next_service: FIRST_FREE,
            // Two lives of a port begin at different times.
            next_session: (now.0 ^ (now.0 >> 32)) as u32,
            share: PLACES / (u32::from(config.peers) + 1),
            window: config.window,
            next_read: 0,
            spare: Vec::new(),
            trash: Trash::default(),
            arrival: None,
            timer: None,
            grace: None,
            next_tick: Nanos::MAX,
            awaited: Deadlines::default(),
            offered: Deadlines::default(),
            gathered: Vec::new(),
            unsure: false,
            busy: 0,
            gone: false,
            stats: NetStats::default(),
            ended: false,
        }
    }

    pub(crate) fn notification(&self) -> Notification {
        self.queue.notification().clone()
    }

    pub(crate) fn take_trash(&mut self) -> Trash {
        std::mem::take(&mut self.trash)
    }

    pub(crate) fn stats(&self) -> NetStats {
        NetStats {
            connections: self.slots.len() as u64,
            peers: self.by_address.len() as u64,
            load: self.load(),
            ..self.stats
        }
    }

    /// How busy this end is.
    const fn load(&self) -> u8 {
        (self.busy / 16) as u8
    }

    pub(crate) fn connections(&self) -> Vec<Arc<Conn>> {
        self.slots.all().map(|(conn, _)| Arc::clone(conn)).collect()
    }

    /// Does all there is to do.
    pub(crate) fn run(&mut self, engine: &Engine) {
        loop {
            self.take_calls(engine);
            if engine.is_turn_over() {
                self.end_turn();
            }
            let gone = std::mem::take(&mut self.gone);
            let more = self.receive(engine);
            let found = if more { 255 } else { 0 };
            self.busy = self.busy - self.busy / 16 + found;
            self.look_at_peers(engine);
            while self.tick(engine) {
                // What has just begun is told of from its first look on.
                self.look_at_peers(engine);
            }
            if more || self.gone {
                self.gone |= gone;
            } else if gone {
                self.lose_gone();
            } else if !self.arm(engine) {
                return;
            }
        }
    }

    /// Whether a peer has gone whose connections are still to end.
    pub(crate) const fn has_gone(&self) -> bool {
        self.gone
    }

    /// All that had come since they went is taken: peers that are gone have said no more.
    fn lose_gone(&mut self) {
        for at in 0..self.peers.len() {
            if self.peer(at).is_some_and(|peer| peer.gone) {
                self.lose(at, Reason::PeerLost);
            }
        }
    }

    /// Does what other threads have called for.
    pub(crate) fn take_calls(&mut self, engine: &Engine) {
        while let Some(call) = engine.next_call() {
            match call {
                Call::Send(conn, bytes, way) => self.send_all(engine, &conn, &bytes, way),
                Call::Room(conn) => self.feed(conn.id),
                Call::Window(conn) => self.tell_window(&conn),
                Call::End(conn) => self.end(&conn),
                Call::ReaderGone(conn) => self.reader_gone(&conn),
                Call::WriterGone(conn) => self.writer_gone(&conn),
                Call::Abort(conn) => self.abort(&conn),
                Call::Unlisten(service) => drop(self.listeners.remove(&service)),
                Call::Do(what) => what(self, engine),
            }
        }
    }

    /// Asks to be called when something comes, or the time has. Tells whether something has come already.
    ///
    /// A thread that spins takes what comes, and after that one that it waited for it is soon back for the next. To ask anew for each
    /// message would cost more than the message, and would call another thread for what this one takes. So from the first spin on
    /// the dispatcher comes by once in [`GRACE`] instead, and asks again when no thread spins then. One that sleeps is not made to
    /// wait for that.
    fn arm(&mut self, engine: &Engine) -> bool {
        if self.ended {
            return false;
        }
        if !engine.wants_calls() {
            // No thread is woken beside the program's.
            (self.arrival, self.timer, self.grace) = (None, None, None);
            return false;
        }
        let called = engine.was_called();
        if engine.is_spinning() {
            self.arrival = None;
            if called || self.grace.is_none() {
                self.grace = Some(engine.port.now().after(GRACE));
            }
        } else if called || engine.is_slept_in() {
            self.grace = None;
        }
        let mut context = Context::from_waker(engine.waker());
        let next = self.next_tick.min(self.grace.unwrap_or(Nanos::MAX));
        if self.timer.as_ref().is_some_and(|(at, _)| *at > next) || called {
            self.timer = None;
        }
        if self.timer.is_none() && next != Nanos::MAX {
            let left = next.0.saturating_sub(engine.port.now().0);
            let mut sleep = engine.port.sleep(std::time::Duration::from_nanos(left));
            match Pin::new(&mut sleep).poll(&mut context) {
                Poll::Pending => self.timer = Some((next, sleep)),
                Poll::Ready(Ok(())) => {
                    self.grace = None;
                    return true;
                }
                Poll::Ready(Err(_)) => {
                    self.close();
                    return false;
                }
            }
        }
        if self.grace.is_some() || (self.arrival.is_some() && !called) {
            return false;
        }
        let arrival = self.arrival.get_or_insert_with(|| engine.arrived.ready());
        match Pin::new(arrival).poll(&mut context) {
            Poll::Pending => false,
            Poll::Ready(Ok(_)) => {
                self.arrival = None;
                true
            }
            Poll::Ready(Err(_)) => {
                self.close();
                false
            }
        }
    }

    /// The port has ended, and with it everything.
    pub(crate) fn close(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        (self.arrival, self.timer) = (None, None);
        for conn in self.connections() {
            conn.reset(Reason::Closed);
        }
        for waiting in self.listeners.values() {
            waiting.close();
        }
    }

    fn peer(&mut self, index: usize) -> Option<&mut Peer> {
        self.peers.get_mut(index)?.as_deref_mut()
    }

    /// Puts a numbered message of a connection behind the others of its peer.
    fn push(&mut self, index: usize, header: &Header, payload: &[u8]) {
        let Self { peers, spare, .. } = self;
        if let Some(Some(peer)) = peers.get_mut(index) {
            peer.push(spare, header, payload);
        }
    }

    /// A numbered message without a connection's end at this side.
    fn push_to(&mut self, index: usize, kind: Kind, to: Id, value: u32, payload: &[u8]) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        let header = Header {
            value: value.into(),
            ..peer.header(kind, to)
        };
        self.push(index, &header, payload);
    }

    /// Posts what may be posted.
    fn pump(&mut self, index: usize) {
        let load = self.load();
        for _ in 0..TRIES {
            let Some(Some(peer)) = self.peers.get_mut(index) else {
                return;
            };
            let failed = loop {
                let Some((message, sender)) = peer.next_to_post(load) else {
                    break None;
                };
                match sender.post(message) {
                    Ok(_) => {
                        peer.has_posted();
                        self.unsure = true;
                        self.stats.messages += 1;
                    }
                    Err(error) => break Some(error),
                }
            };
            let Some(error) = failed else {
                return;
            };
            let node = peer.address.0;
            self.trouble(node, Some(index), error);
        }
    }

    /// Says something that may be said twice.
    fn say(&mut self, index: usize, kind: Kind, value: u32) {
        let load = self.load();
        let Some(Some(peer)) = self.peers.get_mut(index) else {
            return;
        };
        let header = Header {
            load,
            value: value.into(),
            ..peer.header(kind, Id::default())
        };
        let Some(sender) = peer.sender.as_ref().filter(|_| !peer.gone) else {
            return;
        };
        match sender.post(header.as_bytes()) {
            Ok(_) => {
                peer.told = peer.heard;
                self.stats.messages += 1;
            }
            Err(error) => {
                let node = peer.address.0;
                self.trouble(node, Some(index), error);
            }
        }
    }

    /// The library has told of a failure of something that went to a node. What was posted behind it may be held back.
    fn trouble(&mut self, node: NodeId, index: Option<usize>, error: netvm::Error) {
        use netvm::Error;
        let mut lost = Vec::new();
        match error {
            Error::PortClosed | Error::PortEnded { .. } => return self.close(),
            Error::Failed(failure) => {
                let whole_node = matches!(
                    failure.status,
                    Status::LinkLost | Status::StaleIncarnation | Status::NoSuchNode
                );
                for (at, peer) in self.peers.iter().enumerate() {
                    let Some(peer) = peer.as_ref().filter(|peer| !peer.is_later_than(failure.op)) else {
                        continue;
                    };
                    let meant =
                        peer.address == (failure.node, failure.port) && failure.status != Status::NoPlace;
                    if meant || (whole_node && peer.address.0 == failure.node) {
                        lost.push(at);
                    }
                }
            }
            // What has failed is not known: it may be a write into a peer's memory.
            Error::FailuresLost { .. } => lost.extend(0..self.peers.len()),
            Error::StreamFailed { .. } | Error::QueueFull => {}
            // It is of this peer alone: its import is gone, for one.
            _ => lost.extend(index),
        }
        // Its last words have landed before it went, and may wait in the queue.
        for at in lost {
            if let Some(peer) = self.peer(at) {
                let news = !std::mem::replace(&mut peer.gone, true);
                self.gone |= news;
            }
        }
        for peer in self.peers.iter_mut().flatten() {
            if peer.address.0 == node {
                self.stats.repeated += peer.go_back();
            }
        }
        self.next_tick = Nanos(0);
    }

    /// A peer is gone. Its connections are over.
    fn lose(&mut self, index: usize, reason: Reason) {
        let Some(peer) = self.peers.get_mut(index).and_then(Option::take) else {
            return;
        };
        self.by_address.remove(&peer.address);
        for conn in self.slots.take_all_of(index as u32) {
            // One that stood was not refused, whatever the peer said before it was known.
            conn.reset(match reason {
                Reason::Left => reason,
                _ if conn.is_connected() => Reason::PeerLost,
                _ => reason,
            });
            self.stats.resets += 1;
        }
        self.trash.0.push(*peer);
    }

    /// The way to a peer, made if there is none.
    fn acquaint(&mut self, engine: &Engine, address: PeerAddress) -> io::Result<usize> {
        if let Some(&index) = self.by_address.get(&address) {
            return Ok(index);
        }
        if self.by_address.len() >= usize::from(engine.config.peers) {
            return Err(error::error(
                ErrorKind::QuotaExceeded,
                "the network has as many peers as it takes: open it with more `peers`",
            ));
        }
        let now = engine.port.now();
        let mut peer = Box::new(Peer::new(address, self.new_session(), now, engine.port.next_op()));
        let joining = greeting::join(engine, address, std::time::Duration::ZERO)
            .map_err(|error| error::library("the other process cannot be asked", error))?;
        peer.joining = Some(joining);
        let index = self.peers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        });
        self.peers[index] = Some(peer);
        self.by_address.insert(address, index);
        Ok(index)
    }

    fn new_session(&mut self) -> u32 {
        self.next_session = self.next_session.wrapping_add(0x9E37_79B9);
        self.next_session
    }
}

/// The first number that a listener gets that asks for none.
const FIRST_FREE: u16 = 49152;
