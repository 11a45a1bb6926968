//! A card: the NIC core under the shipped loop, over simulated buffers, DMA engines and links.

mod dma;
mod held;
mod paced;
mod wire;

use crate::dma::{DmaSpeed, Engines};
use crate::effort::{CoreStep, Meter};
use crate::faults::FaultKind;
use crate::heap::Heap;
use crate::node::Node;
use crate::seen::{Buffer, DmaNumber, Seen, Way};
use crate::sim::{Event, Sim};
use crate::vm::PAGE;
use crate::words::{Actor, Side, Space, View};
use netvm_abi::atomic::Operand;
use netvm_abi::wire::{HEADER_BYTES, OwnHeader};
use netvm_abi::{BounceId, Geometry, Nanos, NodeId, ReceiveId, StagingId};
use netvm_nic::census::Census;
use netvm_nic::platform::{Dma, DmaId, Interrupt, Operands, Payload, Platform};
use netvm_nic::{Config, Nic};
use netvm_platform::{Device, DmaEnd, EventLoop, Frame};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

pub(crate) use dma::{dma_done, dma_move, sent};
pub(crate) use held::{HeldPass, held_up, resume};
pub(crate) use wire::{arrive, at_switch};

use dma::{Progress, buffers_of, fields_of, page_of, place_of};
use paced::{Line, Pace, Source};
use wire::transmit;

/// A DMA under way.
struct Active {
    id: DmaId,
    dma: Dma,
    progress: Progress,
    /// The bus refuses it.
    fails: bool,
    /// Instructions that its end will take, in a modelled world.
    instructions: u32,
}

/// What of a card the rest of its node can reach: buffers, engines, bounce pages.
pub(crate) struct Bus {
    engines: Option<Engines>,
    active: BTreeMap<DmaNumber, Active>,
    done: VecDeque<DmaEnd>,
    sent: VecDeque<StagingId>,
    frames: VecDeque<(ReceiveId, Rc<[u8]>)>,
    /// All three in the order in which they came, in a modelled world.
    line: Line,
    receive: BTreeMap<u32, Rc<[u8]>>,
    /// Numbers of receive buffers that are free again, and the lowest never used.
    free_receive: Vec<u32>,
    next_receive: u32,
    staging: Vec<Box<[u8; PAGE]>>,
    operands: Operands,
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
            line: Line::default(),
            receive: BTreeMap::new(),
            free_receive: Vec::new(),
            next_receive: 0,
            staging: (0..geometry.staging).map(|_| Box::new([0; PAGE])).collect(),
            operands: Operands::new(),
            bounce: BTreeMap::new(),
        }
    }

    /// Forgets everything that a card forgets when it is reset.
    pub(crate) fn reset(&mut self) {
        self.done.clear();
        self.sent.clear();
        self.frames.clear();
        self.line.clear();
        self.receive.clear();
        self.free_receive.clear();
        self.next_receive = 0;
    }

    /// Bytes of staging buffers, of bounce pages and of received frames.
    pub(crate) fn bytes(&self) -> [u64; 3] {
        let frames = self.frames.iter().map(|(_, frame)| frame.len());
        let received: usize = frames.chain(self.receive.values().map(|frame| frame.len())).sum();
        [self.staging.len() * PAGE, self.bounce.len() * PAGE, received].map(|bytes| bytes as u64)
    }

    /// DMAs under way, and receive buffers that the card has.
    pub(crate) fn held(&self) -> [u32; 2] {
        [self.active.len() as u32, self.receive.len() as u32]
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
    /// The NIC core's tables, by the type of their entries, in bytes.
    pub(crate) tables: Vec<(&'static str, u64)>,
    event_loop: EventLoop,
    device: CardDevice,
}

/// The NIC core's surroundings.
struct CardDevice {
    sim: Weak<Sim>,
    node: NodeId,
    life: u32,
    bar: View,
    shared: View,
    meter: Meter,
    /// What the core is at.
    step: Option<CoreStep>,
    /// The core's time, in a modelled world.
    pace: Option<Pace>,
}

impl Card {
    /// Boots a card: firmware up, BAR header published.
    pub(crate) fn boot(sim: &Sim, node: &Node, config: Config, speed: DmaSpeed) -> Result<Self, String> {
        let words = node.words();
        let meter = Meter::default();
        let mut device = CardDevice {
            sim: sim.me.clone(),
            node: node.id,
            life: node.life.get(),
            bar: View::whole(&words, Actor::Card, Space::Bar).counted(&meter),
            shared: View::whole(&words, Actor::Card, Space::Shared).counted(&meter),
            meter: meter.clone(),
            step: None,
            pace: sim.model.map(Pace::new),
        };
        node.bus.borrow_mut().engines = Some(Engines::new(speed));
        let mut heap = Heap {
            meter,
            ..Heap::default()
        };
        let mut nic = Nic::new(config, &mut heap).map_err(|error| error.to_string())?;
        nic.attach(&mut device);
        words.drain(Side::Nic);
        Ok(Self {
            nic,
            tables: heap.made,
            event_loop: EventLoop::new(),
            device,
        })
    }

    /// Whether it sleeps, though work for it has landed.
    fn sleeps_on_work(&self) -> bool {
        self.event_loop.is_asleep() && self.nic.has_work(&self.device)
    }

    /// What the NIC holds.
    pub(crate) fn census(&self) -> Census {
        self.nic.census()
    }

    /// What the NIC counted.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.nic.counters().iter()
    }
}

