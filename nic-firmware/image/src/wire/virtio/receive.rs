//! Frames that arrive.

use super::{BUFFERS, DEVICE_HEADER, QUEUE, Queue};
use crate::arena::Arena;
use crate::wire::nodes;
use core::sync::atomic::{Ordering, fence};
use netvm_abi::ReceiveId;
use netvm_abi::frame::{Endpoint, HEAD_BYTES, MAX_FRAME_BYTES, OUTER_BYTES, decode};
use netvm_fw_common::memory::RECEIVE_BYTES;
use netvm_platform::Frame;
use virtio_drivers::transport::Transport;

/// Bytes before the device's header, so that payload is aligned to 8 bytes.
const PAD: usize = 6;
const _: () = assert!((PAD + DEVICE_HEADER + HEAD_BYTES).is_multiple_of(8));
/// Frames of others that one poll throws away at most.
const REFUSALS: u32 = 8;

/// A receive buffer.
#[repr(C, align(64))]
struct Buffer {
    pad: [u8; PAD],
    bytes: [u8; DEVICE_HEADER + MAX_FRAME_BYTES],
    /// Whose it is.
    owner: Owner,
}

const _: () = assert!(size_of::<Buffer>() == RECEIVE_BYTES);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Device,
    /// The core has it, with this many bytes of payload.
    Core(u16),
}

/// The queue of what arrives, and its buffers.
pub(super) struct Receiver {
    queue: Queue,
    buffers: &'static mut [Buffer],
    /// The buffer behind each token of the queue.
    tokens: &'static mut [u16],
    /// Buffers were given to the device that it has not been told of.
    untold: bool,
    pub(super) refused: u32,
}

impl Receiver {
    /// Gives the device all buffers; nothing where it does not take them.
    pub(super) fn new(arena: &mut Arena, queue: Queue) -> Option<Self> {
        let mut receiver = Self {
            queue,
            buffers: arena.slice(BUFFERS, 64, |_| Buffer {
                pad: [0; PAD],
                bytes: [0; DEVICE_HEADER + MAX_FRAME_BYTES],
                owner: Owner::Device,
            }),
            tokens: arena.slice(QUEUE, 8, |_| 0),
            untold: false,
            refused: 0,
        };
        receiver.interrupts(false);
        (0..BUFFERS as u16)
            .all(|index| receiver.give(index))
            .then_some(receiver)
    }

    /// Gives a buffer to the device.
    fn give(&mut self, index: u16) -> bool {
        let Some(buffer) = self.buffers.get_mut(usize::from(index)) else {
            return false;
        };
        buffer.owner = Owner::Device;
        // SAFETY: the buffer stays for ever, and its owner says that only the device touches its bytes until
        // `poll` takes it back.
        let Ok(token) = (unsafe { self.queue.add(&[], &mut [&mut buffer.bytes]) }) else {
            return false;
        };
        if let Some(place) = self.tokens.get_mut(usize::from(token)) {
            *place = index;
        }
        self.untold = true;
        true
    }

    /// Tells the device of new buffers, if it wants to know.
    pub(super) fn tell(&mut self, transport: &mut impl Transport) {
        if core::mem::take(&mut self.untold) && self.queue.should_notify() {
            transport.notify(0);
        }
    }

    /// The next message for this node.
    pub(super) fn poll(&mut self, own: &Endpoint) -> Option<Frame> {
        for _ in 0..REFUSALS {
            let token = self.queue.peek_used()?;
            let index = *self.tokens.get(usize::from(token))?;
            let buffer = self.buffers.get_mut(usize::from(index))?;
            // SAFETY: this buffer was added with this token.
            let len = unsafe { self.queue.pop_used(token, &[], &mut [&mut buffer.bytes]) }.ok()?;
            let bytes = buffer.bytes.get(DEVICE_HEADER..len as usize).unwrap_or_default();
            let message = match decode(bytes) {
                Ok(frame) if frame.to == *own && frame.from == nodes::endpoint(frame.header.source) => {
                    buffer.owner = Owner::Core(frame.header.len);
                    bytes.get(OUTER_BYTES..)
                }
                _ => None,
            };
            if let Some(message) = message {
                let len = message.len();
                return Some(Frame::new(ReceiveId(index.into()), message, len));
            }
            self.refused += 1;
            self.give(index);
        }
        None
    }

    /// Payload of a message that the core has.
    pub(super) fn payload(&self, receive: ReceiveId, len: usize) -> Option<&[u8]> {
        let buffer = self.buffers.get(receive.index())?;
        let Owner::Core(there) = buffer.owner else {
            return None;
        };
        let start = DEVICE_HEADER + HEAD_BYTES;
        buffer.bytes.get(start..start + usize::from(there))?.get(..len)
    }

    /// The core is done with a message.
    pub(super) fn release(&mut self, receive: ReceiveId) {
        let held = self
            .buffers
            .get(receive.index())
            .is_some_and(|buffer| buffer.owner != Owner::Device);
        if held {
            // There is a descriptor for each buffer.
            self.give(receive.0 as u16);
        }
    }

    pub(super) fn has_input(&self) -> bool {
        self.queue.can_pop()
    }

    /// Whether the device shall interrupt for what arrives from now on. The caller that switches it on looks at
    /// [`Self::has_input`] afterwards: the barrier orders that look behind the switch, as the device orders its look
    /// at the switch behind what it brought (virtio 1.1, 2.6.7).
    pub(super) fn interrupts(&mut self, on: bool) {
        self.queue.set_dev_notify(on);
        fence(Ordering::SeqCst);
    }
}
