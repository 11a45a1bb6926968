//! A card: the NIC core under the shipped loop, over simulated buffers, DMA engines and links.

use crate::dma::{DmaSpeed, Engines};
use crate::faults::FaultKind;
use crate::heap::Heap;
use crate::link::Fate;
use crate::node::Node;
use crate::seen::{DmaNumber, Place, Seen, Way, digest};
use crate::sim::{Event, Sim};
use crate::vm::PAGE;
use crate::words::{Side, Space, View};
use netvm_abi::wire::{HEADER_BYTES, Header, Kind};
use netvm_abi::{BounceId, Geometry, Nanos, NodeId, PageOffset, ReceiveId, StagingId};
use netvm_nic::platform::{Dma, DmaId, Interrupt, PageRange, Payload, Platform};
use netvm_nic::{Config, Nic};
use netvm_platform::{Device, DmaEnd, Driver as Loop, Frame};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

/// A DMA under way.
struct Active {
    id: DmaId,
    dma: Dma,
    /// Bytes as they were read, between the two ends.
    moved: bool,
}

/// What of a card the rest of its node can reach: buffers, engines, bounce pages.
pub(crate) struct Bus {
    engines: Option<Engines>,
    active: BTreeMap<DmaNumber, Active>,
    done: VecDeque<DmaEnd>,
    sent: VecDeque<StagingId>,
    frames: VecDeque<(ReceiveId, Rc<[u8]>)>,
    receive: BTreeMap<u32, Rc<[u8]>>,
    /// Numbers of receive buffers that are free again, and the lowest never used.
    free_receive: Vec<u32>,
    next_receive: u32,
    staging: Vec<Box<[u8; PAGE]>>,
    /// Bounce pages, allocated with their first use.
    pub(crate) bounce: BTreeMap<BounceId, Box<[u8; PAGE]>>,
}

impl Bus {
    /// An idle bus.
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            engines: None,
            active: BTreeMap::new(),
            done: VecDeque::new(),
            sent: VecDeque::new(),
            frames: VecDeque::new(),
            receive: BTreeMap::new(),
            free_receive: Vec::new(),
            next_receive: 0,
            staging: (0..geometry.staging).map(|_| Box::new([0; PAGE])).collect(),
            bounce: BTreeMap::new(),
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bounce.len() * PAGE
            + self.staging.len() * PAGE
            + self.receive.values().map(|frame| frame.len()).sum::<usize>()
    }

    /// Forgets everything that a card forgets when it is reset.
    pub(crate) fn reset(&mut self) {
        self.done.clear();
        self.sent.clear();
        self.frames.clear();
        self.receive.clear();
        self.free_receive.clear();
        self.next_receive = 0;
    }

    /// Whether a DMA is under way.
    pub(crate) fn busy(&self) -> bool {
        !self.active.is_empty()
    }

    /// Whether the card has inputs.
    fn has_input(&self) -> bool {
        !(self.done.is_empty() && self.sent.is_empty() && self.frames.is_empty())
    }

    /// Stops bus mastering: whatever is under way is cut off. Gives what it was.
    pub(crate) fn stop(&mut self) -> Vec<DmaNumber> {
        let numbers = self.active.keys().copied().collect();
        self.active.clear();
        self.done.clear();
        numbers
    }
}

/// The firmware of a card.
pub(crate) struct Card {
    nic: Nic<Heap>,
    run: Loop,
    device: CardDevice,
}

/// The NIC core's surroundings.
struct CardDevice {
    sim: Weak<Sim>,
    node: NodeId,
    life: u32,
    bar: View,
    shared: View,
}

impl Card {
    /// Boots a card: firmware up, BAR header published.
    pub(crate) fn boot(sim: &Sim, node: &Node, config: Config, speed: DmaSpeed) -> Result<Self, String> {
        let words = node.words();
        let mut device = CardDevice {
            sim: sim.me.clone(),
            node: node.id,
            life: node.life.get(),
            bar: View::whole(&words, Side::Nic, Space::Bar),
            shared: View::whole(&words, Side::Nic, Space::Shared),
        };
        node.bus.borrow_mut().engines = Some(Engines::new(speed));
        let mut nic = Nic::new(config, &mut Heap).map_err(|error| error.to_string())?;
        nic.attach(&mut device);
        words.drain(Side::Nic);
        Ok(Self {
            nic,
            run: Loop::new(),
            device,
        })
    }

