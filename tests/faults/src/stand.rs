//! The NIC on its board, with host and peers, and the books that must balance.

use crate::board::Board;
use crate::bytes::Bytes;
use crate::host::Host;
use crate::peers::Peer;
use netvm_abi::bar::{BarMap, port as block};
use netvm_abi::capability::Capability;
use netvm_abi::command_queue::Producer;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{DESCRIPTOR_WORDS, HEAD_WORDS, QUEUE_ENTRIES};
use netvm_abi::event::HostEvent;
use netvm_abi::page_table::{PageEntry, PageTable};
use netvm_abi::port_area::{ERROR_WRITE, ERRORS_LOST, NOTIFICATION_WRITE, READS_DONE, TAKEN, WRITES_DONE};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::shared_queue::QueueShape;
use netvm_abi::wire::{HEADER_BYTES, Header, Kind};
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::{
    CapabilitySlot, Generation, Geometry, Nanos, NodeId, NotificationId, PortId, Ppn, SegmentId, VirtAddr,
    Vpn, WordIndex,
};
use netvm_kit::{Heap, Lie};
use netvm_nic::platform::{Dma, DmaId};
use netvm_nic::{Config, Frame, Nic};

/// The node under attack.
pub const TARGET: NodeId = NodeId(1);
/// Nodes, the target included.
pub const NODES: u16 = 4;
/// Ports that are open; port 0 is the driver's.
pub const OPEN: std::ops::RangeInclusive<u16> = 1..=6;
/// Ports that post commands. Port 5 exports and never posts, port 6 comes and goes.
pub const POSTING: std::ops::RangeInclusive<u16> = 1..=4;
/// First address of each port's pages.
pub const BASE: u64 = 0x10_0000;
/// Pages of each port that capabilities name: 0..4 writable, 4 read-only, 5 often not mapped, 6 never mapped, 7 of
/// another segment. Page 8 is the port's own and named by none.
pub const PAGES: u64 = 9;

/// Whether a capability ends: the last of each port.
const fn ends(slot: CapabilitySlot) -> bool {
    slot.0 % 9 == 8
}

/// Whether it ends as a lease: those of every second port.
const fn is_lease(slot: CapabilitySlot) -> bool {
    ends(slot) && (slot.0 / 9).is_multiple_of(2)
}

/// Everything.
pub struct Stand {
    /// The NIC core.
    pub nic: Nic<Heap>,
    /// Its surroundings.
    pub board: Board,
    /// Its host.
    pub host: Host,
    /// Other nodes, the target's own place included and never used.
    pub peers: Vec<Peer>,
    /// The time.
    pub now: Nanos,
    producers: Vec<Producer>,
    generations: Vec<u32>,
    frames: u64,
    late: u64,
    /// The peers neither hear nor answer.
    silent: bool,
    /// What ports had counted when they closed: errors, errors lost, notification entries.
    retired: [u64; 3],
}

impl Default for Stand {
    fn default() -> Self {
        Self::new()
    }
}

impl Stand {
    /// A NIC with open ports, mapped pages and live capabilities; no link is up.
    ///
    /// # Panics
    /// When the core refuses its configuration.
    #[must_use]
    pub fn new() -> Self {
        let geometry = Geometry {
            nodes: NODES,
            ports: 8,
            page_rows: 256,
            capabilities: 64,
            staging: 8,
            reads: 8,
            ..Geometry::default()
        };
        let config = Config {
            node: TARGET,
            geometry,
            incarnation_seed: 0x1234_5678,
            ..Config::default()
        };
        let mut board = Board::new(geometry, TARGET);
        let mut nic = Nic::new(config, &mut Heap::default()).expect("a good configuration");
        nic.attach(&mut board);
        let host = Host::new(&geometry, PageTable::of(&geometry, config.hash_key));
        let peers = (0..NODES)
            .map(|id| Peer::new(NodeId(id), TARGET, &geometry))
            .collect();
        let mut stand = Self {
            nic,
            board,
            host,
            peers,
            now: Nanos(1),
            producers: vec![Producer::default(); usize::from(geometry.ports)],
            generations: vec![0; usize::from(geometry.ports)],
            frames: 0,
            late: 0,
            silent: false,
            retired: [0; 3],
        };
        for port in OPEN {
            stand.open(PortId(port));
            for page in 0..PAGES {
                stand.map(PortId(port), page);
            }
            for (index, holder) in [0, 2, 3].into_iter().enumerate() {
                let slot = 9 * (u32::from(port) - 1) + 3 * index as u32;
                for (kind, modes) in [Modes::all(), Modes::READ, Modes::WRITE | Modes::NOTIFY]
                    .into_iter()
                    .enumerate()
                {
                    stand.grant(
                        CapabilitySlot(slot + kind as u32),
                        PortId(port),
                        NodeId(holder),
                        modes,
                    );
                }
            }
        }
        for port in POSTING {
            stand.board.posting[usize::from(port)] = true;
        }
        stand.settle();
        stand
    }

