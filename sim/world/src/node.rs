//! One node: host memory, card, driver, processes, and the words between them.

use crate::card::{Bus, Card, HeldPass};
use crate::driver::Driver;
use crate::faults::{FaultKind, ProtocolState, StateSet};
use crate::kernel::{self, HeldStep, Jobs};
use crate::points::{self, Access, Word};
use crate::process::Ports;
use crate::rings;
use crate::seen::{Counts, Seen, digest};
use crate::sim::{Event, Sim};
use crate::vm::HostVm;
use crate::words::{Actor, NodeWords, Side, Space, Touch, Watch};
use netvm_abi::bar::header::HOST_EVENT_TAIL;
use netvm_abi::bar::{BarMap, port as block};
use netvm_abi::shared_map::{SharedMap, status_page};
use netvm_abi::{Geometry, Nanos, NodeId, NotificationId, PortId, WordIndex, port_area};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

/// How busy a node is, for the coverage table.
#[derive(Default)]
pub(crate) struct Activity {
    pub(crate) greeting: Cell<u32>,
    pub(crate) staging: Cell<u32>,
    pub(crate) landing: Cell<u32>,
    pub(crate) source_misses: Cell<u32>,
    pub(crate) bounced: Cell<u32>,
    pub(crate) in_flight: Cell<i64>,
    pub(crate) reads: Cell<i64>,
    pub(crate) waiting: Cell<u32>,
    pub(crate) unmapping: Cell<u32>,
    pub(crate) poisoned: Cell<u32>,
}

/// A node of the world.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) geometry: Geometry,
    sim: Weak<Sim>,
    /// Counts restarts.
    pub(crate) life: Cell<u32>,
    /// How often its card has come up: with the node, or after a reset.
    pub(crate) card_boots: Cell<u32>,
    pub(crate) words: RefCell<Rc<NodeWords>>,
    pub(crate) vm: RefCell<HostVm>,
    pub(crate) card: RefCell<Option<Card>>,
    pub(crate) bus: RefCell<Bus>,
    driver: RefCell<Option<Driver>>,
    pub(crate) jobs: RefCell<Jobs>,
    pub(crate) ports: RefCell<Ports>,
    pub(crate) activity: Activity,
    /// Ports of apps that post anything.
    pub(crate) hostile: RefCell<BTreeSet<PortId>>,
    /// The card does not step before this time.
    pub(crate) paused_until: Cell<Nanos>,
    /// The card has left the bus.
    pub(crate) card_gone: Cell<bool>,
    /// A pass of the card has been posted.
    pub(crate) card_due: Cell<bool>,
    /// The pass of its card that is held up.
    pub(crate) held: HeldPass,
    /// The step of its kernel that is held up.
    pub(crate) held_step: HeldStep,
    /// The card is being reset.
    pub(crate) resetting: Cell<bool>,
    /// When the card wants its next pass, if nothing happens before.
    pub(crate) card_deadline: Cell<Nanos>,
    /// For how many ticks in a row its card has slept on work.
    pub(crate) slept_on: Cell<u32>,
    /// Instructions of its card so far, in a modelled world, but for looks in vain.
    pub(crate) instructions: Cell<u64>,
    pub(crate) memory_limit: usize,
    pub(crate) first_frame: netvm_abi::Ppn,
}

struct NodeWatch {
    sim: Weak<Sim>,
    node: NodeId,
    geometry: Geometry,
    bar: BarMap,
    shared: SharedMap,
}

impl Node {
    /// A node without card and driver, and with `frames` page frames.
    pub(crate) fn new(sim: &Weak<Sim>, id: NodeId, geometry: Geometry, frames: usize) -> Rc<Self> {
        let first_frame = netvm_abi::Ppn(0x10_0000 * (u64::from(id.0) + 1));
        Rc::new(Self {
            id,
            geometry,
            sim: sim.clone(),
            life: Cell::new(0),
            card_boots: Cell::new(0),
            words: RefCell::new(new_words(sim, id, geometry)),
            vm: RefCell::new(HostVm::new(id, first_frame, frames)),
            card: RefCell::default(),
            bus: RefCell::new(Bus::new(geometry)),
            driver: RefCell::default(),
            jobs: RefCell::default(),
            ports: RefCell::default(),
            activity: Activity::default(),
            hostile: RefCell::default(),
            paused_until: Cell::new(Nanos(0)),
            card_gone: Cell::new(false),
            card_due: Cell::new(false),
            held: HeldPass::default(),
            held_step: HeldStep::default(),
            resetting: Cell::new(false),
            card_deadline: Cell::new(Nanos(0)),
            slept_on: Cell::new(0),
            instructions: Cell::new(0),
            memory_limit: frames,
            first_frame,
        })
    }

