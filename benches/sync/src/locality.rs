//! Locks by locality: the asymmetric lock, the MCS lock, and a spin lock of compare-and-swaps, for processes of which
//! some are at the lock's own node and some are not.
//!
//! Locks are spread over the nodes evenly, and each process draws, for each acquisition, whether it takes one of its own
//! node's or another's. Where there are fewer locks than nodes it is the processes that are spread: so many of a hundred
//! live at the locks' homes. Processes of a lock's own node reach it with their processor if it is an asymmetric one, else
//! through their card, as they must to be atomic with the others.

use netvm::sync::Lock;
use netvm::sync::alock::{AsymmetricHandle, AsymmetricLock};
use netvm::{Access, Port, RemoteSegment, Result};
use netvm_abi::{Nanos, PAGE_SIZE};
use netvm_world::Dice;
use netvm_world::stand::{Actor, Findings, Gate, SOON, Stand, Trouble};
use netvm_world::timing::CostModel;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Kinds of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// [`AsymmetricLock`].
    Asymmetric,
    /// [`Lock`].
    Mcs,
    /// A word: compare-and-swap until it was free, and a write to free it.
    Spin,
}

/// All kinds.
pub const KINDS: [Kind; 3] = [Kind::Asymmetric, Kind::Mcs, Kind::Spin];

impl Kind {
    /// For tables and plots.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Asymmetric => "ALock",
            Self::Mcs => "MCS",
            Self::Spin => "spin",
        }
    }
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The lock.
    pub kind: Kind,
    /// Nodes.
    pub nodes: u16,
    /// Locks, in all.
    pub locks: u32,
    /// How many of a hundred acquisitions are of a lock of the process' own node.
    pub local_percent: u32,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Of what.
    #[serde(flatten)]
    pub setting: Setting,
    /// Processes.
    pub processes: u32,
    /// Acquisitions while it was watched.
    pub acquisitions: u64,
    /// How long that was, in nanoseconds of virtual time.
    pub nanos: u64,
    /// Millions of acquisitions, each with its release, in a second of virtual time.
    pub mops: f64,
}

/// Processes for each node.
pub const PROCESSES: u32 = 3;
/// Most locks of either kind that a process uses: a draw from all of them.
const USES: usize = 12;
const PORT: u16 = 1;

/// What the processes of the world know of one another.
struct Shared {
    setting: Setting,
    everyone: usize,
    ready: Gate,
    joined: Gate,
    over: Gate,
    span: Nanos,
    /// The asymmetric locks, for threads of their home's process.
    homes: RefCell<Vec<Option<AsymmetricLock>>>,
    /// Whether each lock is held, as an eye from outside sees it.
    held: Vec<Cell<bool>>,
    counts: Findings<u64>,
}

impl Shared {
    fn home_of(&self, lock: u32) -> u16 {
        (lock % u32::from(self.setting.nodes)) as u16
    }

    /// Locks of this node, or all others.
    fn locks(&self, node: u16, own: bool) -> Vec<u32> {
        (0..self.setting.locks)
            .filter(|&lock| (self.home_of(lock) == node) == own)
            .collect()
    }
}

/// Watches for `span`, once all clients that meet have met.
///
/// # Errors
/// [`Trouble`] when an operation failed, or two held one lock.
pub fn measure(model: &CostModel, setting: Setting, span: Nanos) -> std::result::Result<Point, Trouble> {
    let nodes = setting.nodes;
    let processes = PROCESSES * u32::from(nodes);
    let shared = Rc::new(Shared {
        setting,
        everyone: processes as usize + usize::from(nodes),
        ready: Gate::default(),
        joined: Gate::default(),
        over: Gate::default(),
        span,
        homes: RefCell::new((0..setting.locks).map(|_| None).collect()),
        held: (0..setting.locks).map(|_| Cell::new(false)).collect(),
        counts: Findings::default(),
    });
    let placed = place(setting, processes);
    let mut stand = Stand::new(model, nodes);
    for node in 0..nodes {
        let (shared, clients) = (shared.clone(), placed[usize::from(node)].clone());
        stand.process(node, "home", move |actor| home(actor, &shared, &clients));
    }
    let most = placed.iter().map(Vec::len).max().unwrap_or_default();
    stand.run(most as u16 + 1)?;
    let acquisitions: u64 = shared.counts.borrow().iter().sum();
    Ok(Point {
        setting,
        processes,
        acquisitions,
        nanos: span.0,
        mops: acquisitions as f64 * 1_000.0 / span.0 as f64,
    })
}

/// A process: its number, and how many of a hundred of its acquisitions are of its own node's locks.
type Client = (u32, u32);

/// The clients of each node.
fn place(setting: Setting, processes: u32) -> Vec<Vec<Client>> {
    let nodes = u32::from(setting.nodes);
    let homes = setting.locks.min(nodes);
    let mut placed = vec![Vec::new(); usize::from(setting.nodes)];
    let local = processes * setting.local_percent / 100;
    for client in 0..processes {
        let (node, percent) = if homes == nodes {
            (client % nodes, setting.local_percent)
        } else if client < local {
            (client % homes, 100)
        } else {
            (homes + client % (nodes - homes), 0)
        };
        placed[node as usize].push((client, percent));
    }
    placed
}

