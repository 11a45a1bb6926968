//! A scripted platform: memory in vectors, DMAs and messages that wait until the test lets them
//! happen, in whatever order it likes.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test binary uses its own part"
)]

use netvm_abi::bar::{BarMap, port as bar_port};
use netvm_abi::bounce::BounceUse;
use netvm_abi::capability::{Capability, capability_at};
use netvm_abi::command_queue::Producer;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags};
use netvm_abi::event::{HostEvent, NicEvent, SourceAnswer};
use netvm_abi::page_lock;
use netvm_abi::page_table::{PageEntry, PageSlot, PageTable};
use netvm_abi::port_area::{self, ErrorRecord};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::storage::{MakeTable, Storage};
use netvm_abi::wire::{Header, Kind};
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::*;
use netvm_nic::platform::{Dma, DmaId, Interrupt, Payload, Platform};
use netvm_nic::{Config, Frame, Nic};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::AtomicU32;

/// Tables on the heap.
pub struct Heap;

impl Storage for Heap {
    type Table<T: 'static> = Box<[T]>;
}

impl MakeTable for Heap {
    fn table<T: 'static>(&mut self, len: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
        (0..len).map(make).collect()
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
    fn new(count: u32) -> Self {
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
            Dma::PageToStaging { page, .. } | Dma::ReceiveToPage { page, .. } => {
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
    fn transmit(&mut self, header: &Header, payload: Payload<'_>) {
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
    pub fn do_dma(&mut self, dma: Dma) {
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
        }
    }
}

/// A node: NIC, surroundings, and the ends of its rings that belong to the host.
pub struct Node {
    pub nic: Nic<Heap>,
    pub board: Board,
    pub table: PageTable,
    pub events: RingReader,
    pub to_nic: RingWriter,
    pub ports: Vec<Producer>,
    pub error_read: Vec<u32>,
    pub id: NodeId,
    next_ppn: u64,
    /// The frame of each page, mapped or not.
    pub frames: BTreeMap<u64, u64>,
    /// Where each page is mapped.
    pub slots: BTreeMap<u64, (PageSlot, u64)>,
    /// Host events seen and not taken by a test.
    pub inbox: VecDeque<NicEvent>,
    /// Answer what a plain host answers at once: releases of peers.
    pub obliging: bool,
}

pub fn geometry(nodes: u16) -> Geometry {
    Geometry {
        nodes,
        ports: 8,
        page_rows: 256,
        capabilities: 64,
        staging: 8,
        reads: 8,
        ..Geometry::default()
    }
}

impl Node {
    pub fn new(config: Config) -> Self {
        let geometry = config.geometry;
        let mut nic = Nic::new(config, &mut Heap).unwrap();
        let mut board = Board {
            bar: Words::new(BarMap::new(&geometry).words),
            shared: Words::new(SharedMap::new(&geometry).words),
            pages: BTreeMap::new(),
            staging: vec![vec![0; PAGE]; usize::from(geometry.staging)],
            receive: BTreeMap::new(),
            next_receive: 0,
            bounce: BTreeMap::new(),
            dmas: Vec::new(),
            sent: VecDeque::new(),
            outbox: VecDeque::new(),
            interrupts: Vec::new(),
            geometry,
            mapped: HashSet::new(),
        };
        nic.attach(&mut board);
        Self {
            nic,
            board,
            table: PageTable::of(&geometry, config.hash_key),
            events: RingReader::new(RingPlace::nic_events(&geometry)),
            to_nic: RingWriter::new(RingPlace::host_events(&geometry)),
            ports: vec![Producer::default(); usize::from(geometry.ports)],
            error_read: vec![0; usize::from(geometry.ports)],
            id: config.node,
            next_ppn: 100,
            frames: BTreeMap::new(),
            slots: BTreeMap::new(),
            inbox: VecDeque::new(),
            obliging: true,
        }
    }

    pub fn tell(&mut self, event: HostEvent) {
        assert!(
            self.to_nic
                .push(&self.board.bar, &self.board.shared, &event.encode())
        );
    }

    pub fn open(&mut self, port: u16, generation: u32) {
        let map = BarMap::new(&self.board.geometry);
        for word in 0..bar_port::BLOCK_WORDS {
            self.board.bar.store_release(map.port(PortId(port)).plus(word), 0);
        }
        self.ports[usize::from(port)] = Producer::default();
        self.error_read[usize::from(port)] = 0;
        self.tell(HostEvent::PortOpen {
            port: PortId(port),
            generation: Generation(generation),
        });
    }

    /// Maps a page of a port with a fresh frame; returns the frame.
    pub fn map(&mut self, port: u16, address: u64, segment: u32, writable: bool) -> u64 {
        let ppn = self.frame_of(Vpn::of(PortId(port), VirtAddr(address)));
        self.map_frame(port, address, segment, writable, ppn);
        ppn
    }

    pub fn map_frame(&mut self, port: u16, address: u64, segment: u32, writable: bool, ppn: u64) {
        let vpn = Vpn::of(PortId(port), VirtAddr(address));
        let places = self.table.places(vpn);
        let free = places
            .into_iter()
            .find(|slot| !self.slots.values().any(|(used, _)| used == slot));
        let Some(slot) = free else {
            // As a host would: somebody else has to go.
            let victim = places[0];
            let (&other, _) = self.slots.iter().find(|(_, (used, _))| *used == victim).unwrap();
            let other = Vpn::from_raw(other);
            self.evict(other);
            if !self.slots.contains_key(&other.raw()) {
                self.map_frame(port, address, segment, writable, ppn);
            }
            return;
        };
        let entry = PageEntry {
            vpn,
            ppn: Ppn(ppn),
            segment: SegmentId(segment),
            writable,
        };
        page_lock::publish(&self.board.bar, &self.table, slot, &entry);
        self.slots.insert(vpn.raw(), (slot, ppn));
        self.frames.insert(vpn.raw(), ppn);
        self.board.mapped.insert((vpn.raw(), ppn));
    }

    /// Unmaps a page; returns whether it was free at once.
    pub fn unmap(&mut self, port: u16, address: u64) -> bool {
        let vpn = Vpn::of(PortId(port), VirtAddr(address));
        let (slot, ppn) = self.slots.remove(&vpn.raw()).unwrap();
        page_lock::retract(&self.board.bar, &self.table, slot);
        self.board.bar.full_barrier();
        self.board.mapped.remove(&(vpn.raw(), ppn));
        page_lock::lock_state(&self.board.bar, &self.table, slot) == page_lock::LockState::Free
    }

    /// Whether an unmap would find the page unlocked; the page stays mapped.
    pub fn unmap_would_be_free(&mut self, port: u16, address: u64) -> bool {
        let vpn = Vpn::of(PortId(port), VirtAddr(address));
        let (slot, _) = self.slots[&vpn.raw()];
        page_lock::lock_state(&self.board.bar, &self.table, slot) == page_lock::LockState::Free
    }

    /// Unmaps a page unless a DMA holds it.
    pub fn evict(&mut self, vpn: Vpn) {
        let (slot, ppn) = self.slots[&vpn.raw()];
        page_lock::retract(&self.board.bar, &self.table, slot);
        self.board.bar.full_barrier();
        if page_lock::lock_state(&self.board.bar, &self.table, slot) == page_lock::LockState::Free {
            self.slots.remove(&vpn.raw());
            self.board.mapped.remove(&(vpn.raw(), ppn));
        } else {
            page_lock::restore(&self.board.bar, &self.table, slot);
        }
    }

    pub fn map_if_missing(&mut self, port: u16, address: u64, segment: u32, writable: bool) {
        let vpn = Vpn::of(PortId(port), VirtAddr(address));
        if !self.slots.contains_key(&vpn.raw()) {
            self.map(port, address, segment, writable);
        }
    }

    pub fn grant(&mut self, slot: u32, capability: &Capability) {
        let map = BarMap::new(&self.board.geometry);
        let at = capability_at(map.capabilities, CapabilitySlot(slot));
        capability.publish(&self.board.bar, at);
    }

    pub fn revoke(&mut self, slot: u32) {
        let map = BarMap::new(&self.board.geometry);
        Capability::retract(
            &self.board.bar,
            capability_at(map.capabilities, CapabilitySlot(slot)),
        );
    }

    pub fn post(&mut self, port: u16, command: &Command, inline: &[u8]) -> bool {
        let map = BarMap::new(&self.board.geometry);
        let block = Part::new(&self.board.bar, map.port(PortId(port)), bar_port::BLOCK_WORDS);
        let words: Vec<u32> = inline
            .chunks(4)
            .map(|chunk| {
                let mut bytes = [0; 4];
                bytes[..chunk.len()].copy_from_slice(chunk);
                u32::from_le_bytes(bytes)
            })
            .collect();
        let producer = &mut self.ports[usize::from(port)];
        let area = SharedMap::new(&self.board.geometry).port_area(PortId(port));
        producer.update_taken(self.board.shared.load_acquire(area.plus(port_area::TAKEN.0)));
        producer.post(&block, &command.encode(), &words)
    }

    pub fn bar_word(&self, port: u16, word: WordIndex) -> u32 {
        let map = BarMap::new(&self.board.geometry);
        self.board
            .bar
            .words
            .load_acquire(map.port(PortId(port)).plus(word.0))
    }

    pub fn set_bar_word(&self, port: u16, word: WordIndex, value: u32) {
        let map = BarMap::new(&self.board.geometry);
        self.board
            .bar
            .store_release(map.port(PortId(port)).plus(word.0), value);
    }

    pub fn area_word(&self, port: u16, word: WordIndex) -> u32 {
        let map = SharedMap::new(&self.board.geometry);
        self.board
            .shared
            .load_acquire(map.port_area(PortId(port)).plus(word.0))
    }

    pub fn signals(&self, port: u16, id: u32) -> u32 {
        self.area_word(port, port_area::SHADOW_SIGNALS.plus(id))
    }

    /// Takes the next error record of a port.
    pub fn error(&mut self, port: u16) -> Option<ErrorRecord> {
        let read = self.error_read[usize::from(port)];
        if self.area_word(port, port_area::ERROR_WRITE) == read {
            return None;
        }
        let at = port_area::ERRORS.plus((read % port_area::ERROR_RECORDS) * 8);
        let mut words = [0; port_area::ERROR_WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.area_word(port, at.plus(index as u32));
        }
        self.error_read[usize::from(port)] = read + 1;
        self.set_bar_word(port, bar_port::ERROR_READ, read + 1);
        Some(ErrorRecord::decode(words))
    }

    pub fn take_events(&mut self) {
        while let Some(words) = self.events.pop(&self.board.shared, &self.board.bar) {
            let event = NicEvent::decode(&words).expect("a good event");
            match event {
                NicEvent::PeerReset { peer, incarnation } | NicEvent::PeerLost { peer, incarnation }
                    if self.obliging =>
                {
                    self.tell(HostEvent::PeerReleased { peer, incarnation });
                }
                _ => {}
            }
            self.inbox.push_back(event);
        }
    }

    pub fn event(&mut self, want: impl Fn(&NicEvent) -> bool) -> Option<NicEvent> {
        let at = self.inbox.iter().position(want)?;
        self.inbox.remove(at)
    }

    pub fn deliver(&mut self, now: Nanos, message: &Message) {
        let mut bytes = message.header.encode().to_vec();
        bytes.extend_from_slice(&message.payload);
        self.deliver_bytes(now, &bytes);
    }

    pub fn deliver_bytes(&mut self, now: Nanos, bytes: &[u8]) {
        let receive = ReceiveId(self.board.next_receive);
        self.board.next_receive += 1;
        let payload = bytes.get(80..).unwrap_or(&[]).to_vec();
        self.board.receive.insert(receive.0, payload);
        let frame = Frame::new(receive, bytes, bytes.len());
        self.nic.handle_frame(&mut self.board, now, &frame);
    }

    /// Ends the DMA at this place of the list.
    pub fn end_dma(&mut self, now: Nanos, at: usize, ok: bool) {
        let (id, dma) = self.board.dmas.remove(at);
        if ok {
            self.board.do_dma(dma);
        }
        self.nic.handle_dma_done(&mut self.board, now, id, ok);
    }

    /// Everything that waits inside the NIC, but no DMA and no frame.
    pub fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        for _ in 0..10_000 {
            let mut more = self.nic.handle_host_events(&mut self.board, now, 16);
            while let Some(staging) = self.board.sent.pop_front() {
                self.nic.handle_sent(&mut self.board, now, staging);
                more = true;
            }
            more |= self.nic.handle_doorbells(&mut self.board, now, 16);
            self.take_events();
            more |= self.nic.has_work(&self.board);
            if !more {
                return moved;
            }
            moved = true;
        }
        panic!("the NIC does not come to rest");
    }
}

impl Node {
    /// A plain host: pages in what is missing (a fresh frame of zeroes, or the frame it had), copies
    /// bounced payload once, ends every slot.
    pub fn serve_host(&mut self) -> bool {
        self.take_events();
        let events = std::mem::take(&mut self.inbox);
        let any = !events.is_empty();
        for event in events {
            match event {
                NicEvent::Bounced { bounce, generation } => {
                    let header = self.record(bounce);
                    let mut status = Status::Ok;
                    if header.kind != Kind::Control {
                        status = self.page_in_and_copy(bounce, &header);
                    }
                    self.tell(HostEvent::BounceEnded {
                        bounce,
                        generation,
                        status,
                    });
                }
                NicEvent::SourceMiss {
                    staging,
                    generation,
                    vpn,
                    offset,
                    len,
                    attempt,
                } => {
                    let ppn = self.frame_of(vpn);
                    let from = usize::from(offset.0);
                    if attempt < 3 {
                        if !self.slots.contains_key(&vpn.raw()) {
                            self.map_frame(vpn.port().0, vpn.address().0, 5, true, ppn);
                        }
                        self.tell(answer(staging, generation, SourceAnswer::Retry));
                    } else {
                        let bytes = self.board.pages[&ppn][from..from + len.index()].to_vec();
                        let id = BounceUse::Source(staging).id(&self.board.geometry);
                        self.board.bounce.insert(id.0, bytes);
                        self.tell(answer(staging, generation, SourceAnswer::Copied));
                    }
                }
                _ => {}
            }
        }
        any
    }

