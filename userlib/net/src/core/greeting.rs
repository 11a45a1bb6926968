//! Peers come to know each other, and say farewell.
//!
//! The one that wants a connection joins the other's queue and greets. The other joins its queue and greets back. Each greeting
//! says how many places the other has. A session ends with a farewell, or when one end finds the other gone; the next greeting
//! begins another one. An end that hears something of a session that it does not know says farewell to it, so that its
//! connections end.

use super::{Core, Peer, Stage};
use crate::config::PLACES;
use crate::engine::Engine;
use crate::wire::{Header, Id, Kind, PeerAddress, Reason, VERSION};
use netvm::{Error, Nanos, PendingCall, SharedSender, Status, Timeout};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use zerocopy::IntoBytes;

/// The name of the queue of a network.
pub(crate) const QUEUE: &str = "netvm-net";
/// The first pause between two questions for a peer's queue, where the node was not reached; each is twice as long.
pub(super) const FIRST_PAUSE: Nanos = Nanos::from_millis(1);
/// The longest.
const LONGEST_PAUSE: Nanos = Nanos::from_millis(50);
/// How long a node that is not reached is asked again.
pub(super) const PATIENCE: Nanos = Nanos::from_millis(2000);
/// Farewells that are under way, at most.
const STRANGERS: usize = 16;

/// A port that hears a farewell.
pub(crate) struct Stranger {
    address: PeerAddress,
    theirs: u32,
    reason: Reason,
    joining: PendingCall<SharedSender>,
}

/// Begins to join the queue of a peer.
pub(crate) fn join(
    engine: &Engine,
    (node, port): PeerAddress,
    within: Duration,
) -> netvm::Result<PendingCall<SharedSender>> {
    let timeout = if within.is_zero() {
        Timeout::Now
    } else {
        Timeout::After(within)
    };
    SharedSender::begin_join(&engine.port, node, port, QUEUE, timeout)
}

/// Why a queue could not be joined.
fn reason(error: &Error) -> Reason {
    match error {
        Error::NotAChannel { .. } => Reason::NotOurs,
        Error::PortClosed | Error::PortEnded { .. } => Reason::Closed,
        _ => match error.status() {
            Some(Status::NoSuchExport | Status::NoSuchPort) => Reason::NoPeer,
            Some(Status::NotAllowed) => Reason::NotAdmitted,
            _ => Reason::Unreachable,
        },
    }
}

impl Core {
    /// Looks at what was begun with peers.
    pub(super) fn look_at_peers(&mut self, engine: &Engine) {
        let mut context = Context::from_waker(engine.waker());
        for index in 0..self.peers.len() {
            let Some(peer) = self.peer(index) else {
                continue;
            };
            if let Some(joining) = &mut peer.joining
                && let Poll::Ready(joined) = Pin::new(joining).poll(&mut context)
            {
                peer.joining = None;
                self.joined(engine, index, joined);
            }
            self.look_at_check(index, &mut context);
            self.look_at_flush(index, &mut context);
            self.look_at_memories(engine, index, &mut context);
            if self.peer(index).is_some_and(|peer| peer.has_unposted()) {
                self.pump(index);
            }
            let share = self.share;
            if self.peer(index).is_some_and(|peer| peer.owes_credit(share)) {
                self.say(index, Kind::Credit, 0);
            }
        }
        self.look_at_strangers(&mut context);
    }

    fn joined(&mut self, engine: &Engine, index: usize, joined: netvm::Result<SharedSender>) {
        let share = self.share;
        let Some(peer) = self.peer(index) else {
            return;
        };
        match joined {
            Ok(sender) => {
                peer.sender = Some(sender);
                peer.stage = Stage::Greeted;
                let hello = Header {
                    value: share.into(),
                    consumed: engine.config.piece_bytes.into(),
                    ..peer.header(Kind::Hello, Id::default())
                };
                self.push(index, &hello, &[]);
                self.pump(index);
                self.known(index);
            }
            Err(error) => {
                let reason = reason(&error);
                let now = engine.port.now();
                if reason == Reason::Unreachable && now < peer.asked_until {
                    // The link may be coming up.
                    let at = now.after(peer.pause);
                    peer.ask_at = Some(at);
                    peer.pause = Nanos(peer.pause.0 * 2).min(LONGEST_PAUSE);
                    self.next_tick = self.next_tick.min(at);
                } else {
                    self.lose(index, reason);
                }
            }
        }
    }

