//! How a card gets links: processes that connect to it, and nodes that it connects to.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netvm_abi::NodeId;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::Pid;
use tracing::{debug, info};

use super::{Core, LOOK_AGAIN, PATIENCE, SoftCard};
use crate::shm::introduce::{self, Caller, Half, Introduction, LinkError, Met, Wants, Whole};
use crate::shm::wires::Link;
use crate::udp::Udp;

/// How many may have knocked and said nothing; of more, the one that knocked first goes.
const MOST_KNOCKING: usize = 64;
/// How long an answer to a datagram that asks for a link is waited for.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What is decided one after the other: which of two links that are made at once stays.
#[derive(Default)]
pub(super) struct Door {
    /// The processes that threads of this one are connecting to.
    calls: Vec<Option<Pid>>,
    /// Links that such processes have begun meanwhile, of nodes with higher numbers.
    held: Vec<(NodeId, Box<Whole>)>,
}

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
        if !self.can_link(peer) {
            debug!(
                node = self.node.0,
                peer = peer.0,
                "a link is refused: no such number here"
            );
            return link.refuse(self.node, false);
        }
        self.answer(peer, link, &mut self.door());
    }

    /// Makes a link that another process has begun, unless there is one, or is about to be.
    ///
    /// Two that connect to each other at the same time keep the link that the lower number began. It answers the higher one
    /// only when its own call has ended: then there is a link, or none will come of that call. So no link is replaced that has
    /// carried anything. The higher number answers at once, so neither waits for the other; of several that wait for each
    /// other in turn, the lowest waits for none.
    fn answer(&self, peer: NodeId, link: Box<Whole>, door: &mut Door) {
        let process = link.peer();
        if peer > self.node && door.calls.contains(&process) {
            door.held.push((peer, link));
        } else if self.has_link_to(peer, process) {
            link.refuse(self.node, true);
        } else if link.introduce(Introduction::of(self.node)).is_ok() {
            self.add(peer, link.into_link());
        }
    }

    /// A call of this node's has ended: answers those that were held up by it.
    fn hang_up(&self, process: Option<Pid>, door: &mut Door) {
        if let Some(at) = door.calls.iter().position(|call| *call == process) {
            door.calls.swap_remove(at);
        }
        for (peer, link) in std::mem::take(&mut door.held) {
            self.answer(peer, link, door);
        }
    }

    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a link to a node, and to this process of it: not to an earlier one of the same number.
    fn has_link_to(&self, peer: NodeId, process: Option<Pid>) -> bool {
        let peers = self.peers();
        let mut lines = peers.lines.iter();
        lines.any(|(known, lines)| *known == peer && lines.lead_to(process))
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
        loop {
            let mut call = None;
            let met = introduce::connect(name, self.node, deadline, |process| {
                call = Some(process);
                self.door().calls.push(process);
            });
            // From here on no other thread makes a link.
            let mut door = self.door();
            let made = met.and_then(|(them, met)| self.conclude(them.node, call.flatten(), met));
            if let Some(process) = call {
                self.hang_up(process, &mut door);
            }
            drop(door);
            match made? {
                Some(peer) => return Ok(peer),
                // The other side has a link whose end this one has not, or has closed: it will notice.
                None if Instant::now() >= deadline => return Err(LinkError::TimedOut),
                None => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// What has come of a call to this process. Nothing: there is no link yet.
    fn conclude(&self, peer: NodeId, process: Option<Pid>, met: Met) -> Result<Option<NodeId>, LinkError> {
        let Met::Both(link) = met else {
            return Ok(self.has_link_to(peer, process).then_some(peer));
        };
        if !self.can_link(peer) {
            return Err(LinkError::Refused(
                "its number is this node's, or not below this node's number of nodes",
            ));
        }
        // The lower number's call came in while this one's was answered: the other side has taken that one's link.
        if peer > self.node || !self.has_link_to(peer, process) {
            self.add(peer, link.into_link());
        }
        Ok(Some(peer))
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
