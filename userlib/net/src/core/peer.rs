//! A peer: the port of another process, with which all connections share one queue each way.
//!
//! Numbered messages act once and in order, whatever becomes of the operations that carry them. They are kept until they are
//! known to have their places: the peer says how many it has taken, or a flush says that all have landed. After a failure or a
//! refusal of anything that goes to the node, the library has held back what was posted behind it; so all that is not known to
//! have its place is posted again, and the peer drops what it has.
//!
//! **Credits.** Each peer has a share of the places of the other's queue, and never has more numbered messages on their way than
//! that. What is not numbered (news of places taken, signs of life) needs none: two such messages for each half of a share fit
//! the share that no peer gets.

use super::large::Memories;
use crate::wire::{HEADER, Header, Id, Kind, Part, PeerAddress, VERSION};
use netvm::{Nanos, OpId, Pending, PendingCall, SharedSender};
use std::collections::VecDeque;
use zerocopy::{FromBytes, IntoBytes};

/// Messages that programs may not use, so that control messages go on.
const RESERVED: u32 = 2;
/// Buffers that are kept for the next messages.
const SPARE: usize = 128;

/// How far the acquaintance has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its queue is being joined.
    Joining,
    /// It has been greeted, and has not answered.
    Greeted,
    /// Both know each other.
    Known,
}

/// A peer.
pub(crate) struct Peer {
    pub(crate) address: PeerAddress,
    pub(crate) stage: Stage,
    /// Its name for what it has with us; none before its greeting.
    pub(crate) theirs: Option<u32>,
    /// Ours.
    pub(crate) ours: u32,
    pub(crate) sender: Option<SharedSender>,
    pub(crate) joining: Option<PendingCall<SharedSender>>,
    /// When it is asked for its queue again, and until when at most.
    pub(crate) ask_at: Option<Nanos>,
    pub(crate) asked_until: Nanos,
    pub(crate) pause: Nanos,
    /// Asks whether its queue is there still.
    pub(crate) checking: Option<PendingCall<SharedSender>>,
    /// Places of its queue that are ours.
    pub(crate) limit: u32,
    /// Numbered messages that it may not have yet, oldest first.
    queue: VecDeque<Vec<u8>>,
    /// How many of these are posted.
    posted: usize,
    /// The number of the first of these.
    first: u32,
    /// The number of the first that was never posted: nothing is added to those before it, which the peer may have.
    fresh: u32,
    /// Small writes since the program waited last.
    pub(crate) writes: u32,
    /// There were several before that, so the next ones are gathered.
    pub(crate) gathers: bool,
    /// How many of ours it has taken, as it says.
    taken: u32,
    /// How many of its messages were taken here.
    pub(crate) heard: u32,
    /// What it was told of that.
    pub(crate) told: u32,
    /// Connections whose writers wait for room here.
    pub(crate) starved: VecDeque<u32>,
    /// How many of these were woken and have not come yet.
    pub(crate) promised: u32,
    /// Connections that wait to be opened until it is known.
    pub(crate) opening: Vec<Id>,
    pub(crate) connections: u32,
    /// A flush, and the number up to which it is for.
    pub(crate) flush: Option<(u32, Pending)>,
    pub(crate) flushed: Nanos,
    /// Something is posted that is not known to have landed.
    pub(crate) unsure: bool,
    /// The first operation that can be one to it, until a flush of it has ended well: the process that had its address before it may have failures
    /// that come later than it. After a flush to its node none of these can come, and the numbers of operations may begin anew.
    since: Option<OpId>,
    /// Something to it has failed, so it is gone. Its connections end when all is taken that it had said.
    pub(crate) gone: bool,
    pub(crate) last_heard: Nanos,
    pub(crate) probed: Nanos,
    pub(crate) unanswered: u32,
    /// How busy it is, as it says.
    pub(crate) load: u8,
    /// How large its pieces of memory are.
    pub(crate) piece_bytes: u32,
    pub(crate) memories: Memories,
}

