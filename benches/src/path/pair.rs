//! Two NICs joined by the shortest possible wire: memory in slices, DMAs and messages that the caller carries.
//!
//! The platform does next to nothing, so that what is counted is the core: it puts down what it is given.

use super::tray::Tray;
use anyhow::{Context as _, Result, bail, ensure};
use netvm_abi::atomic::Operand;
use netvm_abi::bar::{BarMap, port as block};
use netvm_abi::capability::{Capability, capability_at};
use netvm_abi::command_queue::Producer;
use netvm_abi::control::Modes;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::page_lock;
use netvm_abi::page_table::{PageEntry, PageSlot, PageTable};
use netvm_abi::port_area::TAKEN;
use netvm_abi::ring::{RingPlace, RingReader, RingWriter};
use netvm_abi::shared_map::SharedMap;
use netvm_abi::wire::{HEADER_BYTES, OwnHeader};
use netvm_abi::words::{Part, SharedWords};
use netvm_abi::*;
use netvm_kit::Heap;
use netvm_nic::platform::{Dma, DmaId, Interrupt, Operands, Payload, Platform};
use netvm_nic::{Config, Frame, Nic, Timers};
use std::sync::atomic::AtomicU32;

/// The port that everything happens on.
pub const PORT: PortId = PortId(1);
/// A page of [`PORT`] at the destination that importers may write.
pub const REMOTE: VirtAddr = VirtAddr(0x12000);
/// A page of [`PORT`] at the source.
pub const LOCAL: VirtAddr = VirtAddr(0x5000);

const SECRET: u64 = 0x1234_5678_9ABC_DEF0;
const SEGMENT: SegmentId = SegmentId(5);

/// What a NIC has around it.
pub struct Board {
    bar: Box<[AtomicU32]>,
    shared: Box<[AtomicU32]>,
    /// DMAs that were started.
    pub dmas: Tray<(DmaId, Dma)>,
    /// Messages that were sent, without payload.
    pub outbox: Tray<OwnHeader>,
    /// Staging buffers that have left.
    pub sent: Tray<StagingId>,
    operands: Operands,
}

impl Platform for Board {
    type Bar = [AtomicU32];
    type Shared = [AtomicU32];

    #[inline]
    fn bar(&self) -> &[AtomicU32] {
        &self.bar
    }

    #[inline]
    fn shared(&self) -> &[AtomicU32] {
        &self.shared
    }

    #[inline]
    fn start_dma(&mut self, id: DmaId, dma: Dma) {
        self.dmas.push((id, dma));
    }

    fn operand(&self, slot: u8) -> Operand {
        self.operands.get(slot)
    }

    fn set_operand(&mut self, slot: u8, operand: &Operand) {
        self.operands.set(slot, operand);
    }

    #[inline]
    fn transmit(&mut self, header: &OwnHeader, payload: Payload<'_>) {
        if let Payload::Staging(staging) | Payload::Kept(staging) = payload {
            self.sent.push(staging);
        }
        self.outbox.push(*header);
    }

    #[inline]
    fn release_receive(&mut self, _receive: ReceiveId) {}

    #[inline]
    fn interrupt(&mut self, _whom: Interrupt) {}
}

/// A NIC, its surroundings, and the host's and an application's end of its queues.
pub struct End {
    /// The core.
    pub nic: Nic<Heap>,
    /// The platform.
    pub board: Board,
    geometry: Geometry,
    table: PageTable,
    events: RingReader,
    to_nic: RingWriter,
    commands: Producer,
}

impl End {
    fn new(node: u16) -> Result<Self> {
        let config = Config {
            node: NodeId(node),
            incarnation_seed: 0x1000 + u32::from(node),
            // As of a link that has been used on an idle network: all of its window may be on the wire.
            timers: Timers {
                queueing: Nanos::MAX,
                ..Timers::default()
            },
            ..Config::default()
        };
        let geometry = config.geometry;
        let mut nic = Nic::new(config, &mut Heap::default())
            .map_err(|error| anyhow::anyhow!("making a NIC: {error}"))?;
        let words = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        let mut board = Board {
            bar: words(BarMap::new(&geometry).words),
            shared: words(SharedMap::new(&geometry).words),
            dmas: Tray::default(),
            outbox: Tray::default(),
            sent: Tray::default(),
            operands: Operands::new(),
        };
        nic.attach(&mut board);
        Ok(Self {
            nic,
            board,
            geometry,
            table: PageTable::of(&geometry, config.hash_key),
            events: RingReader::new(RingPlace::nic_events(&geometry)),
            to_nic: RingWriter::new(RingPlace::host_events(&geometry)),
            commands: Producer::default(),
        })
    }