    pub fn record(&self, bounce: BounceId) -> Header {
        let map = SharedMap::new(&self.board.geometry);
        netvm_abi::bounce::load_record(&self.board.shared, map.bounce_record(bounce)).unwrap()
    }

    /// The frame that holds a page's bytes, mapped or not.
    pub fn frame_of(&mut self, vpn: Vpn) -> u64 {
        if let Some(ppn) = self.frames.get(&vpn.raw()) {
            return *ppn;
        }
        self.next_ppn += 1;
        let ppn = self.next_ppn;
        self.board.pages.insert(ppn, vec![0; PAGE]);
        self.frames.insert(vpn.raw(), ppn);
        ppn
    }

    fn page_in_and_copy(&mut self, bounce: BounceId, header: &Header) -> Status {
        let vpn = Vpn::of(header.destination_port, header.address);
        let ppn = self.frame_of(vpn);
        let at = usize::from(header.address.page_offset().0);
        let bytes = self.board.bounce[&bounce.0].clone();
        self.board.pages.get_mut(&ppn).unwrap()[at..at + bytes.len()].copy_from_slice(&bytes);
        Status::Ok
    }

    /// Bytes of a port's memory, wherever they are.
    pub fn memory(&mut self, port: u16, address: u64, len: usize) -> Vec<u8> {
        let ppn = self.frame_of(Vpn::of(PortId(port), VirtAddr(address)));
        let at = (address & 0xFFF) as usize;
        self.board.pages[&ppn][at..at + len].to_vec()
    }