    /// What the NIC counted.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.nic.counters().iter()
    }
}

/// One pass of a card, if it is there and awake; posts the next one.
pub(crate) fn pass(sim: &Sim, node: &Node) {
    if node.card_gone.get() {
        return;
    }
    let Ok(mut slot) = node.card.try_borrow_mut() else {
        return;
    };
    let Some(card) = slot.as_mut() else { return };
    let progress = card.run.poll_once(&mut card.nic, &mut card.device);
    let asleep = !progress.more && card.run.try_sleep(&card.nic, &mut card.device);
    drop(slot);
    if !asleep {
        node.kick(sim, sim.span(Nanos(100), Nanos(600)));
    } else if let Some(deadline) = progress.deadline {
        // A separate event: the card may be kicked earlier for other reasons.
        let (now, posted) = (sim.now(), node.card_deadline.get());
        let at = deadline.max(now.after(Nanos(1)));
        if at < posted || posted <= now {
            node.card_deadline.set(at);
            sim.at(
                at,
                Event::Card {
                    node: node.id,
                    life: node.life.get(),
                },
            );
        }
    }
}

impl CardDevice {
    fn sim(&self) -> Rc<Sim> {
        // The card is owned by the world, which runs it.
        self.sim
            .upgrade()
            .unwrap_or_else(|| unreachable!("a card outlived its world"))
    }
}

impl Platform for CardDevice {
    type Bar = View;
    type Shared = View;

    fn bar(&self) -> &View {
        &self.bar
    }

    fn shared(&self) -> &View {
        &self.shared
    }

    fn start_dma(&mut self, id: DmaId, dma: Dma) {
        let sim = self.sim();
        let node = sim.node(self.node);
        let number = sim.next_dma.get();
        sim.next_dma.set(number + 1);
        let len = match dma {
            Dma::PageToStaging { page, .. } | Dma::ReceiveToPage { page, .. } => page.len.0,
            Dma::ReceiveToBounce { len, .. } | Dma::BounceToStaging { len, .. } => len.0,
        };
        let states = node.states();
        let schedule = {
            let mut bus = node.bus.borrow_mut();
            let Some(engines) = bus.engines.as_mut() else {
                return;
            };
            engines.start(
                sim.now(),
                len,
                states,
                &mut sim.faults.borrow_mut(),
                &mut sim.dice.borrow_mut(),
            )
        };
        if let Some((way, page)) = page_of(dma) {
            let (ppn, place) = (page.ppn, place_of(page));
            sim.see(Seen::DmaStart {
                node: self.node,
                dma: number,
                way,
                ppn,
                place,
            });
            let activity = if way == Way::ToPage {
                &node.activity.landing
            } else {
                &node.activity.staging
            };
            activity.set(activity.get() + 1);
        }
        sim.note(
            self.node,
            match dma {
                Dma::PageToStaging { .. } => "dma page to staging",
                Dma::ReceiveToPage { .. } => "dma receive to page",
                Dma::ReceiveToBounce { .. } => "dma receive to bounce",
                Dma::BounceToStaging { .. } => "dma bounce to staging",
            },
            &fields_of(number, dma, len),
        );
        node.bus.borrow_mut().active.insert(
            number,
            Active {
                id,
                dma,
                moved: false,
            },
        );
        let (node, life) = (self.node, self.life);
        sim.at(
            schedule.moves,
            Event::DmaMove {
                node,
                life,
                dma: number,
            },
        );
        sim.at(
            schedule.done,
            Event::DmaDone {
                node,
                life,
                dma: number,
            },
        );
        if let Some(again) = schedule.again {
            sim.at(
                again,
                Event::DmaDone {
                    node,
                    life,
                    dma: number
                        | AGAIN
                        | u64::from(id.slot) << 32
                        | (u64::from(id.generation) & 0xFF_FFFF) << 40,
                },
            );
        }
    }