    /// Host: posts an event.
    ///
    /// # Errors
    /// The ring is full.
    pub fn tell(&mut self, event: HostEvent) -> Result<()> {
        let posted = self
            .to_nic
            .push(&*self.board.bar, &*self.board.shared, &event.encode());
        ensure!(posted, "the host's event ring is full");
        Ok(())
    }

    /// Host: the next event of the NIC.
    pub fn event(&mut self) -> Option<NicEvent> {
        let words = self.events.pop(&*self.board.shared, &*self.board.bar)?;
        NicEvent::decode(&words)
    }

    /// Host: maps a page in a place of its own.
    pub fn map(&self, address: VirtAddr) -> PageSlot {
        let vpn = Vpn::of(PORT, address);
        let [slot, ..] = self.table.places(vpn);
        let entry = PageEntry {
            vpn,
            ppn: Ppn(address.page_number() + 100),
            segment: SEGMENT,
            writable: true,
        };
        page_lock::publish(&*self.board.bar, &self.table, slot, &entry);
        slot
    }

    /// Host: unmaps it.
    pub fn unmap(&self, slot: PageSlot) {
        page_lock::retract(&*self.board.bar, &self.table, slot);
        self.board.bar.full_barrier();
    }

    /// Host: lets node 0 write the 16 pages around [`REMOTE`].
    fn grant(&self) {
        let capability = Capability {
            port: PORT,
            modes: Modes::all(),
            segment: SEGMENT,
            holder: NodeId(0),
            holder_port: PORT,
            start: VirtAddr(0x10000),
            end: VirtAddr(0x20000),
            secret: SECRET,
            notify_first: NotificationId(1),
            notify_last: NotificationId(u32::MAX),
            ..Capability::NOTHING
        };
        let at = capability_at(BarMap::new(&self.geometry).capabilities, CapabilitySlot(3));
        capability.publish(&*self.board.bar, at);
    }

    /// Application: posts a write of `len` bytes to node 1, its payload in the descriptor if it is small.
    ///
    /// # Errors
    /// The queue is full.
    pub fn post(&mut self, len: u32, notification: u32) -> Result<()> {
        let inline = len <= 8;
        let command = Command {
            flags: if inline {
                CommandFlags::INLINE
            } else {
                CommandFlags::empty()
            },
            len: ByteLen(len),
            node: NodeId(1),
            port: PORT,
            capability: CapabilitySlot(3),
            secret: SECRET,
            remote: REMOTE,
            local: LOCAL,
            notification: NotificationId(notification),
            op: OpId(1),
            ..Command::default()
        };
        let payload: &[u32] = if inline { &[7, 8] } else { &[] };
        self.queue(&command, payload)
    }

    /// Application: posts what node 1 has to answer: a read of four bytes, or an atomic.
    ///
    /// # Errors
    /// The queue is full.
    pub fn ask(&mut self, opcode: Opcode) -> Result<()> {
        let len = ByteLen(if opcode == Opcode::Read { 4 } else { 0 });
        let command = Command {
            opcode,
            len,
            node: NodeId(1),
            port: PORT,
            capability: CapabilitySlot(3),
            secret: SECRET,
            remote: REMOTE,
            local: LOCAL,
            op: OpId(1),
            operand: 1,
            reply: ReplySlot(0),
            ..Command::default()
        };
        self.queue(&command, &[])
    }

    fn queue(&mut self, command: &Command, payload: &[u32]) -> Result<()> {
        let map = BarMap::new(&self.geometry);
        let block = Part::new(&*self.board.bar, map.port(PORT), block::BLOCK_WORDS);
        let area = SharedMap::new(&self.geometry).port_area(PORT);
        let taken = self.board.shared.load_acquire(area.plus(TAKEN.0));
        self.commands.update_taken(taken);
        ensure!(
            self.commands.post(&block, &command.encode(), payload),
            "the command queue is full"
        );
        Ok(())
    }

