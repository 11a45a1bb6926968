//! Receives that wait for a message, and messages that wait for a receive, in the order in which they came.

use std::collections::VecDeque;

use crate::buffer::Buffer;
use crate::fi::Errno;
use crate::wire::Part;

/// Any sender.
pub(crate) const ANY: u64 = u64::MAX;

/// A receive of the program's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) buffer: Buffer,
    pub(crate) context: usize,
    /// From this address only, or from [`ANY`].
    pub(crate) from: u64,
    pub(crate) tag: u64,
    /// Bits of the tag that do not matter.
    pub(crate) ignore: u64,
    /// Its end is told by a completion.
    pub(crate) completes: bool,
    /// It takes messages until less than the endpoint's limit is left.
    pub(crate) multi: bool,
    /// Bytes of it that messages have taken, where it takes several.
    pub(crate) used: usize,
    /// Names a receive of several messages, for each of them; 0: it takes one.
    pub(crate) several: u64,
}

impl Receive {
    fn takes(&self, from: u64, tag: u64) -> bool {
        (self.from == ANY || self.from == from) && (self.tag ^ tag) & !self.ignore == 0
    }
}

/// What a message says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    /// The connection that it came by.
    pub(crate) conn: usize,
    /// The sender's address, as the program knows it.
    pub(crate) from: u64,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    pub(crate) flags: u8,
    pub(crate) total: u64,
    pub(crate) cookie: u64,
}

/// Where the bytes of a message are.
#[derive(Debug)]
pub(crate) enum Body {
    /// Here.
    Here(Box<[u8]>),
    /// In the sender's memory.
    There(Vec<Part>),
    /// Nowhere: the sender has gone since the message was claimed.
    Gone(Errno),
}

/// A message that no receive has taken yet.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) envelope: Envelope,
    pub(crate) body: Body,
}

/// Both kinds of waiting, for messages of one kind.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    receives: VecDeque<Receive>,
    messages: VecDeque<Message>,
    /// Messages that were peeked at and are kept for a receive with this context.
    claimed: Vec<(usize, Message)>,
}

impl Queue {
    /// The receive that takes a message. One that takes several stays, as long as enough of it is left.
    pub(crate) fn receive_for(&mut self, envelope: &Envelope, least: usize) -> Option<Receive> {
        let (from, tag) = (envelope.from, envelope.tag);
        let at = self
            .receives
            .iter()
            .position(|receive| receive.takes(from, tag))?;
        let receive = self.receives.get_mut(at)?;
        if !receive.multi {
            return self.receives.remove(at);
        }
        let before = *receive;
        let len = usize::try_from(envelope.total).unwrap_or(usize::MAX);
        receive.used = receive.used.saturating_add(len);
        let left = receive.buffer.len().saturating_sub(receive.used);
        if left < least.max(1) {
            self.receives.remove(at);
            return Some(Receive {
                multi: true,
                ..before
            });
        }
        Some(Receive {
            multi: false,
            ..before
        })
    }

    /// Waits for a message.
    pub(crate) fn push_receive(&mut self, receive: Receive) {
        self.receives.push_back(receive);
    }

    /// Waits for a receive.
    pub(crate) fn push_message(&mut self, message: Message) {
        self.messages.push_back(message);
    }

    /// The first message that a receive takes.
    pub(crate) fn message_for(&mut self, receive: &Receive) -> Option<Message> {
        let at = self.position(receive)?;
        self.messages.remove(at)
    }

    fn position(&self, receive: &Receive) -> Option<usize> {
        let takes = |message: &Message| receive.takes(message.envelope.from, message.envelope.tag);
        self.messages.iter().position(takes)
    }

    /// What the first message is that a receive would take.
    pub(crate) fn peek(&self, receive: &Receive) -> Option<&Message> {
        self.messages.get(self.position(receive)?)
    }

    /// Keeps the first message that a receive would take for one with its context.
    pub(crate) fn claim(&mut self, receive: &Receive) {
        if let Some(message) = self.message_for(receive) {
            self.claimed.push((receive.context, message));
        }
    }

    /// The message that was claimed with this context.
    pub(crate) fn claimed(&mut self, context: usize) -> Option<Message> {
        let at = self.claimed.iter().position(|(claimer, _)| *claimer == context)?;
        Some(self.claimed.swap_remove(at).1)
    }