    /// The same, and the board follows what lies where.
    #[must_use]
    pub fn with_bytes() -> Self {
        let mut stand = Self::new();
        stand.board.bytes = Some(Bytes::default());
        stand
    }

    /// What lies where.
    ///
    /// # Panics
    /// The stand was made without.
    pub fn bytes(&mut self) -> &mut Bytes {
        self.board.bytes.as_mut().expect("a stand with bytes")
    }

    fn grant(&mut self, slot: CapabilitySlot, port: PortId, holder: NodeId, modes: Modes) {
        let capability = Self::capability(slot, port, holder, modes);
        if is_lease(slot) {
            let life = [Nanos::from_millis(1_000), Nanos::from_millis(4_000)];
            self.host.lend(&mut self.board, slot, capability, life);
        } else {
            self.host.grant(&mut self.board, slot, capability);
        }
    }

    fn capability(slot: CapabilitySlot, port: PortId, holder: NodeId, modes: Modes) -> Capability {
        // What allows everything is a queue of 32 entries, too.
        let shape = if modes.contains(Modes::APPEND) {
            QueueShape { entry: 10, number: 7 }
        } else {
            QueueShape::NONE
        };
        Capability {
            port,
            modes,
            segment: segment(port),
            holder,
            holder_port: PortId(slot.0 as u16 % 3 + 1),
            start: VirtAddr(if shape.is_some() { BASE } else { BASE + 16 }),
            end: VirtAddr(BASE + 8 * 4096),
            secret: 0x5EC2_E700_0000_0000 | u64::from(slot.0),
            notify_first: NotificationId(1),
            notify_last: NotificationId(3000),
            expires: if ends(slot) {
                Nanos::from_millis(2_000)
            } else {
                Nanos::MAX
            },
            queue: shape,
        }
    }

    /// Revokes a capability, or grants it again.
    pub fn toggle_capability(&mut self, slot: CapabilitySlot) {
        let Some(place) = self.board.capabilities.get(slot.index()) else {
            return;
        };
        if place.is_some() {
            self.host.revoke(&mut self.board, slot);
        } else if slot.0 < 9 * u32::from(*OPEN.end()) {
            let holder = [0, 2, 3][(slot.0 % 9 / 3) as usize];
            let modes = match slot.0 % 3 {
                0 => Modes::all(),
                1 => Modes::READ,
                _ => Modes::WRITE | Modes::NOTIFY,
            };
            self.grant(slot, PortId((slot.0 / 9) as u16 + 1), NodeId(holder), modes);
        }
    }

    /// Maps a page of a port, unless it is one that is never mapped.
    pub fn map(&mut self, port: PortId, page: u64) {
        if page == 6 {
            return;
        }
        let entry = PageEntry {
            vpn: Vpn::of(port, VirtAddr(BASE + page * 4096)),
            ppn: Ppn(u64::from(port.0) * 100 + page),
            segment: if page < 7 {
                segment(port)
            } else {
                SegmentId(segment(port).0 + 1)
            },
            writable: page != 4,
        };
        self.host.map(&mut self.board, entry);
    }

