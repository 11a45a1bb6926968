//! How a card gets links: processes that connect to it, and nodes that it connects to.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use netvm_abi::NodeId;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use tracing::{debug, info};

use super::{Core, LOOK_AGAIN, PATIENCE, SoftCard};
use crate::shm::introduce::{self, Caller, Half, Introduction, LinkError, Met, Wants};
use crate::shm::wires::Link;
use crate::udp::Udp;

/// How many may have knocked and said nothing; of more, the one that knocked first goes.
const MOST_KNOCKING: usize = 64;
/// How long an answer to a datagram that asks for a link is waited for.
const ASK_AGAIN: Duration = Duration::from_millis(50);

impl SoftCard {
    /// Takes connections, and introductions of processes that have connected.
    pub(super) fn answer_the_door(&self) {
        for listener in &self.listeners {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            for _ in 0..MOST_KNOCKING {
                let socket = match rustix::net::accept_with(listener, flags) {
                    Ok(socket) => socket,
                    Err(Errno::MFILE | Errno::NFILE) => {
                        self.turn_away(listener);
                        continue;
                    }
                    Err(_) => break,
                };
                let Ok(caller) = Caller::accepted(socket) else {
                    continue;
                };
                let knocking = &mut self.peers().knocking;
                knocking.push_back((caller, Instant::now() + PATIENCE));
                if knocking.len() > MOST_KNOCKING {
                    knocking.pop_front();
                }
            }
        }
        let knocking = std::mem::take(&mut self.peers().knocking);
        for (caller, deadline) in knocking {
            match caller.wants() {
                Wants::Link(half) => self.welcome(half),
                Wants::Answer(asked) => {
                    asked.answer(|question| self.answers.get().and_then(|give| give(question)));
                }
                Wants::Waits(caller) if Instant::now() < deadline => {
                    self.peers().knocking.push_back((caller, deadline));
                }
                Wants::Waits(_) | Wants::Nothing => {}
            }
        }
    }

    /// Takes a connection for which no descriptor is left, to say so and end it.
    fn turn_away(&self, listener: &OwnedFd) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        *spare = None;
        if let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Caller::turn_away(&socket);
        }
        *spare = rustix::io::fcntl_dupfd_cloexec(&self.bell, 0).ok();
    }

    /// A process introduces itself: makes the link, or says why not.
    fn welcome(&self, half: Half) {
        let Ok((them, Met::Both(link))) = half.finish(self.node) else {
            return;
        };
        let peer = them.node;
        let me = Introduction::of(self.node);
        if !self.can_link(peer) {
            debug!(
                node = self.node.0,
                peer = peer.0,
                "a link is refused: no such number here"
            );
            return link.refuse(self.node, false);
        }
        // Two that connect to each other at the same time keep the link that the lower number began.
        if self.is_linked(peer) && peer > self.node {
            return link.refuse(self.node, true);
        }
        if link.introduce(me).is_ok() {
            self.add(peer, link.into_link());
        }
    }

    fn can_link(&self, peer: NodeId) -> bool {
        peer != self.node && peer.0 < self.nodes
    }

    /// Whether there is a link to a node.
    #[must_use]
    pub fn is_linked(&self, peer: NodeId) -> bool {
        self.peers().lines.iter().any(|(known, _)| *known == peer)
    }

    pub(super) fn add(&self, peer: NodeId, link: Link) {
        let lines = Arc::clone(&link.lines);
        let mut peers = self.peers();
        peers.lines.retain(|(known, _)| *known != peer);
        peers.lines.push((peer, lines));
        drop(peers);
        let (node, number, carrier) = (self.node.0, peer.0, "shared memory");
        info!(node, peer = number, carrier, "a link is made");
        self.visit(|core| core.board.wire.add(peer, link));
        // The helper waits for what it knew of.
        self.wake_helper();
        if let Some(linked) = self.linked.get() {
            linked(peer);
        }
    }

    /// Connects to a node, by its name or by `#` and its number, and says what its number is. A node that is linked already
    /// is found again.
    ///
    /// # Errors
    /// There is no link.
    pub fn connect(&self, name: &str, deadline: Instant) -> Result<NodeId, LinkError> {
        let (them, met) = introduce::connect(name, self.node, deadline)?;
        if let Met::Both(link) = met {
            if !self.can_link(them.node) {
                return Err(LinkError::Refused(
                    "its number is this node's, or not below this node's number of nodes",
                ));
            }
            // Of two links that were begun at the same time both sides keep the one that the lower number began.
            if !self.is_linked(them.node) || self.node < them.node {
                self.add(them.node, link.into_link());
            }
        }
        Ok(them.node)
    }

    /// Makes a link over UDP with the node at an address, and says what its number is.
    ///
    /// # Errors
    /// There is no link.
    pub fn dial(&self, to: SocketAddr, deadline: Instant) -> Result<NodeId, LinkError> {
        let on_udp =
            |core: &mut Core, what: &mut dyn FnMut(&mut Udp) -> Option<Result<NodeId, LinkError>>| {
                core.board.wire.udp().and_then(what)
            };
        let mut id = Err(LinkError::NoUdp);
        self.visit(|core| {
            on_udp(core, &mut |udp| {
                id = udp.dial(to);
                None
            })
        });
        let id = id?;
        let mut asked = Instant::now();
        loop {
            // The card asks again when an answer brings a token; what is lost is asked for from here.
            let again = asked.elapsed() >= ASK_AGAIN;
            if again {
                asked = Instant::now();
            }
            let end = self.visit(|core| {
                on_udp(core, &mut |udp| match udp.end_of(id) {
                    None if !again => None,
                    _ => udp.redial(id),
                })
            });
            if let Some(end) = end {
                return end;
            }
            if Instant::now() >= deadline {
                let end = self.visit(|core| on_udp(core, &mut |udp| Some(Err(udp.hang_up(id)))));
                return end.unwrap_or(Err(LinkError::TimedOut));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}
