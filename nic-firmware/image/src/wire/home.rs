//! A wire on which a card reaches its own node, too.
//!
//! No network brings a frame back to where it came from. What a node's processes send to each other stays here.

use super::Wire;
use super::inbox::Inbox;
use crate::arena::Arena;
use heapless::Deque;
use netvm_abi::wire::OwnHeader;
use netvm_abi::{NodeId, ReceiveId, StagingId};
use netvm_platform::Frame;

/// Receive buffers for one node of the default geometry.
const BUFFERS: usize = netvm_fw_common::memory::receive_buffers(1, 64, 64);
/// Their numbers begin here, past those of any wire.
const FIRST: u32 = 1 << 16;

/// `W` to the other nodes, memory to this one.
pub(crate) struct Home<W> {
    own: NodeId,
    inbox: Inbox<BUFFERS>,
    /// Staging buffers whose messages have been copied.
    sent: Deque<StagingId, 128>,
    /// Whose turn it is.
    outside_first: bool,
    /// The wire to the others.
    pub(crate) outside: W,
}

impl<W: Wire> Home<W> {
    /// Of node `own`.
    pub(crate) fn new(arena: &mut Arena, own: NodeId, outside: W) -> Self {
        Self {
            own,
            inbox: Inbox::new(arena, FIRST),
            sent: Deque::new(),
            outside_first: false,
            outside,
        }
    }
}

impl<W: Wire> Wire for Home<W> {
    unsafe fn send(&mut self, header: &OwnHeader, payload: &[u8], staging: Option<StagingId>) {
        if header.destination() != self.own {
            // SAFETY: the same contract.
            return unsafe { self.outside.send(header, payload, staging) };
        }
        self.inbox.put(header, payload);
        if let Some(id) = staging {
            // A card has fewer staging buffers.
            let _ = self.sent.push_back(id);
        }
    }

    fn poll_sent(&mut self) -> Option<StagingId> {
        self.sent.pop_front().or_else(|| self.outside.poll_sent())
    }

    fn poll(&mut self) -> Option<Frame> {
        // In turn, so that neither waits for the other.
        self.outside_first = !self.outside_first;
        if self.outside_first {
            self.outside.poll().or_else(|| self.inbox.poll())
        } else {
            self.inbox.poll().or_else(|| self.outside.poll())
        }
    }

    fn payload<R>(&mut self, receive: ReceiveId, len: usize, take: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if self.inbox.has(receive) {
            self.inbox.payload(receive, len).map(take)
        } else {
            self.outside.payload(receive, len, take)
        }
    }

    fn release(&mut self, receive: ReceiveId) {
        if self.inbox.has(receive) {
            self.inbox.release(receive);
        } else {
            self.outside.release(receive);
        }
    }

    fn has_input(&mut self) -> bool {
        self.inbox.has_input() || !self.sent.is_empty() || self.outside.has_input()
    }

    fn arm(&mut self) {
        self.outside.arm();
    }

    fn disarm(&mut self) {
        self.outside.disarm();
    }
}