    /// Unmaps a page of a port.
    pub fn unmap(&mut self, port: PortId, page: u64) {
        self.host
            .unmap(&mut self.board, Vpn::of(port, VirtAddr(BASE + page * 4096)));
    }

    fn open(&mut self, port: PortId) {
        let at = BarMap::new(&self.board.geometry).port(port);
        for word in 0..block::BLOCK_WORDS {
            self.board.bar.store_release(at.plus(word), 0);
        }
        self.producers[port.index()] = Producer::default();
        self.generations[port.index()] += 1;
        let generation = Generation(self.generations[port.index()]);
        self.host.tell(
            &self.board,
            HostEvent::PortOpen {
                port,
                generation,
                counts_from: 0,
            },
        );
    }

    /// Closes a port; [`settle`](Self::settle) opens it again when the NIC has let go.
    pub fn close(&mut self, port: PortId) {
        let generation = Generation(self.generations[port.index()]);
        self.host
            .tell(&self.board, HostEvent::PortClose { port, generation });
    }

    /// Posts a descriptor, whatever it says. False: the queue is full.
    pub fn post(&mut self, port: PortId, head: &[u32; HEAD_WORDS], inline: &[u32]) -> bool {
        let taken = self.area_word(port, TAKEN);
        let place = BarMap::new(&self.board.geometry).port(port);
        let block = Part::new(&self.board.bar, place, block::BLOCK_WORDS);
        let Some(producer) = self.producers.get_mut(port.index()) else {
            return false;
        };
        producer.update_taken(taken);
        if producer.free() == 0 {
            // As the library does: ask to hear of half a queue.
            let half = producer.posted().wrapping_sub(QUEUE_ENTRIES / 2);
            block.store_release(block::TAKEN_FENCE, half);
        }
        producer.post(&block, head, inline)
    }

    /// Stores to a word of a port's block as its application may, but for the command queue.
    pub fn scribble(&mut self, port: PortId, word: WordIndex, value: u32) {
        let place = BarMap::new(&self.board.geometry).port(port);
        self.board.bar.store_release(place.plus(word.0), value);
    }

    /// What the port has posted.
    #[must_use]
    pub fn posted(&self, port: PortId) -> u32 {
        self.producers[port.index()].posted()
    }

    /// From now on each load from the port's command queue is answered as `script` or `seed` says; the head of the
    /// next `settle` is served from it.
    pub fn lie(&mut self, port: PortId, script: Vec<u32>, seed: u32) {
        let at = BarMap::new(&self.board.geometry)
            .port(port)
            .plus(block::COMMANDS.0)
            .0;
        let words = DESCRIPTOR_WORDS as u32 * QUEUE_ENTRIES;
        self.board.bar.hook(Lie::new(at..at + words, script, seed));
    }

    /// A word of a port's area.
    #[must_use]
    pub fn area_word(&self, port: PortId, word: WordIndex) -> u32 {
        let at = SharedMap::new(&self.board.geometry).port_area(port);
        self.board.shared.load_acquire(at.plus(word.0))
    }

    /// A frame arrives.
    pub fn frame(&mut self, bytes: &[u8]) {
        self.frames += 1;
        let receive = self.board.receive(bytes);
        let frame = Frame::new(receive, bytes, bytes.len());
        self.nic.handle_frame(&mut self.board, self.now, &frame);
    }

    /// A message arrives, with a payload of zeroes.
    pub fn message(&mut self, header: &Header) {
        let mut bytes = [0; HEADER_BYTES + 4096];
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        let len = HEADER_BYTES + usize::from(header.len).min(4096);
        self.frame(&bytes[..len]);
    }

    /// Ends the DMA at this place of the list.
    pub fn end_dma(&mut self, at: usize, ok: bool) {
        let (id, dma) = self.board.dmas.swap_remove(at);
        if ok && matches!(dma, Dma::ReceiveToPage { .. }) {
            self.board.tally.in_pages += 1;
        }
        if ok {
            self.board.moved(id, &dma);
        }
        self.nic.handle_dma_done(&mut self.board, self.now, id, ok);
    }