    /// The oldest DMA that was started.
    ///
    /// # Errors
    /// None was.
    pub fn dma(&mut self) -> Result<DmaId> {
        Ok(self.board.dmas.pop().context("no DMA was started")?.0)
    }

    /// The frame that carries the oldest message sent.
    ///
    /// # Errors
    /// None was.
    pub fn frame(&mut self) -> Result<Frame> {
        let header = self.board.outbox.pop().context("no message was sent")?;
        Ok(frame_of(&header))
    }
}

fn frame_of(header: &OwnHeader) -> Frame {
    Frame::new(
        ReceiveId(0),
        &header.to_bytes(),
        HEADER_BYTES + usize::from(header.payload_len()),
    )
}

/// Source (node 0) and destination (node 1).
pub struct Pair {
    /// Node 0.
    pub source: End,
    /// Node 1.
    pub destination: End,
    /// The time; the caller's to move.
    pub now: Nanos,
}

impl Pair {
    /// Two linked NICs; [`LOCAL`] and [`REMOTE`] are mapped, and node 0 may write there.
    ///
    /// # Errors
    /// The link does not come up.
    pub fn linked() -> Result<Self> {
        let mut pair = Self {
            source: End::new(0)?,
            destination: End::new(1)?,
            now: Nanos(0),
        };
        for end in [&mut pair.source, &mut pair.destination] {
            end.tell(HostEvent::PortOpen {
                port: PORT,
                generation: Generation(7),
                counts_from: 0,
            })?;
            for peer in 0..2 {
                end.tell(HostEvent::PeerConnect { peer: NodeId(peer) })?;
            }
        }
        pair.settle()?;
        ensure!(
            pair.source.nic.counters().links_up == 2 && pair.destination.nic.counters().links_up == 2,
            "the link does not come up"
        );
        pair.source.map(LOCAL);
        pair.destination.map(REMOTE);
        pair.destination.grant();
        Ok(pair)
    }

    /// Carries everything until nothing moves: what a case does between the calls that it measures.
    ///
    /// # Errors
    /// It does not come to rest.
    #[inline(never)]
    pub fn settle(&mut self) -> Result<()> {
        for _ in 0..1000 {
            self.now.0 += 1000;
            let now = self.now;
            let mut moved = false;
            for end in [&mut self.source, &mut self.destination] {
                moved |= end.nic.handle_host_events(&mut end.board, now, 16);
                moved |= end.nic.handle_doorbells(&mut end.board, now, 16);
                while let Some(staging) = end.board.sent.pop() {
                    end.nic.handle_sent(&mut end.board, now, staging);
                }
                while let Some((id, _)) = end.board.dmas.pop() {
                    end.nic.handle_dma_done(&mut end.board, now, id, true);
                    moved = true;
                }
                while let Some(event) = end.event() {
                    moved = true;
                    let answer = match event {
                        NicEvent::PeerReset { peer, incarnation }
                        | NicEvent::PeerLost { peer, incarnation } => {
                            HostEvent::PeerReleased { peer, incarnation }
                        }
                        NicEvent::Bounced { bounce, generation } => HostEvent::BounceEnded {
                            bounce,
                            generation,
                            status: Status::Ok,
                        },
                        _ => continue,
                    };
                    end.tell(answer)?;
                }
            }
            let mut messages: Vec<OwnHeader> = Vec::new();
            for end in [&mut self.source, &mut self.destination] {
                messages.extend(std::iter::from_fn(|| end.board.outbox.pop()));
            }
            moved |= !messages.is_empty();
            for header in &messages {
                self.deliver(header);
            }
            if !moved {
                return Ok(());
            }
        }
        bail!("the NICs do not come to rest")
    }

    fn deliver(&mut self, header: &OwnHeader) {
        let frame = frame_of(header);
        let to = if header.destination() == self.source.nic.config().node {
            &mut self.source
        } else {
            &mut self.destination
        };
        to.nic.handle_frame(&mut to.board, self.now, &frame);
    }
}
