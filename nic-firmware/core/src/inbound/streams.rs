//! The streams of messages: what the failure of one means for those behind it, or the refusal of an append, until
//! their sender knows (promise P4).

use super::order::Line;
use super::{Inbound, POISONED};
use crate::config::Config;
use crate::env::Env;
use crate::windows::WindowId;
use netvm_abi::status::Status;
use netvm_abi::storage::Storage;
use netvm_abi::wire::{Kind, MessageFlags, Owner};
use netvm_abi::{BounceId, Epoch, NodeId, OpId, PortId};

/// A port of another node as a sender to this one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stream {
    /// Owner of the sending port that the rest is of: the next one is not to blame.
    owner: Owner,
    /// The first failure that the sender has not answered with a new epoch: notifications of that
    /// epoch are suppressed.
    poison: Option<Poison>,
    /// The latest append of it that found its queue full; 0: none. Behind it no append gets a place, until one names it
    /// (`docs/decisions/0023-refused-append.md`).
    refused: OpId,
    /// Its messages while the link is held up, of all owners of the port.
    pub(super) line: Line,
}

impl Stream {
    /// Whether it has something to say to messages that come.
    fn remembers(&self) -> bool {
        self.poison.is_some() || self.refused != OpId(0)
    }

    /// What is known of this owner.
    #[inline(always)]
    fn of(&self, owner: Owner) -> Option<&Self> {
        (self.owner == owner).then_some(self)
    }

    /// The same, to be changed: what is known of an owner before is forgotten.
    fn of_mut(&mut self, owner: Owner) -> &mut Self {
        if self.owner != owner {
            *self = Self {
                owner,
                line: self.line,
                ..Self::default()
            };
        }
        self
    }
}

/// Why a stream is poisoned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poison {
    epoch: Epoch,
    pub(crate) status: Status,
    pub(crate) op: OpId,
}

impl<S: Storage> Inbound<S> {
    /// Whether there is room aside for what the streams of a window have to remember.
    pub(crate) fn has_room_aside(&self, config: &Config, window: WindowId) -> bool {
        let ports = usize::from(config.geometry.ports);
        let room = self.aside.room();
        let at = window.index() * ports;
        let row = self.streams.get(at..at + ports).unwrap_or_default();
        room >= ports || row.iter().filter(|stream| stream.remembers()).count() <= room
    }

    /// A window goes from one node, if any had it, to another: what the streams have to remember goes aside, and comes back.
    #[cold]
    pub(crate) fn window_moves(
        &mut self,
        config: &Config,
        window: WindowId,
        from: Option<NodeId>,
        to: NodeId,
    ) {
        for port in 0..config.geometry.ports {
            let at = config.stream_index(window, PortId(port));
            if let Some(stream) = self.streams.get_mut(at).map(core::mem::take)
                && stream.remembers()
                && let Some(from) = from
            {
                let kept = self.aside.put(from, port, stream);
                debug_assert!(kept, "a link that finds no room keeps its window");
            }
        }
        let streams = &mut self.streams;
        let back = |port, stream| {
            if let Some(place) = streams.get_mut(config.stream_index(window, PortId(port))) {
                *place = stream;
            }
        };
        self.aside.take_back(to, |_| true, back);
    }

    /// Whether an earlier message of the same owner and epoch of its port has failed. A new epoch lifts that: the
    /// sender's library has surfaced the error. Another owner of its port did nothing wrong.
    #[inline]
    pub(crate) fn follows_failure(&mut self, config: &Config, at: BounceId) -> bool {
        if self.wary & POISONED == 0 {
            return false;
        }
        let Some(slot) = self.slots.get(at.index()) else {
            return false;
        };
        let header = slot.header();
        let stream = config.stream_index(config.window_of(at), header.source_port());
        let Some(stream) = self.streams.get_mut(stream) else {
            return false;
        };
        let Some(poison) = stream.poison else {
            return false;
        };
        let says_owner = matches!(header.kind(), Kind::Write | Kind::Flush);
        let holds = poison.epoch == header.epoch() && (!says_owner || stream.of(header.owner()).is_some());
        if !holds {
            stream.poison = None;
        }
        holds
    }

    /// Suppresses the notifications of a message's stream until its epoch changes. Reads do not
    /// poison: they leave nothing undone at this side.
    #[cold]
    pub(crate) fn poison(&mut self, env: &mut Env<S>, at: BounceId, status: Status) {
        let Some(slot) = self.slots.get(at.index()) else {
            return;
        };
        let header = slot.header();
        // A message that stands alone does not poison its stream.
        if header.flags().contains(MessageFlags::REGARDLESS) {
            return;
        }
        let stream = env
            .config
            .stream_index(env.config.window_of(at), header.source_port());
        if let Some(stream) = self.streams.get_mut(stream)
            && let Stream { poison, .. } = stream.of_mut(header.owner())
            && poison.is_none()
        {
            *poison = Some(Poison {
                epoch: header.epoch(),
                status,
                op: header.op(),
            });
            self.wary |= POISONED;
            env.counters.streams_poisoned += 1;
        }
    }

    /// A message has failed, and its stream with it, if this node has one for it.
    #[cold]
    pub(crate) fn stream_fails(&mut self, env: &mut Env<S>, at: BounceId, status: Status) {
        let ports = env.config.geometry.ports;
        if self
            .get(at)
            .is_some_and(|slot| slot.header().source_port().0 < ports)
        {
            self.follows_failure(&env.config, at);
            self.poison(env, at, status);
        }
    }

    /// The failure of its stream that a flush is told of.
    pub(crate) fn failure_before(&self, config: &Config, at: BounceId) -> Option<Poison> {
        let header = self.get(at)?.header();
        let stream = config.stream_index(config.window_of(at), header.source_port());
        let poison = self.streams.get(stream)?.of(header.owner())?.poison?;
        (poison.epoch == header.epoch()).then_some(poison)
    }

    /// The latest append of its stream that found no place before the message in a slot; 0: none.
    pub(crate) fn refusal_before(&self, config: &Config, at: BounceId) -> OpId {
        let refused = || {
            let header = self.get(at)?.header();
            let stream = config.stream_index(config.window_of(at), header.source_port());
            Some(self.streams.get(stream)?.of(header.owner())?.refused)
        };
        refused().unwrap_or_default()
    }

    /// The append in a slot has found its queue full.
    #[cold]
    pub(crate) fn note_refusal(&mut self, config: &Config, at: BounceId) {
        let Some(slot) = self.slots.get(at.index()) else {
            return;
        };
        let header = slot.header();
        let stream = config.stream_index(config.window_of(at), header.source_port());
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.of_mut(header.owner()).refused = header.op();
        }
    }
}
