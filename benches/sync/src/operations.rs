//! Each operation alone: what it costs in messages, instructions and time.

use netvm::sync::alock::AsymmetricLock;
use netvm::sync::{Lock, Semaphore, WaitQueue};
use netvm::{Access, ChannelConfig, Port, Receiver, RemoteSegment, Result, Sender};
use netvm_abi::Nanos;
use netvm_abi::atomic::{Atomic, QueueBlock};
use netvm_abi::descriptor::Opcode;
use netvm_world::stand::{Actor, Findings, Gate, SOON, Stand, Trouble};
use netvm_world::timing::CostModel;
use serde::Serialize;
use std::cell::Cell;
use std::rc::Rc;

/// What an operation costs: the median of its rounds, between which a probe or an acknowledgement may fall.
#[derive(Clone, Debug, Serialize)]
pub struct Operation {
    /// Its name.
    pub name: String,
    /// What it belongs to.
    pub group: Group,
    /// Round trips: an atomic, a read or a flush, and its answer.
    pub round_trips: u64,
    /// Messages that are not waited for.
    pub one_way: u64,
    /// Instructions of all cards together, acknowledgements aside.
    pub instructions: u64,
    /// Virtual time until the call returns (of a hand-over: until the next one has it), in nanoseconds.
    pub nanos: u64,
    /// The same, as a multiple of a read of four bytes.
    pub reads: f64,
}

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Reads and writes.
    Plain,
    /// On a word.
    Standard,
    /// On a queue block.
    Extended,
    /// What the library makes of them.
    Idiom,
    /// The same by standard atomics, under a lock, in three phases (thesis 8).
    Traditional,
}

/// Times that each is done.
const ROUNDS: u32 = 16;
/// Long enough for an operation's messages to have come to rest, short enough for no acknowledgement to be due.
const REST: Nanos = Nanos::from_micros(12);
/// Long enough for those, too.
const SETTLE: Nanos = Nanos::from_micros(200);

const HOME: u16 = 0;
const MEASURES: u16 = 1;
const OTHER: u16 = 2;
const PORT: u16 = 1;

/// Measures one operation after the other, on one port.
struct Bench<'a> {
    actor: &'a Actor,
    port: &'a Port,
    found: Findings<Operation>,
}

/// Round trips and one-way messages that a port has begun.
fn begun(port: &Port) -> (u64, u64) {
    let stats = port.stats();
    (
        stats.atomics + stats.read_messages + stats.remote_flushes,
        stats.write_messages,
    )
}

/// One operation's sums.
struct Meter<'a> {
    bench: &'a Bench<'a>,
    name: &'a str,
    group: Group,
    /// Whether it was done once: an operation makes contact the first time.
    warm: bool,
    /// Of each round: round trips, messages, instructions, nanoseconds.
    rounds: [Vec<u64>; 4],
    began: [u64; 4],
}

impl Meter<'_> {
    fn state(&self) -> [u64; 4] {
        let bench = self.bench;
        let (trips, messages) = begun(bench.port);
        [trips, messages, bench.actor.instructions(), bench.actor.now().0]
    }

    /// The operation begins now.
    fn start(&mut self) {
        self.bench.actor.rest(SETTLE);
        self.restart();
    }

    /// It begins now, and what came before is no business of its.
    fn restart(&mut self) {
        self.began = self.state();
    }

    /// It is over.
    fn stop(&mut self) {
        let now = self.bench.actor.now();
        self.stop_after(|| now);
    }

    /// It is over when `over` says so, which may wait for that.
    fn stop_after(&mut self, over: impl FnOnce() -> Nanos) {
        let mut after = self.state();
        let over = over();
        // What it has set going is counted, too.
        self.bench.actor.rest(REST);
        (after[2], after[3]) = (self.bench.actor.instructions(), over.0);
        if std::mem::replace(&mut self.warm, true) {
            for (rounds, (after, began)) in self.rounds.iter_mut().zip(after.iter().zip(self.began)) {
                rounds.push(after - began);
            }
        }
    }
}

impl Drop for Meter<'_> {
    /// What was measured is found.
    fn drop(&mut self) {
        let median = |rounds: &mut Vec<u64>| {
            rounds.sort_unstable();
            rounds.get(rounds.len() / 2).copied().unwrap_or_default()
        };
        let [round_trips, one_way, instructions, nanos] = self.rounds.each_mut().map(median);
        self.bench.found.borrow_mut().push(Operation {
            name: self.name.to_owned(),
            group: self.group,
            round_trips,
            one_way,
            instructions,
            nanos,
            reads: 0.0,
        });
    }
}

