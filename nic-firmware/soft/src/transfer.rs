//! What one DMA moves: from a page to a staging buffer, from a received message to a page, or through a bounce page.

use std::sync::Arc;

use netvm_abi::atomic::{Atomic, AtomicResult};
use netvm_abi::{BounceId, StagingId};
use netvm_memory::change::change;
use netvm_memory::copy;
use netvm_nic::platform::{Dma, DmaId, Operands, PageRange};

use crate::PAGE_BYTES;
use crate::memory::SharedPages;
use crate::message::{Buffer, Message, Spare};

/// The buffers that DMAs move payload to and from.
#[derive(Debug)]
pub struct Buffers {
    /// By `StagingId`; the card has one while it has something in it.
    pub staging: Vec<Option<Box<Buffer>>>,
    /// Unused messages and buffers.
    pub spare: Spare,
    /// Received messages by `ReceiveId`.
    pub received: Vec<Option<Box<Message>>>,
    /// The bounce pages.
    pub bounce: Arc<SharedPages>,
    /// Operands of atomics.
    pub operands: Operands,
}

/// Copies; false where the core asked for bytes that do not exist. `page` is where the application's page lies, if the DMA
/// is about one.
///
/// # Safety
/// A page from `page` on is mapped for what the DMA does, and the card has it locked; no references to it exist.
pub unsafe fn transfer(id: DmaId, dma: &Dma, page_at: Option<*mut u8>, buffers: &mut Buffers) -> bool {
    match *dma {
        Dma::PageToStaging { page, staging } => {
            let Some((at, len)) = in_page(page_at, &page) else {
                return false;
            };
            let Some(target) = staging_slice(buffers, staging, len) else {
                return false;
            };
            // SAFETY: the page is the caller's promise, and `at` with `len` bytes lies inside; `target` is the card's own.
            unsafe { copy::copy_out(at, target) };
        }
        Dma::ReceiveToPage { receive, page } => {
            let Some((at, len)) = in_page(page_at, &page) else {
                return false;
            };
            let Some(source) = payload(buffers, receive.index(), len) else {
                return false;
            };
            // SAFETY: as above; the source is the card's own.
            unsafe { copy::copy_in(source, at) };
        }
        Dma::ReceiveToBounce { receive, bounce, len } => {
            let Some(target) = buffers.bounce.page(bounce.0) else {
                return false;
            };
            let Some(source) = payload(buffers, receive.index(), len.index()) else {
                return false;
            };
            // SAFETY: a bounce page is a page long, and `payload` never gives more than one.
            unsafe { copy::copy_in(source, target) };
        }
        Dma::BounceToStaging { bounce, staging, len } => {
            let Some(source) = bounce_page(buffers, bounce) else {
                return false;
            };
            let Some(target) = staging_slice(buffers, staging, len.index()) else {
                return false;
            };
            // SAFETY: a bounce page and a staging buffer are a page long each, and `target` is not longer.
            unsafe { copy::copy_out(source, target) };
        }
        Dma::PageToOperand { page } | Dma::OperandToPage { page } => {
            let Some((at, _)) = in_page(page_at, &page) else {
                return false;
            };
            let Some(operand) = buffers.operands.bytes(id.slot, page.len) else {
                return false;
            };
            if matches!(dma, Dma::PageToOperand { .. }) {
                // SAFETY: as for a whole page; the operand is the card's own.
                unsafe { copy::copy_out(at, operand) };
            } else {
                // SAFETY: as above.
                unsafe { copy::copy_in(operand, at) };
            }
        }
    }
    true
}

/// Carries out an atomic of up to 8 bytes in memory, by the processor; `None` if its operand is larger or not aligned.
///
/// # Safety
/// `at` is mapped to be written for the bytes of the operand, and no reference to them exists, except to atomics.
pub unsafe fn apply(at: *mut u8, atomic: &Atomic) -> Option<AtomicResult> {
    let mut result = AtomicResult::default();
    let new = |old| changed(atomic, old, &mut result);
    // SAFETY: the caller's promise.
    unsafe { change(at, atomic.operand_bytes() as usize, new) }?;
    Some(result)
}

/// What an atomic makes of an operand of up to 8 bytes, and its answer.
pub fn changed(atomic: &Atomic, old: u64, result: &mut AtomicResult) -> u64 {
    let mut operand = [old, 0, 0, 0];
    (*result, _) = atomic.apply(&mut operand);
    let [new, ..] = operand;
    new
}

/// Where the part of a page lies that a DMA is about, and its length, if it lies inside of the page and the page was found.
#[inline]
#[must_use]
pub fn in_page(page_at: Option<*mut u8>, page: &PageRange) -> Option<(*mut u8, usize)> {
    let (offset, len) = (page.offset.index(), page.len.index());
    let inside = offset.checked_add(len).is_some_and(|end| end <= PAGE_BYTES);
    page_at
        .filter(|_| inside)
        .map(|at| (at.wrapping_add(offset), len))
}

/// The first bytes of a staging buffer, which gets its memory where it has none.
pub fn staging_slice(buffers: &mut Buffers, staging: StagingId, len: usize) -> Option<&mut [u8]> {
    let slot = buffers.staging.get_mut(staging.index())?;
    let buffer = slot.get_or_insert_with(|| buffers.spare.pages.take());
    buffer.0.get_mut(..len)
}

/// The first bytes of a received message's payload, if it has so many.
#[must_use]
pub fn payload(buffers: &Buffers, receive: usize, len: usize) -> Option<&[u8]> {
    buffers.received.get(receive)?.as_ref()?.payload().get(..len)
}

fn bounce_page(buffers: &Buffers, bounce: BounceId) -> Option<*const u8> {
    Some(buffers.bounce.page(bounce.0)?.cast_const())
}