    /// The end of a DMA that is not under way is reported.
    pub fn late_dma(&mut self, slot: u8, generation: u32) {
        let id = DmaId { slot, generation };
        if self.board.dmas.iter().all(|(other, _)| *other != id) {
            self.late += 1;
            self.nic.handle_dma_done(&mut self.board, self.now, id, true);
        }
    }

    /// Lets the NIC do all that it can do by itself, and the peers hear what it says.
    ///
    /// # Panics
    /// When it does not come to rest.
    pub fn settle(&mut self) {
        for _ in 0..2_000 {
            let mut moved = self.nic.handle_host_events(&mut self.board, self.now, 16);
            while let Some(staging) = self.board.left.pop_front() {
                self.nic.handle_sent(&mut self.board, self.now, staging);
                moved = true;
            }
            moved |= self.nic.handle_doorbells(&mut self.board, self.now, 16);
            moved |= self.host.take_events(&self.board);
            while let Some(port) = self.host.closed.pop() {
                self.retire(port);
                self.open(port);
                moved = true;
            }
            while let Some(header) = self.board.outbox.pop_front() {
                moved = true;
                if !self.silent
                    && let Some(answer) = self.peers[header.destination.index()].hear(&header)
                {
                    self.message(&answer);
                }
            }
            if !moved && !self.nic.has_work(&self.board) {
                return;
            }
        }
        panic!("the NIC does not come to rest");
    }

    /// Time goes on.
    pub fn pass(&mut self, span: Nanos) {
        self.now = self.now.after(span);
        self.board.now = self.now;
        for _ in 0..100 {
            if !self.nic.handle_timers(&mut self.board, self.now) {
                break;
            }
        }
    }

    fn retire(&mut self, port: PortId) {
        for (sum, word) in self.retired.iter_mut().zip(PORT_SUMS) {
            let at = SharedMap::new(&self.board.geometry).port_area(port);
            *sum += u64::from(self.board.shared.load_acquire(at.plus(word.0)));
        }
    }

    /// Ends everything: DMAs, host answers, links; then checks that the books balance and that nothing is held.
    ///
    /// # Panics
    /// When they do not.
    pub fn quiesce(&mut self) {
        self.board.bar.unhook();
        for port in POSTING {
            let posted = self.posted(PortId(port));
            self.scribble(PortId(port), block::DOORBELL, posted);
        }
        self.drain();
        // All links end: whatever waits for an answer from there gets one. No node greets back, and what is still
        // posted finds no link.
        self.silent = true;
        for id in 0..NODES {
            if self.peers[usize::from(id)].up && NodeId(id) != TARGET {
                let bye = self.peers[usize::from(id)].header(Kind::Bye);
                self.message(&bye);
            }
            self.peers[usize::from(id)].up = false;
        }
        // Longer than a silent peer is probed for.
        for _ in 0..200 {
            self.drain();
            self.pass(Nanos::from_millis(25));
        }
        self.drain();
        self.check();
        self.silent = false;
    }

    /// Ends DMAs and answers the host's questions until nothing is left of them.
    pub fn drain(&mut self) {
        loop {
            self.settle();
            if !self.board.dmas.is_empty() {
                self.end_dma(0, true);
            } else if !self.host.pending.is_empty() {
                self.host.answer(&mut self.board, 0, 190);
            } else {
                break;
            }
        }
    }

    /// The exact value of a shadow counter: asks for one more than it says.
    fn exact(&mut self, port: PortId, fence: WordIndex, shadow: WordIndex) -> u32 {
        let said = self.area_word(port, shadow);
        self.scribble(port, fence, said.wrapping_add(1));
        self.settle();
        self.area_word(port, shadow)
    }

