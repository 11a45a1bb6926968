//! A shared receive queue under lasting pressure: more senders than the receiver can serve, each with a message always at
//! hand. How many places does each get, and how long does one wait for a place?

use netvm::{Error, Result, SharedConfig, SharedReceiver, SharedSender};
use netvm_abi::Nanos;
use netvm_world::Dice;
use netvm_world::stand::{Actor, Findings, Gate, SOON, Stand, Trouble};
use netvm_world::timing::CostModel;
use serde::Serialize;
use std::rc::Rc;
use std::time::Duration;

/// What is put under pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Senders, on 8 nodes; the receiver's comes on top.
    pub senders: u32,
    /// Messages that the queue has room for.
    pub capacity: u32,
    /// What the receiver does with a message takes so long, on average: from half of it to one and a half, evenly.
    pub service_nanos: u64,
}

impl Setting {
    /// How long the receiver takes to serve each sender once.
    const fn round(&self) -> u64 {
        self.senders as u64 * self.service_nanos
    }
}

/// What came of it, in worlds that differ in when each sender begins and how long each message takes.
#[derive(Clone, Debug, Serialize)]
pub struct Pressure {
    /// What was put under pressure.
    pub setting: Setting,
    /// Worlds.
    pub worlds: u32,
    /// Messages that found a place while they were watched, in all worlds.
    pub messages: u64,
    /// By what the receiver could have served.
    pub goodput: f64,
    /// Jain's index of the senders' shares: 1 when all had as many. The mean of all worlds.
    pub jain: f64,
    /// The lowest of any world.
    pub worst_jain: f64,
    /// The fewest that a sender of any world had, by an equal share.
    pub fewest: f64,
    /// The most.
    pub most: f64,
    /// The longest that any sender waited for a place, in nanoseconds.
    pub longest_nanos: u64,
    /// Messages that were refused, for each that found a place.
    pub refusals: f64,
}

impl Pressure {
    /// The longest that any sender waited, in rounds: in each of them the receiver could have served all once.
    #[must_use]
    pub fn longest_rounds(&self) -> f64 {
        self.longest_nanos as f64 / self.setting.round().max(1) as f64
    }
}

const PORT: u16 = 1;
/// Nodes of the senders.
const NODES: u16 = 8;
/// How long they are watched, in rounds: so many messages each has a share of. A sender that has waited long is no longer behind
/// after some ten rounds; of 100 rounds Jain's index was 0.87 to 0.97, by chance (`netvm bench sync`).
const ROUNDS: u64 = 200;
/// Rounds before that.
const WARM: u64 = 20;

struct Shared {
    setting: Setting,
    seed: u64,
    ready: Gate,
    joined: Gate,
    /// Senders that have ended.
    over: Gate,
    /// Of each sender: messages, and the longest wait.
    counts: Findings<(u64, u64)>,
    refused: Findings<u64>,
}

impl Shared {
    const fn parties(&self) -> usize {
        self.setting.senders as usize
    }
}

/// Watches so many worlds.
///
/// # Errors
/// [`Trouble`] when an operation failed.
pub fn measure(model: &CostModel, setting: Setting, worlds: u32) -> std::result::Result<Pressure, Trouble> {
    let mut sum = Pressure {
        setting,
        worlds,
        messages: 0,
        goodput: 0.0,
        jain: 0.0,
        worst_jain: 1.0,
        fewest: f64::MAX,
        most: 0.0,
        longest_nanos: 0,
        refusals: 0.0,
    };
    let mut refused = 0;
    for seed in 0..worlds {
        let shared = play(model, setting, seed.into())?;
        let counts = shared.counts.borrow();
        let got: u64 = counts.iter().map(|(got, _)| got).sum();
        let squares: u64 = counts.iter().map(|(got, _)| got * got).sum();
        let jain = (got as f64).powi(2) / (counts.len() as f64 * squares.max(1) as f64);
        sum.jain += jain / f64::from(worlds);
        sum.worst_jain = sum.worst_jain.min(jain);
        for &(got_one, waited) in counts.iter() {
            let share = got_one as f64 * counts.len() as f64 / got.max(1) as f64;
            sum.fewest = sum.fewest.min(share);
            sum.most = sum.most.max(share);
            sum.longest_nanos = sum.longest_nanos.max(waited);
        }
        sum.messages += got;
        refused += shared.refused.borrow().iter().sum::<u64>();
    }
    let served = u64::from(worlds) * ROUNDS * u64::from(setting.senders);
    sum.goodput = sum.messages as f64 / served.max(1) as f64;
    sum.refusals = refused as f64 / sum.messages.max(1) as f64;
    Ok(sum)
}