impl Bench<'_> {
    fn meter<'a>(&'a self, name: &'a str, group: Group) -> Meter<'a> {
        Meter {
            bench: self,
            name,
            group,
            warm: false,
            rounds: Default::default(),
            began: [0; 4],
        }
    }

    /// An operation that needs no preparation.
    fn plain<T>(&self, name: &str, group: Group, mut operation: impl FnMut() -> Result<T>) -> Result<()> {
        let mut meter = self.meter(name, group);
        for _ in 0..=ROUNDS {
            meter.start();
            operation()?;
            meter.stop();
        }
        Ok(())
    }
}

/// What the processes of the world know of one another.
#[derive(Default)]
struct Shared {
    ready: Gate,
    joined: Gate,
    over: Gate,
    /// What the other process is to do next; 0: nothing.
    errand: Cell<Errand>,
    /// When it had the lock, or was woken.
    had: Cell<Nanos>,
}

/// What the other process is asked for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Errand {
    #[default]
    None,
    /// Take the lock, and give it back.
    Lock,
    /// Take a token.
    Token,
    /// Stand in the queue, and wait.
    Queue,
    /// Receive messages.
    Message,
    /// Go.
    Leave,
}

const ALL: usize = 3;

fn everyone() -> Access {
    Access::everyone().notify(1..=895)
}

/// Measures all.
///
/// # Errors
/// [`Trouble`] when an operation failed.
pub fn measure(model: &CostModel) -> std::result::Result<Vec<Operation>, Trouble> {
    let found: Findings<Operation> = Findings::default();
    let shared = Rc::new(Shared::default());
    let mut stand = Stand::new(model, 3);
    let at = shared.clone();
    let local = found.clone();
    stand.process(HOME, "home", move |actor| home(actor, &at, &local));
    let (at, to) = (shared.clone(), found.clone());
    stand.process(MEASURES, "measures", move |actor| measures(actor, &at, &to));
    stand.process(OTHER, "other", move |actor| other(actor, &shared));
    stand.run(4)?;
    let mut found = found.take();
    let read = found
        .iter()
        .find(|operation| operation.name == READ)
        .map_or(1, |read| read.nanos);
    for operation in &mut found {
        operation.reads = operation.nanos as f64 / read as f64;
    }
    Ok(found)
}

const READ: &str = "read 4 B";

fn home(actor: &Actor, shared: &Shared, found: &Findings<Operation>) -> Result<()> {
    let port = actor.open(PORT)?;
    let memory = port.alloc(16_384)?;
    memory.write_from(0, &[0; 16_384])?;
    let _segment = port.export("memory", &memory, .., everyone())?;
    let _homes = (
        Lock::create(&port, "lock", everyone())?,
        Semaphore::create(&port, "semaphore", 1, everyone())?,
        Semaphore::create(&port, "empty", 0, everyone())?,
        WaitQueue::create(&port, "queue", everyone())?,
    );
    let asymmetric = AsymmetricLock::create(&port, "asymmetric", Access::everyone())?;
    shared.ready.pass(actor, ALL);
    // Its own way to it, while the others rest.
    let bench = Bench {
        actor,
        port: &port,
        found: found.clone(),
    };
    let mut handle = asymmetric.handle()?;
    bench.plain("ALock at home: acquire + release", Group::Idiom, || {
        handle.acquire()?.release()
    })?;
    shared.joined.pass(actor, ALL);
    shared.over.pass(actor, ALL);
    Ok(())
}

fn word(opcode: Opcode, operand: u64, compare: u64) -> Atomic {
    Atomic {
        opcode,
        wide: true,
        operand,
        compare,
    }
}

fn measures(actor: &Actor, shared: &Shared, found: &Findings<Operation>) -> Result<()> {
    let port = actor.open(PORT)?;
    shared.ready.pass(actor, ALL);
    shared.joined.pass(actor, ALL);
    let bench = Bench {
        actor,
        port: &port,
        found: found.clone(),
    };
    let memory = port.import(HOME.into(), PORT.into(), "memory", SOON)?;
    words(&bench, &memory)?;
    alone(&bench)?;
    together(&bench, shared)?;
    shared.errand.set(Errand::Leave);
    shared.over.pass(actor, ALL);
    Ok(())
}