/// Once a tick: complains about a card that sleeps on work, and that nothing has woken for several ticks. (A program may be
/// interrupted between its doorbell and its look at the sleeping card, for less than a tick.)
pub(crate) fn look_at_sleep(sim: &Sim, node: &Node) {
    const TICKS: u32 = 4;
    let quiet = sim.model.is_none()
        && !node.card_gone.get()
        && !node.card_due.get()
        && node.hostile.borrow().is_empty();
    let sleeps = quiet
        && !node.words().is_lagging(Side::Host)
        && node
            .card
            .try_borrow()
            .is_ok_and(|card| card.as_ref().is_some_and(Card::sleeps_on_work));
    let ticks = if sleeps { node.slept_on.get() + 1 } else { 0 };
    node.slept_on.set(ticks);
    if ticks == TICKS {
        sim.complain(format!(
            "node {}: the card sleeps, though a doorbell, a fence or an event has been there for {TICKS} ticks",
            node.id
        ));
    }
}

/// One pass of a card, if it is there and awake; posts the next one. In worlds whose cards are held up it goes on in a
/// coroutine, unless it runs inside of another step.
pub(crate) fn pass(sim: &Sim, node: &Rc<Node>) {
    if node.card_gone.get() || node.held.misses() {
        return;
    }
    if sim.may_hold_up(Side::Nic) {
        held::begin(sim, node);
    } else {
        whole_pass(sim, node);
    }
}