fn play(model: &CostModel, setting: Setting, seed: u64) -> std::result::Result<Rc<Shared>, Trouble> {
    let shared = Rc::new(Shared {
        setting,
        seed,
        ready: Gate::default(),
        joined: Gate::default(),
        over: Gate::default(),
        counts: Findings::default(),
        refused: Findings::default(),
    });
    let mut stand = Stand::new(model, NODES + 1);
    let at = shared.clone();
    stand.process(0, "receiver", move |actor| receiver(actor, &at));
    for sender in 0..setting.senders {
        let node = 1 + (sender % u32::from(NODES)) as u16;
        let (at, port) = (shared.clone(), PORT + (sender / u32::from(NODES)) as u16);
        stand.process(node, "sender", move |actor| {
            self::sender(actor, port, sender, &at)
        });
    }
    stand.run(setting.senders.div_ceil(u32::from(NODES)) as u16)?;
    Ok(shared)
}

fn receiver(actor: &Actor, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    let config = SharedConfig::default().capacity(shared.setting.capacity);
    let mut queue = SharedReceiver::open(&port, "queue", config)?;
    shared.ready.pass(actor, shared.parties() + 1);
    let mut dice = Dice::new(shared.seed.wrapping_mul(1_000));
    while shared.over.come() < shared.parties() {
        match queue.recv(Duration::from_micros(200)) {
            Ok(message) => drop(message),
            Err(Error::TimedOut) => continue,
            Err(error) => return Err(error),
        }
        let service = shared.setting.service_nanos;
        actor.rest(Nanos(service / 2 + dice.below(service + 1)));
    }
    Ok(())
}

fn sender(actor: &Actor, number: u16, sender: u32, shared: &Shared) -> Result<()> {
    let port = actor.open(number)?;
    shared.ready.pass(actor, shared.parties() + 1);
    let queue = SharedSender::join(&port, 0.into(), PORT.into(), "queue", SOON)?;
    shared.joined.pass(actor, shared.parties());
    let mut dice = Dice::new(shared.seed.wrapping_mul(1_000) + 1 + u64::from(sender));
    let begins = actor.now().after(Nanos(WARM * shared.setting.round()));
    let ends = begins.after(Nanos(ROUNDS * shared.setting.round()));
    actor.rest(Nanos(dice.below(shared.setting.round())));
    let (mut count, mut longest) = (0, 0);
    let mut since = actor.now();
    while actor.now() < ends {
        let left = Duration::from_nanos(ends.0 - actor.now().0);
        match queue.send(&sender.to_le_bytes(), left) {
            Ok(()) if actor.now() >= begins && actor.now() < ends => {
                count += 1;
                longest = longest.max(actor.now().0 - since.0);
            }
            Ok(()) => {}
            Err(Error::QueueFull) => longest = longest.max(ends.0 - since.0),
            Err(error) => return Err(error),
        }
        since = actor.now();
    }
    shared.counts.borrow_mut().push((count, longest));
    shared.refused.borrow_mut().push(port.stats().failures);
    drop(queue);
    shared.over.pass(actor, shared.parties());
    Ok(())
}
