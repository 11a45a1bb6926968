//! A card's surroundings: memory in vectors, and the platform that the NIC asks for DMAs. It checks
//! whatever the NIC asks for: slots, places in pages, mappings, receive buffers.

use crate::Words;
use netvm_abi::atomic::{Atomic, AtomicResult, Operand};
use netvm_abi::bar::BarMap;
use netvm_abi::shared_map::SharedMap;
use netvm_abi::wire::{Header, OwnHeader};
use netvm_abi::*;
use netvm_nic::platform::{Dma, DmaId, Interrupt, Operands, PageRange, Path, Payload, Place, Platform, Way};
use std::collections::{BTreeMap, HashSet, VecDeque};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A message on the wire.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// What follows.
    pub payload: Vec<u8>,
}

/// One node's surroundings.
pub struct Board {
    /// NIC memory.
    pub bar: Words,
    /// Driver memory.
    pub shared: Words,
    /// Application pages, by page frame.
    pub pages: BTreeMap<u64, Vec<u8>>,
    /// Staging buffers.
    pub staging: Vec<Vec<u8>>,
    /// Receive buffers that the NIC has, and their payloads.
    pub receive: BTreeMap<u32, Vec<u8>>,
    /// The number of the next receive buffer.
    pub next_receive: u32,
    /// Bounce pages that were written.
    pub bounce: BTreeMap<u32, Vec<u8>>,
    /// Operands of atomics.
    pub operands: Operands,
    /// DMAs that were started and have not ended.
    pub dmas: Vec<(DmaId, Dma)>,
    /// Staging buffers whose message has left.
    pub sent: VecDeque<StagingId>,
    /// Messages that were sent.
    pub outbox: VecDeque<Message>,
    /// Interrupts that were raised.
    pub interrupts: Vec<Interrupt>,
    /// Sizes.
    pub geometry: Geometry,
    /// Whether its wire may lose frames.
    pub lossy: bool,
    /// The largest payload that its paths take, in bytes.
    pub payload: u32,
    /// Whether its processor carries out atomics in place.
    pub in_place: bool,
    /// Pages that are reached without an entry of the table, by their number.
    pub reached: BTreeMap<u64, Vec<u8>>,
    /// Pages that are mapped, as a checker of its own sees them.
    pub mapped: HashSet<(u64, u64)>,
}

impl Platform for Board {
    type Bar = Words;
    type Shared = Words;
    fn bar(&self) -> &Words {
        &self.bar
    }
    fn shared(&self) -> &Words {
        &self.shared
    }
    fn start_dma(&mut self, id: DmaId, dma: Dma) {
        assert!(id.slot < 64);
        assert!(
            self.dmas.iter().all(|(other, _)| other.slot != id.slot),
            "slot in use"
        );
        let in_page = |offset: PageOffset, len: ByteLen| {
            assert!(
                len.0 > 0 && u32::from(offset.0) + len.0 <= PAGE_SIZE,
                "out of the page"
            );
        };
        match dma {
            Dma::PageToStaging { page, .. }
            | Dma::ReceiveToPage { page, .. }
            | Dma::PageToOperand { page }
            | Dma::OperandToPage { page } => {
                in_page(page.offset, page.len);
                assert!(
                    self.mapped.contains(&(page.vpn.raw(), page.ppn.0)),
                    "DMA to a page that is not mapped"
                );
            }
            Dma::ReceiveToBounce { bounce, len, .. } | Dma::BounceToStaging { bounce, len, .. } => {
                in_page(PageOffset(0), len);
                assert!(bounce.0 < self.geometry.bounce_slots());
            }
        }
        match dma {
            Dma::ReceiveToPage { receive, .. } | Dma::ReceiveToBounce { receive, .. } => {
                assert!(
                    self.receive.contains_key(&receive.0),
                    "receive buffer already released"
                );
            }
            _ => {}
        }
        self.dmas.push((id, dma));
    }
    fn operand(&self, slot: u8) -> Operand {
        self.operands.get(slot)
    }
    fn set_operand(&mut self, slot: u8, operand: &Operand) {
        self.operands.set(slot, operand);
    }
    fn applies_atomics(&self) -> bool {
        self.in_place
    }
    fn apply(&mut self, page: &PageRange, atomic: &Atomic) -> Option<AtomicResult> {
        let (from, len) = (usize::from(page.offset.0), page.len.index());
        assert!(len <= 8 && from.is_multiple_of(len), "no value in place");
        assert!(
            self.mapped.contains(&(page.vpn.raw(), page.ppn.0)),
            "an atomic on a page that is not mapped"
        );
        let bytes = &mut self.pages.get_mut(&page.ppn.0)?[from..from + len];
        let mut word = [0; 8];
        word[..len].copy_from_slice(bytes);
        let mut operand = [u64::from_le_bytes(word), 0, 0, 0];
        let (result, _) = atomic.apply(&mut operand);
        bytes.copy_from_slice(&operand[0].to_le_bytes()[..len]);
        Some(result)
    }
    fn reaches(&self) -> bool {
        !self.reached.is_empty()
    }
    fn reach(&mut self, place: &Place, way: Way) -> bool {
        let (from, len) = (usize::from(place.offset.0), place.len.index());
        let Some(page) = self.reached.get_mut(&place.vpn.raw()) else {
            return false;
        };
        let bytes = &mut page[from..from + len];
        match way {
            Way::In(receive) => bytes.copy_from_slice(&self.receive[&receive.0][..len]),
            Way::Out(staging) => self.staging[staging.index()][..len].copy_from_slice(bytes),
        }
        true
    }
    fn reach_and_apply(&mut self, place: &Place, atomic: &Atomic) -> Option<AtomicResult> {
        let (from, len) = (usize::from(place.offset.0), place.len.index());
        let bytes = &mut self.reached.get_mut(&place.vpn.raw())?[from..from + len];
        let mut word = [0; 8];
        word[..len].copy_from_slice(bytes);
        let mut operand = [u64::from_le_bytes(word), 0, 0, 0];
        let (result, _) = atomic.apply(&mut operand);
        bytes.copy_from_slice(&operand[0].to_le_bytes()[..len]);
        Some(result)
    }
    fn path_to(&mut self, _node: NodeId, _life: Incarnation) -> Path {
        Path {
            loses_frames: self.lossy,
            payload: self.payload,
        }
    }
    fn transmit(&mut self, header: &OwnHeader, payload: Payload<'_>) {
        let header = &header.decode();
        let len = usize::from(header.len);
        let bytes = match payload {
            Payload::Empty => {
                assert_eq!(len, 0);
                Vec::new()
            }
            Payload::Inline(words) => words
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .take(len)
                .collect(),
            Payload::Staging(staging) | Payload::Kept(staging) => {
                self.sent.push_back(staging);
                self.staging[staging.index()][..len].to_vec()
            }
        };
        assert_eq!(bytes.len(), len);
        self.outbox.push_back(Message {
            header: *header,
            payload: bytes,
        });
    }
    fn release_receive(&mut self, receive: ReceiveId) {
        assert!(self.receive.remove(&receive.0).is_some(), "released twice");
    }
    fn interrupt(&mut self, whom: Interrupt) {
        self.interrupts.push(whom);
    }
}