    fn check(&mut self) {
        let counts = *self.nic.counters();
        let tally = self.board.tally;
        let sent = |kind: Kind| tally.sent[usize::from(kind as u8)];
        let windowed: u64 = tally.sent[..16].iter().sum();
        let equal = [
            ("frames", counts.frames, self.frames),
            ("messages", counts.messages_sent, windowed),
            ("bytes", counts.bytes_sent, tally.bytes_sent),
            ("reads", counts.reads_sent, sent(Kind::ReadRequest)),
            ("flushes", counts.flushes_sent, sent(Kind::Flush)),
            ("flush replies", counts.flushes_served, sent(Kind::FlushReply)),
            ("acks", counts.acks_sent, sent(Kind::Ack)),
            ("errors", counts.errors_sent, sent(Kind::Error)),
            ("greetings", counts.hellos_sent, sent(Kind::Hello)),
            ("probes", counts.probes_sent, sent(Kind::Probe)),
            (
                "bounced",
                counts.bounced_not_found + counts.bounced_read_only + counts.bounced_segment,
                tally.to_bounce,
            ),
            (
                "DMAs",
                counts.dma_started,
                tally.to_pages
                    + tally.to_bounce
                    + tally.control_to_bounce
                    + tally.to_staging
                    + tally.operands,
            ),
            ("reached", counts.reached, tally.reached),
            ("late DMAs", counts.dma_late, self.late),
            ("barriers", counts.barriers, self.host.barriers),
            (
                "driver interrupts",
                counts.driver_interrupts,
                tally.driver_interrupts,
            ),
            ("port interrupts", counts.port_interrupts, tally.port_interrupts),
            ("events lost", counts.events_lost, 0),
            ("retransmitted", counts.retransmitted, 0),
        ];
        for (what, said, is) in equal {
            assert_eq!(said, is, "{what}: the NIC says {said}, the board {is}");
        }
        // What has moved for a link that ended meanwhile has not landed: it counts as dropped.
        let moved_in_vain = tally.in_pages.checked_sub(counts.zero_copy);
        assert!(
            moved_in_vain.is_some_and(|count| count <= counts.dropped),
            "zero copy: the NIC says {} and dropped {}, the board {}",
            counts.zero_copy,
            counts.dropped,
            tally.in_pages
        );
        assert!(counts.reads_served <= sent(Kind::ReadReply));
        assert!(counts.inline_sent + counts.staged_sent <= sent(Kind::Write));
        assert!(counts.bounces_ended <= self.host.bounced);

        let mut sums = self.retired;
        for port in OPEN {
            for (sum, word) in sums.iter_mut().zip(PORT_SUMS) {
                *sum += u64::from(self.area_word(PortId(port), word));
            }
        }
        assert_eq!(sums[0], counts.error_records, "error records");
        assert_eq!(sums[1], counts.errors_lost, "errors lost");
        let entries =
            counts.notifications_delivered - counts.notifications_coalesced + counts.one_shot_delivered;
        assert_eq!(sums[2], entries, "entries of notification queues");

        assert!(self.host.all_unlocked(&self.board), "a page is still locked");
        assert!(
            self.board.receives.is_empty(),
            "{} receive buffers are still held",
            self.board.receives.len()
        );
        for port in POSTING {
            let port = PortId(port);
            let posted = self.posted(port);
            let taken = self.exact(port, block::TAKEN_FENCE, TAKEN);
            let writes = self.exact(port, block::WRITE_FENCE, WRITES_DONE);
            let reads = self.exact(port, block::READ_FENCE, READS_DONE);
            assert_eq!(taken, posted, "commands of {port} that were not taken");
            assert_eq!(
                writes.wrapping_add(reads),
                posted,
                "commands of {port} that did not end"
            );
        }
    }

    /// A link comes up, from the other side; the host lets go of the life before.
    pub fn link(&mut self, id: NodeId) {
        let hello = self.peers[id.index()].hello();
        self.message(&hello);
        self.settle();
        self.host.release_peers(&mut self.board);
        self.settle();
    }
}

const PORT_SUMS: [WordIndex; 3] = [ERROR_WRITE, ERRORS_LOST, NOTIFICATION_WRITE];

const fn segment(port: PortId) -> SegmentId {
    SegmentId(port.0 as u32 * 10)
}