    /// New, zeroed words and memory: a reboot.
    pub(crate) fn wipe(&self) {
        *self.words.borrow_mut() = new_words(&self.sim, self.id, self.geometry);
        *self.vm.borrow_mut() = HostVm::new(self.id, self.first_frame, self.memory_limit);
        *self.bus.borrow_mut() = Bus::new(self.geometry);
        self.held.end();
        self.held_step.end();
        *self.card.borrow_mut() = None;
        *self.driver.borrow_mut() = None;
        *self.jobs.borrow_mut() = Jobs::default();
        *self.ports.borrow_mut() = Ports::default();
        self.hostile.borrow_mut().clear();
        self.card_gone.set(false);
        self.card_due.set(false);
        self.paused_until.set(Nanos(0));
        self.resetting.set(false);
        self.card_deadline.set(Nanos(0));
        self.slept_on.set(0);
        for counter in [
            &self.activity.greeting,
            &self.activity.staging,
            &self.activity.landing,
            &self.activity.source_misses,
            &self.activity.bounced,
            &self.activity.unmapping,
            &self.activity.poisoned,
        ] {
            counter.set(0);
        }
        self.activity.in_flight.set(0);
        self.activity.reads.set(0);
    }

    /// Its driver, behind its lock: a step of the kernel that is held up goes on to its end first.
    pub(crate) fn driver(&self, sim: &Sim) -> RefMut<'_, Option<Driver>> {
        kernel::finish(sim, self);
        self.driver.borrow_mut()
    }

    /// The same, if it is not this very processor that is inside.
    pub(crate) fn try_driver(&self, sim: &Sim) -> Option<RefMut<'_, Option<Driver>>> {
        kernel::finish(sim, self);
        self.driver.try_borrow_mut().ok()
    }

    /// Whether it has no driver yet. One that is at work is there.
    pub(crate) fn boots(&self) -> bool {
        self.driver.try_borrow().is_ok_and(|driver| driver.is_none())
    }

    /// Whether nothing has its driver's lock.
    pub(crate) fn driver_is_free(&self) -> bool {
        self.driver.try_borrow_mut().is_ok()
    }

    /// The words of its present life.
    pub(crate) fn words(&self) -> Rc<NodeWords> {
        self.words.borrow().clone()
    }

    /// Its card has carried out this many instructions.
    pub(crate) fn works(&self, instructions: u32) {
        self.instructions
            .set(self.instructions.get() + u64::from(instructions));
    }

    /// Has its card make a pass soon.
    pub(crate) fn kick(&self, sim: &Sim, span: Nanos) {
        if self.card_due.replace(true) {
            return;
        }
        let at = sim.now().after(span).max(self.paused_until.get());
        sim.at(
            at,
            Event::Card {
                node: self.id,
                life: self.life.get(),
            },
        );
    }

    /// What it is in the middle of.
    pub(crate) fn states(&self) -> StateSet {
        let a = &self.activity;
        StateSet::default()
            .with(ProtocolState::Greeting, a.greeting.get() > 0)
            .with(ProtocolState::Staging, a.staging.get() > 0)
            .with(ProtocolState::SourceMiss, a.source_misses.get() > 0)
            .with(ProtocolState::InFlight, a.in_flight.get() > 0)
            .with(ProtocolState::Landing, a.landing.get() > 0)
            .with(ProtocolState::Bounced, a.bounced.get() > 0)
            .with(ProtocolState::ReadPending, a.reads.get() > 0)
            .with(ProtocolState::Waiting, a.waiting.get() > 0)
            .with(ProtocolState::Unmapping, a.unmapping.get() > 0)
            .with(ProtocolState::Poisoned, a.poisoned.get() > 0)
            .or_idle()
    }

    /// Runs a step of the other side, in the middle of a step of `side`.
    pub(crate) fn interleave(self: &Rc<Self>, sim: &Sim, side: Side) {
        match side {
            Side::Host => {
                if self.card.try_borrow_mut().is_ok() && self.paused_until.get() <= sim.now() {
                    crate::card::pass(sim, self);
                    self.words().drain(Side::Nic);
                }
            }
            Side::Nic => {
                if self.driver_is_free() {
                    kernel::interleaved(sim, self);
                    self.words().drain(Side::Host);
                }
            }
        }
    }
}