impl Board {
    /// Surroundings in which nothing is mapped.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self {
            bar: Words::new(BarMap::new(&geometry).words),
            shared: Words::new(SharedMap::new(&geometry).words),
            pages: BTreeMap::new(),
            staging: vec![vec![0; PAGE]; usize::from(geometry.staging)],
            receive: BTreeMap::new(),
            next_receive: 0,
            bounce: BTreeMap::new(),
            dmas: Vec::new(),
            sent: VecDeque::new(),
            operands: Operands::new(),
            outbox: VecDeque::new(),
            interrupts: Vec::new(),
            geometry,
            lossy: false,
            payload: PAGE_SIZE,
            in_place: false,
            reached: BTreeMap::new(),
            mapped: HashSet::new(),
        }
    }

    /// A frame comes in: its buffer, which holds `payload`.
    pub fn receive(&mut self, payload: Vec<u8>) -> ReceiveId {
        let receive = ReceiveId(self.next_receive);
        self.next_receive += 1;
        self.receive.insert(receive.0, payload);
        receive
    }

    /// Moves the bytes of a DMA.
    ///
    /// # Panics
    /// It names memory that is not there.
    pub fn do_dma(&mut self, id: DmaId, dma: Dma) {
        match dma {
            Dma::PageToStaging { page, staging } => {
                let (from, len) = (usize::from(page.offset.0), page.len.index());
                let bytes = self.pages[&page.ppn.0][from..from + len].to_vec();
                self.staging[staging.index()][..len].copy_from_slice(&bytes);
            }
            Dma::ReceiveToPage { receive, page } => {
                let (to, len) = (usize::from(page.offset.0), page.len.index());
                let bytes = self.receive[&receive.0][..len].to_vec();
                self.pages.get_mut(&page.ppn.0).unwrap()[to..to + len].copy_from_slice(&bytes);
            }
            Dma::ReceiveToBounce { receive, bounce, len } => {
                let bytes = self.receive[&receive.0][..len.index()].to_vec();
                self.bounce.insert(bounce.0, bytes);
            }
            Dma::BounceToStaging { bounce, staging, len } => {
                let bytes = self.bounce[&bounce.0][..len.index()].to_vec();
                self.staging[staging.index()][..len.index()].copy_from_slice(&bytes);
            }
            Dma::PageToOperand { page } => {
                let (from, len) = (usize::from(page.offset.0), page.len.index());
                let bytes = &self.pages[&page.ppn.0][from..from + len];
                let operand = self.operands.bytes(id.slot, page.len).unwrap();
                operand.copy_from_slice(bytes);
            }
            Dma::OperandToPage { page } => {
                let (to, len) = (usize::from(page.offset.0), page.len.index());
                let operand = self.operands.bytes(id.slot, page.len).unwrap();
                self.pages.get_mut(&page.ppn.0).unwrap()[to..to + len].copy_from_slice(operand);
            }
        }
    }
}
