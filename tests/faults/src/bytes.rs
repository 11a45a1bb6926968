//! What lies in pages, frames and buffers: the board moves bytes as the DMAs say that the core starts, and as the host
//! copies. What may lie where is not known here: the tests that
//! compare bring a reference of their own.

use netvm_abi::wire::{HEADER_BYTES, Header};
use netvm_abi::{BounceId, ByteLen, PAGE_SIZE, PageOffset, ReceiveId, Vpn};
use netvm_nic::platform::{Dma, Operands, PageRange, Payload};
use std::collections::HashMap;

const PAGE: usize = PAGE_SIZE as usize;

/// A message that has left, and its payload.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its header.
    pub header: Header,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// All bytes.
#[derive(Default)]
pub struct Bytes {
    pages: HashMap<u64, Box<[u8; PAGE]>>,
    frames: HashMap<u32, Vec<u8>>,
    bounces: HashMap<u32, Vec<u8>>,
    staging: HashMap<u16, Vec<u8>>,
    /// What has left and was not looked at.
    pub sent: Vec<Sent>,
}

/// What a page holds before anything lands there: no two runs of eight bytes are the same.
#[must_use]
pub fn original(vpn: Vpn, offset: usize) -> u8 {
    let word = (vpn.raw() << 9 | (offset / 8) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    word.to_le_bytes()[offset % 8]
}

/// Replaces the beginning of `all` by `some`; what lies behind stays, as in a buffer that is used again.
fn fill(all: &mut Vec<u8>, some: &[u8]) {
    if all.len() < some.len() {
        all.resize(some.len(), 0);
    }
    all[..some.len()].copy_from_slice(some);
}

impl Bytes {
    /// The bytes of a page.
    pub fn page(&mut self, vpn: Vpn) -> &mut [u8; PAGE] {
        self.pages
            .entry(vpn.raw())
            .or_insert_with(|| Box::new(std::array::from_fn(|at| original(vpn, at))))
    }

    /// Pages that something was read of, or has landed in.
    pub fn touched(&self) -> impl Iterator<Item = (Vpn, &[u8; PAGE])> {
        self.pages
            .iter()
            .map(|(&vpn, page)| (Vpn::from_raw(vpn), &**page))
    }

    fn range(&mut self, range: &PageRange) -> &mut [u8] {
        let first = usize::from(range.offset.0);
        &mut self.page(range.vpn)[first..first + range.len.index()]
    }

    pub(crate) fn arrived(&mut self, id: ReceiveId, frame: &[u8]) {
        let payload = frame.get(HEADER_BYTES..).unwrap_or_default();
        self.frames.insert(id.0, payload.to_vec());
    }

    pub(crate) fn released(&mut self, id: ReceiveId) {
        self.frames.remove(&id.0);
    }

    pub(crate) fn left(&mut self, header: &Header, payload: Payload<'_>) {
        let len = usize::from(header.len);
        let payload = match payload {
            Payload::Empty => Vec::new(),
            Payload::Inline(words) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                bytes[..len].to_vec()
            }
            // One that nothing was moved into holds zeros.
            Payload::Staging(staging) | Payload::Kept(staging) => {
                let all = self.staging.get(&staging.0).and_then(|all| all.get(..len));
                all.map_or_else(|| vec![0; len], <[u8]>::to_vec)
            }
        };
        self.sent.push(Sent {
            header: *header,
            payload,
        });
    }

    /// A DMA has ended well.
    pub(crate) fn moved(&mut self, slot: u8, dma: &Dma, operands: &mut Operands) {
        match *dma {
            Dma::PageToStaging { page, staging } => {
                let from = self.range(&page).to_vec();
                fill(self.staging.entry(staging.0).or_default(), &from);
            }
            Dma::BounceToStaging { bounce, staging, len } => {
                let from = self.bounces[&bounce.0][..len.index()].to_vec();
                fill(self.staging.entry(staging.0).or_default(), &from);
            }
            Dma::ReceiveToPage { receive, page } => {
                let from = self.frames[&receive.0][..page.len.index()].to_vec();
                self.range(&page).copy_from_slice(&from);
            }
            Dma::ReceiveToBounce { receive, bounce, len } => {
                let from = self.frames[&receive.0][..len.index()].to_vec();
                fill(self.bounces.entry(bounce.0).or_default(), &from);
            }
            Dma::PageToOperand { page } => {
                if let Some(to) = operands.bytes(slot, page.len) {
                    to.copy_from_slice(self.range(&page));
                }
            }
            Dma::OperandToPage { page } => {
                if let Some(from) = operands.bytes(slot, page.len) {
                    self.range(&page).copy_from_slice(from);
                }
            }
        }
    }

    /// The host copies what was bounced to where the record says.
    pub(crate) fn landed(&mut self, bounce: BounceId, record: &Header) {
        let vpn = Vpn::of(record.destination_port, record.address);
        let first = usize::from(record.address.page_offset().0);
        let from = self.bounces[&bounce.0][..usize::from(record.len)].to_vec();
        self.page(vpn)[first..first + from.len()].copy_from_slice(&from);
    }

    /// The host copies what a message is to bring.
    pub(crate) fn sourced(&mut self, bounce: BounceId, vpn: Vpn, offset: PageOffset, len: ByteLen) {
        let first = usize::from(offset.0);
        let from = self.page(vpn)[first..first + len.index()].to_vec();
        fill(self.bounces.entry(bounce.0).or_default(), &from);
    }
}