fn new_words(sim: &Weak<Sim>, id: NodeId, geometry: Geometry) -> Rc<NodeWords> {
    let (bar, shared) = (BarMap::new(&geometry), SharedMap::new(&geometry));
    let watch = Rc::new(NodeWatch {
        sim: sim.clone(),
        node: id,
        geometry,
        bar,
        shared,
    });
    Rc::new(NodeWords::new(bar.words, shared.words, watch))
}

/// The node whose link a word of the status page is about.
fn peer_word(at: WordIndex, nodes: u16) -> Option<NodeId> {
    let past = at.0.checked_sub(status_page::PEERS.0)?;
    let (node, word) = (past / status_page::PEER_WORDS, past % status_page::PEER_WORDS);
    (word == 0 && node < u32::from(nodes)).then_some(NodeId(node as u16))
}

/// The digest of what a descriptor carries, read as a checker reads it, word by word; 0 if it carries nothing.
fn inline_digest(head: &[u32; 16], word: impl Fn(u32) -> u32) -> u64 {
    let len = (head[0] >> 16) as usize;
    if head[0] & 0x100 == 0 || len > 128 {
        return 0;
    }
    let mut payload = [0; 128];
    for (index, bytes) in (16..).zip(payload.chunks_exact_mut(4)).take(len.div_ceil(4)) {
        bytes.copy_from_slice(&word(index).to_le_bytes());
    }
    digest(&payload[..len])
}

impl NodeWatch {
    /// Finds the port whose block or area holds a word, and the word's place in it.
    fn in_port(&self, first: WordIndex, each: u32, at: WordIndex) -> Option<(PortId, u32)> {
        let past = at.0.checked_sub(first.0)?;
        let port = past / each;
        (port < u32::from(self.geometry.ports)).then(|| (PortId(port as u16), past % each))
    }

    fn doorbell(&self, sim: &Sim, port: PortId, posted: u32) {
        if posted == 0 {
            let states = sim.node(self.node).states();
            sim.faults.borrow_mut().count(FaultKind::CountsWrap, states);
        }
        let words = sim.node(self.node).words();
        let entry = posted.wrapping_sub(1) % netvm_abi::descriptor::QUEUE_ENTRIES;
        let at = self.bar.port(port).plus(block::COMMANDS.0 + entry * 48);
        let mut head = [0; 16];
        for (index, word) in head.iter_mut().enumerate() {
            *word = words.peek(Space::Bar, at.plus(index as u32));
        }
        let inline = inline_digest(&head, |index| words.peek(Space::Bar, at.plus(index)));
        sim.see(Seen::Posted {
            node: self.node,
            port,
            words: head,
            inline,
        });
    }

    /// Shows the checkers what the event before this tail says of bounce pages.
    fn event(&self, sim: &Sim, side: Side, written: u32) {
        let words = sim.node(self.node).words();
        let fact = match side {
            Side::Nic => rings::from_card(self.node, &self.geometry, written, |at| {
                words.peek(Space::Shared, at)
            }),
            Side::Host => rings::from_driver(self.node, &self.geometry, written, |at| {
                words.peek(Space::Bar, at)
            }),
        };
        if let Some(fact) = fact {
            sim.see(fact);
        }
    }

