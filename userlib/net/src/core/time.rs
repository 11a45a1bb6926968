//! What the passing of time asks for: flushes that tell of failures, signs of life, and writers that were woken in vain.

use super::{Core, Stage, greeting};
use crate::engine::Engine;
use crate::wire::{Kind, Reason};
use netvm::Nanos;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// How long something may be under way before it is asked whether it has landed.
const FLUSH: Nanos = Nanos::from_millis(15);

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Core {
    /// Does what is due. Tells whether something has begun that has to be looked at.
    pub(super) fn tick(&mut self, engine: &Engine) -> bool {
        let unsure = std::mem::take(&mut self.unsure);
        if !unsure && self.next_tick == Nanos::MAX {
            return false;
        }
        let now = engine.port.now();
        if unsure {
            self.next_tick = self.next_tick.min(now.after(FLUSH));
        }
        if now < self.next_tick {
            return false;
        }
        self.next_tick = Nanos::MAX;
        self.end_turn();
        self.look_at_awaited(now);
        self.look_at_offered(now);
        let mut began = false;
        for index in 0..self.peers.len() {
            let before = self.peer(index).map(|peer| peer.under_way());
            self.tick_of(engine, index, now);
            began |= before != self.peer(index).map(|peer| peer.under_way());
        }
        began
    }

    fn due(&mut self, at: Nanos) {
        self.next_tick = self.next_tick.min(at);
    }

    fn tick_of(&mut self, engine: &Engine, index: usize, now: Nanos) {
        let keepalive = nanos(engine.config.keepalive);
        let share = self.share;
        let Some(peer) = self.peer(index) else {
            return;
        };
        if let Some(at) = peer.ask_at {
            if now < at {
                return self.due(at);
            }
            peer.ask_at = None;
            match greeting::join(engine, peer.address, Duration::ZERO) {
                Ok(joining) => peer.joining = Some(joining),
                Err(_) => return self.lose(index, Reason::Unreachable),
            }
        }
        // Those that were woken and have not come are not waited for.
        peer.promised = 0;
        let starves = !peer.starved.is_empty();
        if peer.heard != peer.told {
            // A word that was lost is said again with this one.
            let owes = peer.owes_credit(share);
            if owes {
                self.say(index, Kind::Credit, 0);
            }
        }
        self.wake_starved(index);
        if starves {
            self.due(now.after(FLUSH));
        }
        let Some(peer) = self.peer(index) else {
            return;
        };
        let quiet = now.0.saturating_sub(peer.last_heard.0.max(peer.probed.0));
        let watched = peer.connections > 0 || !peer.opening.is_empty();
        let probe = watched && peer.stage != Stage::Joining && quiet >= keepalive;
        if probe {
            peer.probed = now;
            peer.unsure = true;
            if peer.unanswered < 2 {
                peer.unanswered += 1;
                self.say(index, Kind::Probe, 0);
            } else if peer.checking.is_none() {
                // It takes nothing: perhaps no thread of it is in a call, perhaps it is gone.
                peer.checking = greeting::join(engine, peer.address, Duration::ZERO).ok();
            }
        }
        let Some(peer) = self.peer(index) else {
            return;
        };
        if peer.unsure && peer.flush.is_none() && peer.sender.is_some() {
            let due = peer.flushed.after(FLUSH);
            if now >= due {
                peer.flushed = now;
                if let Ok(flush) = engine.port.begin_flush_remote(peer.address.0) {
                    peer.unsure = false;
                    peer.flush = Some((peer.posted_to(), flush));
                }
            }
            self.due(now.after(FLUSH));
        }
        if watched {
            self.due(now.after(Nanos(keepalive / 2)));
        }
    }

    /// Whether what was posted has landed.
    pub(super) fn look_at_flush(&mut self, index: usize, context: &mut Context<'_>) {
        let Some(peer) = self.peer(index) else {
            return;
        };
        let Some((number, flush)) = &mut peer.flush else {
            return;
        };
        let Poll::Ready(end) = Pin::new(flush).poll(context) else {
            return;
        };
        let number = *number;
        peer.flush = None;
        match end {
            Ok(()) => {
                let Self { peers, spare, .. } = self;
                if let Some(Some(peer)) = peers.get_mut(index) {
                    peer.landed(number, spare);
                }
            }
            Err(error) => {
                let node = peer.address.0;
                self.trouble(node, Some(index), error);
            }
        }
    }
}
