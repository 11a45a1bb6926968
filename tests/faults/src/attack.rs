//! Random and mutated descriptors and frames, from a seed; around them everything that happens in an honest node as
//! well: pages come and go, DMAs end late and out of order, the host answers, ports close, links fail.
//!
//! A case is one descriptor posted or one frame received. Most are near the truth (a live capability, the right
//! incarnation, a number inside the window), because only these get past the first check; then a word or a bit is wrong.

use crate::stand::{BASE, NODES, OPEN, PAGES, POSTING, Stand, TARGET};
use netvm_abi::bar::port as block;
use netvm_abi::descriptor::{Command, CommandFlags, DESCRIPTOR_WORDS, HEAD_WORDS, Opcode};
use netvm_abi::event::HostEvent;
use netvm_abi::wire::{HEADER_BYTES, Header, Kind, MessageFlags};
use netvm_abi::{
    ByteLen, CapabilitySlot, Epoch, Generation, Nanos, NodeId, NotificationId, OpId, PortId, ReplySlot, Seq,
    Token, VirtAddr,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How often each kind of attack was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Made {
    /// Descriptors that were near the truth.
    pub descriptors: u64,
    /// Descriptors of random words.
    pub random_descriptors: u64,
    /// Descriptors in memory that answers each load differently.
    pub lying_descriptors: u64,
    /// Frames that were near the truth.
    pub frames: u64,
    /// Frames of random bytes.
    pub random_frames: u64,
    /// Doorbells that no queue can show.
    pub broken_doorbells: u64,
    /// Ends of DMAs that were not under way.
    pub late_dmas: u64,
}

impl Made {
    /// Descriptors posted and frames received.
    #[must_use]
    pub const fn cases(&self) -> u64 {
        self.descriptors + self.random_descriptors + self.lying_descriptors + self.frames + self.random_frames
    }
}

/// An attack on one NIC.
pub struct Attack {
    /// What is attacked.
    pub stand: Stand,
    /// What was done.
    pub made: Made,
    random: ChaCha8Rng,
    hold: u32,
    /// Most of what is sent is true, and notifications are one-shot and never taken: so that things pile up that a wild
    /// attack never lets pile up.
    calm: bool,
}

impl Attack {
    /// The attack of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut stand = Stand::new();
        stand.board.in_place = seed % 2 == 1;
        stand.board.reaches = seed % 4 == 1;
        Self {
            stand,
            made: Made::default(),
            random: ChaCha8Rng::seed_from_u64(seed),
            hold: 0,
            calm: seed % 8 == 7,
        }
    }

    /// Makes cases until there are `cases` in all. A descriptor that finds its queue full is none.
    pub fn run(&mut self, cases: u64) {
        while self.made.cases() < cases {
            self.case();
        }
    }

    /// One descriptor or frame, and some of what goes on beside.
    fn case(&mut self) {
        match self.random.random_range(0..100) {
            0..48 => self.good_frame(),
            48..52 => self.random_frame(),
            52..92 => self.good_descriptor(),
            92..95 => self.random_descriptor(),
            _ => self.lying_descriptor(),
        }
        // Now and then no DMA ends for a while, until none can be started any more.
        if self.hold == 0 && self.random.random_ratio(1, 2_000) {
            self.hold = 1_500;
        }
        self.hold = self.hold.saturating_sub(1);
        let any = !self.stand.board.dmas.is_empty();
        if any && self.hold == 0 && self.random.random_ratio(2, 3) {
            let at = self.random.random_range(0..self.stand.board.dmas.len());
            let ok = self.random.random_ratio(31, 32);
            self.stand.end_dma(at, ok);
        }
        if self.random.random_ratio(1, 3) {
            self.stand.settle();
        }
        if !self.stand.host.pending.is_empty() && self.random.random_ratio(1, 2) {
            let at = self.random.random_range(0..self.stand.host.pending.len());
            let choice = if self.calm { 190 } else { self.random.random() };
            self.stand.host.answer(&mut self.stand.board, at, choice);
        }
        match self.random.random_range(0..256) {
            0..40 => self.page(),
            40..60 | 100..220 => self.answer(),
            60..70 => self.scribble(),
            70..78 => self.late_dma(),
            78..90 => self.stand.pass(Nanos::from_micros(60)),
            90 => self.stand.pass(Nanos::from_millis(30)),
            91 => self.broken_doorbell(),
            92 | 93 if !self.calm => {
                let slot = CapabilitySlot(self.random.random_range(0..64));
                self.stand.toggle_capability(slot);
            }
            94 if self.random.random_ratio(1, 16) => {
                let port = if self.random.random() {
                    PortId(4)
                } else {
                    PortId(6)
                };
                self.stand.close(port);
            }
            95 => {
                let token = Token(self.random.random());
                self.stand.settle();
                self.stand
                    .host
                    .tell(&self.stand.board, HostEvent::Barrier { token });
            }
            98 => {
                let slot = CapabilitySlot(self.random.random_range(0..80));
                let latest = self.stand.host.lease(slot).unwrap_or_default();
                let generation = Generation(latest.wrapping_sub(self.random.random_range(0..2)));
                let token = Token(self.random.random());
                self.stand.settle();
                let ask = HostEvent::LeaseAsk {
                    slot,
                    generation,
                    token,
                };
                self.stand.host.tell(&self.stand.board, ask);
            }
            97 => {
                let (peer, slot, token) = (
                    NodeId(self.peer() as u16),
                    self.random.random_range(0..66),
                    Token(1),
                );
                self.stand.settle();
                self.stand
                    .host
                    .tell(&self.stand.board, HostEvent::SendControl { peer, slot, token });
            }
            96 if self.random.random_ratio(1, 64) => self.greet(),
            _ => {}
        }
    }

    fn peer(&mut self) -> usize {
        let id = self.random.random_range(0..NODES - 1);
        usize::from(if id >= TARGET.0 { id + 1 } else { id })
    }

    fn any_port(&mut self) -> PortId {
        PortId(self.random.random_range(OPEN))
    }

    fn posting_port(&mut self) -> PortId {
        PortId(self.random.random_range(POSTING))
    }

    /// An address and a length that stay in one page, mostly.
    fn place(&mut self) -> (u64, u32) {
        let page = BASE + self.random.random_range(0..PAGES) * 4096;
        let len = match self.random.random_range(0..8) {
            0 => 0,
            1..4 => self.random.random_range(1..=128),
            4 => 8,
            5 => 4096,
            _ => self.random.random_range(1..=4096),
        };
        let offset = self.random.random_range(0..=4096 - len);
        (page + u64::from(offset.min(4095)), len)
    }

    fn notification(&mut self) -> NotificationId {
        if self.calm {
            return NotificationId(self.random.random_range(900..2500));
        }
        NotificationId(match self.random.random_range(0..6) {
            0 | 1 => self.random.random_range(1..40),
            2 => self.random.random_range(1000..2000),
            3 if self.random.random_ratio(1, 8) => self.random.random(),
            _ => 0,
        })
    }

    fn greet(&mut self) {
        let at = self.peer();
        let mut hello = self.stand.peers[at].hello();
        if self.random.random_ratio(1, 4) {
            // Another window, page size or version.
            hello.raw.compare ^= 1 << self.random.random_range(0..20);
        }
        self.stand.message(&hello);
    }

    /// A message that its sender may send, nearly.
    fn good_frame(&mut self) {
        self.made.frames += 1;
        let at = self.peer();
        if !self.stand.peers[at].up {
            match self.random.random_range(0..8) {
                0 => self.greet(),
                1 => {
                    let probe = self.stand.peers[at].header(Kind::Probe);
                    self.stand.message(&probe);
                }
                2 => {
                    let peer = self.stand.peers[at].id;
                    self.stand.settle();
                    self.stand
                        .host
                        .tell(&self.stand.board, HostEvent::PeerConnect { peer });
                }
                _ => self.stand.link(NodeId(at as u16)),
            }
            return;
        }
        let roll = self.random.random_range(0..100);
        let kind = match roll {
            0..50 => Kind::Write,
            50..68 => Kind::ReadRequest,
            68..72 => Kind::Flush,
            72..75 => Kind::Control,
            75..81 => Kind::AtomicRequest,
            81..88 => Kind::Ack,
            88..90 => Kind::Error,
            90..92 => Kind::Probe,
            92..94 => Kind::ReadReply,
            _ => *Kind::ALL.get(roll % Kind::ALL.len()).unwrap_or(&Kind::Probe),
        };
        let mut header = if kind == Kind::Ack {
            self.stand.peers[at].ack()
        } else {
            self.stand.peers[at].header(kind)
        };
        self.fill(&mut header, at);
        let mutated = self.mutate(&mut header);
        if kind.is_windowed() && self.stand.peers[at].room() == 0 {
            // Where does the window stand?
            let probe = self.stand.peers[at].header(Kind::Probe);
            self.stand.message(&probe);
            self.stand.settle();
        }
        let before = self.stand.nic.counters().messages_received;
        let mut bytes = [0; HEADER_BYTES + 4096];
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        let mut len = HEADER_BYTES + usize::from(header.len).min(4096);
        if mutated && self.random.random_ratio(1, 8) {
            let at = self.random.random_range(0..HEADER_BYTES);
            bytes[at] ^= 1 << self.random.random_range(0..8);
            len = self.random.random_range(0..=len);
        }
        self.stand.frame(&bytes[..len]);
        // Refused or a duplicate: the number is still to be used.
        if self.stand.nic.counters().messages_received > before && header.seq == self.stand.peers[at].next {
            self.stand.peers[at].number();
        }
    }

    fn fill(&mut self, header: &mut Header, at: usize) {
        let port = self.any_port();
        let (address, len) = self.place();
        let holder = [0, 2, 3].iter().position(|&node| node == at).unwrap_or(0) as u32;
        let kind = if self.calm {
            0
        } else {
            self.random.random_range(0..3)
        };
        let slot = 9 * (u32::from(port.0) - 1) + 3 * holder + kind;
        header.address = VirtAddr(address);
        header.capability = CapabilitySlot(slot);
        header.secret = 0x5EC2_E700_0000_0000 | u64::from(slot);
        header.source_port = PortId(slot as u16 % 3 + 1);
        header.destination_port = port;
        header.epoch = Epoch(self.random.random_range(0..3));
        header.op = OpId(self.random.random());
        header.seq = if header.kind == Kind::Ack {
            header.seq
        } else {
            self.stand.peers[at].next
        };
        if self.random.random_ratio(1, 16) {
            header.flags |= MessageFlags::ORDERED;
        }
        if self.random.random_ratio(1, 4) {
            header.flags |= MessageFlags::ACK_REQUEST;
        }
        match header.kind {
            Kind::Write => {
                header.len = len as u16;
                header.notification = self.notification();
                if kind == 0 && self.random.random_ratio(1, 8) {
                    header.flags |= MessageFlags::APPEND;
                    header.len = self.random.random_range(0..1040);
                    if self.random.random_ratio(7, 8) {
                        header.notification = NotificationId::NONE;
                    }
                }
            }
            Kind::ReadRequest => {
                header.raw.compare = u64::from(len);
                header.raw.operand = self.random.random();
            }
            Kind::Control => {
                header.len = 128;
                header.source_port = PortId(0);
                header.destination_port = PortId(0);
            }
            Kind::Flush => header.raw.operand = self.random.random(),
            Kind::AtomicRequest => {
                // Half of them without a value's type, and now and then a code that is none.
                let last = if self.random.random() { 38 } else { u8::MAX };
                header.raw.status = self.random.random_range(Opcode::TestAndSet.code()..=last);
                header.raw.operand = self.random.random_range(0..4);
                header.raw.compare = self.random.random_range(0..4);
                if self.random.random_ratio(1, 16) {
                    header.raw.status = Opcode::ExtendLease.code();
                    header.raw.operand = self.random.random_range(0..2_000_000_000);
                    if let Some(generation) = self.stand.host.lease(header.capability) {
                        header.raw.compare = u64::from(generation - self.random.random_range(0..2));
                    }
                }
                if self.random.random() {
                    header.flags |= MessageFlags::WIDE;
                }
                if self.random.random_ratio(15, 16) {
                    header.address.0 &= !31;
                }
            }
            Kind::ReadReply => {
                header.len = len as u16;
                header.raw.operand = self.random.random_range(0..8) | (self.random.random_range(0..64) << 32);
            }
            Kind::Error => {
                header.destination_port = self.posting_port();
                header.raw.status = self.random.random();
                header.raw.compare = 1;
            }
            _ => {}
        }
    }

    /// Breaks a header, perhaps; whether it did.
    fn mutate(&mut self, header: &mut Header) -> bool {
        let kinds = if self.calm { 4096 } else { 64 };
        match self.random.random_range(0..kinds) {
            0 => header.secret ^= 1 << self.random.random_range(0..64),
            1 => header.capability = CapabilitySlot(self.random.random_range(0..80)),
            2 => header.address = VirtAddr(header.address.0 ^ (1 << self.random.random_range(0..64))),
            3 => header.address = VirtAddr(u64::MAX - u64::from(self.random.random::<u16>())),
            4 => header.len = self.random.random(),
            5 => {
                header.seq = Seq(header
                    .seq
                    .0
                    .wrapping_add(self.random.random_range(0..200))
                    .wrapping_sub(100))
            }
            6 => header.seq = Seq(self.random.random()),
            7 => header.source = NodeId(self.random.random_range(0..6)),
            8 => header.source_port = PortId(self.random.random_range(0..12)),
            9 => header.destination_port = PortId(self.random.random_range(0..12)),
            10 => header.destination = NodeId(self.random.random()),
            11 => header.source_incarnation.0 ^= 1 << self.random.random_range(0..32),
            12 => header.destination_incarnation.0 ^= 1 << self.random.random_range(0..32),
            13 => header.raw.operand = self.random.random(),
            14 => header.raw.compare = self.random.random(),
            15 => header.raw.status = self.random.random(),
            16 => header.notification = NotificationId(self.random.random()),
            17 => header.op = OpId(self.random.random()),
            _ => return false,
        }
        true
    }

    fn random_frame(&mut self) {
        self.made.random_frames += 1;
        let mut bytes = [0; 300];
        self.random.fill(&mut bytes[..]);
        if self.random.random() {
            bytes[..4].copy_from_slice(&[b'N', b'V', 1, self.random.random_range(0..32)]);
            bytes[4] &= 15;
        }
        let len = self.random.random_range(0..=bytes.len());
        self.stand.frame(&bytes[..len]);
    }

    /// Answers what the target has asked for.
    fn answer(&mut self) {
        let at = self.peer();
        let ack = self.stand.peers[at].ack();
        self.stand.message(&ack);
        if self.stand.peers[at].requests.is_empty() {
            return;
        }
        let index = self.random.random_range(0..self.stand.peers[at].requests.len());
        let request = self.stand.peers[at].requests.swap_remove(index);
        let mut answer = self.stand.peers[at].answer(&request);
        match self.random.random_range(0..16) {
            0 => answer.len = answer.len.wrapping_add(1).min(4096),
            1 => answer.raw.status = self.random.random(),
            2 => answer.raw.operand ^= 1 << self.random.random_range(0..64),
            3 => {
                // Twice.
                self.stand.message(&answer);
            }
            _ => {}
        }
        self.stand.message(&answer);
    }

    fn command(&mut self) -> Command {
        let (remote, len) = self.place();
        let (local, _) = self.place();
        let local = local & !0xFFF;
        let opcode = match self.random.random_range(0..16) {
            0..9 => Opcode::Write,
            9..14 => Opcode::Read,
            14 => Opcode::FlushRemote,
            _ => Opcode::from_code(self.random.random()).unwrap_or(Opcode::Swap),
        };
        let inline = opcode == Opcode::Write && len <= 128 && self.random.random();
        let mut flags = CommandFlags::empty();
        flags.set(CommandFlags::INLINE, inline);
        flags.set(CommandFlags::ORDERED, self.random.random_ratio(1, 16));
        flags.set(CommandFlags::APPEND, self.random.random_ratio(1, 16));
        let alone = opcode == Opcode::FlushRemote || opcode.is_atomic();
        let remote = if opcode.is_atomic() { remote & !31 } else { remote };
        let at = self.peer();
        Command {
            opcode,
            flags,
            len: ByteLen(if alone { 0 } else { len }),
            node: NodeId(at as u16),
            port: PortId(1),
            capability: CapabilitySlot(self.random.random_range(0..64)),
            secret: self.random.random(),
            remote: VirtAddr(remote),
            local: VirtAddr(local),
            notification: self.notification(),
            op: OpId(self.random.random()),
            reply: if self.random.random() {
                ReplySlot::NONE
            } else {
                ReplySlot(self.random.random_range(0..66))
            },
            epoch: Epoch(self.random.random_range(0..3)),
            operand: self.random.random(),
            compare: self.random.random(),
        }
    }

    fn good_descriptor(&mut self) {
        let port = self.posting_port();
        let mut head = self.command().encode();
        if self.random.random_ratio(1, 4) {
            let at = self.random.random_range(0..HEAD_WORDS);
            head[at] ^= 1 << self.random.random_range(0..32);
        }
        self.made.descriptors += u64::from(self.post(port, &head));
    }

    fn random_descriptor(&mut self) {
        let port = self.posting_port();
        let mut head = [0; HEAD_WORDS];
        self.random.fill(&mut head[..]);
        if self.random.random() {
            head[0] = (head[0] & 0xFFFF_0700) | u32::from(self.random.random_range(1..4_u8));
        }
        self.made.random_descriptors += u64::from(self.post(port, &head));
    }

    /// A descriptor whose memory answers each load differently.
    fn lying_descriptor(&mut self) {
        let port = self.posting_port();
        let seed = self.random.random::<u32>() | 1;
        self.stand.lie(port, Vec::new(), seed);
        let head = self.command().encode();
        self.made.lying_descriptors += u64::from(self.post(port, &head));
        self.stand.settle();
        self.stand.board.bar.unhook();
    }

    /// Posts; false when the queue stays full.
    fn post(&mut self, port: PortId, head: &[u32; HEAD_WORDS]) -> bool {
        let mut inline = [0; DESCRIPTOR_WORDS - HEAD_WORDS];
        inline[0] = self.random.random();
        self.stand.post(port, head, &inline) || {
            self.stand.settle();
            self.stand.post(port, head, &inline)
        }
    }

    /// A page is mapped or unmapped.
    fn page(&mut self) {
        let port = self.any_port();
        let page = self.random.random_range(0..PAGES);
        if self.random.random_ratio(1, 3) || page == 5 {
            self.stand.unmap(port, page);
        } else {
            self.stand.map(port, page);
        }
    }

    /// An application stores anything to a word that is its own.
    fn scribble(&mut self) {
        if self.calm {
            return;
        }
        let words = [
            block::WRITE_FENCE,
            block::READ_FENCE,
            block::NOTIFICATION_READ,
            block::ERROR_READ,
            block::QUEUE_FREED,
            block::TAKEN_FENCE,
            block::WAKE_ON_QUEUE,
            block::INTERRUPT_ENABLE,
            block::ACKNOWLEDGED,
        ];
        let port = self.any_port();
        let word = words[self.random.random_range(0..words.len())];
        let value = match self.random.random_range(0..4) {
            0 => self.random.random(),
            1 => self
                .stand
                .area_word(port, netvm_abi::port_area::NOTIFICATION_WRITE),
            2 => self.stand.area_word(port, netvm_abi::port_area::ERROR_WRITE),
            _ => self.stand.posted(port),
        };
        self.stand.scribble(port, word, value);
    }

    fn late_dma(&mut self) {
        self.made.late_dmas += 1;
        let slot = self.random.random_range(0..=80);
        let generation = if self.random.random() {
            self.random.random_range(0..100_000)
        } else {
            self.random.random()
        };
        self.stand.late_dma(slot, generation);
    }

    fn broken_doorbell(&mut self) {
        self.made.broken_doorbells += 1;
        let port = self.posting_port();
        let posted = self.stand.posted(port);
        // Past anything that is posted, whatever has been taken.
        let wrong = posted.wrapping_add(self.random.random_range(65..1 << 31));
        self.stand.scribble(port, block::DOORBELL, wrong);
        self.stand.settle();
        self.stand.scribble(port, block::DOORBELL, posted);
    }
}