    fn told(&self, sim: &Sim, port: PortId, written: u32) {
        let slot = written.wrapping_sub(1) % port_area::ERROR_RECORDS;
        let at = port_area::ERRORS.0 + slot * port_area::ERROR_WORDS as u32;
        let at = self.shared.port_area(port).plus(at);
        let (node, words) = (self.node, sim.node(self.node).words());
        let words = std::array::from_fn(|index| words.peek(Space::Shared, at.plus(index as u32)));
        sim.see(Seen::Told { node, port, words });
    }

    /// Shows a reply. The number of its operation is the first word of its slot, and is stored last.
    fn replied(&self, sim: &Sim, port: PortId, (at, word): (WordIndex, u32)) {
        let (first, each) = (port_area::REPLIES.0, port_area::REPLY_WORDS as u32);
        let replies = first..first + each * u32::from(port_area::REPLY_SLOTS);
        if !replies.contains(&word) || !(word - first).is_multiple_of(each) {
            return;
        }
        let (node, words) = (self.node, sim.node(self.node).words());
        sim.see(Seen::Replied {
            node,
            port,
            slot: ((word - first) / each) as u16,
            words: std::array::from_fn(|index| words.peek(Space::Shared, at.plus(index as u32))),
        });
    }

    /// Shows a count. The card sets them all back before a port is served.
    fn counted(&self, sim: &Sim, port: PortId, word: u32, value: u32) {
        let node = self.node;
        let which = match WordIndex(word) {
            port_area::TAKEN => Counts::Taken,
            port_area::WRITES_DONE => Counts::Writes,
            port_area::READS_DONE => Counts::Reads,
            _ => {
                let id = word.wrapping_sub(port_area::SHADOW_SIGNALS.0);
                if id < netvm_abi::notification::EVENT_COUNTS && value != 0 {
                    let id = NotificationId(id);
                    sim.see(Seen::Shadowed {
                        node,
                        port,
                        id,
                        count: value,
                    });
                }
                return;
            }
        };
        let count = value.wrapping_sub(sim.counts_from.get());
        if count != 0 {
            sim.see(Seen::Counted {
                node,
                port,
                which,
                count,
            });
        }
    }

    fn queued(&self, sim: &Sim, port: PortId, tail: u32) {
        let words = sim.node(self.node).words();
        let entries = self.geometry.notification_queue;
        let entry = tail.wrapping_sub(1) % entries;
        let at = self
            .shared
            .port_area(port)
            .plus(port_area::NOTIFICATIONS.0 + entry);
        let id = NotificationId(words.peek(Space::Shared, at));
        sim.see(Seen::Queued {
            node: self.node,
            port,
            id,
        });
    }
}

impl Watch for NodeWatch {
    fn before(&self, actor: Actor, touch: Touch, space: Space, at: WordIndex) {
        let Some(sim) = self.sim.upgrade() else { return };
        if sim.points.are_open() {
            points::reached(&sim, self.node, actor, || Access {
                node: self.node,
                actor,
                touch,
                word: Word::find(&self.geometry, (&self.bar, &self.shared), (space, at)),
            });
        }
        sim.before_access(self.node, actor.side());
    }

    fn issued(&self, side: Side, space: Space, at: WordIndex, value: u32) {
        if (side, space) == (Side::Nic, Space::Shared)
            && let Some(peer) = peer_word(at, self.geometry.nodes)
            && value == 0
            && let Some(sim) = self.sim.upgrade()
        {
            sim.see(Seen::LinkEnds {
                node: self.node,
                peer,
            });
        }
    }

    fn after_barrier(&self, side: Side) {
        if let Some(sim) = self.sim.upgrade() {
            sim.before_access(self.node, side);
        }
    }

