//! The hub of a world: time, chance, what was seen, and the nodes. One event at a time.

use crate::bodies::Bodies;
use crate::clock::Clock;
use crate::coroutine::{Parker, StackPool};
use crate::dice::Dice;
use crate::effort::{CoreStep, Longest};
use crate::faults::{FaultKind, Faults};
use crate::history::Histories;
use crate::link::Fabric;
use crate::node::Node;
use crate::points::Points;
use crate::process::{AppId, Apps, Overslept};
use crate::script::Play;
use crate::seen::{Log, Seen};
use crate::timing::CostModel;
use crate::trace::{Field, Trace};
use crate::words::Side;
use netvm_abi::{Nanos, NodeId, PortId, StagingId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// Frames that are kept.
type Frames = Vec<Rc<[u8]>>;

/// Something that happens at a time. Those of a node carry the node's life: a restart voids them.
pub(crate) enum Event {
    /// An app goes on, if it has not done so since.
    App { app: AppId, turn: u64 },
    /// A card makes a pass.
    Card { node: NodeId, life: u32 },
    /// The bytes of a DMA move.
    DmaMove { node: NodeId, life: u32, dma: u64 },
    /// A DMA is reported done.
    DmaDone { node: NodeId, life: u32, dma: u64 },
    /// Stores that a side has posted across the bus land.
    Lands { node: NodeId, life: u32, side: Side },
    /// A staging buffer has left.
    Sent {
        node: NodeId,
        life: u32,
        staging: StagingId,
    },
    /// A frame is at the switch.
    Switch { to: NodeId, frame: Rc<[u8]> },
    /// A frame arrives.
    Arrive { to: NodeId, frame: Rc<[u8]> },
    /// The driver is interrupted, or its deadline has come.
    Driver { node: NodeId, life: u32 },
    /// A port is interrupted.
    Port { node: NodeId, life: u32, port: PortId },
    /// A port's paging worker goes on.
    Worker { node: NodeId, life: u32, port: PortId },
    /// A job of the kernel goes on, if it has not done so since.
    Job {
        node: NodeId,
        life: u32,
        job: u64,
        turn: u64,
    },
    /// The host's memory management looks around, and faults are thrown.
    Tick { node: NodeId, life: u32 },
    /// A forked child exits.
    ChildExits {
        node: NodeId,
        life: u32,
        child: crate::vm::ProcessId,
    },
    /// An app went on by the clock alone; its wake-up may still come.
    Overslept(Overslept),
    /// A step of this side goes on that was held up, if it still is at this turn.
    Resume { node: NodeId, side: Side, turn: u64 },
    /// A node comes up again.
    Boot { node: NodeId },
    /// A card that was found dead is reset, once nothing of its ports is left.
    Reset { node: NodeId, life: u32, tries: u32 },
    /// A process is started.
    Start { role: usize },
    /// The hostile node sends something.
    Rogue,
    /// Deadlines are checked.
    Check,
}

/// How often the apps of a world look for it after its end, before they count as going on: more than all destructors need.
const LOOKS: u32 = 1_000_000;

/// The world as its parts see it.
pub(crate) struct Sim {
    pub(crate) me: Weak<Sim>,
    pub(crate) clock: RefCell<Clock<Event>>,
    pub(crate) dice: RefCell<Dice>,
    pub(crate) faults: RefCell<Faults>,
    pub(crate) log: RefCell<Log>,
    pub(crate) trace: RefCell<Trace>,
    pub(crate) fabric: RefCell<Fabric>,
    pub(crate) nodes: Vec<Rc<Node>>,
    pub(crate) apps: RefCell<Apps>,
    pub(crate) parker: Parker,
    /// By which passes of cards are held up.
    pub(crate) passes: Parker,
    /// By which steps of kernels are held up.
    pub(crate) steps: Parker,
    pub(crate) pool: StackPool,
    /// The waits that the clock has ended, of apps that have done nothing since.
    pub(crate) overslept: RefCell<BTreeMap<AppId, Overslept>>,
    /// What an app's body complained about.
    pub(crate) complaint: RefCell<Option<String>>,
    /// Which bodies of the conformance suite ran.
    pub(crate) bodies: RefCell<Bodies>,
    /// Inside of a step that was interleaved into another one.
    nested: Cell<bool>,
    /// Shared accesses until the next interleaving, and the usual number of them.
    fuse: Cell<u32>,
    fuse_length: u32,
    /// Accesses of apps until one of them is interrupted.
    app_fuse: Cell<u32>,
    /// Accesses of cards until one of them may be held up.
    card_fuse: Cell<u32>,
    /// The same of kernels.
    kernel_fuse: Cell<u32>,
    next_process: Cell<u32>,
    pub(crate) next_dma: Cell<u64>,
    /// What things cost, where that is not left to the dice.
    pub(crate) model: Option<CostModel>,
    /// Genuine frames to be played again.
    pub(crate) overheard: RefCell<Frames>,
    /// Greetings of each node to each other one, of all lives, to be played again.
    pub(crate) greetings: RefCell<BTreeMap<(NodeId, NodeId), Frames>>,
    /// Looks for the world that apps may still have after its end; none while it lasts.
    looks_left: Cell<Option<u32>>,
    /// The longest steps of the cores.
    pub(crate) longest: Longest,
    /// What programs asked of shared objects.
    pub(crate) histories: RefCell<Histories>,
    /// A fault that a script asks for.
    pub(crate) play: Play,
    /// Accesses to shared words that a fault may strike at.
    pub(crate) points: Points,
    /// Where drivers begin the counts of a port's commands.
    pub(crate) counts_from: Cell<u32>,
}

impl Sim {
    /// A world with no nodes yet; `nodes` makes them, with a reference to it.
    pub(crate) fn new(
        dice: Dice,
        faults: Faults,
        fabric: Fabric,
        wants_lines: bool,
        fuse_length: u32,
        model: Option<CostModel>,
        nodes: impl FnOnce(&Weak<Sim>) -> Vec<Rc<Node>>,
    ) -> Rc<Self> {
        let faulty = faults.lose_messages();
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            clock: RefCell::new(Clock::new()),
            dice: RefCell::new(dice),
            faults: RefCell::new(faults),
            log: RefCell::default(),
            trace: RefCell::new(Trace::new(wants_lines)),
            fabric: RefCell::new(fabric),
            nodes: nodes(me),
            apps: RefCell::default(),
            parker: Parker::default(),
            passes: Parker::default(),
            steps: Parker::default(),
            pool: StackPool::default(),
            overslept: RefCell::default(),
            complaint: RefCell::default(),
            bodies: RefCell::default(),
            nested: Cell::new(false),
            fuse: Cell::new(fuse_length),
            fuse_length,
            app_fuse: Cell::new(fuse_length),
            card_fuse: Cell::new(fuse_length),
            kernel_fuse: Cell::new(fuse_length),
            next_process: Cell::new(1),
            next_dma: Cell::new(1),
            model,
            overheard: RefCell::default(),
            greetings: RefCell::default(),
            looks_left: Cell::new(None),
            longest: Longest::default(),
            histories: RefCell::new(Histories::new(faulty)),
            play: Play::default(),
            points: Points::default(),
            counts_from: Cell::new(0),
        })
    }

    /// Ends the world for its apps.
    pub(crate) fn close(&self) {
        self.looks_left.set(Some(LOOKS));
    }

    /// Whether the world lasts, asked by an app. An app that goes on after the end, because it caught the panic that
    /// unwinds it, is unwound once more.
    pub(crate) fn lasts(&self) -> bool {
        let Some(left) = self.looks_left.get() else {
            return true;
        };
        self.looks_left.set(Some(left.saturating_sub(1)));
        if left == 0 && !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("an app goes on after the end of its world"));
        }
        false
    }

    /// The present.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.borrow().now()
    }

    /// Posts an event for `span` from now.
    pub(crate) fn after(&self, span: Nanos, event: Event) {
        self.clock.borrow_mut().post_after(span, event);
    }

    /// Posts an event for `at`.
    pub(crate) fn at(&self, at: Nanos, event: Event) {
        self.clock.borrow_mut().post(at, event);
    }

    /// Notes a fact for the checkers.
    pub(crate) fn see(&self, fact: Seen) {
        self.log.borrow_mut().see(fact);
    }

    /// Notes an event in the trace.
    pub(crate) fn note(&self, node: NodeId, what: &'static str, fields: &[Field]) {
        let now = self.now();
        self.trace.borrow_mut().record(now, node, what, fields);
    }

    /// Notes that something cannot be right; the run ends with it.
    pub(crate) fn complain(&self, what: String) {
        self.complaint.borrow_mut().get_or_insert(what);
    }

    /// A core's step has ended, and has taken this much.
    pub(crate) fn step_ended(&self, node: NodeId, step: CoreStep, work: u32) {
        if self.longest.ended(step, work) {
            self.see(Seen::LongestStep { node, step, work });
        }
    }

    /// Whether a fault fires at a node now.
    pub(crate) fn fires(&self, kind: FaultKind, node: NodeId) -> bool {
        let fires = self.faults.borrow().rolls(kind, &mut self.dice.borrow_mut());
        if fires {
            self.struck(kind, node);
        }
        fires
    }

    /// A fault strikes at a node now.
    pub(crate) fn struck(&self, kind: FaultKind, node: NodeId) {
        self.faults.borrow_mut().count(kind, self.node(node).states());
        self.note(node, "fault", &[(kind.label(), 1)]);
        if kind.is_cause() {
            self.see(Seen::Fault { node, kind });
        }
    }

    /// A random span.
    pub(crate) fn span(&self, low: Nanos, high: Nanos) -> Nanos {
        self.dice.borrow_mut().span(low, high)
    }

    /// A random number below `end`.
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.dice.borrow_mut().below(end)
    }

    /// A node. Numbers come from the world itself or have been checked.
    pub(crate) fn node(&self, node: NodeId) -> &Rc<Node> {
        &self.nodes[node.index()]
    }

    /// The number of a new process.
    pub(crate) fn new_process(&self) -> crate::vm::ProcessId {
        let number = self.next_process.get();
        self.next_process.set(number + 1);
        crate::vm::ProcessId(number)
    }

    /// A modelled span, or one from the dice.
    pub(crate) fn takes(&self, modelled: impl FnOnce(&CostModel) -> Nanos, low: Nanos, high: Nanos) -> Nanos {
        match &self.model {
            Some(model) => modelled(model),
            None => self.span(low, high),
        }
    }

    /// Duration of a small step that a cost model leaves out: zero in a modelled world, `drawn` nanoseconds in others.
    pub(crate) fn lag(&self, drawn: u64) -> Nanos {
        Nanos(if self.model.is_some() { 0 } else { drawn })
    }

    /// Whether the running app is interrupted at this access.
    pub(crate) fn interrupts_app(&self) -> bool {
        if self.model.is_some() {
            return false;
        }
        let left = self.app_fuse.get();
        if left > 0 {
            self.app_fuse.set(left - 1);
            return false;
        }
        self.app_fuse
            .set(self.below(u64::from(self.fuse_length) * 8) as u32);
        self.faults.borrow().active()
    }

    /// Whether a step of this side that begins now may be held up.
    pub(crate) fn may_hold_up(&self, side: Side) -> bool {
        !self.nested.get() && self.model.is_none() && self.faults.borrow().may_fire(switches(side))
    }

    /// Whether the running step of this side is held up at this access.
    pub(crate) fn holds_up(&self, node: NodeId, side: Side) -> bool {
        // A few times in some thousand accesses: a card keeps up with its work. A kernel has less to do.
        let (fuse, mean) = match side {
            Side::Nic => (&self.card_fuse, 800),
            Side::Host => (&self.kernel_fuse, 80),
        };
        let left = fuse.get();
        if left > 0 {
            fuse.set(left - 1);
            return false;
        }
        fuse.set(self.below(mean) as u32);
        self.fires(switches(side), node)
    }

    /// Before each access to shared words: now and then the other side runs a step, between two
    /// accesses of this one.
    pub(crate) fn before_access(&self, node: NodeId, side: Side) {
        // In a modelled world nothing happens outside of its time.
        if self.nested.get() || self.model.is_some() {
            return;
        }
        if side == Side::Nic && self.passes.inside() {
            crate::card::held_up(self, node);
        }
        if side == Side::Host && self.steps.inside() {
            crate::kernel::held_up(self, node);
        }
        let fuse = self.fuse.get();
        if fuse > 0 {
            self.fuse.set(fuse - 1);
            return;
        }
        self.fuse.set(self.below(u64::from(self.fuse_length) * 2) as u32);
        self.nested.set(true);
        self.points.nested(|| self.node(node).interleave(self, side));
        self.nested.set(false);
    }
}

/// The fault by which steps of this side are held up.
const fn switches(side: Side) -> FaultKind {
    match side {
        Side::Nic => FaultKind::CardSwitches,
        Side::Host => FaultKind::KernelSwitches,
    }
}