impl Peer {
    /// Whether this operation was posted before there was anything to post to it.
    pub(crate) fn is_later_than(&self, op: OpId) -> bool {
        self.since
            .is_some_and(|since| (op.0.wrapping_sub(since.0) as i32) < 0)
    }

    pub(crate) fn new(address: PeerAddress, ours: u32, now: Nanos, since: OpId) -> Self {
        Self {
            address,
            stage: Stage::Joining,
            theirs: None,
            ours,
            sender: None,
            joining: None,
            ask_at: None,
            asked_until: now.after(super::greeting::PATIENCE),
            pause: super::greeting::FIRST_PAUSE,
            checking: None,
            // The greeting needs a place.
            limit: 1,
            queue: VecDeque::new(),
            posted: 0,
            first: 0,
            fresh: 0,
            writes: 0,
            gathers: false,
            taken: 0,
            heard: 0,
            told: 0,
            starved: VecDeque::new(),
            promised: 0,
            opening: Vec::new(),
            connections: 0,
            flush: None,
            flushed: now,
            unsure: false,
            since: Some(since),
            gone: false,
            last_heard: now,
            probed: now,
            unanswered: 0,
            load: 0,
            piece_bytes: 0,
            memories: Memories::default(),
        }
    }

    /// The number of the next message.
    fn next(&self) -> u32 {
        self.first.wrapping_add(self.queue.len() as u32)
    }

    /// How many more messages of programs may go.
    pub(crate) fn room(&self) -> u32 {
        let under_way = self.next().wrapping_sub(self.taken);
        self.limit.saturating_sub(RESERVED).saturating_sub(under_way)
    }

    /// A header of a message to it.
    pub(crate) fn header(&self, kind: Kind, to: Id) -> Header {
        Header {
            kind: kind as u8,
            version: VERSION,
            session: self.ours.into(),
            number: self.next().into(),
            taken: self.heard.into(),
            to,
            ..Header::default()
        }
    }

    /// Puts a numbered message behind the others.
    pub(crate) fn push(&mut self, spare: &mut Vec<Vec<u8>>, header: &Header, payload: &[u8]) {
        let mut message = spare.pop().unwrap_or_default();
        message.clear();
        message.extend_from_slice(header.as_bytes());
        message.extend_from_slice(payload);
        self.queue.push_back(message);
    }

    /// Adds bytes of a connection to the last message, if that was never posted, has bytes and has room. Tells whether it did.
    pub(crate) fn add_to_last(&mut self, most: usize, to: Id, consumed: u32, payload: &[u8]) -> bool {
        let last = self.next().wrapping_sub(1);
        if self.queue.is_empty() || last.wrapping_sub(self.fresh).cast_signed() < 0 {
            return false;
        }
        let Some(message) = self.queue.back_mut() else {
            return false;
        };
        let len = message.len();
        let fits = len + size_of::<Part>() + payload.len() <= most;
        let Some(Ok(header)) = message.get_mut(..HEADER).map(Header::mut_from_bytes) else {
            return false;
        };
        if !fits || header.kind != Kind::Data as u8 {
            return false;
        }
        if header.value.get() == 0 {
            header.value = ((len - HEADER) as u32).into();
        }
        let part = Part {
            to,
            consumed: consumed.into(),
            len: (payload.len() as u32).into(),
        };
        message.extend_from_slice(part.as_bytes());
        message.extend_from_slice(payload);
        true
    }

    /// The next message to post, if it may be posted, with the news of now.
    pub(crate) fn next_to_post(&mut self, load: u8) -> Option<(&[u8], &SharedSender)> {
        let number = self.first.wrapping_add(self.posted as u32);
        if self.gone || number.wrapping_sub(self.taken) >= self.limit {
            return None;
        }
        let sender = self.sender.as_ref()?;
        let message = self.queue.get_mut(self.posted)?;
        let head = message.get_mut(..HEADER)?;
        if let Ok(header) = Header::mut_from_bytes(head) {
            header.taken = self.heard.into();
            header.load = load;
        }
        self.told = self.heard;
        Some((message, sender))
    }

