//! Many clients on one lock: how often each gets it, and what lies between two of them.

use netvm::sync::Lock;
use netvm::{Access, Result};
use netvm_abi::Nanos;
use netvm_world::stand::{Actor, Findings, Gate, SOON, Stand, Trouble};
use netvm_world::timing::CostModel;
use serde::Serialize;
use std::cell::Cell;
use std::rc::Rc;

/// How a crowd got on.
#[derive(Clone, Debug, Serialize)]
pub struct Crowd {
    /// Clients.
    pub clients: usize,
    /// Nodes that they are spread over.
    pub nodes: u16,
    /// How long they were watched, in nanoseconds of virtual time.
    pub nanos: u64,
    /// How often the lock was got meanwhile, in all.
    pub acquisitions: u64,
    /// The fewest that a client got.
    pub fewest: u64,
    /// The most.
    pub most: u64,
    /// Jain's index of fairness: 1 when all got it equally often.
    pub jain: f64,
    /// From a release to the next one's having it, in nanoseconds: two clients, of which one waits asleep, as almost
    /// all of a crowd do.
    pub hand_over_nanos: u64,
    /// Acquisitions by what hand-overs alone allow.
    pub goodput: f64,
    /// Whatever was refused, missed, bounced, sent again, or waited for room; by counter. All zero where it went well.
    pub retries: Vec<(String, u64)>,
}

impl Crowd {
    /// Whatever had to be done again, in all.
    #[must_use]
    pub fn retried(&self) -> u64 {
        self.retries.iter().map(|(_, count)| count).sum()
    }
}

/// What counts something that had to be done again, or waited for room.
const RETRIES: [&str; 16] = [
    "commands_refused",
    "commands_failed",
    "broken_doorbells",
    "credit_stalls",
    "staging_stalls",
    "read_stalls",
    "malformed",
    "stale_incarnation",
    "duplicates",
    "out_of_window",
    "messages_failed",
    "bounced_not_found",
    "bounced_read_only",
    "atomics_missed",
    "atomic_replays",
    "late_replies",
];

const PORT: u16 = 1;
/// The first client that reaches this round begins the measurement.
const WARM: u32 = 3;

/// What the processes of the world know of one another.
struct Shared {
    clients: usize,
    ready: Gate,
    warm: Gate,
    over: Gate,
    /// How long each is watched.
    span: Nanos,
    /// What had to be done again before the first was watched, and after the last.
    before: Findings<u64>,
    after: Findings<u64>,
    queue_full: Cell<u64>,
    /// How long it is held.
    hold: Nanos,
    /// Since when they are watched.
    begins: Cell<Nanos>,
    /// When it was let go of last.
    released: Cell<Nanos>,
    hand_overs: Findings<u64>,
}

impl Shared {
    fn ends(&self) -> Nanos {
        match self.begins.get() {
            Nanos(0) => Nanos::MAX,
            begins => begins.after(self.span),
        }
    }

    /// The first that has the lock while it is watched says what was counted before.
    fn watch(&self, actor: &Actor) {
        let mut before = self.before.borrow_mut();
        if before.is_empty() {
            *before = actor.counted(&RETRIES);
        }
    }
}