    /// Takes a receive back.
    pub(crate) fn cancel(&mut self, context: usize) -> Option<Receive> {
        let at = self
            .receives
            .iter()
            .position(|receive| receive.context == context)?;
        self.receives.remove(at)
    }

    /// Receives that wait.
    pub(crate) fn receives(&self) -> usize {
        self.receives.len()
    }

    /// Addresses of senders have changed: `name` says what that of a connection is now.
    pub(crate) fn rename(&mut self, name: impl Fn(usize) -> u64) {
        let claimed = self.claimed.iter_mut().map(|(_, message)| message);
        for message in self.messages.iter_mut().chain(claimed) {
            message.envelope.from = name(message.envelope.conn);
        }
    }

    /// Forgets the offers of a sender that has gone: their bytes are nowhere. The program was told of those that were claimed, so
    /// it is told what has become of them.
    pub(crate) fn forget_offers(&mut self, conn: usize, errno: Errno) {
        let gone =
            |message: &Message| message.envelope.conn == conn && matches!(message.body, Body::There(_));
        self.messages.retain(|message| !gone(message));
        for (_, message) in self.claimed.iter_mut().filter(|(_, message)| gone(message)) {
            message.body = Body::Gone(errno);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(context: usize, from: u64, tag: u64, ignore: u64) -> Receive {
        Receive {
            buffer: Buffer::default(),
            context,
            from,
            tag,
            ignore,
            completes: true,
            multi: false,
            used: 0,
            several: 0,
        }
    }

    fn envelope(from: u64, tag: u64) -> Envelope {
        Envelope {
            conn: 0,
            from,
            tag,
            data: 0,
            flags: 0,
            total: 1,
            cookie: 0,
        }
    }

    #[test]
    fn the_first_receive_that_takes_a_message_gets_it() {
        let mut queue = Queue::default();
        queue.push_receive(receive(1, 7, 5, 0));
        queue.push_receive(receive(2, u64::MAX, 5, 0));
        queue.push_receive(receive(3, u64::MAX, 0, u64::MAX));
        let got =
            |queue: &mut Queue, from, tag| queue.receive_for(&envelope(from, tag), 0).map(|r| r.context);
        assert_eq!(got(&mut queue, 8, 5), Some(2));
        assert_eq!(got(&mut queue, 8, 5), Some(3));
        assert_eq!(got(&mut queue, 8, 5), None);
        assert_eq!(got(&mut queue, 7, 5), Some(1));
    }

    #[test]
    fn messages_are_taken_in_order_and_claimed_ones_by_their_claimer() {
        let mut queue = Queue::default();
        for data in 0..4 {
            let mut envelope = envelope(1, 9);
            envelope.data = data;
            let body = Body::Here(Box::default());
            queue.push_message(Message { envelope, body });
        }
        let wanted = receive(77, u64::MAX, 9, 0);
        assert_eq!(queue.peek(&wanted).map(|m| m.envelope.data), Some(0));
        queue.claim(&wanted);
        assert_eq!(queue.message_for(&wanted).map(|m| m.envelope.data), Some(1));
        assert_eq!(queue.claimed(77).map(|m| m.envelope.data), Some(0));
        assert!(queue.claimed(77).is_none());
        assert_eq!(queue.message_for(&wanted).map(|m| m.envelope.data), Some(2));
    }

    #[test]
    fn a_receive_of_several_messages_ends_when_too_little_is_left() {
        let mut queue = Queue::default();
        let mut bytes = [0_u8; 10];
        let mut several = receive(1, u64::MAX, 0, u64::MAX);
        several.multi = true;
        several.buffer = Buffer::one(bytes.as_mut_ptr().cast(), 10).unwrap();
        queue.push_receive(several);
        let mut message = envelope(1, 0);
        message.total = 3;
        let used: Vec<(usize, bool)> = std::iter::from_fn(|| queue.receive_for(&message, 4))
            .map(|receive| (receive.used, receive.multi))
            .collect();
        // After the second one four bytes are left, which are enough; after the third one, one.
        assert_eq!(used, [(0, false), (3, false), (6, true)]);
    }
}
