//! A call that ends at its deadline may leave an operation under way. What it began ends all the same: a place among the
//! members is given back, and the waiter behind one that was woken gets its turn.

use netvm::sync::{Lock, WaitQueue, Woken};
use netvm::{Access, Error, Port, Result};
use netvm_abi::wire::{Header, Kind};
use netvm_abi::{Nanos, NodeId, PortId};
use netvm_world::Script;
use netvm_world::stand::{Actor, Gate, SOON, Stand};
use netvm_world::timing::CostModel;
use std::rc::Rc;
use std::time::Duration;

const PORT: u16 = 1;
/// Nodes of the object, of the process whose operation is left under way, and of one that depends on it.
const HOME: u16 = 0;
const HASTY: u16 = 1;
const BEHIND: u16 = 2;
/// What a hasty caller gives its call, and what that takes at most.
const TIMEOUT: Duration = Duration::from_millis(5);
const AT_MOST: Nanos = Nanos::from_millis(6);
/// How much later than that frames come: before a card finds that they are missing.
const LATE: Nanos = Nanos::from_millis(10);
/// How long a waiter is out of reach: long enough for its link to be lost, and too short for it to find its queue odd.
const CUT: Nanos = Nanos::from_millis(100);
/// Where the table of members begins in a lock's page.
const MEMBERS: usize = 256;

#[derive(Default)]
struct Gates {
    made: Gate,
    first: Gate,
    second: Gate,
    over: Gate,
}

fn hasty(header: &Header) -> bool {
    header.source == NodeId(HASTY) && header.source_port == PortId(PORT)
}

/// How many of a lock's places its members on this node have.
fn places(port: &Port, node: u16) -> Result<usize> {
    let lock = port.import(HOME.into(), PORT.into(), "lock", SOON)?;
    let mut page = [0; 4096];
    lock.read(0, &mut page).call()?;
    let (words, _) = page[MEMBERS..].as_chunks::<8>();
    let id = u32::from(node) | u32::from(PORT) << 16;
    let of_node = |word: &&[u8; 8]| u64::from_le_bytes(**word) as u32 == id;
    Ok(words.iter().filter(of_node).count())
}

/// A process that joins the lock in haste, and `later` again; with `fault` on the way of its first operation.
fn joins_twice(later: Nanos, fault: impl FnOnce(&mut Stand)) {
    let model = CostModel::committed().expect("the committed counts");
    let gates = Rc::new(Gates::default());
    let mut stand = Stand::new(&model, 2);
    let at = gates.clone();
    stand.process(HOME, "home", move |actor| {
        let port = actor.open(PORT)?;
        let _home = Lock::create(&port, "lock", Access::everyone())?;
        at.made.pass(actor, 2);
        at.over.pass(actor, 2);
        Ok(())
    });
    stand.process(HASTY, "hasty", move |actor| {
        let port = actor.open(PORT)?;
        gates.made.pass(actor, 2);
        let since = actor.now();
        let end = Lock::join(&port, HOME.into(), PORT.into(), "lock", TIMEOUT);
        let took = Nanos(actor.now().0 - since.0);
        if !matches!(end, Err(Error::TimedOut)) || took > AT_MOST {
            actor.complain(&format!("a join of {TIMEOUT:?} has ended after {took}: {end:?}"));
        }
        actor.rest(later);
        if later > LATE {
            expect(actor, "no member", places(&port, HASTY)?, 0);
        }
        // From the seat that the first one had.
        let mut lock = Lock::join(&port, HOME.into(), PORT.into(), "lock", SOON)?;
        actor.rest(Nanos::from_millis(30));
        expect(actor, "a member", places(&port, HASTY)?, 1);
        lock.acquire()?.release()?;
        drop(lock);
        expect(actor, "no member any more", places(&port, HASTY)?, 0);
        gates.over.pass(actor, 2);
        Ok(())
    });
    fault(&mut stand);
    if let Err(trouble) = stand.run(4) {
        panic!("{trouble}");
    }
}

fn expect(actor: &Actor, what: &str, places: usize, wanted: usize) {
    if places != wanted {
        actor.complain(&format!("{what}: it has {places} places"));
    }
}

#[test]
fn a_join_whose_request_comes_late_leaves_no_place_taken() {
    // What the first one has begun is still under way when the second one begins, or has ended.
    for later in [Nanos(0), Nanos::from_millis(100)] {
        joins_twice(later, |stand| {
            let request = Script {
                frames: |header| header.kind == Kind::AtomicRequest && hasty(header),
                nth: 0,
            };
            stand.delay(request, LATE);
        });
    }
}

