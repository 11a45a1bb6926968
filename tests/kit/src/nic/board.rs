//! A card's surroundings: memory in vectors, and the platform that the NIC asks for DMAs. It checks
//! whatever the NIC asks for: slots, places in pages, mappings, receive buffers.

use netvm_abi::atomic::Operand;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::wire::{Header, OwnHeader};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_nic::platform::{Dma, DmaId, Interrupt, Operands, Payload, Platform};
use std::cell::Cell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32;

/// Tables on the heap.
pub struct Heap;

/// A table that counts how often it is looked at: see [`looks`].
pub struct Counted<T>(Box<[T]>);

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has looked at any table so far: a measure of a step's work.
pub fn looks() -> u64 {
    LOOKS.get()
}

impl<T> Deref for Counted<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        LOOKS.set(LOOKS.get() + 1);
        &self.0
    }
}

impl<T> DerefMut for Counted<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        LOOKS.set(LOOKS.get() + 1);
        &mut self.0
    }
}

impl Storage for Heap {
    type Table<T: 'static> = Counted<T>;
}

impl MakeTable for Heap {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Counted<T> {
        Counted((0..len).map(make).collect())
    }
}

pub const PAGE: usize = 4096;

/// Words that may be told to answer differently each time (hostile descriptor memory).
pub struct Words {
    pub words: Vec<AtomicU32>,
    /// Words of this range are scrambled on every load.
    pub flicker: Option<(std::ops::Range<u32>, std::cell::Cell<u32>)>,
}

impl Words {
    pub fn new(count: u32) -> Self {
        Self {
            words: (0..count).map(|_| AtomicU32::new(0)).collect(),
            flicker: None,
        }
    }
}

impl SharedWords for Words {
    fn load_acquire(&self, at: WordIndex) -> u32 {
        let value = self.words.load_acquire(at);
        match &self.flicker {
            Some((range, state)) if range.contains(&at.0) => {
                let mut x = state.get();
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                state.set(x);
                // Mostly a changed bit or two, sometimes anything.
                if x % 8 == 0 {
                    x
                } else {
                    value ^ (1 << ((x >> 8) % 32))
                }
            }
            _ => value,
        }
    }
    fn store_release(&self, at: WordIndex, value: u32) {
        self.words.store_release(at, value);
    }
    fn full_barrier(&self) {
        self.words.full_barrier();
    }
    fn bus_barrier(&self) {
        self.words.bus_barrier();
    }
}

/// A message on the wire.
#[derive(Clone, Debug)]
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
}

/// One node's surroundings.
pub struct Board {
    pub bar: Words,
    pub shared: Words,
    pub pages: BTreeMap<u64, Vec<u8>>,
    pub staging: Vec<Vec<u8>>,
    pub receive: BTreeMap<u32, Vec<u8>>,
    pub next_receive: u32,
    pub bounce: BTreeMap<u32, Vec<u8>>,
    pub operands: Operands,
    pub dmas: Vec<(DmaId, Dma)>,
    pub sent: VecDeque<StagingId>,
    pub outbox: VecDeque<Message>,
    pub interrupts: Vec<Interrupt>,
    pub geometry: Geometry,
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
            Payload::Staging(staging) => {
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