/// Watches `clients` of them, on `nodes` nodes, for `span`.
///
/// # Errors
/// [`Trouble`] when an operation failed.
pub fn measure(
    model: &CostModel,
    clients: usize,
    nodes: u16,
    span: Nanos,
) -> std::result::Result<Crowd, Trouble> {
    let two = play(model, 2, 3, Nanos::from_millis(5), Nanos::from_micros(300))?;
    let crowd = play(model, clients, nodes, span, Nanos(0))?;
    let hand_over = median(two.hand_overs);
    let got: u64 = crowd.got.iter().sum();
    let squares: u64 = crowd.got.iter().map(|got| got * got).sum();
    Ok(Crowd {
        clients,
        nodes,
        nanos: span.0,
        acquisitions: got,
        fewest: crowd.got.iter().min().copied().unwrap_or_default(),
        most: crowd.got.iter().max().copied().unwrap_or_default(),
        jain: (got as f64).powi(2) / (crowd.got.len() as f64 * squares as f64),
        hand_over_nanos: hand_over,
        goodput: (got * hand_over) as f64 / span.0 as f64,
        retries: crowd.retries,
    })
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

struct Played {
    got: Vec<u64>,
    hand_overs: Vec<u64>,
    retries: Vec<(String, u64)>,
}

fn play(
    model: &CostModel,
    clients: usize,
    nodes: u16,
    span: Nanos,
    hold: Nanos,
) -> std::result::Result<Played, Trouble> {
    let shared = Rc::new(Shared {
        clients,
        ready: Gate::default(),
        warm: Gate::default(),
        over: Gate::default(),
        span,
        before: Findings::default(),
        after: Findings::default(),
        queue_full: Cell::new(0),
        hold,
        begins: Cell::new(Nanos(0)),
        released: Cell::new(Nanos(0)),
        hand_overs: Findings::default(),
    });
    let got: Findings<u64> = Findings::default();
    let mut stand = Stand::new(model, nodes);
    let at = shared.clone();
    stand.process(0, "home", move |actor| home(actor, &at));
    let per_node = clients.div_ceil(usize::from(nodes));
    for client in 0..clients {
        // From the last node on, so that few clients are not at the lock's home.
        let node = nodes - 1 - (client % usize::from(nodes)) as u16;
        let (at, to) = (shared.clone(), got.clone());
        let port = PORT + 1 + (client / usize::from(nodes)) as u16;
        stand.process(node, "client", move |actor| self::client(actor, port, &at, &to));
    }
    stand.run(per_node as u16 + 1)?;
    let (before, after) = (shared.before.take(), shared.after.take());
    let mut retries: Vec<(String, u64)> = RETRIES
        .iter()
        .zip(after.iter().zip(&before))
        .map(|(&name, (after, before))| (name.to_owned(), after - before))
        .collect();
    retries.push(("queue_full".to_owned(), shared.queue_full.get()));
    Ok(Played {
        got: got.take(),
        hand_overs: shared.hand_overs.take(),
        retries,
    })
}

fn home(actor: &Actor, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    let _lock = Lock::create(&port, "lock", Access::everyone())?;
    shared.ready.pass(actor, shared.clients + 1);
    shared.over.pass(actor, shared.clients + 1);
    Ok(())
}

fn client(actor: &Actor, number: u16, shared: &Shared, got: &Findings<u64>) -> Result<()> {
    let port = actor.open(number)?;
    shared.ready.pass(actor, shared.clients + 1);
    {
        let mut lock = Lock::join(&port, 0.into(), PORT.into(), "lock", SOON)?;
        lock.acquire()?.release()?;
        shared.warm.pass(actor, shared.clients);
        let mut count = 0;
        let (mut round, mut full) = (0, 0);
        while actor.now() < shared.ends() {
            let guard = lock.acquire()?;
            let had = actor.now();
            // A client that stands behind another for the first time makes contact first; from then on the order stays.
            round += 1;
            if round == WARM && shared.begins.get() == Nanos(0) {
                shared.begins.set(had);
            }
            let begins = shared.begins.get();
            if begins > Nanos(0) && had < shared.ends() {
                if count == 0 {
                    full = port.stats().queue_full;
                    shared.watch(actor);
                }
                count += 1;
                let before = shared.released.get();
                if before > begins {
                    shared.hand_overs.borrow_mut().push(had.0 - before.0);
                }
            }
            if shared.hold > Nanos(0) {
                actor.rest(shared.hold);
            }
            shared.released.set(actor.now());
            guard.release()?;
        }
        got.borrow_mut().push(count);
        *shared.after.borrow_mut() = actor.counted(&RETRIES);
        let full = port.stats().queue_full - full;
        shared.queue_full.set(shared.queue_full.get() + full);
    }
    shared.over.pass(actor, shared.clients + 1);
    Ok(())
}
