//! A node: the NIC, its surroundings, and the host's and the applications' ends of its rings.

use super::{Board, Message};
use crate::CountingHeap;
use netvm_abi::bar::{BarMap, port as bar_port};
use netvm_abi::command_queue::Producer;
use netvm_abi::descriptor::Command;
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::page_table::{PageSlot, PageTable};
use netvm_abi::port_area::{self, ErrorRecord};
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::wire::HEADER_BYTES;
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::*;
use netvm_nic::{Config, Frame, Nic};
use std::collections::{BTreeMap, VecDeque};

/// A node: NIC, surroundings, and the ends of its rings that belong to the host.
pub struct Node {
    /// The core.
    pub nic: Nic<CountingHeap>,
    /// Its surroundings.
    pub board: Board,
    /// The page table's places.
    pub table: PageTable,
    /// The host's end of what the NIC tells.
    pub events: RingReader,
    /// The host's end of what it tells the NIC.
    pub to_nic: RingWriter,
    /// The applications' ends of the command queues.
    pub ports: Vec<Producer>,
    /// Error records that each port has taken.
    pub error_read: Vec<u32>,
    /// Its number.
    pub id: NodeId,
    pub(super) next_ppn: u64,
    /// The frame of each page, mapped or not.
    pub frames: BTreeMap<u64, u64>,
    /// Where each page is mapped.
    pub slots: BTreeMap<u64, (PageSlot, u64)>,
    /// Host events seen and not taken by a test.
    pub inbox: VecDeque<NicEvent>,
    /// Answer what a plain host answers at once: releases of peers.
    pub obliging: bool,
}

impl Node {
    /// A node whose NIC is attached.
    ///
    /// # Panics
    /// The NIC refuses the configuration.
    pub fn new(config: Config) -> Self {
        let geometry = config.geometry;
        let mut nic = Nic::new(config, &mut CountingHeap).unwrap();
        let mut board = Board::new(geometry);
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

    /// Host: tells the NIC something.
    ///
    /// # Panics
    /// The ring is full.
    pub fn tell(&mut self, event: HostEvent) {
        assert!(
            self.to_nic
                .push(&self.board.bar, &self.board.shared, &event.encode())
        );
    }

    /// Host: opens a port.
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
            counts_from: 0,
        });
    }

    /// Application: posts a command; false: the queue is full.
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

    /// A word of a port's block in NIC memory.
    pub fn bar_word(&self, port: u16, word: WordIndex) -> u32 {
        let map = BarMap::new(&self.board.geometry);
        // Past what a hook may answer.
        (*self.board.bar).load_acquire(map.port(PortId(port)).plus(word.0))
    }

    /// Stores a word of a port's block in NIC memory.
    pub fn set_bar_word(&self, port: u16, word: WordIndex, value: u32) {
        let map = BarMap::new(&self.board.geometry);
        self.board
            .bar
            .store_release(map.port(PortId(port)).plus(word.0), value);
    }

    /// A word of a port's area in driver memory.
    pub fn area_word(&self, port: u16, word: WordIndex) -> u32 {
        let map = SharedMap::new(&self.board.geometry);
        self.board
            .shared
            .load_acquire(map.port_area(PortId(port)).plus(word.0))
    }

    /// How often a notification was signalled.
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

    /// Host: takes what the NIC tells.
    ///
    /// # Panics
    /// It is not of the ABI.
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

    /// The first event seen that `want` says yes to.
    pub fn event(&mut self, want: impl Fn(&NicEvent) -> bool) -> Option<NicEvent> {
        let at = self.inbox.iter().position(want)?;
        self.inbox.remove(at)
    }

    /// A message arrives.
    pub fn deliver(&mut self, now: Nanos, message: &Message) {
        let mut bytes = message.header.encode().to_vec();
        bytes.extend_from_slice(&message.payload);
        self.deliver_bytes(now, &bytes);
    }

    /// Bytes arrive as a frame.
    pub fn deliver_bytes(&mut self, now: Nanos, bytes: &[u8]) {
        let payload = bytes.get(HEADER_BYTES..).unwrap_or(&[]).to_vec();
        let receive = self.board.receive(payload);
        let frame = Frame::new(receive, bytes, bytes.len());
        self.nic.handle_frame(&mut self.board, now, &frame);
    }

    /// Ends the DMA at this place of the list.
    pub fn end_dma(&mut self, now: Nanos, at: usize, ok: bool) {
        let (id, dma) = self.board.dmas.remove(at);
        if ok {
            self.board.do_dma(id, dma);
        }
        self.nic.handle_dma_done(&mut self.board, now, id, ok);
    }

    /// Everything that waits inside the NIC, but no DMA and no frame. Whether something was done.
    ///
    /// # Panics
    /// The NIC does not come to rest.
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

    /// What the NIC counted.
    pub fn counters(&self) -> netvm_nic::Counters {
        *self.nic.counters()
    }
}