    fn transmit(&mut self, header: &Header, payload: Payload<'_>) {
        let sim = self.sim();
        let node = sim.node(self.node);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + usize::from(header.len));
        bytes.extend_from_slice(&header.encode());
        let len = usize::from(header.len);
        let staging = match payload {
            Payload::Empty => None,
            Payload::Inline(words) => {
                bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()).take(len));
                None
            }
            Payload::Staging(staging) => {
                let bus = node.bus.borrow();
                if let Some(buffer) = bus.staging.get(staging.index()) {
                    bytes.extend_from_slice(&buffer[..len.min(PAGE)]);
                }
                Some(staging)
            }
        };
        transmit(&sim, self.node, header, bytes.into());
        if let Some(staging) = staging {
            let at = sim.fabric.borrow().sent_at(self.node).max(sim.now());
            sim.at(
                at,
                Event::Sent {
                    node: self.node,
                    life: self.life,
                    staging,
                },
            );
        }
    }

    fn release_receive(&mut self, receive: ReceiveId) {
        let sim = self.sim();
        let mut bus = sim.node(self.node).bus.borrow_mut();
        if bus.receive.remove(&receive.0).is_some() {
            bus.free_receive.push(receive.0);
        } else {
            sim.complain(format!(
                "node {}: receive buffer {receive} was released twice",
                self.node
            ));
        }
    }

    fn interrupt(&mut self, whom: Interrupt) {
        let sim = self.sim();
        let (node, life) = (self.node, self.life);
        let event = match whom {
            Interrupt::Driver => Event::Driver { node, life },
            Interrupt::Port(port) => Event::Port { node, life, port },
        };
        let latency = sim.span(Nanos(300), Nanos(4_000));
        sim.after(latency, event);
    }
}

/// Marks the second report of a DMA.
const AGAIN: u64 = 1 << 63;

impl Device for CardDevice {
    fn now(&mut self) -> Nanos {
        self.sim().now()
    }

    fn poll_frame(&mut self) -> Option<Frame> {
        let sim = self.sim();
        let (receive, frame) = sim.node(self.node).bus.borrow_mut().frames.pop_front()?;
        sim.see(Seen::Arrived {
            to: self.node,
            frame: frame.clone(),
        });
        Some(Frame::new(receive, &frame, frame.len()))
    }

    fn poll_dma(&mut self) -> Option<DmaEnd> {
        self.sim().node(self.node).bus.borrow_mut().done.pop_front()
    }

    fn poll_sent(&mut self) -> Option<StagingId> {
        self.sim().node(self.node).bus.borrow_mut().sent.pop_front()
    }

    fn has_input(&mut self) -> bool {
        self.sim().node(self.node).bus.borrow().has_input()
    }
}

/// Puts a frame on the wire.
pub(crate) fn transmit(sim: &Sim, from: NodeId, header: &Header, frame: Rc<[u8]>) {
    let to = header.destination;
    sim.note(
        from,
        send_label(header.kind),
        &[
            ("to", u64::from(to.0)),
            ("seq", u64::from(header.seq.0)),
            ("port", u64::from(header.source_port.0)),
            ("dport", u64::from(header.destination_port.0)),
            ("len", u64::from(header.len)),
            ("address", header.address.0),
            ("status", u64::from(header.status)),
        ],
    );
    sim.see(Seen::Sent { frame: frame.clone() });
    if to.index() >= sim.nodes.len() {
        return;
    }
    count_states(sim, from, header);
    let states = sim.node(from).states();
    let fate = sim.fabric.borrow_mut().send(
        sim.now(),
        (from, to),
        frame.len(),
        states,
        &mut sim.faults.borrow_mut(),
        &mut sim.dice.borrow_mut(),
    );
    match fate {
        Fate::Arrives(at) => {
            overhear(sim, from, to, &frame);
            sim.at(at, Event::Arrive { to, frame });
        }
        Fate::Lost => {
            sim.note(from, "lost", &[("to", u64::from(to.0))]);
            sim.see(Seen::Lost { from, to });
        }
    }
}

/// Now and then a genuine frame is kept, to be played again.
fn overhear(sim: &Sim, from: NodeId, to: NodeId, frame: &Rc<[u8]>) {
    if sim.fires(FaultKind::HostileReplay, from) {
        let delay = sim.span(Nanos::from_micros(1), Nanos::from_micros(500));
        sim.after(
            delay,
            Event::Arrive {
                to,
                frame: frame.clone(),
            },
        );
    } else if sim.below(200) == 0 {
        let mut kept = sim.overheard.borrow_mut();
        if kept.len() < 64 {
            kept.push(frame.clone());
        } else {
            let at = sim.below(64) as usize;
            kept[at] = frame.clone();
        }
    }
}

