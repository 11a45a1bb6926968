//! The NIC's surroundings, which believe nothing: each DMA, each release and each message is checked against books that
//! the host and the attackers keep here.

use crate::bytes::Bytes;
use netvm_abi::atomic::{Atomic, AtomicResult, Operand};
use netvm_abi::bounce::BounceUse;
use netvm_abi::capability::Capability;
use netvm_abi::control::Modes;
use netvm_abi::page_table::PageEntry;
use netvm_abi::wire::{Header, Kind, MessageFlags, OwnHeader};
use netvm_abi::{
    BounceId, ByteLen, Geometry, Incarnation, Nanos, NodeId, PAGE_SIZE, PageOffset, ReceiveId, StagingId,
    VirtAddr, Vpn,
};
use netvm_kit::Words;
use netvm_nic::platform::{Dma, DmaId, Interrupt, Operands, PageRange, Path, Payload, Place, Platform, Way};
use std::collections::{HashMap, VecDeque};

/// What the board has counted, by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Messages sent, by kind's code.
    pub sent: [u64; 32],
    /// Payload bytes sent.
    pub bytes_sent: u64,
    /// DMAs to pages from receive buffers.
    pub to_pages: u64,
    /// Those of them that have ended well.
    pub in_pages: u64,
    /// DMAs of operands of atomics.
    pub operands: u64,
    /// DMAs to bounce pages, but for control messages.
    pub to_bounce: u64,
    /// DMAs of control messages to bounce pages.
    pub control_to_bounce: u64,
    /// Pages that were reached.
    pub reached: u64,
    /// DMAs to staging buffers.
    pub to_staging: u64,
    /// Interrupts for the driver.
    pub driver_interrupts: u64,
    /// Interrupts for ports.
    pub port_interrupts: u64,
}

/// The surroundings of the NIC.
pub struct Board {
    /// NIC memory.
    pub bar: Words,
    /// Driver memory.
    pub shared: Words,
    /// Sizes.
    pub geometry: Geometry,
    /// This node.
    pub node: NodeId,
    /// The time.
    pub now: Nanos,
    /// DMAs under way.
    pub dmas: Vec<(DmaId, Dma)>,
    /// Whether pages that are not mapped are reached, one in two, as by a card in the process whose memory it is. Not where bytes are
    /// compared.
    pub reaches: bool,
    /// Operands of atomics on their way.
    pub operands: Operands,
    /// Staging buffers that have left.
    pub left: VecDeque<StagingId>,
    /// Messages sent and not looked at.
    pub outbox: VecDeque<Header>,
    /// Receive buffers that the NIC has, and what is in them.
    pub receives: HashMap<u32, Option<Header>>,
    /// Pages that are mapped.
    pub mapped: HashMap<u64, PageEntry>,
    /// Capabilities that are live.
    pub capabilities: Vec<Option<Capability>>,
    /// Ports that have posted commands: their own pages may be read and written for them.
    pub posting: Vec<bool>,
    /// Whether atomics are carried out in place, as by a processor beside the NIC. Not where bytes are compared.
    pub in_place: bool,
    /// Counts.
    pub tally: Tally,
    /// What lies where, where a test compares it.
    pub bytes: Option<Bytes>,
    next_receive: u32,
}

impl Board {
    /// An empty board.
    #[must_use]
    pub fn new(geometry: Geometry, node: NodeId) -> Self {
        Self {
            bar: Words::new(netvm_abi::bar::BarMap::new(&geometry).words),
            shared: Words::new(netvm_abi::shared_map::SharedMap::new(&geometry).words),
            geometry,
            node,
            now: Nanos(0),
            dmas: Vec::new(),
            operands: Operands::new(),
            left: VecDeque::new(),
            outbox: VecDeque::new(),
            receives: HashMap::new(),
            mapped: HashMap::new(),
            capabilities: vec![None; geometry.capabilities as usize],
            posting: vec![false; usize::from(geometry.ports)],
            in_place: false,
            reaches: false,
            tally: Tally::default(),
            bytes: None,
            next_receive: 0,
        }
    }

