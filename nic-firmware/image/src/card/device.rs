//! What the core and its loop find around them: words, payload buffers, a DMA engine of the processor's own copies, a wire.

use crate::arena::Arena;
use crate::host::{Call, Shared};
use crate::wire::Wire;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use heapless::Deque;
use netvm_abi::atomic::Operand;
use netvm_abi::wire::OwnHeader;
use netvm_abi::{Geometry, Nanos, PAGE_SIZE, PageOffset, ReceiveId, StagingId};
use netvm_nic::Frame;
use netvm_nic::platform::{DMA_SLOTS, Dma, DmaId, Interrupt, Operands, Payload, Platform};
use netvm_platform::{Device, DmaEnd};
use zerocopy::IntoBytes as _;

const PAGE: usize = PAGE_SIZE as usize;
// Payload in a descriptor is words, of which the wire gets the bytes.
const _: () = assert!(cfg!(target_endian = "little"), "the wire is little-endian");

/// A staging buffer.
#[repr(C, align(64))]
struct Staging([u8; PAGE]);

const _: () = assert!(size_of::<Staging>() == netvm_fw_common::memory::STAGING_BYTES);

/// A DMA that has been started. Words without gaps: the compiler would move a structure that begins with a byte as that
/// byte and an unaligned rest.
struct Started {
    dma: Dma,
    generation: u32,
    slot: u32,
}

impl Started {
    const fn new(id: DmaId, dma: Dma) -> Self {
        Self {
            dma,
            generation: id.generation,
            slot: id.slot as u32,
        }
    }
}

/// A card's surroundings.
pub(crate) struct Surroundings<W: Wire> {
    /// What it shares with its host.
    pub(crate) shared: Shared,
    /// How it calls the host.
    pub(crate) call: Call,
    /// The wire.
    pub(crate) wire: W,
    staging: &'static mut [Staging],
    /// DMAs that have been started; each copies when the loop asks for its end.
    started: Deque<Started, DMA_SLOTS>,
    /// Operands of atomics on their way.
    operands: Operands,
    /// Interrupts for the host.
    pub(crate) interrupts: u32,
    /// DMAs beyond those that the core said it would have.
    pub(crate) overflowed: u32,
}

impl<W: Wire> Surroundings<W> {
    pub(super) fn new(arena: &mut Arena, geometry: &Geometry, shared: Shared, wire: W) -> Self {
        Self {
            shared,
            call: Call::Unneeded,
            wire,
            staging: arena.slice(usize::from(geometry.staging), 64, |_| Staging([0; PAGE])),
            started: Deque::new(),
            operands: Operands::new(),
            interrupts: 0,
            overflowed: 0,
        }
    }

    /// Moves the bytes; false where the core asked for bytes that do not exist.
    fn transfer(&mut self, id: DmaId, dma: Dma) -> bool {
        let Shared { pages, bounce, .. } = self.shared;
        match dma {
            Dma::PageToStaging { page, staging } => self
                .staging
                .get_mut(staging.index())
                .and_then(|buffer| buffer.0.get_mut(..page.len.index()))
                .is_some_and(|to| pages.read(page.ppn.0, page.offset, to)),
            Dma::ReceiveToPage { receive, page } => {
                let write = |from: &[u8]| pages.write(page.ppn.0, page.offset, from);
                self.wire.payload(receive, page.len.index(), write) == Some(true)
            }
            Dma::ReceiveToBounce {
                receive,
                bounce: to,
                len,
            } => {
                let write = |from: &[u8]| bounce.write(u64::from(to.0), PageOffset(0), from);
                self.wire.payload(receive, len.index(), write) == Some(true)
            }
            Dma::BounceToStaging {
                bounce: from,
                staging,
                len,
            } => self
                .staging
                .get_mut(staging.index())
                .and_then(|buffer| buffer.0.get_mut(..len.index()))
                .is_some_and(|to| bounce.read(u64::from(from.0), PageOffset(0), to)),
            Dma::PageToOperand { page } => self
                .operands
                .bytes(id.slot, page.len)
                .is_some_and(|to| pages.read(page.ppn.0, page.offset, to)),
            Dma::OperandToPage { page } => self
                .operands
                .bytes(id.slot, page.len)
                .is_some_and(|from| pages.write(page.ppn.0, page.offset, from)),
        }
    }
}

impl<W: Wire> Platform for Surroundings<W> {
    type Bar = [AtomicU32];
    type Shared = [AtomicU32];

    #[inline]
    fn bar(&self) -> &[AtomicU32] {
        self.shared.bar
    }

    #[inline]
    fn shared(&self) -> &[AtomicU32] {
        self.shared.words
    }

    #[inline]
    fn start_dma(&mut self, id: DmaId, dma: Dma) {
        if self.started.push_back(Started::new(id, dma)).is_err() {
            self.overflowed += 1;
        }
    }

    fn operand(&self, slot: u8) -> Operand {
        self.operands.get(slot)
    }

    fn set_operand(&mut self, slot: u8, operand: &Operand) {
        self.operands.set(slot, operand);
    }

    fn transmit(&mut self, header: &OwnHeader, payload: Payload<'_>) {
        let len = usize::from(header.payload_len());
        let (bytes, staging) = match payload {
            Payload::Empty => (None, None),
            Payload::Inline(words) => (words.as_bytes().get(..len), None),
            Payload::Staging(id) | Payload::Kept(id) => {
                let buffer = self.staging.get(id.index());
                (buffer.and_then(|buffer| buffer.0.get(..len)), Some(id))
            }
        };
        // SAFETY: staging buffers stay for ever, and the core leaves one alone until it has been told that it was sent.
        unsafe { self.wire.send(header, bytes.unwrap_or_default(), staging) };
    }

    #[inline]
    fn release_receive(&mut self, receive: ReceiveId) {
        self.wire.release(receive);
    }

    fn interrupt(&mut self, _whom: Interrupt) {
        self.interrupts = self.interrupts.wrapping_add(1);
        self.call.interrupt();
    }
}

impl<W: Wire> Device for Surroundings<W> {
    fn now(&mut self) -> Nanos {
        crate::clock::now()
    }

    fn poll_frame(&mut self) -> Option<Frame> {
        self.wire.poll()
    }

    fn poll_dma(&mut self) -> Option<DmaEnd> {
        let Started {
            dma,
            generation,
            slot,
        } = self.started.pop_front()?;
        let id = DmaId {
            slot: slot as u8,
            generation,
        };
        let ok = self.transfer(id, dma);
        // The bytes stand before everything that the core says about them, and the loads of a page before its unlock.
        fence(Ordering::SeqCst);
        Some(DmaEnd { id, ok })
    }

    fn poll_sent(&mut self) -> Option<StagingId> {
        self.wire.poll_sent()
    }

    fn has_input(&mut self) -> bool {
        !self.started.is_empty() || self.wire.has_input()
    }
}
