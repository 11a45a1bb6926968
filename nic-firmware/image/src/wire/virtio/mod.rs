//! A virtio network device as the wire: NetVM messages in UDP over Ethernet.
//!
//! Payload is not copied here: a message leaves from its staging buffer, and stays in the buffer that it arrived in.
//! The queues are the virtio crate's. Its whole network driver is not used, because that takes a message in one piece.

pub(crate) mod hal;
mod receive;
mod send;

use super::{Wire, nodes};
use crate::arena::Arena;
use crate::{board, interrupts, mmu, pci};
use hal::Machine;
use netvm_abi::frame::Endpoint;
use netvm_abi::wire::OwnHeader;
use netvm_abi::{NodeId, ReceiveId, StagingId};
use netvm_platform::Frame;
use receive::Receiver;
use send::Sender;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};
use virtio_drivers::transport::{DeviceType, Transport};

/// Descriptors of a queue: as many as QEMU's device has.
const QUEUE: usize = 256;
/// Receive buffers of the default geometry: each takes a descriptor.
const BUFFERS: usize = netvm_fw_common::memory::receive_buffers(2, 64, 64);
const _: () = assert!(BUFFERS <= QUEUE);
/// Bytes before a frame in its buffer: the device's own header, all zeroes (no offloads).
const DEVICE_HEADER: usize = 12;

type Queue = VirtQueue<Machine, QUEUE>;

/// Why there is no wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No network device on the bus.
    NoDevice,
    /// Its registers found no place.
    NoPlace,
    /// The device does not do what the standard says, or has no queues as long as needed.
    Device,
}

bitflags::bitflags! {
    /// What the device may be asked for. Not taken: its event index, which the crate's queues compare wrongly when a
    /// counter passes 2^16.
    #[derive(Debug)]
    struct Features: u64 {
        /// A device of the standard's version 1.
        const VERSION_1 = 1 << 32;
    }
}

/// The wire.
pub(crate) struct Network {
    transport: PciTransport,
    receiver: Receiver,
    sender: Sender,
    own: Endpoint,
    interrupt: arm_gic::IntId,
}

impl Network {
    /// The first network device of the bus.
    ///
    /// # Errors
    /// There is none, or it cannot be used.
    pub(crate) fn start(
        arena: &mut Arena,
        map: &mut mmu::Map,
        bus: &mut pci::Bus,
        node: NodeId,
    ) -> Result<Self, Trouble> {
        let found = bus.find(|info| virtio_device_type(info) == Some(DeviceType::Network));
        let place = *found.first().ok_or(Trouble::NoDevice)?;
        bus.enable(map, place, None).ok_or(Trouble::NoPlace)?;
        let mut transport =
            PciTransport::new::<Machine, _>(&mut bus.root, place).map_err(|_| Trouble::Device)?;
        if !transport
            .begin_init(Features::VERSION_1)
            .contains(Features::VERSION_1)
        {
            return Err(Trouble::Device);
        }
        let mut queue = |index| Queue::new(&mut transport, index, false, false).map_err(|_| Trouble::Device);
        let (arriving, leaving) = (queue(0)?, queue(1)?);
        transport.finish_init();
        let mut receiver = Receiver::new(arena, arriving).ok_or(Trouble::Device)?;
        receiver.tell(&mut transport);
        Ok(Self {
            receiver,
            sender: Sender::new(arena, leaving),
            own: nodes::endpoint(node),
            interrupt: board::pci_interrupt(place.device),
            transport,
        })
    }

    /// Frames that were not for this node, or no messages of the node that they say they come from.
    pub(crate) const fn refused(&self) -> u32 {
        self.receiver.refused
    }

    /// Messages that found both the device's queue and this image's full.
    pub(crate) const fn lost(&self) -> u32 {
        self.sender.lost
    }

    /// Messages that wait because the device's queue is full.
    pub(crate) fn waiting(&self) -> usize {
        self.sender.waiting()
    }
}

impl Wire for Network {
    unsafe fn send(&mut self, header: &OwnHeader, payload: &[u8], staging: Option<StagingId>) {
        let to = nodes::endpoint(header.destination());
        let path = [&self.own, &to];
        // SAFETY: the same contract.
        unsafe {
            self.sender
                .send(&mut self.transport, path, header, payload, staging);
        }
    }

    fn poll_sent(&mut self) -> Option<StagingId> {
        self.sender.poll_sent(&mut self.transport)
    }

    fn poll(&mut self) -> Option<Frame> {
        if self.sender.is_congested() {
            return None;
        }
        let frame = self.receiver.poll(&self.own);
        self.receiver.tell(&mut self.transport);
        frame
    }

    fn payload<R>(&mut self, receive: ReceiveId, len: usize, take: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.receiver.payload(receive, len).map(take)
    }

    fn release(&mut self, receive: ReceiveId) {
        self.receiver.release(receive);
        self.receiver.tell(&mut self.transport);
    }

    fn has_input(&mut self) -> bool {
        // Frames that are not taken now do not keep the card awake: the device's end of a message does.
        self.receiver.has_input() && !self.sender.is_congested() || self.sender.has_sent()
    }

    fn arm(&mut self) {
        // What came before this is seen by the look that follows; what comes after it interrupts.
        self.receiver.interrupts(true);
        self.sender.interrupts(true);
        interrupts::expect(self.interrupt, true);
    }

    fn disarm(&mut self) {
        self.receiver.interrupts(false);
        self.sender.interrupts(false);
        // Reading it is what ends the device's interrupt.
        let _ = self.transport.ack_interrupt();
    }
}
