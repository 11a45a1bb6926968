//! The card's surroundings: what the NIC core asks for ([`Platform`]) and what its loop asks for ([`Device`]).

use std::collections::VecDeque;
use std::sync::Arc;

use netvm_abi::atomic::Operand;
use netvm_abi::wire::OwnHeader;
use netvm_abi::{Nanos, NodeId, ReceiveId, StagingId};
use netvm_nic::platform::{Dma, DmaId, Interrupt, Payload, Platform};
use netvm_platform::{Device, DmaEnd, Frame};

use crate::capture::Capture;
use crate::dma::Engine;
use crate::event_count::EventCount;
use crate::memory::{Stock, WordSpace};
use crate::transfer::Buffers;
use crate::wire::{Message, SMALL_BYTES, Socket};

/// What one card can reach.
pub(crate) struct Board {
    pub(crate) node: usize,
    pub(crate) bar: Arc<WordSpace>,
    pub(crate) shared: Arc<WordSpace>,
    pub(crate) engine: Engine,
    pub(crate) buffers: Buffers,
    pub(crate) free_received: Vec<u32>,
    pub(crate) messages: Stock<Box<Message>>,
    pub(crate) sent: VecDeque<StagingId>,
    pub(crate) sockets: Arc<[Socket]>,
    /// Messages taken from the card's socket and not looked at yet.
    pub(crate) arrived: VecDeque<Box<Message>>,
    /// Cards that got a message, a bit each: the thread that runs this card inline runs those next.
    pub(crate) kicked: u64,
    /// Cards have threads of their own, to be woken.
    pub(crate) threaded: bool,
    pub(crate) driver: Arc<EventCount>,
    pub(crate) ports: Arc<[EventCount]>,
    pub(crate) capture: Option<Arc<Capture>>,
    /// The time: the thread that runs the card sets it, once for several passes.
    pub(crate) now: Nanos,
    pub(crate) frames_sent: u64,
    pub(crate) bytes_sent: u64,
}

impl Board {
    fn receive(&mut self, message: Box<Message>) -> Frame {
        let len = message.header.len() + message.len;
        let index = self.free_received.pop().unwrap_or_else(|| {
            self.buffers.received.push(None);
            (self.buffers.received.len() - 1) as u32
        });
        let frame = Frame::new(ReceiveId(index), &message.header, len);
        if let Some(place) = self.buffers.received.get_mut(index as usize) {
            *place = Some(message);
        }
        frame
    }
}

fn copy_words(words: &[u32], into: &mut [u8]) {
    for (to, word) in into.chunks_mut(4).zip(words) {
        let bytes = word.to_le_bytes();
        to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    }
}

impl Platform for Board {
    type Bar = WordSpace;
    type Shared = WordSpace;

    fn bar(&self) -> &WordSpace {
        &self.bar
    }

    fn shared(&self) -> &WordSpace {
        &self.shared
    }

    fn start_dma(&mut self, id: DmaId, dma: Dma) {
        self.engine.start(self.now, id, dma);
    }

    fn operand(&self, slot: u8) -> Operand {
        self.buffers.operands.get(slot)
    }

    fn set_operand(&mut self, slot: u8, operand: &Operand) {
        self.buffers.operands.set(slot, operand);
    }

    /// The wire is a queue in memory.
    fn loses_frames(&self, _node: NodeId) -> bool {
        false
    }

    fn transmit(&mut self, header: &OwnHeader, payload: Payload<'_>) {
        let len = usize::from(header.payload_len());
        let mut message = self.messages.take();
        message.header = header.to_bytes();
        message.len = len;
        match payload {
            Payload::Empty => {}
            Payload::Inline(words) if len <= SMALL_BYTES => copy_words(words, &mut message.small),
            Payload::Inline(words) => {
                let mut buffer = self.buffers.pages.take();
                copy_words(words, &mut buffer.0);
                message.buffer = Some(buffer);
            }
            Payload::Staging(staging) => {
                // The buffer itself goes; the slot is free at once, and gets another one when it needs one.
                let Some(slot) = self.buffers.staging.get_mut(staging.index()) else {
                    return;
                };
                message.buffer = slot.take();
                self.sent.push_back(staging);
            }
        }
        if let Some(capture) = &self.capture {
            capture.add(self.now, &header.decode(), message.payload());
        }
        self.frames_sent += 1;
        self.bytes_sent += (message.header.len() + len) as u64;
        let to = header.destination().index();
        let Some(socket) = self.sockets.get(to) else {
            return;
        };
        socket.push(message);
        if self.threaded {
            socket.wake.notify();
        } else {
            self.kicked |= 1 << to;
        }
    }

    fn release_receive(&mut self, receive: ReceiveId) {
        let Some(place) = self.buffers.received.get_mut(receive.index()) else {
            return;
        };
        let Some(mut message) = place.take() else { return };
        self.free_received.push(receive.0);
        if let Some(buffer) = message.buffer.take() {
            self.buffers.pages.give(buffer);
        }
        self.messages.give(message);
    }

    fn interrupt(&mut self, whom: Interrupt) {
        match whom {
            Interrupt::Driver => self.driver.notify(),
            Interrupt::Port(port) => {
                if let Some(port) = self.ports.get(port.index()) {
                    port.notify();
                }
            }
        }
    }
}

impl Device for Board {
    fn now(&mut self) -> Nanos {
        self.engine.advance(self.now);
        self.now
    }

    fn poll_frame(&mut self) -> Option<Frame> {
        if self.arrived.is_empty() {
            self.sockets.get(self.node)?.take(&mut self.arrived);
        }
        let message = self.arrived.pop_front()?;
        Some(self.receive(message))
    }

    fn poll_dma(&mut self) -> Option<DmaEnd> {
        self.engine.pop_ended(&mut self.buffers)
    }

    fn poll_sent(&mut self) -> Option<StagingId> {
        self.sent.pop_front()
    }

    fn has_input(&mut self) -> bool {
        self.engine.has_ended()
            || !self.sent.is_empty()
            || !self.arrived.is_empty()
            || self
                .sockets
                .get(self.node)
                .is_some_and(|socket| !socket.is_empty())
    }
}