#[test]
fn a_join_whose_answer_is_lost_leaves_no_place_taken() {
    // Its card has found that the link is lost, and has greeted anew.
    joins_twice(Nanos::from_millis(100), |stand| {
        stand.lose(Script {
            frames: |header| header.kind == Kind::AtomicReply,
            nth: 0,
        });
    });
}

/// What is in the way when the first waiter, woken, brings in the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InTheWay {
    /// Its operation on the queue comes late.
    LateRequest,
    /// The second waiter is out of reach for a while.
    Cut,
}

/// What the first waiter does when it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It stands in the queue again, and waits.
    Returns,
    /// It leaves.
    Leaves,
    /// It leaves, and closes its port.
    Closes,
}

/// Two wait. The queue gets two signals, one after the other or, `at_once`, both before the first waiter looks.
fn wakes_both(way: InTheWay, at_once: bool, then: Then) {
    let model = CostModel::committed().expect("the committed counts");
    let gates = Rc::new(Gates::default());
    let mut stand = Stand::new(&model, 3);
    let at = gates.clone();
    stand.process(HOME, "home", move |actor| {
        let port = actor.open(PORT)?;
        let _home = WaitQueue::create(&port, "queue", Access::everyone())?;
        let queue = WaitQueue::join(&port, HOME.into(), PORT.into(), "queue", SOON)?;
        at.made.pass(actor, 3);
        at.second.pass(actor, 3);
        let signals = if then == Then::Returns { 3 } else { 2 };
        for nth in 0..signals {
            if nth > 0 && !(at_once && nth == 1) {
                // Long after everything that comes late.
                actor.rest(Nanos::from_millis(700));
            }
            if !queue.signal()? {
                actor.complain(&format!("signal {nth} has found no waiter"));
            }
        }
        at.over.pass(actor, 3);
        Ok(())
    });
    let at = gates.clone();
    stand.process(HASTY, "hasty", move |actor| first(actor, &at, way, then));
    stand.process(BEHIND, "behind", move |actor| {
        let port = actor.open(PORT)?;
        gates.made.pass(actor, 3);
        let mut queue = WaitQueue::join(&port, HOME.into(), PORT.into(), "queue", SOON)?;
        gates.first.pass(actor, 2);
        let mut stands = queue.insert()?;
        // Its name is with the one before.
        actor.rest(Nanos::from_millis(1));
        gates.second.pass(actor, 3);
        let end = stands.wait(SOON)?;
        if end != Woken::Signal {
            actor.complain(&format!("the second waiter has lost its place: {end:?}"));
        }
        gates.over.pass(actor, 3);
        Ok(())
    });
    if way == InTheWay::LateRequest {
        // The first operation is that by which it stands in the queue.
        let request = Script {
            frames: |header| header.kind == Kind::AtomicRequest && hasty(header),
            nth: 1,
        };
        stand.delay(request, LATE);
    }
    if let Err(trouble) = stand.run(4) {
        panic!("{way:?}, at once {at_once}, {then:?}: {trouble}");
    }
}

fn first(actor: &Actor, gates: &Gates, way: InTheWay, then: Then) -> Result<()> {
    let port = actor.open(PORT)?;
    gates.made.pass(actor, 3);
    let mut queue = WaitQueue::join(&port, HOME.into(), PORT.into(), "queue", SOON)?;
    let mut stands = queue.insert()?;
    gates.first.pass(actor, 2);
    gates.second.pass(actor, 3);
    if way == InTheWay::Cut {
        actor.cut(BEHIND.into(), CUT);
    }
    let since = actor.now();
    let end = stands.wait(TIMEOUT);
    let took = Nanos(actor.now().0 - since.0);
    if end != Ok(Woken::Signal) || took > AT_MOST {
        actor.complain(&format!("a wait of {TIMEOUT:?} has ended after {took}: {end:?}"));
    }
    drop(stands);
    if then == Then::Returns {
        let end = queue.insert()?.wait(SOON)?;
        if end != Woken::Signal {
            actor.complain(&format!("its second wait has ended with {end:?}"));
        }
    } else {
        drop(queue);
    }
    if then == Then::Closes {
        drop(port);
    }
    gates.over.pass(actor, 3);
    Ok(())
}

#[test]
fn a_waiter_that_was_told_in_time_still_brings_in_the_next() {
    for at_once in [false, true] {
        for then in [Then::Returns, Then::Leaves] {
            wakes_both(InTheWay::LateRequest, at_once, then);
        }
    }
    wakes_both(InTheWay::LateRequest, true, Then::Closes);
}

#[test]
fn a_waiter_that_was_told_in_time_still_wakes_one_out_of_reach() {
    for then in [Then::Returns, Then::Leaves] {
        wakes_both(InTheWay::Cut, true, then);
    }
}