fn count_states(sim: &Sim, from: NodeId, header: &Header) {
    let activity = &sim.node(from).activity;
    let to = &sim.node(header.destination).activity;
    match header.kind {
        Kind::Hello => activity.greeting.set(1),
        Kind::HelloAck => {
            activity.greeting.set(0);
            to.greeting.set(0);
        }
        Kind::ReadRequest => activity.reads.set(activity.reads.get() + 1),
        Kind::ReadReply => to.reads.set((to.reads.get() - 1).max(0)),
        Kind::Error => to.poisoned.set(1),
        Kind::Ack => to.in_flight.set(0),
        Kind::Write if to.poisoned.get() > 0 && header.epoch.0 > 0 => activity.poisoned.set(0),
        _ => {}
    }
    if header.kind.is_windowed() {
        activity.in_flight.set(activity.in_flight.get() + 1);
    }
}

/// A frame reaches a card.
pub(crate) fn arrive(sim: &Sim, to: NodeId, frame: Rc<[u8]>) {
    let node = sim.node(to);
    if node.card_gone.get() || node.card.try_borrow().is_ok_and(|card| card.is_none()) {
        if let Ok(header) = Header::decode(&frame) {
            sim.see(Seen::Lost {
                from: header.source,
                to,
            });
        }
        return;
    }
    let mut bus = node.bus.borrow_mut();
    let receive = ReceiveId(match bus.free_receive.pop() {
        Some(free) => free,
        None => {
            bus.next_receive += 1;
            bus.next_receive - 1
        }
    });
    bus.receive.insert(receive.0, frame.clone());
    bus.frames.push_back((receive, frame));
    drop(bus);
    node.kick(sim, Nanos(50));
}

fn page_of(dma: Dma) -> Option<(Way, PageRange)> {
    match dma {
        Dma::PageToStaging { page, .. } => Some((Way::FromPage, page)),
        Dma::ReceiveToPage { page, .. } => Some((Way::ToPage, page)),
        _ => None,
    }
}

fn place_of(page: PageRange) -> Place {
    Place {
        port: page.vpn.port(),
        page: page.vpn.page_number(),
        offset: u32::from(page.offset.0),
        len: page.len.0,
    }
}

fn fields_of(number: u64, dma: Dma, len: u32) -> [(&'static str, u64); 6] {
    let (first, second) = match dma {
        Dma::PageToStaging { page, staging } => (("ppn", page.ppn.0), ("staging", u64::from(staging.0))),
        Dma::ReceiveToPage { page, receive } => (("ppn", page.ppn.0), ("receive", u64::from(receive.0))),
        Dma::ReceiveToBounce { bounce, receive, .. } => {
            (("bounce", u64::from(bounce.0)), ("receive", u64::from(receive.0)))
        }
        Dma::BounceToStaging { bounce, staging, .. } => {
            (("bounce", u64::from(bounce.0)), ("staging", u64::from(staging.0)))
        }
    };
    let (port, page) = page_of(dma).map_or((0, 0), |(_, p)| (u64::from(p.vpn.port().0), p.vpn.page_number()));
    [
        ("dma", number),
        first,
        second,
        ("len", u64::from(len)),
        ("port", port),
        ("page", page),
    ]
}

const fn send_label(kind: Kind) -> &'static str {
    match kind {
        Kind::Write => "send write",
        Kind::ReadRequest => "send read request",
        Kind::AtomicRequest => "send atomic request",
        Kind::Flush => "send flush",
        Kind::Control => "send control",
        Kind::ReadReply => "send read reply",
        Kind::AtomicReply => "send atomic reply",
        Kind::FlushReply => "send flush reply",
        Kind::Ack => "send ack",
        Kind::Error => "send error",
        Kind::Hello => "send hello",
        Kind::HelloAck => "send hello ack",
        Kind::Probe => "send probe",
        Kind::Bye => "send bye",
    }
}