    fn stored(&self, side: Side, space: Space, at: WordIndex, value: u32) {
        let Some(sim) = self.sim.upgrade() else { return };
        if side == Side::Nic && sim.model.is_some() {
            let port = match space {
                Space::Bar => self.in_port(self.bar.ports, block::BLOCK_WORDS, at),
                Space::Shared => self.in_port(self.shared.port_areas, port_area::AREA_WORDS, at),
            };
            if let Some((port, _)) = port {
                crate::process::stir(&sim, sim.node(self.node), port);
            }
        }
        match (side, space) {
            (Side::Nic, Space::Bar) => {
                let Some((port, word)) = self.in_port(self.bar.ports, block::BLOCK_WORDS, at) else {
                    return;
                };
                let first = block::SIGNALLED.0;
                if word >= first && word < first + netvm_abi::notification::EVENT_COUNTS {
                    let id = NotificationId(word - first);
                    sim.see(Seen::Signalled {
                        node: self.node,
                        port,
                        id,
                        count: value,
                    });
                }
            }
            (Side::Nic, Space::Shared) => {
                if at == status_page::NIC_EVENT_TAIL {
                    self.event(&sim, side, value);
                }
                if let Some(peer) = peer_word(at, self.geometry.nodes)
                    && value == 0
                {
                    sim.see(Seen::LinkDown {
                        node: self.node,
                        peer,
                    });
                }
                let area = self.in_port(self.shared.port_areas, port_area::AREA_WORDS, at);
                if let Some((port, word)) = area {
                    if word == port_area::NOTIFICATION_WRITE.0 && value != 0 {
                        self.queued(&sim, port, value);
                    }
                    if word == port_area::ERROR_WRITE.0 && value != 0 {
                        self.told(&sim, port, value);
                    }
                    if word == port_area::ERRORS_LOST.0 && value != 0 {
                        let node = self.node;
                        sim.see(Seen::ErrorsLost { node, port });
                    }
                    self.replied(&sim, port, (at, word));
                    self.counted(&sim, port, word, value);
                    let first = port_area::QUEUE_RECORDS.0;
                    if word >= first && (word - first).is_multiple_of(2) {
                        // The sender's word was stored before.
                        let source = sim.node(self.node).words().peek(Space::Shared, at.plus(1));
                        sim.see(Seen::Recorded {
                            node: self.node,
                            port,
                            slot: (word - first) / 2,
                            word: value,
                            source,
                        });
                    }
                }
            }
            (Side::Host, Space::Bar) => {
                if at == HOST_EVENT_TAIL {
                    self.event(&sim, side, value);
                }
                let in_block = self.in_port(self.bar.ports, block::BLOCK_WORDS, at);
                if let Some((port, word)) = in_block
                    && word == block::DOORBELL.0
                    && value != sim.counts_from.get()
                {
                    self.doorbell(&sim, port, value);
                }
                if let Some((port, word)) = in_block
                    && word == block::QUEUE_FREED.0
                {
                    sim.see(Seen::Freed {
                        node: self.node,
                        port,
                        freed: value,
                    });
                }
            }
            (Side::Host, Space::Shared) => {}
        }
    }

    fn loaded(&self, side: Side, space: Space, at: WordIndex, value: u32) -> u32 {
        if (side, space) != (Side::Nic, Space::Bar) {
            return value;
        }
        let Some((port, word)) = self.in_port(self.bar.ports, block::BLOCK_WORDS, at) else {
            return value;
        };
        let Some(sim) = self.sim.upgrade() else {
            return value;
        };
        let node = sim.node(self.node);
        // Queue memory of a hostile app answers every load differently.
        if word >= block::COMMANDS.0
            && !node.hostile.borrow().is_empty()
            && node.hostile.borrow().contains(&port)
            && sim.fires(FaultKind::HostileQueue, self.node)
        {
            return value ^ (sim.dice.borrow_mut().word() as u32);
        }
        value
    }

    fn linger(&self, _side: Side) -> bool {
        self.sim
            .upgrade()
            .is_some_and(|sim| sim.fires(FaultKind::StoreLate, self.node))
    }

    fn lag(&self, side: Side, last: Option<Nanos>) -> Option<Nanos> {
        // Stores in a row land in a row.
        if last.is_some() {
            return last;
        }
        let sim = self.sim.upgrade()?;
        if !sim.fires(FaultKind::BusLag, self.node) {
            return None;
        }
        let lands = sim.now().after(sim.span(Nanos(100), Nanos(8_000)));
        let (node, life) = (self.node, sim.node(self.node).life.get());
        sim.at(lands, Event::Lands { node, life, side });
        Some(lands)
    }

    fn card_gone(&self) -> bool {
        self.sim
            .upgrade()
            .is_some_and(|sim| sim.node(self.node).card_gone.get())
    }
}