fn whole_pass(sim: &Sim, node: &Node) {
    let Ok(mut slot) = node.card.try_borrow_mut() else {
        return;
    };
    let Some(card) = slot.as_mut() else { return };
    let deadline = if sim.model.is_some() {
        paced::pass(sim, node, card)
    } else {
        let progress = card.event_loop.poll_once(&mut card.nic, &mut card.device);
        card.device.begins(None);
        let asleep = !progress.more && card.event_loop.try_sleep(&card.nic, &mut card.device);
        card.device.begins(None);
        if !asleep {
            node.kick(sim, sim.span(Nanos(100), Nanos(600)));
        }
        progress.deadline.filter(|_| asleep)
    };
    drop(slot);
    if let Some(deadline) = deadline {
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

    /// Whether it was stopped in the middle of a pass, which it goes on with as if nothing had happened.
    fn is_halted(&self) -> bool {
        self.sim().node(self.node).words.borrow().is_halted()
    }

    /// The core's step has ended, and another one begins.
    fn begins(&mut self, step: Option<CoreStep>) {
        let work = self.meter.take();
        if let Some(ended) = std::mem::replace(&mut self.step, step) {
            self.sim().step_ended(self.node, ended, work);
        }
    }

    /// Whether the core may have the next input of this kind now.
    fn may_take(&mut self, source: Source) -> bool {
        !self.is_halted() && self.pace.as_mut().is_none_or(|pace| pace.grants(source))
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
        if self.is_halted() {
            return;
        }
        self.meter.count();
        let sim = self.sim();
        let node = sim.node(self.node);
        let number = sim.next_dma.get();
        sim.next_dma.set(number + 1);
        let len = match dma {
            Dma::PageToStaging { page, .. }
            | Dma::ReceiveToPage { page, .. }
            | Dma::PageToOperand { page }
            | Dma::OperandToPage { page } => page.len.0,
            Dma::ReceiveToBounce { len, .. } | Dma::BounceToStaging { len, .. } => len.0,
        };
        let now = sim.now();
        let (begins, instructions) = self.pace.as_mut().map_or((now, 0), |pace| pace.starts(now, dma));
        let writes = matches!(
            dma,
            Dma::ReceiveToPage { .. } | Dma::OperandToPage { .. } | Dma::ReceiveToBounce { .. }
        );
        let states = node.states();
        let schedule = {
            let mut bus = node.bus.borrow_mut();
            let Some(engines) = bus.engines.as_mut() else {
                return;
            };
            engines.start(
                begins,
                (len, writes),
                states,
                &mut sim.faults.borrow_mut(),
                &mut sim.dice.borrow_mut(),
            )
        };
        let (from, into) = buffers_of(id.slot, dma);
        sim.see(Seen::DmaUses {
            node: self.node,
            dma: number,
            from,
            into,
        });
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
                Dma::PageToOperand { .. } => "dma page to operand",
                Dma::OperandToPage { .. } => "dma operand to page",
            },
            &fields_of(number, dma, len),
        );
        let fails = sim.fires(FaultKind::DmaFails, self.node);
        node.bus.borrow_mut().active.insert(
            number,
            Active {
                id,
                dma,
                progress: Progress::Begun,
                fails,
                instructions,
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

    fn operand(&self, slot: u8) -> Operand {
        self.meter.count();
        let sim = self.sim();
        sim.see(Seen::BufferRead {
            node: self.node,
            buffer: Buffer::Operand(slot),
        });
        sim.node(self.node).bus.borrow().operands.get(slot)
    }

    fn set_operand(&mut self, slot: u8, operand: &Operand) {
        self.meter.count();
        let sim = self.sim();
        sim.see(Seen::BufferTaken {
            node: self.node,
            buffer: Buffer::Operand(slot),
        });
        sim.node(self.node).bus.borrow_mut().operands.set(slot, operand);
    }

    fn transmit(&mut self, header: &OwnHeader, payload: Payload<'_>) {
        if self.is_halted() {
            return;
        }
        self.meter.count();
        let (head, header) = (header.to_bytes(), &header.decode());
        let sim = self.sim();
        let node = sim.node(self.node);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + usize::from(header.len));
        bytes.extend_from_slice(&head);
        let len = usize::from(header.len);
        let staging = match payload {
            Payload::Empty => None,
            Payload::Inline(words) => {
                bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()).take(len));
                None
            }
            Payload::Staging(staging) | Payload::Kept(staging) => {
                let bus = node.bus.borrow();
                if let Some(buffer) = bus.staging.get(staging.index()) {
                    bytes.extend_from_slice(&buffer[..len.min(PAGE)]);
                }
                Some(staging)
            }
        };
        let now = sim.now();
        let leaves = self
            .pace
            .as_mut()
            .map_or(now, |pace| pace.sends(now, header.kind));
        transmit(&sim, leaves, self.node, header, bytes.into());
        if let Some(staging) = staging {
            sim.see(Seen::StagingLeaves {
                node: self.node,
                staging,
            });
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
        self.meter.count();
        let sim = self.sim();
        sim.see(Seen::BufferTaken {
            node: self.node,
            buffer: Buffer::Receive(receive),
        });
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
        if self.is_halted() {
            return;
        }
        self.meter.count();
        let sim = self.sim();
        let (node, life) = (self.node, self.life);
        let event = match whom {
            Interrupt::Driver => Event::Driver { node, life },
            Interrupt::Port(port) => {
                sim.see(Seen::Interrupted { node, port });
                Event::Port { node, life, port }
            }
        };
        // A posted store like others: it pushes those before it.
        sim.node(self.node).words().call(Side::Nic);
        let latency = sim.takes(|model| model.interrupt, Nanos(300), Nanos(4_000));
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
        self.begins(None);
        if !self.may_take(Source::Frame) {
            return None;
        }
        let sim = self.sim();
        let (receive, frame) = sim.node(self.node).bus.borrow_mut().frames.pop_front()?;
        if let Some(pace) = &mut self.pace {
            pace.frame(&frame);
        }
        sim.see(Seen::Arrived {
            to: self.node,
            frame: frame.clone(),
        });
        self.begins(Some(CoreStep::Frame));
        Some(Frame::new(receive, &frame, frame.len()))
    }

    fn poll_dma(&mut self) -> Option<DmaEnd> {
        self.begins(None);
        if !self.may_take(Source::Dma) {
            return None;
        }
        let end = self.sim().node(self.node).bus.borrow_mut().done.pop_front()?;
        self.begins(Some(CoreStep::DmaEnd));
        Some(end)
    }

    fn poll_sent(&mut self) -> Option<StagingId> {
        // If nothing has been sent, the rest of the pass comes next.
        self.begins(Some(CoreStep::Rest));
        if !self.may_take(Source::Sent) {
            return None;
        }
        let sent = self.sim().node(self.node).bus.borrow_mut().sent.pop_front()?;
        self.step = Some(CoreStep::Sent);
        Some(sent)
    }

    fn has_input(&mut self) -> bool {
        self.begins(Some(CoreStep::SecondLook));
        self.sim().node(self.node).bus.borrow().has_input()
    }
}