    /// That one is posted.
    pub(crate) const fn has_posted(&mut self) {
        self.posted += 1;
        self.unsure = true;
        if self.posted_to().wrapping_sub(self.fresh).cast_signed() > 0 {
            self.fresh = self.posted_to();
        }
    }

    /// How many messages it has not taken, as far as is known.
    pub(crate) fn owes(&self) -> usize {
        self.queue.len()
    }

    /// How many messages are not posted.
    pub(crate) fn unposted(&self) -> usize {
        self.queue.len() - self.posted
    }

    /// Whether something waits to be posted that may be.
    pub(crate) fn has_unposted(&self) -> bool {
        self.posted < self.queue.len()
    }

    /// What of the library's is under way: a join, another one as a check, a flush.
    pub(crate) const fn under_way(&self) -> [bool; 3] {
        [
            self.joining.is_some(),
            self.checking.is_some(),
            self.flush.is_some(),
        ]
    }

    /// Up to which number everything is posted.
    pub(crate) const fn posted_to(&self) -> u32 {
        self.first.wrapping_add(self.posted as u32)
    }

    /// All that is not known to have its place is posted again. Tells how many messages.
    pub(crate) fn go_back(&mut self) -> u64 {
        self.flush = None;
        self.unsure = true;
        std::mem::take(&mut self.posted) as u64
    }

    /// A flush has told so of all below this number, and that nothing posted before it has failed.
    pub(crate) fn landed(&mut self, number: u32, spare: &mut Vec<Vec<u8>>) {
        self.since = None;
        self.placed(number, spare);
    }

    /// Messages below this number have their places. Nonsense of a peer changes nothing.
    pub(crate) fn placed(&mut self, number: u32, spare: &mut Vec<Vec<u8>>) {
        let count = number.wrapping_sub(self.first);
        if count as usize > self.queue.len() {
            return;
        }
        for message in self.queue.drain(..count as usize) {
            if spare.len() < SPARE {
                spare.push(message);
            }
        }
        self.first = number;
        self.posted = self.posted.saturating_sub(count as usize);
    }

    /// It has taken all below this number. Tells whether that is news.
    pub(crate) fn took(&mut self, number: u32, spare: &mut Vec<Vec<u8>>) -> bool {
        let more = number.wrapping_sub(self.taken);
        if more == 0 || more > self.posted_to().wrapping_sub(self.taken) {
            return false;
        }
        self.taken = number;
        if number.wrapping_sub(self.first).cast_signed() > 0 {
            self.placed(number, spare);
        }
        true
    }