/// The bytes of a DMA move.
pub(crate) fn dma_move(sim: &Sim, node: &Node, number: u64) {
    let mut guard = node.bus.borrow_mut();
    let bus = &mut *guard;
    let Some(active) = bus.active.get_mut(&number) else {
        return;
    };
    if std::mem::replace(&mut active.moved, true) {
        return;
    }
    let dma = active.dma;
    match dma {
        Dma::PageToStaging { page, staging } => {
            let range = range_of(page.offset, page.len.0);
            let mut vm = node.vm.borrow_mut();
            let Some(bytes) = vm.frames().read(page.ppn).and_then(|bytes| bytes.get(range)) else {
                return;
            };
            if let Some(buffer) = bus.staging.get_mut(staging.index()) {
                buffer[..bytes.len()].copy_from_slice(bytes);
            }
            let digest = digest(bytes);
            sim.see(moved(node.id, number, Way::FromPage, page, digest));
        }
        Dma::ReceiveToPage { receive, page } => {
            let Some(frame) = bus.receive.get(&receive.0) else {
                return;
            };
            let range = range_of(page.offset, page.len.0);
            let Some(payload) = frame.get(HEADER_BYTES..HEADER_BYTES + range.len()) else {
                return;
            };
            let mut vm = node.vm.borrow_mut();
            if let Some(bytes) = vm.frames().write(page.ppn).and_then(|bytes| bytes.get_mut(range)) {
                bytes.copy_from_slice(payload);
            }
            sim.see(moved(node.id, number, Way::ToPage, page, digest(payload)));
        }
        Dma::ReceiveToBounce { receive, bounce, len } => {
            let Some(frame) = bus.receive.get(&receive.0).cloned() else {
                return;
            };
            let Some(payload) = frame.get(HEADER_BYTES..HEADER_BYTES + len.0 as usize) else {
                return;
            };
            let page = bus.bounce.entry(bounce).or_insert_with(|| Box::new([0; PAGE]));
            page[..payload.len()].copy_from_slice(payload);
            sim.see(Seen::BounceFilled {
                node: node.id,
                bounce,
            });
        }
        Dma::BounceToStaging { bounce, staging, len } => {
            if let (Some(page), Some(buffer)) =
                (bus.bounce.get(&bounce), bus.staging.get_mut(staging.index()))
            {
                let len = (len.0 as usize).min(PAGE);
                buffer[..len].copy_from_slice(&page[..len]);
            }
        }
    }
}

fn range_of(offset: PageOffset, len: u32) -> std::ops::Range<usize> {
    let start = usize::from(offset.0);
    start..start + len as usize
}

const fn moved(node: NodeId, dma: DmaNumber, way: Way, page: PageRange, digest: u64) -> Seen {
    let place = Place {
        port: page.vpn.port(),
        page: page.vpn.page_number(),
        offset: page.offset.0 as u32,
        len: page.len.0,
    };
    Seen::DmaMoved {
        node,
        dma,
        way,
        ppn: page.ppn,
        place,
        digest,
    }
}

/// A DMA is reported done, perhaps for the second time.
pub(crate) fn dma_done(sim: &Sim, node: &Node, number: u64) {
    if number & AGAIN != 0 {
        let id = DmaId {
            slot: (number >> 32) as u8,
            generation: ((number >> 40) & 0xFF_FFFF) as u32,
        };
        sim.note(node.id, "dma reported again", &[("slot", u64::from(id.slot))]);
        node.bus.borrow_mut().done.push_back(DmaEnd { id, ok: true });
        node.kick(sim, Nanos(20));
        return;
    }
    dma_move(sim, node, number);
    let Some(active) = node.bus.borrow_mut().active.remove(&number) else {
        return;
    };
    if let Some((way, _)) = page_of(active.dma) {
        let activity = if way == Way::ToPage {
            &node.activity.landing
        } else {
            &node.activity.staging
        };
        activity.set(activity.get().saturating_sub(1));
        sim.see(Seen::DmaDone {
            node: node.id,
            dma: number,
        });
    }
    node.bus.borrow_mut().done.push_back(DmaEnd {
        id: active.id,
        ok: true,
    });
    node.kick(sim, Nanos(20));
}

/// A staging buffer has left.
pub(crate) fn sent(sim: &Sim, node: &Node, staging: StagingId) {
    node.bus.borrow_mut().sent.push_back(staging);
    node.kick(sim, Nanos(20));
}