    pub fn fill(&mut self, port: u16, address: u64, bytes: &[u8]) {
        let ppn = self.frame_of(Vpn::of(PortId(port), VirtAddr(address)));
        let at = (address & 0xFFF) as usize;
        self.board.pages.get_mut(&ppn).unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn counters(&self) -> netvm_nic::Counters {
        *self.nic.counters()
    }
}

/// Nodes and the wire between them.
pub struct World {
    /// Hosts answer by themselves.
    pub hosts: bool,
    pub nodes: Vec<Node>,
    pub now: Nanos,
    pub wire: Vec<Message>,
    pub rng: ChaCha8Rng,
    /// Take messages and DMAs in any order.
    pub shuffle: bool,
    /// Let DMAs end by themselves.
    pub auto_dma: bool,
}

impl World {
    pub fn new(count: u16, seed: u64) -> Self {
        Self::with(count, seed, geometry(count), |_| {})
    }

    pub fn with(count: u16, seed: u64, geometry: Geometry, change: impl Fn(&mut Config)) -> Self {
        let nodes = (0..count)
            .map(|id| {
                let mut config = Config {
                    node: NodeId(id),
                    geometry,
                    incarnation_seed: 0x1000 * u32::from(id + 1) + seed as u32,
                    ..Config::default()
                };
                change(&mut config);
                Node::new(config)
            })
            .collect();
        Self {
            nodes,
            now: Nanos(0),
            wire: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            shuffle: seed != 0,
            auto_dma: true,
            hosts: false,
        }
    }