    /// Whether it should be told by itself what was taken.
    pub(crate) const fn owes_credit(&self, share: u32) -> bool {
        self.heard.wrapping_sub(self.told) >= share / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm::{NodeId, PortId};

    fn peer() -> Peer {
        Peer::new((NodeId(1), PortId(1)), 7, Nanos(0), OpId(1))
    }

    #[test]
    fn operations_from_before_a_peer_are_told_also_where_numbers_begin_anew() {
        let met_at = |since| Peer::new((NodeId(1), PortId(1)), 7, Nanos(0), OpId(since));
        assert!(met_at(9).is_later_than(OpId(8)) && !met_at(9).is_later_than(OpId(9)));
        assert!(met_at(2).is_later_than(OpId(u32::MAX)) && !met_at(u32::MAX).is_later_than(OpId(2)));
        // A peer that stays for 2^31 operations can fail still.
        let mut long = met_at(9);
        long.landed(0, &mut Vec::new());
        assert!(!long.is_later_than(OpId(9 + (1 << 31))));
    }

    #[test]
    fn what_is_not_known_to_be_placed_is_kept_and_goes_again() {
        let (mut peer, mut spare) = (peer(), Vec::new());
        peer.limit = 10;
        for value in 0..4u32 {
            let header = Header {
                value: value.into(),
                ..peer.header(Kind::Data, Id::default())
            };
            assert_eq!(header.number.get(), value);
            peer.push(&mut spare, &header, &[1]);
        }
        assert_eq!(peer.room(), 10 - RESERVED - 4);
        for _ in 0..3 {
            peer.has_posted();
        }
        // It says that it has taken two, then one: that is no news.
        assert!(peer.took(2, &mut spare));
        assert!(!peer.took(1, &mut spare) && !peer.took(2, &mut spare));
        // It cannot have taken what was not posted.
        assert!(!peer.took(4, &mut spare));
        assert_eq!((peer.first, peer.posted, spare.len()), (2, 1, 2));
        assert_eq!(peer.go_back(), 1);
        assert_eq!((peer.posted, peer.posted_to()), (0, 2));
        assert!(peer.has_unposted());
        // A flush for more than there is changes nothing.
        peer.placed(9, &mut spare);
        assert_eq!(peer.first, 2);
        peer.has_posted();
        peer.has_posted();
        peer.placed(4, &mut spare);
        assert_eq!((peer.first, peer.queue.len()), (4, 0));
        // Credits count what was taken, not what has landed.
        assert_eq!(peer.room(), 10 - RESERVED - 2);
        assert!(peer.took(4, &mut spare));
        assert_eq!(peer.room(), 10 - RESERVED);
    }

    #[test]
    fn bytes_are_added_to_a_message_that_was_never_posted() {
        let (mut peer, mut spare) = (peer(), Vec::new());
        peer.limit = 10;
        assert!(!peer.add_to_last(4096, Id::default(), 0, b"one"));
        let header = peer.header(Kind::Data, Id::default());
        peer.push(&mut spare, &header, b"one");
        assert!(peer.add_to_last(4096, Id::new(3, 4), 5, b"second"));
        assert!(!peer.add_to_last(HEADER + 3 + 16 + 6 + 16 + 2, Id::default(), 0, b"333"));
        assert!(peer.add_to_last(HEADER + 3 + 16 + 6 + 16 + 3, Id::default(), 0, b"333"));
        let message = &peer.queue[0];
        assert_eq!(Header::ref_from_bytes(&message[..HEADER]).unwrap().value.get(), 3);
        assert_eq!(message[HEADER..HEADER + 3], *b"one");
        let (part, rest) = Part::read_from_prefix(&message[HEADER + 3..]).unwrap();
        assert_eq!(
            (part.to, part.consumed.get(), part.len.get()),
            (Id::new(3, 4), 5, 6)
        );
        assert_eq!(rest[..6], *b"second");
        // The peer may have it: what is added would be dropped with what comes again.
        peer.has_posted();
        assert!(!peer.add_to_last(4096, Id::default(), 0, b"four"));
        peer.go_back();
        assert!(!peer.add_to_last(4096, Id::default(), 0, b"four"));
        // Only bytes have a length of their own.
        let header = peer.header(Kind::Window, Id::default());
        peer.push(&mut spare, &header, &[]);
        assert!(!peer.add_to_last(4096, Id::default(), 0, b"four"));
    }

    #[test]
    fn numbers_wrap() {
        let (mut peer, mut spare) = (peer(), Vec::new());
        peer.limit = 10;
        peer.first = u32::MAX;
        peer.fresh = u32::MAX;
        peer.taken = u32::MAX;
        for _ in 0..3 {
            let header = peer.header(Kind::Data, Id::default());
            peer.push(&mut spare, &header, &[]);
            peer.has_posted();
        }
        assert_eq!(peer.room(), 10 - RESERVED - 3);
        assert!(peer.took(1, &mut spare));
        assert_eq!((peer.first, peer.posted), (1, 1));
    }
}
