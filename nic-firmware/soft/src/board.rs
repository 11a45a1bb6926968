//! A card's surroundings: what the NIC core asks for ([`Platform`]) and what its loop asks for ([`Device`]).

use std::collections::VecDeque;
use std::sync::Arc;

use netvm_abi::atomic::{Atomic, AtomicResult, Operand};
use netvm_abi::wire::OwnHeader;
use netvm_abi::{Incarnation, Nanos, NodeId, ReceiveId, StagingId};
use netvm_nic::platform::{Dma, DmaId, Interrupt, PageRange, Path, Payload, Place, Platform, Way};
use netvm_platform::{Device, DmaEnd, Frame};

use crate::event_count::EventCount;
use crate::memory::WordSpace;
use crate::message::{Message, SMALL_BYTES};
use crate::transfer::Buffers;
use crate::wire::Wire;

/// What moves a card's payload to and from application pages.
pub trait Engine: Send {
    /// Starts a DMA.
    fn start(&mut self, now: Nanos, id: DmaId, dma: Dma);

    /// The time has come to this: what is due gets ready to end.
    fn advance(&mut self, now: Nanos);

    /// Ends the next DMA that is ready: its bytes are copied when this returns.
    fn pop_ended(&mut self, buffers: &mut Buffers) -> Option<DmaEnd>;

    /// Whether [`apply`](Self::apply) does something.
    fn applies_atomics(&self) -> bool {
        false
    }

    /// As [`Platform::apply`].
    fn apply(&mut self, page: &PageRange, atomic: &Atomic) -> Option<AtomicResult> {
        let _ = (page, atomic);
        None
    }

    /// As [`Platform::reaches`].
    fn reaches(&self) -> bool {
        false
    }

    /// As [`Platform::reach`].
    fn reach(&mut self, place: &Place, way: Way, buffers: &mut Buffers) -> bool {
        let _ = (place, way, buffers);
        false
    }

    /// As [`Platform::reach_and_apply`].
    fn reach_and_apply(&mut self, place: &Place, atomic: &Atomic) -> Option<AtomicResult> {
        let _ = (place, atomic);
        None
    }

    /// Whether [`pop_ended`](Self::pop_ended) has something.
    fn has_ended(&self) -> bool;

    /// When the next DMA that is under way is due.
    fn next_due(&self) -> Option<Nanos>;

    /// Stops bus mastering: what flies is dropped, nothing new touches the host.
    fn halt(&mut self);

    /// Payload bytes moved to or from application pages so far.
    fn page_bytes(&self) -> u64;
}

/// What one card can reach.
#[derive(Debug)]
pub struct Board<E, W> {
    pub(crate) bar: Arc<WordSpace>,
    pub(crate) shared: Arc<WordSpace>,
    /// Moves payload.
    pub engine: E,
    pub(crate) buffers: Buffers,
    pub(crate) free_received: Vec<u32>,
    pub(crate) sent: VecDeque<StagingId>,
    /// Carries messages.
    pub wire: W,
    pub(crate) driver: Arc<EventCount>,
    /// Where a thread that runs the card hears for the driver: whether the driver was interrupted. Nothing: an interrupt notifies it.
    pub noted: Option<bool>,
    pub(crate) ports: Arc<[EventCount]>,
    /// The time: the thread that runs the card sets it, once for several passes.
    pub now: Nanos,
    /// Messages sent.
    pub frames_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
}

impl<E: Engine, W: Wire> Board<E, W> {
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

impl<E: Engine, W: Wire> Platform for Board<E, W> {
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

    fn applies_atomics(&self) -> bool {
        self.engine.applies_atomics()
    }

    fn apply(&mut self, page: &PageRange, atomic: &Atomic) -> Option<AtomicResult> {
        self.engine.apply(page, atomic)
    }

    fn reaches(&self) -> bool {
        self.engine.reaches()
    }

    fn reach(&mut self, place: &Place, way: Way) -> bool {
        self.engine.reach(place, way, &mut self.buffers)
    }

    fn reach_and_apply(&mut self, place: &Place, atomic: &Atomic) -> Option<AtomicResult> {
        self.engine.reach_and_apply(place, atomic)
    }

    fn path_to(&mut self, node: NodeId, life: Incarnation) -> Path {
        self.wire.path_to(node, life)
    }

    fn transmit(&mut self, header: &OwnHeader, payload: Payload<'_>) {
        let len = usize::from(header.payload_len());
        let mut message = self.buffers.spare.messages.take();
        message.header = header.to_bytes();
        message.len = len;
        match payload {
            Payload::Empty => {}
            Payload::Inline(words) if len <= SMALL_BYTES => copy_words(words, &mut message.small),
            Payload::Inline(words) => {
                let mut buffer = self.buffers.spare.pages.take();
                copy_words(words, &mut buffer.0);
                message.buffer = Some(buffer);
            }
            Payload::Staging(staging) => {
                // The buffer itself goes; the slot is free at once, and gets another one when it needs one.
                let slot = self.buffers.staging.get_mut(staging.index());
                message.buffer = slot.and_then(Option::take);
                self.sent.push_back(staging);
            }
            Payload::Kept(staging) => {
                if let Some(Some(kept)) = self.buffers.staging.get(staging.index()) {
                    let mut copy = self.buffers.spare.pages.take();
                    for (to, from) in copy.0.iter_mut().zip(&kept.0).take(len) {
                        *to = *from;
                    }
                    message.buffer = Some(copy);
                }
                self.sent.push_back(staging);
            }
        }
        self.frames_sent += 1;
        self.bytes_sent += (message.header.len() + len) as u64;
        if let Some(message) = self.wire.send(self.now, header.destination(), message) {
            self.buffers.spare.give(message);
        }
    }

    fn release_receive(&mut self, receive: ReceiveId) {
        let Some(place) = self.buffers.received.get_mut(receive.index()) else {
            return;
        };
        let Some(message) = place.take() else { return };
        self.free_received.push(receive.0);
        self.buffers.spare.give(message);
    }

    fn interrupt(&mut self, whom: Interrupt) {
        match whom {
            Interrupt::Driver => match &mut self.noted {
                Some(noted) => *noted = true,
                None => self.driver.notify(),
            },
            Interrupt::Port(port) => {
                if let Some(port) = self.ports.get(port.index()) {
                    port.notify();
                }
            }
        }
    }
}

impl<E: Engine, W: Wire> Device for Board<E, W> {
    fn now(&mut self) -> Nanos {
        self.engine.advance(self.now);
        self.now
    }

    fn poll_frame(&mut self) -> Option<Frame> {
        let message = self.wire.receive(&mut self.buffers.spare)?;
        Some(self.receive(message))
    }

    fn poll_dma(&mut self) -> Option<DmaEnd> {
        self.engine.pop_ended(&mut self.buffers)
    }

    fn poll_sent(&mut self) -> Option<StagingId> {
        self.sent.pop_front()
    }

    fn has_input(&mut self) -> bool {
        self.engine.has_ended() || !self.sent.is_empty() || self.wire.has_input()
    }
}
