//! A hot word: so many clients that all add to it, and what a cache of operands in the card could save (thesis 10.2).

use netvm::{Access, Result};
use netvm_abi::{Nanos, PAGE_SIZE};
use netvm_world::stand::{Actor, Findings, Gate, SOON, Stand, Trouble};
use netvm_world::timing::CostModel;
use serde::Serialize;
use std::rc::Rc;

/// What came of so many clients.
#[derive(Clone, Debug, Serialize)]
pub struct Hot {
    /// Clients, each with one fetch-and-add under way.
    pub clients: u32,
    /// Words that they add to, each in a page of its own: client after client takes the next.
    pub words: u32,
    /// Millions of them in a second of virtual time.
    pub mops: f64,
    /// Mean time of one, in nanoseconds.
    pub nanos: f64,
    /// `mops` where fetching an operand takes no time: more than that no cache can give.
    pub cached_mops: f64,
    /// `nanos` there.
    pub cached_nanos: f64,
}

const PORT: u16 = 1;
/// Nodes of the clients; the word's comes on top.
const NODES: u16 = 8;

struct Shared {
    clients: usize,
    words: u32,
    ready: Gate,
    joined: Gate,
    over: Gate,
    span: Nanos,
    /// Of each client: how many, and how long they took together.
    counts: Findings<(u64, u64)>,
}

/// Watches so many clients for `span`, once by the model and once with operands that need not be fetched.
///
/// # Errors
/// [`Trouble`] when an operation failed.
pub fn measure(
    model: &CostModel,
    clients: u32,
    words: u32,
    span: Nanos,
) -> std::result::Result<Hot, Trouble> {
    let (mops, nanos) = play(model, clients, words, span)?;
    // In this world nothing else reads host memory.
    let cached = CostModel {
        dma_read: Nanos(0),
        ..*model
    };
    let (cached_mops, cached_nanos) = play(&cached, clients, words, span)?;
    Ok(Hot {
        clients,
        words,
        mops,
        nanos,
        cached_mops,
        cached_nanos,
    })
}

fn play(
    model: &CostModel,
    clients: u32,
    words: u32,
    span: Nanos,
) -> std::result::Result<(f64, f64), Trouble> {
    let shared = Rc::new(Shared {
        clients: clients as usize,
        words: words.max(1),
        ready: Gate::default(),
        joined: Gate::default(),
        over: Gate::default(),
        span,
        counts: Findings::default(),
    });
    let mut stand = Stand::new(model, NODES + 1);
    let at = shared.clone();
    stand.process(0, "home", move |actor| home(actor, &at));
    for client in 0..clients {
        let node = 1 + (client % u32::from(NODES)) as u16;
        let (at, port) = (shared.clone(), PORT + (client / u32::from(NODES)) as u16);
        stand.process(node, "client", move |actor| {
            self::client(actor, port, client, &at)
        });
    }
    stand.run(clients.div_ceil(u32::from(NODES)) as u16)?;
    let counts = shared.counts.borrow();
    let done: u64 = counts.iter().map(|(count, _)| count).sum();
    let took: u64 = counts.iter().map(|(_, took)| took).sum();
    Ok((
        done as f64 * 1_000.0 / span.0 as f64,
        took as f64 / done.max(1) as f64,
    ))
}

fn home(actor: &Actor, shared: &Shared) -> Result<()> {
    let port = actor.open(PORT)?;
    let memory = port.alloc(u64::from(shared.words) * u64::from(PAGE_SIZE))?;
    for word in 0..shared.words {
        memory.word64(u64::from(word) * u64::from(PAGE_SIZE))?.store(0)?;
    }
    let _words = port.export("words", &memory, .., Access::everyone())?;
    shared.ready.pass(actor, shared.clients + 1);
    shared.over.pass(actor, shared.clients + 1);
    Ok(())
}

fn client(actor: &Actor, number: u16, client: u32, shared: &Shared) -> Result<()> {
    let port = actor.open(number)?;
    shared.ready.pass(actor, shared.clients + 1);
    let memory = port.import(0.into(), PORT.into(), "words", SOON)?;
    let word = memory.word64(u64::from(client % shared.words) * u64::from(PAGE_SIZE))?;
    word.fetch_add(1)?;
    shared.joined.pass(actor, shared.clients);
    let begins = actor.now().after(Nanos::from_micros(200));
    let ends = begins.after(shared.span);
    let (mut count, mut took) = (0, 0);
    while actor.now() < ends {
        let asked = actor.now();
        word.fetch_add(1)?;
        let now = actor.now();
        if now >= begins && now < ends {
            count += 1;
            took += now.0 - asked.0;
        }
    }
    shared.counts.borrow_mut().push((count, took));
    shared.over.pass(actor, shared.clients + 1);
    Ok(())
}