/// Reads, writes and atomics.
fn words(bench: &Bench<'_>, memory: &RemoteSegment) -> Result<()> {
    let own = bench.port.alloc(4096)?;
    own.write_from(0, &[0; 4096])?;
    let four = own.slice(..4)?;
    bench.plain(READ, Group::Plain, || memory.read(0, &four).fenced().post())?;
    bench.plain("write 4 B, answered", Group::Plain, || {
        memory.write(64, &[7; 4]).post()?;
        bench.port.flush_remote(HOME.into())
    })?;
    let counter = memory.word64(0)?;
    bench.plain("fetch-and-add", Group::Standard, || counter.fetch_add(1))?;
    let (turn, swapped) = (Cell::new(0), memory.word64(8)?);
    bench.plain("swap", Group::Standard, || {
        swapped.swap(turn.replace(turn.get() + 1) + 1)
    })?;
    let (turn, compared) = (Cell::new(0), memory.word64(16)?);
    bench.plain("compare-and-swap", Group::Standard, || {
        let old = turn.replace(turn.get() + 1);
        compared.compare_swap(old, old + 1)
    })?;
    let block = |count, pending, value| QueueBlock {
        head: 8,
        tail: 9,
        count,
        pending,
        value,
        epoch: 0,
    };
    for (name, opcode, before) in [
        ("enqueue", Opcode::Enqueue, block(2, 0, 0)),
        ("dequeue", Opcode::Dequeue, block(2, 0, 0)),
        ("newhead", Opcode::NewHead, block(2, 1, 0)),
        ("semP", Opcode::SemP, block(0, 0, 1)),
        ("semV", Opcode::SemV, block(0, 0, 1)),
    ] {
        let bytes: Vec<u8> = before
            .encode()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let mut meter = bench.meter(name, Group::Extended);
        for _ in 0..=ROUNDS {
            memory.write(4096, &bytes[..]).post()?;
            bench.port.flush_remote(HOME.into())?;
            meter.start();
            memory.atomic(4096, word(opcode, 5, 0)).call()?;
            meter.stop();
        }
    }
    Ok(())
}

/// What the library makes of them, without competition.
fn alone(bench: &Bench<'_>) -> Result<()> {
    let (home, exporter) = (HOME.into(), PORT.into());
    let mut lock = Lock::join(bench.port, home, exporter, "lock", SOON)?;
    for (name, acquires) in [("Lock: acquire", true), ("Lock: release", false)] {
        let mut meter = bench.meter(name, Group::Idiom);
        for _ in 0..=ROUNDS {
            if acquires {
                meter.start();
            }
            let guard = lock.acquire()?;
            if acquires {
                meter.stop();
            } else {
                meter.start();
            }
            guard.release()?;
            if !acquires {
                meter.stop();
            }
        }
    }
    let mut semaphore = Semaphore::join(bench.port, home, exporter, "semaphore", SOON)?;
    for (name, waits) in [
        ("Semaphore: wait, a token there", true),
        ("Semaphore: signal, no waiter", false),
    ] {
        let mut meter = bench.meter(name, Group::Idiom);
        for _ in 0..=ROUNDS {
            if waits {
                meter.start();
            }
            semaphore.wait()?;
            if waits {
                meter.stop();
            } else {
                meter.start();
            }
            semaphore.signal()?;
            if !waits {
                meter.stop();
            }
        }
    }
    let mut remote = AsymmetricLock::join(bench.port, home, exporter, "asymmetric", SOON)?;
    bench.plain("ALock elsewhere: acquire + release", Group::Idiom, || {
        remote.acquire()?.release()
    })?;
    // The traditional way: a lock, the count read and written, the lock.
    let value = bench.port.import(home, exporter, "memory", SOON)?;
    bench.plain("Semaphore: signal, in three phases", Group::Traditional, || {
        let guard = lock.acquire()?;
        let mut bytes = [0; 8];
        value.read(128, &mut bytes).call()?;
        let more = u64::from_le_bytes(bytes) + 1;
        value.write(128, &more.to_le_bytes()).post()?;
        guard.release()
    })
}

