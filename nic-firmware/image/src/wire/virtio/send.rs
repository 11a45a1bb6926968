//! Messages that leave.
//!
//! Sending never waits: a page lock may be held meanwhile, and its host waits for that lock with a deadline. A message that
//! finds the device's queue full joins a queue of this image, in order, and goes to the device as that takes others.
//!
//! **What bounds that queue.** Writes and requests hold credits: a window for each other node. Replies answer requests of
//! the other side, so they are at most its reads. What is not counted (acknowledgements, errors, greetings) answers frames that arrive, one
//! for each, or is due at a time, once for each node. What is sent again leaves a few at a time, for an acknowledgement or an
//! alarm of its link. A card whose queue is [half full](Sender::is_congested)
//! takes no more frames, until the device has caught up; its receive buffers hold what others may send meanwhile. So the
//! queue hardly fills. Should it do so all the same, the message is lost and counted, as on the wire, and sent again.

use super::{DEVICE_HEADER, QUEUE, Queue};
use crate::arena::Arena;
use core::ptr::NonNull;
use heapless::{Deque, Vec};
use netvm_abi::StagingId;
use netvm_abi::frame::{Endpoint, HEAD_BYTES, encode_head};
use netvm_abi::wire::OwnHeader;
use virtio_drivers::transport::Transport;

/// Messages on their way, those that wait for the device included.
const MESSAGES: usize = netvm_fw_common::memory::HEADS;
/// Messages that the device has: each takes two descriptors at most.
const OFFERED: usize = QUEUE / 2;
/// Messages that wait for the device before the card takes no more frames. As much again is left for what a pass
/// over the card's other inputs sends.
const CONGESTED: usize = MESSAGES / 2;
/// Payload that stands behind the head instead of in a buffer of its own.
const SHORT: usize = netvm_abi::descriptor::INLINE_BYTES;

/// Everything of a frame before its payload, and a short payload.
#[repr(C, align(64))]
struct Head([u8; HEAD_ROOM]);

const _: () = assert!(size_of::<Head>() == netvm_fw_common::memory::HEAD_BYTES);
const HEAD_ROOM: usize = DEVICE_HEADER + HEAD_BYTES + SHORT;

/// Staging buffers to be given back, at most: more than a card has.
const STAGINGS: usize = 128;

/// Lists of messages. In the arena, for a card is moved over the stack while it is made.
struct Lists {
    free: Vec<u16, MESSAGES>,
    /// Messages that the device has no room for yet, oldest first.
    waiting: Deque<u16, MESSAGES>,
}

/// What a message on its way is made of.
#[derive(Clone, Copy)]
struct Leaving {
    /// Its head's number.
    head: u16,
    head_len: usize,
    /// Its staging buffer and the payload in it.
    staging: Option<(StagingId, NonNull<[u8]>)>,
}

/// The queue of what leaves.
pub(super) struct Sender {
    queue: Queue,
    heads: &'static mut [Head],
    /// One: the lists.
    lists: &'static mut [Lists],
    /// By head: messages that wait.
    messages: &'static mut [Option<Leaving>],
    /// The message behind each token of the queue.
    tokens: &'static mut [Option<Leaving>],
    /// How many messages the device has.
    offered: usize,
    sent: Deque<StagingId, STAGINGS>,
    pub(super) lost: u32,
}

impl Sender {
    pub(super) fn new(arena: &mut Arena, mut queue: Queue) -> Self {
        // Until messages wait for the device, nothing waits for its end of one.
        queue.set_dev_notify(false);
        Self {
            queue,
            heads: arena.slice(MESSAGES, 64, |_| Head([0; HEAD_ROOM])),
            messages: arena.slice(MESSAGES, 8, |_| None),
            lists: arena.slice(1, 8, |_| Lists {
                free: (0..MESSAGES as u16).rev().collect(),
                waiting: Deque::new(),
            }),
            tokens: arena.slice(QUEUE, 8, |_| None),
            offered: 0,
            sent: Deque::new(),
            lost: 0,
        }
    }

