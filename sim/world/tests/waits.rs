//! Waits end when their callers say, whatever has become of the others.

use netvm::sync::{WaitQueue, Woken};
use netvm::{Access, Error, Result};
use netvm_abi::Nanos;
use netvm_world::stand::{Actor, Gate, SOON, Stand};
use netvm_world::timing::CostModel;
use std::rc::Rc;
use std::time::Duration;

const PORT: u16 = 1;
/// Nodes of the queue, of its waiter, and of the one that stands before it.
const HOME: u16 = 0;
const WAITER: u16 = 1;
const BEFORE: u16 = 2;
/// What the waiter gives its wait, and what that may take at most: a look that is under way is no longer than a card takes
/// to find a link lost.
const TIMEOUT: Duration = Duration::from_millis(300);
const AT_MOST: Nanos = Nanos::from_millis(310);

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
    let since = actor.now();
    let end = stands.wait(TIMEOUT);
    let took = Nanos(actor.now().0 - since.0);
    if !matches!(end, Err(Error::TimedOut)) || took > AT_MOST {
        actor.complain(&format!("a wait of {TIMEOUT:?} has ended after {took}: {end:?}"));
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