    /// One small step: something arrives or ends. False: nothing is left to happen.
    pub fn step(&mut self) -> bool {
        self.now.0 += 100;
        let mut moved = false;
        for node in &mut self.nodes {
            moved |= node.poll(self.now);
            if self.hosts {
                moved |= node.serve_host();
            }
            self.wire.extend(node.board.outbox.drain(..));
        }
        if self.auto_dma {
            let mut busy: Vec<usize> = (0..self.nodes.len())
                .filter(|&at| !self.nodes[at].board.dmas.is_empty())
                .collect();
            if self.shuffle && !self.wire.is_empty() && self.rng.random_bool(0.5) {
                busy.clear();
            }
            if let Some(&at) = busy.get(self.pick(busy.len())) {
                let index = self.pick(self.nodes[at].board.dmas.len());
                self.nodes[at].end_dma(self.now, index, true);
                return true;
            }
        }
        if !self.wire.is_empty() {
            let at = self.pick(self.wire.len());
            let message = self.wire.remove(at);
            let to = message.header.destination.index();
            self.nodes[to].deliver(self.now, &message);
            return true;
        }
        moved
    }

    fn pick(&mut self, len: usize) -> usize {
        if self.shuffle && len > 1 {
            self.rng.random_range(0..len)
        } else {
            0
        }
    }

