//! What one DMA moves: from a page to a staging buffer, from a received message to a page, or through a bounce page.

use std::sync::Arc;

use netvm_abi::{BounceId, StagingId};
use netvm_nic::platform::{Dma, DmaId, Operands, PageRange};

use crate::copy;
use crate::memory::{Buffer, SharedPages, Stock};
use crate::vm::{DmaTicket, PAGE_SIZE};
use crate::wire::Message;

/// The buffers that DMAs move payload to and from.
pub(crate) struct Buffers {
    /// By `StagingId`; the card has one while it has something in it.
    pub(crate) staging: Vec<Option<Box<Buffer>>>,
    /// Unused buffers.
    pub(crate) pages: Stock<Box<Buffer>>,
    /// Received messages by `ReceiveId`.
    pub(crate) received: Vec<Option<Box<Message>>>,
    pub(crate) bounce: Arc<SharedPages>,
    pub(crate) operands: Operands,
}

/// Copies; false where the core asked for bytes that do not exist.
pub(crate) fn transfer(id: DmaId, dma: &Dma, ticket: Option<&DmaTicket>, buffers: &mut Buffers) -> bool {
    match *dma {
        Dma::PageToStaging { page, staging } => {
            let Some((ticket, offset, len)) = in_page(ticket, &page) else {
                return false;
            };
            let Some(target) = staging_slice(buffers, staging, len) else {
                return false;
            };
            // SAFETY: the ticket's page holds `offset + len` bytes and the card has it locked; `target` is the card's own.
            unsafe { copy::copy_out(ticket.alias().add(offset), target) };
        }
        Dma::ReceiveToPage { receive, page } => {
            let Some((ticket, offset, len)) = in_page(ticket, &page) else {
                return false;
            };
            let Some(source) = payload(buffers, receive.index(), len) else {
                return false;
            };
            // SAFETY: as above; the source is the card's own.
            unsafe { copy::copy_in(source, ticket.alias().add(offset)) };
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
            let Some((ticket, offset, _)) = in_page(ticket, &page) else {
                return false;
            };
            let Some(operand) = buffers.operands.bytes(id.slot, page.len) else {
                return false;
            };
            let at = ticket.alias().wrapping_add(offset);
            if matches!(dma, Dma::PageToOperand { .. }) {
                // SAFETY: the ticket's page holds `offset + len` bytes and the card has it locked; the operand is the card's own.
                unsafe { copy::copy_out(at, operand) };
            } else {
                // SAFETY: as above.
                unsafe { copy::copy_in(operand, at) };
            }
        }
    }
    true
}

/// The part of a page that a DMA is about, if it lies inside of the page and the page was found.
#[inline]
pub(crate) fn in_page<'a>(
    ticket: Option<&'a DmaTicket>,
    page: &PageRange,
) -> Option<(&'a DmaTicket, usize, usize)> {
    let (offset, len) = (page.offset.index(), page.len.index());
    let inside = offset.checked_add(len).is_some_and(|end| end <= PAGE_SIZE);
    ticket.filter(|_| inside).map(|ticket| (ticket, offset, len))
}

fn staging_slice(buffers: &mut Buffers, staging: StagingId, len: usize) -> Option<&mut [u8]> {
    let slot = buffers.staging.get_mut(staging.index())?;
    let buffer = slot.get_or_insert_with(|| buffers.pages.take());
    buffer.0.get_mut(..len)
}

fn payload(buffers: &Buffers, receive: usize, len: usize) -> Option<&[u8]> {
    buffers.received.get(receive)?.as_ref()?.payload().get(..len)
}

fn bounce_page(buffers: &Buffers, bounce: BounceId) -> Option<*const u8> {
    Some(buffers.bounce.page(bounce.0)?.cast_const())
}