/// The process of a node: home to its locks, and a thread for each client.
fn home(actor: &Actor, shared: &Rc<Shared>, clients: &[Client]) -> Result<()> {
    let port = actor.open(PORT)?;
    let own = shared.locks(actor.id.0, true);
    let mut locks = Vec::new();
    let words = port.alloc(u64::from(PAGE_SIZE) * 16)?;
    words.write_from(0, &[0; PAGE_SIZE as usize * 16])?;
    let _words = port.export("words", &words, .., Access::everyone())?;
    for &lock in &own {
        match shared.setting.kind {
            Kind::Asymmetric => {
                let made = AsymmetricLock::create(&port, &name(lock), Access::everyone())?;
                shared.homes.borrow_mut()[lock as usize] = Some(made);
            }
            Kind::Mcs => locks.push(Lock::create(&port, &name(lock), Access::everyone())?),
            Kind::Spin => {}
        }
    }
    for (at, &client) in (1..).zip(clients) {
        let shared = shared.clone();
        actor.thread(move |actor| self::client(actor, PORT + at, client, &shared));
    }
    shared.ready.pass(actor, shared.everyone);
    shared.joined.pass(actor, shared.everyone);
    shared.over.pass(actor, shared.everyone);
    for &lock in &own {
        // Dropped without the table in hand: that takes a while.
        let gone = shared.homes.borrow_mut()[lock as usize].take();
        drop(gone);
    }
    Ok(())
}

fn name(lock: u32) -> String {
    format!("lock {lock}")
}

/// A client's way to a lock.
enum Way {
    Asymmetric(AsymmetricHandle),
    Mcs(Lock),
    /// The words of its home, the word's place, and a value of the client's own.
    Spin(RemoteSegment, u64, u64),
}

impl Way {
    fn to(shared: &Shared, actor: &Actor, port: &Port, lock: u32, client: u32) -> Result<Self> {
        let home = shared.home_of(lock);
        Ok(match shared.setting.kind {
            Kind::Asymmetric if home == actor.id.0 => {
                let lock = shared.homes.borrow()[lock as usize].clone();
                match lock {
                    Some(lock) => Self::Asymmetric(lock.handle()?),
                    None => return Err(netvm::Error::Released),
                }
            }
            Kind::Asymmetric => Self::Asymmetric(AsymmetricLock::join(
                port,
                home.into(),
                PORT.into(),
                &name(lock),
                SOON,
            )?),
            Kind::Mcs => Self::Mcs(Lock::join(port, home.into(), PORT.into(), &name(lock), SOON)?),
            Kind::Spin => {
                let words = port.import(home.into(), PORT.into(), "words", SOON)?;
                let place = u64::from(lock / u32::from(shared.setting.nodes));
                // Each in a page of its own, as the others are, as far as there are pages.
                let page = place % 16 * u64::from(PAGE_SIZE);
                Self::Spin(words, page + place / 16 * 64, u64::from(client) + 1)
            }
        })
    }

    /// Takes the lock, and gives it back.
    fn once(&mut self, actor: &Actor, held: &Cell<bool>) -> Result<()> {
        let watch = || {
            assert!(!held.replace(true), "two hold one lock");
            actor.rest(HOLD);
            held.set(false);
        };
        match self {
            Self::Asymmetric(handle) => {
                let guard = handle.acquire()?;
                watch();
                guard.release()
            }
            Self::Mcs(lock) => {
                let guard = lock.acquire()?;
                watch();
                guard.release()
            }
            Self::Spin(words, at, me) => {
                let word = words.word64(*at)?;
                // Behind the write that freed it last.
                while word.exchange_if(0, *me).ordered().call()? != 0 {}
                watch();
                words.write(*at, &[0; 8]).post().map(drop)
            }
        }
    }
}

fn client(actor: &Actor, number: u16, (client, percent): Client, shared: &Shared) -> Result<()> {
    let port = actor.open(number)?;
    shared.ready.pass(actor, shared.everyone);
    let mut dice = Dice::new(u64::from(client) + 1);
    {
        let mut ways = [Vec::new(), Vec::new()];
        for (own, ways) in [false, true].into_iter().zip(&mut ways) {
            let mut locks = shared.locks(actor.id.0, own);
            while ways.len() < USES && !locks.is_empty() && (if own { percent > 0 } else { percent < 100 }) {
                let lock = locks.swap_remove(dice.index(locks.len()));
                let way = Way::to(shared, actor, &port, lock, client)?;
                ways.push((way, &shared.held[lock as usize]));
            }
        }
        shared.joined.pass(actor, shared.everyone);
        // Clients that meet for the first time make contact first.
        let begins = actor.now().after(WARM);
        let ends = begins.after(shared.span);
        let mut count = 0;
        while actor.now() < ends {
            let own = dice.below(100) < u64::from(percent);
            let ways = &mut ways[usize::from(own)];
            let at = dice.index(ways.len());
            let Some((way, held)) = ways.get_mut(at) else {
                break;
            };
            way.once(actor, held)?;
            let now = actor.now();
            if now >= begins && now < ends {
                count += 1;
            }
        }
        shared.counts.borrow_mut().push(count);
    }
    shared.over.pass(actor, shared.everyone);
    Ok(())
}

/// How long a lock is held.
const HOLD: Nanos = Nanos(100);
/// How long they go on before they are watched.
const WARM: Nanos = Nanos::from_millis(3);