    /// Both may know each other now.
    pub(super) fn known(&mut self, index: usize) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        if peer.stage != Stage::Greeted || peer.theirs.is_none() {
            return;
        }
        peer.stage = Stage::Known;
        for id in std::mem::take(&mut peer.opening) {
            self.open(index, id);
        }
        self.pump(index);
    }

    fn look_at_check(&mut self, index: usize, context: &mut Context<'_>) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        let Some(checking) = &mut peer.checking else {
            return;
        };
        let Poll::Ready(found) = Pin::new(checking).poll(context) else {
            return;
        };
        peer.checking = None;
        match found {
            Ok(sender) => self.trash.1.push(sender),
            Err(error) if reason(&error) == Reason::Unreachable => {}
            Err(_) => self.lose(index, Reason::PeerLost),
        }
    }

    /// A port greets that is not known, or not under this session.
    pub(super) fn meet(&mut self, engine: &Engine, from: PeerAddress, header: &Header) {
        let session = header.session.get();
        let index = match self.acquaint(engine, from) {
            Ok(index) => index,
            Err(_) => return self.farewell(engine, from, session, Reason::Full),
        };
        self.greeted_by(index, header);
    }

    /// A peer's greeting, which has the number 0.
    pub(super) fn greeted_by(&mut self, index: usize, header: &Header) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        peer.theirs = Some(header.session.get());
        peer.limit = header.value.get().clamp(1, PLACES);
        peer.piece_bytes = header.consumed.get();
        peer.heard = 1;
        self.known(index);
    }

    /// Says that a session is over, or never was.
    pub(super) fn farewell(&mut self, engine: &Engine, address: PeerAddress, theirs: u32, reason: Reason) {
        let told = self
            .strangers
            .iter()
            .any(|stranger| (stranger.address, stranger.theirs) == (address, theirs));
        if told || self.strangers.len() >= STRANGERS {
            // It says something again, and hears it then.
            return;
        }
        if let Ok(joining) = join(engine, address, Duration::ZERO) {
            self.strangers.push(Stranger {
                address,
                theirs,
                reason,
                joining,
            });
        }
    }

    fn look_at_strangers(&mut self, context: &mut Context<'_>) {
        let mut at = 0;
        while let Some(stranger) = self.strangers.get_mut(at) {
            let Poll::Ready(joined) = Pin::new(&mut stranger.joining).poll(context) else {
                at += 1;
                continue;
            };
            let stranger = self.strangers.swap_remove(at);
            let Ok(sender) = joined else {
                continue;
            };
            let bye = bye(0, stranger.theirs, stranger.reason);
            if let Err(error) = sender.post(bye.as_bytes()) {
                self.trouble(stranger.address.0, None, error);
            }
            self.trash.1.push(sender);
        }
    }

    /// This network ends: what was written leaves, as far as it can in time, and peers are told.
    pub(crate) fn leave(&mut self, engine: &Engine) {
        let end = engine.port.now().0 + engine.config.linger.as_nanos() as u64;
        self.listeners.clear();
        self.end_turn();
        let waits = |peer: &Peer| {
            let leaves = peer.has_unposted() && peer.connections > 0;
            let known = peer.stage == Stage::Known && (peer.has_unposted() || peer.memories.has_lent());
            known || leaves || peer.flush.is_some()
        };
        loop {
            self.run(engine);
            let waits = self.peers.iter().flatten().any(|peer| waits(peer));
            if self.ended || !waits || engine.port.now().0 >= end {
                break;
            }
            let _ = engine.arrived.spin(Duration::from_micros(50));
        }
        if self.ended {
            return;
        }
        let mut nodes = Vec::new();
        for peer in self.peers.iter().flatten() {
            let Some(sender) = &peer.sender else {
                continue;
            };
            // What had no time to leave is lost, and the peer is to know that.
            let reason = if waits(peer) { Reason::Reset } else { Reason::Left };
            let bye = bye(peer.ours, peer.theirs.unwrap_or(0), reason);
            let _ = sender.post(bye.as_bytes());
            if !nodes.contains(&peer.address.0) {
                nodes.push(peer.address.0);
            }
        }
        for node in nodes {
            let left = Duration::from_nanos(end.saturating_sub(engine.port.now().0));
            let _ = engine
                .port
                .flush_remote_for(node, left.max(Duration::from_millis(1)));
        }
    }
}

fn bye(ours: u32, theirs: u32, reason: Reason) -> Header {
    Header {
        kind: Kind::Bye as u8,
        version: VERSION,
        session: ours.into(),
        consumed: (reason as u32).into(),
        value: theirs.into(),
        ..Header::default()
    }
}
