//! Small writes on several connections to one peer, in one message.
//!
//! A message costs far more than its bytes. A program with an event loop writes on many connections and then waits. So what it
//! writes to one peer meanwhile is put together, and leaves when the program waits. Two things bound what that costs others. A
//! program that has written once since it waited last is none with an event loop: its next write leaves at once. And a clock
//! runs from the first write on that does not leave.

use super::Core;
use super::peer::Peer;
use crate::config::NetConfig;
use crate::conn::Conn;
use crate::engine::Engine;
use crate::wire::HEADER;
use netvm::Nanos;

/// Larger writes leave at once.
const SMALL: usize = 1024;
/// A message of so many bytes leaves, so that the peer has something to do meanwhile.
const FULL: usize = 1024;
/// How long a write waits for others at most.
const PATIENCE: Nanos = Nanos::from_millis(1);

/// So many messages wait for places at the peer, where a socket would have a buffer. Programs with event loops count on one: not all of
/// them wait for room before they write again.
const WAITING: usize = 256;

/// How many messages may wait here for which the peer has no place.
pub(super) fn room(config: &NetConfig, peer: &Peer) -> u32 {
    if config.gather {
        WAITING.saturating_sub(peer.unposted()) as u32
    } else {
        0
    }
}

impl Core {
    /// Adds bytes to the last message to this peer, if that has not left and has room for all of them.
    pub(super) fn add_to_last(&mut self, index: usize, conn: &Conn, bytes: &[u8], carries: usize) -> bool {
        if bytes.len() > SMALL {
            return false;
        }
        let Some(slot) = self.slots.get(conn.id) else {
            return false;
        };
        let to = slot.to;
        let Some(peer) = self.peer(index) else {
            return false;
        };
        peer.add_to_last((carries + HEADER).min(FULL), to, conn.consumed(), bytes) && {
            conn.tell_consumed();
            true
        }
    }

    /// Counts a write, and tells whether it waits for others.
    pub(super) fn gathers(&mut self, engine: &Engine, index: usize, len: usize) -> bool {
        if !engine.config.gather || len > SMALL {
            return false;
        }
        let Some(peer) = self.peer(index) else {
            return false;
        };
        peer.writes += 1;
        let (first, gathers) = (peer.writes == 1, peer.gathers);
        if first {
            self.gathered.push(index);
            if gathers {
                self.look_by(engine, engine.port.now().after(PATIENCE));
            }
        }
        gathers
    }

    /// The dispatcher looks at the clock by then, also if the program makes no call. To ask it for each turn would wake it for each.
    fn look_by(&mut self, engine: &Engine, latest: Nanos) {
        match self.timer {
            Some((at, _)) if at <= latest => self.next_tick = self.next_tick.min(at),
            _ => {
                self.next_tick = self.next_tick.min(latest);
                self.arm(engine);
            }
        }
    }

    /// The program waits: what was gathered leaves.
    pub(super) fn end_turn(&mut self) {
        while let Some(index) = self.gathered.pop() {
            if let Some(peer) = self.peer(index) {
                peer.gathers = std::mem::take(&mut peer.writes) > 1;
                self.pump(index);
            }
        }
    }
}