    pub fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the world does not come to rest");
    }

    /// Lets time pass: timers run.
    pub fn pass(&mut self, span: Nanos) {
        let end = self.now.after(span);
        self.run();
        while let Some(next) = self
            .nodes
            .iter()
            .filter_map(|node| node.nic.next_deadline())
            .min()
            .filter(|next| *next <= end)
        {
            self.now = Nanos(self.now.0.max(next.0));
            for node in &mut self.nodes {
                while node.nic.handle_timers(&mut node.board, self.now) {}
            }
            self.run();
        }
        self.now = Nanos(self.now.0.max(end.0));
    }

    /// Opens port 1 on every node, links all, and lets node 0 reach node 1's pages at `0x10000..`.
    pub fn connected(count: u16, seed: u64) -> Self {
        Self::connect(Self::new(count, seed))
    }

    pub fn connect(mut world: Self) -> Self {
        let count = world.nodes.len() as u16;
        for at in 0..count {
            let node = &mut world.nodes[usize::from(at)];
            node.open(1, 7);
            for peer in 0..count {
                node.tell(HostEvent::PeerConnect { peer: NodeId(peer) });
            }
        }
        world.run();
        for node in &world.nodes {
            assert_eq!(node.nic.counters().links_up, u64::from(count), "node {}", node.id);
        }
        world
    }
}

/// A capability for everything from node `holder` port 1 to port 1 at `0x10000..0x20000`.
pub fn capability(holder: u16) -> Capability {
    Capability {
        port: PortId(1),
        modes: Modes::READ | Modes::WRITE | Modes::NOTIFY,
        segment: SegmentId(5),
        holder: NodeId(holder),
        holder_port: PortId(1),
        start: VirtAddr(0x10000),
        end: VirtAddr(0x20000),
        secret: 0x1234_5678_9ABC_DEF0,
        notify_first: NotificationId(1),
        notify_last: NotificationId(u32::MAX),
        expires: Nanos::MAX,
    }
}

/// A write from node 0 to node 1 through [`capability`] in slot 3.
pub fn write(op: u32, remote: u64, local: u64, len: u32) -> Command {
    Command {
        len: ByteLen(len),
        node: NodeId(1),
        port: PortId(1),
        capability: CapabilitySlot(3),
        secret: 0x1234_5678_9ABC_DEF0,
        remote: VirtAddr(remote),
        local: VirtAddr(local),
        op: OpId(op),
        ..Command::default()
    }
}

pub fn inline(op: u32, remote: u64, len: u32) -> Command {
    Command {
        flags: CommandFlags::INLINE,
        ..write(op, remote, 0, len)
    }
}

pub fn notify(command: Command, id: u32) -> Command {
    Command {
        notification: NotificationId(id),
        ..command
    }
}

/// Answers a source miss.
pub fn answer(staging: StagingId, generation: Generation, answer: SourceAnswer) -> HostEvent {
    HostEvent::SourceAnswer {
        staging,
        generation,
        answer,
    }
}
