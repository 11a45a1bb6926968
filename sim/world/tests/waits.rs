//! Waits end when their callers say, whatever has become of the others.

use netvm::sync::alock::AsymmetricLock;
use netvm::sync::{Lock, Semaphore, WaitQueue, Woken};
use netvm::{Access, Error, Port, Result};
use netvm_abi::wire::{Header, Kind};
use netvm_abi::{Nanos, PortId};
use netvm_world::Script;
use netvm_world::stand::{Actor, Gate, SOON, Stand};
use netvm_world::timing::CostModel;
use std::rc::Rc;
use std::time::Duration;

const PORT: u16 = 1;
/// Nodes of the queue, of its waiter, and of the one that stands before it.
const HOME: u16 = 0;
const WAITER: u16 = 1;
const BEFORE: u16 = 2;
/// What the waiters give their waits, and what these take at most. The first is over before a card finds its link lost, the
/// second after that.
const TIMEOUTS: [(Duration, Nanos); 2] = [
    (Duration::from_millis(20), Nanos::from_millis(21)),
    (Duration::from_millis(300), Nanos::from_millis(301)),
];
/// Members of other kinds, whose joins lose a message.
const JOINS: u16 = 4;

#[derive(Default)]
struct Gates {
    made: Gate,
    first: Gate,
    over: Gate,
}

/// The waiter looks whether the one before it is still there, whose node is out of reach. After 2 s it counts as gone. The
/// wait ends before that.
#[test]
fn a_wait_ends_in_time_if_the_one_before_is_out_of_reach() {
    behind_one_that_is_out_of_reach(waiter);
}

/// As short as its waits are, it looks in time.
#[test]
fn a_program_that_asks_again_and_again_finds_that_the_one_before_is_gone() {
    behind_one_that_is_out_of_reach(|actor, gates| {
        let port = actor.open(PORT)?;
        gates.made.pass(actor, 3);
        let mut queue = WaitQueue::join(&port, HOME.into(), PORT.into(), "queue", SOON)?;
        gates.first.pass(actor, 2);
        let mut stands = queue.insert()?;
        actor.rest(Nanos::from_millis(1));
        actor.cut(BEFORE.into(), Nanos::from_millis(8_000));
        let until = actor.now().after(Nanos::from_millis(6_000));
        let end = loop {
            match stands.wait(Duration::from_millis(1)) {
                Err(Error::TimedOut) if actor.now() < until => {}
                end => break end,
            }
        };
        if !matches!(end, Ok(Woken::Reset)) {
            actor.complain(&format!(
                "the one before is gone, and the waits ended with {end:?}"
            ));
        }
        gates.over.pass(actor, 3);
        Ok(())
    });
}

/// A queue, one in it whose node is out of reach, and this waiter behind it.
fn behind_one_that_is_out_of_reach(waiter: impl Fn(&Actor, &Gates) -> Result<()> + 'static) {
    let model = CostModel::committed().expect("the committed counts");
    let gates = Rc::new(Gates::default());
    let mut stand = Stand::new(&model, 3);
    let at = gates.clone();
    stand.process(HOME, "home", move |actor| {
        let port = actor.open(PORT)?;
        let _home = WaitQueue::create(&port, "queue", Access::everyone())?;
        at.made.pass(actor, 3);
        at.over.pass(actor, 3);
        Ok(())
    });
    let at = gates.clone();
    stand.process(BEFORE, "before", move |actor| {
        let port = actor.open(PORT)?;
        at.made.pass(actor, 3);
        let mut queue = WaitQueue::join(&port, HOME.into(), PORT.into(), "queue", SOON)?;
        let _stands = queue.insert()?;
        at.first.pass(actor, 2);
        at.over.pass(actor, 3);
        Ok(())
    });
    stand.process(WAITER, "waiter", move |actor| waiter(actor, &gates));
    stand.run(4).expect("every wait ends in time");
}

fn waiter(actor: &Actor, gates: &Gates) -> Result<()> {
    let port = actor.open(PORT)?;
    gates.made.pass(actor, 3);
    let mut queue = WaitQueue::join(&port, HOME.into(), PORT.into(), "queue", SOON)?;
    gates.first.pass(actor, 2);
    let mut stands = queue.insert()?;
    // Its name is with the one before.
    actor.rest(Nanos::from_millis(1));
    actor.cut(BEFORE.into(), Nanos::from_millis(8_000));
    for (timeout, at_most) in TIMEOUTS {
        let since = actor.now();
        let end = stands.wait(timeout);
        let took = Nanos(actor.now().0 - since.0);
        if !matches!(end, Err(Error::TimedOut)) || took > at_most {
            actor.complain(&format!("a wait of {timeout:?} has ended after {took}: {end:?}"));
        }
    }
    // The place is still there, and the next wait goes on where this one has ended: the one before counts as gone.
    let end = stands.wait(Duration::from_secs(6))?;
    if end != Woken::Reset {
        actor.complain(&format!(
            "the one before is gone, and the wait has ended with {end:?}"
        ));
    }
    gates.over.pass(actor, 3);
    Ok(())
}

type Join = fn(&Port, Duration) -> Result<()>;

/// A join reads the home after it has bound to it. The request is lost, and the card needs longer to find that than the
/// caller gives the join.
#[test]
fn a_join_ends_in_time_if_its_read_is_lost() {
    let joins: [(&str, Join); JOINS as usize] = [
        ("lock", |port, timeout| {
            Lock::join(port, HOME.into(), PORT.into(), "lock", timeout).map(drop)
        }),
        ("queue", |port, timeout| {
            WaitQueue::join(port, HOME.into(), PORT.into(), "queue", timeout).map(drop)
        }),
        ("semaphore", |port, timeout| {
            Semaphore::join(port, HOME.into(), PORT.into(), "semaphore", timeout).map(drop)
        }),
        ("asymmetric lock", |port, timeout| {
            AsymmetricLock::join(port, HOME.into(), PORT.into(), "asymmetric", timeout).map(drop)
        }),
    ];
    for (name, join) in joins {
        let model = CostModel::committed().expect("the committed counts");
        let gates = Rc::new(Gates::default());
        let mut stand = Stand::new(&model, 2);
        let at = gates.clone();
        stand.process(HOME, "home", move |actor| {
            let port = actor.open(PORT)?;
            let _homes = (
                Lock::create(&port, "lock", Access::everyone())?,
                WaitQueue::create(&port, "queue", Access::everyone())?,
                Semaphore::create(&port, "semaphore", 1, Access::everyone())?,
                AsymmetricLock::create(&port, "asymmetric", Access::everyone())?,
            );
            at.made.pass(actor, 2);
            at.over.pass(actor, 2);
            Ok(())
        });
        let at = gates.clone();
        stand.process(WAITER, name, move |actor| {
            let port = actor.open(PORT + 1)?;
            at.made.pass(actor, 2);
            let (timeout, at_most) = TIMEOUTS[0];
            let since = actor.now();
            let end = join(&port, timeout);
            let took = Nanos(actor.now().0 - since.0);
            if !matches!(end, Err(Error::TimedOut)) || took > at_most {
                actor.complain(&format!("a join of {timeout:?} has ended after {took}: {end:?}"));
            }
            at.over.pass(actor, 2);
            Ok(())
        });
        stand.lose(Script {
            frames: |header: &Header| {
                header.kind == Kind::ReadRequest && header.source_port == PortId(PORT + 1)
            },
            nth: 0,
        });
        if let Err(trouble) = stand.run(4) {
            panic!("{name}: {trouble}");
        }
    }
}
