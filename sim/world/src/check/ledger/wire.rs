//! What the wire did to single frames and to whole links, and what that excuses.
//!
//! A frame that is lost alone is no reason to give up a link, nor is one that comes very late: only a cut is. And a frame
//! that is lost excuses nothing by itself: what it held up has to end, with an acknowledgement, with an
//! answer, or with the sender's card saying that the link is down. Only then nothing is owed any more on that link. An
//! answer that its card could not keep has no number, and is excused: what asked for it ends with the link, or, if it
//! was word of a failure, stays silent until the port flushes.

use super::super::message::{ATOMIC_REPLY, ERROR, FLUSH_REPLY, Message, NUMBERED, READ_REPLY};
use super::{Direction, Lane, Ledger, News};
use netvm_abi::{Nanos, NodeId};

/// A pair of nodes, whichever is named first.
fn pair(one: NodeId, other: NodeId) -> Direction {
    (one.0.min(other.0), one.0.max(other.0))
}

impl Ledger {
    /// Something has happened that may end the link of two nodes.
    pub(super) fn blame(&mut self, now: Nanos, from: NodeId, to: NodeId) {
        self.causes.insert(pair(from, to), now);
    }

    /// A greeting has come of a life that no card has begun. A card that has a link asks its other end and keeps the link. One that has none
    /// believes it until the other end says that it is no such life.
    pub(super) fn made_up(&mut self, now: Nanos, from: NodeId, to: NodeId) {
        if self.lanes.get(&(to.0, from.0)).is_none_or(|lane| lane.told) {
            self.blame(now, from, to);
        }
    }

    /// A cut link has swallowed a frame: the link may not survive.
    pub(super) fn cut(&mut self, now: Nanos, frame: &[u8]) {
        if let Some(message) = Message::read(frame) {
            self.blame(now, NodeId(message.source), NodeId(message.destination));
        }
    }

    /// The wire has swallowed a frame, alone or with all others. That excuses nothing: what it held up comes again, or the
    /// sender's card says that the link is down.
    pub(super) fn frame_lost(&mut self, now: Nanos, frame: &[u8]) {
        let Some(message) = Message::read(frame) else {
            return;
        };
        let owed = matches!(message.kind, READ_REPLY | ATOMIC_REPLY | FLUSH_REPLY | ERROR);
        if owed
            && message.flags & NUMBERED != 0
            && let Some(lane) = self.lane_answered(&message)
            && !lane.answered.contains(&(message.kind, message.seq))
        {
            lane.unanswered.entry((message.kind, message.seq)).or_insert(now);
        }
    }

    /// An answer reaches the card that waits for it.
    pub(super) fn answer_arrived(&mut self, message: &Message) {
        if let Some(lane) = self.lane_answered(message) {
            lane.unanswered.remove(&(message.kind, message.seq));
            lane.answered.insert((message.kind, message.seq));
        }
    }

    /// The lane of what a message answers, in the same life of the link.
    fn lane_answered(&mut self, message: &Message) -> Option<&mut Lane> {
        let lane = self.lanes.get_mut(&(message.destination, message.source))?;
        (lane.lives == (message.destination_life, message.source_life)).then_some(lane)
    }

    /// A card says that its link to a node is down: its ports have heard of it, and what comes from there is dropped.
    pub(super) fn link_down(&mut self, node: NodeId, peer: NodeId, news: &mut Vec<News>) {
        let lane = (node.0, peer.0);
        let known = self.lanes.get_mut(&lane);
        let anew = known.is_some_and(|lane| !std::mem::replace(&mut lane.told, true));
        self.give_up(node, peer);
        news.push(News::LinkDown {
            lane,
            cause: self.blamed(node, peer),
            anew,
        });
    }

    /// When something last happened that may end the link of two nodes.
    pub(in crate::check) fn blamed(&self, one: NodeId, other: NodeId) -> Option<Nanos> {
        let of_node = |node: NodeId| self.node_causes.get(&node.0).copied();
        let of_pair = self.causes.get(&pair(one, other)).copied();
        of_pair.max(of_node(one)).max(of_node(other))
    }

    /// A card is gone: it says nothing more of its links.
    pub(super) fn hears_no_more(&mut self, node: NodeId) {
        let own = |direction: &Direction| direction.0 == node.0;
        for (_, lane) in self.lanes.iter_mut().filter(|(direction, _)| own(direction)) {
            (lane.over, lane.told) = (true, true);
        }
    }

    /// Nothing is owed any more between two nodes, in this life of their link.
    pub(super) fn give_up(&mut self, from: NodeId, to: NodeId) {
        for direction in [(from.0, to.0), (to.0, from.0)] {
            if let Some(lane) = self.lanes.get_mut(&direction) {
                lane.abandoned = true;
            }
        }
    }
}