    /// Sends a message; see [`Wire::send`](crate::wire::Wire::send).
    ///
    /// # Safety
    /// The payload of a staging buffer stays where it is, untouched, until [`Self::poll_sent`] gives the buffer back.
    pub(super) unsafe fn send(
        &mut self,
        transport: &mut impl Transport,
        path: [&Endpoint; 2],
        header: &OwnHeader,
        payload: &[u8],
        staging: Option<StagingId>,
    ) {
        let [from, to] = path;
        let staging = staging.map(|id| (id, NonNull::from(payload)));
        let Ok(bytes) = encode_head(from, to, header, payload) else {
            return self.lose(staging);
        };
        self.reclaim();
        let Some(index) = self.lists.first_mut().and_then(|lists| lists.free.pop()) else {
            return self.lose(staging);
        };
        let short = payload.len() <= SHORT;
        let Some(head) = self.heads.get_mut(usize::from(index)) else {
            return self.lose(staging);
        };
        let (start, rest) = head.0.split_at_mut(DEVICE_HEADER + HEAD_BYTES);
        if let Some(place) = start.get_mut(DEVICE_HEADER..) {
            place.copy_from_slice(&bytes);
        }
        let mut head_len = DEVICE_HEADER + HEAD_BYTES;
        if short && let Some(place) = rest.get_mut(..payload.len()) {
            place.copy_from_slice(payload);
            head_len += payload.len();
        }
        let mut message = Leaving {
            head: index,
            head_len,
            staging,
        };
        if short {
            message.staging = None;
            if let Some((id, _)) = staging {
                self.give_back(id);
            }
        }
        // There are as many heads as the list has room for.
        if let Some(place) = self.messages.get_mut(usize::from(index)) {
            *place = Some(message);
        }
        if let Some(lists) = self.lists.first_mut() {
            let _ = lists.waiting.push_back(index);
        }
        self.offer(transport);
    }

    /// Gives the device what it has room for.
    fn offer(&mut self, transport: &mut impl Transport) {
        let mut given = false;
        while self.offered < OFFERED {
            let next = self.lists.first_mut().and_then(|lists| lists.waiting.pop_front());
            let message =
                next.and_then(|head| self.messages.get_mut(usize::from(head)).and_then(Option::take));
            let Some(message) = message else { break };
            // SAFETY: the head stays for ever and is not in the list of free ones until the device has taken it; the
            // payload stays by the contract of `send`.
            match message.parts(self.heads, |parts| unsafe { self.queue.add(parts, &mut []) }) {
                Some(Ok(token)) => {
                    if let Some(place) = self.tokens.get_mut(usize::from(token)) {
                        *place = Some(message);
                    }
                    self.offered += 1;
                    given = true;
                }
                _ => {
                    // There are as many heads as the list has room for.
                    self.free(message.head);
                    self.lose(message.staging);
                }
            }
        }
        if given && self.queue.should_notify() {
            transport.notify(1);
        }
    }

    /// Whether too many messages wait for the device: then the card takes no more frames.
    pub(super) fn is_congested(&self) -> bool {
        self.waiting() >= CONGESTED
    }

    /// Messages that wait for the device.
    pub(super) fn waiting(&self) -> usize {
        self.lists.first().map_or(0, |lists| lists.waiting.len())
    }

    /// Whether the device shall interrupt when it takes a message: only while others wait for that.
    pub(super) fn interrupts(&mut self, asleep: bool) {
        self.queue.set_dev_notify(asleep && self.waiting() > 0);
    }

    fn free(&mut self, head: u16) {
        if let Some(lists) = self.lists.first_mut() {
            // There are as many heads as the list has room for.
            let _ = lists.free.push(head);
        }
    }

    /// Takes back what the device has taken.
    fn reclaim(&mut self) {
        while let Some(token) = self.queue.peek_used() {
            let message = self.tokens.get_mut(usize::from(token)).and_then(Option::take);
            let Some(message) = message else { return };
            // SAFETY: this message was added with this token.
            let popped = message.parts(self.heads, |parts| unsafe {
                self.queue.pop_used(token, parts, &mut [])
            });
            if !matches!(popped, Some(Ok(_))) {
                return;
            }
            self.offered = self.offered.saturating_sub(1);
            // There are as many heads as the list has room for.
            self.free(message.head);
            if let Some((id, _)) = message.staging {
                self.give_back(id);
            }
        }
    }

    fn lose(&mut self, staging: Option<(StagingId, NonNull<[u8]>)>) {
        self.lost += 1;
        if let Some((id, _)) = staging {
            self.give_back(id);
        }
    }

    fn give_back(&mut self, id: StagingId) {
        // There are fewer staging buffers than the list has room for.
        let _ = self.sent.push_back(id);
    }

    pub(super) fn poll_sent(&mut self, transport: &mut impl Transport) -> Option<StagingId> {
        self.reclaim();
        if self.waiting() > 0 {
            self.offer(transport);
        }
        self.sent.pop_front()
    }

    pub(super) fn has_sent(&self) -> bool {
        !self.sent.is_empty() || self.queue.can_pop()
    }
}

impl Leaving {
    /// Hands the parts of the frame to `act`.
    fn parts<R>(&self, heads: &[Head], act: impl FnOnce(&[&[u8]]) -> R) -> Option<R> {
        let head = heads.get(usize::from(self.head))?.0.get(..self.head_len)?;
        Some(match self.staging {
            // SAFETY: by the contract of `send` the payload stays, unchanged, as long as this message is on its way.
            Some((_, payload)) => act(&[head, unsafe { payload.as_ref() }]),
            None => act(&[head]),
        })
    }
}