    /// A frame comes in: its buffer.
    pub fn receive(&mut self, bytes: &[u8]) -> ReceiveId {
        let id = self.next_receive;
        self.next_receive = id.wrapping_add(1);
        self.receives.insert(id, Header::decode(bytes).ok());
        if let Some(all) = &mut self.bytes {
            all.arrived(ReceiveId(id), bytes);
        }
        ReceiveId(id)
    }

    /// A DMA has ended well.
    pub(crate) fn moved(&mut self, id: DmaId, dma: &Dma) {
        if let Some(all) = &mut self.bytes {
            all.moved(id.slot, dma, &mut self.operands);
        }
    }

    /// The mapped page of a DMA, inside of which it stays.
    fn page(&self, page: &PageRange) -> PageEntry {
        in_page(page.offset, page.len);
        let entry = self.mapped.get(&page.vpn.raw());
        let entry = *entry.unwrap_or_else(|| panic!("DMA to {}, which is not mapped", page.vpn));
        assert_eq!(
            entry.ppn, page.ppn,
            "DMA to another frame than that of {}",
            page.vpn
        );
        entry
    }

    fn buffer(&self, receive: ReceiveId) -> &Header {
        let header = self.receives.get(&receive.0);
        let header = header.expect("DMA from a buffer that the NIC has given back");
        header.as_ref().expect("DMA of bytes that are no message")
    }

    /// Whether a page that is not mapped is reached: whether it is there.
    fn is_there(&self, place: &Place) -> bool {
        in_page(place.offset, place.len);
        assert!(
            !self.mapped.contains_key(&place.vpn.raw()),
            "a page that is mapped is reached without its entry"
        );
        place.vpn.raw() & 1 == 0
    }

    /// Whether some live capability lets another node do this. Of a page that is mapped, its segment has to be the capability's.
    fn granted(&self, vpn: Vpn, start: u64, len: u64, mode: Modes, entry: Option<&PageEntry>) -> bool {
        self.capabilities.iter().flatten().any(|capability| {
            capability.port == vpn.port()
                && entry.is_none_or(|entry| capability.segment == entry.segment)
                && capability.modes.contains(mode)
                && capability.start.0 <= start
                && start + len <= capability.end.0
        })
    }

    fn check_operand(&self, page: &PageRange) {
        let entry = self.page(page);
        assert!(entry.writable, "an atomic on a page that is read-only");
        self.check_value(&place_of(page), Some(&entry));
    }

    fn check_value(&self, place: &Place, entry: Option<&PageEntry>) {
        let (start, len) = (start_of(place), u64::from(place.len.0));
        assert!(
            matches!(len, 1 | 2 | 4 | 8 | 32) && start.is_multiple_of(len),
            "an operand that is not aligned"
        );
        assert!(
            self.granted(place.vpn, start, len, Modes::ATOMIC, entry),
            "an operand that no port may change: {}",
            place.vpn
        );
    }

