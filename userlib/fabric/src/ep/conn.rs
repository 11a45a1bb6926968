//! A connection to another endpoint: two rings, and what waits for them.

use std::collections::VecDeque;

use netvm::{NodeId, Pending, Word64};

use super::ring::{Calls, Full, Inbound, Outbound};
use super::send::{Pieces, Send, Written};
use crate::address::Address;
use crate::fi::{Errno, FI_ADDR_NOTAVAIL};
use crate::wire::{Head, Record};

/// A connection.
pub(crate) struct Conn {
    pub(crate) address: Address,
    /// The other endpoint's address, as the program knows it.
    pub(crate) from: u64,
    pub(super) inbound: Inbound,
    /// Once the other side has introduced itself.
    pub(super) outbound: Option<Outbound>,
    /// What it has said of itself.
    pub(super) peer: Option<Record>,
    /// Where it says how far it has come with the outbound ring.
    pub(super) credit: Word64,
    /// The name of the inbound ring, and its signal.
    pub(super) ring: (u64, u32),
    /// It is gone, and why. What has come before is still taken.
    pub(super) failed: Option<Errno>,
    /// Nothing more is taken: the other side has said that it closes, or makes no sense.
    pub(super) deaf: bool,
    /// Messages that have no room in the ring yet, in their order.
    pub(super) waiting: VecDeque<Send>,
    /// Entries about messages. They go before messages.
    pub(super) notes: VecDeque<Head>,
    /// Messages that the receiver has asked for in pieces.
    pub(super) pieces: VecDeque<Pieces>,
    /// Messages that were written, and whose completion waits until the other node has received them.
    pub(super) written: Vec<Written>,
    /// What a flush under way is for.
    pub(super) flushing: Option<(Pending, Vec<Written>)>,
    /// Whether the other side's memory may be read; not known yet, if nothing.
    pub(super) pulls: Option<bool>,
}

impl Conn {
    pub(super) fn new(
        address: Address,
        from: Option<u64>,
        inbound: Inbound,
        credit: Word64,
        ring: (u64, u32),
    ) -> Self {
        Self {
            address,
            from: from.unwrap_or(FI_ADDR_NOTAVAIL),
            inbound,
            outbound: None,
            peer: None,
            credit,
            ring,
            failed: None,
            deaf: false,
            waiting: VecDeque::new(),
            notes: VecDeque::new(),
            pieces: VecDeque::new(),
            written: Vec::new(),
            flushing: None,
            pulls: None,
        }
    }

    /// Whether something is under way whose end no signal tells.
    pub(super) fn is_busy(&self) -> bool {
        self.failed.is_none()
            && (self.flushing.is_some()
                || !self.written.is_empty()
                || (self.outbound.is_some()
                    && !(self.waiting.is_empty() && self.notes.is_empty() && self.pieces.is_empty())))
    }

    /// Acknowledges what was taken.
    pub(super) fn rest(&mut self) {
        self.inbound.rest();
    }

    /// Whether an entry waits.
    pub(super) fn has_more(&self) -> bool {
        !self.deaf && self.inbound.has_more()
    }

    /// The other node, once it is known.
    pub(super) fn node(&self) -> Option<NodeId> {
        self.outbound.as_ref().map(Outbound::node)
    }

    /// The messages that the other side has taken out of its ring: their completion waits no more for a flush.
    pub(super) fn taken(&mut self) -> Vec<Written> {
        let Some(outbound) = &self.outbound else {
            return Vec::new();
        };
        let used = outbound.used();
        let mut taken = Vec::new();
        let flushing = self.flushing.iter_mut().map(|(_, written)| written);
        for written in flushing.chain([&mut self.written]) {
            let count = written.iter().take_while(|message| message.end <= used).count();
            taken.extend(written.drain(..count));
        }
        taken
    }

    /// Writes an entry without bytes, now or later.
    pub(super) fn note(&mut self, mut head: Head) {
        // One behind the other. A ring that is gone is noticed with those that wait.
        if !self.notes.is_empty() || self.put(&mut head, 0, Calls::Now, |_| {}).is_err() {
            self.notes.push_back(head);
        }
    }

    /// Writes an entry now, if the ring has room.
    pub(super) fn put(
        &mut self,
        head: &mut Head,
        len: usize,
        calls: Calls,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Full> {
        let Some(outbound) = &mut self.outbound else {
            return Err(Full::Now);
        };
        head.consumed = self.inbound.at();
        outbound.put(head, len, calls, fill)?;
        // Not before: what was not written tells nothing, and both sides may be waiting to be told.
        self.inbound.reported();
        Ok(())
    }
}