/// What takes two: the other process does its part when it is asked to.
fn together(bench: &Bench<'_>, shared: &Shared) -> Result<()> {
    let (home, exporter) = (HOME.into(), PORT.into());
    let actor = bench.actor;
    let had = || {
        // Soon enough for no acknowledgement to be due meanwhile.
        while shared.had.get() == Nanos(0) {
            actor.rest(Nanos::from_micros(1));
        }
        shared.had.take()
    };
    let mut lock = Lock::join(bench.port, home, exporter, "lock", SOON)?;
    // The other one spins still, or has gone to sleep.
    for (name, wait) in [
        (
            "Lock: release to a spinner, until it has it",
            Nanos::from_micros(50),
        ),
        (
            "Lock: release to a sleeper, until it has it",
            Nanos::from_micros(400),
        ),
    ] {
        let mut meter = bench.meter(name, Group::Idiom);
        for _ in 0..=ROUNDS {
            let guard = lock.acquire()?;
            actor.rest(SETTLE);
            shared.errand.set(Errand::Lock);
            while !guard.is_asked_for()? {
                actor.rest(Nanos(500));
            }
            actor.rest(wait);
            meter.restart();
            guard.release()?;
            meter.stop_after(had);
            actor.until(|| shared.errand.get() == Errand::None);
        }
    }
    let semaphore = Semaphore::join(bench.port, home, exporter, "empty", SOON)?;
    let mut meter = bench.meter("Semaphore: signal to a sleeper, until it has it", Group::Idiom);
    for _ in 0..=ROUNDS {
        shared.errand.set(Errand::Token);
        actor.rest(SETTLE);
        meter.restart();
        semaphore.signal()?;
        meter.stop_after(had);
        actor.until(|| shared.errand.get() == Errand::None);
    }
    drop(meter);
    let queue = WaitQueue::join(bench.port, home, exporter, "queue", SOON)?;
    let mut meter = bench.meter("WaitQueue: signal to a sleeper, until it goes on", Group::Idiom);
    for _ in 0..=ROUNDS {
        shared.errand.set(Errand::Queue);
        actor.rest(SETTLE);
        meter.restart();
        queue.signal()?;
        meter.stop_after(had);
        actor.until(|| shared.errand.get() == Errand::None);
    }
    drop(meter);
    let mut asking = WaitQueue::join(bench.port, home, exporter, "queue", SOON)?;
    let mut meter = bench.meter("WaitQueue: stand in it", Group::Idiom);
    for _ in 0..=ROUNDS {
        meter.start();
        let mut waiting = asking.insert()?;
        meter.stop();
        queue.signal()?;
        waiting.wait(SOON)?;
    }
    drop(meter);
    shared.errand.set(Errand::Message);
    let mut sender = Sender::join(bench.port, OTHER.into(), PORT.into(), "channel", SOON)?;
    let mut meter = bench.meter(
        "Channel: send 8 B to a sleeper, until it is received",
        Group::Idiom,
    );
    for _ in 0..=ROUNDS {
        meter.start();
        sender.send(&[7; 8], SOON)?;
        meter.stop_after(had);
    }
    drop(meter);
    sender.close()
}

fn other(actor: &Actor, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    shared.ready.pass(actor, ALL);
    let (home, exporter) = (HOME.into(), PORT.into());
    let mut lock = Lock::join(&port, home, exporter, "lock", SOON)?;
    let mut semaphore = Semaphore::join(&port, home, exporter, "empty", SOON)?;
    let mut queue = WaitQueue::join(&port, home, exporter, "queue", SOON)?;
    shared.joined.pass(actor, ALL);
    loop {
        actor.until(|| shared.errand.get() != Errand::None);
        match shared.errand.get() {
            Errand::Lock => {
                let guard = lock.acquire()?;
                shared.had.set(actor.now());
                actor.rest(SETTLE);
                guard.release()?;
            }
            Errand::Token => {
                semaphore.wait()?;
                shared.had.set(actor.now());
            }
            Errand::Queue => {
                queue.insert()?.wait(SOON)?;
                shared.had.set(actor.now());
            }
            Errand::Message => {
                let mut receiver = Receiver::open(&port, "channel", ChannelConfig::default())?;
                for _ in 0..=ROUNDS {
                    receiver.recv(SOON)?.to_vec()?;
                    shared.had.set(actor.now());
                }
            }
            Errand::Leave => break,
            Errand::None => {}
        }
        shared.errand.set(Errand::None);
    }
    shared.over.pass(actor, ALL);
    Ok(())
}