    fn check_write(&self, header: &Header, page: &Place, entry: Option<&PageEntry>) {
        assert_eq!(page.vpn.port(), header.destination_port, "a page of another port");
        if !header.flags.contains(MessageFlags::APPEND) {
            assert_eq!(start_of(page), header.address.0, "another place");
        }
        assert_eq!(page.len, ByteLen(u32::from(header.len)), "another length");
        let capability = self
            .capabilities
            .get(header.capability.index())
            .copied()
            .flatten()
            .expect("a write without a capability");
        assert_eq!(capability.secret, header.secret, "a wrong secret");
        assert_eq!(
            capability.port, header.destination_port,
            "a capability of another port"
        );
        assert!(
            entry.is_none_or(|entry| capability.segment == entry.segment),
            "a page of another segment"
        );
        assert_eq!(
            (capability.holder, capability.holder_port),
            (header.source, header.source_port),
            "a capability of another holder"
        );
        if header.flags.contains(MessageFlags::APPEND) {
            let places = capability.queue.places(capability.start, capability.end);
            assert!(
                places.is_some() && capability.modes.contains(Modes::APPEND),
                "an append to no queue"
            );
            let (start, entry) = (start_of(page), u64::from(capability.queue.entry_bytes()));
            let inside = capability.start.0 <= start && start < capability.end.0;
            assert!(inside && start.is_multiple_of(entry), "no place of the queue");
            assert!(u64::from(page.len.0) <= entry, "an append across places");
            return;
        }
        assert!(
            capability.modes.contains(Modes::WRITE),
            "a write with a capability to read"
        );
        let end = header.address.0 + u64::from(header.len);
        assert!(
            capability.start <= header.address && VirtAddr(end) <= capability.end,
            "out of range"
        );
    }
}

/// The address of the first byte in the space of its port.
fn start_of(place: &Place) -> u64 {
    place.vpn.address().0 + u64::from(place.offset.0)
}

fn place_of(page: &PageRange) -> Place {
    Place {
        vpn: page.vpn,
        offset: page.offset,
        len: page.len,
    }
}

fn in_page(offset: PageOffset, len: ByteLen) {
    assert!(
        len.0 > 0 && u32::from(offset.0) + len.0 <= PAGE_SIZE,
        "DMA of {len} at {offset}"
    );
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
        assert!(id.slot < 64, "no such DMA slot");
        assert!(
            self.dmas.iter().all(|(other, _)| other.slot != id.slot),
            "a DMA slot in use"
        );
        match dma {
            Dma::PageToStaging { page, staging } => {
                self.tally.to_staging += 1;
                assert!(staging.0 < self.geometry.staging, "no such staging buffer");
                let entry = self.page(&page);
                let start = page.vpn.address().0 + u64::from(page.offset.0);
                let own = self.posting[page.vpn.port().index()];
                assert!(
                    own || self.granted(page.vpn, start, u64::from(page.len.0), Modes::READ, Some(&entry)),
                    "a page that no port may read: {}",
                    page.vpn
                );
            }
            Dma::PageToOperand { page } | Dma::OperandToPage { page } => {
                self.tally.operands += 1;
                self.check_operand(&page);
            }
            Dma::BounceToStaging { bounce, staging, len } => {
                self.tally.to_staging += 1;
                in_page(PageOffset(0), len);
                assert_eq!(
                    bounce,
                    BounceUse::Source(staging).id(&self.geometry),
                    "another source page"
                );
            }
            Dma::ReceiveToPage { receive, page } => {
                self.tally.to_pages += 1;
                let entry = self.page(&page);
                assert!(entry.writable, "a write to a page that is read-only");
                let header = *self.buffer(receive);
                match header.kind {
                    Kind::Write => self.check_write(&header, &place_of(&page), Some(&entry)),
                    Kind::ReadReply => {
                        assert_eq!(page.len, ByteLen(u32::from(header.len)), "another length");
                        assert!(self.posting[page.vpn.port().index()], "a reply without a request");
                    }
                    kind => panic!("{kind:?} moved into a page"),
                }
            }
            Dma::ReceiveToBounce { receive, bounce, len } => {
                in_page(PageOffset(0), len);
                let header = *self.buffer(receive);
                assert_eq!(len, ByteLen(u32::from(header.len)), "another length");
                match header.kind {
                    Kind::Write | Kind::Control => {
                        // As many windows as nodes: each node has the one with its number.
                        let slot = (header.seq.0 % u32::from(self.geometry.window)) as u16;
                        let window = header.source.0;
                        let id = BounceUse::Window { window, slot };
                        assert_eq!(bounce, id.id(&self.geometry), "another message's bounce page");
                    }
                    Kind::ReadReply => assert!(is_reply(&self.geometry, bounce), "no reply's bounce page"),
                    kind => panic!("{kind:?} moved into a bounce page"),
                }
                match header.kind {
                    Kind::Control => self.tally.control_to_bounce += 1,
                    _ => self.tally.to_bounce += 1,
                }
            }
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
        self.check_operand(page);
        assert!(page.len.0 <= 8, "more in place than a processor changes at once");
        // One word in two is none that the processor can change: then the NIC takes two DMAs.
        if page.offset.0 & 8 != 0 {
            return None;
        }
        let (result, _) = atomic.apply(&mut Operand::default());
        Some(result)
    }

    fn reaches(&self) -> bool {
        self.reaches
    }

    fn reach(&mut self, place: &Place, way: Way) -> bool {
        let there = self.is_there(place);
        match way {
            Way::In(receive) => {
                let header = *self.buffer(receive);
                assert_eq!(header.kind, Kind::Write, "moved into a page");
                self.check_write(&header, place, None);
            }
            Way::Out(staging) => {
                assert!(staging.0 < self.geometry.staging, "no such staging buffer");
                let (start, len) = (start_of(place), u64::from(place.len.0));
                assert!(
                    self.granted(place.vpn, start, len, Modes::READ, None),
                    "a page that no port may read: {}",
                    place.vpn
                );
            }
        }
        self.tally.reached += u64::from(there);
        there
    }

    fn reach_and_apply(&mut self, place: &Place, atomic: &Atomic) -> Option<AtomicResult> {
        self.check_value(place, None);
        if !self.is_there(place) {
            return None;
        }
        self.tally.reached += 1;
        let (result, _) = atomic.apply(&mut Operand::default());
        Some(result)
    }

    fn path_to(&mut self, _node: NodeId, _life: Incarnation) -> Path {
        Path {
            loses_frames: false,
            ..Path::default()
        }
    }

    fn transmit(&mut self, header: &OwnHeader, payload: Payload<'_>) {
        let header = &header.decode();
        assert_eq!(header.source, self.node, "a message in another's name");
        assert!(header.destination.0 < self.geometry.nodes, "a message to no node");
        assert!(
            u32::from(header.len) <= self.geometry.payload,
            "a message that is too long"
        );
        match payload {
            Payload::Empty => assert_eq!(header.len, 0),
            Payload::Inline(words) => assert!(usize::from(header.len) <= words.len() * 4),
            Payload::Staging(staging) | Payload::Kept(staging) => {
                assert!(staging.0 < self.geometry.staging);
                self.left.push_back(staging);
            }
        }
        self.tally.sent[usize::from(header.kind as u8)] += 1;
        self.tally.bytes_sent += u64::from(header.len);
        assert_eq!(
            Header::decode_words(&header.encode_words()),
            Ok(*header),
            "it says what it means"
        );
        if let Some(all) = &mut self.bytes {
            all.left(header, payload);
        }
        self.outbox.push_back(*header);
    }

    fn release_receive(&mut self, receive: ReceiveId) {
        let known = self.receives.remove(&receive.0);
        assert!(known.is_some(), "a buffer given back twice");
        let used = self.dmas.iter().any(|(_, dma)| {
            matches!(dma, Dma::ReceiveToPage { receive: r, .. } | Dma::ReceiveToBounce { receive: r, .. } if *r == receive)
        });
        assert!(!used, "a buffer given back while a DMA reads it");
        if let Some(all) = &mut self.bytes {
            all.released(receive);
        }
    }

    fn interrupt(&mut self, whom: Interrupt) {
        match whom {
            Interrupt::Driver => self.tally.driver_interrupts += 1,
            Interrupt::Port(_) => self.tally.port_interrupts += 1,
        }
    }
}

fn is_reply(geometry: &Geometry, bounce: BounceId) -> bool {
    matches!(BounceUse::from_id(geometry, bounce), Some(BounceUse::Reply(_)))
}
